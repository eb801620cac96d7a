"""Acceptance that walks, draws or stops wrongly, over the reference's."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ssmspec_ref.contract import Adapter
from ssmspec_ref.shapes import Array

from ...adapters.reference_parts.acceptance import Runs, accept_greedy, accept_sampled
from ..single import single


def ignores_the_end(tokens: Array, parents: Array, choice: Array, budget: Array, eos: tuple[int, ...]) -> Runs:
    """An end-of-sequence token inside a window does not end the run. Bug class STOP."""
    return accept_greedy(tokens, parents, choice, budget, ())


def spends_one_more(tokens: Array, parents: Array, choice: Array, budget: Array, eos: tuple[int, ...]) -> Runs:
    """The target's own token is not counted in the budget."""
    return accept_greedy(tokens, parents, choice, budget + 1, eos)


def last_twin(tokens: Array, parents: Array, choice: Array, budget: Array, eos: tuple[int, ...]) -> Runs:
    """Of two siblings with the same token the walk goes to the last."""
    t = tokens.shape[1]
    latest = tokens.copy()
    for b, row in enumerate(parents):
        for node in range(1, t):
            twins = (row[node + 1 :] == row[node]) & (tokens[b, node + 1 :] == tokens[b, node])
            latest[b, node] = -5 if row[node] >= 0 and twins.any() else tokens[b, node]
    return accept_greedy(latest, parents, choice, budget, eos)


def path_without_root(tokens: Array, parents: Array, choice: Array, budget: Array, eos: tuple[int, ...]) -> Runs:
    """The path holds the drafts only, so that the root never enters the state. Bug class ACCEPT-IDX."""
    emitted, path, advanced, ended = accept_greedy(tokens, parents, choice, budget, eos)
    return emitted, np.concatenate([path[:, 1:], np.full_like(path[:, :1], -1)], axis=1), advanced, ended


def other_stride(tokens: Array, parents: Array, choice: Array, budget: Array, eos: tuple[int, ...]) -> Runs:
    """The rows of the path are read with a stride that is one node too small. sgl-project/sglang#26866."""
    emitted, path, advanced, ended = accept_greedy(tokens, parents, choice, budget, eos)
    rows, nodes = np.indices(path.shape)
    return emitted, path.ravel()[rows * max(path.shape[1] - 1, 1) + nodes], advanced, ended


def independent_siblings(tokens: Array, parents: Array, p: Array, q: Array, *rest: Any) -> Runs:
    """Siblings drawn without replacement are accepted as if each was drawn from q."""
    coins, picks, budget, eos, law = rest
    law = "iid" if law == "without_replacement" else law
    return accept_sampled(tokens, parents, p, q, coins, picks, budget, eos, law)


def picks_from_the_target(tokens: Array, parents: Array, p: Array, q: Array, *rest: Any) -> Runs:
    """After a rejection the token is picked from p instead of the residual."""
    _, picks, *others = rest
    right = accept_sampled(tokens, parents, p, q, *rest)
    emitted = right[0].copy()
    for b, count in enumerate(right[2]):
        last = right[1][b, count - 1]
        if others[-1] != "naive" and not right[3][b]:
            emitted[b, count - 1] = np.searchsorted(np.cumsum(p[b, last]), picks[b, last], side="right")
    return emitted, *right[1:]


def noise_of_the_parent(tokens: Array, parents: Array, p: Array, q: Array, coins: Array, *rest: Any) -> Runs:
    """A child's coin is read at its parent's index."""
    return accept_sampled(tokens, parents, p, q, np.take_along_axis(coins, np.maximum(parents, 0), axis=1), *rest)


WRONG: dict[str, tuple[Callable[..., Any], ...]] = {
    "acceptance.greedy": (ignores_the_end, spends_one_more, last_twin, path_without_root, other_stride),
    "acceptance.sampled": (independent_siblings, picks_from_the_target, noise_of_the_parent),
}


def adapter() -> Adapter:
    return Adapter("faulty acceptance", "1", tuple(single(name, run) for name, runs in WRONG.items() for run in runs))
