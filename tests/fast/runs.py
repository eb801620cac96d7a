"""Engines and decoders over small models, and what they emit: what every test of a run shares."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ssmspec_fast.accept.greedy import Greedy
from ssmspec_fast.draft.nothing import Nothing
from ssmspec_fast.engine.decoder import Decoder
from ssmspec_fast.engine.loop import Engine
from ssmspec_fast.engine.requests import Settings
from ssmspec_fast.engine.scheduler import Scheduler, Served
from ssmspec_fast.engine.sequences import Sequences, new_sequences
from ssmspec_fast.engine.state import Pools
from ssmspec_fast.engine.window import Proposal
from ssmspec_fast.methods import Method
from ssmspec_fast.methods.plain import Plain
from ssmspec_fast.models.model import Model
from ssmspec_fast.operations.torch_ops import TorchOperations

from .models import VOCABULARY, drawn

BITWISE = TorchOperations(bitwise=True)
Texts = Sequence[Sequence[int]]


def engine(model: str | Model, drafter: Any = None, method: Any = None, rule: Any = None, **room: Any) -> Engine:
    """Of a drawn family or of a model; bitwise, with three slots of 64 places, unless another room is given."""
    made = drawn(model) if isinstance(model, str) else model
    return Engine(made, drafter, method, rule, **{"operations": BITWISE, "slots": 3, "cache": 64} | room)


def emitted(made: Engine, given: Texts, settings: Settings | int) -> list[tuple[int, ...]]:
    """The tokens of each request; a number is a budget."""
    settings = Settings(settings) if isinstance(settings, int) else settings
    return [result.tokens for result in made.generate(given, settings)]


def begun(
    model: Model,
    method: Method,
    given: Texts,
    places: Sequence[int],
    *,
    slots: int = 3,
    cache: int = 64,
    window: int = 1,
    operations: Any = BITWISE,
    ends: tuple[Any, Any] = ((), ()),
    **options: Any,
) -> tuple[Decoder, Sequences]:
    """A decoder that has read a prompt in each of these places; request n is in places[n]. `ends` are tokens and stops."""
    decoder = Decoder(model, method, operations, slots=slots, cache=cache, window=window, **options)
    sequences = new_sequences(slots, cache + window, *ends, model.device)
    with torch.no_grad():
        decoder.prefill(given, list(places))
    for number, (slot, prompt) in enumerate(zip(places, given, strict=True)):
        sequences.add(slot, list(prompt), cache, number)
    return decoder, sequences


@torch.no_grad()
def step(decoder: Decoder, sequences: Sequences, proposal: Proposal, rule: Any = None, **how: Any) -> Any:
    """One window, from the proposal to the commit; its verdict."""
    feed = decoder.feed(proposal.window, sequences, **how)
    verdict = (rule or Greedy())(proposal, decoder.verify(feed), sequences, decoder.operations)
    decoder.commit(feed, verdict)
    sequences.commit(verdict)
    return verdict


@torch.no_grad()
def logits_after(
    model: Model, prompt: Sequence[int], operations: Any = BITWISE, prefilled: int = 5, **room: Any
) -> tuple[Pools, Tensor]:
    """States, and the logits at each token that comes alone, after a prefill of the first ones; the last is not read."""
    decoder, sequences = begun(model, Plain(), [prompt[:prefilled]], [1], operations=operations, **room)
    slot, found = torch.tensor([1], device=model.device), []
    for token in prompt[prefilled:]:
        feed = decoder.feed(Nothing().propose(sequences, slot).window, sequences)
        found.append(decoder.verify(feed)[0, 0])
        decoder.pools.length[1] += 1
        sequences.tokens[1, sequences.length[1]] = token
        sequences.length[1] += 1
    return decoder.pools, torch.stack(found)


def apart(found: Any, wanted: Any) -> float:
    """The largest difference of the logits, or of the last of them, of the largest that are wanted."""
    found, wanted = (x.double().cpu().numpy() if isinstance(x, Tensor) else x for x in (found, wanted))
    return float(np.max(np.abs(found - wanted[-len(found) :])) / np.max(np.abs(wanted)))


def unused(*texts: Texts) -> int:
    """The first token that is in none of the texts."""
    return min({*range(VOCABULARY)} - {token for several in texts for text in several for token in text})


def served(scheduler: Scheduler) -> dict[int, Served]:
    """What ends until nothing runs or waits, by number."""
    found = dict[int, Served]()
    while not scheduler.idle:
        found |= {one.number: one for one in scheduler.turn()}
    return found
