"""The tokens of all sequences, by slot, and their end conditions; on the device.

`tokens` (s, l) holds prompt and output one after the other, `length` (s) how many there are; the last one is the root, which
is not yet in any state. `budget` (s) counts the tokens that may still be emitted, `ended` (s) marks sequences that emit no
more, `request` (s) is the key of a sequence's noise. Settings of single requests: `eos` (s, e), padded with NONE;
`stop` (s, m, j), each padded with NONE in front; `sampling` (s, 7) as `Sampling.row`; `seed` (s, 2) in words of 32 bits, low
first; and `own` (s, 2), which says whether sampling and seed are set. `drafter` (s) is the number of a sequence's drafter
among `names`, `drafts` (s) the most tokens that it drafts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from ..operations import Operations
from ..operations.slots import index, sent, stand_in
from .requests import Settings
from .sampling import Needs, Sampling
from .window import Verdict

NONE = -2
"""Padding: not a token of a vocabulary, and not the -1 after the end of a run."""
FIELDS = len(fields(Sampling))
"""The number of fields of a `Sampling`."""


class Asked(NamedTuple):
    """What the running requests need, known on the host, so that a step skips what none of them needs.

    `sampling`: the sampling steps needed by requests with their own sampling (None: no request has one). `seeds`: whether any
    request has a seed. `ends`: the end-of-sequence tokens that all share (None: they differ). `stops`: whether any has a stop
    sequence.
    """

    sampling: Needs | None = None
    seeds: bool = False
    ends: tuple[int, ...] | None = ()
    stops: bool = False


@dataclass
class Sequences:
    """Every tensor is written in place; `eos` and `stop` are reallocated if a request needs more room."""

    tokens: Tensor
    length: Tensor
    prompt: Tensor
    budget: Tensor
    ended: Tensor
    request: Tensor
    eos: Tensor
    stop: Tensor
    sampling: Tensor
    seed: Tensor
    own: Tensor
    drafts: Tensor
    drafter: Tensor
    asked: Asked
    shared: Tensor
    names: tuple[str, ...] = ()

    def roots(self, slots: Tensor) -> Tensor:
        """The last token of each row (b); token 0 for padding."""
        at = index(slots)
        last = (self.length[at] - 1).clamp_min(0)
        return self.tokens[at, last] * (slots >= 0)

    def add(self, slot: int, prompt: list[int], budget: int, request: int, settings: Settings | None = None) -> None:
        """Puts a new sequence into a slot; without settings it keeps the slot's ends, sampling and seed."""
        self.tokens[slot, : len(prompt)] = sent(prompt, self.tokens.device)
        self.length[slot] = self.prompt[slot] = len(prompt)
        self.budget[slot], self.request[slot], self.ended[slot] = budget, request, budget == 0
        if settings is not None:
            self.set(slot, settings)

    def set(self, at: int | slice, settings: Settings) -> None:
        """Sets the settings of one or several slots. `ask` updates the steps accordingly."""
        eos, stop = settings.eos, settings.stop
        self.eos = roomier(self.eos, len(eos))
        self.stop = roomier(self.stop, len(stop), max(map(len, stop), default=0))
        device, places, longest = self.tokens.device, self.stop.shape[1], self.stop.shape[2]
        self.eos[at] = sent([*eos, *[NONE] * (self.eos.shape[1] - len(eos))], device)
        if places:
            rows = [*stop, *[()] * (places - len(stop))]
            self.stop[at] = sent([[*[NONE] * (longest - len(run)), *run] for run in rows], device)
        if settings.sampling is not None:
            self.sampling[at] = torch.tensor(settings.sampling.row, dtype=torch.float64).to(device)
        if settings.seed is not None:
            self.seed[at] = sent([settings.seed & 0xFFFFFFFF, settings.seed >> 32], device)
        self.drafts[at] = self.tokens.shape[1] if settings.drafts is None else settings.drafts
        self.drafter[at] = 0 if settings.drafter is None else self.names.index(settings.drafter)
        self.own[at] = torch.tensor([settings.sampling is not None, settings.seed is not None]).to(device)

    def ask(self, running: Sequence[Settings]) -> None:
        """Records what the running requests need."""
        own = [one.sampling.needs for one in running if one.sampling is not None]
        needs = reduce(lambda a, b: a | b, own) if own else None
        ends = {one.eos for one in running}
        stops = any(one.stop for one in running)
        same = next(iter(ends)) if len(ends) == 1 else None
        if same is not None and same != self.asked.ends:
            self.shared = sent(list(same), self.tokens.device)
        self.asked = Asked(needs, any(one.seed is not None for one in running), same, stops)

    @property
    def same_ends(self) -> Tensor | None:
        """The end-of-sequence tokens (e) that all sequences share; None if they differ or any has a stop sequence."""
        return None if self.asked.stops or self.asked.ends is None else self.shared

    def seeds(self, at: Tensor, default: int) -> "Tensor | int":
        """The seed of each row (b, 2) in words of 32 bits; the default alone if no request has its own."""
        if not self.asked.seeds:
            return default
        low, high = self.seed[at].unbind(-1)
        own = self.own[at, 1]
        return torch.stack([torch.where(own, low, default & 0xFFFFFFFF), torch.where(own, high, default >> 32)], dim=-1)

    def commit(self, verdict: Verdict, operations: Operations | None = None) -> None:
        """Appends the emitted tokens and updates lengths, budgets and ends; in one launch if the operations support it."""
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

    def output(self, slot: int) -> tuple[int, ...]:
        """The emitted tokens of a sequence."""
        start, end = int(self.prompt[slot]), int(self.length[slot])
        return tuple(self.tokens[slot, start:end].tolist())

    def copy(self, slot: int, to: int) -> None:
        """Copies a sequence into another slot, unchanged."""
        state = self.tokens, self.length, self.prompt, self.budget, self.ended, self.request
        for x in (*state, self.eos, self.stop, self.sampling, self.seed, self.own, self.drafts, self.drafter):
            x[to] = x[slot]


def new_sequences(
    slots: int, length: int, eos: tuple[int, ...], stop: tuple[tuple[int, ...], ...], device: torch.device | str
) -> Sequences:
    """Room for `slots` sequences of `length` tokens, with the same end conditions until a sequence gets its own settings."""

    def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    made = Sequences(
        zeros(slots, length), zeros(slots), zeros(slots), zeros(slots), ~zeros(slots, dtype=torch.bool), zeros(slots),
        zeros(slots, 0), zeros(slots, 0, 0), zeros(slots, FIELDS, dtype=torch.float64), zeros(slots, 2),
        zeros(slots, 2, dtype=torch.bool), zeros(slots), zeros(slots), Asked(), zeros(0),
    )  # fmt: skip
    made.set(slice(None), Settings(0, eos, stop))
    made.ask([Settings(0, eos, stop)])
    return made


def roomier(held: Tensor, *wanted: int) -> Tensor:
    """The same values with at least `wanted` entries on the axes after the first, padded with NONE in front."""
    more = [max(0, need - has) for need, has in zip(wanted, held.shape[1:], strict=True)]
    if not any(more):
        return held
    return torch.nn.functional.pad(held, [n for need in reversed(more) for n in (need, 0)], value=NONE)
