"""The short convolution of LFM2: a causal convolution between two gates, each a product channel by channel.

u  = B x                                  the gate before the convolution    (1)
M  = [S | u]                              w columns, oldest first            (2)
y  = C (bias + sum_w weight_w M_w)        the gate after the convolution     (3)
S' = M without its oldest column          the last w - 1 products            (4)

The state S is all that a layer stores for a sequence. It contains products (1), not the inputs x of the convolution: an
implementation that rolls back but keeps one column of a rejected draft convolves it with the next w - 1 tokens, and no
error is raised. Nothing decays and the state is never mixed, so every path of backtracking is defined: columns are kept,
replayed, or read along the ancestors of a node.
"""

from dataclasses import dataclass

import numpy as np
from numpy import concatenate, einsum

from ..checks import checked
from ..errors import ParameterError, ShapeMismatch
from ..functions import kept, passed, product
from ..records import Record, masked
from ..shapes import Array, Columns, ColumnStates, Inner, InnerParam, Inners, Mask, ShortWeight


@dataclass(frozen=True)
class ShortConvParams(Record):
    """Weights (d, w) and bias of the convolution; tap w - 1 multiplies the newest product.

    Raises: ParameterError for fewer than two taps, which leave no state.
    """

    weight: ShortWeight
    bias: InnerParam | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weight.shape[1] < 2:
            raise ParameterError(
                f"the weight of a short convolution has {self.weight.shape[1]} taps; give (d, w) with w of at least 2"
            )

    @property
    def columns(self) -> int:
        """How many columns the state has: w - 1."""
        return int(self.weight.shape[1]) - 1


@dataclass(frozen=True)
class ShortConvToken(Record):
    """One token: the gates B (before) and C (after), and x."""

    B: Inner
    C: Inner
    x: Inner


@dataclass(frozen=True)
class ShortConvWindow(Record):
    """The tokens of a window, as in `ShortConvToken`."""

    B: Inners
    C: Inners
    x: Inners

    def token(self, t: int) -> ShortConvToken:
        return ShortConvToken(self.B[:, t], self.C[:, t], self.x[:, t])


@checked
def step(S: Columns, token: ShortConvToken, params: ShortConvParams) -> tuple[Inner, Columns]:
    """One token of every row: equations (1) to (4) of the module.

    Units: y has those of C B x.
    Raises: ShapeMismatch, PrecisionError.
    Source: arXiv:2511.23404 (LFM2, the gated short convolution).
    """
    check_columns(S, params)
    return _step(S, token, params)


def check_columns(S: Array, params: ShortConvParams) -> None:
    """Raise ShapeMismatch unless the state has w - 1 columns."""
    if S.shape[2] != params.columns:
        raise ShapeMismatch(
            f"the state has {S.shape[2]} columns, but a convolution of {params.columns + 1} taps keeps {params.columns}; "
            "give the last w - 1 products B x, oldest first"
        )


def _step(S: Array, token: ShortConvToken, params: ShortConvParams) -> tuple[Array, Array]:
    u = kept(token.B * token.x)  # (1)
    M = concatenate([S, u[:, :, None]], axis=2)  # (2)
    return read(M, token.C, params), M[:, :, 1:]  # (3) (4)


def read(M: Array, C: Inner, params: ShortConvParams) -> Inner:
    """The output for w columns: equation (3) of the module."""
    c = einsum("bdw, dw -> bd", M, params.weight)
    c = product(c if params.bias is None else c + params.bias)
    return C * passed(c)  # (3)


@checked
def states(
    S: Columns, window: ShortConvWindow, params: ShortConvParams, live: Mask | None = None
) -> tuple[Inners, ColumnStates]:
    """The output at every token, and the state after it; a no-op leaves the state, and its output is 0.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow.
    Source: as `step`; Snakes and Ladders, section 3.1 (no-op tokens).
    """
    check_columns(S, params)
    window, outputs, after = window if live is None else masked(window, live), [], []
    for t in range(window.x.shape[1]):
        y, S_next = _step(S, window.token(t), params)
        S = S_next if live is None else np.where(live[:, t, None, None], S_next, S)
        outputs.append(y)
        after.append(S)
    return np.stack(outputs, axis=1), np.stack(after, axis=1)


@checked
def scan(S: Columns, window: ShortConvWindow, params: ShortConvParams, live: Mask | None = None) -> tuple[Inners, Columns]:
    """Advance by every live token: `step` repeated.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow.
    Source: as `step`.
    """
    y, after = states(S, window, params, live)
    return y, after[:, -1]
