"""Relations between runs of one implementation, each a function of its own: no oracle's value is needed.

A law takes what is `Given`, a recurrence's operations and one drawn input, and raises `Broken` where it does not hold. What
is exact in any order and precision is compared with ==; what rounds, by the running bounds of both sides, added. `LAWS` lists
them with the faults that each one finds (`conformance.faults.laws`).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ssmspec_ref.contract import Subject
from ssmspec_ref.records import along, concat, each, prefix, rows
from ssmspec_ref.shapes import Array

from .relations import LINEAR, MODULES, Broken, Given, equal, near, tokens


def split(given: Given) -> None:
    """1. A run is its first part, then the rest from what that left."""
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
    """2. Outputs do not depend on later tokens: token by token bit for bit, and these may be no numbers; a matrix form may
    multiply them by zero, and choose its pivots among them."""
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
    """7. Tokens that are not live change nothing, wherever they stand."""
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
    """8. A row has its bits wherever it stands, and beside rows that are no numbers."""
    order = np.arange(len(given.S))[::-1].copy()
    y, S = given.scan(given.S, given.window)
    moved = given.scan(rows(given.S, order), rows(given.window, order))
    equal("outputs of rows that moved", y[order], moved[0])
    equal("states of rows that moved", S[order], moved[1])
    ill = each(lambda a: np.concatenate([a[:1], np.full_like(a[1:], np.nan)]), given.window)
    with np.errstate(all="ignore"):
        equal("outputs beside NaN", y[0], given.scan(given.S, ill)[0][0])


def sibling_permutation(given: Given) -> None:
    """10. A tree numbered otherwise has the same outputs at the same nodes."""
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
    """11, 12. Every node has the output that the chain of its path has at its end; twins have the same."""
    parents, paths = np.array([-1, 0, 0, 1]), ([0], [0, 1], [0, 2], [0, 1, 3])
    window, count = prefix(given.window, 4), len(given.S)
    y, bound = given.tree(np.tile(parents, (count, 1)), window)
    for node, path in enumerate(paths):
        chain = along(window, np.tile(np.array(path), (count, 1)))
        z = given.scan(given.S, chain)[0][:, -1]
        near(f"output of node {node}", y[:, node], z, bound[:, node], given.bound(given.S, chain)[0][:, -1])


def affine_in_state(given: Given) -> None:
    """13. y(S + S') - y(S) - y(S') + y(0) = 0, and so for the state."""
    other = np.roll(given.S, 1, axis=-1)
    parts = (given.S + other, given.S, other, np.zeros_like(given.S))
    found, bounds = [given.scan(S, given.window) for S in parts], [given.bound(S, given.window) for S in parts]
    for i, what in enumerate(("outputs", "state")):
        near(what, found[0][i] + found[3][i], found[1][i] + found[2][i], *(bound[i] for bound in bounds))


def scaled(given: Given, factor: float) -> tuple[Array, Array]:
    name = LINEAR[given.kind]
    return given.scan(factor * given.S, replace(given.window, **{name: factor * getattr(given.window, name)}))


def doubling(given: Given) -> None:
    """14. Twice the state and what is written: twice the outputs and the state, bit for bit."""
    for one, other in zip(scaled(given, 2.0), given.scan(given.S, given.window), strict=True):
        equal("doubled", one, 2.0 * other)


def sign(given: Given) -> None:
    """19. The negatives of state and of what is written: the negatives, bit for bit."""
    for one, other in zip(scaled(given, -1.0), given.scan(given.S, given.window), strict=True):
        equal("negated", one, -other)


def reset(given: Given) -> None:
    """15. Behind a token whose decay is 0 no earlier state shows."""
    first = tokens(given.window, slice(0, 1))
    if given.kind == "delta":
        first, params = replace(first, g=np.full_like(first.g, -1000.0)), given.params
    else:
        params = replace(given.params, A=np.minimum(given.params.A, -0.5))
        first = replace(first, dt=np.full_like(first.dt, 4000.0))
        first = first if given.kind == "ssd" else replace(first, x=first.x / 4096)
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
    """18. Heads in another order, groups with them: outputs in that order, bit for bit."""
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
    """22. A looser contract allows no less: a law of the suite itself."""
    narrow = MODULES[given.kind].scan(given.S, given.window, given.params, replace(given.contract, state="bf16"))
    for pair, bound in zip(narrow, given.bound(given.S, given.window), strict=True):
        if np.any(pair.error < bound):
            raise Broken("the bound of a bf16 state is below that of the contract")


@dataclass(frozen=True)
class Law:
    """`kinds` are the recurrences of which it holds, `needs` the operations beside `scan`, `kills` the faults it finds."""

    holds: Callable[[Given], None]
    kinds: tuple[str, ...]
    needs: tuple[str, ...]
    kills: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.holds.__name__

    def takes(self, kind: str, subject: Subject) -> bool:
        return kind in self.kinds and all(f"{kind}.{name}" in subject.capabilities for name in ("scan", *self.needs))


ALL, LINEAR_ONES, SSD = ("ssd", "delta", "selective"), ("ssd", "delta"), ("ssd",)
LAWS = (
    Law(split, ALL, (), ("forgets_what_was_before", "counts_the_first_state_twice")),
    Law(causality, ALL, (), ("reads_ahead",)),
    Law(twice, ALL, (), ("writes_its_argument",)),
    Law(no_ops, ALL, ("scan_masked",), ("no_ops_are_tokens",)),
    Law(batch_permutation, ALL, (), ("leaks_between_rows", "sums_over_rows")),
    Law(sibling_permutation, ALL, ("verify_tree",), ("tree_as_chain",)),
    Law(chain_is_a_tree, ALL, ("verify_tree",), ("nodes_see_the_root_only",)),
    Law(tree_is_its_chains, ALL, ("verify_tree",), ("tree_as_chain", "nodes_see_the_root_only")),
    Law(affine_in_state, ALL, (), ("clamps_the_state",)),
    Law(doubling, LINEAR_ONES, (), ("adds_an_eps", "clamps_the_state")),
    Law(sign, LINEAR_ONES, (), ("adds_an_eps", "takes_absolute_values")),
    Law(reset, ALL, (), ("floors_the_decay",)),
    Law(repeated_groups, SSD, (), ("takes_groups_in_turn",)),
    Law(head_permutation, SSD, (), ("first_heads_rate",)),
    Law(zero_states, SSD, (), ("drops_the_last_state",)),
    Law(looser_contract, ALL, (), ()),
)  # fmt: skip
"""The catalogue; numbers in the docstrings are those of the relations in docs/fuzzing.md."""
