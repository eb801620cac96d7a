"""Windows for the tests of acceptance: trees full of twins, rows that end in every way, padding, and tensors with gaps."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ssmspec_kernels.tokens.accept_greedy import Emitted
from ssmspec_ref.accept import Stop, stop
from ssmspec_ref.accept import emitted as runs
from ssmspec_ref.accept.draft_tree import DraftTree, unpadded
from ssmspec_ref.shapes import Array
from tests.trees import SHAPES, packed, parents_of

SENTINEL = -77


@dataclass(frozen=True)
class Rows:
    """Trees, and what ends a run: budgets and flags by slot, and the slot of each row."""

    tokens: Array
    parents: Array
    budget: Array
    ended: Array
    slots: Array | None
    eos: tuple[int, ...]

    @property
    def trees(self) -> list[DraftTree | None]:
        """The tree of each row; None where the row is padding."""
        rows = zip(self.tokens, self.parents, strict=True)
        return [None if (parents == -2).all() else unpadded(tokens, parents) for tokens, parents in rows]

    def slot(self, b: int) -> int:
        return b if self.slots is None else int(self.slots[b])

    def arguments(self, index: torch.dtype) -> dict[str, Tensor | None]:
        """The arguments that every acceptance kernel shares."""
        return {
            "budget": vector(self.budget, index, 9),
            "ended": vector(self.ended, torch.bool),
            "eos": torch.tensor(self.eos, dtype=index) if self.eos else None,
            "slots": None if self.slots is None else torch.from_numpy(self.slots).to(index),
        }


def draw(seed: int, rows: int, nodes: int, vocabulary: int, *, eos: Sequence[int] = (), slots: bool = False) -> Rows:
    """Rows of which one has ended, one has no budget, one is padding, and, with slots, one has none."""
    rng = np.random.default_rng(seed)
    trees = [parents_of(SHAPES[b % len(SHAPES)], int(rng.integers(1, nodes + 1)), seed + b) for b in range(rows)]
    pool = 2 * rows
    budget, ended = rng.integers(1, nodes + 2, pool), np.zeros(pool, dtype=bool)
    places = rng.permutation(pool)[:rows] if slots else np.arange(rows)
    if rows > 4:
        trees[1] = np.array([], dtype=np.int64)
        budget[places[2]], ended[places[3]] = 0, True
        places[4] = -1 if slots else places[4]
    tokens = rng.integers(0, vocabulary, (rows, nodes))
    return Rows(tokens, packed(trees, nodes), budget, ended, places if slots else None, tuple(eos))


def gapped(array: Array, dtype: torch.dtype, fill: int = SENTINEL) -> Tensor:
    """The array as every second element of a larger tensor."""
    wide = torch.full([2 * n + 1 for n in array.shape], fill, dtype=dtype)
    view = wide[tuple(slice(1, None, 2) for _ in array.shape)]
    view.copy_(torch.from_numpy(array))
    return view


def vector(array: Array, dtype: torch.dtype, before: int = 0) -> Tensor:
    """The array behind one element more, where a kernel that reads slot -1 comes to."""
    return torch.cat([torch.tensor([before], dtype=dtype), torch.from_numpy(array).to(dtype)])[1:]


def room(rows: Rows, index: torch.dtype) -> Emitted:
    """Outputs that nobody has written, with gaps."""
    b, blank = len(rows.tokens), np.full(rows.tokens.shape, SENTINEL)
    return Emitted(
        gapped(blank, index), gapped(blank, index), torch.full((b,), SENTINEL, dtype=index), torch.ones(b, dtype=torch.bool)
    )


def expected(rows: Rows, b: int, run: runs.Emitted | None) -> tuple[list[int], list[int], bool]:
    """Tokens, path and end of a row whose whole run is `run`, cut as the oracle cuts it; None is padding."""
    slot = rows.slot(b)
    left, over = int(rows.budget[slot]), bool(rows.ended[slot]) or int(rows.budget[slot]) <= 0
    if run is None or over:
        return [], [], over
    part, finish = stop.cut(run, (), Stop(frozenset(rows.eos)), left)
    return list(part.tokens), list(part.path), finish is not None


def plain(ints: Tensor) -> list[int]:
    return [int(x) for x in ints.tolist()]


def same(rows: Rows, out: Emitted, whole: Sequence[runs.Emitted | None]) -> bool:
    """Whether every row is what the oracle says, padded with -1, and no row without a slot was written."""
    nodes = rows.tokens.shape[1]
    verdicts = []
    for b, run in enumerate(whole):
        tokens, path, over = expected(rows, b, run)
        pad = [-1] * (nodes - len(tokens))
        found = (plain(out.tokens[b]), plain(out.path[b]), int(out.advanced[b]), bool(out.ended[b]))
        if rows.slot(b) < 0:
            verdicts.append(found == ([SENTINEL] * nodes, [SENTINEL] * nodes, SENTINEL, True))
        else:
            verdicts.append(found == (tokens + pad, path + pad, len(tokens), over))
    return all(verdicts) and gaps_stand(out.tokens) and gaps_stand(out.path)


def gaps_stand(view: Tensor) -> bool:
    """Whether what lies between the elements of a gapped tensor is as it was."""
    wide = view._base
    return wide is not None and bool((wide[::2] == SENTINEL).all()) and bool((wide[:, ::2] == SENTINEL).all())
