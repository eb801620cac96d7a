"""The launcher of each measurement, and the closure hash of its code, which a limit stores.

Steps of an engine and runs of the checkpoints use all launchers; measurements of other projects' kernels use none of ours.
"""

import re
from functools import cache

from ..closure.hashes import kernels
from ..machine import kernel_hash, kernels_hash
from ..static.shapes import DELTA, KDA
from ..verdicts.measured import At
from ..verdicts.targets import OF_THE_DELTA_RULE

OURS = (
    (r"linear_rows|projection", "linear_rows"),
    (r"(\w+_chunk_scan|causal_attention), ours", r"\1"),
    (r"chunk scan", "ssd_chunk_scan"),
    (r"convolution of 1$", "conv_step"),
    (r"convolution", "conv_window"),
    (r"acceptance", "accept_greedy"),
    (OF_THE_DELTA_RULE, "delta_scan"),
    (r"snapshots", "FAMILY_snapshots"),
    (r"buffered|ring of 1$", "FAMILY_buffered_step"),
    (r"verify|ring", "FAMILY_buffered"),
    (r"packed tree|tree of", "FAMILY_tree"),
    (r".*by products|window of|a row", "FAMILY_window"),
    (r"step|scan", "FAMILY_scan"),
)
"""How an operation's name begins, and its launcher; the family is that of the shape."""
NAMES = {"ssd_tree": "ssd_tree_scan", "delta_window": "delta_chunked", "kda_window": "kda_scan"}
PEERS = re.compile(r", (vLLM|fla|mamba-ssm|torch)$|^cuBLAS")
WHOLE = ("bench", "trained", "equality")


def launcher(at: At) -> str:
    """The launcher; empty for measurements that use all of them, or none of ours."""
    if at.part in WHOLE or PEERS.search(at.operation):
        return ""
    family = "kda" if at.shape in KDA else "delta" if at.shape in DELTA else "ssd"
    for begins, name in OURS:
        if found := re.match(begins, at.operation):
            made = found.expand(name).replace("FAMILY", family)
            return NAMES.get(made, made)
    raise LookupError(
        f"{at.part}: {at.operation!r} is the name of no launcher's measurement; add it to perf_gates/ratchet/launchers.py"
    )


@cache
def code_of(at: At) -> str:
    """The hash of the present code of a measurement; empty if it runs none of ours."""
    if at.part in WHOLE:
        return kernels_hash()
    name = launcher(at)
    return kernel_hash(name) if name else ""


def known() -> set[str]:
    """All launchers of the package."""
    return {definition.name for definition in kernels().launchers}
