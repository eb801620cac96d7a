"""Mamba-3 over several sequences, their tokens one after the other in one run: prompts.

    S, y of the tokens bounds[b] .. bounds[b + 1] - 1 from S[slots[b]], as in `mamba3_scan`

The kernel is that of `mamba3_scan`: a program walks over all tokens of one head of one sequence, in order. So the bits are
those of single tokens, and a prompt takes as long as its longest sequence: no chunk of it is a product of matrices.
Layout: S (s, h, e), a pool that sequences index through `slots`; one with a negative slot is padding, skipped. Bound by the
latency of a token.
"""

from typing import Annotated

import torch
from torch import Tensor

from ssmspec_ref.errors import ShapeMismatch

from ..launch import check_pool
from ..row import Axes, Bounds, Fresh, Slots, launcher, moved, reads, writes
from . import mamba3_inputs as mamba3
from .mamba3_inputs import check_sizes
from .mamba3_scan import launch


def traffic_bytes(
    tokens: int, sequences: int, g: int, h: int, p: int, n: int, f: int, r: int, *, state: int = 4, io: int = 2,
    z: bool = False,
) -> int:  # fmt: skip
    """Bytes that must cross the memory bus for live sequences that are not fresh; parameters are left out.

    Units: bytes; `state` and `io` are the bytes of an element; `z` says that the outputs are gated.
    """
    axes = {"s": sequences, "t": tokens, "g": g, "h": h, "p": p, "n": n, "f": f, "r": r, "e": p * n + f + r * n + p}
    return moved(mamba3_packed, axes, {"state": state, "io": io}, without=() if z else ("z",))


@launcher
def mamba3_packed(
    axes: Axes,
    S: mamba3.State,
    x: Annotated[Tensor, reads("t h p")],
    dt: Annotated[Tensor, reads("t h")],
    A: Annotated[Tensor, reads("t h")],
    trap: Annotated[Tensor, reads("t h")],
    angle: Annotated[Tensor, reads("t f", layout="dense")],
    B: Annotated[Tensor, reads("t r g n")],
    C: Annotated[Tensor, reads("t r g n")],
    B_norm: mamba3.Norm,
    C_norm: mamba3.Norm,
    B_bias: mamba3.RankBias,
    C_bias: mamba3.RankBias,
    dt_bias: mamba3.PerHead,
    bounds: Bounds,
    *,
    D: mamba3.PerHead | None = None,
    z: Annotated[Tensor, reads("t h p")] | None = None,
    up: mamba3.Map | None = None,
    gate: mamba3.Map | None = None,
    down: mamba3.Map | None = None,
    A_floor: float = 1e-4,
    eps: float = 1e-5,
    halves: bool = False,
    slots: Slots | None = None,
    fresh: Fresh | None = None,
    out: Annotated[Tensor, writes("t h p")] | None = None,
    num_warps: int | None = None,
) -> Tensor:
    """The outputs (t, h, p) of a packed run, and in S[slots] the states after each sequence.

    The inputs are those of `mamba3_scan` without the axis of rows. Sequence b has the tokens bounds[b] .. bounds[b + 1] - 1;
    bounds never decrease, and an empty sequence repeats one. Tokens outside, and those of a sequence with a negative slot,
    are neither read nor written. A sequence that is `fresh` (b) starts from zeros, whatever its slot holds.

    Raises: ShapeMismatch, PrecisionError, ParameterError, before anything is written.
    """
    check_sizes(axes, A_floor, eps)
    weights = B_norm, C_norm, B_bias, C_bias, dt_bias, D, up, gate, down
    sequences = axes["m"] - 1
    if sequences < 1 or axes.get("b", sequences) != sequences:
        rows = "at least one sequence" if sequences < 1 else f"{axes['b']} sequences"
        raise ShapeMismatch(
            f"bounds hold {axes['m']} entries for {rows}; give the first token of each, and the end of the last"
        )
    check_pool(axes["s"], sequences, slots)
    y = torch.empty_like(x) if out is None else out
    launch(
        axes, S, (x, dt, A, trap, angle, B, C, z), weights, (slots, None, None, bounds, fresh, y), 0, A_floor, eps, halves,
        True, num_warps,
    )  # fmt: skip
    return y
