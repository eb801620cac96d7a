"""The bytes and products of launches in some parts, computed from their shapes: for floors, and for recording with times.

    packed tree, private, shared     `perf_gates.gpu.kernels.unrolled`: a state that rows share counts once
    prefill                          `traffic_bytes` of the kernel under the timed contract; a peer's is unknown
    causal attention                 2 products of 2 e for each head, token and key that it sees: 4 h e t (t + 1) / 2;
                                     twice as many if they are as accurate as fp32: weights in three parts, scores in one

Units: bytes, floating-point operations.
"""

from typing import Any

from ..verdicts.measured import At, Missing
from .kernel_modules import kernel_module
from .shapes import ATTENTION, DELTA, SSD

NODES, LEAVES, DEPTH = 63, 32, 6
"""The full binary tree that is unrolled: its leaves, and the nodes of a path."""
PACKED, PRIVATE, SHARED = "packed tree", "a row and a state for each leaf", "a row for each leaf, one state"
TOKENS = 4096
"""Tokens of a prompt."""


def bytes_of(at: At) -> int:
    """The bytes of a measurement. Raises: Missing for other parts, and for a peer's."""
    if at.part == "unrolled":
        return unrolled(at.shape, at.operation, at.batch)
    if at.part == "prefill" and at.operation.endswith((", ours", ", ours in bf16")):
        name, _, contract = at.operation.partition(", ")
        return prompt(name, at.shape, "fp32" if contract == "ours" else "bf16")
    raise Missing(f"{at.part}: nothing says what {at.operation!r} moves")


def unrolled(model: str, operation: str, batch: int) -> int:
    """A tree, or its paths as rows."""
    sizes = DELTA[model] if model in DELTA else SSD[model]
    tree, scan = ("delta_tree", "delta_scan") if model in DELTA else ("ssd_tree_scan", "ssd_scan")
    if operation == PACKED:
        return int(_traffic(tree)(batch, NODES, *sizes))
    rows = _traffic(scan)(batch * LEAVES, DEPTH, *sizes, write_state=False)
    return int(rows if operation == PRIVATE else rows - batch * (LEAVES - 1) * 4 * numbers(model))


def numbers(model: str) -> int:
    """Numbers of one state."""
    a, b, c = DELTA[model][1:] if model in DELTA else SSD[model][:3]
    return a * b * c


def prompt(kernel: str, model: str, products: str) -> int:
    """One sequence of TOKENS tokens."""
    if kernel == "causal_attention":
        return int(_traffic(kernel)(TOKENS, TOKENS, *ATTENTION[model]))
    if kernel == "delta_chunk_scan":
        chunk = 32 if products == "fp32" else 64
        return int(_traffic(kernel)(TOKENS, TOKENS // chunk, 1, *DELTA[model], chunk=chunk))
    return int(_traffic(kernel)(TOKENS, TOKENS // 64, 1, *SSD[model], products=products))


def products_of(at: At) -> int:
    """Products of attention; 0 for what is not bound by products, or can compute them in several ways."""
    if not at.operation.startswith("causal_attention"):
        return 0
    h, _, e = ATTENTION[at.shape]
    each = 4 * h * e * TOKENS * (TOKENS + 1) // 2
    return 2 * each if at.operation.endswith(", ours") else each


def _traffic(kernel: str) -> Any:
    return kernel_module(kernel).traffic_bytes
