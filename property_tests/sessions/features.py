"""What an example covered: kinds of windows, patterns of acceptance, and the classes of bugs that they expose.

The classes are those of known bugs in engines that decode speculatively: if a window of that kind is verified and the next
one is right, the example has no bug of the class.
"""

from collections import Counter
from collections.abc import Iterator

from ssmspec_ref.contract import TokenWindow

CLASSES: dict[str, tuple[str, ...]] = {
    "ROLLBACK: rejected tokens stay somewhere": ("accepted none of the drafts", "accepted some of the drafts"),
    "COMMIT: accepted tokens are lost": ("accepted all drafts", "accepted some of the drafts"),
    "ACCEPT-IDX: a count outlives its step": ("a row without drafts", "a step without drafts"),
    "SLOT-SCOPE: slot and row confused": ("rows not in the order of slots",),
    "PAD-SLOT: padding aliases a live slot": ("padding between rows", "padding behind rows"),
    "SLOT-REUSE: a former request shows": ("slot used again",),
    "REPLAY: rings, cursors, capacity": ("rule flush", "accepted all drafts"),
    "CLASSIFY: ragged rows taken as uniform": ("rows of unequal length",),
    "SCHED: a sequence leaves and comes back": ("rule preempt", "rule resume"),
    "PREFIX-CKPT: a copy of another boundary": ("rule fork", "rule hand_over"),
    "TREE-MASK: visibility": ("a tree with branches",),
    "TREE-TOPO: parents, depths, twins": ("twins among siblings", "a tree with branches"),
    "TREE-COMMIT: a path is no prefix": ("accepted a path that is no prefix",),
    "PAD-LEAK: padding enters a state": ("padding nodes", "rows of unequal length"),
    "STOP: a cut inside an accepted run": ("a run cut behind its acceptance",),
}
"""Classes, and the features that must be covered for each."""


def of_window(window: TokenWindow) -> Iterator[str]:
    slots = window.slots.tolist()
    real = [slot for slot in slots if slot >= 0]
    yield "window tree" if window.parents is not None else "window chain"
    if real != sorted(real):
        yield "rows not in the order of slots"
    if slots[-1] < 0:
        yield "padding behind rows"
    if any(slot < 0 for slot in slots[: len(slots) - 1]) and slots[-1] >= 0:
        yield "padding between rows"
    if window.drafts > 1:
        yield "several rows of a sequence"
    counts = [size(window, row) for row, slot in enumerate(slots) if slot >= 0]
    if len(set(counts)) > 1:
        yield "rows of unequal length"
    if 1 in counts:
        yield "a row without drafts" if max(counts) > 1 else "a step without drafts"
    for row in range(len(slots)) if window.parents is not None else ():
        if slots[row] >= 0:
            yield from of_tree(window, row)


def of_tree(window: TokenWindow, row: int) -> Iterator[str]:
    assert window.parents is not None
    parents, tokens = window.parents[row].tolist(), window.tokens[row].tolist()
    above = Counter(p for p in parents if p >= 0)
    if above and max(above.values()) > 1:
        yield "a tree with branches"
    twins = Counter((p, token) for p, token in zip(parents, tokens, strict=True) if p >= 0)
    if twins and max(twins.values()) > 1:
        yield "twins among siblings"
    if -2 in parents:
        yield "padding nodes"


def size(window: TokenWindow, row: int) -> int:
    """The real tokens of a row."""
    if window.parents is not None:
        return int((window.parents[row] >= -1).sum())
    return window.tokens.shape[1] if window.lengths is None else int(window.lengths[row])


def of_commit(window: TokenWindow, row: int, path: list[int], kept: int) -> Iterator[str]:
    drafts = len(path) - 1
    if most := size(window, row) - 1:
        leaf = drafts == most or (window.parents is not None and path[-1] not in window.parents[row].tolist())
        yield f"accepted {'none of the drafts' if drafts == 0 else 'all drafts' if leaf else 'some of the drafts'}"
    if path != list(range(len(path))):
        yield "accepted a path that is no prefix"
    if kept < len(path):
        yield "a run cut behind its acceptance"


def classes(reached: Counter[str]) -> dict[str, int]:
    """How often each class was exposed: as often as the rarest feature it needs."""
    return {name: min(reached[feature] for feature in needed) for name, needed in CLASSES.items()}
