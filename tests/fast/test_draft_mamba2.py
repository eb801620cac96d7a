"""Mamba-2 under every method, drafter and acceptance: greedy output is plain decoding's, bit for bit."""

from typing import Any

import pytest
import torch

from ssmspec_fast.accept.greedy import Greedy
from ssmspec_fast.engine.window import Proposal, Verdict

from . import draft_cells as cells


@pytest.mark.parametrize("cell", cells.CELLS, ids="-".join)
def test_output_is_plain_decodings_and_every_acceptance_was_seen(cell: tuple[str, str, str]) -> None:
    cells.check("mamba2", cell)


def test_a_request_alone_has_the_same_tokens() -> None:
    cells.check_alone("mamba2")


def test_a_planted_rule_that_believes_every_first_draft_is_caught() -> None:
    class Credulous(Greedy):
        def __call__(self, proposal: Proposal, logits: torch.Tensor, *rest: Any) -> Verdict:
            first = torch.zeros_like(logits[:, 0]).scatter(1, proposal.window.tokens[:, 1:2], 1.0)
            return super().__call__(proposal, torch.cat([first[:, None], logits[:, 1:]], dim=1), *rest)

    assert cells.speculated("mamba2", "activation replay", "model", Credulous())[0] != cells.plain("mamba2")
