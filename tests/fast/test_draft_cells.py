"""Every method, drafter and rule over each kind of model: greedy output is plain decoding's, bit for bit."""

from typing import Any

import pytest
import torch

from ssmspec_fast.accept.greedy import Greedy
from ssmspec_fast.engine.window import Proposal, Verdict

from .draft_cells import CELLS, GREEDY, LOUDER, RULES, plain, speculated

EVERY_RULE = ("mamba2", "llama")
CASES = [(name, cell) for name in LOUDER for cell in (CELLS if name in EVERY_RULE else GREEDY)]


@pytest.mark.parametrize(("name", "cell"), CASES, ids=lambda one: one if isinstance(one, str) else "-".join(one))
def test_output_is_plain_decodings_and_every_acceptance_was_seen(name: str, cell: tuple[str, str, str]) -> None:
    method, drafter, rule = cell
    tokens, seen = speculated(name, method, drafter, RULES[rule]())
    assert tokens == plain(name)
    assert seen == {"none", "some", "all"}


@pytest.mark.parametrize("name", LOUDER)
def test_a_request_alone_has_the_same_tokens(name: str) -> None:
    """Batches of one row."""
    for method, drafter in (("joint", "n-gram"), ("replay buffer", "model"), ("tree", "batch tree, sampled")):
        assert speculated(name, method, drafter, Greedy(), slots=1)[0] == plain(name)


def test_a_planted_rule_that_believes_every_first_draft_is_caught() -> None:
    class Credulous(Greedy):
        def __call__(self, proposal: Proposal, logits: torch.Tensor, *rest: Any) -> Verdict:
            first = torch.zeros_like(logits[:, 0]).scatter(1, proposal.window.tokens[:, 1:2], 1.0)
            return super().__call__(proposal, torch.cat([first[:, None], logits[:, 1:]], dim=1), *rest)

    assert speculated("mamba2", "activation replay", "model", Credulous())[0] != plain("mamba2")
