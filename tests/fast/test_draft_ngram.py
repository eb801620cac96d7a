"""Drafts from what was written, on the device and for all rows at once: what the oracle drafts for each."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ssmspec_fast.draft import ngram
from ssmspec_fast.draft.bigrams import bigram_table
from ssmspec_fast.draft.ngram import NGram, PromptLookup
from ssmspec_fast.engine.sequences import Sequences, new_sequences
from ssmspec_fast.engine.window import Window
from ssmspec_ref.accept import drafts
from ssmspec_ref.draft import ngram as oracle
from ssmspec_ref.errors import ParameterError, ShapeMismatch

from .draft_models import float64, histories
from .test_steps import Waiting

HISTORIES = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=24), min_size=1, max_size=4)
MANY = settings(deadline=None, derandomize=True, max_examples=120)


def sequences_of(rows: list[list[int]], room: int = 3) -> tuple[Sequences, torch.Tensor]:
    """Histories in slots out of order, with a padding row, junk behind each."""
    slots = [len(rows) - i for i in range(len(rows))]
    sequences = new_sequences(len(rows) + 2, 24 + room, (), (), "cpu")
    sequences.tokens.fill_(1)
    for slot, row in zip(slots, rows, strict=True):
        sequences.add(slot, row, 9, 0)
    return sequences, torch.tensor([*slots[:1], -1, *slots[1:]])


def chains(window: Window, drafts: int) -> list[list[list[int]]]:
    """The drafts of each sequence."""
    assert window.lengths is not None
    rows = [row[1:n] for row, n in zip(window.tokens.tolist(), window.lengths.tolist(), strict=True)]
    return [[row for row in rows[i : i + drafts] if row] for i in range(0, len(rows), drafts)]


def table_of(seed: int, rows: int, tokens: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 4, (4, rows, tokens))


@MANY
@given(HISTORIES, st.integers(1, 4), st.integers(1, 4), st.integers(0, 5), st.integers(0, 99))
def test_ngram_drafts_are_the_oracles(rows: list[list[int]], tokens: int, wanted: int, more: int, seed: int) -> None:
    """Most frequent windows, then the table; rows in any slots; silent where nothing is found. Trees are the rows merged."""
    table = table_of(seed, more, tokens)
    (sequences, slots), given_table = sequences_of(rows), torch.from_numpy(table) if more else None
    drafter = NGram(tokens, wanted, given_table)
    window = drafter.propose(sequences, slots).window
    assert window.tokens.shape == (wanted * len(slots), drafter.nodes)
    found = chains(window, wanted)
    assert found.pop(1) == []
    trees = NGram(tokens, wanted, given_table, trees=True)
    merged = trees.propose(sequences, slots).window
    assert merged.parents is not None
    keep = [i for i, slot in enumerate(slots.tolist()) if slot >= 0]
    for i, row, came in zip(keep, rows, found, strict=True):
        said = oracle.png(np.array(row), wanted, tokens, table).tolist()
        assert came == said
        tree = drafts.trie(row[-1], said or [[]]).tree
        pad = trees.nodes - len(tree)
        assert merged.parents[i].tolist() == [*tree.parents, *[-2] * pad]
        assert merged.tokens[i].tolist() == [*tree.tokens, *[0] * pad]


@MANY
@given(HISTORIES, st.integers(1, 5), st.integers(1, 5))
def test_what_is_looked_up_is_the_oracles(rows: list[list[int]], tokens: int, longest: int) -> None:
    sequences, slots = sequences_of(rows)
    window = PromptLookup(tokens, longest).propose(sequences, slots).window
    found = [row[:1] if row else [] for row in chains(window, 1)]
    assert found.pop(1) == []
    for row, came in zip(rows, found, strict=True):
        wanted = oracle.prompt_lookup(np.array(row), tokens, longest).tolist()
        assert came == ([wanted] if wanted else [])


@pytest.mark.parametrize("vocabulary", [2, 5, 2**ngram.BITS - 1])
@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 6, 8])
def test_keys_bring_windows_in_the_order_of_their_tokens(tokens: int, vocabulary: int) -> None:
    rng = np.random.default_rng(tokens)
    windows = torch.from_numpy(np.where(rng.random((3, 40, tokens)) < 0.6, vocabulary - 1, rng.integers(vocabulary)))
    real = torch.from_numpy(rng.random((3, 40)) < 0.6)
    order = torch.arange(40).expand(3, 40)
    for key in ngram.keys(windows, real):
        order = order.gather(1, torch.argsort(key.gather(1, order), dim=1, stable=True))
    for row in range(3):
        found = [i for i in order[row].tolist() if real[row, i]]
        assert found == sorted(found, key=lambda i: (*windows[row, i].tolist(), i))
        assert order[row, : len(found)].tolist() == found


def test_a_root_stands_before_every_draft() -> None:
    sequences, slots = sequences_of([[1, 2, 3, 1], [2, 2]])
    for drafter in (NGram(2, 3), NGram(2, 3, trees=True), PromptLookup(2)):
        window = drafter.propose(sequences, slots).window
        roots = window.tokens[:, 0].view(len(slots), -1)
        assert roots.tolist() == [[r] * roots.shape[1] for r in (1, 0, 2)]


def test_no_draft_waits_for_the_host() -> None:
    sequences, slots = sequences_of([[1, 2, 3, 1, 2], [2, 2, 1]])
    for drafter in (NGram(2, 3, torch.zeros(4, 3, 2, dtype=torch.int64)), NGram(2, 3, trees=True), PromptLookup(2)):
        with Waiting() as waiting:
            drafter.propose(sequences, slots)
        assert waiting.found == []


@pytest.mark.parametrize("name", ["bamba", "mamba_in_llama"])
def test_the_bigram_table_is_the_oracles(name: str) -> None:
    """On a vocabulary of 61, in batches that do not divide it."""
    found = bigram_table(float64(name), 2, 3, batch=23).numpy()
    wanted = oracle.bigram_table(histories(name), [()], 61, 2, 3)
    assert found.tolist() == wanted.tolist()


def test_planted_faults_of_drafts_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of equal counts, a match that reads behind the end, rows merged by their last token alone."""
    rows = [[1, 2, 3, 1, 0, 2, 1], [3, 0, 3, 0, 3]]
    sequences, slots = sequences_of(rows)

    def png_fits() -> bool:
        found = chains(NGram(2, 2).propose(sequences, slots).window, 2)
        table = np.zeros((4, 0, 2), dtype=np.int64)
        return [found[0], found[2]] == [oracle.png(np.array(row), 2, 2, table).tolist() for row in rows]

    assert png_fits()
    topk = torch.topk
    with monkeypatch.context() as m:
        m.setattr(ngram.torch, "topk", lambda score, k, dim: topk(torch.where(score < 0, score, 999 - score), k, dim))
        assert not png_fits()
    lookup = ngram.looked_up
    with monkeypatch.context() as m:
        m.setattr(ngram, "looked_up", lambda history, length, *rest: lookup(history, length + 1, *rest))
        found = chains(PromptLookup(2).propose(sequences, slots).window, 1)
        assert [x for x in found if x] != [[oracle.prompt_lookup(np.array(row), 2).tolist()] for row in rows]


def test_bad_numbers_and_tables_are_refused() -> None:
    for make in (lambda: NGram(0), lambda: NGram(1, 0), lambda: PromptLookup(0), lambda: PromptLookup(1, 0)):
        with pytest.raises(ParameterError, match="must be at least 1"):
            make()
    with pytest.raises(ShapeMismatch, match="vocabulary, rows, 3"):
        NGram(3, 1, torch.zeros(4, 2, 2, dtype=torch.int64))
    with pytest.raises(ShapeMismatch, match="table has 4 rows"):
        NGram(2, 1, torch.zeros(4, 2, 2, dtype=torch.int64)).check(float64("bamba"))
    with pytest.raises(ParameterError, match="only 61 tokens can follow"):
        bigram_table(float64("bamba"), 62, 1)
