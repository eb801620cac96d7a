"""The ring: its laws, thirty right rewritings that are equal, structural faults that differ, and what is not judged."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from conformance.rewritings import CHUNK, RULES, Rule
from conformance.ring import algebra
from conformance.ring.arrays import Ring, elements, opaque, ring
from conformance.ring.codes import MOST, Codes
from conformance.ring.judge import cases, judged
from ssmspec_ref import conv, delta, ssd
from ssmspec_ref.contract import FLOAT64, Capability, Limits, Order, Verdict
from ssmspec_ref.conv import tree as conv_tree
from ssmspec_ref.functions import silu
from ssmspec_ref.layers.recurrences import RECURRENCES
from ssmspec_ref.shapes import Array

from .judging import SPECIFICATION

X, Y = np.random.default_rng(1).integers(0, 1 << 64, (2, 50), dtype=np.uint64)
Run = Callable[..., Any]


def test_exp_is_a_homomorphism_and_0_at_minus_infinity() -> None:
    assert np.array_equal(algebra.exp(X + Y), algebra.exp(X) * algebra.exp(Y))
    assert np.array_equal(algebra.exp(-X) * algebra.exp(X), np.ones_like(X))
    assert algebra.exp(np.array([0, algebra.MINUS_INFINITY], dtype=np.uint64)).tolist() == [1, 0]
    assert len(np.unique(algebra.exp(X))) == len(X)


def test_units_have_inverses_and_others_have_none() -> None:
    units = X | np.uint64(1)
    assert np.array_equal(units * algebra.inverse(units), np.ones_like(X))
    with pytest.raises(algebra.NotInRing, match="no inverse"):
        algebra.inverse(np.array([2], dtype=np.uint64))


def test_constants_are_themselves_or_opaque_and_the_base_is_one() -> None:
    assert [int(algebra.constant(c)) for c in (0.0, 1.0, -1.0, 1.4426950408889634, np.float32(0.6931472))] == [
        0,
        1,
        (1 << 64) - 1,
        1,
        1,
    ]
    assert algebra.constant(0.3) == algebra.constant(float(np.float32(0.3))) != algebra.constant(0.31)


def test_limits_are_opaque_and_guards_are_none() -> None:
    limit, guard, far = (np.array([algebra.constant(c)]) for c in (0.5, 88.0, float("inf")))
    assert np.array_equal(algebra.minimum(X, guard), X)
    assert np.array_equal(algebra.minimum(X, far), X)
    assert not np.any(algebra.minimum(X, limit) == X)
    assert not np.any(algebra.minimum(X, limit) == algebra.maximum(X, limit))
    with pytest.raises(algebra.NotInRing, match="of two values"):
        algebra.maximum(X, Y)


def test_an_array_of_the_ring_computes_as_float64_does_and_refuses_what_has_no_rule() -> None:
    a, b = ring(X.reshape(5, 10)), ring(Y.reshape(5, 10))
    assert a.dtype == np.float64
    assert np.array_equal(elements(np.einsum("ij, ij -> i", a, b)), (X * Y).reshape(5, 10).sum(axis=1))
    assert np.array_equal(elements(np.exp(a) * np.exp(-a)), np.ones((5, 10), dtype=np.uint64))
    assert np.array_equal(elements(np.where(np.eye(5, 10, dtype=bool), a, 1.0)).sum(), X[::11].sum() + np.uint64(45))
    held = np.zeros((5, 10))
    held += a
    held[0] = b[0]
    assert np.array_equal(elements(held * a)[1:], (X * X).reshape(5, 10)[1:])
    with opaque():
        assert np.array_equal(elements(silu(a)), X.reshape(5, 10) * algebra.sigmoid(X).reshape(5, 10))
    for refused in (
        lambda: a > b,
        lambda: np.abs(a),
        lambda: np.sin(a),
        lambda: np.linalg.inv(a),
        lambda: a.astype("f4") + b,
    ):
        with pytest.raises(algebra.NotInRing):
            refused()


def test_names_are_exact_in_bf16_and_what_is_no_name_is_nothing_else() -> None:
    codes, many = Codes(), np.random.default_rng(2).integers(0, 1 << 64, MOST - 1, dtype=np.uint64)
    numbers = codes.as_numbers(many)
    assert np.array_equal(codes.of_numbers(numbers), many)
    assert not np.any(numbers.astype(np.float32).view(np.uint32) & 0xFFFF)
    assert np.isfinite(numbers).all()
    assert codes.as_numbers(np.zeros(1, dtype=np.uint64)) == 0
    assert not np.isin(codes.of_numbers(np.array([np.nan, 1 + 2.0**-20])), many).any()
    with pytest.raises(algebra.NotInRing, match="smaller sizes"):
        codes.encode(np.arange(5, 100, dtype=np.uint64))


def rewritten(rule: Rule, order: Order) -> Run:
    """A rewriting of `conformance.rewritings`, whose arrays are not cast."""

    def scan(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
        formed = rule.formed(lambda a: a, window, params)
        tokens = len(formed[0])
        step = {"sequential": 1, "chunked": CHUNK}.get(order, tokens)
        outputs = []
        for begin in range(0, tokens, step):
            y, S = rule.runs[order](S, *(a[begin : begin + step] for a in formed))
            outputs.append(y)
        return rule.finished(np.moveaxis(np.concatenate(outputs), 0, 1), window, params), S

    return scan


def chunked(module: Any, chunk: int) -> Run:
    return lambda S, window, params, live=None: module.scan(S, window, params, live, chunk=chunk)


TURNED = ("mamba3",)
"""Recurrences whose keys are rotated: a rotation has no meaning in the ring."""


def right() -> Iterator[tuple[str, str, Run]]:
    """Right implementations with an operation: in other orders, in chunks, over trees."""
    for rule in RULES.values():
        for order in rule.runs:
            yield f"{rule.name} {order}", f"{rule.name}.scan", rewritten(rule, order)
    for kind in (kind for kind in RECURRENCES.values() if kind.name not in TURNED):
        for chunk in (1, 2, 3, 64):
            operation = "scan_masked" if chunk == 3 else "scan"
            yield f"{kind.name} in chunks of {chunk}", f"{kind.name}.{operation}", chunked(kind.chunked, chunk)
        yield f"{kind.name} over trees", f"{kind.name}.verify_tree", kind.tree.scan
    yield "conv over trees", "conv.verify_tree", conv_tree.scan


RIGHT = [pytest.param(operation, run, id=name) for name, operation, run in right()]


def in_the_ring(operation: str, run: Run) -> list[Any]:
    """The judgements on the cases of the smallest tier."""
    specification = SPECIFICATION[operation]
    return [judged(specification, Capability(run, FLOAT64), case) for case in cases(specification, Limits(), "smoke")]


def test_there_are_thirty_right_rewritings_and_more() -> None:
    assert len(RIGHT) >= 30


@pytest.mark.parametrize(("operation", "run"), RIGHT)
def test_a_right_rewriting_is_equal(operation: str, run: Run) -> None:
    found = in_the_ring(operation, run)
    assert [one.said for one in found if one.verdict is Verdict.FAIL] == []
    assert any(one.verdict is Verdict.PASS for one in found)


@pytest.mark.parametrize("name", TURNED)
def test_a_recurrence_that_rotates_is_not_judged(name: str) -> None:
    found = in_the_ring(f"{name}.scan", chunked(RECURRENCES[name].chunked, 2))
    assert {one.verdict for one in found} == {Verdict.UNKNOWN}


def late(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """The decay of a token is that of the token before it."""
    dt = np.concatenate([window.dt[:, :1], window.dt[:, :-1]], axis=1)
    y, _ = ssd.scan(S, window, params)
    return y, ssd.scan(S, spoilt(window, dt=dt), params)[1]


def spoilt(record: Any, **fields: Any) -> Any:
    """A record with other fields, unchecked."""
    made = object.__new__(type(record))
    for name, value in {**vars(record), **fields}.items():
        object.__setattr__(made, name, value)
    return made


WRONG: dict[str, tuple[str, Run]] = {
    "B for C": ("ssd.scan", lambda S, w, p: ssd.scan(S, spoilt(w, B=w.C, C=w.B), p)),
    "decay of the token before": ("ssd.scan", late),
    "the state of the row after": ("ssd.scan", lambda S, w, p: ssd.scan(np.roll(S, 1, axis=0), w, p)),
    "heads take their groups in turn": (
        "ssd.scan",
        lambda S, w, p: ssd.scan(S, spoilt(w, B=np.flip(w.B, axis=2)), p),
    ),
    "no-ops are live": ("ssd.scan_masked", lambda S, w, p, live: ssd.scan(S, w, p, np.ones_like(live))),
    "no skip": ("ssd.step", lambda S, w, p: ssd.step(S, w, spoilt(p, D=None))),
    "values of the other sign": ("delta.scan", lambda S, w, p: delta.scan(S, spoilt(w, v=-w.v), p)),
    "queries are not scaled": ("delta.scan", lambda S, w, p: delta.scan(S, w, replace(p, scale=1.0))),
    "beta of one": ("delta.step", lambda S, w, p: delta.step(S, spoilt(w, beta=w.beta * 0.0 + 1.0), p)),
    "taps reversed": ("conv.scan", lambda M, u, p: conv.scan(M, u, spoilt(p, weight=np.flip(p.weight, axis=1)))),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_structural_fault_differs(name: str) -> None:
    assert Verdict.FAIL in {one.verdict for one in in_the_ring(*WRONG[name])}


def test_what_has_no_meaning_in_the_ring_is_not_judged() -> None:
    def compares(S: Array, window: Any, params: Any) -> Any:
        return ssd.scan(np.where(S > 0, S, S), window, params)

    def narrow(S: Array, window: Any, params: Any) -> Any:
        return ssd.scan(S.astype(np.float32) + 0.0, window, params)

    specification = SPECIFICATION["ssd.scan"]
    case = next(cases(specification, Limits(), "smoke"))

    def leaves(S: Array, window: Any, params: Any) -> Any:
        y, after = ssd.scan(S, window, params)
        return np.asarray(y), np.asarray(after)

    for run, said in ((compares, "numpy's greater"), (narrow, "float32"), (leaves, "no array of the ring")):
        found = judged(specification, Capability(run, FLOAT64), case)
        assert found.verdict is Verdict.UNKNOWN
        assert said in found.said
    windows = SPECIFICATION["ssd.verify_replay"]
    assert judged(windows, Capability(ssd.scan, FLOAT64), next(windows.cases("smoke", Limits()))).verdict is Verdict.UNKNOWN
    with pytest.raises(ZeroDivisionError):  # an error of the implementation is not hidden
        judged(specification, Capability(lambda *given: 1 // 0, FLOAT64), case)


def test_an_element_is_drawn_for_every_number_and_the_outputs_are_elements() -> None:
    specification = SPECIFICATION["ssd.scan"]
    met: list[Any] = []

    def run(S: Array, window: Any, params: Any) -> Any:
        met.extend([S, window.x, params.A])
        return ssd.scan(S, window, params)

    case = next(cases(specification, Limits(), "smoke"))
    assert judged(specification, Capability(run, FLOAT64), case).verdict is Verdict.PASS
    assert all(isinstance(a, Ring) and len(np.unique(elements(a))) == a.size for a in met)
