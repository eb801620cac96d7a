"""The arguments of the SSD kernels, and how the inputs of a window are read.

    dt = clip(softplus(dt_raw + dt_bias), dt_limit)          0 for a no-op             (1)
    w_ij = exp(G_i - G_j) dt_j (C_i . B_j)                   0 where i does not see j  (2)

G is the running sum of dt A. The mask of (2) is applied before exp: the exponent of a pair that is not seen may be large.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import triton
import triton.language as tl
from torch import Tensor

from ssmspec_ref.errors import ParameterError, PrecisionError

from ..launch import check_pool, d_strides, divides, strides
from ..row import FP32, Axes, reads, updates, weighs, writes
from ..shared.functions import softplus
from ..shared.strides import GroupStrides, HeadStrides, SkipStrides, StateStrides, WindowStrides
from ..shared.tuning import H200

State = Annotated[Tensor, updates("s h p n")]
Start = Annotated[Tensor, reads("s h p n", size="state")]
"""A state that is only read."""
Heads = Annotated[Tensor, reads("b t h p")]
PerHeads = Annotated[Tensor, reads("b t h")]
Projs = Annotated[Tensor, reads("b t g n")]
Decay = Annotated[Tensor, weighs("h", FP32)]
PerHead = Annotated[Tensor, weighs("h")]
Skip = Annotated[Tensor, weighs("h | h p")]
Outputs = Annotated[Tensor, writes("b t h p")]


@dataclass(frozen=True)
class Inputs:
    """The arguments of every SSD launcher: the sizes of the axes by their letters, the tensors, and how dt is computed.

    Raises: ParameterError.
    """

    axes: Axes
    S: Tensor
    x: Tensor
    dt: Tensor
    A: Tensor
    B: Tensor
    C: Tensor
    D: Tensor | None
    z: Tensor | None
    dt_bias: Tensor | None
    dt_softplus: bool
    dt_limit: tuple[float, float]
    slots: Tensor | None

    def __post_init__(self) -> None:
        divides(self.axes["g"], self.axes["h"])
        check_limit(self.dt_limit)
        check_pool(self.axes["s"], self.axes["b"], self.slots)

    @property
    def sizes(self) -> tuple[int, ...]:
        """b, t, h, p, n, g."""
        return tuple(self.axes[letter] for letter in "bthpng")

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """The tensors in the order in which the kernels take them, first of all their arguments."""
        return self.S, self.x, self.dt, self.A, self.B, self.C, self.D, self.z, self.dt_bias, self.slots

    @property
    def constants(self) -> dict[str, Any]:
        """The compile-time constants of every kernel, except its sizes."""
        limit = self.dt_limit != (0.0, float("inf"))
        return {"HEADS_PER_GROUP": self.axes["h"] // self.axes["g"], "SOFTPLUS": self.dt_softplus, "LIMIT": limit}

    @property
    def skip_per_head(self) -> bool:
        return self.D is not None and self.D.dim() == 1


def window_strides(given: Inputs, y: Tensor) -> WindowStrides:
    """The strides of the state, the inputs and the outputs."""
    S, x, dt, B, C, z = (strides(a, 3) for a in (given.S, given.x, given.dt, given.B, given.C, given.z))
    heads = HeadStrides(*x), HeadStrides(*dt), GroupStrides(*B), GroupStrides(*C), HeadStrides(*z)
    return WindowStrides(StateStrides(*S), *heads, HeadStrides(*strides(y, 3)))


def skip_strides(given: Inputs) -> SkipStrides:
    """The strides of D."""
    return SkipStrides(*d_strides(given.D))


def check_limit(dt_limit: tuple[float, float]) -> None:
    """Raises: ParameterError."""
    low, high = dt_limit
    if not 0 <= low <= high:
        raise ParameterError(f"dt_limit is ({low}, {high}); give 0 <= low <= high")


def check_one_type(**tensors: Tensor) -> None:
    """Raises: PrecisionError if operands of matrix products, or their stored copies, have different types."""
    if len({t.dtype for t in tensors.values()}) > 1:
        came = ", ".join(f"{name} {str(t.dtype).removeprefix('torch.')}" for name, t in tensors.items())
        raise PrecisionError(f"one type is needed, but these are given: {came}; convert them first")


def window_tile(p: int, rows: int, most: int | None = None, warps: int | None = None) -> tuple[int, int, int, int]:
    """Channels of a tile, of a program, warps and pipeline stages. `rows` counts heads of rows; few of them are split."""
    row = H200["ssd_window_tile"]
    block = min(max(16, triton.next_power_of_2(p)), most or row["channels"])
    tiles = triton.cdiv(p, block)
    while tiles > 1 and rows * triton.cdiv(p, tiles * block) < row["programs"]:
        tiles = triton.cdiv(tiles, 2)
    return block, tiles * block, warps or row["warps"], row["stages"]


@triton.jit
def step_size(raw, real, bias, low, high, SOFTPLUS: tl.constexpr, LIMIT: tl.constexpr):
    """dt (1), in fp32."""
    step = raw.to(tl.float32) + bias
    if SOFTPLUS:
        step = softplus(step)
    if LIMIT:
        above = tl.maximum(step, low, propagate_nan=tl.PropagateNan.ALL)
        step = tl.minimum(above, high, propagate_nan=tl.PropagateNan.ALL)
    return tl.where(real, step, 0.0)


def check_heads(heads: int, of_group: int) -> None:
    """Raises: ParameterError unless the heads of a program divide those of a group."""
    if of_group % heads:
        raise ParameterError(f"{heads} heads a program do not divide the {of_group} heads of a group; give a divisor")


@triton.jit
def load_rows(start, rows, cols, in_rows, in_cols):
    """A block of rows at offsets `rows` from `start`, as stored; zeros outside the masks."""
    return tl.load(start + rows[:, None] + cols[None, :], mask=in_rows[:, None] & in_cols[None, :], other=0.0)


@triton.jit
def weights_by_token(G, G_j, step_j, sees, scores):
    """w (2)."""
    return tl.exp(tl.where(sees, G[:, None] - G_j[None, :], float("-inf"))) * step_j[None, :] * scores
