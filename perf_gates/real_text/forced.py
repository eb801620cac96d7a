"""Acceptance with the target's next token given: the model computes everything, and a known text decides.

    logits[next token of the text] = CERTAIN, in place, at every node of a window          (1)
    the rule itself decides                                                                (2)

By (1) the target's most probable token is the text's next one, and its probability is 1 at any temperature; so (2) accepts a
draft exactly when it is the text's next token. Plain decoding and speculation do the same (1): a gather and a scatter, whose
time is measured. The text of a sequence is that of its request's key, and its next token that at the length of the sequence
plus the node's depth.
"""

from typing import Any

import torch
from torch import Tensor

CERTAIN = 1e4
"""Above every logit; exp(logit - CERTAIN) is 0."""


class Forced:
    """An acceptance rule of the engine; `texts` (n, l) are prompts with their outputs, by key, padded."""

    def __init__(self, inner: Any, texts: Tensor) -> None:
        self.inner, self.texts = inner, texts
        self.name, self.divides = inner.name, inner.divides

    def __call__(self, proposal: Any, logits: Tensor, sequences: Any, operations: Any) -> Any:
        window = proposal.window
        at = window.slots.clamp_min(0).long()
        depths = torch.arange(window.tokens.shape[1], device=logits.device)
        if window.parents is not None:
            depths = operations.tree_mask(window.parents)[1].clamp_min(0)
        places = (sequences.length[at][:, None] + depths).clamp_max(self.texts.shape[1] - 1)
        logits.scatter_(-1, self.texts[sequences.request[at][:, None], places][..., None], CERTAIN)  # (1)
        return self.inner(proposal, logits, sequences, operations)  # (2)

    def check(self, drafter: Any) -> None:
        self.inner.check(drafter)

    def takes(self, settings: Any) -> None:
        self.inner.takes(settings)


def table(texts: Any, device: str) -> Tensor:
    """The texts as rows, padded with token 0."""
    longest = max(len(text.whole) for text in texts)
    return torch.tensor([[*text.whole, *[0] * (longest - len(text.whole))] for text in texts], device=device)
