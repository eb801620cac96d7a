"""Mamba-2's plain step from the input projection to the output projection in one launch: a candidate in place of two.

    xBC = act(bias + sum_w weight_w M'_w)      rounded to the type of u, as `conv_step` stores it         (1)
    v, squares and S' of xBC                   as in `ssd_gated`                                          (2)

A program owns a tile of channels of a head, as in `ssd_gated`, and forms (1) for its channels of x and for all of B and C of
its group: 2 n channels more than it owns, whose inputs come from the L2 cache.

Programs of a group read the same columns of B and C, so that none may move them. The window is a ring: of the w columns of a
channel `turn` names the oldest, which is not read, and into which the new input is written. `cursors.commit_step` with
capacity w advances `turn` for all layers.

Layout: M (s, c, w) with column (turn + i) mod w the i-th oldest, turn (s), u (b, c) = x | B | C. Bound by the bytes of the
state.
"""

import triton
import triton.language as tl
import triton.language.extra.cuda  # griddepcontrol
from torch import Tensor

from perf_gates.static.kernel_modules import kernel_module
from ssmspec_ref.errors import ShapeMismatch

INPUTS, SCAN, GATED, TAPS = (kernel_module(name) for name in ("ssd_inputs", "ssd_scan", "ssd_gated", "conv_taps"))
LAUNCH, STRIDES = kernel_module("launch"), kernel_module("strides")
step_size, state_rows, walk_tokens = INPUTS.step_size, SCAN.state_rows, SCAN._walk_tokens
filtered, load_filters = TAPS.filtered, TAPS.load_filters


def ssd_conv_gated(
    S: Tensor,
    M: Tensor,
    turn: Tensor,
    u: Tensor,
    filters: Tensor,
    dt: Tensor,
    A: Tensor,
    *,
    groups: int,
    z: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    D: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = True,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    slots: Tensor | None = None,
    out: Tensor | None = None,
    squares: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Advances S[slots] and M[slots] by one token, in place; v (b, 1, h, p) and squares (b, 1, j), (1) and (2).

    `filters` (c, w) and `bias` (c) are the convolution's, `weight` (h, p) the norm's, dt (b, 1, h), z (b, 1, h, p).

    Raises: ShapeMismatch, PrecisionError, ParameterError, before anything is written.
    """
    (b, c), (h, p, n) = u.shape, S.shape[1:]
    if c != h * p + 2 * groups * n:
        raise ShapeMismatch(f"u has {c} channels; {h} heads of {p} and {groups} groups of {n} need {h * p + 2 * groups * n}")
    more = [
        ("M", M, "s c w", LAUNCH.FLOATS), ("turn", turn, "s", LAUNCH.INDICES), ("u", u, "b c", LAUNCH.FLOATS),
        ("filters", filters, "c w", LAUNCH.FLOATS), ("bias", bias, "c", LAUNCH.FLOATS),
    ]  # fmt: skip
    LAUNCH.check_dense(u=u, filters=filters)
    x, B, C = (part[:, None] for part in u.split([h * p, groups * n, groups * n], dim=1))
    x, B, C = x.unflatten(2, (h, p)), B.unflatten(2, (groups, n)), C.unflatten(2, (groups, n))
    given = INPUTS.check_inputs(
        S, x, dt, A, B, C, D, z, dt_bias, dt_softplus, dt_limit, slots, out, *more, *GATED.gate_arguments(weight, squares)
    )
    w = given.axes["w"]
    TAPS.check_width(w)
    block = GATED._channels(p)
    v, sums = GATED.outputs(given.axes, GATED.parts(h, p), x, weight, out, squares, "ssd_scan")
    ssd_conv_gated_kernel[(triton.cdiv(p, block), h, b)](
        S, M, turn, u, filters, bias, dt, A, D, z, dt_bias, slots, v, weight, sums, INPUTS.window_strides(given, v),
        STRIDES.TokenStrides(*LAUNCH.strides(sums, 2)), INPUTS.skip_strides(given), *LAUNCH.strides(M, 2),
        *LAUNCH.strides(u, 1), *LAUNCH.strides(filters, 2), *dt_limit, H=h, P=p, N=n, G=groups, W=w, **given.constants,
        BLOCK_P=block, BLOCK_N=triton.next_power_of_2(n), RUN=min(32, triton.next_power_of_2(n)), num_warps=GATED.WARPS,
        enable_fp_fusion=False, **LAUNCH.overlapped(S.device),
    )  # fmt: skip
    return v, sums


@triton.jit
def ssd_conv_gated_kernel(
    S, M, turn, u, filters, bias, dt, A, D, z, dt_bias, slots, v, weight, squares, stride: tl.constexpr, stride_squares,
    stride_D: tl.constexpr, stride_M_s, stride_M_c: tl.constexpr, stride_u_b, stride_f_c: tl.constexpr,
    stride_f_w: tl.constexpr, low, high, H: tl.constexpr, P: tl.constexpr, N: tl.constexpr, G: tl.constexpr,
    W: tl.constexpr, HEADS_PER_GROUP: tl.constexpr, SOFTPLUS: tl.constexpr, LIMIT: tl.constexpr, BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr, RUN: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
    b, h = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    slot = b
    if slots is not None:
        slot = tl.load(slots + b).to(tl.int64)
    g, first = h // HEADS_PER_GROUP, tl.program_id(0) * BLOCK_P
    p = first + tl.arange(0, BLOCK_P)
    n = tl.arange(0, BLOCK_N // RUN)[:, None] * RUN + tl.arange(0, RUN)[None, :]
    in_p, in_n, i = (p < P) | (P % BLOCK_P == 0), (n < N) | (N == BLOCK_N), tl.arange(0, 1)
    raw = tl.load(dt + b * stride.dt.b + h * stride.dt.h + i)
    decay, shift, skip = tl.load(A + h), 0.0, None
    if dt_bias is not None:
        shift = tl.load(dt_bias + h).to(tl.float32)
    if D is not None:
        skip = tl.load(D + h * stride_D.h + p * stride_D.p, mask=in_p, other=0.0).to(tl.float32)
    scale = tl.load(weight + h * P + p, mask=in_p, other=0.0).to(tl.float32)
    z_t = tl.load(z + b * stride.z.b + h * stride.z.h + p, mask=in_p, other=0.0)
    if slot >= 0:
        row_p, col, inside = state_rows(first, P, N, BLOCK_P, BLOCK_N, RUN)
        at_S = S + slot * stride.S.s + h * stride.S.h + (row_p.to(tl.int64) * stride.S.p)[:, None] + col
        state = tl.load(at_S, mask=inside, other=0.0, eviction_policy="evict_first")
        oldest, leads = tl.load(turn + slot).to(tl.int32), (first == 0) & (h % HEADS_PER_GROUP == 0)
        of_u, of_M = u + b * stride_u_b, M + slot * stride_M_s
        x_t = _convolved(
            of_M, of_u, filters, bias, h * P + p, in_p, True, oldest, stride_M_c, stride_f_c, stride_f_w, W
        )  # (1)  # fmt: skip
        c_B = H * P + g * N + n
        B_t = _convolved(of_M, of_u, filters, bias, c_B, in_n, leads, oldest, stride_M_c, stride_f_c, stride_f_w, W)
        c_C = c_B + G * N
        C_t = _convolved(of_M, of_u, filters, bias, c_C, in_n, leads, oldest, stride_M_c, stride_f_c, stride_f_w, W)
        steps = step_size(raw, i < 1, shift, low, high, SOFTPLUS, LIMIT)
        at_v = v + b * stride.y.b + h * stride.y.h + p
        state = walk_tokens(
            state, (None, u, u, u, z), (x_t, B_t, C_t, z_t), steps, tl.exp(steps * decay), skip, scale, None, None, at_v,
            squares, b, h, i, row_p, col, in_p, in_n, inside, stride, None, None, None, stride_squares, 1, BLOCK_P, BLOCK_N,
            RUN,
        )  # (2)  # fmt: skip
        tl.store(at_S, state.to(S.dtype.element_ty), mask=inside, eviction_policy="evict_first")


@triton.jit
def _convolved(
    M, u, filters, bias, c, inside, leads, oldest, stride_M: tl.constexpr, stride_c: tl.constexpr, stride_w: tl.constexpr,
    W: tl.constexpr,
):  # fmt: skip
    """(1) for a block of channels, whose new column is stored by the program that leads; the pointers are those of the
    row."""
    taps, shift = load_filters(filters, bias, c, inside, stride_c, stride_w, W)
    u_t = tl.load(u + c, mask=inside, other=0.0)
    window = ()
    for k in tl.static_range(W - 1):
        at = oldest + 1 + k
        at = tl.where(at >= W, at - W, at)
        window += (tl.load(M + c * stride_M + at, mask=inside, other=0.0).to(tl.float32),)  # type: ignore[assignment]
    window += (u_t.to(tl.float32),)  # type: ignore[assignment]
    y = filtered(window, taps, shift, W, True).to(u.dtype.element_ty)
    tl.store(M + c * stride_M + oldest, u_t.to(M.dtype.element_ty), mask=inside & leads)
    return y
