"""What the strategies draw is what they say, all of it is reached, and trees agree with the oracle's own checks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from property_tests.distributions import GRID, pairs, rounds
from property_tests.models import KINDS, build
from property_tests.specs import OPTIONS, Sizes, specs
from property_tests.token_trees import MOST, SHAPES, parents, token_trees
from ssmspec_ref import model as lm
from ssmspec_ref import tree

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
    kinds, options = set[str](), set[str]()

    @settings(DRAWN, max_examples=150)
    @given(specs(Sizes(layers=2, options=4)))
    def check(spec: object) -> None:
        model = build(spec)  # type: ignore[arg-type]
        logits, _ = lm.scan(lm.new_state(model, 1), np.array([[0, 1]]), model)
        assert np.isfinite(logits).all()
        kinds.update(spec.kinds)  # type: ignore[attr-defined]
        options.update(name for name, value in spec.options if value != OPTIONS[name][0])  # type: ignore[attr-defined]

    check()
    assert kinds == set(KINDS)
    assert options == set(OPTIONS)


def test_laws_sum_to_one_and_meet_every_relation() -> None:
    seen = set[str]()

    @DRAWN
    @given(st.integers(2, 5).flatmap(pairs))
    def check(pair: tuple[tuple[object, ...], tuple[object, ...]]) -> None:
        p, q = pair
        assert sum(p) == sum(q) == 1  # type: ignore[arg-type, comparison-overlap]
        assert all(x >= 0 and (x * GRID).denominator == 1 for x in (*p, *q))  # type: ignore[operator, attr-defined]
        if p == q:
            seen.add("equal")
        elif all(not (x and y) for x, y in zip(p, q, strict=True)):
            seen.add("disjoint")
        elif max(abs(x - y) for x, y in zip(p, q, strict=True)) * GRID == 1:  # type: ignore[operator]
            seen.add("near")

    check()
    assert seen == {"equal", "disjoint", "near"}


def test_noise_reaches_both_ends() -> None:
    seen = set[int]()

    @DRAWN
    @given(rounds())
    def check(drawn: object) -> None:
        seen.update(int(u * GRID) for u in (*drawn.coins, *drawn.picks))  # type: ignore[attr-defined]

    check()
    assert {0, GRID - 1} <= seen
    assert all(0 <= step < GRID for step in seen)
