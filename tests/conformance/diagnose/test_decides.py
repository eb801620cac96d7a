"""The entry of a mask, a tree, a path or a count that decides is named; none is where the failure depends on none."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from conformance.diagnose.entries.decides import ranges
from conformance.diagnose.entries.listed import listed
from conformance.diagnose.facts import facts
from conformance.suite import find
from ssmspec_ref import conv, ssd
from ssmspec_ref.attention import KVState, compact
from ssmspec_ref.contract import Capability, NumericContract
from ssmspec_ref.shapes import Ancestors, Array
from ssmspec_ref.ssd import tree as ssd_tree

from .invented import single


def told(run: Callable[..., Any], case: str, search: bool = True) -> dict[str, str]:
    specification, failing = find(case)
    return facts(specification, Capability(run, NumericContract()), failing, [failing], [], search=search)


def dead_at_the_end_of_a_chunk(S: Array, window: Any, params: Any, live: Array) -> tuple[Array, ...]:
    """A dead token at the end of a chunk of 8 halves the state."""
    y, S_next = ssd.scan(S, window, params, live)
    ends = live[:, 7::8]
    return single(y, np.where((~ends).any(axis=1)[:, None, None, None], 0.5 * S_next, S_next))


def without_D(S: Array, window: Any, params: Any, live: Array) -> tuple[Array, ...]:
    return single(*ssd.scan(S, window, replace(params, D=None), live))


def late_nodes(S: Array, window: Any, ancestors: Ancestors, params: Any) -> Array:
    """Every node from 6 on sees the node before it and its ancestors."""
    seen = ancestors.copy()
    for node in range(6, seen.shape[1]):
        seen[:, node] = seen[:, node - 1]
        seen[:, node, node] = True
    return np.float32(ssd_tree.scan(S, window, seen, params))


def full_turn(M: Array, u: Array, path: Array) -> Array:
    """A path of a multiple of 3 nodes pushes nothing."""
    skipped = (path >= 0).sum(axis=1) % 3 == 0
    return single(conv.commit_path(M, u, np.where(skipped[:, None], -1, path)))[0]


def first_child(K: Array, V: Array, length: Array, path: Array) -> tuple[Array, ...]:
    """A path whose second node is node 1 is taken for one that is in order already."""
    kept = np.where((path[:, 1:2] == 1), np.where(path >= 0, np.arange(path.shape[1]), -1), path)
    state = compact(KVState(K, V, length), kept)
    return single(state.K, state.V)


DECIDED = [
    (
        dead_at_the_end_of_a_chunk,
        "ssd.scan_masked/b1,t12,g1,h1,p1,n1/plain/gentle/s0",
        "live=111111101111 (11 of 12 are 1) fails, and passes if token 7 were live",
    ),
    (
        full_turn,
        "conv.commit_path/b1,t4,c1,w3/plain/normal/s1",
        "nodes on the path in row 0: fails with every 3rd from 3 to 12, passes with 0 to 2, 4, 5, 7, 8, 10, 11, 13",
    ),
    (
        late_nodes,
        "ssd.verify_tree/b1,t9,g1,h1,p2,n3/plain/gentle/s0",
        "a chain in which node 6 hangs on node 4 fails, and passes if node 6 hung on node 5",
    ),
    (
        first_child,
        "attention.compact/b3,t7,l1,g1,e1/ragged=off/gentle/s0",
        "path=0 1 4 -1 -1 -1 -1 fails, and passes if in row 0 node 2 of the path were 2, or if in row 0 node 1 of the path "
        "were 2",
    ),
]


@pytest.mark.parametrize(("run", "case", "says"), DECIDED, ids=[run.__name__ for run, *_ in DECIDED])
def test_the_entry_that_decides_is_named(run: Callable[..., Any], case: str, says: str) -> None:
    assert says in told(run, case)["decides"]


def test_a_failure_that_no_mask_has_a_part_in_says_so_and_names_no_entry() -> None:
    found = told(without_D, "ssd.scan_masked/b1,t12,g1,h1,p1,n1/plain/gentle/s0")
    assert found["decides"] == "live does not decide: it fails also with every token live"


class Wraps:
    """A counter of tokens that wraps at 5: the window that takes it there adds nothing to its output."""

    def __init__(self, S: Array, params: Any) -> None:
        self.S, self.params, self.seen = S, params, 0

    def verify(self, window: Any, parents: Any = None) -> Array:
        y, self.next = ssd.scan(self.S, window, self.params)
        self.seen += 1
        return np.float32(0 * y if self.seen == 5 else y)

    def commit(self, advanced: Array, path: Array) -> None:
        self.S = self.next

    def state(self) -> Array:
        return np.float32(self.S)


def test_the_wrong_windows_of_a_history_are_counted() -> None:
    case = "ssd.buffered_step/b1,g1,h1,p1,n1,j7/plain/gentle/s0"
    assert told(Wraps, case, search=False)["extent"].endswith("; wrong in 1 of 7 windows: 4")


def test_a_long_row_shows_the_wrong_place_and_its_totals() -> None:
    live = np.ones(80, dtype=bool)
    live[40] = False
    assert listed("live", live, 40) == "live[21..44]=111111111111111111101111 (79 of 80 are 1)"
    assert listed("live", live) == "live[56..79]=111111111111111111111111 (79 of 80 are 1)"
    assert listed("parents", np.arange(30) - 1, 2) == f"parents[0..23]={' '.join(map(str, range(-1, 23)))} (of 30)"
    assert listed("live", live[:6]) == "live=111111"


@pytest.mark.parametrize(
    ("numbers", "says"),
    [
        ([3, 6, 9], "every 3rd from 3 to 9"),
        ([0, 1, 2, 4], "0 to 2, 4"),
        ([5, 6], "5, 6"),
        ([1, 3, 6, 10, 15, 21, 28, 36, 45], "1, 3, 6, 10, 15, 21, 28, 36, .."),
    ],
)
def test_numbers_are_told_in_ranges(numbers: list[int], says: str) -> None:
    assert ranges(numbers) == says
