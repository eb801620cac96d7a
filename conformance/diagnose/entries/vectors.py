"""The integers and masks of a case's inputs, entry by entry: live tokens, parents, paths, counts, tokens, slots.

Each entry has a value, a simplest value (a live token, the node before as a parent, token 0), and other values that the
contract allows.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ssmspec_ref import tree
from ssmspec_ref.shapes import Array
from ssmspec_ref.tree import PADDING

from ...cases import Case
from ...suite.called import Arguments
from ..leaves import Leaf, changed, leaves

EMPTY = -1
TEXTS = ("tokens", "choice", "prompt", "output", "history")
"""Inputs that hold tokens of a vocabulary; -1 is no token."""
MOST = 400
"""Entries of an input; more are not tried one by one."""

Values = tuple[int, ...]


@dataclass(frozen=True)
class Vector:
    """The entries of one input that may change. `rows` and `places` say where each lies; `now` and `simple` are its value and
    its simplest value; `others(values, n)` are the further values of entry n; `says(n, value)` completes "it passes if ..";
    `made(arguments, values)` sets all entries, `array(values)` is what holds them. `counts` says that each entry is a number
    of tokens or nodes."""

    name: str
    rows: Values
    places: Values
    now: Values
    simple: Values
    others: Callable[[Values, int], Sequence[int]]
    says: Callable[[int, int], str]
    made: Callable[[Arguments, Values], Arguments]
    array: Callable[[Values], Array]
    counts: bool = False


def vectors(case: Case, arguments: Arguments) -> Iterator[Vector]:
    """Every integer and boolean input of a case whose entries can be changed one by one; the masks and trees first."""
    every = [leaf for leaf in leaves(case.operation, arguments) if _integers(leaf.value) and "*" not in leaf.path]
    known = {leaf.name: leaf for leaf in every}
    if {"read", "write"} <= known.keys():
        yield from _slots(known["read"], known["write"])
    for leaf in every:
        made = KINDS.get(leaf.name, _tokens if leaf.name in TEXTS and leaf.value.ndim == 2 else None)
        if made is not None:
            yield from (one for one in made(case, leaf) if 0 < len(one.now) <= MOST)


def _integers(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in "biu"


def _of(
    leaf: Leaf,
    where: Array,
    simple: Array,
    others: Callable[[Array, tuple[int, ...]], Sequence[int]],
    says: Callable[[tuple[int, ...], int], str],
    whole: Callable[[Array], Array] = lambda a: a,
    base: Array | None = None,
    valid: Callable[[Array], bool] = lambda a: True,
) -> Iterator[Vector]:
    """The entries of one array at the positions `where`; `whole` makes the input from it, if that is another array."""
    held = leaf.value if base is None else base
    at = tuple(where.T)
    index = [tuple(int(i) for i in one) for one in where]

    def array(values: Values) -> Array:
        new = held.copy()
        new[at] = values
        return new

    def made(arguments: Arguments, values: Values) -> Arguments:
        if not valid(new := array(values)):
            raise ValueError(f"{leaf.name} would break its rules")
        return changed(arguments, (leaf, lambda _: whole(new)))

    if not index:
        return
    yield Vector(
        leaf.name,
        tuple(one[0] for one in index),
        tuple(one[-1] for one in index),
        tuple(int(v) for v in held[at]),
        tuple(int(v) for v in simple[at]),
        lambda values, n: others(array(values), index[n]),
        lambda n, value: (f"in row {index[n][0]} " if len(index[n]) > 1 and len(held) > 1 else "") + says(index[n], value),
        made,
        array,
    )


def _live(case: Case, leaf: Leaf) -> Iterator[Vector]:
    yield from _flags(leaf, 1, lambda at, value: f"token {at[1]} were {'live' if value else 'dead'}")


def _fresh(case: Case, leaf: Leaf) -> Iterator[Vector]:
    yield from _flags(leaf, 0, lambda at, value: f"row {at[0]} were {'' if value else 'not '}fresh")


def _flags(leaf: Leaf, simple: int, says: Callable[[tuple[int, ...], int], str]) -> Iterator[Vector]:
    """The entries of a mask, of which all may change."""
    where = np.argwhere(np.ones_like(leaf.value))
    yield from _of(leaf, where, np.full_like(leaf.value, simple), lambda a, at: (1 - int(a[at]),), says)


def _parents(case: Case, leaf: Leaf) -> Iterator[Vector]:
    yield from _tree(leaf, leaf.value, lambda a: a)


def _ancestors(case: Case, leaf: Leaf) -> Iterator[Vector]:
    """A tree that is given by the nodes that each node sees."""
    mask = leaf.value
    if mask.ndim != 3 or mask.shape[1] != mask.shape[2]:
        return
    before = np.tril(mask, -1)
    last = mask.shape[1] - 1 - np.argmax(before[:, :, ::-1], axis=2)
    parents = np.where(before.any(axis=2), last, -1)
    parents[~np.einsum("btt -> bt", mask)] = PADDING
    if np.array_equal(tree.ancestors(parents), mask):
        yield from _tree(leaf, parents, tree.ancestors)


def _tree(leaf: Leaf, parents: Array, whole: Callable[[Array], Array]) -> Iterator[Vector]:
    chain = np.broadcast_to(np.arange(parents.shape[1]) - 1, parents.shape)
    yield from _of(
        leaf, np.argwhere(parents >= 0), chain, lambda a, at: [n for n in range(at[1])[::-1] if a[at[0], n] != PADDING],
        lambda at, value: f"node {at[1]} hung on node {value}", whole, parents,
    )  # fmt: skip


def _path(case: Case, leaf: Leaf) -> Iterator[Vector]:
    """The nodes of a path after its root; and how many nodes it has."""
    path = leaf.value
    if path.ndim != 2:
        return
    most = path.shape[1] - 1

    def ascends(a: Array) -> bool:
        return all((np.diff(row[row >= 0]) > 0).all() and (row[row >= 0] <= most).all() for row in a)

    def between(a: Array, at: tuple[int, ...]) -> Sequence[int]:
        after = [int(n) for n in a[at[0], at[1] + 1 :] if n >= 0]
        return [n for n in range(int(a[at[0], at[1] - 1]) + 1, after[0] if after else most + 1) if n != a[at]]

    where = np.array([one for one in np.argwhere(path >= 0) if one[1] > 0]).reshape(-1, 2)
    straight = np.broadcast_to(np.arange(most + 1), path.shape)
    said = lambda at, value: f"node {at[1]} of the path were {value}"  # noqa: E731
    yield from _of(leaf, where, straight, between, said, valid=ascends)
    length = (path >= 0).sum(axis=1)

    def of_length(a: Array) -> Array:
        new = np.full_like(path, EMPTY)
        for b, count in enumerate(a):
            own = path[b][path[b] >= 0]
            rest = [n for n in range(most + 1) if n > (own[-1] if len(own) else -1)]
            nodes = [*own, *rest][:count]
            if len(nodes) < count:
                raise ValueError("there are not enough nodes after the path")
            new[b, :count] = nodes
        return new

    yield from _count(leaf, length, most + 1, "nodes on the path", of_length)


def _advanced(case: Case, leaf: Leaf) -> Iterator[Vector]:
    yield from _count(leaf, leaf.value, case.sizes.get("t", int(leaf.value.max(initial=0))), "accepted tokens")


def _length(case: Case, leaf: Leaf) -> Iterator[Vector]:
    if "l" in case.sizes:
        yield from _count(leaf, leaf.value, case.sizes["l"], "committed slots")


def _count(leaf: Leaf, held: Array, most: int, of: str, whole: Callable[[Array], Array] = lambda a: a) -> Iterator[Vector]:
    """One number in each row, from 0 to `most`."""
    for one in _of(
        leaf, np.argwhere(np.ones_like(held)), held, lambda a, at: [n for n in range(most + 1) if n != a[at]],
        lambda at, value: f"{value} {of}", whole, held.copy(),
    ):  # fmt: skip
        yield replace(one, name=of, counts=True)


def _tokens(case: Case, leaf: Leaf) -> Iterator[Vector]:
    """Tokens of a vocabulary, on the nodes of a tree or in a text, which may be one longer; the simplest is the least one
    that occurs."""
    value = leaf.value
    there = value[value >= 0]
    low, high = int(there.min(initial=0 if not there.size else there.max())), int(there.max(initial=0))
    unit = {"tokens": "token of node", "choice": "choice at node"}.get(leaf.name, f"{leaf.name} token")
    texts = leaf.name in ("prompt", "output", "history")
    ends = np.argwhere((value < 0) & (np.cumsum(value < 0, axis=1) == 1)) if texts else np.zeros((0, 2), dtype=int)

    def near(a: Array, at: tuple[int, ...]) -> Sequence[int]:
        if a[at] < 0:
            return (low,)
        return [n for n in dict.fromkeys((low, high, int(a[at]) + 1, int(a[at]) - 1)) if low <= n <= high and n != a[at]]

    says = lambda at, n: f"the {unit} {at[1]} were {n}"  # noqa: E731
    where = np.concatenate([np.argwhere(value >= 0), ends])
    yield from _of(leaf, where, np.where(value >= 0, low, value), near, says)


def _slots(read: Leaf, write: Leaf) -> Iterator[Vector]:
    """Rows with their slots as drawn (0), or each in the slot of its own number (1)."""
    rows = [int(b) for b in np.flatnonzero(read.value >= 0)]

    def given(values: Values, leaf: Leaf) -> Array:
        new = leaf.value.copy()
        for b, own in zip(rows, values, strict=True):
            new[b] = b if own else new[b]
        return new

    def made(arguments: Arguments, values: Values) -> Arguments:
        whole = arguments[read.path[0]]
        if len(read.path) != 2:
            raise ValueError("the slots lie deeper than in a pool")
        new = replace(whole, read=given(values, read), write=given(values, write))
        return tuple(new if at == read.path[0] else one for at, one in enumerate(arguments))

    own = tuple(int(read.value[b] == b == write.value[b]) for b in rows)
    yield Vector(
        "slots", tuple(rows), tuple(rows), own, tuple(1 for _ in rows),
        lambda values, n: (), lambda n, value: f"row {rows[n]} read and wrote slot {rows[n]}", made,
        lambda values: np.stack([given(values, read), given(values, write)]),
    )  # fmt: skip


KINDS: dict[str, Callable[[Case, Leaf], Iterator[Vector]]] = {
    "live": _live,
    "fresh": _fresh,
    "parents": _parents,
    "ancestors": _ancestors,
    "path": _path,
    "advanced": _advanced,
    "length": _length,
}
"""The entries of an input, by its name."""
