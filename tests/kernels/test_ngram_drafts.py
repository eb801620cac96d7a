"""`ngram_drafts` against the oracle's drafts: equality, row by row, and silence where nothing followed."""

from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from conformance.interpreter.memory import watch
from ssmspec_kernels.tokens import ngram_drafts as module
from ssmspec_ref.draft.ngram import png

from .mutants import caught, mutated
from .tensors import far

I32, I64 = torch.int32, torch.int64
CASES = [
    (1, 1, 1, 0, 24, 3, I64),
    (2, 2, 3, 2, 40, 2, I32),
    (3, 3, 2, 5, 70, 3, I64),
    (4, 6, 4, 3, 90, 2, I64),
    (5, 2, 5, 0, 9, 1, I64),
    (6, 1, 7, 4, 60, 12, I32),
]
"""Seed, tokens, drafts, rows of the table, the longest history, tokens that histories hold, index type."""
BLOCKS: dict[str, Any] = {"block_s": 16, "block_i": 8}
JUNK = 1
"""What lies behind the end of a history and beside it: a token that histories hold, too."""


def histories(seed: int, longest: int, size: int) -> list[list[int]]:
    """Of every length from 1: drawn ones, one that says the same thing all along, and one that repeats a run."""
    rng = np.random.default_rng(seed)
    lengths = [1, 2, 3, longest // 2, longest]
    run = rng.integers(0, size, 5).tolist()
    return [*(rng.integers(0, size, n).tolist() for n in lengths), [0] * (longest // 3 + 1), (run * longest)[:longest]]


class Case:
    """Histories in slots out of order of a wider pool, junk around them, and a padding row."""

    def __init__(self, seed: int, tokens: int, drafts: int, rows: int, longest: int, size: int, index: torch.dtype) -> None:
        rng = np.random.default_rng(seed)
        self.tokens, self.drafts, held = tokens, drafts, histories(seed, longest, size)
        self.table = rng.integers(0, size, (size + 1, rows, tokens)) if rows else np.zeros((size + 1, 0, tokens), dtype=int)
        slots = rng.permutation(len(held) + 2)[: len(held)]
        wide = torch.full((2 * len(held) + 5, 2 * longest + 3), JUNK, dtype=index)
        self.sequences = wide[1::2, 1::2][:, : longest + 1]
        self.length = torch.full((len(self.sequences),), 10**6, dtype=index)
        for slot, history in zip(slots.tolist(), held, strict=True):
            self.sequences[slot, : len(history)] = torch.tensor(history, dtype=index)
            self.length[slot] = len(history)
        self.slots = torch.tensor([slots[0], -1, *slots[1:]], dtype=index)
        self.held: list[list[int] | None] = [held[0], None, *held[1:]]

    def judge(self, kernel: ModuleType) -> bool:
        table = torch.from_numpy(self.table) if self.table.shape[1] else None
        before = self.sequences.clone(), self.length.clone()
        places = torch.zeros(len(self.slots), 2, self.sequences.shape[1], dtype=I64)
        y, lengths = kernel.ngram_drafts(
            self.sequences, self.length, self.tokens, self.drafts, table=table, slots=self.slots, places=places, **BLOCKS
        )
        unchanged = torch.equal(before[0], self.sequences) and torch.equal(before[1], self.length)
        shape = tuple(y.shape) == (len(self.slots), self.drafts, 1 + self.tokens) and y.dtype == self.sequences.dtype
        return unchanged and shape and all(self.fits(y[b], lengths[b], h) for b, h in enumerate(self.held))

    def fits(self, y: torch.Tensor, lengths: torch.Tensor, history: list[int] | None) -> bool:
        """A row holds the oracle's drafts in their order, each behind its root, and roots alone behind them."""
        if history is None:
            return not y.any() and bool((lengths == 1).all())
        wanted = png(np.array(history), self.drafts, self.tokens, self.table).tolist()
        pad = self.drafts - len(wanted)
        rows = [[history[-1], *row] for row in [*wanted, *[[0] * self.tokens] * pad]]
        return y.tolist() == rows and lengths.tolist() == [1 + self.tokens] * len(wanted) + [1] * pad


@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(map(str, c[:4])))
def test_drafts_equal_the_oracles_and_histories_stay(case: tuple[Any, ...]) -> None:
    assert Case(*case).judge(module)


def test_cases_reach_full_partial_and_empty_sets_of_drafts() -> None:
    """Some rows find all, some less, some none; some take from history and table."""
    seen = set()
    for case in CASES:
        made = Case(*case)
        none = np.zeros((len(made.table), 0, made.tokens), dtype=int)
        for history in filter(None, made.held):
            found = len(png(np.array(history), made.drafts, made.tokens, none))
            whole = len(png(np.array(history), made.drafts, made.tokens, made.table))
            seen.add(("none", "some", "all")[(found > 0) + (found == made.drafts)] + ("+" if whole > found else ""))
    assert seen == {"none", "some", "all", "none+", "some+"}


@pytest.mark.parametrize("blocks", [{}, {"block_s": 4, "block_i": 4}, {"block_s": 32, "block_i": 32}])
def test_blocks_do_not_change_the_drafts(blocks: dict[str, Any]) -> None:
    case = Case(*CASES[3])
    given: dict[str, Any] = {"table": torch.from_numpy(case.table), "slots": case.slots}
    first = module.ngram_drafts(case.sequences, case.length, case.tokens, case.drafts, **given, **BLOCKS)
    again = module.ngram_drafts(case.sequences, case.length, case.tokens, case.drafts, **given, **blocks)
    assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))


def test_histories_beyond_2_to_the_31_elements_are_read() -> None:
    row = torch.tensor([[2, 3, 2, 4, 2]])
    y, lengths = module.ngram_drafts(far(row.expand(3, -1).clone(), 0), torch.tensor([5, 4, 3]), 1, 2)
    assert y[:, :, 1].tolist() == [[4, 3], [0, 0], [3, 0]]
    assert lengths.tolist() == [[2, 2], [1, 1], [2, 1]]


@pytest.mark.parametrize(("rows", "tokens"), [(0, 2), (3, 2), (3, 1)])
def test_bytes_are_the_closed_form_and_no_access_is_outside(rows: int, tokens: int) -> None:
    """Of histories that say one thing all along every token is read; here two say two things."""
    sequences, length, slots = torch.zeros(4, 30, dtype=I64), torch.tensor([20, 9, 30, 7]), torch.tensor([2, 0])
    sequences[0] = 1
    table = torch.arange(rows * 2 * tokens).view(2, rows, tokens) if rows else None
    out: dict[str, Any] = {"y": torch.empty(2, 3, 1 + tokens, dtype=I64), "lengths": torch.empty(2, 3, dtype=I64)}
    out["places"] = torch.empty(2, 2, 30, dtype=I64)
    held: dict[str, Any] = {"table": table} if rows else {}
    with watch(sequences=sequences, length=length, slots=slots, **out, **held) as seen:
        module.ngram_drafts(sequences, length, tokens, 3, table=table, slots=slots, **out, **BLOCKS)
    assert seen.distinct_bytes() == module.traffic_bytes(50, 50 - 2 * tokens, 2, 3, tokens, table=rows)
    assert seen.outside == seen.races == []


MUTANTS = {
    "a window that reaches the end is passed over": ("here = s < T - K", "here = s < T - K - 1"),
    "windows read behind the end": ("here = s < T - K", "here = s <= T - K"),
    "the token before the last": ("x + (T - 1) * stride_seq.l", "x + (T - 2) * stride_seq.l"),
    "places of a block lost": ("at + (found + tl.cumsum", "at + (tl.cumsum"),
    "windows compared by all but their last token": ("tl.static_range(1, K + 1)", "tl.static_range(1, K)"),
    "the first of equals": ("i[:, None] < j[None, :]", "i[:, None] > j[None, :]"),
    "order of places alone": ("count * (L + 1) + s", "(L + 1) + s"),
    "a window proposed again": ("score < below", "score <= below"),
    "windows from the root on": ("best % (L + 1) + k", "best % (L + 1) + k - 1"),
    "a table's row twice": ("(tl.max(known.to(tl.int32), axis=0) == 0)", "(tl.max(known.to(tl.int32), axis=0) >= 0)"),
    "the table before it is needed": ("live & (there < DRAFTS)", "live & (there == 0)"),
    "the table's first row only": ("tl.cast(n, tl.int64) * stride_tab.n", "0 * stride_tab.n"),
    "another slot's history": ("x = sequences + slot * stride_seq.s", "x = sequences + b * stride_seq.s"),
    "padding drafts": ("new = live & (there", "new = (there"),
    "one draft too long": ("1 + K, 1)", "2 + K, 1)"),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_fault_is_caught(name: str) -> None:
    assert caught(mutated(module, *MUTANTS[name]), lambda kernel, case: Case(*case).judge(kernel), CASES[1:4])
