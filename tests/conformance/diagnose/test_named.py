"""Common mistakes are named in words, whether or not a planted fault equals them: groups, trees, exp2, factors."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from conformance.faults.misbehaving.conduct import tree_as_chain
from conformance.faults.rollback.commits import rows_before
from conformance.judge.figures import apart, ratio
from conformance.run import causes
from ssmspec_ref import delta, packed, selective, ssd
from ssmspec_ref.shapes import Array

from .invented import Bug, diagnosed, single

Choice = Callable[[int, int], Array]


def turn(heads: int, groups: int) -> Array:
    return np.arange(heads) % groups


def following(heads: int, groups: int) -> Array:
    return np.roll(np.arange(heads) // (heads // groups), -1)


def first(heads: int, groups: int) -> Array:
    return np.zeros(heads, dtype=int)


def grouped(rule: Any, names: str, choose: Choice, S: Array, window: Any, params: Any) -> tuple[Array, ...]:
    """A scan whose heads read some of its grouped inputs by another map."""
    every = ("B", "C") if rule is ssd else ("q", "k")
    heads, groups = S.shape[1], getattr(window, every[0]).shape[2]
    own = np.arange(heads) // (heads // groups)
    maps = {name: choose(heads, groups) if name in names else own for name in every}
    read = {name: np.take(getattr(window, name), chosen, axis=2) for name, chosen in maps.items()}
    with np.errstate(all="ignore"):
        return single(*rule.scan(S, replace(window, **read), params))


def exp2(constant: float, S: Array, window: Any, params: Any) -> tuple[Array, ...]:
    return single(*ssd.scan(S, window, replace(params, A=params.A * constant * np.log(2))))


def scaled(factor: float, S: Array, window: Any, params: Any) -> tuple[Array, ...]:
    y, S_next = ssd.scan(S, window, params)
    return single(factor * y, S_next)


NEXT = "as if head h read the group of head h + 1"


def growing(S: Array, token: Any, params: Any) -> tuple[Array, ...]:
    """exp(-dt A), where A is negative: the state grows by what it must decay."""
    dt = ssd.step_size(token.dt, params)
    faster = ssd.step(S * np.exp(-2 * dt * params.A)[..., None, None], token, params)
    return single(*faster)


def gated_early(S: Array, window: Any, params: Any) -> tuple[Array, ...]:
    """The gate comes before D x."""
    if window.z is None or params.D is None:
        return single(*ssd.scan(S, window, params))
    y, S_next = ssd.scan(S, window, replace(params, D=None))
    return single(y + window.x * (params.D[:, None] if params.D.ndim == 1 else params.D), S_next)


def leaders_gate(S: Array, window: Any, params: Any) -> tuple[Array, ...]:
    """Heads read the decay of the first head of their group."""
    heads = window.v.shape[2]
    each = heads // window.k.shape[2]
    return single(*delta.scan(S, replace(window, g=np.take(window.g, np.arange(heads) // each * each, axis=2)), params))


def undecayed(S: Array, window: Any, params: Any) -> tuple[Array, ...]:
    """The first token of every chunk but the first has no decay."""
    g = window.g.copy()
    g[:, 16::16] = 0.0
    return single(*delta.scan(S, replace(window, g=g), params))


def old_state(S: Array, run: Any, bounds: Array, fresh: Array, params: Any) -> tuple[Array, ...]:
    """A sequence of one token begins from what its slot holds, fresh or not."""
    kept = fresh & (np.diff(bounds) != 1)
    y, S_next, _ = packed.scan(ssd, np.where(kept[:, None, None, None], 0.0, S), run, np.diff(bounds), params)
    return single(y, S_next)


def beta_on_v(S: Array, window: Any, params: Any) -> tuple[Array, ...]:
    """u = beta v - S^T k."""
    v, one = window.beta[..., None] * window.v, np.ones_like(window.beta)
    return single(*delta.scan(S, replace(window, v=v, beta=one), params))


def late_decay(S: Array, window: Any, params: Any) -> tuple[Array, ...]:
    """The state passed in is not decayed by the first token."""
    first = np.exp(ssd.step_size(window.dt, params)[:, 0] * params.A)
    return single(*ssd.scan(S / first[..., None, None], window, params))


def both(
    first: Callable[..., Any], second: Callable[..., Any], run: Any, S: Array, window: Any, params: Any
) -> tuple[Array, ...]:
    """Two bugs, each of which every call shows."""
    return single(*run(S, *second(*first(window, params))))


def late_g(window: Any, params: Any) -> tuple[Any, Any]:
    return replace(window, g=np.concatenate([window.g[:, :1], window.g[:, :-1]], axis=1)), params


def full_beta(window: Any, params: Any) -> tuple[Any, Any]:
    return replace(window, beta=np.ones_like(window.beta)), params


def next_C(window: Any, params: Any) -> tuple[Any, Any]:
    return replace(window, C=np.roll(window.C, 1, axis=-1)), params


def cut_exp2(window: Any, params: Any) -> tuple[Any, Any]:
    return window, replace(params, A=params.A * 1.44 / np.log2(np.e))


TILED = "as if head h read group h mod g (groups tiled instead of repeated)"
MISTAKES = {
    "groups in turn": (partial(grouped, ssd, "BC", turn), "ssd.scan", TILED),
    "groups in turn, for B": (partial(grouped, ssd, "B", turn), "ssd.scan", f"{TILED}, for B alone"),
    "the next head's group": (partial(grouped, ssd, "BC", following), "ssd.scan", NEXT),
    "the next head's group, for C": (partial(grouped, ssd, "C", following), "ssd.scan", f"{NEXT}, for C alone"),
    "groups in turn, delta rule": (partial(grouped, delta, "qk", turn), "delta.scan", TILED),
    "the first group, delta rule": (partial(grouped, delta, "qk", first), "delta.scan", "as if every head read group 0"),
    "ssd tree as chain": (partial(tree_as_chain, ssd), "ssd.verify_tree", "as if the tree were a chain"),
    "delta tree as chain": (partial(tree_as_chain, delta), "delta.verify_tree", "as if the tree were a chain"),
    "selective tree as chain": (partial(tree_as_chain, selective), "selective.verify_tree", "as if the tree were a chain"),
    "conv tree as chain": (rows_before, "conv.verify_tree", "as if the tree were a chain"),
    "exp2 with 1.44": (partial(exp2, 1.44), "ssd.scan", "as if exp(x) were exp2(1.44 x)"),
    "exp2 with 1.4427": (partial(exp2, 1.4427), "ssd.scan", "as if exp(x) were exp2(1.4427 x)"),
    "exp2 for exp": (partial(exp2, 1.0), "ssd.scan", "as if A were multiplied by ln(2) = 0.69 (exp2 for exp)"),
    "a factor near one": (partial(scaled, 1.0005), "ssd.scan", "every wrong value of y is 1.000500 times what it must be"),
    "the gate before D": (gated_early, "ssd.scan", "as if D x were added after the gate, and not before it"),
    "the group's first gate": (leaders_gate, "delta.scan", "as if every head read g of the first head of its group"),
    "chunks lose a decay": (undecayed, "delta.scan", "as if the decay of tokens 16, 32, .. were 1"),
    "one token is not fresh": (old_state, "ssd.scan_packed", "as if a sequence of one token were never fresh"),
    "beta on v alone": (beta_on_v, "delta.scan", "as if beta scaled v alone, and not the prediction"),
    "no decay of the first state": (late_decay, "ssd.scan", "as if the state passed in were not decayed by the first token"),
    "the decay grows": (growing, "ssd.step", "as if the decay had the other sign"),
    "a constant": (partial(scaled, 2**-0.5), "ssd.scan", "is 0.7071 times what it must be (1/sqrt(2))"),
}  # fmt: skip


SLOW = {"chunks lose a decay", "delta tree as chain"}
"""Mistakes of which the search takes a quarter of a minute and more."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly) if name in SLOW else name for name in MISTAKES]
)
def test_a_common_mistake_is_named(name: str) -> None:
    run, operation, words = MISTAKES[name]
    found = list(diagnosed(Bug(run, operation, ())))
    assert found, "not caught"
    told = " | ".join(" ".join(d.facts.values()) for d in found)
    assert words in told, told


LATE_G, CUT = "as if token i read g of token i - 1", "as if exp(x) were exp2(1.44 x)"
ALWAYS = {
    "both in all outputs": (partial(both, late_g, full_beta, delta.scan), "delta.scan", ("as if beta were 1", LATE_G)),
    "one in y alone": (partial(both, next_C, cut_exp2, ssd.scan), "ssd.scan", (CUT, "as if state i read C of state i - 1")),
}


@pytest.mark.nightly  # causes are searched for in dozens of cases; test_several.py has quicker pairs
@pytest.mark.parametrize("name", ALWAYS)
def test_two_bugs_that_every_call_shows_are_told_apart(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(causes, "APART", 600.0)
    run, operation, words = ALWAYS[name]
    told = [found.facts["behaves"] for found in diagnosed(Bug(run, operation, ()))]
    assert len(told) == len(words), told
    assert all(any(said.startswith(word) for said in told) for word in words), told


@pytest.mark.parametrize("rule", ["ssd", "delta", "selective"])
def test_a_tree_that_is_read_as_a_chain_equals_the_planted_fault(rule: str) -> None:
    run = partial(tree_as_chain, {"ssd": ssd, "delta": delta, "selective": selective}[rule])
    (found, *_) = diagnosed(Bug(run, f"{rule}.verify_tree", ()))
    assert found.looks_like.startswith("equals the planted fault `tree_as_chain` on ")


def test_figures_are_told_with_the_digits_that_make_the_difference() -> None:
    assert [ratio(x) for x in (1.0003, 0.9991, 41.04, 1.41, 1.0)] == ["1.00030", "0.99910", "41", "1.41", "1"]
    assert apart(-0.180779881, -0.180779645, 6) == ("-0.180779881", "-0.180779645")
    assert apart(1.5, 2.5, 6) == ("1.5", "2.5")
    assert apart(0.25, 0.25, 6) == ("0.25", "0.25")
