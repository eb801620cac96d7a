"""What was chosen by measurement: block sizes, warps, registers, and where a launcher changes its kernel or its tile.

One table per GPU, with a row per launcher, and for parts that several launchers share. So far only an H200 was measured:
every device takes its rows. A row is read by a constant key. `python -m perf_gates.digest` after a change says which
results were measured with other code. What a kernel supports is in its module. Figures: docs/explanation/tuning.md.
"""

SMS = 132
"""Multiprocessors of an H200."""

H200: dict[str, dict[str, int]] = {
    "accept_sampled": {"block_i": 4096, "warps": 8},
    "causal_attention": {"block_t": 64, "block_l": 64, "edge": 32, "warps": 4, "stages": 2, "stages_rounded": 3},
    "kv_compact": {"elements": 4096, "warps": 4},
    "ngram_drafts": {"block_s": 512, "block_i": 32, "warps": 4},
    "rotary": {"frequencies": 512, "warps": 2},
    "tree_attention": {
        "block_m": 32, "block_l": 32, "warps": 4, "stages": 3,
        "part_slots": 256, "parts": 16, "merged_nodes": 16,
    },
    "tree_mask": {"block_i": 16, "warps": 4},
    "conv_taps": {"many_rows": 16, "channels": 256, "warps": 4, "channels_few_rows": 128, "warps_few_rows": 2},
    "conv_packed": {"block_t": 32, "block_c": 64, "warps": 8, "commit_warps": 4},
    "conv_tree": {
        "small_nodes": 4, "small_channels": 128, "small_warps": 4, "large_nodes": 16, "large_channels": 16, "large_warps": 4,
        "few_rows": 8, "few_channels": 32, "channels": 64, "warps": 2,
    },
    "delta_buffered": {
        "few_heads": 512, "block_v": 128, "block_v_few": 64, "rows": 16, "stages": 4, "rows_few": 32, "stages_few": 3,
        "warps": 4, "registers": 168,
        "short_from": 256, "short_tiles": 2, "short_many_heads": 1024, "short_many_tiles": 4, "short_resident": 8 * SMS,
    },
    "delta_buffered_step": {
        "short_below": 4096, "few_heads": 256, "few_block_v": 32, "block_v": 64, "many_heads": 4096, "many_block_v": 128,
        "dense_block_v": 16, "rows": 16, "stages": 3, "warps": 1,
    },
    "delta_chunk_scan": {
        "chunk": 32, "block_v": 8, "warps": 2, "rounded_chunk": 64, "rounded_block_v": 32, "rounded_warps": 4,
        "stages": 3, "join_warps": 1,
    },
    "delta_chunked": {
        "two_launches_from": 128, "few_programs": 256, "few_channels": 16, "programs": 1024, "wide": 2, "channels": 64,
        "many_wide": 4, "many_channels": 128, "stages": 2,
    },
    "delta_flush": {"block_v": 32, "warps": 4},
    "delta_apply": {
        "part": 32, "written_from": 512, "read_from": 2048, "run": 2, "warps": 2, "many_written": 2048, "many_warps": 4,
        "registers": 128,
    },
    "delta_scan": {
        "lanes": 8, "step_block_v": 64, "step_warps": 4, "block_v": 16, "unfused_lanes": 4, "unfused_block_v": 32,
        "registers": 128,
    },
    "delta_tree": {"block_v": 32, "warps": 4},
    "delta_tree_products": {"block_v": 64, "few_programs": 64, "warps": 4, "many_nodes_warps": 8},
    "gated_norm": {"channels": 1024, "channels_a_warp": 512, "most_warps": 16},
    "kda_commit": {"block_v": 16},
    "kda_pairs": {"part": 32, "warps": 8},
    "kda_scan": {
        "lanes": 8, "step_block_v": 64, "step_warps": 4, "block_v": 16, "unfused_lanes": 8, "unfused_block_v": 16,
    },
    "kda_snapshots": {"block_v": 16},
    "kda_tree": {
        "part": 32, "few_heads": 64, "few_block_v": 64, "block_v": 128, "few_nodes": 32, "many_nodes": 64, "warps": 4,
        "more_warps": 8,
    },
    "linear_rows": {
        "wide_outputs": 8192, "block_k": 256, "slices": 4, "stages": 3, "block_o": 32, "block_o_early": 64, "many_rows": 64,
        "narrow_block_k": 512, "narrow_slices": 8, "early_outputs": 4096, "early_stages": 4,
        "fp32_block_o": 16, "fp32_stages": 4,
    },
    "mamba3_scan": {"warps": 8, "states_a_warp": 1024},
    "mamba3_tree": {"warps": 8},
    "norm": {"channels_a_warp": 512, "most_warps": 16},
    "selective_scan": {"unrolled": 32, "states_a_warp": 512, "two_warps_states": 32, "two_warps_from": 1024},
    "selective_tree": {"maps": 4096, "many_maps": 512, "warps": 4, "many_maps_warps": 8},
    "ssd_buffered": {
        "few_heads": 1024, "few_ragged_heads": 2 * SMS, "exact_block_p": 16, "exact_warps": 2,
        "few_block_p": 32, "few_warps": 4, "few_ragged_warps": 2,
        "ragged_block_p": 16, "ragged_flushed_warps": 2, "ragged_warps": 1, "ragged_each": 8, "ragged_heads": 6,
        "block_p": 64, "warps": 4, "each": 2, "heads": 20, "flushed_heads": 2, "stages": 3, "flushed_stages": 2,
    },
    "ssd_buffered_short": {
        "open_programs": 12 * SMS, "flushed_programs": 32 * SMS, "apart_from": 32 * 8 * SMS, "flushed_run": 4, "long_run": 10,
        "stages": 2, "flushed_stages": 3, "open_registers": 168,
    },
    "ssd_buffered_step": {
        "resident": 12 * SMS, "early_warps": 5 * SMS, "many_heads": 1024, "block_p": 16, "wide_block_p": 32, "wide_warps": 2,
        "registers": 168,
    },
    "ssd_chunk_scan": {
        "chunk": 64, "block_p": 32, "rounded_block_p": 64, "block_n": 64, "heads": 4, "warps": 4, "stages": 2,
        "steps_heads": 16, "walk_p": 16, "walk_warps": 2, "rounded_walk_warps": 4, "walk_stages": 2,
    },
    "ssd_commit": {"block_p": 8, "warps": 1},
    "ssd_flush": {"block_p": 16, "warps": 1},
    "ssd_gated": {"block_p": 16, "warps": 4},
    "ssd_replay_scan": {
        "short_stages": 3, "step_tokens": 4, "step_block_p": 8, "block_p": 16, "wide_block_p": 32,
        "tile_p": 32, "long_tile_p": 16, "tile_warps": 4, "long_tile_warps": 8,
    },
    "ssd_scan": {"early_programs": 32 * SMS, "block_p": 16, "step_block_p": 4},
    "ssd_state_tile": {"sms": SMS, "resident": 8 * SMS, "longest": 12, "many_rounds": 16},
    "ssd_tree_large": {"each": 2, "heads": 20, "warps": 4},
    "ssd_window": {
        "chain_stages": 2, "chain_many_stages": 3, "exact_block_p": 16, "few_heads": 2 * SMS, "few_block_p": 64,
        "few_ragged_block_p": 32, "few_warps": 4, "ragged_few_heads": 4 * SMS, "ragged_few_block_p": 32, "ragged_block_p": 16,
        "ragged_each": 8, "ragged_heads": 8, "many_heads": 8192, "many_heads_of_8": 8, "heads": 20, "long_heads": 16,
        "long_ragged_heads": 8, "block_p": 64, "each": 2, "warps": 4, "stages": 3, "long_stages": 2,
    },
    "ssd_window_tile": {"channels": 32, "programs": 512, "warps": 2, "stages": 3},
}  # fmt: skip
"""Heads are heads of rows (b h) unless a name ends in `_heads` of a program; ragged: channels that are no multiple of 64."""
