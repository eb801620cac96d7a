"""SSD (Mamba-2), a window of tokens through matrix products: a chain, or any packed tree.

    dt   = clip(softplus(dt_raw + dt_bias), dt_limit),   ld = dt A                  (1)
    G_i  = sum of ld over the tokens that i sees, itself included                   (2)
    W_ij = exp(G_i - G_j) dt_j (C_i . B_j)        where i sees j, otherwise 0       (3)
    y    = W x + exp(G) (C S^T) + D x, then y silu(z) if z is given                 (4)
    S'   = exp(G_T) S + sum_j exp(G_T - G_j) dt_j x_j B_j^T          chain only     (5)

For `ssd_gated_window` the kernel also computes half of a norm:

    squares = sum y^2 over the channels of a tile;  y = weight y                    (6)

i sees j if j comes no later (chain), or lies on the path from the root to i (tree). A no-op token has ld = 0 and
x = B = C = 0. D of a head is added to the diagonal of W. A live token that is not finite makes its whole window NaN, not only
the tokens after it: 0 NaN is NaN in a product. The exponent of a pair that is not seen may be large: it is limited to 88,
below the overflow, and the pair's score is 0.

A program owns HEADS heads of a group of one row. What the heads share, the products C B^T, is computed once, and (2) for all
of them in one product with the mask. Then it loops over heads, and tiles (p, n) of each; the load of the next one is in
flight while this one is multiplied. Each tile of the state is read once and written at most once, for any number of tokens;
products are as accurate as fp32 (`dots`). A program of one tile issues its load before all others. Chains of up to 16 tokens
in bf16 that write their state have their own kernel, `ssd_window_chain`, which computes (5) from the registers of (4).

Up to 16 tokens are the rows of the products. More of them are the columns (P_FIRST): then the state goes from shared memory
directly into the registers of a wgmma, in two halves of n, whose parts fit without a spill.
Layout: S (s, h, p, n), a pool that rows index through `slots`; a row with a negative slot is padding and is skipped.
Bound by the bytes of the state up to 16 tokens; above, by the latency of one head after the other in two programs per SM.
"""

import torch
import triton
import triton.language as tl
import triton.language.extra.cuda  # griddepcontrol
from torch import Tensor

from ssmspec_ref.errors import Unsupported

from ..launch import overlapped, strides
from ..row import Axes, Live, Slots, launcher
from ..shared.dots import dot_inputs, dot_left, dot_onto, dot_right
from ..shared.functions import silu
from ..shared.load_fence import hold_layout
from ..shared.strides import MaskStrides, TokenStrides, constant
from ..shared.tree_nodes import real_nodes
from ..shared.tuning import H200
from . import ssd_inputs as ssd
from .ring.ssd_state_tile import CHANNELS, has_many_tiles, heads_per_program, tiles_per_program
from .ring.ssd_state_tile import MOST_TOKENS as SHORT
from .ssd_inputs import Inputs, check_heads, check_one_type, load_rows, skip_strides, step_size, window_strides, window_tile
from .ssd_window_chain import ssd_window_chain_kernel

MOST_TOKENS = 128
MANY_TOKENS, WIDE = 64, 128
SHARED = (
    "{t} tokens over states of {n} channels in {io} take more shared memory than an H200 has: above {many} tokens states "
    "have up to {wide} channels, except in bf16 where no state is written; cut the window, or prune the tree"
)
"""With 128 tokens and 256 channels, fp32 and fp16 take 262,144 bytes and more, bf16 239,616 if the state is written, even
where no tile is loaded ahead; a block has at most 232,448."""
WGMMA = (
    "tiles of {block} channels with {warps} warps are refused for {t} tokens: what Triton 3.6 compiled for an H200 gave "
    "wrong values there or read outside memory; give tiles of 64 channels and 4 warps, or fewer warps"
)
"""Above 32 tokens with 4 warps, tiles under 64 channels gave wrong values, the same in every run; combinations with 8 warps
read outside memory. In common they have chained products of different shapes, as wgmma. The cause was not found: racecheck
reports no hazard, and memcheck was not run on such a case. One or two warps use no wgmma."""


@launcher
def ssd_window(
    axes: Axes,
    S: ssd.State,
    x: ssd.Heads,
    dt: ssd.PerHeads,
    A: ssd.Decay,
    B: ssd.Projs,
    C: ssd.Projs,
    *,
    D: ssd.Skip | None = None,
    z: ssd.Heads | None = None,
    dt_bias: ssd.PerHead | None = None,
    dt_softplus: bool = True,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    slots: Slots | None = None,
    live: Live | None = None,
    write_state: bool = True,
    out: ssd.Outputs | None = None,
    block_p: int | None = None,
    program_p: int | None = None,
    heads: int | None = None,
    num_warps: int | None = None,
    stages: int | None = None,
) -> Tensor:
    """The outputs (b, t, h, p) of a window over the states S[slots], which advance in place if `write_state` is on.

    Equal to `ssd_scan` up to rounding, for windows of 4 tokens and more. `live` (b, t) marks the real tokens; the output
    of a no-op is 0. The output of a padding row is not written.

    Raises: ShapeMismatch, PrecisionError, ParameterError, Unsupported, before anything is written.
    """
    given = Inputs(axes, S, x, dt, A, B, C, D, z, dt_bias, dt_softplus, dt_limit, slots)
    return launch(given, live, None, write_state, out, (block_p, program_p, heads, num_warps, stages))


def launch(
    given: Inputs,
    live: Tensor | None,
    ancestors: Tensor | None,
    write_state: bool,
    out: Tensor | None,
    tiles: tuple[int | None, ...],
    gate: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Runs the kernel, on a chain or, with `ancestors`, a tree; `gate` holds a norm's weight and the tensor for squares (6).

    Raises: PrecisionError, Unsupported, before anything is written.
    """
    b, t, h, p, n, g = given.sizes
    x = given.x
    check_one_type(x=x, B=given.B, C=given.C)
    if t > MOST_TOKENS:
        raise Unsupported(f"the window has {t} tokens; the weights of more than {MOST_TOKENS} fill the registers: cut it")
    y = torch.empty_like(x) if out is None else out
    if write_state and ancestors is None and x.dtype == torch.bfloat16 and t <= SHORT and n <= 128:
        _launch_chain(given, live, y, tiles)
        return y
    exact = x.dtype != torch.bfloat16
    if t > MANY_TOKENS and n > WIDE and (exact or write_state):
        raise Unsupported(SHARED.format(t=t, n=n, io=x.dtype, many=MANY_TOKENS, wide=WIDE))
    products = not write_state and x.dtype == torch.bfloat16 and n <= 128
    p_first = t > 16 and not write_state and x.dtype == torch.bfloat16
    default = window_tiles(b * h, t, h // g, p, products)
    if t > MANY_TOKENS and exact and write_state:
        # Tiles loaded ahead would not fit shared memory; 4 warps compile for minutes, 8 for 13 s.
        default = *default[:-2], 8, 1
    block, program, heads, warps, stages = (mine or own for mine, own in zip(tiles, default, strict=True))
    check_heads(heads, h // g)
    if t > 32 and (warps > 4 or (warps == 4 and block < 64)) and x.dtype == torch.bfloat16:
        raise Unsupported(WGMMA.format(block=block, warps=warps, t=t))
    weight, squares = (None, None) if gate is None else gate
    stride = window_strides(given, y)
    each, block_n = triton.cdiv(program, block), max(16, triton.next_power_of_2(n))
    ssd_window_kernel[(triton.cdiv(p, each * block), h // heads, b)](
        *given.tensors, live, ancestors, y, weight, squares, constant(stride, "s", "b", "g")._replace(dt=stride.dt),
        TokenStrides(*strides(live, 2)), MaskStrides(*strides(ancestors, 3)), TokenStrides(*strides(squares, 2)),
        skip_strides(given), *given.dt_limit, T=t, P=p, N=n, **given.constants, D_HEAD=given.skip_per_head,
        WRITE_STATE=write_state, P_FIRST=p_first, BLOCK_T=max(16, triton.next_power_of_2(t)), BLOCK_N=block_n,
        HALF_N=max(16, block_n // 2), BLOCK_P=block, TILES=each, HEADS=heads, BLOCK_H=max(8, triton.next_power_of_2(heads)),
        STAGES=stages, num_warps=warps, **overlapped(x.device),
    )  # fmt: skip
    return y


def _launch_chain(given: Inputs, live: Tensor | None, y: Tensor, tiles: tuple[int | None, ...]) -> None:
    """Short chains that write a state, with bf16 activations and up to 128 states: tiles of 16 channels, one warp."""
    b, t, h, p, n, g = given.sizes
    _, program, heads, _, stages = tiles
    check_heads(heads or 1, h // g)
    head = triton.cdiv(p, CHANNELS)
    run = triton.cdiv(program or p, CHANNELS) * (heads or 1) if program or heads else tiles_per_program(b, h, h // g, p)
    crowded, row = has_many_tiles(b, h, p), H200["ssd_window"]
    ssd_window_chain_kernel[(triton.cdiv(h // g * head, run), g, b)](
        *given.tensors, live, y, constant(window_strides(given, y), "s", "b"), TokenStrides(*strides(live, 2)),
        constant(skip_strides(given)), *given.dt_limit, run, T=t, P=p, N=n, **given.constants,
        D_HEAD=given.skip_per_head, BLOCK_T=8 if t <= 8 else 16, HALF_N=max(16, triton.next_power_of_2(n) // 2),
        BLOCK_P=CHANNELS, TILES=head, STAGES=stages or row["chain_many_stages" if crowded else "chain_stages"],
        MANY=crowded, num_warps=1, **overlapped(y.device),
    )  # fmt: skip


def window_tiles(rows: int, t: int, heads: int, p: int, products: bool) -> tuple[int, int, int, int, int]:
    """Channels of a tile, of a program, heads of a program, warps and pipeline stages; `rows` counts heads of rows.

    Chosen for heads of 64 and 80 channels. Without tensor cores, with a state to write, and for wide or narrow states: one
    head, narrow tiles.
    """
    row = H200["ssd_window"]
    if not products or (t > 16 and p < 64):
        block, program, warps, stages = window_tile(p, rows, row["exact_block_p"])
        return block, program, 1, warps, stages
    if rows < row["few_heads"]:
        block = row["few_block_p" if t > 16 or p % 64 == 0 else "few_ragged_block_p"]
        return block, block, 1, row["few_warps"], 1
    if t <= 16 and p % 64:
        few = rows < row["ragged_few_heads"]
        block = row["ragged_few_block_p" if few else "ragged_block_p"]
        run = 1 if few else heads_per_program(rows, heads, row["ragged_each"], row["ragged_heads"])
        return block, triton.cdiv(p, block) * block, run, 1, row["stages"]
    most = row["long_heads" if p % 64 == 0 else "long_ragged_heads"]
    if t <= 16:
        most = row["heads" if t > 8 or rows < row["many_heads"] else "many_heads_of_8"]
    block, run = row["block_p"], heads_per_program(rows, heads, row["each"], most)
    return block, triton.cdiv(p, block) * block, run, row["warps"], row["stages" if t <= 16 else "long_stages"]


@triton.jit
def _load_seen(live, ancestors, b, t, in_t, stride_live, stride_anc):
    """Which tokens are real, and of a tree the rows of its mask, as stored."""
    real = in_t
    if live is not None:
        real &= tl.load(live + b * stride_live.b + t * stride_live.t, mask=in_t, other=0) != 0
    pairs = real
    if ancestors is not None:
        at_anc = ancestors + b * stride_anc.b
        real &= real_nodes(at_anc, t, in_t, stride_anc)
        at_pair = at_anc + t[:, None] * stride_anc.t + t[None, :] * stride_anc.j
        pairs = tl.load(at_pair, mask=real[:, None] & real[None, :], other=0)
    return real, pairs


@triton.jit
def _summed_and_seen(pairs, i, real, TREE: tl.constexpr):
    """The tokens whose sum is G of each token, and those that it sees. They differ for no-ops of a chain."""
    if TREE:
        sees = pairs != 0
        before = sees
    else:
        before = i[:, None] >= i[None, :]
        sees = before & real[:, None] & real[None, :]
    return before, sees


@triton.jit
def _load_group(dt, A, D, dt_bias, b, t, heads, real, in_h, stride_dt, stride_D, D_HEAD: tl.constexpr):
    """Raw dt of a program's heads, their A and dt_bias, and their D if it is per head, as stored."""
    bias = tl.zeros((heads.shape[0],), tl.float32)
    if dt_bias is not None:
        bias = tl.load(dt_bias + heads, mask=in_h, other=0.0)
    raw = load_rows(dt + b * stride_dt.b, t * stride_dt.t, heads * stride_dt.h, real, in_h)
    decay = tl.load(A + heads, mask=in_h, other=0.0)
    skips = decay
    if D_HEAD:
        skips = tl.load(D + heads * stride_D.h, mask=in_h, other=0.0)
    return raw, decay, bias, skips


@triton.jit
def _load_parts(start, rows, real, columns, N: tl.constexpr):
    """A block of rows for each part of the columns, as stored."""
    blocks = ()
    for part in tl.static_range(len(columns)):
        blocks += (load_rows(start, rows, columns[part], real, columns[part] < N),)  # type: ignore[assignment]
    return blocks


@triton.jit
def _hold_parts(blocks, slot):
    """`hold_layout` for each block."""
    held = ()
    for part in tl.static_range(len(blocks)):
        held += (hold_layout(blocks[part], slot),)  # type: ignore[assignment]
    return held


@triton.jit
def _load_shared(B, C, b, g, t, n, real, in_n, columns, stride, N: tl.constexpr, P_FIRST: tl.constexpr):
    """B and C of the window, which the heads share, and once more C in parts if channels are rows."""
    B_t = load_rows(B + b * stride.B.b + g * stride.B.g, t * stride.B.t, n, real, in_n)
    C_t = load_rows(C + b * stride.C.b + g * stride.C.g, t * stride.C.t, n, real, in_n)
    Cs = (C_t,)
    if P_FIRST:
        Cs = _load_parts(C + b * stride.C.b + g * stride.C.g, t * stride.C.t, real, columns, N)
    return B_t, C_t, Cs


@triton.jit
def _hold_shared(B_t, C_t, skips, Cs, slot, D_HEAD: tl.constexpr, P_FIRST: tl.constexpr):
    """B, C and D of the heads after the loads: as they are used."""
    B_t, C_t = hold_layout(B_t, slot), hold_layout(C_t, slot)
    if D_HEAD:
        skips = skips.to(tl.float32)
    Cs = _hold_parts(Cs, slot) if P_FIRST else (C_t,)
    return B_t, C_t, skips, Cs


@triton.jit
def _weights_of_head(head, Gs, steps, scores, skips, i, k, D_HEAD: tl.constexpr):
    """W of a head (3) with D on its diagonal, its G and its steps."""
    G = tl.sum(tl.where(k[None, :] == head, Gs, 0.0), axis=1)
    step = tl.sum(tl.where(k[None, :] == head, steps, 0.0), axis=1)
    between = tl.minimum(G[:, None] - G[None, :], 88.0, propagate_nan=tl.PropagateNan.ALL)
    W = tl.exp(between) * (step[None, :] * scores)  # (3)
    if D_HEAD:
        W = tl.where(i[:, None] == i[None, :], W + tl.sum(tl.where(k == head, skips, 0.0), axis=0), W)
    return W, G, step


@triton.jit
def _read_tile(
    start, early, x_t, W, G, Cs, p, in_p, columns, stride_p, N: tl.constexpr, ONE: tl.constexpr, P_FIRST: tl.constexpr,
):  # fmt: skip
    """(4), and the tile of the state where tokens are rows. Unless it is the only one (ONE), the tile is loaded here; where
    channels are rows, each half before its product."""
    if P_FIRST:
        y_p = dot_right(tl.trans(x_t), tl.trans(W))
        left = early[0] if ONE else load_rows(start, p * stride_p, columns[0], in_p, columns[0] < N)
        from_state = dot_left(left.to(tl.float32), tl.trans(Cs[0]))
        right = early[1] if ONE else load_rows(start, p * stride_p, columns[1], in_p, columns[1] < N)
        from_state = dot_onto(from_state, right.to(tl.float32), tl.trans(Cs[1]))
        y_t = tl.trans(y_p + tl.exp(G)[None, :] * from_state)  # (4)
        state = left
    else:
        y_t = dot_left(W, x_t)
        tile = early[0] if ONE else load_rows(start, p * stride_p, columns[0], in_p, columns[0] < N)
        state = tile.to(tl.float32)
        y_t += tl.exp(G)[:, None] * dot_right(Cs[0], tl.trans(state))  # (4)
    return y_t, state


@triton.jit
def skip_and_gate(y_t, x_t, D, z, b, h, t, p, real, in_p, stride_D, stride_z, D_HEAD: tl.constexpr):
    """The outputs with D x, if D is per channel, and silu(z) (4)."""
    if D is not None and not D_HEAD:
        skip = tl.load(D + h * stride_D.h + p * stride_D.p, mask=in_p, other=0.0).to(tl.float32)
        y_t += skip[None, :] * x_t.to(tl.float32)
    if z is not None:
        z_t = load_rows(z + b * stride_z.b + h * stride_z.h, t * stride_z.t, p, real, in_p)
        y_t *= silu(z_t.to(tl.float32))
    return y_t


@triton.jit
def _store_squares(
    squares, y_t, b, h, t, tile, in_t, stride_squares, P: tl.constexpr, BLOCK_P: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Stores the squares of a tile's outputs (6)."""
    part = h * tl.cdiv(P, BLOCK_P) + tl.program_id(0) * TILES + tile
    at_part = squares + b * stride_squares.b + t * stride_squares.t + part
    there = in_t
    if (P + BLOCK_P - 1) // BLOCK_P % TILES != 0:  # programs with more tiles than the head has
        there &= tl.program_id(0) * TILES + tile < tl.cdiv(P, BLOCK_P)
    tl.store(at_part, tl.sum(y_t * y_t, axis=1), mask=there)


@triton.jit
def _store_state(start, state, x_t, B_t, G, step, total, p, n, in_p, in_n, stride_p):
    """Stores a tile of the state after the window (5)."""
    to_state = tl.exp(total - G) * step
    state = tl.exp(total) * state + dot_left(tl.trans(to_state[:, None] * x_t.to(tl.float32)), B_t)  # (5)
    tl.store(
        start + p[:, None] * stride_p + n[None, :],
        state.to(start.dtype.element_ty),
        mask=in_p[:, None] & in_n[None, :],
    )


@triton.jit
def ssd_window_kernel(
    S, x, dt, A, B, C, D, z, dt_bias, slots, live, ancestors, y, weight, squares, stride, stride_live, stride_anc,
    stride_squares, stride_D, low, high, T: tl.constexpr, P: tl.constexpr, N: tl.constexpr, HEADS_PER_GROUP: tl.constexpr,
    D_HEAD: tl.constexpr, SOFTPLUS: tl.constexpr, LIMIT: tl.constexpr, WRITE_STATE: tl.constexpr, BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr, HALF_N: tl.constexpr, BLOCK_P: tl.constexpr, TILES: tl.constexpr, HEADS: tl.constexpr,
    BLOCK_H: tl.constexpr, P_FIRST: tl.constexpr, STAGES: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
    b = tl.program_id(2).to(tl.int64)
    first = tl.program_id(1).to(tl.int64) * HEADS
    slot = b
    if slots is not None:
        slot = tl.load(slots + b).to(tl.int64)
    if slot >= 0:
        ONE: tl.constexpr = HEADS * TILES == 1
        g = first // HEADS_PER_GROUP
        i, n, k = tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_H)
        t, heads = i.to(tl.int64), first + k
        in_t, in_n, in_h = i < T, n < N, k < HEADS
        p = tl.program_id(0).to(tl.int64) * (TILES * BLOCK_P) + tl.arange(0, BLOCK_P)
        at_S = S + slot * stride.S.s
        columns = (tl.arange(0, HALF_N), tl.arange(0, HALF_N) + HALF_N) if P_FIRST else (n,)
        early, early_x = columns, i
        if ONE:
            early = _load_parts(at_S + first * stride.S.h, p * stride.S.p, p < P, columns, N)
            tl.debug_barrier()  # otherwise the loads that follow would be issued before that of the tile
        real, pairs = _load_seen(live, ancestors, b, t, in_t, stride_live, stride_anc)
        raw, decay, bias, skips = _load_group(dt, A, D, dt_bias, b, t, heads, real, in_h, stride.dt, stride_D, D_HEAD)
        B_t, C_t, Cs = _load_shared(B, C, b, g, t, n, real, in_n, columns, stride, N, P_FIRST)
        if ONE:
            early_x = load_rows(x + b * stride.x.b + first * stride.x.h, t * stride.x.t, p, real, p < P)
        tl.debug_barrier()  # all loads are issued before anything waits for one of them
        B_t, C_t, skips, Cs = _hold_shared(B_t, C_t, skips, Cs, slot, D_HEAD, P_FIRST)
        if ONE:
            early_x, early = hold_layout(early_x, slot), _hold_parts(early, slot)
        before, sees = _summed_and_seen(pairs, i, real, ancestors is not None)
        steps = step_size(raw, real[:, None] & in_h[None, :], bias.to(tl.float32)[None, :], low, high, SOFTPLUS, LIMIT)
        lds = steps * decay[None, :]  # (1)
        # No-ops are rows too: the sum of the last row is exactly that of the last token, whose weight in (5) is then its dt.
        Gs = dot_right(before.to(tl.bfloat16), lds)  # (2)
        scores = tl.where(sees, dot_inputs(C_t, tl.trans(B_t)), 0.0)
        for head in tl.range(0, HEADS, num_stages=STAGES):
            h = first + head
            W, G, step = _weights_of_head(head, Gs, steps, scores, skips, i, k, D_HEAD)
            total = tl.sum(tl.where(i == BLOCK_T - 1, G, 0.0), axis=0)
            for tile in tl.range(0, TILES, num_stages=STAGES):
                p_t = p + tile * BLOCK_P
                in_p = p_t < P
                x_t = early_x if ONE else load_rows(x + b * stride.x.b + h * stride.x.h, t * stride.x.t, p_t, real, in_p)
                at_tile = at_S + h * stride.S.h
                y_t, state = _read_tile(at_tile, early, x_t, W, G, Cs, p_t, in_p, columns, stride.S.p, N, ONE, P_FIRST)
                y_t = skip_and_gate(y_t, x_t, D, z, b, h, t, p_t, real, in_p, stride_D, stride.z, D_HEAD)
                if weight is not None:
                    _store_squares(squares, y_t, b, h, t, tile, in_t, stride_squares, P, BLOCK_P, TILES)  # (6)
                    y_t *= tl.load(weight + h * P + p_t, mask=in_p, other=0.0).to(tl.float32)[None, :]
                at_y = y + b * stride.y.b + h * stride.y.h + t[:, None] * stride.y.t + p_t[None, :]
                tl.store(at_y, y_t.to(y.dtype.element_ty), mask=in_t[:, None] & in_p[None, :])
                if WRITE_STATE:
                    _store_state(at_tile, state, x_t, B_t, G, step, total, p_t, n, in_p, in_n, stride.S.p)
