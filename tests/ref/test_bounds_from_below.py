"""Tiny cases in which every rounding leans as far as a contract lets it, in thousands of draws of directions.

No result leaves its bound, and each rounding that is taken out of the pairs is noticed. The recurrences are written anew,
without the reference.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from ssmspec_ref import error_bounds as eb
from ssmspec_ref.contract import FLOAT64, UNIT_ROUNDOFF, NumericContract
from ssmspec_ref.conv import ConvParams
from ssmspec_ref.delta import DeltaParams, DeltaWindow
from ssmspec_ref.error_bounds.arithmetic import RULES, Approx
from ssmspec_ref.selective import SelectiveParams, SelectiveWindow
from ssmspec_ref.shapes import Array
from ssmspec_ref.shortconv import ShortConvParams, ShortConvWindow
from ssmspec_ref.ssd import SSDParams, SSDWindow
from tests.low_precision import used

ROWS, TOKENS = 3000, 2
FP32 = NumericContract()
BF16 = replace(FP32, state="bf16", io="bf16", dot="bf16", stored_every_token=True)


@dataclass(frozen=True)
class Leaning:
    """float64 in which every operation errs by its largest relative error, up or down as drawn for each element: in the first
    row always down, in the last one always up."""

    contract: NumericContract
    rng: np.random.Generator

    def by(self, x: Array, u: float) -> Array:
        ups = np.linspace(0, 1, len(x)).reshape(-1, *[1] * (x.ndim - 1))
        return x * (1 + u * np.where(self.rng.random(x.shape) < ups, 1.0, -1.0))

    @property
    def u(self) -> float:
        return UNIT_ROUNDOFF[self.contract.accumulate]

    @property
    def r(self) -> float:
        return 2 * self.contract.function_ulp * self.u

    def held(self, x: Array, form: str) -> Array:
        return x if form == "fp32" else self.by(x, UNIT_ROUNDOFF[form])

    def add(self, a: Array, b: Array) -> Array:
        return self.by(a + b, self.u)

    def mul(self, a: Array, b: Array) -> Array:
        return self.by(a * b, self.u)

    def exp(self, x: Array) -> Array:
        return self.by(np.exp(x), self.r)

    def softplus(self, x: Array) -> Array:
        return self.add(np.maximum(x, 0.0), self.by(np.log1p(self.exp(-np.abs(x))), self.r))

    def silu(self, x: Array) -> Array:
        return self.mul(x, self.by(1 / self.add(1.0 + 0 * x, self.exp(-x)), self.r))

    def state(self, S: Array) -> Array:
        return self.held(S, self.contract.state)

    def out(self, y: Array) -> Array:
        return self.held(y, self.contract.io)

    def dot(self, a: Array, b: Array, *plus: Array) -> Array:
        """Over the last axis; `plus` is added last."""
        form = "fp32" if self.contract.dot == "ieee" else self.contract.dot
        terms = self.mul(self.held(a, form), self.held(b, form))
        total = terms[..., 0]
        for term in (*np.moveaxis(terms[..., 1:], -1, 0), *plus):
            total = self.add(total, term)
        return total

    def unit(self, x: Array, eps: float) -> Array:
        root = self.by(np.sqrt(self.add(self.dot_in_fp32(x), eps + 0 * x[..., 0])), self.r)
        return self.by(x / root[..., None], self.r)

    def dot_in_fp32(self, x: Array) -> Array:
        return replace(self, contract=replace(self.contract, dot="ieee")).dot(x, x)


def drawn(rng: np.random.Generator, *shape: int) -> Array:
    """Positive numbers of a wide range, so that in some rows any one term is the largest."""
    return 10.0 ** rng.uniform(-2, 0.5, size=(ROWS, *shape))


def ssd(m: Leaning, rng: np.random.Generator, softplus: bool = True) -> tuple[Any, list[Array]]:
    p = SSDParams(np.array([-0.4]), np.array([0.7]), np.array([0.3]), softplus)
    w = SSDWindow(*(drawn(rng, TOKENS, *axes) for axes in ((1, 1), (1,), (1, 2), (1, 2), (1, 1))))
    S = drawn(rng, 1, 1, 2)
    after, outputs, one = S[:, 0, 0], [], np.ones(ROWS)
    for t in range(TOKENS):
        x, z = w.x[:, t, 0, 0], w.z[:, t, 0, 0]  # type: ignore[index]
        dt = m.add(w.dt[:, t, 0], 0.3 * one)
        dt = m.softplus(dt) if softplus else dt
        a, U = m.exp(m.mul(dt, -0.4 * one)), m.mul(m.mul(dt, x)[:, None], w.B[:, t, 0])
        after = m.state(m.add(m.mul(a[:, None] + 0 * after, after), U))
        y = m.dot(after, w.C[:, t, 0], m.mul(0.7 * one, x))
        outputs.append(m.out(m.mul(y, m.silu(z))))
    return eb.ssd.scan(S, w, p, m.contract), [np.stack(outputs, 1)[..., None, None], m_state(m, after)[:, None, None]]


def m_state(m: Leaning, S: Array) -> Array:
    """The state as it is left: stored, if it was not after each token."""
    return S if m.contract.stored_every_token else m.state(S)


def selective(m: Leaning, rng: np.random.Generator, softplus: bool = True) -> tuple[Any, list[Array]]:
    p = SelectiveParams(np.array([[-0.4, -1.1]]), np.array([0.7]), np.array([0.3]), softplus)
    w = SelectiveWindow(*(drawn(rng, TOKENS, axis) for axis in (1, 1, 2, 2, 1)))
    S = drawn(rng, 1, 2)
    after, outputs, one = S[:, 0], [], np.ones(ROWS)
    for t in range(TOKENS):
        x, z = w.x[:, t, 0], w.z[:, t, 0]  # type: ignore[index]
        dt = m.add(w.dt[:, t, 0], 0.3 * one)
        dt = m.softplus(dt) if softplus else dt
        a, U = m.exp(m.mul(dt[:, None], p.A + 0 * after)), m.mul(m.mul(dt, x)[:, None], w.B[:, t])
        after = m.state(m.add(m.mul(a, after), U))
        outputs.append(m.out(m.mul(m.dot(after, w.C[:, t], m.mul(0.7 * one, x)), m.silu(z))))
    return eb.selective.scan(S, w, p, m.contract), [np.stack(outputs, 1)[..., None], m_state(m, after)[:, None]]


def delta(m: Leaning, rng: np.random.Generator) -> tuple[Any, list[Array]]:
    w = DeltaWindow(
        *(drawn(rng, TOKENS, *axes) for axes in ((1, 2), (1, 2), (1, 1))), -drawn(rng, TOKENS, 1), drawn(rng, TOKENS, 1)
    )
    w = replace(w, v=-w.v, beta=w.beta / 4)
    S = drawn(rng, 1, 2, 1)
    after, outputs = S[:, 0, :, 0], []
    for t in range(TOKENS):
        q, k = (m.unit(a[:, t, 0], 1e-6) for a in (w.q, w.k))
        q, one = m.mul(q, m.by(0.7 + 0 * q[:1], m.u)), np.ones((ROWS, 1))
        decayed = m.mul(m.exp(w.g[:, t])[:, :1] * one, after)
        u = m.mul(w.beta[:, t, 0], m.dot(-decayed, k, w.v[:, t, 0, 0]))
        after = m.state(m.add(decayed, m.mul(k, u[:, None])))
        outputs.append(m.out(m.dot(after, q)))
    got = [np.stack(outputs, 1)[..., None, None], m_state(m, after)[:, None, :, None]]
    return eb.delta.scan(S, w, DeltaParams(scale=0.7), m.contract), got


def conv(m: Leaning, rng: np.random.Generator) -> tuple[Any, list[Array]]:
    M, u, weight, bias = drawn(rng, 1, 2), drawn(rng, 1, 1), np.array([[0.5, 0.9]]), np.array([0.2])
    window = np.concatenate([M[:, 0, 1:], u[:, 0]], axis=1)
    y = m.out(m.silu(m.dot(window, weight + 0 * window, bias + 0 * window[:, 0])))
    return eb.conv.scan(M, u, ConvParams(weight, bias), m.contract), [y[:, None, None], window[:, None]]


def shortconv(m: Leaning, rng: np.random.Generator) -> tuple[Any, list[Array]]:
    S, w = drawn(rng, 1, 1), ShortConvWindow(*(drawn(rng, 1, 1) for _ in range(3)))
    weight, bias = np.array([[0.5, 0.9]]), np.array([0.2])
    u = m.state(m.mul(w.B[:, 0, 0], w.x[:, 0, 0]))
    window = np.stack([S[:, 0, 0], u], axis=1)
    c = m.out(m.dot(window, weight + 0 * window, bias + 0 * u))
    y = m.out(m.mul(w.C[:, 0, 0], c))
    return eb.shortconv.scan(S, w, ShortConvParams(weight, bias), m.contract), [y[:, None, None], u[:, None, None]]


LEAN: dict[str, Callable[[Leaning, np.random.Generator], tuple[Any, list[Array]]]] = {
    "ssd": ssd, "selective": selective, "delta": delta, "conv": conv, "shortconv": shortconv,
    "ssd, dt as given": partial(ssd, softplus=False), "selective, dt as given": partial(selective, softplus=False),
}  # fmt: skip
OF_MAMBA = ("*", "decay", "softplus", "silu", "stored", "product")
ROUNDINGS = {
    "ssd": OF_MAMBA,
    "selective": OF_MAMBA,
    "ssd, dt as given": ("+",),
    "selective, dt as given": ("+",),
    "delta": ("+", "*", "decay", "l2_normed", "stored", "product"),
    "conv": ("silu", "product"),
    "shortconv": ("*", "kept", "passed", "product"),
}


def largest(kind: str) -> float:
    """The largest share of a bound that is used, in either contract."""
    worst = 0.0
    for contract in (FP32, BF16):
        rng = np.random.default_rng(3)
        pairs, got = LEAN[kind](Leaning(contract, rng), rng)
        worst = max(worst, *map(used, got, pairs))
    return worst


@pytest.mark.parametrize("kind", LEAN)
def test_roundings_that_lean_the_worst_way_stay_within_the_bound(kind: str) -> None:
    assert 0.9 < largest(kind) <= 1 + 1e-6  # an error of second order, and the float64 of this test


def without(rule: Callable[..., Approx]) -> Callable[..., Approx]:
    """A rule that passes errors on and adds none of its own."""

    def fine(x: Any) -> Any:
        return Approx(x.value, x.error, FLOAT64) if isinstance(x, Approx) else x

    def free(x: Approx, *rest: Any, **more: Any) -> Approx:
        true = rule(x, *rest, **more)
        found = replace(rule(fine(x), *map(fine, rest), **more), contract=x.contract)
        return found if true.made is None else found.as_made(true.made)

    return free


def free_product(x: Approx) -> Approx:
    return replace(replace(x.terms, contract=FLOAT64).rounded(1), contract=x.contract)


@pytest.mark.parametrize(("kind", "rounding"), [(kind, name) for kind, names in ROUNDINGS.items() for name in names])
def test_every_rounding_that_is_taken_out_is_noticed(kind: str, rounding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    methods = {"+": ("__add__", "__radd__"), "*": ("__mul__", "__rmul__")}.get(rounding)
    if methods:
        for name in methods:
            monkeypatch.setattr(Approx, name, without(getattr(Approx, name)))
    else:
        monkeypatch.setitem(RULES, rounding, free_product if rounding == "product" else without(RULES[rounding]))
    assert largest(kind) > 1 + 1e-4
