"""Prompts in, tokens out: the loop over windows of a batch of sequences that join, end and leave at different times.

    proposal = drafter(sequences)                        (1)
    logits   = target(feed of the window)                (2)
    verdict  = acceptance(proposal, logits), cut         (3)
    commit   : states, caches, cursors; then the tokens  (4)

One step is (1) to (4) for all rows at once; between steps, sequences that ended leave their slot and waiting ones take it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from ssmspec_ref.errors import BudgetError, EmptyWindow, LengthError, ParameterError, SlotError

from .accept import Acceptance
from .accept.greedy import Greedy
from .decoder import Decoder
from .draft import Drafter
from .draft.nothing import Nothing
from .methods import Method
from .methods.plain import Plain
from .model import Model
from .operations import Operations
from .operations.torch_ops import TorchOperations
from .sequences import Sequences, new_sequences

Finish = Literal["eos", "stop", "length", "failed"]


@dataclass(frozen=True)
class Settings:
    """When a request ends. Units: `budget` is emitted tokens.

    Raises: BudgetError (negative), ParameterError (a stop sequence without tokens).
    """

    budget: int
    eos: tuple[int, ...] = ()
    stop: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        if self.budget < 0:
            raise BudgetError(f"budget came as {self.budget} tokens; give 0 or more")
        if any(not sequence for sequence in self.stop):
            raise ParameterError("a stop sequence came without tokens, which every output ends with; give at least one token")


@dataclass(frozen=True)
class Statistics:
    """Of one request: how many tokens each of its windows emitted, and how many it drafted."""

    advanced: tuple[int, ...] = ()

    @property
    def tokens_per_window(self) -> float:
        return sum(self.advanced) / len(self.advanced) if self.advanced else 0.0


@dataclass(frozen=True)
class Result:
    """One request: its tokens, why it ended, its statistics."""

    tokens: tuple[int, ...]
    finish: Finish
    statistics: Statistics


@dataclass
class Request:
    """`number` is the prompt's place among those given; `key` names the request's noise."""

    number: int
    key: int
    prompt: list[int]
    advanced: list[int] = field(default_factory=list)


class Engine:
    """A target, how it drafts, verifies and accepts, and room for `slots` sequences of `cache` tokens.

    Raises: Unsupported, ParameterError, MemoryRefused.
    """

    def __init__(
        self,
        model: Model,
        drafter: Drafter | None = None,
        method: Method | None = None,
        acceptance: Acceptance | None = None,
        *,
        operations: Operations | None = None,
        slots: int = 8,
        cache: int = 2048,
        memory: int | None = None,
    ) -> None:
        self.model = model
        self.operations: Operations = TorchOperations() if operations is None else operations
        self.drafter: Drafter = Nothing() if drafter is None else drafter
        self.acceptance: Acceptance = Greedy() if acceptance is None else acceptance
        for part, other in ((self.acceptance, self.drafter), (self.drafter, model)):
            if check := getattr(part, "check", None):  # whether a rule can judge the drafts, a drafter serve the model
                check(other)
        self.target = Decoder(
            model,
            Plain() if method is None else method,
            self.operations,
            slots=slots,
            cache=cache,
            window=self.drafter.nodes,
            memory=memory,
        )
        self.slots, self.cache = slots, cache
        self.busy = False
        if attach := getattr(self.drafter, "attach", None):  # drafts from what the target's head read
            attach(self.target)

    def generate(
        self, prompts: Sequence[Sequence[int]], settings: Settings, keys: Sequence[int] | None = None
    ) -> list[Result]:
        """The results of all prompts, in their order.

        `keys` name the requests (None: 0, 1, ..): the noise of sampling follows the key, not the row or the batch.

        Raises: EmptyWindow, ParameterError, LengthError, before any work.
        """
        found: dict[int, Result] = dict(self.stream(prompts, settings, keys))
        return [found[number] for number in range(len(prompts))]

    @torch.no_grad()
    def stream(
        self, prompts: Sequence[Sequence[int]], settings: Settings, keys: Sequence[int] | None = None
    ) -> Iterator[tuple[int, Result]]:
        """The number of a prompt and its result, as they end. Raises: as `generate`; SlotError beside another open stream."""
        self.check(prompts, settings)
        sequences = new_sequences(self.slots, self.cache + self.target.window, settings.eos, settings.stop, self.model.device)
        names = range(len(prompts)) if keys is None else keys
        if len(names) != len(prompts):
            raise ParameterError(f"{len(prompts)} prompts came with {len(names)} keys; give one for each, or none")
        if self.busy:
            raise SlotError("another stream of this engine holds its slots; exhaust or close it, or build a second engine")
        waiting = [Request(n, key, list(prompt)) for n, (key, prompt) in enumerate(zip(names, prompts, strict=True))]
        running: dict[int, Request] = {}
        self.busy = True
        try:
            while waiting or running:
                self.join(waiting, running, sequences, settings)
                yield from self.leave(running, sequences, settings)
                if running:
                    self.step(running, sequences)
                    yield from self.leave(running, sequences, settings)
        finally:
            self.busy = False

    def join(self, waiting: list[Request], running: dict[int, Request], sequences: Sequences, settings: Settings) -> None:
        """Waiting requests into free slots, prefilled together."""
        free = [slot for slot in range(self.slots) if slot not in running][: len(waiting)]
        if not free:
            return
        joining = [waiting.pop(0) for _ in free]
        for slot, request in zip(free, joining, strict=True):
            running[slot] = request
            sequences.add(slot, request.prompt, settings.budget, request.key)
        self.target.prefill([request.prompt for request in joining], free)
        self.drafter.start(sequences, self.rows(free))

    def step(self, running: dict[int, Request], sequences: Sequences) -> None:
        """One window of every running sequence, (1) to (4)."""
        slots = self.rows([slot if slot in running else -1 for slot in range(self.slots)])
        proposal = self.drafter.propose(sequences, slots)  # (1)
        feed = self.target.feed(proposal.window, sequences)
        logits = self.target.verify(feed)  # (2)
        verdict = self.acceptance(proposal, logits, sequences, self.operations)  # (3)
        self.target.commit(feed, verdict)  # (4)
        sequences.commit(verdict)
        self.drafter.observe(sequences, proposal, verdict)
        for slot, count in zip(verdict.slots.tolist(), verdict.run.advanced.tolist(), strict=True):
            if slot >= 0:
                running[slot].advanced.append(count)

    def leave(self, running: dict[int, Request], sequences: Sequences, settings: Settings) -> Iterator[tuple[int, Result]]:
        """The requests that have ended, out of their slots."""
        ended = sequences.ended.tolist()
        done = [slot for slot in running if ended[slot]]
        for slot in done:
            request = running.pop(slot)
            output = sequences.output(slot)
            failed = request.advanced[-1:] == [0]  # its logits were no numbers
            ending: Finish = "failed" if failed else finish(output, settings)
            result = Result(output, ending, Statistics(tuple(request.advanced)))
            yield request.number, result
        if done:
            self.drafter.release(self.rows(done))

    def rows(self, slots: list[int]) -> Tensor:
        return torch.tensor(slots, dtype=torch.int64, device=self.model.device)

    def check(self, prompts: Sequence[Sequence[int]], settings: Settings) -> None:
        """Raises: EmptyWindow, ParameterError, LengthError."""
        vocabulary = self.model.config.vocabulary
        for number, prompt in enumerate(prompts):
            if not len(prompt):
                raise EmptyWindow(f"prompt {number} came without tokens; each needs one, the first root")
            bad = [token for token in prompt if not 0 <= token < vocabulary]
            if bad:
                raise ParameterError(f"prompt {number} holds token {bad[0]}, but the vocabulary is 0 to {vocabulary - 1}")
            needed = len(prompt) + settings.budget + self.target.window - 1
            if needed > self.cache:
                raise LengthError(
                    f"prompt {number} with {len(prompt)} tokens and a budget of {settings.budget} needs {needed} places, "
                    f"but a slot holds {self.cache}; build the engine with cache={needed}"
                )


def finish(output: tuple[int, ...], settings: Settings) -> Finish:
    """Why an output ended; a stop before the budget where both fall on one token."""
    if output and output[-1] in settings.eos:
        return "eos"
    if any(output[len(output) - len(stop) :] == tuple(stop) for stop in settings.stop):
        return "stop"
    return "length"
