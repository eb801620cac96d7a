"""A server of several tensor-parallel ranks: one server of a smaller layer for each, and no reading of each other's memory.

An export is that of every rank. It is put together and split again for a server of another number of ranks.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ssmspec_ref.contract import FLOAT64, Capability, Limits, Subject
from ssmspec_ref.layers.mixer import DeltaMixer, Mixer, MixerInputs, MixerState, SSDMixer
from ssmspec_ref.records import each
from ssmspec_ref.shapes import Array

from .states import States, Tokens

WAYS = Limits({"ranks": ("one", "one_and_few", "one_and_heads", "few_and_heads")})


def sizes(layer: Mixer) -> list[tuple[int, int]]:
    """The blocks of each part of the convolution's channels, and their channels."""
    if isinstance(layer, SSDMixer):
        x, B = layer.x_groups or len(layer.params.A), layer.B_groups or layer.groups
        return [(x, layer.channels), (B, layer.state), (layer.groups, layer.state)]
    if isinstance(layer, DeltaMixer):
        keys = layer.key_heads, layer.key_channels
        return [keys, keys, (layer.value_heads, layer.value_channels)]
    return [(1, layer.conv.weight.shape[0])]


def parts(layer: Mixer, a: Array, ranks: int = 1, axis: int = 1) -> list[Array]:
    """An array over the channels of the convolution, whole or those of one of some ranks, as its parts."""
    ends = np.cumsum([max(1, count // ranks) * width for count, width in sizes(layer)])[:-1]
    return np.split(a, ends, axis=axis)


def in_order(rank: int, blocks: int, ranks: int) -> int:
    """Which block of a part a rank holds, if all ranks share the blocks in order."""
    return rank * blocks // ranks


def pieces(
    layer: Mixer, a: Array, ranks: int, axis: int = 0, block_of: Callable[[int, int, int], int] = in_order
) -> list[Array]:
    """An array over the channels of the convolution, split for every rank."""
    held: list[list[Array]] = []
    for (count, _), part in zip(sizes(layer), parts(layer, a, axis=axis), strict=True):
        blocks = np.split(part, min(count, ranks), axis=axis)
        held.append([blocks[block_of(rank, len(blocks), ranks)] for rank in range(ranks)])
    return [np.concatenate(own, axis=axis) for own in zip(*held, strict=True)]


def first_owners(count: int, ranks: int) -> range:
    """The ranks that a part of `count` blocks is read from: of those that hold the same block, the first."""
    return range(0, ranks, max(1, ranks // count))


def rejoined(layer: Mixer, held: list[Array], owners: Callable[[int, int], range] = first_owners) -> Array:
    """The window of the convolution from those of all ranks."""
    own = [parts(layer, M, len(held)) for M in held]
    counts = [count for count, _ in sizes(layer)]
    found = [own[rank][number] for number, count in enumerate(counts) for rank in owners(count, len(held))]
    return np.concatenate(found, axis=1)


def layers(layer: Mixer, ranks: int) -> list[Mixer]:
    """The layer of every rank: its heads, and its groups or one that other ranks have too."""
    fields = ("groups", "x_groups", "B_groups", "key_heads", "value_heads")
    counts = {name: max(1, own // ranks) for name in fields if (own := getattr(layer, name, None)) is not None}
    bias = layer.conv.bias
    biases = [None] * ranks if bias is None else pieces(layer, bias, ranks)
    return [
        replace(
            layer,
            conv=replace(layer.conv, weight=weight, bias=biases[rank]),
            params=each(lambda a, rank=rank: np.split(a, ranks)[rank], layer.params),
            **counts,
        )
        for rank, weight in enumerate(pieces(layer, layer.conv.weight, ranks))
    ]


class Ranks:
    """A server with the methods of `States`; `state` returns the states of all ranks along the first axis."""

    def __init__(self, layer: Mixer, slots: int, block: int, ranks: int = 1) -> None:
        self.layer = layer
        self.servers = [States(own, slots, block) for own in layers(layer, ranks)]

    def begin(self, slot: int, tokens: Array) -> int:
        return max(server.begin(slot, tokens) for server in self.servers)

    def feed(self, slot: int, tokens: Array, inputs: MixerInputs) -> Array:
        ranks = len(self.servers)
        pre = pieces(self.layer, inputs.pre, ranks, axis=2)
        gates = [each(lambda a, r=r: np.split(a, ranks, axis=2)[r], inputs.gates) for r in range(ranks)]
        own = (MixerInputs(*given) for given in zip(pre, gates, strict=True))
        return np.concatenate([server.feed(slot, tokens, i) for server, i in zip(self.servers, own, strict=True)], axis=2)

    def fork(self, slot: int, to: int) -> None:
        for server in self.servers:
            server.fork(slot, to)

    def end(self, slot: int) -> None:
        for server in self.servers:
            server.end(slot)

    def evict(self) -> None:
        for server in self.servers:
            server.evict()

    def export(self, slot: int) -> Any:
        return [server.export(slot) for server in self.servers]

    def take(self, slot: int, held: Any) -> None:
        windows, states = self.split(self.join([state.M for _, state in held])), self.heads([state.S for _, state in held])
        seen: Tokens = held[0][0]
        for server, M, S in zip(self.servers, windows, states, strict=True):
            server.take(slot, (seen, MixerState(M, S)))

    def join(self, held: list[Array]) -> Array:
        """The window of the convolution from those of the ranks that it comes from."""
        return rejoined(self.layer, held)

    def split(self, M: Array) -> list[Array]:
        """The window of the convolution for every rank."""
        return pieces(self.layer, M, len(self.servers), axis=1)

    def heads(self, held: list[Array]) -> list[Array]:
        """The states for every rank, from those of the ranks that they come from."""
        return np.split(np.concatenate(held, axis=1), len(self.servers), axis=1)

    def state(self, slot: int) -> tuple[Array, Array]:
        M, S = zip(*(server.state(slot) for server in self.servers), strict=True)
        return np.concatenate(M), np.concatenate(S)


def subject() -> Subject:
    states = Capability(Ranks, FLOAT64, WAYS)
    return Subject("states", {"life.states": states}, absent={"": "another part of the reference"})
