"""Laws of bits: what holds them passes, each planted fault breaks its own, and the declaration reaches the suite."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from conformance.faults.memory import bits
from conformance.isolation.declared import bare
from conformance.judge.bitwise import LAWS
from conformance.suite import find
from ssmspec_ref.contract import BITWISE, FLOAT64, Capability
from ssmspec_ref.errors import ParameterError

from .judging import FP32, fails, judged, passes

CASE = "ssd.scan/b3,t7,g1,h2,p3,n4/plain/gentle/s0"


@pytest.mark.parametrize("identity", [CASE, "ssd.scan/b1,t1,g1,h2,p3,n4/plain/wide/s0", "ssd.scan/b2,t5/z=on/normal/s3"])
def test_one_order_holds_every_law(identity: str) -> None:
    passes(judged(Capability(bits.one_order, FP32, bitwise=tuple(BITWISE)), identity))


@pytest.mark.parametrize(
    ("run", "law"),
    [
        (bits.order_of_arrival, "rerun"),
        (bits.splits_small_batches, "rows"),
        (bits.order_of_the_slot, "slots"),
        (bits.order_of_the_call, "split"),
    ],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_a_fault_breaks_its_law_and_no_bound(run: object, law: str) -> None:
    wrong = Capability(run, FP32)  # type: ignore[arg-type]
    passes(judged(wrong, CASE))
    fails(judged(replace(wrong, bitwise=(law,)), CASE), "bits", f"declared bitwise ({law})", "other bits of y")


def test_a_batch_and_its_rows_are_compared_in_packed_runs_and_in_windows() -> None:
    from conformance.adapters.reference_parts.windows import Bare
    from conformance.faults.right import packed_scan
    from ssmspec_ref.backtrack import snapshots

    def packed(S, run, bounds, fresh, params):  # type: ignore[no-untyped-def]
        y, S_next = packed_scan("ssd", S, run, bounds, fresh, params)
        return y * (1 + 2.0**-52 * (len(S) > 1)), S_next

    class Windows(Bare):
        def __init__(self, S, params):  # type: ignore[no-untyped-def]
            super().__init__(snapshots, S, params)

        def state(self):  # type: ignore[no-untyped-def]
            return super().state() * (1 + 2.0**-52 * (len(self.S) > 2))

    for run, identity in (
        (packed, "ssd.scan_packed/b3,t5,g1,h1,p2,n2/plain/gentle/s0"),
        (Windows, "ssd.verify_snapshots/b2,t3,g1,h1,p2,n2,j2/plain/gentle/s0"),
    ):
        passes(judged(run, identity))
        assert judged(Capability(run, FLOAT64, bitwise=("rows",)), identity).kind == "bits"


def test_an_unknown_law_is_refused_and_known_ones_are_passed_on() -> None:
    with pytest.raises(ParameterError, match="give a tuple of rerun, rows, slots, split"):
        Capability(bits.one_order, FP32, bitwise=("batch",))
    (subject, *_) = bare(bits.adapter()).subjects
    assert subject.capabilities["ssd.scan"].bitwise == tuple(BITWISE) == tuple(LAWS)


def test_signs_of_zero_are_bits() -> None:
    def signed(S: Any, window: Any, params: Any) -> tuple[Any, Any]:
        y, S_next = bits.one_order(np.zeros_like(S), window, params)
        return y, S_next * 0.0 * (1 if len(S) > 1 else -1)

    from conformance.judge.bitwise import broken

    specification, case = find(CASE)
    arguments = specification.draw(case, FP32)
    expected = specification.expect(arguments, FP32, None)
    told = broken("rows", case.operation, lambda given: signed(*given), arguments, signed(*arguments), expected)
    assert "other bits of S" in told
