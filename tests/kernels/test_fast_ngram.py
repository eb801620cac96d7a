"""Drafts by n-grams: the engine's kernel and its PyTorch operations propose the same windows, as rows and as trees."""

import numpy as np
import pytest
import torch

from ssmspec_fast.draft.ngram import NGram
from ssmspec_fast.engine.sequences import Sequences, new_sequences
from ssmspec_kernels.tokens.ngram_drafts import ngram_drafts
from tests.kernels import device

WHERE = "cuda" if device.COMPILED else "cpu"
SLOTS, SIZE, LONGEST = 6, 3, 40


def written(seed: int) -> tuple[Sequences, torch.Tensor]:
    """Histories of every length in slots out of order, and a row of padding."""
    rng = np.random.default_rng(seed)
    sequences = new_sequences(SLOTS, LONGEST, (), (), WHERE)
    slots = rng.permutation(SLOTS)[:5]
    for slot, length in zip(slots.tolist(), (1, 2, 7, 19, 37), strict=True):
        sequences.add(slot, rng.integers(0, SIZE, length).tolist(), 9, 0)
    return sequences, torch.tensor([*slots[:2], -1, *slots[2:]], device=WHERE)


@pytest.mark.parametrize("trees", [False, True])
@pytest.mark.parametrize(("tokens", "drafts", "rows"), [(1, 1, 0), (2, 3, 2), (3, 2, 4)])
def test_the_kernel_proposes_what_pytorch_proposes(tokens: int, drafts: int, rows: int, trees: bool) -> None:
    for seed in range(3):
        table = torch.from_numpy(np.random.default_rng(seed).integers(0, SIZE, (SIZE, rows, tokens))).to(WHERE)
        sequences, slots = written(seed)
        wanted, found = (NGram(tokens, drafts, table if rows else None, trees=trees) for _ in range(2))
        found.kernel = ngram_drafts
        a, b = wanted.propose(sequences, slots).window, found.propose(sequences, slots).window
        live = a.slots >= 0
        assert torch.equal(a.slots, b.slots)
        if trees:
            assert a.parents is not None
            assert b.parents is not None
            assert torch.equal(a.parents[live], b.parents[live])
            assert torch.equal(a.tokens[live], b.tokens[live])
        else:
            assert a.lengths is not None
            assert b.lengths is not None
            assert torch.equal(a.lengths, b.lengths)
            real = torch.arange(1 + tokens, device=WHERE) < a.lengths[:, None]
            assert torch.equal(a.tokens[live[:, None] & real], b.tokens[live[:, None] & real])
