"""SSD (Mamba-2) from a checkpoint and a ring: standard decode, one token for each row, in one of two ways.

With S_0 the checkpoint, j the tokens held since it, t the new one, and G the sum of dt A from the checkpoint on,

    output only:       y = exp(G_t) S_0 C + sum_{j held} exp(G_t - G_j) dt_j (C . B_j) x_j + dt_t (C . B_t) x_t     (1)
    state and output:  S_t = exp(G_t) S_0 + sum_j exp(G_t - G_j) dt_j x_j B_j^T + dt_t x_t B_t^T,   y = S_t C       (2)
    then y + D x, and y silu(z) if z is given                                                                       (3)
    ring: x, dt, B of the token after the held ones, unless it is the L-th                                          (4)
    S_0' = S_t of (2) where held + 1 = L                                                                            (5)

The token is already accepted, so the L-th goes into the checkpoint with the others. The cursors are updated afterwards, once
for all layers (`cursors.commit_step`).

A program owns TILES tiles (p, n) of one head of one row, with all of n, and processes them one after the other, so that
entries and weights are computed once for all of them. Loads that do not depend on the slot are issued before the slot has
arrived. (1) takes one fused multiply-add per element in registers, fewer instructions than splitting S_0 for tensor cores.
Rows that are due take another branch of the same launch, where (2) is a product on tensor cores (`dots`). With 168 registers
per lane, 12 programs fit an SM and hide each other's loads. The tile is loaded as rows of RUN states, as in `ssd_scan`. S_0
is read once, and written once in L tokens, in its own type; nothing is rounded to less than fp32.

The program that starts last decides when the launch ends, and one of a row that is due takes about twice as long as another.
So the last heads have one program per tile, as many as the device holds at once. Programs start while the previous launch
ends, and wait for it (programmatic dependent launch); if they are few, the next launch may start beside them.

Layout: S_0 (s, h, p, n), the ring as in `ssd_ring`.
Bound by the bytes of the state and of the ring's live entries; for few rows by the dependent loads of slot, cursors, ring,
sums.
Source: ReplaySSM, algorithms 2 and 6.
"""

from collections.abc import Sequence

import triton
import triton.language as tl
import triton.language.extra.cuda  # griddepcontrol
from torch import Tensor

from ssmspec_ref.errors import ParameterError

from ...launch import overlapped, strides
from ...row import Axes, Lengths, Slots, launcher
from ...shared.dots import dot_onto
from ...shared.functions import silu
from ...shared.load_fence import hold_layout
from ...shared.strides import OneGroupStrides, OneHeadStrides, StateStrides, StepStrides
from ...shared.tuning import H200
from .. import ssd_inputs as ssd
from ..ssd_inputs import Inputs, skip_strides, step_size
from ..ssd_scan import traffic_bytes as scan_bytes
from .ssd_ring import Ring, entry_bytes, load_at, place


def traffic_bytes(
    held: Sequence[int], h: int, p: int, n: int, g: int, *, capacity: int, state: int = 4, io: int = 2, z: bool = False
) -> int:
    """Bytes that must cross the memory bus for live rows with `held` entries each; cursors are left out.

    Units: bytes; `state` and `io` are the bytes of an element.
    """
    flushes = sum(1 for count in held if count + 1 == capacity)
    entries = sum(held) + len(held) - flushes
    scan = scan_bytes(len(held), 1, h, p, n, g, state=state, io=io, write_state=False, z=z)
    return scan + flushes * h * p * n * state + entries * entry_bytes(h, p, n, g, io=io)


@launcher
def ssd_buffered_step(
    axes: Axes,
    S: ssd.State,
    ring: Ring,
    x: ssd.Heads,
    dt: ssd.PerHeads,
    A: ssd.Decay,
    B: ssd.Projs,
    C: ssd.Projs,
    *,
    output_only: bool = True,
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
    whole: int | None = None,
) -> Tensor:
    """Decodes one token (b, 1, ..) after the history of S[slots], and stores it; outputs (b, 1, h, p): (1) or (2), then (3).

    `lengths` (b) is 0 for a row without a token: its output is 0 and its state is unchanged. The cursors of `ring` are read,
    not updated. Only one row may use a slot. `whole`: how many programs process all of their tiles; the
    others take one tile each.

    Raises: ShapeMismatch, PrecisionError, ParameterError (a window of more than one token), before anything is written.
    """
    given = Inputs(axes, S, x, dt, A, B, C, D, z, dt_bias, dt_softplus, dt_limit, slots)
    b, t, h, p, n, _ = given.sizes
    ring.check_types(x, B, C)
    if t != 1:
        raise ParameterError(f"the window holds {t} tokens; standard decode takes one, ssd_buffered several")
    y = x.new_empty(x.shape) if out is None else out
    short = output_only and ring.capacity <= 16
    default = tile(b * h, p, n, short)
    block, program, warps = (one or own for one, own in zip((block_p, program_p, num_warps), default, strict=True))
    each, block_n = triton.cdiv(min(program, p), block), max(16, triton.next_power_of_2(n))
    parts = triton.cdiv(p, each * block)
    if whole is None:
        whole = whole_programs(b * h * parts, each) if short else b * h * parts
    programs = whole + (b * h * parts - whole) * each
    registers = H200["ssd_buffered_step"]["registers"]
    of_x, of_dt, of_z, of_y = (OneHeadStrides(*strides(a, 3)[::2]) for a in (x, dt, z, y))
    of_B, of_C = (OneGroupStrides(*strides(a, 3)[::2]) for a in (B, C))
    stride = StepStrides(StateStrides(*strides(S, 3)), of_x, of_dt, of_B, of_C, of_z, of_y)
    _ssd_buffered_step_kernel[(programs,)](
        *given.tensors, lengths, *ring.tensors, y, stride, ring.strides, skip_strides(given), *given.dt_limit, whole,
        P=p, N=n, HEADS=h, **given.constants, OUTPUT_ONLY=output_only, CAPACITY=ring.capacity,
        BLOCK_L=max(16, triton.next_power_of_2(ring.capacity)), BLOCK_N=block_n, BLOCK_P=block, TILES=each, PARTS=parts,
        RUN=min(32, block_n), EARLY=short and programs * warps <= FEW, num_warps=warps,
        maxnreg=registers if each > 1 and block * block_n <= 2048 * warps and ring.capacity <= 16 else None,
        **overlapped(S.device),
    )  # fmt: skip
    return y


def tile(rows: int, p: int, n: int, short: bool) -> tuple[int, int, int]:
    """Channels of a tile, of a program, and warps, chosen for 64 and 80 channels; `rows` counts heads of rows, `short`: (1)
    from a ring of up to 16."""
    row = H200["ssd_buffered_step"]
    block, many = row["block_p"], rows >= row["many_heads"]
    if many or n > 128 or not short:
        return block, p if many else block, 2 if n > 128 else 1
    if p % row["wide_block_p"] == 0:
        return row["wide_block_p"], row["wide_block_p"], row["wide_warps"]
    return block, block, 2 if rows * triton.cdiv(p, block) > RESIDENT else 1


RESIDENT = H200["ssd_buffered_step"]["resident"]
"""Programs of one warp that an H200 holds at once: 12 an SM, by their registers."""
FEW = H200["ssd_buffered_step"]["early_warps"]
"""Up to this number of warps the next launch fits beside them."""


def whole_programs(programs: int, each: int) -> int:
    """How many of the programs process all of their `each` tiles; the others are replaced by one program per tile.

    The single-tile programs fill the first round of programs, or form the last, which would otherwise leave most of the
    device idle. With many rounds that makes no difference."""
    if each == 1 or programs > 8 * RESIDENT:
        return programs
    if programs > RESIDENT:
        return programs - RESIDENT // each
    return max(0, programs - (RESIDENT - programs) // (each - 1))


@triton.jit
def _own_tiles(whole, HEADS: tl.constexpr, PARTS: tl.constexpr, TILES: tl.constexpr):
    """Row and head of a program, its first tile, the one after its last."""
    index = tl.program_id(0)
    cut = tl.maximum(index - whole, 0)
    item = tl.minimum(index, whole) + cut // TILES
    row, head = item // (HEADS * PARTS), item // PARTS % HEADS
    begin = item % PARTS * TILES + cut % TILES
    end = tl.where(index < whole, begin + TILES, begin + 1)
    return tl.cast(row, tl.int64), tl.cast(head, tl.int64), begin, end


@triton.jit
def _slot_and_real(slots, lengths, b):
    """The slot of a row, and whether it has a token."""
    slot, real = b, True
    if slots is not None:
        slot = tl.load(slots + b).to(tl.int64)
    if lengths is not None:
        real = tl.load(lengths + b) > 0
    return slot, real


@triton.jit
def _issue_x(
    x, b, h, tile, real, stride: tl.constexpr, P: tl.constexpr, BLOCK_P: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """The channels of a tile, which of them exist, and x of the token."""
    p = tile * BLOCK_P + tl.arange(0, BLOCK_P)
    in_p = (p < P) | WHOLE
    return p, in_p, tl.load(x + b * stride.x.b + h * stride.x.h + p, mask=in_p & real, other=0.0)


@triton.jit
def _load_x(rows_x, at_x_t, tile, seen, real, P: tl.constexpr, BLOCK_P: tl.constexpr, WHOLE: tl.constexpr):
    """As `_issue_x`, and x of the entries before that of the token."""
    p = tile * BLOCK_P + tl.arange(0, BLOCK_P)
    in_p = (p < P) | WHOLE
    x_e = load_at(rows_x, p, seen, in_p)
    return p, in_p, x_e, tl.load(at_x_t + p, mask=in_p & real, other=0.0)


@triton.jit
def _issue_inputs(x, dt, A, B, C, dt_bias, b, h, g, n, run, in_n, in_run, real, stride: tl.constexpr):
    """Issue the loads of A, the bias, dt and C, the last in two layouts; with pointers to x and B of the token."""
    decay, bias = tl.load(A + h), 0.0
    if dt_bias is not None:
        bias = tl.load(dt_bias + h).to(tl.float32)
    raw = tl.load(dt + b * stride.dt.b + h * stride.dt.h, mask=real, other=0.0)
    at_x_t, at_B_t = x + b * stride.x.b + h * stride.x.h, B + b * stride.B.b + g * stride.B.g
    at_C = C + b * stride.C.b + g * stride.C.g
    as_n = tl.load(at_C + n, mask=in_n & real, other=0.0)
    as_runs = tl.load(at_C + run, mask=in_run & real, other=0.0)
    return decay, bias, raw, at_x_t, at_B_t, as_n, as_runs


@triton.jit
def _issue_state(
    S, held, origin, slot, tile, stride_p: tl.constexpr, P: tl.constexpr, N: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_P: tl.constexpr, RUN: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Issue the load of a tile; the lanes and columns of its runs, the number of entries held, and the first of them."""
    lane = tl.arange(0, BLOCK_N // RUN * BLOCK_P)
    col = (lane // BLOCK_P * RUN)[:, None] + tl.arange(0, RUN)[None, :]
    early = load_runs(S, tile * BLOCK_P + lane % BLOCK_P, col, True, stride_p, P, N, BLOCK_N, WHOLE)
    count, first = tl.load(held + slot), tl.load(origin + slot)
    tl.debug_barrier()  # otherwise the loads of the ring would be issued before that of the tile
    return lane, col, early, count.to(tl.int32), first.to(tl.int32)


@triton.jit
def _entries(e, first, count, real, CAPACITY: tl.constexpr):
    """Which entries are held, which is the token's, which are seen; their places, and the token's; whether the token is the
    last that fits (5), and whether it is kept (4)."""
    past, new = e < count, e == count
    at, at_new = place(first + e, CAPACITY), place(first + count, CAPACITY)
    seen = past | (new & real)
    full, kept = (count + 1 == CAPACITY) & real, (count + 1 < CAPACITY) & real
    return past, new, seen, at, at_new, full, kept


@triton.jit
def _of_slot(ring_x, ring_dt, ring_B, slot, h, g, stride: tl.constexpr):
    """The ring's pointers of a slot and head."""
    at_x = ring_x + slot * stride.x.s + h * stride.x.h
    at_dt = ring_dt + slot * stride.dt.s + h * stride.dt.h
    return at_x, at_dt, ring_B + slot * stride.B.s + g * stride.B.g


@triton.jit
def _issue_steps(ring_dt, at, e, first, count, past, stride_l: tl.constexpr, CAPACITY: tl.constexpr):
    """dt of the entries held, and of those after them."""
    steps = tl.load(ring_dt + at * stride_l, mask=past, other=0.0)
    behind = tl.load(ring_dt + place(first + e + 1, CAPACITY) * stride_l, mask=e + 1 < count, other=0.0)
    return steps, behind


@triton.jit
def _ring_weights(
    B_e, C_n, raw, real, bias, low, high, decay, steps, behind, new, e, count, SOFTPLUS: tl.constexpr, LIMIT: tl.constexpr,
    OUTPUT_ONLY: tl.constexpr,
):  # fmt: skip
    """dt of the token, G, the weights of the entries, and their scores if (1) needs them."""
    step = step_size(raw, real, bias, low, high, SOFTPLUS, LIMIT)
    steps = tl.where(new, step, steps)
    # The decay since an entry is summed from the newest one on: the newest has weight dt, and no difference is formed.
    since = tl.cumsum(tl.where(e + 1 == count, step, behind) * decay, axis=0, reverse=True)
    G, weights = tl.sum(steps * decay, axis=0), tl.exp(since) * steps
    scores = weights
    if OUTPUT_ONLY:
        scores = tl.sum(B_e.to(tl.float32) * C_n[None, :], axis=1)
    return step, G, weights, scores


@triton.jit
def _read_and_flush(
    S, early, x_e, B_e, C_n, C_run, G, weights, scores, full, p, n, in_p, in_n, stride_p: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_P: tl.constexpr, RUN: tl.constexpr, OUTPUT_ONLY: tl.constexpr,
):  # fmt: skip
    """y of a tile by (1), or by (2); S_0' of a row that is due (5). The pointer is that of the head."""
    state = tl.reshape(early.to(tl.float32), (BLOCK_N // RUN, BLOCK_P, RUN))
    wide = x_e.to(tl.float32)
    if OUTPUT_ONLY:
        y_t = tl.exp(G) * tl.sum(tl.sum(state * C_run[:, None, :], axis=0), axis=1)
        y_t += tl.sum((weights * scores)[:, None] * wide, axis=0)  # (1)
    if full or not OUTPUT_ONLY:
        before = tl.reshape(tl.permute(state, (1, 0, 2)), (BLOCK_P, BLOCK_N))
        following = dot_onto(tl.exp(G) * before, tl.trans(weights[:, None] * wide), B_e)
        if not OUTPUT_ONLY:
            y_t = tl.sum(following * C_n[None, :], axis=1)  # (2)
        at_tile = S + p.to(tl.int64)[:, None] * stride_p + n[None, :]
        in_tile = in_p[:, None] & in_n[None, :] & full
        tl.store(at_tile, following.to(S.dtype.element_ty), mask=in_tile, eviction_policy="evict_first")  # (5)
    return y_t


@triton.jit
def _store_output(y_t, x_t, D, z, y, b, h, p, in_p, real, stride: tl.constexpr, stride_D: tl.constexpr):
    """(3) of a tile of one token."""
    if D is not None:
        skip = tl.load(D + h * stride_D.h + p * stride_D.p, mask=in_p, other=0.0).to(tl.float32)
        y_t += skip * x_t.to(tl.float32)
    if z is not None:
        gate = tl.load(z + b * stride.z.b + h * stride.z.h + p, mask=in_p & real, other=0.0).to(tl.float32)
        y_t *= silu(gate)  # (3)
    tl.store(y + b * stride.y.b + h * stride.y.h + p, y_t.to(y.dtype.element_ty), mask=in_p)


@triton.jit
def _keep_token(
    ring_dt, ring_B, at_B_t, at_new, step, h, n, in_n, stride: tl.constexpr, HEADS_PER_GROUP: tl.constexpr,
):  # fmt: skip
    """dt of the token, and B of its group (4)."""
    tl.store(ring_dt + at_new * stride.dt.l, step)
    if h % HEADS_PER_GROUP == 0:
        tl.store(ring_B + at_new * stride.B.l + n, tl.load(at_B_t + n, mask=in_n), mask=in_n)


@triton.jit(do_not_specialize=["whole"])
def _ssd_buffered_step_kernel(
    S, x, dt, A, B, C, D, z, dt_bias, slots, lengths, ring_x, ring_dt, ring_B, origin, held, y, stride: tl.constexpr,
    stride_ring: tl.constexpr, stride_D: tl.constexpr, low, high, whole, P: tl.constexpr, N: tl.constexpr,
    HEADS: tl.constexpr, HEADS_PER_GROUP: tl.constexpr, SOFTPLUS: tl.constexpr, LIMIT: tl.constexpr,
    OUTPUT_ONLY: tl.constexpr, CAPACITY: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_P: tl.constexpr,
    TILES: tl.constexpr, PARTS: tl.constexpr, RUN: tl.constexpr, EARLY: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
        if EARLY:
            tl.extra.cuda.gdc_launch_dependents()
    b, h, begin, end = _own_tiles(whole, HEADS, PARTS, TILES)
    # Loads that do not depend on the slot are issued before the slot has arrived.
    slot, real = _slot_and_real(slots, lengths, b)
    g = h // HEADS_PER_GROUP
    n, e = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_L)
    run = tl.arange(0, BLOCK_N // RUN)[:, None] * RUN + tl.arange(0, RUN)[None, :]
    in_n, in_run = (n < N) | (N == BLOCK_N), (run < N) | (N == BLOCK_N)
    inner: tl.constexpr = P % (TILES * BLOCK_P) == 0
    if TILES == 1:
        p, in_p, x_t = _issue_x(x, b, h, begin, real, stride, P, BLOCK_P, inner)
    decay, bias, raw, at_x_t, at_B_t, as_n, as_runs = _issue_inputs(
        x, dt, A, B, C, dt_bias, b, h, g, n, run, in_n, in_run, real, stride
    )
    if slot >= 0:
        at_S = S + slot * stride.S.s + h * stride.S.h
        lane, col, early, count, first = _issue_state(
            at_S, held, origin, slot, begin, stride.S.p, P, N, BLOCK_N, BLOCK_P, RUN, inner
        )
        past, new, seen, at, at_new, full, kept = _entries(e, first, count, real, CAPACITY)
        at_x, at_dt, at_B = _of_slot(ring_x, ring_dt, ring_B, slot, h, g, stride_ring)
        rows_x = tl.where(new, at_x_t, at_x + at * stride_ring.x.l)
        B_e = load_at(tl.where(new, at_B_t, at_B + at * stride_ring.B.l), n, seen, in_n)
        if TILES == 1:
            x_e = load_at(rows_x, p, seen, in_p)
        if BLOCK_P < 32:  # faster for tiles of 16 channels only
            tl.debug_barrier()
        steps, behind = _issue_steps(at_dt, at, e, first, count, past, stride_ring.dt.l, CAPACITY)
        tl.debug_barrier()  # all loads are issued before anything waits for one of them
        B_e = hold_layout(B_e, slot)
        if TILES == 1:
            x_e = hold_layout(x_e, slot)
        C_n, C_run = as_n.to(tl.float32), as_runs.to(tl.float32)
        step, G, weights, scores = _ring_weights(
            B_e, C_n, raw, real, bias, low, high, decay, steps, behind, new, e, count, SOFTPLUS, LIMIT, OUTPUT_ONLY
        )
        for tile in tl.range(begin, end, num_stages=1):
            if TILES > 1:
                p, in_p, x_e, x_t = _load_x(rows_x, at_x_t, tile, seen, real, P, BLOCK_P, inner)
            y_t = _read_and_flush(
                at_S, early, x_e, B_e, C_n, C_run, G, weights, scores, full, p, n, in_p, in_n, stride.S.p, BLOCK_N, BLOCK_P,
                RUN, OUTPUT_ONLY,
            )  # fmt: skip
            _store_output(y_t, x_t, D, z, y, b, h, p, in_p, real, stride, stride_D)
            tl.store(at_x + at_new * stride_ring.x.l + p, x_t, mask=in_p & kept)  # (4)
            if TILES > 1:
                behind_p = (tile + 1) * BLOCK_P + lane % BLOCK_P
                early = load_runs(at_S, behind_p, col, tile + 1 < end, stride.S.p, P, N, BLOCK_N, inner)
        if kept & (begin == 0):
            _keep_token(at_dt, at_B, at_B_t, at_new, step, h, n, in_n, stride_ring, HEADS_PER_GROUP)  # (4)


@triton.jit
def load_runs(
    S, p, n, wanted, stride_p: tl.constexpr, P: tl.constexpr, N: tl.constexpr, BLOCK_N: tl.constexpr, WHOLE: tl.constexpr
):
    """Runs of n of the channels p; zeros outside."""
    inside = ((p < P) | WHOLE)[:, None] & ((n < N) | (N == BLOCK_N)) & wanted
    return tl.load(S + (p.to(tl.int64) * stride_p)[:, None] + n, mask=inside, other=0.0, eviction_policy="evict_first")
