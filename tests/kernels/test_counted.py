"""Bytes counted in the interpreter: every kernel of `gates.toml` to the byte, and what is read or written too much."""

from dataclasses import replace

import pytest
import triton
import triton.language as tl
from torch import Tensor

from perf_gates.static import counted
from perf_gates.verdicts import gates
from perf_gates.verdicts.gates import Counted

pytestmark = pytest.mark.interpreter

SIXTH = 6


@pytest.mark.parametrize("gate", gates.load().bytes, ids=lambda gate: gate.case)
def test_kernel_moves_the_bytes_of_its_formula_and_reads_its_state_as_often_as_the_gate_says(gate: Counted) -> None:
    assert list(counted.wrong(counted.count(gate.case, counted.case(gate.case)), gate)) == []


def test_verifications_write_no_state() -> None:
    verify = [g for g in gates.load().bytes if g.case.endswith("verify") or "tree" in g.case]
    assert len(verify) >= 5
    assert all(gate.writes == 0 for gate in verify)


@triton.jit
def _touch_kernel(S, count, BLOCK: tl.constexpr, WRITE: tl.constexpr):
    e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(S + e, mask=e < count)
    if WRITE:
        tl.store(S + e, values, mask=e < count)


def touched(S: Tensor, count: int, write: bool) -> None:
    _touch_kernel[(triton.cdiv(count, 256),)](S, count, BLOCK=256, WRITE=write)


@pytest.mark.parametrize("write", [False, True])
def test_an_extra_read_of_a_sixth_of_the_state_fails_exactly(write: bool) -> None:
    gate = Counted("ssd_scan T=6 verify", 1, 0)
    made = counted.case(gate.case)
    S = made.tensors["S"]
    sixth, rest = divmod(S.numel(), SIXTH)
    assert rest == 0

    def slower() -> None:
        made.call()
        touched(S, sixth, write)

    found = counted.count(gate.case, replace(made, call=slower))
    wrong = list(counted.wrong(found, gate))
    bytes_, more = S.numel() * 4, sixth * 4
    assert wrong[0] == f"{gate.case}: reads {bytes_ + more} bytes of state, {more:+d} of 1 x {bytes_}"
    written = f"{gate.case}: writes {more} bytes of state, {more:+d} of 0 x {bytes_}"
    assert wrong[1:] == ([written, f"{gate.case}: moves {found.total} bytes, {more:+d} of its formula"] if write else [])


def test_a_formula_that_is_off_and_a_race_are_said() -> None:
    gate = Counted("linear_rows M=6", 1, 0)
    made = counted.case(gate.case)
    found = replace(counted.count(gate.case, made), formula=made.formula - 2, faults=("a race",))
    assert list(counted.wrong(found, gate)) == [
        f"{gate.case}: moves {made.formula} bytes, +2 of its formula",
        f"{gate.case}: a race",
    ]


def test_a_case_of_no_family_is_refused() -> None:
    with pytest.raises(ValueError, match="whose name starts with ssd, delta, shortconv, mamba3 or linear"):
        counted.case("norm T=6")
