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
from ..ssd_inputs import step_size
from ..ssd_scan import element


def walk_tile(p: int, tokens: int) -> tuple[int, int]:
    """Channels and warps of a program: many tokens need many states per lane. As in `ssd_scan`, independent of the rows."""
    if tokens <= 4:
        return min(triton.next_power_of_2(p), 8), 1
    return (32 if p % 32 == 0 else min(triton.next_power_of_2(p), 16)), 1


@triton.jit
def ssd_replay_chain_kernel(
    S, x, dt, A, B, C, D, z, dt_bias, slots, lengths, advanced, path, cache_x, cache_dt, cache_B, half, y,
    stride_S_s, stride_S_h, stride_S_p, stride_x_b, stride_x_t, stride_x_h, stride_dt_b, stride_dt_t, stride_dt_h,
    stride_B_b, stride_B_t, stride_B_g, stride_C_b, stride_C_t, stride_C_g, stride_z_b, stride_z_t, stride_z_h,
    stride_y_b, stride_y_t, stride_y_h, stride_path_b, stride_path_k,
    stride_cache_x_s, stride_cache_x_l, stride_cache_x_h, stride_cache_dt_s, stride_cache_dt_l, stride_cache_dt_h,
    stride_cache_B_s, stride_cache_B_l, stride_cache_B_g, stride_D_h, stride_D_p, low, high,
    T: tl.constexpr, P: tl.constexpr, N: tl.constexpr, REPLAYED: tl.constexpr, ENTRIES: tl.constexpr,
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
        runs: tl.constexpr = BLOCK_N // RUN
        row = tl.arange(0, runs * BLOCK_P)
        row_p = tl.program_id(0) * BLOCK_P + row % BLOCK_P
        col = (row // BLOCK_P * RUN)[:, None] + tl.arange(0, RUN)[None, :]
        inside = ((row_p < P) | (P % BLOCK_P == 0))[:, None] & ((col < N) | (N == BLOCK_N))
        at_S = S + slot * stride_S_s + h * stride_S_h + (row_p.to(tl.int64) * stride_S_p)[:, None] + col
        state = tl.reshape(tl.load(at_S, mask=inside, other=0.0).to(tl.float32), (runs, BLOCK_P, RUN))
        length = T
        if lengths is not None:
            length = tl.minimum(tl.load(lengths + b).to(tl.int32), T)
        count = tl.where(length > 0, tl.minimum(tl.load(advanced + b).to(tl.int32), REPLAYED), 0)
        last = tl.load(half + slot).to(tl.int64)
        decay = tl.load(A + h)
        bias = 0.0
        if dt_bias is not None:
            bias = tl.load(dt_bias + h).to(tl.float32)
        if D is not None:
            skip = tl.load(D + h * stride_D_h + p * stride_D_p, mask=in_p, other=0.0).to(tl.float32)
        at_path = None
        if path is not None:
            at_path = path + b * stride_path_b
        old_x = cache_x + slot * stride_cache_x_s + last * ENTRIES * stride_cache_x_l + h * stride_cache_x_h + p
        old_B = cache_B + slot * stride_cache_B_s + last * ENTRIES * stride_cache_B_l + g * stride_cache_B_g
        old_dt = cache_dt + slot * stride_cache_dt_s + last * ENTRIES * stride_cache_dt_l + h * stride_cache_dt_h
        k = tl.arange(0, BLOCK_K)
        taken = k < count
        node = k.to(tl.int64)
        if path is not None:
            node = tl.load(at_path + node * stride_path_k, mask=taken, other=-1).to(tl.int64)
            taken &= (node >= 0) & (node < ENTRIES)
        raw_k = tl.load(old_dt + node * stride_cache_dt_l, mask=taken, other=0.0)
        x_k, B_k = _cached(
            at_path, old_x, old_B + n, 0, count, stride_path_k, stride_cache_x_l, stride_cache_B_l, in_p, in_n, ENTRIES
        )
        i = tl.arange(0, BLOCK_T)
        t_i = i.to(tl.int64)
        real = i < length
        raw = tl.load(dt + b * stride_dt_b + h * stride_dt_h + t_i * stride_dt_t, mask=real, other=0.0)
        at_x = x + b * stride_x_b + h * stride_x_h + p
        at_B = B + b * stride_B_b + g * stride_B_g
        at_C = C + b * stride_C_b + g * stride_C_g + n
        at_z = None
        if z is not None:
            at_z = z + b * stride_z_b + h * stride_z_h + p
        x_t, B_t, C_t, z_t = _token(
            at_x, at_B + n, at_C, at_z, 0, length, stride_x_t, stride_B_t, stride_C_t, stride_z_t, in_p, in_n
        )
        steps = step_size(raw_k, taken, bias, low, high, SOFTPLUS, LIMIT)
        decays = tl.exp(steps * decay)
        for j in range(count):
            x_next, B_next = _cached(
                at_path, old_x, old_B + n, tl.minimum(j + 1, count - 1), count, stride_path_k, stride_cache_x_l,
                stride_cache_B_l, in_p, in_n, ENTRIES,
            )  # fmt: skip
            step_x = element(steps, k, j) * x_k
            state = tl.fma(state, element(decays, k, j), step_x[:, None][None, :, :] * B_k[:, None, :])  # (1)
            x_k, B_k = x_next, B_next
        if count > 0:
            tl.store(at_S, tl.reshape(state, (runs * BLOCK_P, RUN)).to(S.dtype.element_ty), mask=inside)
        new = (1 - last) * ENTRIES + t_i
        if tl.program_id(0) == 0:
            at_dt = cache_dt + slot * stride_cache_dt_s + h * stride_cache_dt_h
            tl.store(at_dt + new * stride_cache_dt_l, raw, mask=real)
            if h % HEADS_PER_GROUP == 0:
                m = tl.arange(0, BLOCK_N)
                rows = real[:, None] & (m < N)[None, :]
                kept = tl.load(at_B + t_i[:, None] * stride_B_t + m[None, :], mask=rows, other=0.0)
                at_new = cache_B + slot * stride_cache_B_s + g * stride_cache_B_g + m
                tl.store(at_new[None, :] + new[:, None] * stride_cache_B_l, kept, mask=rows)
        new_x = cache_x + slot * stride_cache_x_s + (1 - last) * ENTRIES * stride_cache_x_l + h * stride_cache_x_h + p
        at_y = y + b * stride_y_b + h * stride_y_h + p
        steps = step_size(raw, real, bias, low, high, SOFTPLUS, LIMIT)
        decays = tl.exp(steps * decay)
        for t in range(T):
            x_next, B_next, C_next, z_next = x_t, B_t, C_t, z_t
            if T > 1:
                x_next, B_next, C_next, z_next = _token(
                    at_x, at_B + n, at_C, at_z, tl.minimum(t + 1, T - 1), length, stride_x_t, stride_B_t, stride_C_t,
                    stride_z_t, in_p, in_n,
                )  # fmt: skip
            x_f = x_t.to(tl.float32)
            step_x = element(steps, i, t) * x_f
            state = tl.fma(state, element(decays, i, t), step_x[:, None][None, :, :] * B_t[:, None, :])  # (2)
            y_t = tl.sum(tl.sum(state * C_t[:, None, :], axis=0), axis=1)
            if D is not None:
                y_t = tl.fma(skip, x_f, y_t)
            if z is not None:
                y_t *= silu(z_t)
            at_t = tl.cast(t, tl.int64)
            tl.store(at_y + at_t * stride_y_t, y_t.to(y.dtype.element_ty), mask=in_p)
            tl.store(new_x + at_t * stride_cache_x_l, x_t, mask=in_p & (t < length))
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
