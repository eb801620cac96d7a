"""User traffic, drawn and shrunk by hypothesis: rounds of requests that share an engine.

A request says how its prompt is made and what ends it. Tokens that depend on the engine's own text (a continuation, a stop
token that will occur) are named by their source, and filled in when the plain output is known (`judge/attempts.py`). A
schedule therefore keeps its meaning when it shrinks.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, cycle, islice
from typing import Any

from hypothesis import strategies as st

from .protocol import Started

LONGEST = 14
"""Largest number of tokens of an answer."""
LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 15, 16, 17, 25)
"""Lengths of prompts: around chunks of 8 and 16, and around a window of drafts."""
AROUND = (-7, -1, 0, 1)
"""Lengths of prompts around an engine's block: one that the answer fills, and one that is full."""


@dataclass(frozen=True)
class Ask:
    """A prompt and how it ends. The prompt is `pattern` repeated up to `length` tokens, then `tail`, after the first `kept`
    tokens of an earlier request `of` (None: of nothing), or after its whole prompt and output if it `continues`.

    `stop_at` is the index of the plain output's token that ends it; it joins `after` windows later, and is cancelled after
    `cancel` tokens. `drafts` and `drafter` are its own number of drafts and the name of its own drafter.
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
    drafter: str | None = None
    after: int = 0
    cancel: int | None = None

    @property
    def own(self) -> tuple[int, ...]:
        return (*islice(cycle(self.pattern), self.length), *self.tail)


@dataclass(frozen=True)
class Offer:
    """What an engine offers to requests: the features that it says, its block, the most drafts, and names of drafters."""

    can: tuple[str, ...] = ()
    block: int | None = None
    drafts: int = 0
    drafters: tuple[str, ...] = ()

    def without(self, *features: str) -> "Offer":
        return replace(self, can=tuple(one for one in self.can if one not in features))


Schedule = tuple[tuple[Ask, ...], ...]
"""Rounds; the requests of one round run together. Requests are numbered over all rounds."""


def lengths(block: int | None) -> tuple[int, ...]:
    """Lengths to draw from: of an engine with blocks, one in two around these."""
    near = () if block is None else tuple(block + off for off in AROUND if block + off > 0)
    return (*LENGTHS, *islice(cycle(near), len(LENGTHS) if near else 0))


@st.composite
def asks(draw: Any, vocabulary: int, offer: Offer, earlier: int) -> Ask:
    can, block, token = offer.can, offer.block, st.integers(1, min(vocabulary, 64) - 1)
    ask = Ask(
        pattern=tuple(draw(st.lists(token, min_size=1, max_size=4))),
        length=draw(st.sampled_from(lengths(block))),
        tail=tuple(draw(st.lists(token, max_size=3))),
        most=draw(st.sampled_from((LONGEST, 9, 5, 2, 1))),
    )
    if earlier and draw(st.booleans()):
        ask = replace(ask, of=draw(st.integers(0, earlier - 1)), length=draw(st.integers(1, 3)))
        ask = (
            replace(ask, continues=True) if draw(st.booleans()) else replace(ask, kept=draw(st.sampled_from(lengths(block))))
        )
    if "stop" in can and draw(st.booleans()):
        ask = replace(ask, stop_at=draw(st.integers(0, ask.most - 1)))
    if "seed" in can and draw(st.integers(0, 3)) == 3:
        ask = replace(ask, temperature=0.8, seed=draw(st.integers(0, 1000)))
    if "drafts" in can and draw(st.booleans()):
        ask = replace(ask, drafts=draw(st.integers(0, offer.drafts)))
    if "drafter" in can and draw(st.booleans()):
        ask = replace(ask, drafter=draw(st.sampled_from(offer.drafters)))
    return ask


@st.composite
def schedules(draw: Any, vocabulary: int, offer: Offer, slots: int) -> Schedule:
    """One to three rounds; each has several requests if the engine supports it."""
    can = offer.can
    rounds: list[tuple[Ask, ...]] = []
    earlier = 0
    for _ in range(draw(st.integers(1, 3))):
        many = draw(st.integers(1, slots + 1)) if "batch" in can else 1
        made: list[Ask] = []
        for n in range(many):
            ask = draw(asks(vocabulary, offer, earlier))
            if n and "join" in can and draw(st.booleans()):
                ask = replace(ask, after=draw(st.integers(1, 6)))
            if "cancel" in can and draw(st.integers(0, 3)) == 3 and ask.most > 1:
                ask = replace(ask, cancel=draw(st.integers(1, ask.most - 1)), stop_at=None)
            made.append(ask)
        earlier += many
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
                parts[0] += f" after {'all' if ask.continues else f'the first {ask.kept} tokens'} of request {ask.of}"
            told = ("most", "stop_at", "temperature", "seed", "drafts", "drafter", "after", "cancel")
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
        "drafter": any(ask.drafter is not None for ask in every),
        "repeated": len(schedule) > 1,
    }
    return [name for name, there in found.items() if there]


USUAL: tuple[dict[str, Any], ...] = (
    {"stop_at": None}, {"temperature": 0.0, "seed": 0}, {"cancel": None}, {"after": 0}, {"drafter": None}, {"drafts": None},
    {"most": 1},
)  # fmt: skip


def in_full(schedule: Schedule, prompts: Sequence[tuple[int, ...]]) -> Schedule:
    """The same schedule, with each prompt in full; `prompts` are those of all requests in order."""
    left = iter(prompts)
    return tuple(tuple(prompted(ask, next(left)) for ask in asks) for asks in schedule)


def in_turn(schedule: Schedule) -> Schedule:
    """The same requests one after another, none cancelled."""
    return tuple((replace(ask, after=0, cancel=None),) for asks in schedule for ask in asks)


def prompted(ask: Ask, ids: tuple[int, ...]) -> Ask:
    """The same request with another prompt."""
    return replace(ask, pattern=ids, length=len(ids), tail=(), of=None, continues=False, kept=0)


def without(schedule: Schedule, gone: range) -> Schedule:
    """A schedule without some of its requests, which are numbered over all rounds."""
    numbers = count()
    kept = (tuple(ask for ask in asks if next(numbers) not in gone) for asks in schedule)
    return tuple(asks for asks in kept if asks)


def candidates(schedule: Schedule) -> Iterator[Schedule]:
    """Schedules with one part less, the largest part first."""
    places = [(n, k) for n, asks in enumerate(schedule) for k in range(len(asks))]
    size = len(places) // 2
    while size:
        yield from (without(schedule, range(at, at + size)) for at in range(0, len(places), size))
        size //= 2
    for n, asks in enumerate(schedule):
        if len(asks) > 1:
            yield (*schedule[:n], *((ask,) for ask in asks), *schedule[n + 1 :])
    for n, k in places:
        for other in simpler(schedule[n][k]):
            yield (*schedule[:n], (*schedule[n][:k], other, *schedule[n][k + 1 :]), *schedule[n + 1 :])
    prompts = [ask.own for asks in schedule for ask in asks]
    if min(map(len, prompts)) > 1:
        yield in_full(schedule, [ids[1:] for ids in prompts])


def simpler(ask: Ask) -> Iterator[Ask]:
    """The request with one setting less, or with a shorter prompt."""
    for usual in USUAL:
        other = replace(ask, **usual)
        if other != ask:
            yield other
    ids = ask.own
    half = len(ids) // 2
    shorter = (ids[:half], ids[half:], ids[:-1], ids[1:], (1,) * len(ids))
    yield from (prompted(ask, one) for one in dict.fromkeys(shorter) if one and one != ids)


def reduced(schedule: Schedule, breaks: Callable[[Schedule], bool], more: Callable[[], bool]) -> Schedule:
    """The smallest schedule that still `breaks`, until no part can be removed; `more` says whether there is time.

    It finds what Hypothesis, which keeps the order of what was drawn, does not reach in time.
    """
    smaller = True
    while smaller:
        smaller = False
        for candidate in candidates(schedule):
            if not more():
                return schedule
            if breaks(candidate):
                schedule, smaller = candidate, True
                break
    return schedule
