"""Mistakes as changes of named inputs and outputs: what a change reads and leaves, and that the names in rows exist."""

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from conformance.faults.catalogue import FAULTS, of_name
from conformance.faults.fault import FP32, planted, single
from conformance.faults.right import right
from conformance.mistakes import operators
from conformance.mistakes.mistake import Mistake, after, before, inputs, instead, parameters
from conformance.suite import of_operation
from ssmspec_ref.contract import FLOAT64
from ssmspec_ref.errors import ParameterError


@dataclass(frozen=True)
class Inputs:
    x: Any
    z: Any = None


def doubled(S: Any, window: Inputs, scale: float = 1.0, *more: Any) -> tuple[Any, Any]:
    """y = scale (x + z), and one for each further argument; S_next = S + x."""
    return scale * (window.x + (0 if window.z is None else window.z)) + len(more), S + window.x


def run(mistake: Mistake, *arguments: Any, operation: str = "ssd.scan", narrow: bool = False) -> Any:
    return mistake.made(operation, lambda name: doubled, narrow)(*arguments)


ONE, TWO, THREE = (np.full(2, float(n)) for n in (1, 2, 3))


@pytest.mark.parametrize(
    ("mistake", "y", "S"),
    [
        pytest.param(before("n", "s"), 2, 3, id="nothing"),
        pytest.param(before("n", "s", x=lambda x: 10 * x), 20, 21, id="a field of a record"),
        pytest.param(before("n", "s", x=lambda S, own: S + own), 3, 4, id="what else it reads"),
        pytest.param(before("n", "s", x=lambda own: own + 5, S=lambda x: x), 7, 9, id="the inputs as they came"),
        pytest.param(before("n", "s", z=lambda own: own + 1), 2, 3, id="what is absent stays absent"),
        pytest.param(before("n", "s", z=THREE), 5, 3, id="a value in place of nothing"),
        pytest.param(before("n", "s", live=None, left=lambda own: 1 / 0), 2, 3, id="names that the call lacks"),
        pytest.param(after("n", "s", y=lambda y, S_next, x: y + S_next + x), 7, 3, id="outputs and inputs"),
        pytest.param(after("n", "s", y=lambda S_next: S_next, S_next=lambda y: y), 3, 2, id="outputs as they were"),
        pytest.param(before("n", "s", x=lambda x: 10 * x).after(y=lambda y, x: y + x), 22, 21, id="after changed inputs"),
        pytest.param(before("n", "s", x=lambda x: 10 * x).of("y"), 20, 3, id="of one output"),
        pytest.param(
            before("n", "s", x=lambda x: 10 * x).of("S_next").after(y=lambda y: -y), -2, 21, id="of one, then another"
        ),
        pytest.param(instead("n", "s", lambda S, window: (S, window.x)), 1, 2, id="another computation"),
    ],
)
def test_a_change_is_made_of_what_it_names(mistake: Mistake, y: float, S: float) -> None:
    came = run(mistake, ONE, Inputs(TWO))
    assert [a.tolist() for a in came] == [[y, y], [S, S]]
    assert (ONE.tolist(), TWO.tolist()) == ([1, 1], [2, 2])


def test_arguments_without_a_name_are_passed_on() -> None:
    assert run(before("n", "s", scale=3.0), ONE, Inputs(TWO), 2.0, "one", "two")[0].tolist() == [8, 8]


def test_outputs_are_narrow_where_single_precision_is_declared_and_integers_stay() -> None:
    y, S = run(after("n", "s", y=lambda y: y.astype(int)), ONE, Inputs(TWO), narrow=True)
    assert (y.dtype, S.dtype) == (np.int64, np.float32)
    assert single("ssd.scan", before("n", "s"), FP32).capabilities["ssd.scan"].contract == FP32
    assert [a.dtype for a in run(before("n", "s"), ONE, Inputs(TWO))] == [np.float64, np.float64]


def test_an_output_that_an_operation_lacks_is_refused() -> None:
    with pytest.raises(ParameterError, match=r"n changes M_next of ssd\.scan; give y, S_next"):
        run(after("n", "s", M_next=operators.zero), ONE, Inputs(TWO))
    with pytest.raises(ParameterError, match=r"n changes w of ssd\.scan"):
        run(before("n", "s").of("w"), ONE, Inputs(TWO))


def lost(S_next: Any) -> Any:
    """The state is lost. some/project#12."""
    return 0 * S_next


def test_a_row_has_the_name_and_the_sentence_of_its_function_and_operations_of_one_subject() -> None:
    (one,) = planted((after(S_next=lost), ("ssd.scan_masked", "ssd.scan"), "INIT-DROP"))
    assert (one.name, one.says, one.source) == ("lost", "The state is lost. some/project#12.", "some/project#12")
    assert (one.operation, set(one.subject.capabilities)) == ("ssd.scan_masked", {"ssd.scan", "ssd.scan_masked"})
    assert one.capability.contract == FLOAT64
    other = before(live=None).after(S_next=lost)
    assert (other.__name__, before("mine", "", live=None).after(S_next=lost).__name__) == ("lost", "mine")


OPERATORS: dict[str, tuple[Any, Any, list[Any]]] = {
    "drop": (operators.drop(0, 2), [1, 2, 3], [1, 2, 0]),
    "drop for another": (operators.drop(-1, 1, -1), [1, 2], [1, -1]),
    "cut": (operators.cut(0, 2), [1, 2, 3], [1, 2]),
    "cut of less": (operators.cut(0, 5), [1, 2], [1, 2]),
    "rolled": (operators.rolled(), [1, 2, 3], [3, 1, 2]),
    "rolled back": (operators.rolled(0, -1), [1, 2, 3], [2, 3, 1]),
    "repeated": (operators.repeated(0, 2), [1, 2, 3], [1, 2, 1]),
    "everywhere": (operators.everywhere(0, -1), [1, 2, 3], [3, 3, 3]),
    "at least": (operators.at_least(2), [1, 3], [2, 3]),
    "at most": (operators.at_most(2), [1, 3], [1, 2]),
    "put": (operators.put(slice(1, None), 0.0), [[1, 2, 3]], [[1, 0, 0]]),
    "without the root": (operators.without_the_root, [[0, 2, 3, -1]], [[2, 3, -1, -1]]),
    "rounded": (operators.rounded_to("bf16"), [1 + 2.0**-9], [1.0]),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_does_what_its_name_says_and_leaves_its_argument(name: str) -> None:
    change, given, wanted = OPERATORS[name]
    own = np.array(given)
    assert np.array_equal(change(own), wanted)
    assert np.array_equal(own, given)


def test_every_input_that_a_row_names_is_one_of_its_operation() -> None:
    """A name that no case has would plant nothing."""
    rows = [fault for fault in FAULTS if hasattr(fault.capability.run, "mistake")]
    assert len(rows) > 330
    known: dict[str, set[str]] = defaultdict(set)
    for operation in {fault.operation for fault in rows}:
        limits = [fault.capability.limits for fault in rows if fault.operation == operation]
        for specification in of_operation(operation):
            for taken in {repr(one): one for one in limits}.values():
                ways = {case.options.get("slots"): case for case in specification.cases("standard", taken)}
                for case in ways.values():
                    names = parameters(right(operation)) if operation != "generate.greedy" else ()
                    known[operation] |= inputs(names, specification.draw(case, FLOAT64)).keys()
    for fault in rows:
        named = fault.capability.run.mistake.inputs
        assert set(named) <= known[fault.operation], fault.name


def test_a_fault_is_found_by_name_and_by_operation() -> None:
    assert of_name("KeepsEveryDraft").operation == "ssd.verify_snapshots"
    assert of_name("KeepsEveryDraft", "delta.verify_snapshots").operation == "delta.verify_snapshots"
    assert replace(of_name("lost_skip").capability, contract=FLOAT64).contract == FLOAT64
