"""Parameters of a head, its weights, and the outputs of a tile, for kernels that loop over tiles of a group
(`ssd_state_tile`).

    W_ij = exp(G_j - G_i) dt_i (C_j . B_i)        if token j sees entry i, otherwise 0; D of a head on the diagonal       (1)
    y    = y + D x, then y silu(z) if z is given                                            D here: of a channel          (2)

Entries (i) are rows, tokens (j) are columns, as channels are the rows of a tile.
"""

import triton
import triton.language as tl

from ...shared.functions import silu


@triton.jit
def load_head(A, D, dt_bias, h, wanted, stride_D_h, D_HEAD: tl.constexpr):
    """A, dt_bias and D of a head, in fp32; 0 if absent, or per channel, or if `wanted` (None: always) is false."""
    decay, bias, skip = _load(A + h, wanted), 0.0, 0.0
    if dt_bias is not None:
        bias = _load(dt_bias + h, wanted)
    if D_HEAD:
        skip = _load(D + h * stride_D_h, wanted)
    return decay, bias, skip


@triton.jit
def _load(at, wanted):
    value = tl.load(at) if wanted is None else tl.load(at, mask=wanted, other=0.0)
    return value.to(tl.float32)


@triton.jit
def weights_by_entry(G_i, G_j, step_i, scores, sees, diagonal, skip, D_HEAD: tl.constexpr):
    """W (1), rows are entries; the scores must be 0 where nothing is seen. `ssd_inputs.weights_by_token` has tokens as
    rows."""
    W = tl.exp(tl.where(sees, G_j[None, :] - G_i[:, None], float("-inf"))) * (step_i[:, None] * scores)
    if D_HEAD:
        W = tl.where(diagonal, W + skip, W)
    return W


@triton.jit
def store_outputs(
    y_t, x, D, z, y, b, h, p, in_p, real, stride_x, stride_D, stride_z, stride_y, T: tl.constexpr, D_HEAD: tl.constexpr,
):  # fmt: skip
    """(2) of a tile (p, tokens) of row b, where `real`; zeros for other tokens. The pointer x is that of the row; the strides
    are those of (rows, tokens, heads), of D (heads, channels)."""
    t = tl.arange(0, y_t.shape[1])
    col, here = t.to(tl.int64)[None, :], in_p[:, None] & real[None, :]
    if D is not None and not D_HEAD:
        skip = tl.load(D + h * stride_D.h + p * stride_D.p, mask=in_p, other=0.0).to(tl.float32)
        at_x = x + h * stride_x.h + p[:, None] + col * stride_x.t
        y_t += skip[:, None] * tl.load(at_x, mask=here, other=0.0).to(tl.float32)
    if z is not None:
        at_z = z + b * stride_z.b + h * stride_z.h + p[:, None] + col * stride_z.t
        y_t *= silu(tl.load(at_z, mask=here, other=0.0).to(tl.float32))
    at_y = y + b * stride_y.b + h * stride_y.h + p[:, None] + col * stride_y.t
    tl.store(at_y, y_t.to(y.dtype.element_ty), mask=in_p[:, None] & (t < T)[None, :])
