"""Greedy acceptance by the kernel equals that of PyTorch: walks, ends, budgets, nodes without numbers, rows of padding."""

import numpy as np
import pytest
import torch

from ssmspec_fast.accept import fused
from ssmspec_fast.accept.greedy import Greedy
from ssmspec_fast.engine.sequences import Sequences, new_sequences
from ssmspec_fast.engine.window import Proposal, Verdict, Window
from ssmspec_fast.operations import OneLaunch
from ssmspec_fast.operations.torch_ops import TorchOperations
from ssmspec_fast.operations.triton_ops import TritonOperations
from ssmspec_kernels.tokens.accept_greedy import accept_greedy
from ssmspec_kernels.tokens.commit_tokens import commit_tokens
from tests.kernels import device

VOCABULARY, SLOTS = 5, 7
WHERE = "cuda" if device.COMPILED else "cpu"


class ByKernel(TorchOperations):
    """The kernels of acceptance over PyTorch's operations."""

    accept_greedy, commit_tokens = staticmethod(accept_greedy), staticmethod(commit_tokens)


def drawn(seed: int, drafts: int, tree: bool, t: int = 6) -> tuple[Proposal, torch.Tensor, Sequences]:
    """Windows of few different tokens, so that drafts stand; some logits are no numbers, one row is padding."""
    rng = np.random.default_rng(seed)
    slots = np.array([4, -1, 0, 6]).repeat(drafts)
    tokens = rng.integers(0, VOCABULARY, (len(slots), t))
    parents = np.array([[-1, *(int(rng.integers(0, i)) for i in range(1, t))] for _ in slots])
    parents[:, -1] = np.where(rng.random(len(slots)) < 0.3, -2, parents[:, -1])
    lengths = rng.integers(1, t + 1, len(slots))
    logits = rng.normal(size=(len(slots), t, VOCABULARY)).round(1)  # equals among them
    if drafts > 1:  # rows of one sequence hear the same of the same prefix
        deep = np.zeros_like(parents) + (0 if tree else np.arange(t))
        for i in range(1, t if tree else 0):
            deep[:, i] = deep[np.arange(len(slots)), parents[:, i].clip(0)] + 1
        logits = logits[np.arange(len(slots))[:, None] // drafts * drafts, deep]
    else:
        logits[rng.random(logits.shape[:2]) < 0.1, 2] = np.nan
    sequences = new_sequences(SLOTS, 20, (3,), (), WHERE)
    for slot in (4, 0, 6):
        sequences.add(slot, [1, 2], int(rng.integers(1, 5)), slot)
    given = [torch.tensor(x, device=WHERE) for x in (tokens, slots, lengths, parents)]
    window = Window(given[0], given[1], None if tree else given[2], given[3] if tree else None, drafts)
    return Proposal(window), torch.tensor(logits, dtype=torch.float32, device=WHERE), sequences


def both(seed: int, drafts: int, tree: bool) -> list[tuple[Verdict, Sequences]]:
    found = []
    for operations in (TorchOperations(), ByKernel()):
        proposal, logits, sequences = drawn(seed, drafts, tree)
        verdict = Greedy()(proposal, logits, sequences, operations)
        sequences.commit(verdict, operations)
        found.append((verdict, sequences))
    return found


def differs(found: list[tuple[Verdict, Sequences]], drafts: int) -> list[str]:
    """Where the verdicts on rows that are no padding differ, or what they left in the sequences.

    Of several rows that emit equally much after the cut either may stand, so that rows and paths are not compared then.
    """
    (a, one), (b, other) = found
    real = a.slots >= 0
    names = ("tokens", "advanced", "ended") if drafts > 1 else ("tokens", "path", "advanced", "ended")
    out = [name for name in names if not torch.equal(getattr(a.run, name)[real], getattr(b.run, name)[real])]
    kept = ("tokens", "length", "budget", "ended")
    return out + [f"sequences.{name}" for name in kept if not torch.equal(getattr(one, name), getattr(other, name))]


@pytest.mark.parametrize("drafts", [1, 3])
@pytest.mark.parametrize("tree", [False, True], ids=["chains", "trees"])
def test_the_kernel_decides_as_pytorch_does(drafts: int, tree: bool) -> None:
    for seed in range(12):
        assert differs(both(seed, drafts, tree), drafts) == []


def test_padding_emits_nothing() -> None:
    for verdict, _ in both(0, 1, True):
        padding = verdict.slots < 0
        assert int(verdict.run.advanced[padding].sum()) == 0


def test_a_planted_node_without_numbers_that_is_walked_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without (1) a run goes on through a node whose logits are no numbers."""

    whole = fused.greedy
    monkeypatch.setattr(
        "ssmspec_fast.accept.greedy.greedy",
        lambda rule, window, logits, sequences: whole(rule, window, logits.nan_to_num(9.0), sequences),
    )
    assert any(differs(both(seed, 1, True), 1) for seed in range(12))


def test_kernels_do_in_one_launch_what_pytorch_does_in_steps() -> None:
    names = OneLaunch.__annotations__
    assert len(names) == 5
    assert [name for name in names if getattr(TorchOperations(), name) is not None] == []
    assert [name for name in names if getattr(TritonOperations(), name) is None] == []
