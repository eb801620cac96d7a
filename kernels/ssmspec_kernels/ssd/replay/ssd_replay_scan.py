"""Activation replay of SSD (Mamba-2): the accepted tokens of the last window, then the next window, in one launch.

With k the accepted tokens of the cached window, or the nodes of its accepted path, and i, j the tokens of the new one,

    S'   = exp(G_K) S + sum_k exp(G_K - G_k) dt_k x_k B_k^T              written once                     (1)
    y    = W x + exp(G) (C S'^T) + D x, then y silu(z)                   W, G of `ssd_window`, from S'     (2)
    cache: x, raw dt, B of the new window, for the next call                                              (3)

y is read from S' before it is rounded to its storage type. If nothing was accepted, S' is S, and is not written. The new
window may be a tree (`ancestors`). The cache holds two windows, so that (3) never overwrites what (1) reads
(`double_buffer`); after all layers `double_buffer.commit_halves` swaps them; `advanced`, with `path`, gives the accepted
tokens of the last window.

Windows of at most WALKED tokens use matrix products tile by tile in registers, with bf16 activations and up to 128
states (`ssd_replay_short`); other activations and states go token by token, if they are chains (`ssd_replay_chain`). All
others use matrix products too: a program owns PROGRAM_P channels of one head of one row and loops over them in tiles, as in
`ssd_window`.
Layout: S (s, h, p, n) and the cache (s, l, ..) through `slots`. Bound by the bytes of the state: one read, one write.
Source: Snakes and Ladders, section 3.1 and algorithm 2; along a tree path, STree, section 3.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ssmspec_ref.errors import PrecisionError, ShapeMismatch, Unsupported

from ...launch import overlapped, strides
from ...row import Ancestors, Axes, Lengths, Slots, launcher, points, updates
from ...shared.dots import dot_inputs, dot_left, dot_right
from ...shared.double_buffer import check_halves
from ...shared.strides import MaskStrides, PathStrides, RingStrides, constant
from ...shared.tree_nodes import seen_nodes
from ...shared.tuning import H200
from .. import ssd_inputs as ssd
from ..ring.ssd_ring import entry_strides
from ..ring.ssd_state_tile import CHANNELS, has_many_tiles, tiles_per_program
from ..ssd_inputs import (
    Inputs,
    check_one_type,
    load_rows,
    skip_strides,
    step_size,
    weights_by_token,
    window_strides,
    window_tile,
)
from ..ssd_scan import traffic_bytes as scan_bytes
from ..ssd_window import MANY_TOKENS, MOST_TOKENS, SHARED, WIDE, skip_and_gate
from .ssd_replay_chain import accepted_nodes, ssd_replay_chain_kernel, walk_tile
from .ssd_replay_short import ssd_replay_short_kernel

WALKED = 16
"""The longest window whose tokens are the 16 rows of a product, or are processed token by token."""
ONE_TILE = "what Triton 3.6 compiled for an H200 read outside memory there; give program_p of two tiles or more"


class CacheTensors(NamedTuple):
    """The tensors of a cache as one argument of a kernel."""

    x: Tensor
    dt: Tensor
    B: Tensor
    half: Tensor


@dataclass(frozen=True)
class Cache:
    """x (s, l, h, p), raw dt (s, l, h), B (s, l, g, n) of two windows, l = 2 c, as they were given; half (s), 0 or 1."""

    x: Annotated[Tensor, updates("s l h p", size="io")]
    dt: Annotated[Tensor, updates("s l h", size="io")]
    B: Annotated[Tensor, updates("s l g n", size="io")]
    half: Annotated[Tensor, points("s")]

    @property
    def tensors(self) -> CacheTensors:
        """The tensors as one argument of a kernel."""
        return CacheTensors(self.x, self.dt, self.B, self.half)

    @property
    def strides(self) -> RingStrides:
        """The strides of x, dt and B."""
        return entry_strides(self.x, self.dt, self.B)


def traffic_bytes(
    advanced: Sequence[int],
    t: int,
    h: int,
    p: int,
    n: int,
    g: int,
    *,
    state: int = 4,
    io: int = 2,
    z: bool = False,
    tree: bool = False,
) -> int:
    """Bytes that must cross the memory bus for live rows that accepted `advanced` tokens; cursors and paths are left out.

    Units: bytes; `state` and `io` are the bytes of an element.
    """
    b, entries = len(advanced), sum(advanced) + t * len(advanced)
    written = sum(1 for count in advanced if count) * h * p * n * state
    scan = scan_bytes(b, t, h, p, n, g, state=state, io=io, write_state=False, z=z)
    return scan + written + entries * io * (h * p + g * n + h) + (b * t * t if tree else 0)


@launcher
def ssd_replay_scan(
    axes: Axes,
    S: ssd.State,
    cache: Cache,
    advanced: Annotated[Tensor, points("b")],
    x: ssd.Heads,
    dt: ssd.PerHeads,
    A: ssd.Decay,
    B: ssd.Projs,
    C: ssd.Projs,
    *,
    path: Annotated[Tensor, points("b k")] | None = None,
    ancestors: Ancestors | None = None,
    D: ssd.Skip | None = None,
    z: ssd.Heads | None = None,
    dt_bias: ssd.PerHead | None = None,
    dt_softplus: bool = True,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    slots: Slots | None = None,
    lengths: Lengths | None = None,
    out: ssd.Outputs | None = None,
    block_p: int | None = None,
    program_p: int | None = None,
    num_warps: int | None = None,
    stages: int | None = None,
) -> Tensor:
    """Advances S[slots] by the accepted tokens of the cached window, reads the new one, caches it; outputs (b, t, h, p).

    `advanced` (b) counts the accepted tokens, 0 before the first window; `path` (b, k) lists them (None: the first ones).
    `lengths` (b) counts the real tokens of each row, which come first, and the outputs after them are 0; a row of length 0
    neither replays nor caches, and its `advanced` stays valid for the next call. `ancestors` (b, t, t) makes the new window a
    tree. Only one row may use a slot.

    Raises: ShapeMismatch, PrecisionError, ParameterError, RingOverflow, Unsupported, before anything is written.
    """
    given = Inputs(axes, S, x, dt, A, B, C, D, z, dt_bias, dt_softplus, dt_limit, slots)
    (b, t, h, p, n, g), axes = given.sizes, given.axes
    check_one_type(x=x, B=B, C=C, **{"cache.x": cache.x, "cache.B": cache.B})
    if cache.dt.dtype != dt.dtype:
        raise PrecisionError(f"cache.dt holds {cache.dt.dtype}, but dt is {dt.dtype}; give both one type")
    if axes.get("j", t) != t:
        raise ShapeMismatch(f"ancestors has {axes['j']} columns for {t} nodes; give one for each node")
    entries = check_halves(axes["l"], t)
    replayed = min(axes.get("k", entries), entries)
    if max(t, replayed) > MOST_TOKENS:
        raise Unsupported(f"a window has {max(t, replayed)} tokens; a launch takes up to {MOST_TOKENS}: cut it")
    many = max(t, replayed) > MANY_TOKENS and x.dtype != torch.bfloat16
    if many and n > WIDE:
        raise Unsupported(SHARED.format(t=max(t, replayed), n=n, io=x.dtype, many=MANY_TOKENS, wide=WIDE))
    y = x.new_empty(x.shape) if out is None else out
    row = H200["ssd_replay_scan"]
    constants = given.constants | {"T": t, "P": p, "N": n, "REPLAYED": replayed, "ENTRIES": entries}
    if x.dtype == torch.bfloat16 and n <= 128 and max(t, replayed) <= WALKED:
        head = triton.cdiv(p, CHANNELS)
        run = triton.cdiv(program_p, CHANNELS) if program_p else tiles_per_program(b, h, h // g, p)
        ssd_replay_short_kernel[(triton.cdiv(h // g * head, run), g, b)](
            *given.tensors, lengths, ancestors, advanced, path, cache.tensors, y,
            constant(window_strides(given, y), "s", "b"), MaskStrides(*strides(ancestors, 3)), PathStrides(*strides(path, 2)),
            constant(cache.strides, "s"), constant(skip_strides(given)), *given.dt_limit, run, **constants,
            D_HEAD=given.skip_per_head,
            BLOCK_T=8 if t <= 8 else 16, HALF_N=max(16, triton.next_power_of_2(n) // 2), BLOCK_P=CHANNELS, TILES=head,
            STAGES=stages or row["short_stages"], EVICT=not has_many_tiles(b, h, p), num_warps=1, **overlapped(S.device),
        )  # fmt: skip
        return y
    if ancestors is None and max(t, replayed) <= WALKED:
        block, warps = walk_tile(p, t + replayed)
        block, warps, run = block_p or block, num_warps or warps, min(32, triton.next_power_of_2(n))
        ssd_replay_chain_kernel[(triton.cdiv(p, block), h, b)](
            *given.tensors, lengths, advanced, path, cache.tensors, y, window_strides(given, y),
            PathStrides(*strides(path, 2)), cache.strides, skip_strides(given), *given.dt_limit, **constants,
            BLOCK_T=triton.next_power_of_2(t),
            BLOCK_K=triton.next_power_of_2(replayed), BLOCK_P=block, BLOCK_N=triton.next_power_of_2(n), RUN=run,
            num_warps=warps,
        )  # fmt: skip
        return y
    tiles = block_p, program_p, num_warps, stages
    default = window_tile(
        p, b * h, row["tile_p" if t <= 32 else "long_tile_p"], row["tile_warps" if t <= 16 else "long_tile_warps"]
    )
    if many:
        default = *default[:-1], 1  # tiles loaded ahead would not fit shared memory
    block, program, warps, depth = (mine or own for mine, own in zip(tiles, default, strict=True))
    each = triton.cdiv(program, block)
    if t > 32 and each == 1:
        if program_p:
            raise Unsupported(f"one tile of {block} channels a program is refused for {t} tokens: {ONE_TILE}")
        each = 2
    _ssd_replay_scan_kernel[(triton.cdiv(p, each * block), h, b)](
        *given.tensors, lengths, ancestors, advanced, path, cache.tensors, y, window_strides(given, y),
        MaskStrides(*strides(ancestors, 3)), PathStrides(*strides(path, 2)), cache.strides, skip_strides(given),
        *given.dt_limit, **constants, D_HEAD=given.skip_per_head,
        BLOCK_T=max(16, triton.next_power_of_2(t)), BLOCK_K=max(16, triton.next_power_of_2(replayed)),
        BLOCK_N=max(16, triton.next_power_of_2(n)), BLOCK_P=block, TILES=each, STAGES=depth, num_warps=warps,
    )  # fmt: skip
    return y


@triton.jit
def _replayed(
    at_dt, at_B, at_old, k, n, taken, in_n, decay, bias, low, high, stride_cache, SOFTPLUS: tl.constexpr, LIMIT: tl.constexpr,
):  # fmt: skip
    """B of the accepted tokens, the sum of their dt A, and the weight with which each one enters the state (1)."""
    raw_k = tl.load(at_dt + at_old * stride_cache.dt.l, mask=taken, other=0.0)
    step_k = step_size(raw_k, taken, bias, low, high, SOFTPLUS, LIMIT)
    B_k = load_rows(at_B, at_old * stride_cache.B.l, n, taken, in_n)
    # The total is exactly G of the last real node: summed in another order, its weight would not be exactly its dt.
    G_k = tl.cumsum(step_k * decay, axis=0)
    replay = tl.sum(tl.where(k == tl.max(tl.where(taken, k, -1), axis=0), G_k, 0.0), axis=0)
    to_state = tl.exp(replay - G_k) * step_k
    return B_k, replay, to_state


@triton.jit
def _nodes_or_tokens(ancestors, b, i, t, real, stride_anc):
    """Which nodes of a tree, or tokens of a chain, are real, and which of them each one sees."""
    if ancestors is not None:
        sees = seen_nodes(ancestors + b * stride_anc.b, t, t, real, real, stride_anc)
        real &= tl.max(tl.where((i[:, None] == i[None, :]) & sees, 1, 0), axis=1) > 0
    else:
        sees = (i[:, None] >= i[None, :]) & real[:, None] & real[None, :]
    return real, sees


@triton.jit
def _ssd_replay_scan_kernel(
    S, x, dt, A, B, C, D, z, dt_bias, slots, lengths, ancestors, advanced, path, cache, y, stride, stride_anc, stride_path,
    stride_cache, stride_D, low, high, T: tl.constexpr, P: tl.constexpr, N: tl.constexpr, REPLAYED: tl.constexpr,
    ENTRIES: tl.constexpr, HEADS_PER_GROUP: tl.constexpr, D_HEAD: tl.constexpr, SOFTPLUS: tl.constexpr, LIMIT: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_P: tl.constexpr, TILES: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(2).to(tl.int64)
    h = tl.program_id(1).to(tl.int64)
    slot = b
    if slots is not None:
        slot = tl.load(slots + b).to(tl.int64)
    if slot >= 0:
        g = h // HEADS_PER_GROUP
        i, k, n = tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_N)
        t, in_n = i.to(tl.int64), n < N
        length = T if lengths is None else tl.minimum(tl.load(lengths + b).to(tl.int32), T)
        real = i < length
        count = tl.where(length > 0, tl.minimum(tl.load(advanced + b).to(tl.int32), REPLAYED), 0)
        last = tl.load(cache.half + slot).to(tl.int64)
        node, taken = accepted_nodes(path, b, k, count, stride_path, ENTRIES)
        at_old, at_new = last * ENTRIES + node, (1 - last) * ENTRIES + t
        decay = tl.load(A + h)
        bias = 0.0 if dt_bias is None else tl.load(dt_bias + h).to(tl.float32)
        at_dt = cache.dt + slot * stride_cache.dt.s + h * stride_cache.dt.h
        at_B = cache.B + slot * stride_cache.B.s + g * stride_cache.B.g
        B_k, replay, to_state = _replayed(
            at_dt, at_B, at_old, k, n, taken, in_n, decay, bias, low, high, stride_cache, SOFTPLUS, LIMIT
        )
        real, sees = _nodes_or_tokens(ancestors, b, i, t, real, stride_anc)
        raw = tl.load(dt + b * stride.dt.b + t * stride.dt.t + h * stride.dt.h, mask=real, other=0.0)
        step = step_size(raw, real, bias, low, high, SOFTPLUS, LIMIT)
        ld = step * decay
        G = tl.sum(tl.where(sees, ld[None, :], 0.0), axis=1) if ancestors is not None else tl.cumsum(ld, axis=0)
        B_t = load_rows(B + b * stride.B.b + g * stride.B.g, t * stride.B.t, n, real, in_n)
        C_t = load_rows(C + b * stride.C.b + g * stride.C.g, t * stride.C.t, n, real, in_n)
        W = weights_by_token(G, G, step, sees, dot_inputs(C_t, tl.trans(B_t)))
        if D_HEAD:
            W = tl.where(i[:, None] == i[None, :], W + tl.load(D + h * stride_D.h).to(tl.float32), W)
        owns = real & (tl.program_id(0) == 0)
        tl.store(at_dt + at_new * stride_cache.dt.l, raw, mask=owns)
        own_rows = (owns & (h % HEADS_PER_GROUP == 0))[:, None] & in_n[None, :]
        tl.store(at_B + at_new[:, None] * stride_cache.B.l + n[None, :], B_t, mask=own_rows)  # (3)
        at_S, at_x = S + slot * stride.S.s + h * stride.S.h, cache.x + slot * stride_cache.x.s + h * stride_cache.x.h
        at_y = y + b * stride.y.b + h * stride.y.h
        for tile in tl.range(0, TILES, num_stages=STAGES):
            p = (tl.program_id(0).to(tl.int64) * TILES + tile) * BLOCK_P + tl.arange(0, BLOCK_P)
            in_p = p < P
            state = load_rows(at_S, p * stride.S.p, n, in_p, in_n).to(tl.float32)
            x_k = load_rows(at_x, at_old * stride_cache.x.l, p, taken, in_p)
            x_t = load_rows(x + b * stride.x.b + h * stride.x.h, t * stride.x.t, p, real, in_p)
            state = tl.exp(replay) * state + dot_left(tl.trans(to_state[:, None] * x_k.to(tl.float32)), B_k)  # (1)
            y_t = dot_left(W, x_t) + tl.exp(G)[:, None] * dot_right(C_t, tl.trans(state))  # (2)
            y_t = skip_and_gate(y_t, x_t, D, z, b, h, t, p, real, in_p, stride_D, stride.z, D_HEAD)
            in_y = (i < T)[:, None] & in_p[None, :]
            tl.store(at_y + t[:, None] * stride.y.t + p[None, :], y_t.to(y.dtype.element_ty), mask=in_y)
            new = real[:, None] & in_p[None, :]
            tl.store(at_x + at_new[:, None] * stride_cache.x.l + p[None, :], x_t, mask=new)  # (3)
            inside = in_p[:, None] & in_n[None, :] & (count > 0)
            tl.store(at_S + p[:, None] * stride.S.p + n[None, :], state.to(S.dtype.element_ty), mask=inside)
