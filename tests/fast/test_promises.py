"""What a request is promised in a batch, and what a drafter may give it."""

from typing import Any

import pytest
import torch
from torch import Tensor

from ssmspec_fast.accept.naive import Naive
from ssmspec_fast.draft.ngram import PromptLookup
from ssmspec_fast.engine.requests import Settings
from ssmspec_fast.engine.sampling import Sampling
from ssmspec_fast.engine.sequences import Sequences
from ssmspec_fast.engine.window import Proposal
from ssmspec_fast.methods.activation_replay import ActivationReplay
from ssmspec_fast.methods.snapshots import Snapshots

from .models import prompts
from .runs import emitted, engine

ROWS = 64
GIVEN = prompts(11, tuple(1 + n % 7 for n in range(ROWS + 4)))
SETTINGS = Settings(6, eos=(3, 17))
RULES: dict[str, Any] = {"greedy": lambda: None, "naive": lambda: Naive(Sampling(temperature=1.2, top_k=20), seed=5)}


def tokens(slots: int, rule: str, count: int = len(GIVEN)) -> list[tuple[int, ...]]:
    made = engine("mamba2", PromptLookup(2), ActivationReplay(1), RULES[rule](), slots=slots, cache=32)
    return emitted(made, GIVEN[:count], SETTINGS)


@pytest.mark.parametrize("rule", RULES)
def test_a_request_says_in_a_batch_of_64_that_changes_what_it_says_alone(rule: str) -> None:
    """More requests than slots, which end at different tokens: rows join and leave."""
    together, alone = tokens(ROWS, rule), tokens(1, rule)
    assert together == alone
    assert len({len(found) for found in alone}) > 1


def test_planted_noise_by_row_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = tokens(1, "naive", 8)
    add = Sequences.add
    monkeypatch.setattr(
        Sequences, "add", lambda self, slot, prompt, budget, _, *more: add(self, slot, prompt, budget, slot, *more)
    )
    assert tokens(4, "naive", 8) != wanted


class Silent(PromptLookup):
    """Has nothing to propose but the root."""

    def propose(self, sequences: Sequences, slots: Tensor) -> Proposal:
        found = super().propose(sequences, slots)
        return found._replace(window=found.window._replace(lengths=torch.ones_like(slots)))


def test_a_drafter_that_is_always_silent_costs_a_call_for_each_token() -> None:
    plain, silent = engine("mamba2"), engine("mamba2", Silent(2), Snapshots(1))
    for wanted, found in zip(*(made.generate(GIVEN[:3], Settings(5)) for made in (plain, silent)), strict=True):
        assert found.tokens == wanted.tokens
        assert found.statistics.advanced == (1,) * 5
