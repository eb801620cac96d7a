"""The reference with one line changed: which changes are tried, that endless ones end, and that nothing stays changed."""

import ast
from typing import Any

import numpy as np
import pytest

from conformance.diagnose.equations import search
from conformance.diagnose.equations.edits import Edit, edits
from conformance.diagnose.equations.executed import executed
from conformance.diagnose.equations.expressions import instead
from conformance.diagnose.observe import Observation, observe
from conformance.judge.clock import Clock
from conformance.suite import find
from conformance.suite.specification import Specification
from ssmspec_ref import delta
from ssmspec_ref.accept import greedy
from ssmspec_ref.accept.draft_tree import DraftTree
from ssmspec_ref.contract import Capability, NumericContract
from ssmspec_ref.shapes import Array

from .invented import single

STEP = "delta.step/b2,g1,h2,k3,v2/plain/gentle/s"


def value_alone(S: Array, token: Any, params: Any) -> tuple[Array, ...]:
    """beta scales the value, and not the prediction."""
    made = type(token)(*(a.copy() for a in vars(token).values()))
    made.v[:] = token.beta[..., None] * token.v
    made.beta[:] = 1.0
    return single(*delta.step(S, made, params))


def noisy(S: Array, token: Any, params: Any) -> tuple[Array, ...]:
    """Errors that no equation explains."""
    o, S_next = delta.step(S, token, params)
    return single(o + np.random.default_rng(0).normal(size=o.shape), S_next)


def seen(run: Any) -> tuple[Specification, NumericContract, list[Observation]]:
    made = []
    for seed in range(3):
        specification, case = find(f"{STEP}{seed}")
        observation = observe(specification, Capability(run, NumericContract()), case)
        assert observation is not None
        made.append(observation)
    return specification, NumericContract(), made


def test_the_line_is_told_with_what_it_says_and_what_it_would_say() -> None:
    specification, contract, failing = seen(value_alone)
    (told,) = search.changed_lines(specification, contract, failing, [], Clock(60))
    assert "ssmspec_ref/delta/__init__.py read `u = token.beta[..., None] * token.v - einsum(" in told
    assert "not `u = token.beta[..., None] * (token.v - einsum(" in told


def test_nothing_is_told_of_errors_that_no_line_explains_nor_when_a_passing_case_would_change() -> None:
    specification, contract, failing = seen(noisy)
    assert search.changed_lines(specification, contract, failing, [], Clock(60)) == []
    specification, contract, failing = seen(value_alone)
    _, _, passing = seen(lambda *given: single(*delta.step(*given)))
    assert search.changed_lines(specification, contract, failing, passing, Clock(60)) == []
    assert search.changed_lines(specification, contract, failing, [], Clock(0)) == []


def test_every_function_has_its_own_code_afterwards_also_when_a_run_fails() -> None:
    functions = [one.function for one in executed(lambda: delta_step())]
    before = [function.__code__ for function in functions]
    specification, contract, failing = seen(value_alone)
    search.changed_lines(specification, contract, failing, [], Clock(60))
    (one, *_) = [one for one in executed(lambda: delta_step()) if one.function.__name__ == "step"]
    edit = next(iter(edits(one)))
    with search.exchanged(edit):
        assert one.function.__code__ is edit.code
    with pytest.raises(KeyError):
        interrupted(edit)
    assert [function.__code__ for function in functions] == before


def interrupted(edit: Edit) -> None:
    with search.exchanged(edit):
        raise KeyError


def delta_step() -> Any:
    specification, case = find(f"{STEP}0")
    return specification.expected(specification.draw(case, NumericContract()), NumericContract(), None)


def test_a_changed_loop_that_would_not_end_is_ended() -> None:
    """Without `node = child` the walk stays at a node whose child it has accepted."""
    tree = DraftTree((7, 1), (-1, 0))
    (one,) = [one for one in executed(lambda: greedy.walk(tree, (1, 2))) if one.function is greedy.walk]
    turns = search.Turns()
    code = search.guarded(one)
    assert code is not None
    with search.ending([(one.function, code)], turns):
        endless = [edit for edit in edits(one) if "`node = child`, were left out" in edit.says]
        assert endless
        with search.exchanged(endless[0]), pytest.raises(RecursionError, match="does not end"):
            greedy.walk(tree, (1, 2))
    assert greedy.walk(tree, (1, 2)).tokens == (1, 2)


@pytest.mark.parametrize(
    ("line", "tried"),
    [
        ("a * (b - c)", "a * b - c"),
        ("a * (b - c)", "b - a * c"),
        ("clip(a, b)", "a"),
        ("where(a, b, c)", "where(a, c, b)"),
        ("a[i]", "a[i - 1]"),
        ("a[:i]", "a[:-1][:i]"),
        ("a < b", "a <= b"),
        ("cumsum(a)", "cumsum(a) - a"),
        ("einsum('bt, bj -> bt', a, b)", "einsum('bj, bj -> bt', a, b)"),
        ("range(a)", "range(a - 1)"),
        ("not a", "a"),
    ],
)
def test_slips_that_are_tried(line: str, tried: str) -> None:
    (statement,) = ast.parse(line).body
    assert isinstance(statement, ast.Expr)
    assert tried in [ast.unparse(ast.fix_missing_locations(other)) for other in instead(statement.value, {})]


def test_names_are_tried_only_if_their_values_have_the_same_form() -> None:
    values = {"a": np.zeros((2, 3)), "b": np.ones((2, 3)), "c": np.ones(2), "d": 1.0, "e": [1], "f": [2]}
    tried = {name: {ast.unparse(other) for other in instead(ast.Name(name), values)} for name in ("a", "d", "e")}
    assert tried == {"a": {"b"}, "d": set(), "e": {"f", "[*f, *e]"}}
