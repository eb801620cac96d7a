"""What a launch of some parts moves and multiplies, by its shapes: for their floors, and for what they write down.

    packed tree, private, shared     `perf_gates.gpu.unrolled`: of rows that share a state it counts once
    prefill                          `traffic_bytes` of the kernel under the contract that is timed; a peer's are not known
    causal attention                 2 products of 2 e for each head, token and key that it sees: 4 h e t (t + 1) / 2

Units: bytes, floating-point operations.
"""

from importlib import import_module
from typing import Any

from .measured import At, Missing
from .shapes import ATTENTION, DELTA, SSD

NODES, LEAVES, DEPTH = 63, 32, 6
"""The full binary tree that is unrolled: its leaves, and the nodes of a path."""
PACKED, PRIVATE, SHARED = "packed tree", "a row and a state for each leaf", "a row for each leaf, one state"
TOKENS = 4096
"""Of a prompt."""


def bytes_of(at: At) -> int:
    """Raises: Missing for what is of another part, or a peer's."""
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
    """Of one state."""
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
    """Of attention; 0 for what is not bound by products, or has several ways to take them."""
    if not at.operation.startswith("causal_attention"):
        return 0
    h, _, e = ATTENTION[at.shape]
    return 4 * h * e * TOKENS * (TOKENS + 1) // 2


def _traffic(kernel: str) -> Any:
    return import_module(f"ssmspec_kernels.{kernel}").traffic_bytes
