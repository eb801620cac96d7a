"""Windows of every acceptance algorithm, to be enumerated, on rational models that differ in every context and have zeros."""

from fractions import Fraction

import pytest

from ssmspec_ref.accept import (
    drafts,
    draws,
    multi_step,
    naive,
    proposals,
    rejection,
)
from ssmspec_ref.accept.distribution import point_mass
from ssmspec_ref.accept.exact_law import law_of_model, law_of_rounds, rational_model, total_variation

F = Fraction
WITNESS = [F(5, 10), F(3, 10), F(2, 10)]
PAIRS = {
    **{f"v3-seed{s}": (rational_model(f"p{s}", 3), rational_model(f"q{s}", 3)) for s in range(2)},
    "v4-seed0": (rational_model("p", 4), rational_model("q", 4)),
    "v4-no-zeros": (rational_model("p", 4, zeros=0), rational_model("q", 4, zeros=0)),
    "equal": (rational_model("p", 3), rational_model("p", 3)),
    "disjoint": (lambda context: [F(1, 3), F(2, 3), 0, 0], lambda context: [0, 0, F(1, 4), F(3, 4)]),
    "mass-moves": (lambda context: [F(9, 20), F(9, 20), F(1, 10)], lambda context: [F(1, 20), F(3, 20), F(4, 5)]),
    "certain-target": (lambda context: point_mass(len(context) % 3, 3), rational_model("q", 3)),
    "certain-draft": (rational_model("p", 3), lambda context: point_mass(len(context) % 3, 3)),
}
pairs = pytest.mark.parametrize(("p", "q"), PAIRS.values(), ids=PAIRS)


def constant(row):
    return lambda context: row


def chain_round(p, q, count, *, laws_from=None, rows_from=None, dice_from=lambda dice: dice):
    """A window of a sampled chain. `laws_from` and `rows_from` are for faults: another q, other target rows."""

    def one_round(context, dice):
        dice = dice_from(dice)
        draft, laws = draws.grow_chain(q, context, count, dice)
        rows = [p((*context, *draft[:t])) for t in range(count + 1)]
        laws = laws if laws_from is None else [laws_from((*context, *draft[:t])) for t in range(count)]
        rows = rows if rows_from is None else rows_from(rows)
        return rejection.rejection(draft, rows, laws, dice).tokens

    return one_round


def tree_round(p, q, branching, draw, laws, *, dice_from=lambda dice: dice):
    """A window of a sampled tree: children by `draw`, accepted by the `laws` of `proposals`."""

    def one_round(context, dice):
        dice = dice_from(dice)
        tree, q_after = draws.grow_tree(q, context, branching, draw, dice)
        return multi_step.multi_step(tree, draws.after_nodes(p, context, tree), laws(tree, q_after), dice).tokens

    return one_round


def naive_round(p, q, branching, draw):
    def one_round(context, dice):
        tree, _ = draws.grow_tree(q, context, branching, draw, dice)
        return naive.naive(tree, draws.after_nodes(p, context, tree), dice).tokens

    return one_round


def trie_round(p, q, rows, count, laws):
    """A window of several i.i.d. chains, merged into a trie."""

    def one_round(context, dice):
        merged = drafts.trie(0, [draws.grow_chain(q, context, count, dice)[0] for _ in range(rows)]).tree
        after_p, after_q = (draws.after_nodes(model, context, merged) for model in (p, q))
        if laws is None:
            return naive.naive(merged, after_p, dice).tokens
        return multi_step.multi_step(merged, after_p, laws(merged, after_q), dice).tokens

    return one_round


def certain(tree, q_after):
    return proposals.point_masses(tree, len(q_after[0]))


def top_k(q, count, dice, first):
    return draws.top_k(q, count)


def sorted_draw(q, count, dice, first):
    return sorted(draws.without_replacement(q, count, dice, first), key=lambda token: -q[token])


def distance(one_round, p, length):
    """Total variation between one window, followed by plain decoding, and plain decoding alone."""

    def begin(context, dice):
        return one_round(context, dice) if not context else (dice.pick(p(context), 0),)

    return total_variation(law_of_rounds(begin, length), law_of_model(p, length))


TREES = {
    "iid": (draws.iid, proposals.iid),
    "iid-twins-skipped": (draws.iid, proposals.without_replacement),
    "without-replacement": (draws.without_replacement, proposals.without_replacement),
    "top-k": (top_k, certain),
    "sorted-as-point-masses": (sorted_draw, certain),
}
trees = pytest.mark.parametrize(("draw", "laws"), TREES.values(), ids=TREES)


def excluded_first(q, count, dice, first):
    """A slot filled with a token that q excludes, then the draws: what a static tree does when a filter empties it."""
    return [list(q).index(0), *draws.iid(q, count - 1, dice, first + 1)]


EXCLUDED = (constant([F(1, 2), F(1, 3), F(1, 6)]), constant([F(1, 4), 0, F(3, 4)]))
