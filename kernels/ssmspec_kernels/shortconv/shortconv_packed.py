"""The short convolution over several sequences, their tokens one after the other in one run.

    ext = [S | u_begin .. u_end],  u = B x            the columns and the products of one sequence        (1)
    y_t = C_t (bias + sum_i weight_i ext_t+i)         t counted from the first token of the sequence      (2)
    S'  = the last w - 1 of ext                                                                           (3)

The kernel is that of `conv_packed`, with products as inputs and outputs times C. (3) is a second launch, because S may be
overwritten only after all programs of its sequence have read it. The bits of (2) are those of `shortconv_scan`. The tiles are
those of `conv_packed`; they were not measured with gates.
Layout: S (s, d, w - 1), oldest first, a pool that sequences index through `slots`; one with a negative slot is padding,
skipped. Bound by the bytes of the inputs.
"""

from typing import Annotated

import torch
from torch import Tensor

from ..conv.conv_packed import launch_packed
from ..conv.conv_taps import check_bounds
from ..row import Axes, Bounds, Fresh, Slots, launcher, moved, reads, writes
from ..shared.tuning import H200
from .shortconv_columns import Bias, State, Taps, check_taps
from .shortconv_commit import commit_run


def traffic_bytes(tokens: int, sequences: int, d: int, w: int, *, state: int = 4, io: int = 2) -> int:
    """Bytes that must cross the memory bus for live sequences of w - 1 tokens or more; parameters are left out.

    Units: bytes; `state` and `io` are the bytes of an element.
    """
    return moved(shortconv_packed, {"s": sequences, "t": tokens, "d": d, "q": w - 1}, {"state": state, "io": io})


@launcher
def shortconv_packed(
    axes: Axes,
    S: State,
    B: Annotated[Tensor, reads("t d", layout="dense")],
    C: Annotated[Tensor, reads("t d", layout="dense")],
    x: Annotated[Tensor, reads("t d", layout="dense")],
    weight: Taps,
    bounds: Bounds,
    *,
    bias: Bias | None = None,
    slots: Slots | None = None,
    fresh: Fresh | None = None,
    out: Annotated[Tensor, writes("t d", layout="dense")] | None = None,
    block_t: int = H200["conv_packed"]["block_t"],
    block_d: int = H200["conv_packed"]["block_c"],
    num_warps: int = H200["conv_packed"]["warps"],
) -> Tensor:
    """The outputs (t, d) of a packed run, and in S[slots] the columns after each sequence: equations (1) to (3).

    Sequence b has the tokens bounds[b] .. bounds[b + 1] - 1; bounds never decrease, and an empty sequence repeats one. Tokens
    outside, and those of a sequence with a negative slot, are neither read nor written. A sequence that is `fresh` (b)
    starts from zeros, whatever its slot holds.

    Raises: ShapeMismatch, PrecisionError, ParameterError, before anything is written.
    """
    check_taps(axes)
    check_bounds(axes, slots)
    y = torch.empty_like(x) if out is None else out
    launch_packed(
        axes, S, B, C, x, bounds, weight, bias, slots, fresh, y, block_t, block_d, KEPT=axes["q"], ACTIVATION=False,
        num_warps=num_warps,
    )  # fmt: skip
    commit_run(S, B, x, bounds, slots, fresh, block_d)
    return y
