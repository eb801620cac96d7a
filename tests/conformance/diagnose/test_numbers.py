"""The numbers of the wrong row that decide are printed: padding, lengths, limits of dt, ends of a run, coins and picks."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from conformance.adapters import reference
from conformance.diagnose.extent import ordinal
from conformance.diagnose.facts import facts
from conformance.suite import find
from ssmspec_ref import ssd
from ssmspec_ref.contract import Capability, NumericContract
from ssmspec_ref.shapes import Array
from ssmspec_ref.slots import Pool

from .invented import single

RIGHT = {name: one.run for subject in reference.adapter().subjects[::-1] for name, one in subject.capabilities.items()}


def told(run: Callable[..., Any], case: str, search: bool = True) -> dict[str, str]:
    specification, failing = find(case)
    return facts(specification, Capability(run, NumericContract()), failing, [failing], [], search=search)


def live_rows_first(S: Any, token: Any, params: Any) -> tuple[Array, ...]:
    """As many programs as rows that are no padding, and the padding stays where it is: the last row is not computed."""
    assert isinstance(S, Pool)
    y, rows = ssd.step(S.rows, token, params)
    count = int((S.read >= 0).sum())
    y[count:] = 0.0
    return single(y, Pool(S.states, S.read[:count], S.write[:count]).written(rows[:count]))


def test_padding_that_decides_is_told_and_not_led_away_from() -> None:
    found = told(live_rows_first, "ssd.step/b3,g1,h1,p1,n1/slots=padded/gentle/s0")
    assert "row 1 is padding" in found["inputs"]
    assert "row 1 is padding, and it passes if no row is padding" in found["decides"]
    assert "not slots" not in found["decides"]


def odd_slots(S: Any, token: Any, params: Any) -> tuple[Array, ...]:
    """The output of the last row is lost, with padding and without."""
    y, rows = ssd.step(S.rows, token, params)
    y[-1] = 0.0
    return single(y, S.written(rows))


def test_padding_that_does_not_decide_is_not_said_to() -> None:
    found = told(odd_slots, "ssd.step/b3,g1,h1,p1,n1/slots=padded/gentle/s0")
    assert "it passes if no row is padding" not in found.get("decides", "")


def unclamped(S: Array, token: Any, params: Any) -> tuple[Array, ...]:
    return single(*ssd.step(S, token, replace(params, dt_limit=(0.0, float("inf")))))


def test_the_step_size_and_its_limits_are_printed() -> None:
    case = "ssd.step/b5,g1,h6,p1,n1/dt_limit=floor/gentle/s0"
    specification, at = find(case)
    params = specification.draw(at, NumericContract())[2]
    said = told(unclamped, case, search=False)["inputs"]
    low, high = params.dt_limit
    assert f"is clamped to {low:.6g} by dt_limit {low:.6g} to {high:.6g}" in said, said


def test_without_limits_nothing_is_printed_of_the_step_size() -> None:
    off = lambda S, token, params: single(ssd.step(S, token, params)[0] + 1, S)  # noqa: E731
    assert "dt_limit" not in told(off, "ssd.step/b2,g1,h2,p1,n1/plain/gentle/s0", False)["inputs"]


def test_what_ends_a_run_is_printed() -> None:
    def never(*arguments: Any) -> tuple[Array, ...]:
        *others, ended = RIGHT["acceptance.greedy"](*arguments)
        return (*others, np.zeros_like(ended))

    assert "eos=0" in told(never, "acceptance.greedy/b1,t1,i1/eos=some/normal/s0", False)["inputs"]


def test_the_probabilities_of_the_node_where_the_paths_part_are_printed() -> None:
    """A run that takes no draft parts from the right one at the root."""
    case = "acceptance.sampled/b1,t6,i2/plain/normal/s0"
    specification, at = find(case)
    p, q, coins, picks = specification.draw(at, NumericContract())[2:6]

    def refuses(tokens: Array, parents: Array, p: Array, q: Array, coins: Array, *rest: Any) -> Any:
        return RIGHT["acceptance.sampled"](tokens, parents, p, q, np.ones_like(coins) - 1e-9, *rest)

    said = told(refuses, case, False)["inputs"]
    assert f"at node 0 p={p[0, 0, 0]:.4g} {p[0, 0, 1]:.4g}, q={q[0, 0, 0]:.4g}" in said, said
    assert f"1: {coins[0, 1]:.4g}" in said
    assert f"pick {picks[0, 0]:.4g}" in said


def test_the_lengths_of_all_texts_are_printed() -> None:
    def first(history: Array, *rest: Any) -> Any:
        return RIGHT["draft.lookup"](np.where(np.arange(history.shape[1]) < (history[0] >= 0).sum(), history, -1), *rest)

    def shortest(history: Array, *rest: Any) -> Any:
        least = (history >= 0).sum(axis=1).min()
        return RIGHT["draft.lookup"](np.where(np.arange(history.shape[1]) < least, history, -1), *rest)

    for run in (first, shortest):
        for seed in range(12):
            specification, at = find(f"draft.lookup/b3,l9,t1,i2/plain/repeated/s{seed}")
            history = specification.draw(at, NumericContract())[0]
            found = told(run, f"draft.lookup/b3,l9,t1,i2/plain/repeated/s{seed}", False)
            if found:
                assert f"tokens of history in each row {' '.join(map(str, (history >= 0).sum(axis=1)))}" in found["inputs"]
                return
    pytest.fail("no draw shows the fault")


def first_tree(M: Array, u: Array, parents: Array, params: Any) -> Array:
    """Every row has the tree of row 0."""
    return single(RIGHT["conv.verify_tree"](M, u, np.where(parents < -1, parents, parents[:1]), params))[0]


def test_the_row_whose_tree_decides_is_named() -> None:
    found = told(first_tree, "conv.verify_tree/b2,t6,c1,w2/plain/normal/s0")
    assert "the case whose row 1 is a chain in which node" in found["decides"], found
    assert "fails, and passes if in row 1 node" in found["decides"]


@pytest.mark.parametrize(
    ("number", "says"), [(2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (12, "12th"), (21, "21st"), (113, "113th")]
)
def test_ordinals(number: int, says: str) -> None:
    assert ordinal(number) == says
