"""A recurrence registered at run time goes through everything, and no line of a package knows it.

Oracle, bounds, suite, engine, laws and fuzzing find it in their registries; an error planted in its engine is found.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from torch import Tensor

from conformance.judge.draw import Draw
from conformance.judge.verdict import judge
from conformance.run.load import load
from conformance.run.plan import Job, Selection, plan
from conformance.suite import SPECIFICATIONS, of_operation
from conformance.suite.recurrences import KINDS
from property_tests.laws.recurrence_laws import LAWS
from property_tests.laws.relations import given_of
from property_tests.sessions.session import Deviation
from ssmspec_ref import error_bounds, tree
from ssmspec_ref.contract import FLOAT64, OPERATIONS, Limits, Verdict
from ssmspec_ref.layers import layer as layers
from ssmspec_ref.layers.mixer import new_state
from ssmspec_ref.layers.recurrences import RECURRENCES
from ssmspec_ref.model import tiny
from ssmspec_ref.records import each
from tests.fast.recurrence_runs import played, session
from tests.seam.retention import ROWS, engine, registered

NAME = "retention"


@pytest.fixture(autouse=True)
def _known() -> Iterator[None]:
    """Retention for one test; behind it no registry holds it."""
    with registered():
        yield
    assert not any(NAME in registry for registry, _ in ROWS)


def jobs(adapter: str, *operations: str) -> list[Job]:
    """The smoke cases of retention, of some operations or of all."""
    found = plan({adapter: load(adapter)}, Selection(tier="smoke"))[0]
    own = (job for job in found if job.identity.startswith(NAME) or job.case.options.get("kind") == NAME)
    return [job for job in own if not operations or job.case.operation in operations]


def failed(of: list[Job]) -> list[str]:
    judged = ((job, judge(job.specification, job.capability, job.case)) for job in of)
    return [f"{job.subject.name}: {job.identity}: {said.message}" for job, said in judged if said.verdict is not Verdict.PASS]


def drawn(case: dict[str, int] | None = None) -> tuple[Any, Any, Any]:
    scan = of_operation(f"{NAME}.scan")[0]
    return scan.draw(scan.case(case or {}, {}, "normal", 1), FLOAT64)  # type: ignore[return-value]


def test_its_derivations_agree() -> None:
    kind, (S, window, params) = RECURRENCES[NAME], drawn({"t": 9})
    wanted = kind.definition.scan(S, window, params)
    for one, other in zip(kind.chunked.scan(S, window, params, chunk=4), wanted, strict=True):
        assert_allclose(one, other, rtol=1e-12, atol=1e-12)
    chain = np.tile(np.arange(-1, 8), (len(S), 1))
    assert_allclose(kind.tree.scan(S, window, tree.ancestors(chain), params), wanted[0], rtol=1e-12, atol=1e-12)
    held = np.zeros((len(S), 5), dtype=bool)
    history = each(lambda a: np.zeros((len(a), 5, *a.shape[2:])), kind.mixer.buffered.entries(window, params))
    live = np.ones(window.v.shape[:2], dtype=bool)
    for route in (kind.mixer.buffered.output_only, kind.mixer.buffered.state_and_output):
        assert_allclose(route(S, history, held, window, params, live)[0], wanted[0], rtol=1e-12, atol=1e-12)


def test_its_layers_have_bounds() -> None:
    kind = KINDS[NAME]
    scan = next(s for s in of_operation("layer.prefill") if s.fixed["kind"] == NAME)
    draw = Draw(scan.case({}, {}, "normal", 0), FLOAT64)
    record, u = kind.layer(draw), draw.array("u", (2, 6, kind.residual(draw.sizes)))
    state = new_state(record.mixer, 2)
    value, after = layers.scan(state, u, record)
    y, M, S = error_bounds.layer.scan(state, u, record, FLOAT64)
    for came, bound in ((value, y), (after.M, M), (after.S, S)):
        assert np.all(np.abs(came - bound.value) <= 2 * bound.error)


def test_a_tiny_model_of_it_decodes() -> None:
    made = tiny.model(NAME, 3)
    assert {block.layer.mixer.kind for block in made.blocks} == {NAME}  # type: ignore[union-attr]


def test_its_operations_and_cases_are_there_and_leave_the_others_as_they_are() -> None:
    assert {operation for operation in OPERATIONS if operation.startswith(NAME)} == {
        s.operation for s in SPECIFICATIONS if s.operation.startswith(NAME)
    }
    own = [s for s in SPECIFICATIONS if s.fixed.get("kind") == NAME]
    assert len(own) == 9
    assert all(any(s.cases("smoke", Limits())) for s in own)


@pytest.mark.parametrize("adapter", ["reference", "ssmspec_fast"])
def test_the_suite_judges_it(adapter: str) -> None:
    found = jobs(adapter)
    assert {job.case.operation for job in found} >= {o for o in OPERATIONS if o.startswith(NAME)} | {"speculate.chain"}
    assert failed(found) == []


def late(self: engine.Retention, S: Tensor, token: engine.RetentionTokens) -> tuple[Tensor, Tensor]:
    """Reads the state before the token."""
    _, after = STEP(self, S, token)
    return self.arithmetic.sum(S * token.q[..., None], dim=-2), after


def twice(self: engine.Retention, S: Tensor, token: engine.RetentionTokens) -> tuple[Tensor, Tensor]:
    """Decays twice."""
    return STEP(self, S, token._replace(a=token.a * token.a))


STEP = engine.Retention.step


@pytest.mark.parametrize("fault", [late, twice])
@pytest.mark.parametrize("operation", [f"{NAME}.scan", f"{NAME}.buffered_verify", "speculate.chain", "speculate.tree"])
def test_an_error_planted_in_its_engine_is_found(
    fault: Callable[..., Any], operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.Retention, "step", fault)
    assert failed(jobs("ssmspec_fast", operation)[:6])


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_the_laws_hold_for_it(law: Any) -> None:
    subjects = [s for s in load("ssmspec_fast").subjects if s.name == "operations, bitwise" and law.takes(NAME, s)]
    assert bool(subjects) is (NAME in law.kinds)
    for subject in subjects:
        for seed, family in enumerate(("gentle", "normal")):
            law.holds(given_of(NAME, subject, family, seed))


@pytest.mark.parametrize("method", ["snapshots", "joint", "activation replay", "replay buffer"])
def test_sessions_of_its_models_are_plain_decoding(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    played(session(NAME, method, {"decay": "normal"}))
    monkeypatch.setattr(engine.Retention, "step", twice)
    with pytest.raises(Deviation):
        played(session(NAME, method, {"decay": "normal"}))
