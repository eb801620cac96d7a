"""The oracle of each launcher: the function of `ssmspec_ref` that it computes, and the suite's operations that judge it.

`error_bounds` has the same function, evaluated on pairs of a value and an error, for what rounds.
"""

from typing import NamedTuple


class Oracle(NamedTuple):
    """`function` is a name in `ssmspec_ref`; `operations` are names in `ssmspec_ref.contract.OPERATIONS`, without their kind
    where that is the function's."""

    function: str
    operations: str = ""

    @property
    def judged(self) -> list[str]:
        """The operations by their whole names."""
        kind = self.function.partition(".")[0]
        return [name if "." in name else f"{kind}.{name}" for name in self.operations.split()]


_SCAN, _WINDOW = "step scan scan_masked", "scan scan_masked"
ORACLES = {
    "ssd_scan": Oracle("ssd.scan", _SCAN),
    "ssd_window": Oracle("ssd.scan", _WINDOW),
    "ssd_chunk_scan": Oracle("ssd.scan", "scan_packed"),
    "ssd_snapshots": Oracle("ssd.scan", "verify_snapshots"),
    "ssd_commit": Oracle("ssd.scan", "verify_replay"),
    "ssd_replay_scan": Oracle("ssd.scan", "verify_replay"),
    "ssd_tree_scan": Oracle("ssd.tree.scan", "verify_tree"),
    "ssd_gated": Oracle("ssd.scan"),
    "ssd_gated_window": Oracle("ssd.tree.scan"),
    "ssd_coded_step": Oracle("ssd.step", "step"),
    "ssd_buffered": Oracle("ssd.scan", "buffered_verify"),
    "ssd_buffered_step": Oracle("ssd.scan", "buffered_step"),
    "ssd_flush": Oracle("ssd.scan", "buffered_verify buffered_step"),
    "delta_scan": Oracle("delta.scan", _SCAN),
    "delta_chunked": Oracle("delta.scan", _WINDOW),
    "delta_chunk_scan": Oracle("delta.scan", "scan_packed"),
    "delta_snapshots": Oracle("delta.scan", "verify_snapshots"),
    "delta_tree": Oracle("delta.tree.scan", "verify_tree"),
    "delta_buffered": Oracle("delta.scan", "buffered_verify"),
    "delta_buffered_step": Oracle("delta.scan", "buffered_step"),
    "delta_flush": Oracle("delta.scan", "buffered_verify buffered_step"),
    "kda_scan": Oracle("delta.scan", _SCAN),
    "kda_snapshots": Oracle("delta.scan", "verify_snapshots"),
    "kda_commit": Oracle("delta.scan", "verify_replay"),
    "kda_tree": Oracle("delta.tree.scan", "verify_tree"),
    "selective_scan": Oracle("selective.scan", _SCAN),
    "selective_tree": Oracle("selective.tree.scan", "verify_tree"),
    "mamba3_scan": Oracle("mamba3.scan", _SCAN),
    "mamba3_packed": Oracle("mamba3.scan", "scan_packed"),
    "mamba3_snapshots": Oracle("mamba3.scan", "verify_snapshots"),
    "mamba3_commit": Oracle("mamba3.scan", "verify_replay"),
    "mamba3_tree": Oracle("mamba3.tree.scan", "verify_tree"),
    "mamba3_buffered": Oracle("mamba3.scan", "buffered_verify buffered_step"),
    "mamba3_flush": Oracle("mamba3.scan", "buffered_verify buffered_step"),
    "shortconv_scan": Oracle("shortconv.scan", _SCAN),
    "shortconv_packed": Oracle("shortconv.scan", "scan_packed"),
    "shortconv_snapshots": Oracle("shortconv.scan", "verify_snapshots"),
    "shortconv_commit": Oracle("shortconv.scan", "verify_replay"),
    "shortconv_tree": Oracle("shortconv.tree.scan", "verify_tree"),
    "shortconv_buffered": Oracle("shortconv.scan", "buffered_verify buffered_step"),
    "shortconv_flush": Oracle("shortconv.scan", "buffered_verify buffered_step"),
    "conv_step": Oracle("conv.scan", "step"),
    "conv_window": Oracle("conv.scan", _WINDOW),
    "conv_packed": Oracle("conv.scan"),
    "conv_commit": Oracle("conv.scan", "commit commit_path"),
    "conv_tree": Oracle("conv.tree.scan", "verify_tree"),
    "rotary": Oracle("attention.turned"),
    "tree_attention": Oracle("attention.read", "verify_tree"),
    "causal_attention": Oracle("attention.scan"),
    "kv_compact": Oracle("attention.compact", "compact"),
    "tree_mask": Oracle("tree.ancestors", "attention.positions"),
    "linear_rows": Oracle("layers.linear.Linear"),
    "linear_added": Oracle("layers.norm.rms"),
    "norm": Oracle("layers.norm.rms"),
    "gated_norm": Oracle("layers.norm.gated"),
    "accept_greedy": Oracle("accept.greedy.walk", "acceptance.greedy"),
    "accept_sampled": Oracle("accept.sampled.sampled", "acceptance.sampled"),
    "commit_tokens": Oracle("accept.emitted.accepted"),
    "ngram_drafts": Oracle("draft.ngram.png", "draft.png"),
    "commit_window": Oracle("backtrack.replay_buffer.ReplayBuffer"),
    "commit_step": Oracle("backtrack.replay_buffer.ReplayBuffer"),
    "commit_flush": Oracle("backtrack.replay_buffer.ReplayBuffer"),
    "commit_halves": Oracle("backtrack.activation_replay.commit"),
}
