"""The kernel of `ssd_tree_scan` for trees of 33 to 64 nodes in bf16, on GPUs whose products take four warps (wgmma).

    G, W  as in `ssd_window`, (2) and (3)
    y^T  = x^T W^T + exp(G) (S C^T)                                                  (1)
    W_ij = exp(G_i) (exp(-G_j) dt_j (C_i . B_j))    where no |G| of a head reaches MILD   (2)

(2) has one exponential per node instead of one per pair. It is as accurate as (3) of `ssd_window`: there G_i - G_j is a
difference of rounded sums, whose error |G| u is that of the exponents here. The bracket is up to e^MILD W.

A program owns HEADS heads of a group of one row. What they share, the products B C^T, is computed once and stays in
registers. For each head, the loads of the state and of x are issued first, and the weights are computed while they are in
flight. The state goes from memory directly into the left operand of its product (`mma_tile`), x into the operand of another,
and y from the sums back to memory (`mma_tile64`); only the weights pass through shared memory, in three parts. The fence
before their product waits for all loads in flight, so no load for the next head is issued before it.

Heads of 80 channels are one tile of 64 and a quarter of another: the last 16 channels of up to four heads are the rows of one
tile. Their product with C is taken once for all, that with the weights for each head, with 0 in the rows of other heads. So
that no other head gets 0 times NaN or infinity, weights are made finite there (`_finite_heads`), while the decays of such a
head, which multiply its own sums only, keep their values. There x is loaded after the weights (EARLY off), because registers
are short. Each product waits for the previous one: the state takes three products of all its columns (COLUMNS), not six of
half as many, except where many heads of 64 channels share a program, which leaves too few registers.
All products are as accurate as fp32 (`dots`); parts are summed from the large to the small, which takes fewer registers.
Layout: S (s, h, p, n), as in `ssd_window`; the state is not written.
Bound by the bytes of the state, x and y for few rows; for many rows by the latency of one head after the other, with two
programs on each SM.
"""

import torch
import triton
import triton.language as tl
import triton.language.extra.cuda  # griddepcontrol
from torch import Tensor

from ssmspec_ref.errors import ParameterError

from ..launch import overlapped, strides
from ..shared.dots import cut, dot_right, split3
from ..shared.load_fence import hold_layout
from ..shared.mma_tile import permuted
from ..shared.mma_tile64 import bit_of_token, from_pairs, load_pairs, places, row_channels, store_pairs, to_mma, to_pairs
from ..shared.strides import MaskStrides, constant
from ..shared.tree_nodes import real_nodes, seen_nodes
from ..shared.tuning import H200
from .ring.ssd_state_tile import heads_per_program
from .ssd_inputs import Inputs, check_heads, load_rows, skip_strides, step_size, window_strides

MILD = 40.0
REST_HEADS = 4
"""Heads whose last 16 channels share a tile."""
CHANNELS, STATES = (64, 80), 128


def supports(given: Inputs) -> bool:
    """Whether the kernel supports these arguments and their device."""
    _, t, _, p, n, _ = given.sizes
    other = given.S.is_cuda and torch.cuda.get_device_capability(given.S.device) != (9, 0)
    bf16 = all(v.dtype == torch.bfloat16 for v in (given.x, given.B, given.C)) and given.S.dtype == torch.float32
    per_head = given.z is None and (given.D is None or given.skip_per_head)
    return not other and bf16 and per_head and 32 < t <= 64 and p in CHANNELS and n == STATES


def launch_large(given: Inputs, ancestors: Tensor, y: Tensor, heads: int | None) -> None:
    """Raises: ParameterError for heads that do not divide those of a group, before anything is written."""
    b, t, h, p, _, g = given.sizes
    rest = p - 64
    row = H200["ssd_tree_large"]
    run = heads or heads_per_program(b * h, h // g, row["each"], REST_HEADS if rest else row["heads"])
    check_heads(run, h // g)
    if rest and run > REST_HEADS:
        raise ParameterError(f"a program is given {run} heads; of heads of {p} channels it takes up to {REST_HEADS} heads")
    S, x, dt, A, B, C, D, _, dt_bias, slots = given.tensors
    stride = window_strides(given, y)
    stride = constant(stride, "s", "b", "g")._replace(dt=stride.dt, z=constant(stride.z))
    ssd_tree_large_kernel[(h // run, b)](
        S, x, dt, A, B, C, D, dt_bias, slots, ancestors, y, stride,
        MaskStrides(*strides(ancestors, 3)), skip_strides(given).h, *given.dt_limit, h, T=t, **given.constants, REST=rest,
        HEADS=run, BLOCK_H=max(8, triton.next_power_of_2(run)), MILD=MILD, EARLY=not rest or run == 1,
        COLUMNS=128 if rest else 64, num_warps=row["warps"], **overlapped(y.device),
    )  # fmt: skip


@triton.jit
def _tiles(start, stride_p: tl.constexpr, COLUMNS: tl.constexpr):
    """The state of one head, 64 channels, in tiles of COLUMNS columns in memory order."""
    warp, channel, n = row_channels(COLUMNS)
    at = start + ((warp * 16 + channel).to(tl.int64) * stride_p)[:, None] + n
    return (tl.load(at),) if COLUMNS == 128 else (tl.load(at), tl.load(at + 64))


@triton.jit
def _rest(start, stride_h: tl.constexpr, stride_p: tl.constexpr, HEADS: tl.constexpr, COLUMNS: tl.constexpr):
    """A tile of the last 16 channels of up to four heads; each warp has those of one head."""
    warp, channel, n = row_channels(COLUMNS)
    at = start + (warp.to(tl.int64) * stride_h + channel.to(tl.int64) * stride_p)[:, None] + n
    return tl.load(at, mask=(warp < HEADS)[:, None] & (n >= 0), other=0.0)


@triton.jit
def _onto(acc, tile, right):
    """acc + S C^T for a tile; a part is cut off once the previous one is multiplied."""
    hi, rest = cut(to_mma(tile, right.shape[0]))
    acc = tl.dot(hi, right, acc=acc, out_dtype=tl.float32)
    mid, rest = cut(rest)
    acc = tl.dot(mid, right, acc=acc, out_dtype=tl.float32)
    lo, rest = cut(rest)
    return tl.dot(lo, right, acc=acc, out_dtype=tl.float32)


@triton.jit
def _columns(start, rows, real, n_0: tl.constexpr, COLUMNS: tl.constexpr):
    """COLUMNS columns of the nodes' rows, from n_0 on."""
    n = n_0 + tl.arange(0, COLUMNS)
    return load_rows(start, rows, n, real, n >= 0)


@triton.jit
def _rows(start, rows, real, COLUMNS: tl.constexpr):
    """All columns of the rows, in pieces as wide as a tile of the state."""
    left = _columns(start, rows, real, 0, COLUMNS)
    return (left,) if COLUMNS == 128 else (left, _columns(start, rows, real, 64, COLUMNS))


@triton.jit
def _operands(rows, slot, COLUMNS: tl.constexpr):
    """The rows with their columns in the order of the state's."""
    left = permuted(hold_layout(rows[0], slot), 64, COLUMNS)
    return (left,) if COLUMNS == 128 else (left, permuted(hold_layout(rows[1], slot), 64, COLUMNS))


@triton.jit
def _finite_heads(Gs, steps, skips):
    """The inputs of the heads' weights, with zeros for a head where any is not finite; and NaN for such a head, 0 for
    others."""
    lost = tl.sum(0.0 * Gs + 0.0 * steps, axis=0) + 0.0 * skips
    sound = lost == 0.0
    Gs, steps = tl.where(sound[None, :], Gs, 0.0), tl.where(sound[None, :], steps, 0.0)
    return Gs, steps, tl.where(sound, skips, 0.0), lost


@triton.jit
def _weights(head, Gs, steps, scores, skips, SKIP: tl.constexpr, MILD: tl.constexpr, BLOCK_H: tl.constexpr):
    """W^T of a head with D on its diagonal, and exp(G) over its columns."""
    i, k = tl.arange(0, 64), tl.arange(0, BLOCK_H)
    G = tl.sum(tl.where(k[None, :] == head, Gs, 0.0), axis=1)
    step = tl.sum(tl.where(k[None, :] == head, steps, 0.0), axis=1)
    decay = tl.exp(G)[None, :]
    if tl.max(tl.abs(G), axis=0) < MILD:  # of this head alone: its bits do not depend on the program's other heads
        W = decay * ((tl.exp(-G) * step)[:, None] * scores)  # (2)
    else:
        between = tl.minimum(G[None, :] - G[:, None], 88.0, propagate_nan=tl.PropagateNan.ALL)
        W = tl.exp(between) * (step[:, None] * scores)
    if SKIP:
        W = W + tl.where(i[:, None] == i[None, :], tl.sum(tl.where(k == head, skips, 0.0), axis=0), 0.0)
    return W, decay


@triton.jit
def _nodes_seen(ancestors, b, t, in_t, stride_anc):
    """Which nodes are real, and which of them each node sees."""
    at_anc = ancestors + b * stride_anc.b
    real = real_nodes(at_anc, t, in_t, stride_anc)
    return real, seen_nodes(at_anc, t, t, real, real, stride_anc)


@triton.jit
def _load_heads(dt, A, D, dt_bias, b, t, heads, real, in_h, stride_dt, stride_D_h, BLOCK_H: tl.constexpr):
    """Raw dt of the heads' nodes as stored; A, dt_bias and D of the heads in fp32, zeros if absent."""
    bias, skips = tl.zeros((BLOCK_H,), tl.float32), tl.zeros((BLOCK_H,), tl.float32)
    if dt_bias is not None:
        bias = tl.load(dt_bias + heads, mask=in_h, other=0.0).to(tl.float32)
    if D is not None:
        skips = tl.load(D + heads * stride_D_h, mask=in_h, other=0.0).to(tl.float32)
    raw = load_rows(dt + b * stride_dt.b, t * stride_dt.t, heads * stride_dt.h, real, in_h)
    return raw, tl.load(A + heads, mask=in_h, other=0.0), bias, skips


@triton.jit
def _node_scores(Bs, Cs, sees, COLUMNS: tl.constexpr):
    """B C^T of the nodes; 0 where a node, a column, does not see one, a row."""
    scores = tl.zeros((64, 64), tl.float32)
    for part in tl.static_range(0, 128 // COLUMNS):
        scores = tl.dot(Bs[part], tl.trans(Cs[part]), acc=scores, out_dtype=tl.float32)
    return tl.where(tl.trans(sees), scores, 0.0)


@triton.jit
def _rest_from_state(start, Cs, stride_S, HEADS: tl.constexpr, COLUMNS: tl.constexpr):
    """S C^T for the last 16 channels of the heads; `start` is their channel 64."""
    y_rest = tl.zeros((64, 64), tl.float32)
    for part in tl.static_range(0, 128 // COLUMNS):
        tile = _rest(start + part * COLUMNS, stride_S.h, stride_S.p, HEADS, COLUMNS)
        y_rest = _onto(y_rest, tile, tl.trans(Cs[part]))
    return y_rest


@triton.jit
def _from_state(tiles, Cs, COLUMNS: tl.constexpr):
    """S C^T for a head's tiles."""
    y_p = tl.zeros((64, 64), tl.float32)
    for part in tl.static_range(0, 128 // COLUMNS):
        y_p = _onto(y_p, tiles[part], tl.trans(Cs[part]))
    return y_p


@triton.jit
def _load_inputs(at_x, at_rest, owners, head, asked, REST: tl.constexpr):
    """x of a head, and of the last 16 channels where it owns them."""
    x_p = from_pairs(load_pairs(at_x, asked))
    x_rest = x_p
    if REST:
        x_rest = from_pairs(load_pairs(at_rest, asked & (owners == head)))
    return x_p, x_rest


@triton.jit
def _add_weighted(acc, x_p, parts):
    """acc + x^T W^T, with W^T in parts."""
    acc = tl.dot(x_p, parts[0], acc=acc, out_dtype=tl.float32)
    acc = tl.dot(x_p, parts[1], acc=acc, out_dtype=tl.float32)
    return tl.dot(x_p, parts[2], acc=acc, out_dtype=tl.float32)


@triton.jit
def ssd_tree_large_kernel(
    S, x, dt, A, B, C, D, dt_bias, slots, ancestors, y, stride, stride_anc, stride_D_h, low, high, all_heads,
    T: tl.constexpr, REST: tl.constexpr, HEADS_PER_GROUP: tl.constexpr, SOFTPLUS: tl.constexpr, LIMIT: tl.constexpr,
    HEADS: tl.constexpr, BLOCK_H: tl.constexpr, MILD: tl.constexpr, EARLY: tl.constexpr, COLUMNS: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
    b = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0).to(tl.int64) * HEADS
    slot = b
    if slots is not None:
        slot = tl.load(slots + b).to(tl.int64)
    if slot >= 0:
        g = first // HEADS_PER_GROUP
        i, k = tl.arange(0, 64), tl.arange(0, BLOCK_H)
        t, heads, in_t, in_h = i.to(tl.int64), first + k, i < T, k < HEADS
        at_S = S + slot * stride.S.s + first * stride.S.h
        real, sees = _nodes_seen(ancestors, b, t, in_t, stride_anc)
        raw, decays, bias, skips = _load_heads(dt, A, D, dt_bias, b, t, heads, real, in_h, stride.dt, stride_D_h, BLOCK_H)
        at_B, at_C = B + b * stride.B.b + g * stride.B.g, C + b * stride.C.b + g * stride.C.g
        rows_B, rows_C = _rows(at_B, t * stride.B.t, real, COLUMNS), _rows(at_C, t * stride.C.t, real, COLUMNS)
        tl.debug_barrier()  # all loads are issued before anything waits for one of them
        Bs, Cs = _operands(rows_B, slot, COLUMNS), _operands(rows_C, slot, COLUMNS)
        steps = step_size(raw, real[:, None] & in_h[None, :], bias[None, :], low, high, SOFTPLUS, LIMIT)
        lds = steps * decays[None, :]
        Gs = dot_right(sees.to(tl.bfloat16), lds)
        scores = _node_scores(Bs, Cs, sees, COLUMNS)
        if REST:
            Gs, steps, skips, lost = _finite_heads(Gs, steps, skips)
        bits = tl.sum(tl.where(real, tl.full((64,), 1, tl.int64) << t, 0), axis=0)
        token, channel = places()
        at_x = x + b * stride.x.b + first * stride.x.h + token * stride.x.t
        at_y = y + b * stride.y.b + first * stride.y.h + token * stride.y.t
        owners, at_rest = channel, at_x
        if REST:
            y_rest = _rest_from_state(at_S + 64 * stride.S.p, Cs, stride.S, HEADS, COLUMNS)
            owner, owners = i // 16, channel // 16
            at_rest = at_x + owners.to(tl.int64) * stride.x.h + 64 + channel % 16
        for head in tl.range(0, HEADS, num_stages=1):
            tiles = _tiles(at_S + head * stride.S.h, stride.S.p, COLUMNS)
            # True for every head; as the test depends on the head, the masks are not kept in registers between heads.
            asked = bit_of_token(tl.where(first + head < all_heads, bits, 0))
            if EARLY:
                x_p, x_rest = _load_inputs(at_x + head * stride.x.h + channel, at_rest, owners, head, asked, REST)
            W, decay = _weights(head, Gs, steps, scores, skips, D is not None, MILD, BLOCK_H)
            if REST:
                decay += tl.sum(tl.where(k == head, lost, 0.0), axis=0)
            parts = split3(W)
            if not EARLY:
                x_p, x_rest = _load_inputs(at_x + head * stride.x.h + channel, at_rest, owners, head, asked, REST)
            y_p = _from_state(tiles, Cs, COLUMNS)
            y_p = _add_weighted(decay * y_p, x_p, parts)  # (1)
            store_pairs(at_y + head * stride.y.h + channel, to_pairs(y_p.to(y.dtype.element_ty)), token < T)
            if REST:
                own = owner[:, None] == head
                y_rest = _add_weighted(tl.where(own, decay, 1.0) * y_rest, x_rest, parts)  # (1)
        if REST:
            at_rest = at_y + owners.to(tl.int64) * stride.y.h + 64 + channel % 16
            store_pairs(at_rest, to_pairs(y_rest.to(y.dtype.element_ty)), (token < T) & (owners < HEADS))
