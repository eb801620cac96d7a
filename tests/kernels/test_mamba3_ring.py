"""Mamba-3's ring: windows after a history, flushes, and cursors that move on, beside the oracle and the scan."""

from types import ModuleType
from typing import Any

import pytest
import torch

from ssmspec_kernels.mamba3 import mamba3_buffered, mamba3_flush, mamba3_scan
from ssmspec_kernels.mamba3.mamba3_ring import Ring
from ssmspec_kernels.shared.cursors import commit_window
from ssmspec_ref import error_bounds as eb
from tests.kernels.mamba3_cases import Case, Options, case
from tests.kernels.mutants import caught, mutated
from tests.kernels.tensors import BYTES, Kept, check_within, contract, doubles, watch
from tests.kernels.test_mamba3_scan import check_moved, sizes, tensors

CAPACITY = 5
ENTRY = ("x", "dt", "A", "trap", "angle", "B")
TAKEN = (1, 2, 0, 2)
"""Accepted tokens of the windows of two in a row: the third is due, and so is the next with two accepted before it."""
CASES = [
    Options(t=8, padding=True),
    Options(t=8, r=3, h=4, g=2, n=4, f=1, halves=True, maps=True, z=True, io="bf16", index=torch.int64, seed=1),
]


def ring_of(made: Case) -> Ring:
    """NaN in every entry, another origin for each slot."""
    slots = len(made.tensors["S"])
    blank = {n: torch.full((slots, CAPACITY, *(x := made.tensors[n]).shape[2:]), float("nan"), dtype=x.dtype) for n in ENTRY}
    return Ring(**blank, origin=(torch.arange(slots) * 3 % CAPACITY).int(), held=torch.zeros(slots).int())


def named(ring: Ring) -> dict[str, torch.Tensor]:
    """The tensors of a ring by names of their own; cursors have those of parameters."""
    return {name if name in ("origin", "held") else f"ring.{name}": x for name, x in ring.tensors._asdict().items()}


def check(module: ModuleType, o: Options) -> None:
    """Windows of two tokens in a row, of which some are accepted; after each the flushed state is that of the oracle."""
    made = case(o)
    ring, S, fixed = ring_of(made), made.tensors["S"], made.without("S", "out", *ENTRY, "C", "z")
    lengths, start = torch.full((o.b,), 2).int(), made.S0
    lengths[2] = 1
    for number, taken in enumerate(TAKEN):
        tokens = {n: made.tensors[n][:, 2 * number : 2 * number + 2] for n in (*ENTRY, "C", "z") if n in made.tensors}
        y = tokens["x"].new_full((o.b, 2, o.h, o.p), float("nan"))
        given = {**tokens, **fixed, "lengths": lengths}
        kept = Kept(**tensors(given))
        told = {"window": 2, "capacity": CAPACITY, "state": BYTES[o.state], "io": BYTES[o.io], "z": o.z}
        expected = 0
        for slot, row in zip(made.named, made.rows, strict=True):
            real = int(lengths[row])
            expected += module.traffic_bytes([int(ring.held[slot])], real, *sizes(o), **told)
            expected += (2 - real) * o.h * o.p * BYTES[o.io]  # zeros
        with watch(S=S, y=y, **tensors(given), **named(ring)) as seen:
            module.mamba3_buffered(S, ring, **given, window=2, out=y)
        check_moved(seen, expected)
        kept.check()
        for at, row in enumerate(made.rows):
            one = made_part(made, 2 * number, int(lengths[row]), at)
            bound, _ = eb.mamba3.scan(start[at : at + 1], one, made.params, contract(o.state, o.io))
            check_within(doubles(y[row : row + 1, : int(lengths[row])]), bound)
            assert not y[row, int(lengths[row]) :].any()
        advanced = torch.full((o.b,), taken).int().minimum(lengths)
        for at, row in enumerate(made.rows):
            if count := int(advanced[row]):
                one = made_part(made, 2 * number, count, at)
                _, bound = eb.mamba3.scan(start[at : at + 1], one, made.params, contract("fp32", "fp32"))
                start = start.copy()
                start[at] = bound.value[0]
        commit_window(ring.origin, ring.held, advanced, capacity=CAPACITY, window=2, slots=fixed["slots"], lengths=lengths)
        flushed(made, ring, start, fixed)


def made_part(made: Case, begin: int, count: int, row: int | None = None) -> Any:
    """Some tokens of all rows, or of one."""
    rows = slice(None) if row is None else slice(row, row + 1)
    given = {n: a[rows, begin : begin + count] for n, a in vars(made.window).items() if a is not None}
    return type(made.window)(**given)


def flushed(made: Case, ring: Ring, wanted: Any, fixed: dict[str, Any]) -> None:
    """Flushes a copy by hand: the state of the oracle, within what fp32 loses in a dozen tokens."""
    copy, bystander = made.tensors["S"].clone(), made.tensors["S"].clone()
    names = ("B_norm", "B_bias", "dt_bias", "up", "A_floor", "eps", "halves", "slots")
    given: dict[str, Any] = {n: fixed[n] for n in names if n in fixed}
    with watch(S=copy, **tensors(given), **named(ring)) as seen:
        mamba3_flush.mamba3_flush(copy, ring, rows=made.options.b, **given)
    held, o = [int(ring.held[slot]) for slot in made.named], made.options
    check_moved(seen, mamba3_flush.traffic_bytes(held, *sizes(o), state=BYTES[o.state], io=BYTES[o.io]))
    scanned = torch.from_numpy(wanted).to(copy.dtype)
    torch.testing.assert_close(copy[made.named], scanned, rtol=1e-4, atol=1e-4)
    copy[made.named] = bystander[made.named]
    assert torch.equal(copy.nan_to_num(7.0), bystander.nan_to_num(7.0))


@pytest.mark.parametrize("o", CASES, ids=str)
def test_windows_in_a_row_and_their_flushes_equal_the_oracle(o: Options) -> None:
    check(mamba3_buffered, o)


def test_a_window_after_a_history_has_the_bits_of_a_scan() -> None:
    o = Options(t=4, r=2, halves=True, padding=False)
    made, ring = case(o), ring_of(case(o))
    fixed = made.without("S", "out", *ENTRY, "C")
    whole = mamba3_scan.mamba3_scan(made.tensors["S"], **made.without("S", "out"), write_state=False)
    for begin in (0, 2):
        tokens = {n: made.tensors[n][:, begin : begin + 2] for n in (*ENTRY, "C")}
        y = mamba3_buffered.mamba3_buffered(made.tensors["S"], ring, **tokens, **fixed)
        assert torch.equal(y, whole[:, begin : begin + 2])
        ring.held[made.named] = 2


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
