"""Mamba-3 over several sequences, their tokens one after the other in one run: prompts.

    S, y of the tokens bounds[b] .. bounds[b + 1] - 1 from S[slots[b]], as in `mamba3_scan`

The kernel is that of `mamba3_scan`: a program walks over all tokens of one head of one sequence, in order. So the bits are
those of single tokens, and a prompt takes as long as its longest sequence: no chunk of it is a product of matrices.
Layout: S (s, h, e), a pool that sequences index through `slots`; one with a negative slot is padding, skipped. Bound by the
latency of a token.
"""

import torch
from torch import Tensor

from ssmspec_ref.errors import ShapeMismatch

from ..launch import FLOATS, INDICES, check_pool
from .mamba3_inputs import check_window, inputs_of
from .mamba3_scan import launch


def traffic_bytes(
    tokens: int, sequences: int, g: int, h: int, p: int, n: int, f: int, r: int, *, state: int = 4, io: int = 2,
    z: bool = False,
) -> int:  # fmt: skip
    """Bytes that must cross the memory bus for live sequences that are not fresh; parameters are left out.

    Units: bytes; `state` and `io` are the bytes of an element; `z` says that the outputs are gated.
    """
    token = h * p * (3 if z else 2) + 3 * h + f + 2 * r * g * n
    return tokens * token * io + 2 * sequences * h * (p * n + f + r * n + p) * state


def mamba3_packed(
    S: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    trap: Tensor,
    angle: Tensor,
    B: Tensor,
    C: Tensor,
    B_norm: Tensor,
    C_norm: Tensor,
    B_bias: Tensor,
    C_bias: Tensor,
    dt_bias: Tensor,
    bounds: Tensor,
    *,
    D: Tensor | None = None,
    z: Tensor | None = None,
    up: Tensor | None = None,
    gate: Tensor | None = None,
    down: Tensor | None = None,
    A_floor: float = 1e-4,
    eps: float = 1e-5,
    halves: bool = False,
    slots: Tensor | None = None,
    fresh: Tensor | None = None,
    out: Tensor | None = None,
    num_warps: int | None = None,
) -> Tensor:
    """The outputs (t, h, p) of a packed run, and in S[slots] the states after each sequence.

    The inputs are those of `mamba3_scan` without the axis of rows. Sequence b has the tokens bounds[b] .. bounds[b + 1] - 1;
    bounds never decrease, and an empty sequence repeats one. Tokens outside, and those of a sequence with a negative slot,
    are neither read nor written. A sequence that is `fresh` (b) starts from zeros, whatever its slot holds.

    Raises: ShapeMismatch, PrecisionError, ParameterError, before anything is written.
    """
    more = ("bounds", bounds, "m", INDICES), ("fresh", fresh, "b", (torch.bool,)), ("out", out, "t h p", FLOATS)
    given = {"B_norm": B_norm, "C_norm": C_norm, "B_bias": B_bias, "C_bias": C_bias, "dt_bias": dt_bias, "D": D}
    given |= {"up": up, "gate": gate, "down": down}
    axes = check_window(S, inputs_of(x, dt, A, trap, angle, B, "t"), C, z, given, slots, A_floor, eps, more, "t")
    sequences = axes["m"] - 1
    if sequences < 1 or axes.get("b", sequences) != sequences:
        rows = "at least one sequence" if sequences < 1 else f"{axes['b']} sequences"
        raise ShapeMismatch(
            f"bounds hold {axes['m']} entries for {rows}; give the first token of each, and the end of the last"
        )
    check_pool(axes["s"], sequences, slots)
    y = torch.empty_like(x) if out is None else out
    launch(
        axes, S, (x, dt, A, trap, angle, B, C, z), given, (slots, None, None, bounds, fresh, y), 0, A_floor, eps, halves,
        True, num_warps,
    )  # fmt: skip
    return y
