"""What the strategies draw is what they say, all of it is reached, and trees agree with the oracle's own checks."""

from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from property_tests import strategies
from property_tests.drawing.distributions import GRID, on_grid
from property_tests.drawing.models import LAYERS as KINDS
from property_tests.drawing.samplings import FIELDS
from property_tests.drawing.specs import OPTIONS
from property_tests.drawing.token_trees import MOST
from property_tests.sessions.features import CLASSES
from property_tests.sessions.session import Session
from property_tests.strategies import (
    SHAPES,
    Acceptance,
    Law,
    Round,
    Schedule,
    Sizes,
    Spec,
    TokenTree,
    acceptance_patterns,
    batch_schedules,
    build,
    draft_distributions,
    parameters,
    parents,
    rounds,
    sampling_settings,
    token_trees,
)  # fmt: skip
from ssmspec_ref import model as lm
from ssmspec_ref import tree
from ssmspec_ref.accept.processors import Sampling, process

DRAWN = settings(max_examples=60, derandomize=True, deadline=None, database=None)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("nodes", [1, 2, 5, MOST])
def test_every_shape_is_a_tree(shape: str, nodes: int) -> None:
    made = np.array([parents(shape, nodes, list(range(nodes)))])
    tree.check_parents(made)
    depth = tree.ancestors(made)[0].sum(axis=1)
    assert {"chain": nodes, "star": min(nodes, 2)}.get(shape, depth.max()) == depth.max()


def test_trees_have_twins_and_padding_and_can_be_without() -> None:
    seen = set[str]()

    @DRAWN
    @given(token_trees(most=20), token_trees(most=20, twins=False, root=2))
    def check(one: tuple[tuple[int, ...], tuple[int, ...]], other: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
        for above, tokens in (one, other):
            tree.check_parents(np.array([above]))
            assert len(above) == len(tokens)
        below = [(p, t) for p, t in zip(*one, strict=True) if p >= 0]
        seen.update({"twins"} if len(set(below)) < len(below) else (), {"padding"} if -2 in one[0] else ())
        alone = [(p, t) for p, t in zip(*other, strict=True) if p >= 0]
        assert len(set(alone)) == len(alone)
        assert other[1][0] == 2

    check()
    assert seen == {"twins", "padding"}


def test_models_of_every_kind_and_option_run() -> None:
    """Each value of each option too."""
    kinds, options = set[str](), set[tuple[str, object]]()

    @settings(DRAWN, max_examples=250)
    @given(parameters(Sizes(layers=2, options=9)))
    def check(spec: Spec) -> None:
        model = build(spec)
        logits, _ = lm.scan(lm.new_state(model, 1), np.array([[0, 1]]), model)
        assert np.isfinite(logits).all()
        kinds.update(spec.kinds)
        options.update(spec.options)

    check()
    assert kinds == set(KINDS)
    assert options == {(name, value) for name, values in OPTIONS.items() for value in values}


def test_acceptance_reaches_none_some_all_another_path_and_a_cut() -> None:
    seen = Counter[str]()

    @settings(DRAWN, max_examples=150)
    @given(token_trees(most=8).flatmap(lambda t: st.tuples(st.just(t), acceptance_patterns(t.paths()))))
    def check(drawn: tuple[TokenTree, Acceptance]) -> None:
        shape, (path, kept) = drawn
        assert path in {tuple(way) for way in shape.paths()}
        assert 1 <= kept <= len(path)
        leaf = path[-1] not in shape.parents
        seen["none" if len(path) == 1 < shape.size else "all" if leaf else "some"] += 1
        seen["no prefix"] += path != tuple(range(len(path)))
        seen["cut"] += kept < len(path)

    check()
    assert all(seen[name] >= 5 for name in ("none", "some", "all", "no prefix", "cut")), seen


def test_settings_reach_every_value_and_make_laws() -> None:
    seen = set[tuple[str, object]]()

    @settings(DRAWN, max_examples=250)
    @given(
        sampling_settings(5), st.lists(st.integers(-3, 3), min_size=5, max_size=5), st.lists(st.integers(0, 4), max_size=4)
    )
    def check(drawn: Sampling, logits: list[int], written: list[int]) -> None:
        p = process(np.array(logits, dtype=np.float64), written[:2], written[2:], drawn)
        assert p.min() >= 0
        assert p.sum() == pytest.approx(1.0, abs=5 * 2.0**-52)
        assert not drawn.top_k or np.count_nonzero(p) <= drawn.top_k
        seen.update((name, getattr(drawn, name)) for name in FIELDS)
        seen.add(("ends", bool(drawn.eos)))

    check()
    assert seen >= {(name, value) for name, values in FIELDS.items() for value in values}
    assert seen >= {("top_k", 5), ("top_k", 6), ("ends", True), ("ends", False)}


def test_laws_sum_to_one_and_meet_every_relation() -> None:
    """A residual of 2^-24 among them, laws with zeros, and quotients that are noise themselves."""
    seen = set[str]()

    @settings(DRAWN, max_examples=120)
    @given(st.integers(2, 5).flatmap(draft_distributions))
    def check(pair: tuple[Law, Law]) -> None:
        p, q = pair
        assert sum(p) == sum(q) == 1
        assert all(x >= 0 and (x * GRID).denominator == 1 for x in (*p, *q))
        residual = sum((x - y for x, y in zip(p, q, strict=True) if x > y), Fraction(0))
        seen.add({0: "equal", 1: "disjoint", 1 / GRID: "near"}.get(float(residual), "other"))
        quotients = [x / y for x, y in zip(p, q, strict=True) if 0 < x < y]
        seen.update({"dyadic"} if quotients and all((x * GRID).denominator == 1 for x in quotients) else ())
        seen.update({"zeros"} if 0 in p and 0 in q else ())

    check()
    assert seen == {"equal", "disjoint", "near", "dyadic", "zeros", "other"}


def test_a_law_on_the_grid_sums_to_one() -> None:
    """What is left over goes to the first of the largest."""
    third = GRID // 3
    assert on_grid([1, 1, 1]) == tuple(Fraction(n, GRID) for n in (third + 1, third, third))


def test_noise_reaches_both_ends() -> None:
    seen = set[int]()

    @DRAWN
    @given(rounds())
    def check(drawn: Round) -> None:
        seen.update(int(u * GRID) for u in (*drawn.coins, *drawn.picks))

    check()
    assert {0, GRID - 1} <= seen
    assert all(0 <= step < GRID for step in seen)


def test_schedules_reach_every_action_and_every_class_of_bugs() -> None:
    """Without an implementation; each class of `features` but those of the implementation's own rules."""
    seen = Counter[str]()

    @settings(DRAWN, max_examples=150)
    @given(batch_schedules())
    def check(drawn: Schedule) -> None:
        assert 1 <= len(drawn.calls) <= 20
        seen.update(drawn.reached)

    check()
    rules = ("prefill", "verify", "commit", "fork", "release", "flush", "preempt", "resume", "hand_over")
    needed = {f"rule {rule}" for rule in rules} | {feature for features in CLASSES.values() for feature in features}
    needed |= {"a row without drafts", "slot used again", "padding between rows", "fork between window and verdict"}
    assert not {feature for feature in needed if seen[feature] < 2}


def test_a_schedule_runs_on_a_session_as_it_was_drawn() -> None:
    """What the ledger offers, the contract of a decoder offers: the reference takes all of it and agrees."""
    reference, done = "conformance.adapters.sequences:adapter", Counter[str]()

    @settings(DRAWN, max_examples=15)
    @given(batch_schedules(steps=12, vocabulary=3))
    def check(drawn: Schedule) -> None:
        session = Session(reference, ["activation replay", "joint"], {"kinds": ["mamba2"], "seed": 0, "vocabulary": 3})
        for name, given_ in drawn.calls:
            getattr(session, name)(**given_)
        done.update({key: n for key, n in session.reached.items() if key in drawn.reached})
        done.subtract(drawn.reached)

    check()
    assert {count for name, count in done.items() if not name.startswith("from ")} == {0}  # decodings have other names


def test_the_module_for_other_projects_names_what_it_says() -> None:
    """Every name of its docstring's table is there and is a strategy or makes one."""
    named = [line.split()[0] for line in str(strategies.__doc__).splitlines() if line.startswith("    ")]
    assert len(named) == 7
    makers: list[Callable[..., Any]] = [getattr(strategies, name) for name in named]
    needed: dict[str, tuple[Any, ...]] = {
        "acceptance_patterns": ([[0]],),
        "sampling_settings": (3,),
        "draft_distributions": (3,),
    }
    for name, make in zip(named, makers, strict=True):
        assert isinstance(make(*needed.get(name, ())), st.SearchStrategy)
        assert name in strategies.__all__
