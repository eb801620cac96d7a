"""What the convolution kernels share: a window as a tuple of w columns of channels, in registers.

    ext = [M | u_0 .. u_{T-1}]                       the columns of the state, then the inputs            (1)
    M'  = ext[advanced : advanced + w]               the window after `advanced` of the inputs            (2)
    y   = act(bias + sum_w weight_w M_w)             the output of a window                               (3)

Along a path of a tree, u_i of (1) is the input of node path[i], and `advanced` counts the path's nodes. Advancing a tuple of
columns only renames them: no column is copied.
"""

from typing import Annotated

import triton
import triton.language as tl
from torch import Tensor

from ssmspec_ref.errors import ParameterError, ShapeMismatch

from ..launch import check_pool
from ..row import Axes, points, reads, updates, weighs, writes
from ..shared.functions import silu
from ..shared.tuning import H200

Window = Annotated[Tensor, updates("s c w")]
Taps = Annotated[Tensor, weighs("c w")]
Bias = Annotated[Tensor, weighs("c")]
Inputs = Annotated[Tensor, reads("b t c")]
Outputs = Annotated[Tensor, writes("b t c")]
Advanced = Annotated[Tensor, points("b")]
Path = Annotated[Tensor, points("b l")]

WIDEST = 8


def check_width(w: int) -> None:
    """Raises: ParameterError unless the convolution has 2 to 8 taps."""
    if not 2 <= w <= WIDEST:
        raise ParameterError(f"the window has {w} taps; the kernel takes 2 to {WIDEST}")


def check_replay(previous: Tensor | None, advanced: Tensor | None, path: Tensor | None) -> None:
    """Raises: ParameterError unless previous inputs are given with exactly one of `advanced` and `path`, or none of the
    three."""
    named = sum(x is not None for x in (advanced, path))
    if named != (previous is not None):
        inputs = "no previous inputs" if previous is None else "previous inputs"
        raise ParameterError(f"{inputs} and {named} of advanced and path are given; give inputs and one, or nothing")


def check_bounds(axes: Axes, slots: Tensor | None) -> None:
    """Raises: ShapeMismatch, ParameterError for bounds of a packed run that name no sequence, or others than its rows."""
    sequences = axes["m"] - 1
    if sequences < 1 or axes.get("b", sequences) != sequences:
        rows = "at least one sequence" if sequences < 1 else f"{axes['b']} sequences"
        raise ShapeMismatch(
            f"bounds hold {axes['m']} entries for {rows}; give the first token of each, and the end of the last"
        )
    check_pool(axes["s"], sequences, slots)


def tile(c: int, b: int) -> tuple[int, int]:
    """Channels and warps of a program that loops over a window."""
    row = H200["conv_taps"]
    many = b >= row["many_rows"]
    channels = row["channels" if many else "channels_few_rows"]
    return min(triton.next_power_of_2(c), channels), row["warps" if many else "warps_few_rows"]


@triton.jit
def accepted_count(advanced, path, b, tokens, stride_path_l, LONGEST: tl.constexpr, BLOCK_L: tl.constexpr):
    """How many inputs were accepted: `advanced` itself, or the nodes of the path; at least 0 and at most `tokens`."""
    if path is not None:
        i = tl.arange(0, BLOCK_L).to(tl.int64)
        nodes = tl.load(path + i * stride_path_l, mask=i < LONGEST, other=-1)
        taken = tl.sum((nodes >= 0).to(tl.int64), axis=0)
    else:
        taken = tl.load(advanced + b).to(tl.int64)
    return tl.minimum(tl.maximum(taken, 0), tokens)


@triton.jit
def load_product(B, x, there):
    """The product of two inputs at some channels, in fp32; 0 where nothing is there."""
    B_t = tl.load(B, mask=there, other=0.0).to(tl.float32)
    return B_t * tl.load(x, mask=there, other=0.0).to(tl.float32)


@triton.jit
def load_columns(
    M, u, path, first, tokens, has_state, c, inside, stride_M_c, stride_u_t, stride_path_l,
    W: tl.constexpr, LOW: tl.constexpr, B=None, stride_B_t=0,
):  # fmt: skip
    """Columns first .. first + w - 1 of (1); those below LOW are not read and are 0. Without inputs `first` is 0.

    Without `has_state` the columns of the state count as zeros, and it is not read. With B the inputs are products B u.
    """
    window = ()
    for k in tl.static_range(W):
        column = tl.zeros_like(c).to(tl.float32)
        if k >= LOW:
            if u is None:
                column = tl.load(M + c * stride_M_c + k, mask=inside & has_state, other=0.0).to(tl.float32)
            else:
                i = first + k
                node = i - W
                if path is not None:
                    node = tl.load(path + node * stride_path_l, mask=node >= 0, other=-1).to(tl.int64)
                old = tl.load(M + c * stride_M_c + i, mask=inside & has_state & (i < W), other=0.0).to(tl.float32)
                there = (node >= 0) & (node < tokens)
                if B is None:
                    new = tl.load(u + node * stride_u_t + c, mask=inside & there, other=0.0).to(tl.float32)
                else:
                    new = load_product(B + node * stride_B_t + c, u + node * stride_u_t + c, inside & there)
                column = tl.where(i < W, old, new)
        window += (column,)  # type: ignore[assignment]
    return window


@triton.jit
def load_filters(weight, bias, c, inside, stride_weight_c, stride_weight_w, W: tl.constexpr):
    """The w columns of the weight, and the bias."""
    taps = ()
    for k in tl.static_range(W):
        at = weight + c * stride_weight_c + k * stride_weight_w
        taps += (tl.load(at, mask=inside, other=0.0).to(tl.float32),)  # type: ignore[assignment]
    shift = tl.zeros_like(c).to(tl.float32)
    if bias is not None:
        shift = tl.load(bias + c, mask=inside, other=0.0).to(tl.float32)
    return taps, shift


@triton.jit
def filtered(window, taps, shift, W: tl.constexpr, ACTIVATION: tl.constexpr):
    """The output of a window (3)."""
    y = shift
    for k in tl.static_range(W):
        y += window[k] * taps[k]
    if ACTIVATION:
        y = silu(y)
    return y


@triton.jit
def store_columns(M, window, c, inside, stride_M_c, W: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_W: tl.constexpr):
    """Stores the w columns of a window, rounded once; the columns of a channel are adjacent and are stored together."""
    w = tl.arange(0, BLOCK_W)
    state = tl.zeros((BLOCK_C, BLOCK_W), tl.float32)
    for k in tl.static_range(W):
        state = tl.where(w[None, :] == k, window[k][:, None], state)
    at = M + c[:, None] * stride_M_c + w[None, :]
    tl.store(at, state.to(M.dtype.element_ty), mask=inside[:, None] & (w < W)[None, :])
