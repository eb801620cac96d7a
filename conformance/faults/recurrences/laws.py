"""Scans that break a relation between runs, for each recurrence: what the metamorphic laws must find without an oracle."""

import numpy as np

from ssmspec_ref.contract import Adapter, Subject
from ssmspec_ref.layers.recurrences import RECURRENCES
from ssmspec_ref.shapes import Array

from ...mistakes.mistake import Mistake, after, before
from ...mistakes.operators import drop, zero
from ..fault import single
from .arithmetic import in_turn


def reads_ahead(y: Array) -> Array:
    y[:, :-1] += 1e-3 * y[:, 1:]
    return y


def writes_its_argument(y: Array, S: Array, S_next: Array) -> Array:
    S[...] = S_next
    return y


def leaks_between_rows(S: Array) -> Array:
    """Bug class SLOT-SCOPE."""
    mixed = S.copy()
    mixed[0] += 0.01 * S[-1]
    return mixed


def nodes_see_the_root_only(ancestors: Array) -> Array:
    """Bug class TREE-TOPO."""
    star = np.broadcast_to(np.eye(ancestors.shape[1], dtype=bool), ancestors.shape).copy()
    star[:, :, 0] = True
    return star


right = before("right", "")
SCANS: tuple[Mistake, ...] = (
    right,
    before("forgets_what_was_before", "The state starts from zero. Bug class INIT-DROP.", S=zero),
    before("counts_the_first_state_twice", "", S=lambda S: 2 * S),
    after("reads_ahead", "", y=reads_ahead),
    after("writes_its_argument", "", y=writes_its_argument),
    before("no_ops_are_tokens", "The mask is not read. Bug class PAD-LEAK.", live=None),
    before(S=leaks_between_rows),
    after("sums_over_rows", "", y=lambda y: y + 0.0 * y.sum(axis=0)),
    before("clamps_the_state", "", S=lambda S: np.clip(S, -1.0, 1.0)),
    after("adds_an_eps", "", y=lambda y: y + 1e-6),
    after("takes_absolute_values", "", S_next=lambda S_next: np.abs(S_next)),
    after("floors_the_decay", "The decay has a floor above 0.", S_next=lambda S, S_next: S_next + 1e-9 * S),
    before("takes_groups_in_turn", "Bug class GROUP-MAP.", B=in_turn, C=in_turn),
    before("first_heads_rate", "", A=lambda A: np.full_like(A, A[0])),
    before(
        "drops_the_last_state",
        "The mask of the last tile of states hides one state too many.",
        C=lambda C: drop(-1, C.shape[-1] - 1)(C),
    ),
)
TREES: tuple[Mistake, ...] = (
    before(
        "tree_as_chain",
        "Bug class TREE-MASK.",
        ancestors=lambda ancestors: np.broadcast_to(np.tri(ancestors.shape[1], dtype=bool), ancestors.shape).copy(),
    ),
    before(ancestors=nodes_see_the_root_only),
)


def subject(kind: str, wrong: Mistake = right) -> Subject:
    """A recurrence with one thing wrong."""
    scan, tree = (right, wrong) if wrong in TREES else (wrong, right)
    scans = single((f"{kind}.scan", f"{kind}.scan_masked"), scan)
    trees = single(f"{kind}.verify_tree", tree.over(RECURRENCES[kind].tree.scan))
    return Subject(wrong.__name__, {**scans.capabilities, **trees.capabilities})


def of_name(kind: str, name: str) -> Subject:
    """The subject of a fault."""
    return subject(kind, next(wrong for wrong in (*SCANS, *TREES) if wrong.__name__ == name))


def adapter() -> Adapter:
    return Adapter("faulty laws", "1", tuple(subject("ssd", wrong) for wrong in (*SCANS[1:], *TREES)))
