"""Scans that break a relation between runs, for each recurrence: what the metamorphic laws must find without an oracle."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ssmspec_ref.contract import FLOAT64, Adapter, Capability, Subject
from ssmspec_ref.layers.recurrences import RECURRENCES
from ssmspec_ref.shapes import Array

Runs = tuple[Array, Array]


def right(rule: Any, S: Array, window: Any, params: Any, live: Any = None) -> Runs:
    return rule.scan(S, window, params, live)


def forgets_what_was_before(rule: Any, S: Array, window: Any, params: Any, live: Any = None) -> Runs:
    """The state starts from zero. Bug class INIT-DROP."""
    return rule.scan(np.zeros_like(S), window, params, live)


def counts_the_first_state_twice(rule: Any, S: Array, window: Any, params: Any, live: Any = None) -> Runs:
    return rule.scan(2 * S, window, params, live)


def reads_ahead(rule: Any, S: Array, window: Any, params: Any, live: Any = None) -> Runs:
    y, S_next = rule.scan(S, window, params, live)
    y[:, :-1] += 1e-3 * y[:, 1:]
    return y, S_next


def writes_its_argument(rule: Any, S: Array, window: Any, params: Any, live: Any = None) -> Runs:
    y, S_next = rule.scan(S, window, params, live)
    S[...] = S_next
    return y, S_next


def no_ops_are_tokens(rule: Any, S: Array, window: Any, params: Any, live: Any = None) -> Runs:
    """The mask is not read. Bug class PAD-LEAK."""
    return rule.scan(S, window, params)


def leaks_between_rows(rule: Any, S: Array, window: Any, params: Any, live: Any = None) -> Runs:
    """Bug class SLOT-SCOPE."""
    mixed = S.copy()
    mixed[0] += 0.01 * S[-1]
    return rule.scan(mixed, window, params, live)


def sums_over_rows(rule: Any, S: Array, window: Any, params: Any, live: Any = None) -> Runs:
    y, S_next = rule.scan(S, window, params, live)
    return y + 0.0 * y.sum(axis=0), S_next


def clamps_the_state(rule: Any, S: Array, window: Any, params: Any, live: Any = None) -> Runs:
    most = 0.5 * np.abs(S).max()
    return rule.scan(np.clip(S, -1.0, 1.0) if most > 0 else S, window, params, live)


def adds_an_eps(rule: Any, S: Array, window: Any, params: Any, live: Any = None) -> Runs:
    y, S_next = rule.scan(S, window, params, live)
    return y + 1e-6, S_next


def takes_absolute_values(rule: Any, S: Array, window: Any, params: Any, live: Any = None) -> Runs:
    y, S_next = rule.scan(S, window, params, live)
    return y, np.abs(S_next)


def floors_the_decay(rule: Any, S: Array, window: Any, params: Any, live: Any = None) -> Runs:
    """The decay has a floor above 0."""
    y, S_next = rule.scan(S, window, params, live)
    return y, S_next + 1e-9 * S


def takes_groups_in_turn(rule: Any, S: Array, window: Any, params: Any, live: Any = None) -> Runs:
    """Bug class GROUP-MAP."""
    heads, groups = window.x.shape[2], window.B.shape[2]
    turn = np.arange(heads) % groups
    return rule.scan(S, replace(window, B=window.B[:, :, turn], C=window.C[:, :, turn]), params, live)


def first_heads_rate(rule: Any, S: Array, window: Any, params: Any, live: Any = None) -> Runs:
    return rule.scan(S, window, replace(params, A=np.full_like(params.A, params.A[0])), live)


def drops_the_last_state(rule: Any, S: Array, window: Any, params: Any, live: Any = None) -> Runs:
    """The mask of the last tile of states hides one state too many."""
    C = window.C.copy()
    C[..., -1] = 0
    return rule.scan(S, replace(window, C=C), params, live)


def right_tree(rule: Any, S: Array, window: Any, ancestors: Array, params: Any) -> Array:
    return rule.scan(S, window, ancestors, params)


def tree_as_chain(rule: Any, S: Array, window: Any, ancestors: Array, params: Any) -> Array:
    """Bug class TREE-MASK."""
    return rule.scan(S, window, np.broadcast_to(np.tri(ancestors.shape[1], dtype=bool), ancestors.shape).copy(), params)


def nodes_see_the_root_only(rule: Any, S: Array, window: Any, ancestors: Array, params: Any) -> Array:
    """Bug class TREE-TOPO."""
    star = np.broadcast_to(np.eye(ancestors.shape[1], dtype=bool), ancestors.shape).copy()
    star[:, :, 0] = True
    return rule.scan(S, window, star, params)


SCANS: tuple[Callable[..., Runs], ...] = (
    right, forgets_what_was_before, counts_the_first_state_twice, reads_ahead, writes_its_argument, no_ops_are_tokens,
    leaks_between_rows, sums_over_rows, clamps_the_state, adds_an_eps, takes_absolute_values, floors_the_decay,
    takes_groups_in_turn, first_heads_rate, drops_the_last_state,
)  # fmt: skip
TREES: tuple[Callable[..., Array], ...] = (tree_as_chain, nodes_see_the_root_only)


def subject(kind: str, scan: Callable[..., Runs] = right, tree: Callable[..., Array] = right_tree) -> Subject:
    """A recurrence with one thing wrong."""
    rule, over_trees = RECURRENCES[kind].definition, RECURRENCES[kind].tree
    runs: dict[str, Callable[..., Any]] = {
        "scan": partial(scan, rule),
        "scan_masked": partial(scan, rule),
        "verify_tree": partial(tree, over_trees),
    }
    name = scan.__name__ if tree is right_tree else tree.__name__
    return Subject(name, {f"{kind}.{operation}": Capability(run, FLOAT64) for operation, run in runs.items()})


def of_name(kind: str, name: str) -> Subject:
    """The subject of a fault."""
    scans, trees = {s.__name__: s for s in SCANS}, {t.__name__: t for t in TREES}
    return subject(kind, scans[name]) if name in scans else subject(kind, tree=trees[name])


def adapter() -> Adapter:
    return Adapter("faulty laws", "1", tuple(of_name("ssd", run.__name__) for run in (*SCANS[1:], *TREES)))
