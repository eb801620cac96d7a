"""Checks of other batches and trees: each launches a variant of a kernel that no other check launches, and that is timed or
belongs to a kernel that no other check launches.

`python -m perf_gates.gpu.variants` chose the names; tests/gates/test_variants.py fails if one is missing or not needed.
"""

from .call import Plan

PLAN = Plan(batches=(1, 4, 16, 64, 256, 32, 128), windows=(5, 6, 10), nodes=(13, 15, 63), rings=((6, 22), (6, 32)), rare=True)
"""The candidates: the batches and trees that are timed, and the rows of an unrolled tree."""
NAMES = frozenset(
    (
        "causal_attention/40 heads, 8 kv, 128/packed in bf16/b1",
        "causal_attention/40 heads, 8 kv, 128/packed/b1",
        "delta_buffered/qwen3.5-4b/T=6 L=22 u=bf16/b256",
        "delta_buffered/qwen3.5-4b/T=6 L=32 u=bf16/b256",
        "delta_buffered_step/qwen3.5-4b/L=16 u=bf16/b256",
        "delta_chunked/qwen3.5-4b/T=10/b4",
        "delta_tree/qwen3.5-4b/T=15/b1",
        "delta_tree/qwen3.5-4b/T=15/b4",
        "delta_tree/qwen3.5-4b/T=15/b64",
        "delta_tree/qwen3.5-4b/T=63 without the inverse/b1",
        "linear_rows/in_proj/1 rows without overlap/b1",
        "linear_rows/in_proj/24 rows without overlap/b4",
        "linear_rows/in_proj/96 rows without overlap/b16",
        "linear_rows/out_proj/1 rows without overlap/b1",
        "linear_rows/out_proj/24 rows without overlap/b4",
        "ssd_buffered/mamba2-2.7b/T=6 L=22/b256",
        "ssd_buffered/mamba2-2.7b/T=6 L=32/b256",
        "ssd_buffered/nemotron-3-nano-4b/T=6 L=22/b256",
        "ssd_buffered/nemotron-3-nano-4b/T=6 L=32/b256",
        "ssd_buffered_step/mamba2-2.7b/L=16/b4",
        "ssd_buffered_step/nemotron-3-nano-4b/L=16/b4",
        "ssd_replay_scan/mamba2-2.7b/T=5 in fp16/b1",
        "ssd_scan/mamba2-2.7b/T=5 verify/b1",
        "ssd_scan/nemotron-3-nano-4b/T=5 verify/b1",
        "ssd_tree_scan/mamba2-2.7b/T=13/b4",
        "ssd_tree_scan/mamba2-2.7b/T=15/b1",
        "ssd_tree_scan/mamba2-2.7b/T=15/b16",
        "ssd_tree_scan/mamba2-2.7b/T=15/b4",
        "ssd_tree_scan/mamba2-2.7b/T=15/b64",
        "ssd_tree_scan/mamba2-2.7b/T=63/b4",
        "ssd_tree_scan/nemotron-3-nano-4b/T=13/b4",
        "ssd_tree_scan/nemotron-3-nano-4b/T=15/b1",
        "ssd_tree_scan/nemotron-3-nano-4b/T=15/b16",
        "ssd_tree_scan/nemotron-3-nano-4b/T=15/b4",
        "ssd_tree_scan/nemotron-3-nano-4b/T=15/b64",
        "ssd_tree_scan/nemotron-3-nano-4b/T=63/b4",
        "ssd_window/mamba2-2.7b/T=5 verify/b256",
        "ssd_window/mamba2-2.7b/T=5 verify/b4",
        "ssd_window/mamba2-2.7b/T=6 verify/b256",
        "ssd_window/mamba2-2.7b/T=6 verify/b32",
        "ssd_window/nemotron-3-nano-4b/T=5 verify/b4",
        "ssd_window/nemotron-3-nano-4b/T=6 verify/b32",
    )
)
