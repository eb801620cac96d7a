"""Standard decode of SSD from a checkpoint and a ring, by both routes, beside the oracle token by token."""

from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
import torch

from conformance.interpreter.memory import watch
from ssmspec_kernels.shared import cursors
from ssmspec_kernels.ssd.ring import ssd_buffered_step as kernel
from ssmspec_ref import ssd
from tests.kernels import ssd_cases as cases
from tests.kernels import ssd_rings as rings
from tests.kernels.mutants import mutated
from tests.kernels.ssd_cases import Options
from tests.kernels.tensors import far

STEPS = [
    (Options(t=1, z=True, D="channel", poison=7.0), 3),
    (Options(t=1, io="bf16", h=2, g=1, p=35, gentle=True, limit=(0.05, 0.8), seed=1), 4),
    (Options(t=1, state="bf16", io="fp16", g=1, h=3, z=True, D="", seed=4, poison=-2.0), 1),
    (Options(b=2, t=1, state="fp16", io="bf16", h=2, p=5, softplus=False, bias=False, seed=5), 2),
]


def check_steps(module: ModuleType, o: Options, capacity: int, output_only: bool, tokens: int = 7, **tiles: int) -> None:
    """Every token beside the oracle, the checkpoint at every flush; rows skip a token now and then."""
    first, ring = cases.draw(o), rings.ring_of(o, capacity, o.seed)
    oracles = [rings.Oracle(o, first.state()[i : i + 1], first.params()) for i in range(len(first.rows))]
    before = rings.others(first, ring)
    for n in range(tokens):
        case = rings.window_case(first, o, n)
        lengths = torch.tensor([int((n + r) % 3 != 2) for r in range(o.b)], dtype=torch.int32)
        for x in (case.x, case.dt, case.B, case.C):
            x[lengths == 0] = float("nan")
        states, outputs, inputs = case.S.clone(), case.out.clone(), case.before(origin=ring.origin, held=ring.held)
        appended = rings.Appended(case, ring, lengths * (ring.held[case.slots.long()] + 1 < capacity))
        case.call(module.ssd_buffered_step, ring=ring, lengths=lengths, output_only=output_only, **tiles)
        appended.check()
        del inputs["S"], inputs["out"]
        cases.unchanged(inputs)
        cursors.commit_step(ring.origin, ring.held, capacity=capacity, rows=o.b, slots=case.slots, lengths=lengths)
        for i, (oracle, row) in enumerate(zip(oracles, case.rows, strict=True)):
            slot = int(case.slots[row])
            flushed = oracle.held + 1 == capacity and bool(lengths[row])
            if lengths[row]:
                window = rings.row(case, i, 1)
                cases.assert_within(f"y {n} {row}", case.out[row : row + 1], oracle.read(window)[0])
                oracle.take(window, 1)
            else:
                assert not case.out[row].any()
            if flushed:
                cases.assert_within(f"S {n} {row}", case.S[slot][None], oracle.flush())
                oracle.start_from(case.S[slot][None])
            else:
                assert cases.untouched(states[slot], case.S[slot])
            assert int(ring.held[slot]) == oracle.held
        padding = case.slots < 0
        assert cases.untouched(case.out[padding], outputs[padding])
    rings.assert_others_as_before(before, first, ring)


def check_exact(module: ModuleType, o: Options, capacity: int, output_only: bool) -> None:
    case, window, params, S = cases.exact(o)
    y, states = ssd.states(S, window, params)
    ring = rings.ring_of(o, capacity)
    for t in range(o.t):
        cut = slice(t, t + 1)
        tokens = {name: getattr(case, name)[:, cut] for name in cases.TOKENS}
        module.ssd_buffered_step(
            S=case.S, ring=ring, A=case.A, **tokens, slots=case.slots, out=case.out[:, cut], output_only=output_only,
            **{**case.extra, "z": case.extra["z"][:, cut]},
        )  # fmt: skip
        cursors.commit_step(ring.origin, ring.held, capacity=capacity, rows=o.b, slots=case.slots)
    assert torch.equal(case.out, torch.from_numpy(y).to(case.out.dtype))
    folded = o.t - int(ring.held[case.slots[0]])
    assert np.array_equal(cases.doubles(case.S)[case.slots.numpy()], states[:, folded - 1])


def check_bytes(module: ModuleType, o: Options, held: int, output_only: bool, **tiles: int) -> None:
    case, ring = cases.draw(o, padding=False), rings.ring_of(replace(o, poison=0.25), 5)
    ring.held.fill_(held)
    named = {name: getattr(case, name) for name in ("S", "x", "dt", "B", "C", "out")}
    params = {name: x for name, x in case.extra.items() if name != "z"} | {"A": case.A, "slots": case.slots}
    gate = {"z": case.extra["z"]} if o.z else {}
    with watch(**named, **params, **gate, **rings.tensors(ring)) as seen:
        case.call(module.ssd_buffered_step, ring=ring, output_only=output_only, **tiles)
    left_out = sum(seen.loaded(name).distinct for name in (*params, "origin", "held"))
    sizes = {"io": case.x.element_size(), "z": o.z}
    assert seen.distinct_bytes() - left_out == module.traffic_bytes([held] * o.b, o.h, o.p, o.n, o.g, capacity=5, **sizes)
    states = o.b * o.h * o.p * o.n * 4
    assert seen.loaded("S").requested == states
    assert seen.stored("S").requested == (states if held == 4 else 0)
    assert seen.outside == seen.races == []


@pytest.mark.parametrize("output_only", [True, False])
@pytest.mark.parametrize(("o", "capacity"), STEPS, ids=str)
def test_standard_decode_equals_plain_decoding_within_the_bound(o: Options, capacity: int, output_only: bool) -> None:
    check_steps(kernel, o, capacity, output_only)


@pytest.mark.parametrize("capacity", [17, 64])
def test_long_rings_of_any_size_lie_within_the_bound(capacity: int) -> None:
    o = Options(b=1, t=1, io="bf16", h=1, g=1, p=9, n=40, gentle=True)
    check_steps(kernel, o, capacity, True, tokens=capacity + 4)


def test_outputs_that_are_not_given_are_made() -> None:
    o = Options(t=1, io="bf16")
    (given, ring), (case, other) = ((cases.draw(o, padding=False), rings.ring_of(o, 3)) for _ in range(2))
    y = case.call(kernel.ssd_buffered_step, ring=other, out=None)
    assert torch.equal(y, given.call(kernel.ssd_buffered_step, ring=ring))
    assert y.dtype == case.x.dtype


@pytest.mark.parametrize("output_only", [True, False])
def test_entries_beyond_2_to_the_31_elements_are_written_and_read(output_only: bool) -> None:
    o = Options(b=1, t=1, io="bf16", g=1, h=1, p=5, n=6, spare=0)
    (near, ring), (case, other) = ((cases.draw(o, padding=False), rings.ring_of(o, 4)) for _ in range(2))
    other = replace(other, x=far(other.x, 1), B=far(other.B, 1))
    for _ in range(6):
        for drawn, of in ((near, ring), (case, other)):
            drawn.call(kernel.ssd_buffered_step, ring=of, output_only=output_only)
            cursors.commit_step(of.origin, of.held, capacity=4, rows=1, slots=drawn.slots)
        assert torch.equal(case.S, near.S)
        assert torch.equal(case.out, near.out)


@pytest.mark.parametrize("output_only", [True, False])
@pytest.mark.parametrize(("p", "block_p", "program_p"), [(50, 16, 16), (50, 16, 50), (80, 16, 32), (50, 64, 64)])
def test_every_split_of_the_channels_lies_within_the_bound(p: int, block_p: int, program_p: int, output_only: bool) -> None:
    """Tiles that end inside the channels and beyond them, and a program whose last tile holds none."""
    o = Options(b=2, t=1, p=p, io="bf16", z=True, D="channel")
    check_steps(kernel, o, 2, output_only, 4, block_p=block_p, program_p=program_p)


def check_strong(module: ModuleType, output_only: bool, weak: bool) -> None:
    """The new token's decay weak or strong as well, behind strong ones."""
    case, ring, S = rings.strong(Options(b=2, t=1, io="bf16", p=33, n=40), 16, 15)
    if weak:
        case.dt /= 32
    step, x, B = (cases.doubles(a)[:, 0] for a in (case.dt, case.x, case.B))
    grown = np.exp(step * cases.doubles(case.A))[..., None, None] * S
    case.call(module.ssd_buffered_step, ring=ring, output_only=output_only)
    entry = np.einsum("bh,bhp,bhn->bhpn", step, x, B.repeat(case.options.h // case.options.g, axis=1))
    rings.assert_close_to(case.S[case.slots.long()], grown + entry)


@pytest.mark.parametrize("weak", [True, False])
@pytest.mark.parametrize("output_only", [True, False])
def test_a_flush_keeps_the_bits_of_fp32_however_strong_the_decay(output_only: bool, weak: bool) -> None:
    check_strong(kernel, output_only, weak)


CUT = {"block_p": 16, "program_p": 32}


def check_cut(module: ModuleType) -> None:
    """Heads of which some are cut into a program for each tile: the bytes of the formula, the bits of whole heads."""
    o, found = Options(b=2, t=1, h=2, g=1, p=48, io="bf16"), []
    for whole in (8, 5, 0):
        for held in (2, 4):
            check_bytes(module, o, held, True, **CUT, whole=whole)
        case, ring = cases.draw(o), rings.ring_of(replace(o, poison=0.25), 5)
        ring.held.copy_(torch.tensor([4, 2]).repeat(len(ring.held))[: len(ring.held)])
        case.call(module.ssd_buffered_step, ring=ring, **CUT, whole=whole)
        found.append((case.out, case.S, ring.x, ring.dt, ring.B))
    for other in found[1:]:
        assert all(cases.untouched(a, b) for a, b in zip(found[0], other, strict=True))


def test_heads_that_are_cut_have_the_bits_and_bytes_of_whole_ones() -> None:
    check_cut(kernel)


@pytest.mark.parametrize(
    ("programs", "each"), [(1, 4), (1280, 4), (1536, 5), (1583, 2), (1584, 4), (5120, 4), (6144, 5), (20480, 4)]
)
def test_heads_are_cut_to_fill_the_first_round_or_to_be_the_last(programs: int, each: int) -> None:
    whole = kernel.whole_programs(programs, each)
    assert 0 <= whole <= programs
    cut = (programs - whole) * each
    assert cut <= kernel.RESIDENT
    assert programs > kernel.RESIDENT or whole + cut <= kernel.RESIDENT


def test_tiles_take_two_warps_where_more_than_twelve_a_multiprocessor_would_come() -> None:
    """Of 80 channels five each: 316 heads of rows are 1580 of the 1584 that 132 multiprocessors hold."""
    assert kernel.tile(316, 80, 128, True) == (16, 16, 1)
    assert kernel.tile(317, 80, 128, True) == (16, 16, 2)


@pytest.mark.parametrize("output_only", [True, False])
@pytest.mark.parametrize("capacity", [1, 3])
def test_integers_come_out_exactly(capacity: int, output_only: bool) -> None:
    check_exact(kernel, Options(t=7, p=3, n=5), capacity, output_only)


@pytest.mark.parametrize("output_only", [True, False])
@pytest.mark.parametrize("held", [0, 3, 4])
@pytest.mark.parametrize("o", [Options(b=2, t=1, h=2, z=True), Options(b=1, t=1, io="bf16", g=1, p=33)], ids=str)
def test_a_token_moves_the_bytes_of_the_formula(o: Options, held: int, output_only: bool) -> None:
    check_bytes(kernel, o, held, output_only)
    check_bytes(kernel, o, held, output_only, block_p=16, program_p=48)
    check_bytes(kernel, o, held, output_only, block_p=32)


FAULTS = [
    ("full, kept = (count + 1 == CAPACITY) & real", "full, kept = count + 1 == CAPACITY", None),
    ("full, kept = (count + 1 == CAPACITY) & real", "full, kept = (count == CAPACITY) & real", None),
    ("(count + 1 < CAPACITY) & real", "(count < CAPACITY) & real", None),
    ("(count + 1 < CAPACITY) & real", "count + 1 < CAPACITY", None),
    ("place(first + count, CAPACITY)", "place(first, CAPACITY)", None),
    ("past, new = e < count, e == count", "past, new = e < count, e > count", None),
    ("past, new = e < count,", "past, new = e < count - 1,", None),
    ("place(first + e, CAPACITY)", "place(first + e + 1, CAPACITY)", None),
    ("tl.where(new, at_B_t, at_B + at * stride_ring.B.l)", "at_B + at * stride_ring.B.l", None),
    ("tl.where(new, at_x_t, at_x + at * stride_ring.x.l)", "at_x + at * stride_ring.x.l", None),
    ("seen = past | (new & real)", "seen = past | new", None),
    ("seen = past | (new & real)", "seen = past", None),
    ("steps = tl.where(new, step, steps)", "steps = tl.where(new, decay, steps)", None),
    ("y_t = tl.exp(G) *", "y_t =", None),
    ("tl.exp(since) * steps", "tl.exp(since)", None),
    ("tl.exp(since) * steps", "steps", None),
    ("place(first + e + 1, CAPACITY)", "place(first + e, CAPACITY)", None),
    ("mask=e + 1 < count", "mask=e + 1 <= count", None),
    ("tl.where(e + 1 == count, step, behind)", "behind", None),
    ("axis=0, reverse=True)", "axis=0)", None),
    ("(weights * scores)[:, None]", "weights[:, None]", None),
    ("state * C_run[:, None, :]", "state", None),
    ("following * C_n[None, :]", "before * C_n[None, :]", None),
    ("dot_onto(tl.exp(G) * before,", "dot_onto(before,", None),
    ("tl.trans(weights[:, None] * wide)", "tl.trans((weights[:, None] * wide).to(x_e.dtype).to(tl.float32))", None),
    ("tl.permute(state, (1, 0, 2))", "state", None),
    ("in_n[None, :] & full", "in_n[None, :]", None),
    ("if h % HEADS_PER_GROUP == 0:", "if h >= 0:", None),
    ("if kept & (begin == 0):", "if kept:", None),
    ("if kept & (begin == 0):", "if begin == 0:", None),
    ("x_t, mask=in_p & kept)", "x_t, mask=in_p)", None),
    ("g = h // HEADS_PER_GROUP", "g = h * 0", None),
    ("p = tile * BLOCK_P + tl.arange(0, BLOCK_P)", "p = tl.arange(0, BLOCK_P)", "_issue_x"),
    ("p = tile * BLOCK_P + tl.arange(0, BLOCK_P)", "p = tl.arange(0, BLOCK_P)", "_load_x"),
    ("early = load_runs(S, tile * BLOCK_P + lane % BLOCK_P,", "early = load_runs(S, lane % BLOCK_P,", None),
    ("behind_p = (tile + 1) * BLOCK_P", "behind_p = tile * BLOCK_P", None),
    ("item % PARTS * TILES + cut % TILES", "item % PARTS * TILES", None),
    ("item % PARTS * TILES + cut % TILES", "cut % TILES", None),
    ("tl.minimum(index, whole) + cut // TILES", "tl.minimum(index, whole) + cut // (2 * TILES)", None),
    ("tl.where(index < whole, begin + TILES, begin + 1)", "begin + TILES", None),
    ("tl.where(index < whole, begin + TILES, begin + 1)", "begin + 1", None),
    ("P % (TILES * BLOCK_P) == 0", "P % BLOCK_P == 0", None),
    ("y_t *= silu(gate)", "y_t *= gate", None),
    ("y_t += skip * x_t", "y_t += x_t", None),
    ("store(at_tile, following.to(", "store(at_tile, following.to(tl.bfloat16).to(", None),
    ("if full or not OUTPUT_ONLY:", "if not full or not OUTPUT_ONLY:", None),
    ("at >= CAPACITY, at - CAPACITY, at)", "at >= CAPACITY, at - CAPACITY + 1, at)", "place"),
]  # fmt: skip


def check_all(module: ModuleType) -> None:
    check_bytes(module, Options(b=1, t=1, g=2), 2, True, block_p=16)
    check_bytes(module, Options(b=1, t=1, h=2, g=1, p=48), 2, True, block_p=16, program_p=32)
    for output_only in (True, False):
        check_steps(module, STEPS[1][0], 4, output_only, 6, block_p=16)
    check_steps(module, STEPS[0][0], 3, True, 4, block_p=16)
    check_steps(module, replace(STEPS[1][0], n=40, p=48), 4, True, 6, block_p=16, program_p=32)
    check_steps(module, Options(b=1, t=1, io="bf16", h=1, g=1, p=3, n=40, gentle=True), 19, True, 30)
    check_cut(module)


@pytest.mark.parametrize(("old", "new", "at"), FAULTS, ids=[new for _, new, _ in FAULTS])
def test_planted_fault_is_caught(old: str, new: str, at: str | None) -> None:
    mutant = mutated(kernel, old, new, at=at)
    with pytest.raises(AssertionError):
        check_all(mutant)


def test_planted_sums_that_cancel_are_caught_by_strong_decays() -> None:
    total = "tl.exp(tl.sum(steps * decay, axis=0) - tl.cumsum(steps * decay, axis=0)) * steps"
    for weak in (True, False):
        with pytest.raises(AssertionError, match="of the largest element"):
            check_strong(mutated(kernel, "tl.exp(since) * steps", total), True, weak)
