"""What the kernels of the short convolution share: a state as a tuple of w - 1 columns of channels, in registers.

    ext = [S | u_0 .. u_{T-1}]                     the columns of the state, then the products u = B x       (1)
    S'  = ext[advanced : advanced + w - 1]         the state after `advanced` of the products                (2)
    y   = C (bias + sum_w weight_w M_w)            the output of w columns M, oldest first                   (3)

Along a path of a tree, u_i of (1) is the product of node path[i], and `advanced` counts the path's nodes. Everything is
computed in fp32: a product of two bf16 numbers is exact there, and is rounded where it is stored.
Source: `ssmspec_ref.shortconv`; arXiv:2511.23404 (LFM2).
"""

from typing import Annotated

import triton
import triton.language as tl
from torch import Tensor

from ssmspec_ref.errors import ShapeMismatch

from ..conv.conv_taps import check_width, filtered, load_product
from ..launch import check_pool
from ..row import Axes, reads, updates, weighs, writes

State = Annotated[Tensor, updates("s d q")]
Start = Annotated[Tensor, reads("s d q", size="state")]
"""A state that is only read."""
Inners = Annotated[Tensor, reads("b t d")]
Outputs = Annotated[Tensor, writes("b t d")]
Taps = Annotated[Tensor, weighs("d w")]
Bias = Annotated[Tensor, weighs("d")]


def check_window(axes: Axes, slots: Tensor | None) -> None:
    """Raises: ShapeMismatch, ParameterError."""
    check_taps(axes)
    check_pool(axes["s"], axes["b"], slots)


def check_taps(axes: Axes) -> None:
    """Raises: ParameterError unless there are 2 to 8 taps; ShapeMismatch unless the state has a column fewer."""
    check_width(axes["w"])
    if axes["q"] != axes["w"] - 1:
        raise ShapeMismatch(
            f"the state has {axes['q']} columns, but a convolution of {axes['w']} taps keeps {axes['w'] - 1}; give the last "
            "w - 1 products B x, oldest first"
        )


@triton.jit
def read_token(window, B, C, x, real, inside, taps, shift, W: tl.constexpr, NO_OPS: tl.constexpr):
    """The output of a token (3), its product, and the columns after it; a no-op leaves the columns, and its output is 0."""
    there = inside & real
    u_t = load_product(B, x, there)
    C_t = tl.load(C, mask=there, other=0.0).to(tl.float32)
    columns = window
    columns += (u_t,)
    y_t = C_t * filtered(columns, taps, shift, W, False)
    if NO_OPS:
        after = ()
        for k in tl.static_range(W - 1):
            after += (tl.where(real, columns[k + 1], columns[k]),)  # type: ignore[assignment]
        return tl.where(real, y_t, 0.0), u_t, after
    return y_t, u_t, columns[1:]
