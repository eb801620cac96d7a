"""User traffic, drawn and shrunk by hypothesis: rounds of requests that share an engine.

A request says how its prompt is made and what ends it. Tokens that depend on the engine's own text (a continuation, a stop
token that will occur) are named by their source, and filled in when the plain output is known (`judge.resolved`). A schedule
therefore keeps its meaning when it shrinks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import Any

from hypothesis import strategies as st

from .protocol import Started

LONGEST = 14
"""Largest number of tokens of an answer."""
LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 15, 16, 17, 25)
"""Lengths of prompts: around chunks of 8 and 16, and around a window of drafts."""


@dataclass(frozen=True)
class Ask:
    """A prompt and how it ends. The prompt is `pattern` repeated up to `length` tokens, then `tail`, after the first `kept`
    tokens of an earlier request `of` (None: of nothing), or after its whole prompt and output if it `continues`.

    `stop_at` is the index of the plain output's token that ends it; it joins `after` windows later, and is cancelled after
    `cancel` tokens.
    """

    pattern: tuple[int, ...]
    length: int
    tail: tuple[int, ...] = ()
    of: int | None = None
    kept: int = 0
    continues: bool = False
    most: int = 8
    stop_at: int | None = None
    temperature: float = 0.0
    seed: int = 0
    drafts: int | None = None
    after: int = 0
    cancel: int | None = None

    @property
    def own(self) -> tuple[int, ...]:
        return (*islice(cycle(self.pattern), self.length), *self.tail)


Schedule = tuple[tuple[Ask, ...], ...]
"""Rounds; the requests of one round run together. Requests are numbered over all rounds."""


@st.composite
def asks(draw: Any, vocabulary: int, can: Sequence[str], earlier: int) -> Ask:
    token = st.integers(1, min(vocabulary, 64) - 1)
    ask = Ask(
        pattern=tuple(draw(st.lists(token, min_size=1, max_size=4))),
        length=draw(st.sampled_from(LENGTHS)),
        tail=tuple(draw(st.lists(token, max_size=3))),
        most=draw(st.sampled_from((LONGEST, 9, 5, 2, 1))),
    )
    if earlier and draw(st.booleans()):
        ask = replace(ask, of=draw(st.integers(0, earlier - 1)), length=draw(st.integers(1, 3)))
        ask = replace(ask, continues=True) if draw(st.booleans()) else replace(ask, kept=draw(st.sampled_from(LENGTHS)))
    if "stop" in can and draw(st.booleans()):
        ask = replace(ask, stop_at=draw(st.integers(0, ask.most - 1)))
    if "seed" in can and draw(st.integers(0, 3)) == 3:
        ask = replace(ask, temperature=0.8, seed=draw(st.integers(0, 1000)))
    if "drafts" in can and draw(st.booleans()):
        ask = replace(ask, drafts=draw(st.integers(0, 4)))
    return ask


@st.composite
def schedules(draw: Any, vocabulary: int, can: Sequence[str], slots: int) -> Schedule:
    """One to three rounds; each has several requests if the engine supports it."""
    rounds: list[tuple[Ask, ...]] = []
    earlier = 0
    for _ in range(draw(st.integers(1, 3))):
        count = draw(st.integers(1, slots + 1)) if "batch" in can else 1
        made: list[Ask] = []
        for n in range(count):
            ask = draw(asks(vocabulary, can, earlier))
            if n and "join" in can and draw(st.booleans()):
                ask = replace(ask, after=draw(st.integers(1, 6)))
            if "cancel" in can and draw(st.integers(0, 3)) == 3 and ask.most > 1:
                ask = replace(ask, cancel=draw(st.integers(1, ask.most - 1)), stop_at=None)
            made.append(ask)
        earlier += count
        rounds.append(tuple(made))
    return tuple(rounds)


def told(schedule: Schedule) -> list[str]:
    """A schedule for people: one line per request, without defaults."""
    lines, number = [], 0
    for n, requests in enumerate(schedule):
        for ask in requests:
            usual = Ask((), 0)
            parts = [f"prompt {list(ask.own)}"]
            if ask.of is not None:
                parts[0] += f" behind {'all' if ask.continues else f'the first {ask.kept} tokens'} of request {ask.of}"
            told = ("most", "stop_at", "temperature", "seed", "drafts", "after", "cancel")
            parts += [f"{name} {getattr(ask, name)}" for name in told
                      if getattr(ask, name) != getattr(usual, name) or name == "most"]  # fmt: skip
            lines.append(f"round {n}, request {number}: {', '.join(parts)}")
            number += 1
    return lines


def features(schedule: Schedule, started: Started) -> list[str]:
    """The features of a schedule beyond a single plain request."""
    every = [ask for requests in schedule for ask in requests]
    found = {
        "join": any(ask.after for ask in every),
        "cancel": any(ask.cancel for ask in every),
        "batch": any(len(requests) > 1 for requests in schedule),
        "stop": any(ask.stop_at is not None for ask in every),
        "continuation": any(ask.of is not None and ask.continues for ask in every),
        "fork": any(ask.of is not None and not ask.continues for ask in every),
        "seed": any(ask.temperature for ask in every),
        "drafts": any(ask.drafts is not None for ask in every),
        "repeated": len(schedule) > 1,
    }
    return [name for name, there in found.items() if there]
