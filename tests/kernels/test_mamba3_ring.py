"""Mamba-3's ring: windows after a history, flushes, and cursors that move on, beside the oracle and the scan."""

from types import ModuleType
from typing import Any

import pytest
import torch

from conformance.interpreter.memory import watch
from ssmspec_kernels.mamba3 import mamba3_buffered, mamba3_flush, mamba3_scan
from ssmspec_kernels.mamba3.mamba3_ring import Ring
from ssmspec_kernels.shared.cursors import commit_window
from ssmspec_ref import error_bounds as eb
from ssmspec_ref.records import each
from tests.kernels.mamba3_subjects import SCAN, TOKENS, WEIGHTS, Options, params, window
from tests.kernels.mutants import caught, mutated
from tests.kernels.plot import Call
from tests.kernels.tensors import Kept, check_within, doubles

CAPACITY = 5
ENTRY = ("x", "dt", "A", "trap", "angle", "B")
TAKEN = (1, 2, 0, 2)
"""Accepted tokens of the windows of two in a row: the third is due, and so is the next with two accepted before it."""
CASES = [
    Options(t=8),
    Options(t=8, r=3, h=4, g=2, n=4, f=1, halves=True, maps=True, z=True, io="bf16", seed=1),
]


def ring_of(call: Call) -> Ring:
    """NaN in every entry, another origin for each slot."""
    slots = len(call["S"])
    blank = {n: torch.full((slots, CAPACITY, *call[n].shape[2:]), float("nan"), dtype=call[n].dtype) for n in ENTRY}
    return Ring(**blank, origin=(torch.arange(slots) * 3 % CAPACITY).int(), held=torch.zeros(slots).int())


def moved(run: Any, S: torch.Tensor, ring: Ring, given: dict[str, Any]) -> int:
    """The bytes that crossed, parameters and cursors apart; none beside a tensor."""
    entries = {f"ring.{name}": x for name, x in ring.tensors._asdict().items()}
    tensors = {name: x for name, x in given.items() if isinstance(x, torch.Tensor)}
    with watch(S=S, **tensors, **entries) as seen:
        run()
    assert seen.outside == seen.races == [], [*seen.outside, *seen.races][:3]
    apart = {"slots", "lengths", "ring.origin", "ring.held", *WEIGHTS}
    return sum(access.distinct for (_, name), access in seen.accesses.items() if name not in apart)


def part(call: Call, row: int, begin: int, count: int) -> Any:
    """Some tokens of one of the rows."""
    return each(lambda a: a[row : row + 1, begin : begin + count], window(call))


def check(module: ModuleType, o: Options) -> None:
    """Windows of two tokens in a row, of which some are accepted; after each the flushed state is that of the oracle."""
    call = SCAN.draw(o)
    ring, S, start, weights = ring_of(call), call["S"], call.state(), params(call)
    fixed = {name: x for name, x in call.given.items() if name not in ("S", "out", *TOKENS)}
    sizes = {letter: getattr(o, letter) for letter in "ghpnfr"} | {"state": S.element_size(), "io": call["x"].element_size()}
    lengths = torch.full((o.b,), 2).int()
    lengths[call.rows[-1]] = 1
    for number, taken in enumerate(TAKEN):
        given = fixed | {n: call[n][:, 2 * number : 2 * number + 2] for n in TOKENS if n in call.given}
        y = given["x"].new_full((o.b, 2, o.h, o.p), float("nan"))
        kept, expected = Kept(lengths=lengths, **call.tensors), 0
        for slot, row in zip(call.named, call.rows, strict=True):
            real, held = int(lengths[row]), [int(ring.held[slot])]
            expected += module.traffic_bytes(held, real, window=2, capacity=CAPACITY, z=o.z, **sizes)
            expected += (2 - real) * o.h * o.p * sizes["io"]  # zeros
        given |= {"lengths": lengths, "out": y}
        run = lambda given=given: module.mamba3_buffered(S, ring, **given, window=2)  # noqa: E731
        assert moved(run, S, ring, given) == expected
        kept.check(S=call.named)
        advanced, start = torch.full((o.b,), taken).int().minimum(lengths), start.copy()
        for at, row in enumerate(call.rows):
            real, count = int(lengths[row]), int(advanced[row])
            bound, _ = eb.mamba3.scan(start[at : at + 1], part(call, at, 2 * number, real), weights, o.contract())
            check_within(doubles(y[row : row + 1, :real]), bound)
            assert not y[row, real:].any()
            if count:
                exact = o.contract(state="fp32", io="fp32")
                start[at] = eb.mamba3.scan(start[at : at + 1], part(call, at, 2 * number, count), weights, exact)[1].value[0]
        commit_window(ring.origin, ring.held, advanced, capacity=CAPACITY, window=2, slots=call["slots"], lengths=lengths)
        check_flushed(call, ring, start, fixed, sizes)


def check_flushed(call: Call, ring: Ring, wanted: Any, fixed: dict[str, Any], sizes: dict[str, int]) -> None:
    """Flushes a copy by hand: the state of the oracle, within what fp32 loses in a dozen tokens."""
    copy, bystander = call["S"].clone(), call["S"].clone()
    names = ("B_norm", "B_bias", "dt_bias", "up", "A_floor", "eps", "halves", "slots")
    given: dict[str, Any] = {n: fixed[n] for n in names if n in fixed}
    run = lambda: mamba3_flush.mamba3_flush(copy, ring, rows=call.options.b, **given)  # noqa: E731
    held = [int(ring.held[slot]) for slot in call.named]
    assert moved(run, copy, ring, given) == mamba3_flush.traffic_bytes(held, **sizes)
    torch.testing.assert_close(copy[call.named], torch.from_numpy(wanted).to(copy.dtype), rtol=1e-4, atol=1e-4)
    copy[call.named] = bystander[call.named]
    assert torch.equal(copy.nan_to_num(7.0), bystander.nan_to_num(7.0))


@pytest.mark.parametrize("o", CASES, ids=str)
def test_windows_in_a_row_and_their_flushes_equal_the_oracle(o: Options) -> None:
    check(mamba3_buffered, o)


def test_a_window_after_a_history_has_the_bits_of_a_scan() -> None:
    call = SCAN.draw(Options(t=4, r=2, halves=True, padding=False))
    ring, whole = ring_of(call), call.run(mamba3_scan, write_state=False, out=None)
    fixed = {name: x for name, x in call.given.items() if name != "out"}
    for begin in (0, 2):
        given = fixed | {n: call[n][:, begin : begin + 2] for n in (*ENTRY, "C")}
        assert torch.equal(mamba3_buffered.mamba3_buffered(ring=ring, **given), whole[:, begin : begin + 2])
        ring.held[call.named] = 2


MUTANTS = [
    ("_mamba3_buffered_kernel", "(length > 0) & is_due(", "(length > 99) & is_due("),
    ("_mamba3_buffered_kernel", "place(first + count + m, CAPACITY)", "place(first + m, CAPACITY)"),
    ("_mamba3_buffered_kernel", "tl.cast(m, tl.int64), m < length", "tl.cast(m, tl.int64), m < length + 1"),
    ("replayed", "t = place(first + m, CAPACITY)", "t = place(m, CAPACITY)"),
    ("replayed", "h // HEADS * stride.B.g", "0 * stride.B.g"),
    ("appended", "if h == 0:", "if h == 99:"),
    ("appended", "if h % HEADS == 0:", "if h == 0:"),
    ("appended", "at_B + r * stride.B.r", "at_B"),
    ("appended", "at_trap, tl.load(trap, mask", "at_trap, tl.load(A, mask"),
]  # fmt: skip


@pytest.mark.parametrize(("at", "old", "new"), MUTANTS)
def test_planted_faults_of_the_ring_are_caught(at: str, old: str, new: str) -> None:
    assert caught(mutated(mamba3_buffered, old, new, at=at), check, CASES)
