"""What SSD's replay buffer is held to: windows in a row, bytes, strong decays, the last bits, the flush."""

from dataclasses import replace
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import torch

from conformance.interpreter.memory import watch
from ssmspec_kernels.shared import cursors
from ssmspec_kernels.ssd.ring import ssd_buffered as kernel
from ssmspec_ref import ssd
from ssmspec_ref.backtrack.replay_buffer import ReplayBuffer
from tests.kernels import ssd_cases as cases
from tests.kernels import ssd_rings as rings
from tests.kernels.ssd_cases import Options

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


def check_bytes(module: ModuleType, o: Options, held: int, window: int | None = None, **tiles: int) -> None:
    longest = window or o.t
    case, ring = cases.draw(o, padding=False), rings.ring_of(replace(o, poison=0.25), 9)
    ring.held.fill_(held)
    named = {name: getattr(case, name) for name in ("S", "x", "dt", "B", "C", "out")}
    params = {name: x for name, x in case.extra.items() if name != "z"} | {"A": case.A, "slots": case.slots}
    gate = {"z": case.extra["z"]} if o.z else {}
    with watch(**named, **params, **gate, **rings.tensors(ring)) as seen:
        case.call(module.ssd_buffered, ring=ring, window=window, **tiles)
    left_out = sum(seen.loaded(name).distinct for name in (*params, "origin", "held"))
    sizes = {"io": case.x.element_size(), "z": o.z}
    expected = module.traffic_bytes([held] * o.b, o.t, o.h, o.p, o.n, o.g, capacity=9, window=longest, **sizes)
    assert seen.distinct_bytes() - left_out == expected
    states = o.b * o.h * o.p * o.n * 4
    assert seen.loaded("S").requested == states
    assert seen.stored("S").requested == (states if held + 2 * longest > 9 else 0)
    assert seen.stored("ring.B").requested == o.b * o.t * o.g * o.n * sizes["io"]
    assert seen.outside == seen.races == []


def check_strong(module: ModuleType, short: bool) -> None:
    case, ring, S = rings.strong(Options(b=2, t=4, io="bf16", p=33, n=40), 16, 12)
    case.call(module.ssd_buffered, ring=ring, short=short)
    rings.assert_close_to(case.S[case.slots.long()], S)


def check_strong_flush(module: ModuleType, capacity: int, held: int) -> None:
    case, ring, S = rings.strong(Options(b=2, t=4, io="bf16", p=33, n=40), capacity, held)
    module.ssd_flush(case.S, ring, case.A, 2, slots=case.slots)
    rings.assert_close_to(case.S[case.slots.long()], S)


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


def check_all(module: ModuleType) -> None:
    check_bytes(module, Options(b=1, t=2, h=4, g=2), 3, block_p=16, program_p=16)
    check_bytes(module, Options(b=1, t=2, h=6, g=2), 3, block_p=16, program_p=32, heads=3)
    o = replace(WINDOWS[2][0], b=2, h=4, p=18)
    check_windows(module, o, 5, windows=4, block_p=16, program_p=32, heads=2, short=False)
    check_windows(module, WINDOWS[0][0], 8, windows=4, apart=True)
    check_windows(module, Options(b=1, io="bf16", t=9, h=1, g=1, p=3, n=5, gentle=True), 36, windows=5)


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
    check_windows(module, replace(o, b=4, t=3), 8, windows=4, short=True, flushed_first=True)
    check_shared(module)


def check_shared(module: ModuleType) -> None:
    """One or two programs a launch: runs that end within heads, groups and rows, and several of them for a program."""
    short: Any = import_module(f"{module.__package__}.ssd_buffered_short")
    resident = short.FLUSHED_PROGRAMS, short.OPEN_PROGRAMS
    short.FLUSHED_PROGRAMS, short.OPEN_PROGRAMS = 1, 2
    try:
        check_windows(module, replace(WINDOWS[2][0], b=3, h=4, g=2, p=18, n=35), 5, windows=4, apart=True, short=True)
    finally:
        short.FLUSHED_PROGRAMS, short.OPEN_PROGRAMS = resident
