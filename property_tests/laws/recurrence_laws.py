"""Relations between runs of one implementation, one function each: no value of an oracle is needed.

A law takes a `Given` (a recurrence's operations and one drawn input) and raises `Broken` if it does not hold. Values
that are exact in any order and precision are compared with ==; rounded ones within the running bounds of both sides, added.
`LAWS` lists the laws with the faults that each one finds (`conformance.faults.recurrences.laws`).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from conformance.suite.recurrences import RECURRENCES as JUDGED
from ssmspec_ref.contract import Subject
from ssmspec_ref.records import along, concat, each, prefix, rows
from ssmspec_ref.shapes import Array

from ..recurrences import RECURRENCES
from ..recurrences.kind import Kind
from .relations import Broken, Given, equal, near, tokens


def split(given: Given) -> None:
    """1. A run equals its first part, then the rest from the state after it."""
    at = given.tokens // 2
    first, rest = tokens(given.window, slice(0, at)), tokens(given.window, slice(at, None))
    y, S = given.scan(given.S, given.window)
    y_first, middle = given.scan(given.S, first)
    y_rest, last = given.scan(middle, rest)
    (a, _), (_, wrong) = given.bound(given.S, given.window), given.bound(given.S, first)
    b, c = given.bound(middle, rest, wrong=wrong)
    near("state", S, last, given.bound(given.S, given.window)[1], c)
    near(
        "outputs",
        y,
        np.concatenate([y_first, y_rest], axis=1),
        a,
        np.concatenate([given.bound(given.S, first)[0], b], axis=1),
    )


def causality(given: Given) -> None:
    """2. Outputs do not depend on later tokens: token by token bit for bit, even if those are NaN or infinite; a matrix form
    may multiply them by zero, and choose its pivots among them."""
    at, sequential = given.tokens // 2, given.contract.order == "sequential"
    ill = np.nan if sequential else 3.0
    other = each(lambda a: np.concatenate([a[:, :at], np.full_like(a[:, at:], ill)], axis=1), given.window)
    with np.errstate(all="ignore"):
        y, z = (given.scan(given.S, window)[0][:, :at] for window in (given.window, other))
    if sequential:
        equal("outputs before NaN", y, z)
        return
    near("outputs before other tokens", y, z, *(given.bound(given.S, w)[0][:, :at] for w in (given.window, other)))


def twice(given: Given) -> None:
    """6. The same call gives the same bits, and its arguments stay as they are."""
    S, window = given.S.copy(), each(np.copy, given.window)
    run = given.capability("scan").run
    one, other = run(S, window, given.params), run(S, window, given.params)
    equal("outputs", np.asarray(one[0]), np.asarray(other[0]))
    equal("states", np.asarray(one[1]), np.asarray(other[1]))
    equal("the state before", S, given.S)


def no_ops(given: Given) -> None:
    """7. Tokens that are not live change nothing, wherever they are."""
    count = given.tokens
    live = np.zeros((len(given.S), 2 * count), dtype=bool)
    live[:, 1::2] = True
    holes = np.repeat(np.arange(count), 2)[None].repeat(len(given.S), 0)
    filled = along(given.window, holes)
    y, S = given.capability("scan_masked").run(given.S.copy(), filled, given.params, live)
    y_plain, S_plain = given.scan(given.S, given.window)
    bounds = given.bound(given.S, given.window)
    near("outputs", np.asarray(y, dtype=np.float64)[:, 1::2], y_plain, bounds[0], bounds[0])
    near("state", np.asarray(S, dtype=np.float64), S_plain, bounds[1], bounds[1])


def batch_permutation(given: Given) -> None:
    """8. A row has the same bits at any index, and next to rows that are not finite."""
    order = np.arange(len(given.S))[::-1].copy()
    y, S = given.scan(given.S, given.window)
    moved = given.scan(rows(given.S, order), rows(given.window, order))
    equal("outputs of rows that moved", y[order], moved[0])
    equal("states of rows that moved", S[order], moved[1])
    ill = each(lambda a: np.concatenate([a[:1], np.full_like(a[1:], np.nan)]), given.window)
    with np.errstate(all="ignore"):
        equal("outputs next to NaN", y[0], given.scan(given.S, ill)[0][0])


def sibling_permutation(given: Given) -> None:
    """10. A tree with its siblings renumbered has the same outputs at the same nodes."""
    parents, order = np.array([-1, 0, 0, 1]), np.array([0, 2, 1, 3])
    renumbered = np.array([-1, 0, 0, 2])
    window, count = prefix(given.window, 4), len(given.S)
    y, a = given.tree(np.tile(parents, (count, 1)), window)
    z, b = given.tree(np.tile(renumbered, (count, 1)), along(window, np.tile(order, (count, 1))))
    near("outputs", y[:, order], z, a[:, order], b)


def chain_is_a_tree(given: Given) -> None:
    """11. A chain is the tree with one path."""
    chain = np.tile(np.arange(-1, given.tokens - 1), (len(given.S), 1))
    y, bound = given.tree(chain, given.window)
    near("outputs", y, given.scan(given.S, given.window)[0], bound, given.bound(given.S, given.window)[0])


def tree_is_its_chains(given: Given) -> None:
    """11, 12. Every node has the output at the end of its path's chain; siblings with equal tokens have the same."""
    parents, paths = np.array([-1, 0, 0, 1]), ([0], [0, 1], [0, 2], [0, 1, 3])
    window, count = prefix(given.window, 4), len(given.S)
    y, bound = given.tree(np.tile(parents, (count, 1)), window)
    for node, path in enumerate(paths):
        chain = along(window, np.tile(np.array(path), (count, 1)))
        z = given.scan(given.S, chain)[0][:, -1]
        near(f"output of node {node}", y[:, node], z, bound[:, node], given.bound(given.S, chain)[0][:, -1])


def affine_in_state(given: Given) -> None:
    """13. y(S + S') - y(S) - y(S') + y(0) = 0, and likewise for the state."""
    other = np.roll(given.S, 1, axis=-1)
    parts = (given.S + other, given.S, other, np.zeros_like(given.S))
    found, bounds = [given.scan(S, given.window) for S in parts], [given.bound(S, given.window) for S in parts]
    for i, what in enumerate(("outputs", "state")):
        near(what, found[0][i] + found[3][i], found[1][i] + found[2][i], *(bound[i] for bound in bounds))


def scaled(given: Given, factor: float) -> tuple[Array, Array]:
    name = RECURRENCES[given.kind].linear
    return given.scan(factor * given.S, replace(given.window, **{name: factor * getattr(given.window, name)}))


def doubling(given: Given) -> None:
    """14. Doubling the state and the writes doubles outputs and state, bit for bit."""
    for one, other in zip(scaled(given, 2.0), given.scan(given.S, given.window), strict=True):
        equal("doubled", one, 2.0 * other)


def sign(given: Given) -> None:
    """19. Negating the state and the writes negates outputs and state, bit for bit."""
    for one, other in zip(scaled(given, -1.0), given.scan(given.S, given.window), strict=True):
        equal("negated", one, -other)


def reset(given: Given) -> None:
    """15. After a token with decay 0 nothing depends on the earlier state."""
    forgetting = RECURRENCES[given.kind].forgetting
    assert forgetting is not None
    first, params = forgetting(tokens(given.window, slice(0, 1)), given.params)
    run = concat(first, given.window)
    one, other = given.scan(given.S, run, params), given.scan(np.ones_like(given.S), run, params)
    equal("outputs", one[0], other[0])
    equal("state", one[1], other[1])


def repeated_groups(given: Given) -> None:
    """17. B and C of a group, repeated for each of its heads, are groups of one head."""
    times = given.window.x.shape[2] // given.window.B.shape[2]
    wide = replace(given.window, **{name: np.repeat(getattr(given.window, name), times, axis=2) for name in ("B", "C")})
    one, other = given.scan(given.S, given.window), given.scan(given.S, wide)
    for a, b, what, bound in zip(one, other, ("outputs", "state"), given.bound(given.S, given.window), strict=True):
        near(what, a, b, bound, bound)


def head_permutation(given: Given) -> None:
    """18. Permuting heads, and their groups, permutes the outputs, bit for bit."""
    each_head = given.window.x.shape[2] // given.window.B.shape[2]
    groups = np.arange(given.window.B.shape[2])[::-1]
    heads = (groups[:, None] * each_head + np.arange(each_head)).ravel()
    w, p = given.window, given.params
    orders = {"x": heads, "dt": heads, "z": heads, "B": groups, "C": groups}
    cut = {name: None if (a := getattr(w, name)) is None else np.take(a, order, axis=2) for name, order in orders.items()}
    moved = replace(w, **cut)
    named = {name: None if (a := getattr(p, name)) is None else a[heads] for name in ("A", "D", "dt_bias")}
    one, other = given.scan(given.S, w), given.scan(given.S[:, heads], moved, replace(p, **named))
    equal("outputs", one[0][:, :, heads], other[0])
    equal("state", one[1][:, heads], other[1])


def zero_states(given: Given) -> None:
    """18. States that are zero, with B and C zero there, change nothing and stay zero."""
    wide = replace(given.window, **{name: padded(getattr(given.window, name)) for name in ("B", "C")})
    one, other = given.scan(given.S, given.window), given.scan(padded(given.S), wide)
    a, b = given.bound(given.S, given.window)
    near("outputs", one[0], other[0], a, a)
    near("state", one[1], other[1][..., : given.S.shape[-1]], b, b)
    equal("the zeros", other[1][..., given.S.shape[-1] :], 0 * other[1][..., given.S.shape[-1] :])


def padded(a: Array) -> Array:
    return np.concatenate([a, np.zeros((*a.shape[:-1], 3))], axis=-1)


def looser_contract(given: Given) -> None:
    """22. A looser contract has no smaller bounds: a law of the suite itself."""
    narrow = JUDGED[given.kind].bounds.scan(given.S, given.window, given.params, replace(given.contract, state="bf16"))
    for pair, bound in zip(narrow, given.bound(given.S, given.window), strict=True):
        if np.any(pair.error < bound):
            raise Broken("the bound of a bf16 state is below that of the contract")


@dataclass(frozen=True)
class Law:
    """`of` are the recurrences it applies to, `needs` the operations in addition to `scan`, `kills` the faults it finds."""

    holds: Callable[[Given], None]
    of: Callable[[Kind], object]
    needs: tuple[str, ...]
    kills: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.holds.__name__

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(kind.name for kind in RECURRENCES.values() if self.of(kind))

    def takes(self, kind: str, subject: Subject) -> bool:
        """Whether a subject has the operations, for the gates that `given_of` draws: one decay per head."""
        needed = [subject.capabilities.get(f"{kind}.{name}") for name in ("scan", *self.needs)]
        return kind in self.kinds and all(one and "head" in one.limits.options.get("gate", ("head",)) for one in needed)


def every(kind: Kind) -> bool:
    return True


def linear(kind: Kind) -> bool:
    return bool(kind.linear)


def affine(kind: Kind) -> bool:
    return kind.affine


def forgets(kind: Kind) -> bool:
    return kind.forgetting is not None


def grouped(kind: Kind) -> bool:
    return kind.groups


LAWS = (
    Law(split, every, (), ("forgets_what_was_before", "counts_the_first_state_twice")),
    Law(causality, every, (), ("reads_ahead",)),
    Law(twice, every, (), ("writes_its_argument",)),
    Law(no_ops, every, ("scan_masked",), ("no_ops_are_tokens",)),
    Law(batch_permutation, every, (), ("leaks_between_rows", "sums_over_rows")),
    Law(sibling_permutation, every, ("verify_tree",), ("tree_as_chain",)),
    Law(chain_is_a_tree, every, ("verify_tree",), ("nodes_see_the_root_only",)),
    Law(tree_is_its_chains, every, ("verify_tree",), ("tree_as_chain", "nodes_see_the_root_only")),
    Law(affine_in_state, affine, (), ("clamps_the_state",)),
    Law(doubling, linear, (), ("adds_an_eps", "clamps_the_state")),
    Law(sign, linear, (), ("adds_an_eps", "takes_absolute_values")),
    Law(reset, forgets, (), ("floors_the_decay",)),
    Law(repeated_groups, grouped, (), ("takes_groups_in_turn",)),
    Law(head_permutation, grouped, (), ("first_heads_rate",)),
    Law(zero_states, grouped, (), ("drops_the_last_state",)),
    Law(looser_contract, every, (), ()),
)  # fmt: skip
"""The catalogue; the numbers in the docstrings are those of the relations in docs/fuzzing.md."""
