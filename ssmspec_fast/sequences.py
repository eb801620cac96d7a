"""The tokens of all sequences, by slot, and what ends them; on the device.

`tokens` (s, l) holds prompt and output one after the other, `length` (s) how many there are; the last one is the root, which
is in no state. `budget` (s) counts the tokens that may still be emitted, `ended` (s) marks those that emit no more, `request`
(s) is the key of a sequence's noise.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from .operations import Operations
from .operations.slots import index, sent, stand_in
from .window import Verdict


@dataclass
class Sequences:
    """Every tensor is written in place."""

    tokens: Tensor
    length: Tensor
    prompt: Tensor
    budget: Tensor
    ended: Tensor
    request: Tensor
    eos: Tensor
    stop: tuple[Tensor, ...] = ()

    def roots(self, slots: Tensor) -> Tensor:
        """The last token of each row (b); token 0 for padding."""
        at = index(slots)
        last = (self.length[at] - 1).clamp_min(0)
        return self.tokens[at, last] * (slots >= 0)

    def add(self, slot: int, prompt: list[int], budget: int, request: int) -> None:
        """A new sequence in a slot."""
        self.tokens[slot, : len(prompt)] = sent(prompt, self.tokens.device)
        self.length[slot] = self.prompt[slot] = len(prompt)
        self.budget[slot], self.request[slot], self.ended[slot] = budget, request, budget == 0

    def commit(self, verdict: Verdict, operations: Operations | None = None) -> None:
        """Enter what was emitted: tokens, lengths, budgets, ends; in one launch where the operations offer it."""
        run, rule = verdict.run, None if operations is None else operations.commit_tokens
        if rule is not None:
            more = {"budget": self.budget, "ended": self.ended, "slots": verdict.slots}
            rule(run, self.tokens, self.length, **more)
            return
        slots, (tokens, advanced, ended), some = stand_in(verdict.slots, run.tokens, run.advanced, run.ended)
        advanced = torch.where(some, advanced, 0)
        steps = torch.arange(tokens.shape[1], device=slots.device)
        there = slots[:, None], self.length[slots][:, None] + steps
        new = torch.where(steps < advanced[:, None], tokens.to(self.tokens.dtype), self.tokens[there])
        self.tokens.index_put_(there, new)
        self.length.index_copy_(0, slots, self.length[slots] + advanced)
        self.budget.index_copy_(0, slots, self.budget[slots] - advanced)
        self.ended.index_copy_(0, slots, self.ended[slots] | (ended & some))

    def ends_at(self, eos: Tensor, stop: tuple[Tensor, ...]) -> bool:
        """Whether these are the ends of the sequences."""
        mine, theirs = (self.eos, *self.stop), (eos, *stop)
        return len(mine) == len(theirs) and all(torch.equal(a.cpu(), b) for a, b in zip(mine, theirs, strict=True))

    def output(self, slot: int) -> tuple[int, ...]:
        """What a sequence has emitted."""
        start, end = int(self.prompt[slot]), int(self.length[slot])
        return tuple(self.tokens[slot, start:end].tolist())

    def copy(self, slot: int, to: int) -> None:
        """A sequence into another slot, as it is."""
        for x in (self.tokens, self.length, self.prompt, self.budget, self.ended, self.request):
            x[to] = x[slot]


def new_sequences(
    slots: int, length: int, eos: tuple[int, ...], stop: tuple[tuple[int, ...], ...], device: torch.device | str
) -> Sequences:
    """Room for `slots` sequences of `length` tokens."""

    def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    ends = torch.tensor(eos, dtype=torch.int64, device=device)
    ended = torch.ones(slots, dtype=torch.bool, device=device)
    stops = tuple(torch.tensor(run, dtype=torch.int64, device=device) for run in stop)
    return Sequences(zeros(slots, length), zeros(slots), zeros(slots), zeros(slots), ended, zeros(slots), ends, stops)
