"""The kernel of `ssd_replay_scan` for a window that is a chain: replay and window token by token, the state in registers.

    S_k' = exp(dt_k A) S + (dt_k x_k) B_k^T        the accepted tokens of the cached window, then S' is written    (1)
    S_t, y_t as in `ssd_scan`                      the tokens of the new window, from the unrounded S'              (2)

A program owns a tile (p, n) of one head of one row, as in `ssd_scan`, and costs as much as a scan of as many tokens. The
number of replayed tokens is known on the device only: (1) is a loop over them, not over all entries. If a
window is a tree, (2) has no sequential order, and `ssd_replay_scan` multiplies matrices instead.
"""

import triton
import triton.language as tl

from ...shared.functions import silu
from ...shared.tuning import H200
from ..ssd_inputs import step_size
from ..ssd_scan import element, state_rows


def walk_tile(p: int, tokens: int) -> tuple[int, int]:
    """Channels and warps of a program: many tokens need many states per lane. As in `ssd_scan`, independent of the rows."""
    row = H200["ssd_replay_scan"]
    if tokens <= row["step_tokens"]:
        return min(triton.next_power_of_2(p), row["step_block_p"]), 1
    wide = row["wide_block_p"]
    return (wide if p % wide == 0 else min(triton.next_power_of_2(p), row["block_p"])), 1


@triton.jit
def ssd_replay_chain_kernel(
    S, x, dt, A, B, C, D, z, dt_bias, slots, lengths, advanced, path, cache, y, stride, stride_path, stride_cache, stride_D,
    low, high, T: tl.constexpr, P: tl.constexpr, N: tl.constexpr, REPLAYED: tl.constexpr, ENTRIES: tl.constexpr,
    HEADS_PER_GROUP: tl.constexpr, SOFTPLUS: tl.constexpr, LIMIT: tl.constexpr, BLOCK_T: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr, RUN: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(2).to(tl.int64)
    h = tl.program_id(1).to(tl.int64)
    slot = b
    if slots is not None:
        slot = tl.load(slots + b).to(tl.int64)
    if slot >= 0:
        g = h // HEADS_PER_GROUP
        p = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
        n = tl.arange(0, BLOCK_N // RUN)[:, None] * RUN + tl.arange(0, RUN)[None, :]
        in_p = (p < P) | (P % BLOCK_P == 0)
        in_n = (n < N) | (N == BLOCK_N)
        row_p, col, inside = state_rows(tl.program_id(0) * BLOCK_P, P, N, BLOCK_P, BLOCK_N, RUN)
        at_S = S + slot * stride.S.s + h * stride.S.h + (row_p.to(tl.int64) * stride.S.p)[:, None] + col
        state = tl.reshape(tl.load(at_S, mask=inside, other=0.0).to(tl.float32), (BLOCK_N // RUN, BLOCK_P, RUN))
        length = T if lengths is None else tl.minimum(tl.load(lengths + b).to(tl.int32), T)
        count = tl.where(length > 0, tl.minimum(tl.load(advanced + b).to(tl.int32), REPLAYED), 0)
        last = tl.load(cache.half + slot).to(tl.int64)
        decay = tl.load(A + h)
        bias = 0.0 if dt_bias is None else tl.load(dt_bias + h).to(tl.float32)
        skip = None if D is None else tl.load(D + h * stride_D.h + p * stride_D.p, mask=in_p, other=0.0).to(tl.float32)
        at_path = None if path is None else path + b * stride_path.b
        old_x = cache.x + slot * stride_cache.x.s + last * ENTRIES * stride_cache.x.l + h * stride_cache.x.h + p
        old_B = cache.B + slot * stride_cache.B.s + last * ENTRIES * stride_cache.B.l + g * stride_cache.B.g
        old_dt = cache.dt + slot * stride_cache.dt.s + last * ENTRIES * stride_cache.dt.l + h * stride_cache.dt.h
        k = tl.arange(0, BLOCK_K)
        node, taken = accepted_nodes(path, b, k, count, stride_path, ENTRIES)
        raw_k = tl.load(old_dt + node * stride_cache.dt.l, mask=taken, other=0.0)
        old = old_x, old_B + n
        first = _cached(at_path, *old, 0, count, stride_path.k, stride_cache.x.l, stride_cache.B.l, in_p, in_n, ENTRIES)
        i = tl.arange(0, BLOCK_T)
        t_i, real = i.to(tl.int64), i < length
        raw = tl.load(dt + b * stride.dt.b + h * stride.dt.h + t_i * stride.dt.t, mask=real, other=0.0)
        at_x, at_B = x + b * stride.x.b + h * stride.x.h + p, B + b * stride.B.b + g * stride.B.g
        at_C = C + b * stride.C.b + g * stride.C.g + n
        at_z = None if z is None else z + b * stride.z.b + h * stride.z.h + p
        window = at_x, at_B + n, at_C
        token = _token(*window, at_z, 0, length, stride.x.t, stride.B.t, stride.C.t, stride.z.t, in_p, in_n)
        steps = step_size(raw_k, taken, bias, low, high, SOFTPLUS, LIMIT)
        state = _replay_tokens(
            state, old, first, at_path, steps, tl.exp(steps * decay), k, count, stride_path, stride_cache, in_p, in_n, ENTRIES
        )  # fmt: skip
        if count > 0:
            tl.store(at_S, tl.reshape(state, (BLOCK_N // RUN * BLOCK_P, RUN)).to(S.dtype.element_ty), mask=inside)
        new = (1 - last) * ENTRIES + t_i
        _cache_steps(cache, raw, at_B, slot, h, g, t_i, new, real, stride.B, stride_cache, N, HEADS_PER_GROUP, BLOCK_N)
        new_x = cache.x + slot * stride_cache.x.s + (1 - last) * ENTRIES * stride_cache.x.l + h * stride_cache.x.h + p
        at_y = y + b * stride.y.b + h * stride.y.h + p
        steps = step_size(raw, real, bias, low, high, SOFTPLUS, LIMIT)
        _walk_window(
            state, window, at_z, token, steps, tl.exp(steps * decay), skip, at_y, new_x, i, length, stride,
            stride_cache.x.l, in_p, in_n, T,
        )  # fmt: skip


@triton.jit
def accepted_nodes(path, b, k, count, stride_path, ENTRIES: tl.constexpr):
    """The nodes of the cached window that row b accepted, in order, and which of the entries k are any."""
    taken = k < count
    node = k.to(tl.int64)
    if path is not None:
        node = tl.load(path + b * stride_path.b + node * stride_path.k, mask=taken, other=-1).to(tl.int64)
        taken &= (node >= 0) & (node < ENTRIES)
    return node, taken


@triton.jit
def _replay_tokens(
    state, old, token, path, steps, decays, k, count, stride_path, stride_cache, in_p, in_n, ENTRIES: tl.constexpr,
):  # fmt: skip
    """The state after the accepted tokens (1); `token` is the first of them."""
    x_k, B_k = token
    for j in range(count):
        x_next, B_next = _cached(
            path, *old, tl.minimum(j + 1, count - 1), count, stride_path.k, stride_cache.x.l, stride_cache.B.l, in_p, in_n,
            ENTRIES,
        )  # fmt: skip
        step_x = element(steps, k, j) * x_k
        state = tl.fma(state, element(decays, k, j), step_x[:, None][None, :, :] * B_k[:, None, :])  # (1)
        x_k, B_k = x_next, B_next
    return state


@triton.jit
def _cache_steps(
    cache, raw, at_B, slot, h, g, t, new, real, stride_B, stride_cache, N: tl.constexpr, HEADS_PER_GROUP: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Stores raw dt and B of the window in its entries `new`, by one program of a head and one of a group."""
    if tl.program_id(0) == 0:
        at_dt = cache.dt + slot * stride_cache.dt.s + h * stride_cache.dt.h
        tl.store(at_dt + new * stride_cache.dt.l, raw, mask=real)
        if h % HEADS_PER_GROUP == 0:
            m = tl.arange(0, BLOCK_N)
            rows = real[:, None] & (m < N)[None, :]
            kept = tl.load(at_B + t[:, None] * stride_B.t + m[None, :], mask=rows, other=0.0)
            at_new = cache.B + slot * stride_cache.B.s + g * stride_cache.B.g + m
            tl.store(at_new[None, :] + new[:, None] * stride_cache.B.l, kept, mask=rows)


@triton.jit
def _walk_window(
    state, window, at_z, token, steps, decays, skip, at_y, new_x, i, length, stride, stride_new_x, in_p, in_n,
    T: tl.constexpr,
):  # fmt: skip
    """Stores the outputs of the new window, and its x in the cache; `token` is the first one."""
    x_t, B_t, C_t, z_t = token
    for t in range(T):
        x_next, B_next, C_next, z_next = x_t, B_t, C_t, z_t
        if T > 1:
            x_next, B_next, C_next, z_next = _token(
                *window, at_z, tl.minimum(t + 1, T - 1), length, stride.x.t, stride.B.t, stride.C.t, stride.z.t, in_p, in_n
            )
        x_f = x_t.to(tl.float32)
        step_x = element(steps, i, t) * x_f
        state = tl.fma(state, element(decays, i, t), step_x[:, None][None, :, :] * B_t[:, None, :])  # (2)
        y_t = tl.sum(tl.sum(state * C_t[:, None, :], axis=0), axis=1)
        if skip is not None:
            y_t = tl.fma(skip, x_f, y_t)
        if at_z is not None:
            y_t *= silu(z_t)
        at_t = tl.cast(t, tl.int64)
        tl.store(at_y + at_t * stride.y.t, y_t.to(at_y.dtype.element_ty), mask=in_p)
        tl.store(new_x + at_t * stride_new_x, x_t, mask=in_p & (t < length))
        x_t, B_t, C_t, z_t = x_next, B_next, C_next, z_next


@triton.jit
def _cached(path, x, B, j, count, stride_path, stride_x, stride_B, in_p, in_n, ENTRIES: tl.constexpr):
    """x and B of the j-th accepted token, in fp32; zeros where there is none."""
    node = tl.cast(j, tl.int64)
    taken = j < count
    if path is not None:
        node = tl.load(path + node * stride_path, mask=taken, other=-1).to(tl.int64)
        taken &= (node >= 0) & (node < ENTRIES)
    x_k = tl.load(x + node * stride_x, mask=in_p & taken, other=0.0).to(tl.float32)
    B_k = tl.load(B + node * stride_B, mask=in_n & taken, other=0.0).to(tl.float32)
    return x_k, B_k


@triton.jit
def _token(x, B, C, z, t, length, stride_x, stride_B, stride_C, stride_z, in_p, in_n):
    """x of token t as stored, and its B, C and z in fp32; zeros after the row's length."""
    real = t < length
    t = tl.cast(t, tl.int64)
    x_t = tl.load(x + t * stride_x, mask=in_p & real, other=0.0)
    B_t = tl.load(B + t * stride_B, mask=in_n & real, other=0.0).to(tl.float32)
    C_t = tl.load(C + t * stride_C, mask=in_n & real, other=0.0).to(tl.float32)
    z_t = C_t
    if z is not None:
        z_t = tl.load(z + t * stride_z, mask=in_p & real, other=0.0).to(tl.float32)
    return x_t, B_t, C_t, z_t
