"""An engine that returns the logits of its windows, and log-probabilities computed from them."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..engine.emitted_windows import StreamingEngine
from ..engine.requests import Request
from ..engine.sequences import Sequences
from ..engine.traces import Kept
from ..engine.window import Verdict


class Logged(StreamingEngine):
    """Keeps the logits of the last step; steps are not recorded as graphs."""

    def __init__(self, model: Any, drafter: Any, method: Any, acceptance: Any, **options: Any) -> None:
        self.kept = Kept(acceptance)
        super().__init__(model, drafter, method, self.kept, **options)

    def step(self, running: dict[int, Request], sequences: Sequences) -> None:
        self.kept.logits.clear()
        super().step(running, sequences)

    def logits(self, verdict: Verdict) -> Tensor | None:
        return self.kept.logits[id(verdict)]


class Logprob(NamedTuple):
    """For one token: its log-probability, and the most likely tokens with theirs. Units: nats."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def logprobs(logits: Tensor, tokens: tuple[int, ...], count: int) -> list[Logprob]:
    """Log-probabilities in the target's own distribution, before temperature and penalties, in float64, from logits (n,
    i)."""
    law = torch.log_softmax(logits.double(), -1)
    best, ids = law.topk(min(count, law.shape[-1]), -1)
    rows = zip(tokens, law, ids.tolist(), best.tolist(), strict=True)
    return [Logprob(token, float(row[token]), tuple(zip(i, p, strict=True))) for token, row, i, p in rows]
