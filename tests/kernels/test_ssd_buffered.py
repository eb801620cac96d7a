"""SSD's replay buffer beside the oracle: windows in a row, the ring, the cursors, the flush."""

from dataclasses import replace
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from conformance.interpreter.memory import watch
from ssmspec_kernels import cursors, ssd_flush
from ssmspec_kernels import ssd_buffered as kernel
from ssmspec_ref import ssd
from ssmspec_ref.backtrack.replay_buffer import ReplayBuffer
from ssmspec_ref.errors import ParameterError, PrecisionError, RingOverflow, ShapeMismatch
from tests.kernels import ssd_cases as cases
from tests.kernels import ssd_rings as rings
from tests.kernels.mutants import mutated
from tests.kernels.ssd_cases import Options
from tests.kernels.tensors import far

WINDOWS = [
    (Options(z=True, D="channel", poison=7.0), 8),
    (Options(io="bf16", t=4, g=1, p=35, limit=(0.05, 0.8), seed=1), 11),
    (Options(io="bf16", t=2, gentle=True, h=2, p=9, n=18, z=True, seed=2), 5),
    (Options(state="bf16", io="fp16", t=1, g=1, h=3, D="", seed=4, poison=-2.0), 2),
    (Options(b=2, state="fp16", io="bf16", t=5, h=2, p=5, softplus=False, bias=False, gentle=True, seed=5), 39),
]


def advanced(rng: np.random.Generator, n: int, t: int, rows: int) -> tuple[Any, Any]:
    """Lengths, shorter or 0 in every third window, and how many tokens are accepted: all in the second."""
    lengths = rng.integers(0, t + 1, rows) if n % 3 == 2 else np.full(rows, t)
    return lengths, lengths if n == 1 else rng.integers(np.minimum(1, lengths), lengths + 1)


def check_windows(module: ModuleType, o: Options, capacity: int, windows: int = 6, **tiles: int) -> None:
    """Outputs, checkpoints and cursors beside the oracle, window after window; all else of pool and ring as it was."""
    rng, first, ring = np.random.default_rng(o.seed), cases.draw(o), rings.ring_of(o, capacity, o.seed)
    oracles = [rings.Oracle(o, first.state()[i : i + 1], first.params()) for i in range(len(first.rows))]
    before, rule = rings.others(first, ring), ReplayBuffer(capacity, o.t)
    for n in range(windows):
        case = rings.window_case(first, o, n)
        lengths, took = (torch.from_numpy(x) for x in advanced(rng, n, o.t, o.b))
        for row in range(o.b):
            for x in (case.x, case.dt, case.B, case.C):
                x[row, lengths[row] :] = float("nan")
        states, outputs, inputs = case.S.clone(), case.out.clone(), case.before(origin=ring.origin, held=ring.held)
        appended = rings.Appended(case, ring, lengths)
        case.call(module.ssd_buffered, ring=ring, lengths=lengths, **tiles)
        appended.check()
        del inputs["S"], inputs["out"]
        cases.unchanged(inputs)
        cursors.commit_window(ring.origin, ring.held, took, capacity=capacity, window=o.t, slots=case.slots, lengths=lengths)
        for i, (oracle, row) in enumerate(zip(oracles, case.rows, strict=True)):
            length, slot = int(lengths[row]), int(case.slots[row])
            assert not case.out[row, length:].any()
            window = rings.row(case, i, length) if length else None
            if window is not None:
                cases.assert_within(f"y {n} {row}", case.out[row : row + 1, :length], oracle.read(window)[0])
            if window is not None and bool(rule.due(np.array(oracle.held))) and oracle.held:
                cases.assert_within(f"S {n} {row}", case.S[slot][None], oracle.flush())
                if o.state != "fp32":
                    oracle.start_from(case.S[slot][None])
            else:
                assert cases.untouched(states[slot], case.S[slot])
            if window is not None:
                oracle.take(window, int(took[row]))
            assert int(ring.held[slot]) == oracle.held <= capacity - o.t
        padding = case.slots < 0
        assert cases.untouched(case.out[padding], outputs[padding])
    rings.assert_others_as_before(before, first, ring)


def check_exact(module: ModuleType, o: Options, capacity: int) -> None:
    """Tokens of one exact window, t at a time, all accepted: outputs and checkpoint with ==."""
    case, window, params, S = cases.exact(o)
    y, _ = ssd.scan(S, window, params)
    ring, t = rings.ring_of(o, capacity), 2
    for start in range(0, o.t, t):
        cut = slice(start, start + t)
        tokens = {name: getattr(case, name)[:, cut] for name in cases.TOKENS}
        module.ssd_buffered(
            S=case.S, ring=ring, A=case.A, **tokens, slots=case.slots, out=case.out[:, cut],
            **{**case.extra, "z": case.extra["z"][:, cut]},
        )  # fmt: skip
        cursors.commit_window(ring.origin, ring.held, torch.full((o.b,), t), capacity=capacity, window=t, slots=case.slots)
    assert torch.equal(case.out, torch.from_numpy(y).to(case.out.dtype))
    folded = o.t - int(ring.held[case.slots[0]])
    _, states = ssd.states(S, window, params)
    assert np.array_equal(cases.doubles(case.S)[case.slots.numpy()], states[:, folded - 1])


def check_bytes(module: ModuleType, o: Options, held: int, **tiles: int) -> None:
    case, ring = cases.draw(o, padding=False), rings.ring_of(replace(o, poison=0.25), 9)
    ring.held.fill_(held)
    named = {name: getattr(case, name) for name in ("S", "x", "dt", "B", "C", "out")}
    params = {name: x for name, x in case.extra.items() if name != "z"} | {"A": case.A, "slots": case.slots}
    gate = {"z": case.extra["z"]} if o.z else {}
    with watch(**named, **params, **gate, **rings.tensors(ring)) as seen:
        case.call(module.ssd_buffered, ring=ring, **tiles)
    left_out = sum(seen.loaded(name).distinct for name in (*params, "origin", "held"))
    sizes = {"io": case.x.element_size(), "z": o.z}
    expected = module.traffic_bytes([held] * o.b, o.t, o.h, o.p, o.n, o.g, capacity=9, window=o.t, **sizes)
    assert seen.distinct_bytes() - left_out == expected
    states = o.b * o.h * o.p * o.n * 4
    assert seen.loaded("S").requested == states
    assert seen.stored("S").requested == (states if held + 2 * o.t > 9 else 0)
    assert seen.stored("ring.B").requested == o.b * o.t * o.g * o.n * sizes["io"]
    assert seen.outside == seen.races == []


@pytest.mark.parametrize(("o", "capacity"), WINDOWS, ids=str)
def test_windows_in_a_row_equal_plain_decoding_within_the_bound(o: Options, capacity: int) -> None:
    check_windows(kernel, o, capacity)
    if o.io == "bf16":
        check_windows(kernel, o, capacity, short=False)


SPLITS = [(16, 16, 1, False, False), (16, 48, 2, True, False), (32, 64, 2, False, False)]
SHORT_SPLITS = [(16, 16, 1, False, True), (16, 48, 1, False, True), (16, 80, 1, True, True), (16, 640, 1, False, True)]


@pytest.mark.parametrize("tiles", [*SPLITS, *SHORT_SPLITS], ids=str)
def test_every_split_of_the_channels_lies_within_the_bound(tiles: tuple[int, int, int, bool, bool]) -> None:
    block, program, heads, apart, short = tiles
    o = Options(b=2, t=3, p=50, n=35, h=4, io="bf16", z=True, D="channel")
    check_windows(kernel, o, 7, 4, block_p=block, program_p=program, heads=heads, apart=apart, short=short)


@pytest.mark.parametrize("t", [1, 8])
def test_the_shortest_and_the_longest_of_the_short_windows_lie_within_the_bound(t: int) -> None:
    check_windows(kernel, Options(b=2, t=t, io="bf16", h=2, g=1, p=18, n=40), 19, short=True)


@pytest.mark.interpreter  # a tile that one warp's registers do not hold: what it names, not how fast
def test_wide_states_lie_within_the_bound_in_the_short_windows_where_they_are_asked_for() -> None:
    check_windows(kernel, Options(b=1, t=2, io="bf16", h=1, g=1, p=3, n=260), 5, 4, short=True)


@pytest.mark.parametrize("short", [True, False])
def test_tokens_beyond_2_to_the_31_elements_are_read(short: bool) -> None:
    o = Options(b=1, t=3, io="bf16", g=1, h=1, p=5, n=6)
    (near, ring), (case, other) = ((cases.draw(o, padding=False), rings.ring_of(o, 7)) for _ in range(2))
    tokens = {name: far(getattr(case, name), 1) for name in cases.TOKENS}
    near.call(kernel.ssd_buffered, ring=ring, short=short)
    case.call(kernel.ssd_buffered, ring=other, short=short, **tokens)
    assert torch.equal(case.out, near.out)
    for name, x in rings.tensors(ring).items():
        assert cases.untouched(x, rings.tensors(other)[name])


def check_strong(module: ModuleType, short: bool) -> None:
    case, ring, S = rings.strong(Options(b=2, t=4, io="bf16", p=33, n=40), 16, 12)
    case.call(module.ssd_buffered, ring=ring, short=short)
    rings.assert_close_to(case.S[case.slots.long()], S)


@pytest.mark.parametrize("short", [True, False])
def test_a_flush_keeps_the_bits_of_fp32_however_strong_the_decay(short: bool) -> None:
    check_strong(kernel, short)


@pytest.mark.parametrize(("capacity", "held"), [(16, 12), (40, 37)])
def test_a_flush_by_hand_keeps_the_bits_of_fp32_however_strong_the_decay(capacity: int, held: int) -> None:
    check_strong_flush(ssd_flush, capacity, held)


def check_strong_flush(module: ModuleType, capacity: int, held: int) -> None:
    case, ring, S = rings.strong(Options(b=2, t=4, io="bf16", p=33, n=40), capacity, held)
    module.ssd_flush(case.S, ring, case.A, 2, slots=case.slots)
    rings.assert_close_to(case.S[case.slots.long()], S)


@pytest.mark.parametrize("capacity", [4, 5, 7])
def test_integers_come_out_exactly(capacity: int) -> None:
    check_exact(kernel, Options(t=6, p=3, n=5), capacity)


def test_an_fp32_checkpoint_is_kept_as_fp32_after_many_flushes() -> None:
    """bf16 activations: neither the checkpoint nor what scales B passes through bf16."""
    check_windows(kernel, Options(b=2, t=2, io="bf16", gentle=True, h=2), 4, windows=5)


@pytest.mark.parametrize(("t", "capacity"), [(3, 7), (18, 37)])
def test_a_flush_by_hand_is_the_state_after_the_history(t: int, capacity: int) -> None:
    """A history of one block of 16 entries, and one of two."""
    check_flush(ssd_flush, t, capacity)


def check_flush(module: ModuleType, t: int = 3, capacity: int = 7) -> None:
    o = Options(t=t, io="bf16", gentle=True, p=35, n=18)
    case, ring = cases.draw(o), rings.ring_of(o, capacity)
    _, S = case.bound(order="output_only")
    before = rings.others(case, ring)
    case.call(kernel.ssd_buffered, ring=ring)
    cursors.commit_window(ring.origin, ring.held, torch.full((o.b,), t), capacity=capacity, window=t, slots=case.slots)
    start = ring.origin.clone()
    module.ssd_flush(case.S, ring, case.A, o.b, slots=case.slots)
    cases.assert_within("S", case.S, S, case.named)
    cursors.commit_flush(ring.origin, ring.held, capacity=capacity, rows=o.b, slots=case.slots)
    own = case.slots[case.slots >= 0].long()
    assert not ring.held[own].any()
    assert torch.equal(ring.origin[own], (start[own] + t) % capacity)
    rings.assert_others_as_before(before, case, ring)


def test_a_flush_by_hand_moves_the_bytes_of_the_formula() -> None:
    o = Options(b=2, t=1, io="bf16")
    case, ring = cases.draw(o, padding=False), rings.ring_of(replace(o, poison=0.25), 5)
    ring.held.fill_(4)
    with watch(S=case.S, **rings.tensors(ring), slots=case.slots, A=case.A) as seen:
        ssd_flush.ssd_flush(case.S, ring, case.A, o.b, slots=case.slots)
    left_out = sum(seen.loaded(name).distinct for name in ("slots", "origin", "held", "A"))
    assert seen.distinct_bytes() - left_out == ssd_flush.traffic_bytes([4] * o.b, o.h, o.p, o.n, o.g)
    assert seen.outside == seen.races == []


@pytest.mark.parametrize("held", [0, 3, 5])
@pytest.mark.parametrize("o", [Options(b=2, h=2, z=True), Options(b=1, t=2, io="bf16", g=1, p=33)], ids=str)
def test_a_window_moves_the_bytes_of_the_formula_and_no_program_reads_what_another_appends(o: Options, held: int) -> None:
    check_bytes(kernel, o, held)
    check_bytes(kernel, o, held, block_p=16, program_p=16, apart=False, short=False)
    check_bytes(kernel, o, held, block_p=16, program_p=48, heads=o.h // o.g, apart=True, short=False)
    check_bytes(kernel, o, held, block_p=16, program_p=32, apart=True, short=True)
    check_bytes(kernel, o, held, block_p=16, program_p=16, apart=False, short=True)


REFUSED: list[tuple[int, dict[str, Any], type[Exception], str]] = [
    (5, {}, RingOverflow, "a ring of 5 cannot hold the windows of 3 tokens"),
    (8, {"window": 2}, ParameterError, "the window holds 3 tokens, but 2 are declared"),
    (8, {"window": 5}, RingOverflow, "at least 10"),
    (8, {"B": lambda c: c.B.bfloat16()}, PrecisionError, "one type is needed"),
    (8, {"heads": 3}, ParameterError, "3 heads a program do not divide the 2 heads of a group"),
    (8, {"heads": 2, "short": True}, ParameterError, "2 heads a program, 1 warps and 3 tokens; the kernel for short"),
    (8, {"block_p": 32, "short": True}, ParameterError, "32 channels a tile"),
    (18, {"tokens": 9, "short": True}, ParameterError, "1 warps and 9 tokens; the kernel for short windows takes 16, one"),
    (8, {"lengths": torch.ones(3)}, PrecisionError, "lengths came as"),
    (8, {"x": lambda c: c.x[..., :5]}, ShapeMismatch, "axis p has size"),
    (8, {"ring": lambda r: replace(r, B=r.B.bfloat16())}, PrecisionError, "ring.B bfloat16"),
    (8, {"ring": lambda r: replace(r, x=r.x[:, :7])}, ShapeMismatch, "axis l has size"),
    (8, {"ring": lambda r: replace(r, dt=r.dt.bfloat16())}, PrecisionError, "ring.dt came as"),
    (8, {"ring": lambda r: replace(r, held=r.held[:-1])}, ShapeMismatch, "axis s has size"),
]


@pytest.mark.parametrize(("capacity", "changes", "error", "message"), REFUSED)
def test_a_wrong_argument_raises_its_error_and_nothing_is_written(
    capacity: int, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    o = Options(t=changes.get("tokens", 3))
    case, ring = cases.draw(o), rings.ring_of(o, capacity)
    before = case.before(**rings.tensors(ring))
    named: dict[str, Any] = {"ring": ring, "slots": case.slots, "out": case.out}
    named |= {name: getattr(case, name) for name in ("S", "A", *cases.TOKENS)}
    for name, change in changes.items():
        if name == "tokens":
            continue
        named[name] = change(ring if name == "ring" else case) if callable(change) else change
    with pytest.raises(error, match=message):
        kernel.ssd_buffered(**named)
    cases.unchanged(before)


def test_a_flush_by_hand_refuses_what_it_cannot_do() -> None:
    case, ring = cases.draw(Options()), rings.ring_of(Options(), 8)
    before = case.before(**rings.tensors(ring))
    with pytest.raises(ParameterError, match="rows came as 0"):
        ssd_flush.ssd_flush(case.S, ring, case.A, 0)
    with pytest.raises(ParameterError, match="rows came as 2"):
        ssd_flush.ssd_flush(case.S, ring, case.A, 2, slots=case.slots)
    with pytest.raises(PrecisionError, match=r"ring\.B bfloat16"):
        ssd_flush.ssd_flush(case.S, replace(ring, B=ring.B.bfloat16()), case.A, 3, slots=case.slots)
    with pytest.raises(ParameterError, match="the pool holds 6 states for 7 rows"):
        ssd_flush.ssd_flush(case.S, ring, case.A, 7)
    cases.unchanged(before)


RING = "ssd_ring.py"
FAULTS = [
    ("(length > 0) & (count + 2 * WINDOW > CAPACITY)", "(length > 0) & (count + WINDOW > CAPACITY)", None),
    ("(length > 0) & (count + 2 * WINDOW > CAPACITY)", "count + 2 * WINDOW > CAPACITY", None),
    ("(due == (ROWS == \"due\"))", "(ROWS == \"open\")", None),
    ("if due:", "if due | (ROWS == \"all\"):", None),
    ("G_q[:, None] - pick(G_e, here)[None, :]", "G_q[:, None]", None),
    ("tl.exp(G_q)[:, None] *", "1.0 *", None),
    ("place(first + e, CAPACITY)", "place(first + e + 1, CAPACITY)", None),
    ("(i >= 0) & (i < length), t < length", "(i >= 0) & (i < T), t < T", None),
    ("(i[None, :] <= t[:, None])", "(i[None, :] < t[:, None])", None),
    ("dot_left(W, x_e)", "dot_left(0.0 * W, x_e)", None),
    ("tl.where(here[None, :] & past[:, None], lds, 0.0)", "tl.where(here[None, :], lds, 0.0)", None),
    (") & past[None, :]).to(tl.bfloat16)", ")).to(tl.bfloat16)", None),
    ("if tl.program_id(0) == 0:", "if tl.program_id(0) >= 0:", None),
    ("if h_0 % HEADS_PER_GROUP == 0:", "if h_0 >= 0:", None),
    ("in_n, in_h, heads = n < N, k < HEADS, h_0 + k", "in_n, in_h, heads = n < N, k <= HEADS, h_0 + k", None),
    ("x_e, mask=new[:, None] & in_p[None, :]", "x_e, mask=in_p[None, :]", None),
    ("state.to(S.dtype.element_ty)", "state.to(tl.bfloat16).to(S.dtype.element_ty)", None),
    ("tl.exp(total) * state", "state", None),
    ("weight = tl.exp(pick(since, here)) * step", "weight = step", None),
    ("weight[:, None] * x_e.to(tl.float32)", "(weight[:, None] * x_e.to(tl.float32)).to(x_e.dtype).to(tl.float32)", None),
    ("p_t = p + tile * BLOCK_P", "p_t = p", None),
    ("h, here = h_0 + head, k == head", "h, here = h_0 + head, k == 0", None),
    ("g = h_0 // HEADS_PER_GROUP", "g = h_0 * 0", None),
    ("W + tl.sum(tl.where(here, skips, 0.0), axis=0)", "W", None),
    ("at >= CAPACITY, at - CAPACITY, at)", "at >= CAPACITY, at - CAPACITY + 1, at)", RING),
    ("tl.where(new, at_B_t + row * stride_B_t,", "tl.where(new, at_B + at * stride_ring_B_l,", None),
    ("tl.where(new, at_x_t + row * stride_x_t,", "tl.where(new, at_x + at * stride_ring_x_l,", None),
    ("load_at(rows_x, p_t, past | new, in_p)", "load_at(rows_x, p_t, new, in_p)", None),
    ("mask=in_rows[:, None] & in_cols[None, :], other=0.0)", "mask=in_cols[None, :], other=0.0)", RING),
]  # fmt: skip


def check_all(module: ModuleType) -> None:
    check_bytes(module, Options(b=1, t=2, h=4, g=2), 3, block_p=16, program_p=16)
    check_bytes(module, Options(b=1, t=2, h=6, g=2), 3, block_p=16, program_p=32, heads=3)
    o = replace(WINDOWS[2][0], b=2, h=4, p=18)
    check_windows(module, o, 5, windows=4, block_p=16, program_p=32, heads=2, short=False)
    check_windows(module, WINDOWS[0][0], 8, windows=4, apart=True)
    check_windows(module, Options(b=1, io="bf16", t=9, h=1, g=1, p=3, n=5, gentle=True), 36, windows=5)


@pytest.mark.parametrize(("old", "new", "file"), FAULTS, ids=[new for _, new, _ in FAULTS])
def test_planted_fault_is_caught(old: str, new: str, file: str | None) -> None:
    mutant = mutated(kernel, old, new, file=file)
    with pytest.raises(AssertionError):
        check_all(mutant)


CANCELLING = "tl.exp(tl.sum(step * decay, axis=0) - tl.cumsum(step * decay, axis=0))"


def test_planted_sums_that_cancel_are_caught_by_strong_decays() -> None:
    with pytest.raises(AssertionError, match="of the largest element"):
        check_strong(mutated(kernel, "tl.exp(since)", CANCELLING, file=DUE), True)
    cancelling = "tl.exp(since + tl.cumsum(step * decay, axis=0) - step * decay)"
    with pytest.raises(AssertionError, match="of the largest element"):
        check_strong_flush(
            mutated(ssd_flush, "tl.exp(since + tl.cumsum(behind * decay, axis=0))", cancelling, file=RING), 16, 12
        )


def test_a_planted_entry_of_the_block_before_is_caught_by_a_history_of_two_blocks() -> None:
    mutant = mutated(ssd_flush, "(l + 1 < count - start)", "(l + 1 < count)", file=RING)
    with pytest.raises(AssertionError):
        check_flush(mutant, 18, 37)


SHORT, OPEN, DUE, WALK = "ssd_buffered_short.py", "ssd_open_run.py", "ssd_due_run.py", "ssd_walk.py"
HALVES, FRAGMENTS = "ssd_tiles.py", "fragments.py"
SHORT_FAULTS = [
    ("(length > 0) & (count + 2 * WINDOW > CAPACITY)", "(length > 0) & (count + WINDOW > CAPACITY)", SHORT),
    ("(length > 0) & (count + 2 * WINDOW > CAPACITY)", "count + 2 * WINDOW > CAPACITY", SHORT),
    ("to(tl.int32) + 2 * WINDOW > CAPACITY", "to(tl.int32) + WINDOW > CAPACITY", SHORT),
    ("due = (length > 0) & (tl.load", "due = (length >= 0) & (tl.load", SHORT),
    ("mine = live & (due == DUE)", "mine = live", SHORT),
    ("rank == begin // (GROUPS * of_group) + 1", "rank == 1", SHORT),
    ("(begin // of_group % GROUPS)", "(begin % GROUPS)", SHORT),
    (".to(tl.int64), begin % of_group", ".to(tl.int64), 0 * begin", SHORT),
    ("tl.max(rank, axis=0) * (GROUPS * of_group)", "tl.max(rank, axis=0) * of_group", SHORT),
    ("tiles, tl.num_programs(0) * run, num", "tiles, tl.num_programs(0) * run + 1, num", SHORT),
    ("(P % BLOCK_P == 0) &", "(P > 0) &", SHORT),
    (" & (N == 2 * HALF_N)", "", SHORT),
    ("place(first + e, CAPACITY), i.to", "place(first + e + 1, CAPACITY), i.to", OPEN),
    ("(i >= 0) & (i < length), t < length", "(i >= 0) & (i < T), t < T", OPEN),
    ("(i[:, None] <= t[None, :])", "(i[:, None] < t[None, :])", OPEN),
    ("tl.where(i < 0, start + place(first + e, CAPACITY) * stride,", "tl.where(i < 0, window,", OPEN),
    ("window + i.to(tl.int64) * stride_t)", "start + place(first + e, CAPACITY) * stride)", OPEN),
    ("return load_operand(rows, n, (i < length)[:, None]", "return load_operand(rows, n, (i < 8)[:, None]", OPEN),
    ("mask = (t < length)[:, None] &", "mask = (t < length - 1)[:, None] &", OPEN),
    ("tl.where(real, behind + t, 0)", "tl.where(real, t, 0)", OPEN),
    ("mask=real[:, None] & in_n[None, :]", "mask=in_n[None, :]", OPEN),
    ("if begin == 0:", "if begin >= 0:", OPEN),
    ("tl.where(new, x + tok * at_x[1],", "tl.where(new, ring_x + at * at_ring_x[1],", OPEN),
    ("rows_h.to(tl.int64), p, live, in_p)", "rows_h.to(tl.int64), p, new, in_p)", OPEN),
    ("scores += dot_inputs(", "scores = dot_inputs(", OPEN),
    ("step, mask=new & (p_0 == 0))", "step, mask=new)", OPEN),
    ("G_j[None, :] - G_i[:, None]", "G_j[None, :]", WALK),
    ("weights(G_e, G_t, step,", "weights(G_e, G_t, step * step,", OPEN),
    ("if (p_0 == 0) | (index == begin):", "if p_0 == 0:", OPEN),
    ("if (p_0 == 0) | (index == begin):", "if index == begin:", OPEN),
    ("ahead, more = h + 1,", "ahead, more = h,", OPEN),
    ("i[:, None] == t[None, :]\n", "i[:, None] == t[None, :] - 1\n", OPEN),
    ("growth[None, :] *", "1.0 *", OPEN),
    ("held(right, HALF_N), C_right)", "held(left, HALF_N), C_right)", OPEN),
    ("(hi + (mid + lo))", "(hi + mid)", OPEN),
    ("return dot_onto(hi, x, y), mid, lo", "return hi, mid, lo", OPEN),
    ("W + skip, W)", "W, W)", WALK),
    ("x_e, mask=new[:, None] & in_p[None, :]", "x_e, mask=in_p[None, :]", OPEN),
    ("past, follows, new = e < count,", "past, follows, new = e < count - 1,", DUE),
    ("e + 1 < count", "e + 1 <= count", DUE),
    ("place(first + e + 1, CAPACITY)", "place(first + e, CAPACITY)", DUE),
    ("axis=0, reverse=True)", "axis=0)", DUE),
    ("tl.exp(since) * step", "step", DUE),
    ("tl.exp(tl.sum(step * decay, axis=0))", "1.0", DUE),
    ("first + count + i, 0)", "first + i, 0)", DUE),
    ("(i[:, None] <= t[None, :])", "(i[:, None] < t[None, :])", DUE),
    ("i[:, None] == t[None, :]\n", "i[:, None] == t[None, :] - 1\n", DUE),
    ("if (p_0 == 0) | (index == begin):", "if p_0 == 0:", DUE),
    ("if (p_0 == 0) | (index == begin):", "if index == begin:", DUE),
    ("ahead, more = h + 1,", "ahead, more = h,", DUE),
    ("weighted, B_right)", "weighted, B_left)", DUE),
    ("scale * held(right,", "held(right,", DUE),
    ("state, p_0, HALF_N, at_S[2]", "state, p_0, 0, at_S[2]", DUE),
    ("growth[None, :] *", "1.0 *", DUE),
    ("weights(G_s, G_t, own_step,", "weights(G_s, G_t, own_step * own_step,", DUE),
    ("if begin == 0:", "if begin >= 0:", DUE),
    ("own_step, mask=new & (p_0 == 0))", "own_step, mask=new)", DUE),
    ("x_t, mask=new[:, None] & in_p[None, :]", "x_t, mask=in_p[None, :]", DUE),
    ("state.shape[0], HALF_N).to(start", "state.shape[0], HALF_N).to(tl.bfloat16).to(start", HALVES),
    ("(n_0 + n < N) & wanted", "(n_0 + n < N + 1) & wanted", HALVES),
    ("(3, 1, 0, 2, 5, 4, 6)", "(3, 1, 0, 2, 4, 5, 6)", FRAGMENTS),
    ("(0, 1, 3, 2, 4)", "(0, 1, 2, 3, 4)", FRAGMENTS),
    ("ROWS, 4, 2, 2)), (1, 0, 3, 2, 4)), (ROWS, BLOCK_N))", "ROWS, 4, 2, 2)), (1, 0, 2, 3, 4)), (ROWS, BLOCK_N))", FRAGMENTS),
    ("n_0 + (row // ROWS * 16)[:, None]", "(row // ROWS * 16)[:, None]", FRAGMENTS),
]  # fmt: skip


def check_cancelling(module: ModuleType, **tiles: int) -> None:
    """Outputs that are the last bits of the state: two elements cancel but for 2^-20."""
    o = Options(b=1, t=2, h=2, g=1, p=18, n=40, io="bf16", D="", bias=False)
    case, ring = cases.draw(o, padding=False), rings.ring_of(replace(o, poison=0.25), 5)
    case.dt.fill_(-200.0)  # softplus: no step
    for x, first, second in (case.S, 1 + 2.0**-9 + 2.0**-20, 1 + 2.0**-9), (case.C, 1.0, -1.0):
        x.zero_()
        x[..., 3], x[..., 35] = first, second
    case.call(module.ssd_buffered, ring=ring, **tiles)
    assert bool((case.out == 2.0**-20).all())


@pytest.mark.parametrize("short", [True, False])
def test_the_last_bits_of_the_state_reach_the_outputs(short: bool) -> None:
    check_cancelling(kernel, short=short)


def check_short(module: ModuleType) -> None:
    check_cancelling(module, short=True)
    check_bytes(module, Options(b=2, t=2, h=2, g=1, io="bf16"), 6, block_p=16, program_p=16, apart=True, short=True)
    check_bytes(module, Options(b=1, t=2, h=4, g=2, io="bf16"), 3, block_p=16, program_p=16, short=True)
    check_bytes(module, Options(b=1, t=2, h=6, g=2, p=18, io="bf16"), 3, block_p=16, program_p=32, short=True)
    for p, n, program in (40, 32, 32), (16, 40, 16):
        check_bytes(module, Options(b=1, t=2, h=2, g=1, p=p, n=n, io="bf16"), 3, block_p=16, program_p=program, short=True)
    o = replace(WINDOWS[2][0], b=2, h=4, p=18, n=35)
    check_windows(module, o, 5, windows=4, block_p=16, program_p=32, short=True)
    check_windows(module, replace(o, t=3, D="head"), 8, windows=4, program_p=16, apart=True, short=True)
    check_windows(module, replace(o, t=3, D="head"), 8, windows=4, program_p=48, short=True)
    check_windows(module, WINDOWS[0][0], 8, windows=2, short=True)
    check_shared(module)


def check_shared(module: ModuleType) -> None:
    """One or two programs a launch: runs that end within heads, groups and rows, and several of them for a program."""
    short: Any = import_module(f"{module.__package__}.ssd_buffered_short")
    resident = short.DUE, short.OPEN
    short.DUE, short.OPEN = 1, 2
    try:
        check_windows(module, replace(WINDOWS[2][0], b=3, h=4, g=2, p=18, n=35), 5, windows=4, apart=True, short=True)
    finally:
        short.DUE, short.OPEN = resident


def test_few_programs_share_the_tiles_of_many_rows() -> None:
    check_shared(kernel)


@pytest.mark.parametrize(("old", "new", "file"), SHORT_FAULTS, ids=[new for _, new, _ in SHORT_FAULTS])
def test_planted_fault_of_the_short_windows_is_caught(old: str, new: str, file: str) -> None:
    mutant = mutated(kernel, old, new, file=file)
    with pytest.raises(AssertionError):
        check_short(mutant)


FLUSH_FAULTS = [
    ("past, at = l < count", "past, at = l < count - 1"),
    ("tl.sum(ld, axis=0)", "0.0 * tl.sum(ld, axis=0)"),
    ("first, count, p, n,", "first, count - 1, p, n,"),
    ("(h // HEADS_PER_GROUP)", "(h % HEADS_PER_GROUP)"),
    ("in_p, in_n = p < P, n < N", "in_p, in_n = p < P - 1, n < N"),
    ("if slot >= 0:", "if slot > 0:"),
    ("state.to(S.dtype.element_ty)", "state.to(tl.bfloat16).to(S.dtype.element_ty)"),
]


@pytest.mark.parametrize(("old", "new"), FLUSH_FAULTS, ids=[new for _, new in FLUSH_FAULTS])
def test_planted_fault_of_the_flush_by_hand_is_caught(old: str, new: str) -> None:
    mutant = mutated(ssd_flush, old, new)
    with pytest.raises(AssertionError):
        check_flush(mutant)
