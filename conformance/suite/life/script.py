"""Scripts of what happens to sequences: drawn step by step from a model that knows which prefixes are saved.

The model is what a prefix cache must be: a set of token sequences. A state is saved at every multiple of `block` tokens that
a sequence passes; with a block of 0 there is no cache. A prompt that begins is covered by the longest saved prefix that
leaves at least its last token to feed. Prompts share texts, differ in their first token alone, or are new, so that a key of
the length, or of the last block only, finds the wrong state. Half of them end at a boundary: there a saved state would cover
all of the prompt. Half of what is fed goes to the sequence that was copied last, so that a copy that shares memory shows.

A script with a cache ends with the steps of `after_a_move`: copied sequences and their origin save prefixes, and others begin
from them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from ssmspec_ref.layers.mixer import MixerInputs
from ssmspec_ref.records import each
from ssmspec_ref.shapes import Array

Tokens = tuple[int, ...]
Place = tuple[int, int]
"""A server and a slot of it."""
WAYS: dict[str, tuple[str, ...]] = {
    "prefix": (*["begin", "end"] * 5, "feed", "feed", "evict"),
    "fork": ("begin", "feed", "feed", "fork", "fork", "end"),
    "move": ("begin", "feed", "feed", "export", "take", "end"),
    "mixed": (*["begin", "feed", "end"] * 3, "fork", "export", "take", "evict"),
}
"""What is drawn, by the option `script`."""
VOCABULARY = 5


@dataclass(frozen=True)
class Step:
    """One call. `do` is begin, feed, fork, end, evict, export or take; `slot` its sequence, `to` the slot of a fork or the
    number of an export. `tokens` are the prompt that begins or the tokens that are fed, `inputs` those of the tokens that are
    fed, or of the prefix that must be found (`found` tokens)."""

    do: str
    server: int
    slot: int
    to: int = 0
    tokens: Array | None = None
    inputs: MixerInputs | None = None
    found: int = 0


@dataclass
class Model:
    """Which sequence is in which slot, which prefixes each server has saved, which sequences were exported and from where,
    and which one was copied last."""

    block: int
    sequences: dict[Place, Tokens] = field(default_factory=dict)
    saved: dict[int, set[Tokens]] = field(default_factory=dict)
    exports: dict[int, Tokens] = field(default_factory=dict)
    origins: dict[int, int] = field(default_factory=dict)
    copied: Place | None = None

    def covered(self, server: int, prompt: Tokens) -> int:
        """How many tokens of a prompt the longest saved prefix covers; at least one is left."""
        known = self.saved.get(server, set()) if self.block else set()
        if not known:
            return 0
        return next((n for n in range(len(prompt) - 1, 0, -1) if n % self.block == 0 and prompt[:n] in known), 0)

    def begin(self, server: int, slot: int, prompt: Tokens) -> list[Step]:
        """A prompt begins, and what its prefix does not cover is fed."""
        found, place = self.covered(server, prompt), (server, slot)
        self.sequences[place] = prompt[:found]
        begun = Step("begin", server, slot, tokens=np.array(prompt), found=found)
        return [begun, *self.feed(place, prompt[found:])]

    def feed(self, place: Place, tokens: Tokens) -> list[Step]:
        """A sequence continues, and is saved at the boundaries that it passes."""
        before, whole = len(self.sequences[place]), self.sequences[place] + tokens
        passed = (n for n in range(before + 1, len(whole) + 1) if self.block and n % self.block == 0)
        self.saved.setdefault(place[0], set()).update(whole[:n] for n in passed)
        self.sequences[place] = whole
        return [Step("feed", *place, tokens=np.array(tokens))]

    def fork(self, place: Place, to: int) -> list[Step]:
        self.sequences[place[0], to], self.copied = self.sequences[place], place
        return [Step("fork", *place, to)]

    def end(self, place: Place) -> list[Step]:
        del self.sequences[place]
        return [Step("end", *place)]

    def evict(self, server: int) -> list[Step]:
        self.saved[server] = set()
        return [Step("evict", server, 0)]

    def export(self, place: Place) -> list[Step]:
        number = len(self.exports)
        self.exports[number], self.origins[number], self.copied = self.sequences[place], place[0], place
        return [Step("export", *place, number)]

    def take(self, place: Place, number: int) -> list[Step]:
        self.sequences[place] = self.exports[number]
        return [Step("take", *place, number)]

    def free(self, server: int, slots: int) -> list[int]:
        return [slot for slot in range(slots) if (server, slot) not in self.sequences]

    def room(self, server: int, slots: int) -> tuple[list[Step], Place]:
        """A free slot of a server; if there is none, the sequence that began first ends."""
        free = self.free(server, slots)
        if free:
            return [], (server, free[0])
        place = next(place for place in self.sequences if place[0] == server)
        return self.end(place), place


def texts_of(rng: np.random.Generator, tokens: int) -> list[Array]:
    """A text, the same with another first token, and another one."""
    text = rng.integers(0, VOCABULARY, tokens)
    return [text, np.concatenate([[(text[0] + 1) % VOCABULARY], text[1:]]), rng.integers(0, VOCABULARY, tokens)]


def drawn(
    rng: np.random.Generator, way: str, steps: int, slots: int, most: int, block: int, across: bool = False
) -> Iterator[Step]:
    """A script: everything that its way names in turn, each round in another order; steps that are not possible are left
    out. `most` is the number of tokens fed at once; `across` says that a state is taken by the other server, in turn by
    the one and the other."""
    model, servers = Model(block), 2 if way in ("move", "mixed") else 1
    texts = texts_of(rng, 4 * most + 2 * block)
    made = 0
    while made < steps:
        for do in rng.permutation(WAYS[way]).tolist():
            found = _possible(model, rng, do, servers, slots, most, texts, across)
            made += len(found)
            yield from found
    if block:
        yield from after_a_move(model, rng, WAYS[way], slots, most)


def after_a_move(model: Model, rng: np.random.Generator, way: tuple[str, ...], slots: int, most: int) -> Iterator[Step]:
    """What a sequence saves after a fork or a transfer is found by all of its tokens, not by the later ones alone.

    A sequence begins and is copied: forked, or taken by the other server, as the script allows. Each copy passes two
    boundaries, and so does the sequence itself, before the copies or after them: what one is fed must not be among the tokens
    of another. A prompt then continues the sequence past its last boundary. If there is a copy, two prompts have all of its
    tokens up to the last boundary and one more; without a copy, all of the sequence's: both start from the prefix that was
    saved there, the second after the first was fed. A third prompt has the tokens that the copy was fed, which no sequence
    began with. If two of them are in one server, a last prompt has all tokens of the one that was fed first and then those of
    the other: a server that keeps their tokens in one list has saved a state there.
    """
    block, server = model.block, int(rng.integers(2 if "take" in way else 1))

    def text(tokens: int) -> Tokens:
        return tuple(rng.integers(0, VOCABULARY, tokens).tolist())

    ended, origin = model.room(server, slots)
    yield from [*ended, *model.begin(*origin, text(block + 1))]
    copies: list[Place] = []
    if "fork" in way and slots > 1:
        ended, to = model.room(server, slots)
        yield from [*ended, *model.fork(origin, to[1])]
        copies.append(to)
    if "take" in way:
        yield from model.export(origin)
        ended, to = model.room(1 - server, slots)
        yield from [*ended, *model.take(to, len(model.exports) - 1)]
        copies.append(to)
    fed: dict[Place, tuple[Tokens, Tokens]] = {}
    for place in [origin, *copies] if rng.random() < 0.5 else [*copies, origin]:
        before, after = model.sequences[place], text(2 * block + 1)
        for at in range(0, len(after), most):
            yield from model.feed(place, after[at : at + most])
        fed[place] = before + after, after
    for own in [*([origin] if copies else []), *(copies or [origin])]:
        whole, after = fed[own]
        known, last = whole[: len(whole) // block * block], int(rng.integers(VOCABULARY))
        every = (*known, last), (*known, (last + 1) % VOCABULARY), (*after, last)
        for prompt in every[:1] if copies and own == origin else every:
            ended, place = model.room(own[0], slots)
            yield from [*ended, *model.begin(*place, prompt)]
    for first, second in pairwise(place for place in fed if place[0] == server):
        ended, place = model.room(server, slots)
        yield from [*ended, *model.begin(*place, (*fed[first][0], *fed[second][1], int(rng.integers(VOCABULARY))))]


def _possible(
    model: Model, rng: np.random.Generator, do: str, servers: int, slots: int, most: int, texts: list[Array], across: bool
) -> list[Step]:
    """The calls of one drawn step; none if it is not possible now."""
    server = len(model.exports) % 2 if across and do == "export" else int(rng.integers(servers))
    free, running = model.free(server, slots), [slot for at, slot in model.sequences if at == server]
    place = server, int(rng.choice(running)) if running else 0
    if do == "begin" and free:
        block = model.block or 1
        text, whole = texts[rng.choice([0, 0, 1, 2])], block * rng.integers(1, len(texts[0]) // block + 1)
        shared = text[: whole if rng.random() < 0.5 else rng.integers(1, len(text) + 1)]
        prompt = np.concatenate([shared, rng.integers(0, VOCABULARY, rng.choice([0, 0, 1, 2]))])
        return model.begin(server, int(rng.choice(free)), tuple(prompt.tolist()))
    if do == "feed" and running:
        if model.copied in model.sequences and rng.random() < 0.5:
            place = model.copied or place
        return model.feed(place, tuple(rng.integers(0, VOCABULARY, rng.integers(1, most + 1)).tolist()))
    if do == "fork" and running and free:
        return model.fork(place, int(rng.choice(free)))
    if do == "end" and running:
        return model.end(place)
    if do == "evict" and model.saved.get(server):
        return model.evict(server)
    if do == "export" and running:
        return model.export(place)
    if do == "take" and model.exports and across:
        return _taken_across(model, slots)
    if do == "take" and free and model.exports:
        last = len(model.exports) - 1
        return model.take((server, int(rng.choice(free))), last if rng.random() < 0.5 else int(rng.integers(last + 1)))
    return []


def _taken_across(model: Model, slots: int) -> list[Step]:
    """The last export, taken by the server that it does not come from; if all of its slots are taken, the first one ends."""
    number = len(model.exports) - 1
    server = 1 - model.origins[number]
    ended = [] if model.free(server, slots) else model.end((server, 0))
    return [*ended, *model.take((server, model.free(server, slots)[0]), number)]


def with_inputs(steps: list[Step], table: MixerInputs) -> tuple[Step, ...]:
    """The steps with the inputs of their tokens; `table` has one window, a token for each word of the vocabulary."""

    def of(tokens: Array) -> MixerInputs:
        return each(lambda a: a[:, tokens], table)

    return tuple(
        replace(step, inputs=of(step.tokens[: step.found] if step.do == "begin" else step.tokens))
        if step.tokens is not None and (step.do == "feed" or step.found)
        else step
        for step in steps
    )
