"""The short convolution from a checkpoint of columns and the products since.

ring entry of a token = B x                                                      (1)
S   = the last w - 1 columns of [S_0 | held entries]          the fold           (2)
y_s = C_s (bias + sum_w weight_w M_w), M the last w columns of
      [S_0 | held entries | entries of the window up to s]    output only        (3)

The fold copies columns and computes nothing, so a ring loses no digit however long it is. It saves little, either: the state
is as small as w - 1 entries of the ring.
Source: ReplaySSM, section 3, applied to a state of columns.
"""

from dataclasses import dataclass

import numpy as np
from numpy import concatenate

from ..records import Record, concat, masked, prefix
from ..shapes import Array, Columns, Held, Inners, Mask, RingInners
from . import ShortConvParams, ShortConvWindow, step
from .tree import last, read


@dataclass(frozen=True)
class ShortConvHistory(Record):
    """What a ring holds of a token: its product."""

    u: RingInners


def entries(window: ShortConvWindow, params: ShortConvParams) -> ShortConvHistory:
    """The entries of a window (1)."""
    return ShortConvHistory(window.B * window.x)


def _run(S_0: Array, history: ShortConvHistory) -> Array:
    return concatenate([S_0, history.u.transpose(0, 2, 1)], axis=2)


def fold(S_0: Columns, history: ShortConvHistory, held: Held, params: ShortConvParams) -> Columns:
    """The state after the held tokens (2)."""
    return last(_run(S_0, masked(history, held)), held, params.columns)


def output_only(
    S_0: Columns, history: ShortConvHistory, held: Held, window: ShortConvWindow, params: ShortConvParams, live: Mask
) -> tuple[Inners, ShortConvHistory]:
    """The outputs of a window (3), and its entries; no state is formed."""
    window = masked(window, live)
    new = entries(window, params)
    ext, outputs = _run(S_0, concat(masked(history, held), new)), []
    for t in range(live.shape[1]):
        seen = concatenate([held, live & (np.arange(live.shape[1]) <= t)], axis=1)
        outputs.append(read(last(ext, seen, params.columns + 1), params))
    return window.C * np.stack(outputs, axis=1), new


def state_and_output(
    S_0: Columns, history: ShortConvHistory, held: Held, window: ShortConvWindow, params: ShortConvParams, live: Mask
) -> tuple[Inners, ShortConvHistory]:
    """The same by way of the state before every token: the fold (2), then one step."""
    window = masked(window, live)
    new, y = entries(window, params), np.zeros_like(window.x)
    for t in range(live.shape[1]):
        past = concatenate([held, live[:, :t]], axis=1)
        S = fold(S_0, concat(history, prefix(new, t)), past, params)
        y[:, t] = np.where(live[:, t, None], step(S, window.token(t), params)[0], 0.0)
    return y, new
