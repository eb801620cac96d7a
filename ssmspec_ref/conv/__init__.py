"""Causal depthwise convolution over the last w inputs.

The state M holds the last w inputs of a row, oldest first; the newest input of a step is in its last column.
A no-op token never enters the window: neither its input, nor its bias, nor its position.
"""

from dataclasses import dataclass

import numpy as np
from numpy import einsum

from ..checks import checked
from ..errors import ParameterError
from ..functions import product, silu
from ..lengths import check_lengths, check_path
from ..records import Record, along, masked
from ..shapes import Channel, Channels, ConvBias, ConvState, ConvWeight, Lengths, Mask, Path


@dataclass(frozen=True)
class ConvParams(Record):
    """Weights of the convolution, (c, w); tap w-1 multiplies the newest input.

    Raises: ParameterError for fewer than two taps.
    """

    weight: ConvWeight
    bias: ConvBias | None = None
    activation: bool = True  # SiLU

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weight.shape[1] < 2:
            raise ParameterError(
                f"the conv weight has {self.weight.shape[1]} taps; it must have at least 2: give (c, w >= 2)"
            )

    @property
    def width(self) -> int:
        return int(self.weight.shape[1])


@checked
def step(M: ConvState, u: Channel, params: ConvParams) -> tuple[Channel, ConvState]:
    """Advance the window by one input.

    M' = [M_1 .. M_{w-1}, u] (1)    y = act(bias + sum_w weight_w M'_w) (2)

    Units: those of u.
    Raises: ShapeMismatch, PrecisionError.
    Source: arXiv:2312.00752, section 3.4; Snakes and Ladders, algorithm 2 (Conv1d_update).
    """
    M_next = np.concatenate([M[:, :, 1:], u[:, :, None]], axis=2)  # (1)
    y = read(M_next, params)  # (2)
    return y, M_next


@checked
def read(M: ConvState, params: ConvParams) -> Channel:
    """The output for a window: act(bias + sum_w weight_w M_w).

    Raises: ShapeMismatch, PrecisionError.
    """
    y = einsum("bcw, cw -> bc", M, params.weight)
    if params.bias is not None:
        y = y + params.bias
    y = product(y)
    return silu(y) if params.activation else y


@checked
def scan(M: ConvState, u: Channels, params: ConvParams) -> tuple[Channels, ConvState]:
    """Advance the window by every input in turn: `step` repeated.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow.
    Source: as `step`.
    """
    outputs = []
    for t in range(u.shape[1]):
        y, M = step(M, u[:, t], params)
        outputs.append(y)
    return np.stack(outputs, axis=1), M


@checked
def scan_masked(M: ConvState, u: Channels, live: Mask, params: ConvParams) -> tuple[Channels, ConvState]:
    """Advance by the live inputs only. A no-op leaves the window unchanged, wherever it is in the row, and its output is 0.

    The values of a no-op are never read, so NaN there has no effect.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow.
    Source: Snakes and Ladders, section 3.1 (no-op tokens).
    """
    u, outputs = masked(u, live), []
    for t in range(u.shape[1]):
        y, M_next = step(M, u[:, t], params)
        M = np.where(live[:, t, None, None], M_next, M)
        outputs.append(np.where(live[:, t, None], y, 0.0))
    return np.stack(outputs, axis=1), M


@checked
def commit(M: ConvState, u: Channels, advanced: Lengths) -> ConvState:
    """The window after the first `advanced` inputs of a verified chain.

    ext = [M | u_0 .. u_{T-1}] (1)    M' = ext[advanced : advanced + w] (2)

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, LengthError (advanced outside 0 .. T).
    Source: Snakes and Ladders, algorithm 2, line 2.
    """
    check_lengths("advanced", advanced, u.shape[1])
    ext = np.concatenate([M, u.transpose(0, 2, 1)], axis=2)  # (1)
    columns = advanced[:, None] + np.arange(M.shape[2])
    return np.take_along_axis(ext, columns[:, None, :], axis=2)  # (2)


@checked
def commit_path(M: ConvState, u: Channels, path: Path) -> ConvState:
    """The window after the inputs of an accepted path of a tree: `commit` of u_path[0], u_path[1] ..

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, AcceptanceError (the path does not ascend, or leaves the window).
    Source: STree, section 3 (replay along the accepted path).
    """
    check_path(path, u.shape[1])
    return commit(M, along(u, path), (path >= 0).sum(axis=1))
