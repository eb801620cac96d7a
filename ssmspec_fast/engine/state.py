"""All data that sequences own between two windows, by slot; its bytes are counted before it is allocated.

A slot owns the window of every convolution, the state of every recurrence, a cache of keys and values for every attention
layer, and its length. What a method stores in addition is in its own record (`Kept`); what a window stores until its verdict
is in `InFlight`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..errors import MemoryRefused
from ..layers.recurrent import Recurrent
from ..models.config import AttentionConfig, MixerConfig, RecurrentConfig
from ..models.model import Model


@dataclass(frozen=True)
class RecurrentState:
    """M (s, c, w), the last inputs of the convolution, oldest first, and S (places, ..), the state."""

    M: Tensor
    S: Tensor


@dataclass(frozen=True)
class Cache:
    """K, V (s, l, g, e), keys rotated to their positions."""

    K: Tensor
    V: Tensor


@dataclass(frozen=True)
class SequenceState:
    """One sequence, for a fork, a preemption, or a change of method: for each layer M and S, or the committed K and V; and
    the number of committed tokens."""

    layers: tuple[tuple[Tensor, Tensor], ...]
    length: int


@dataclass(frozen=True)
class Convolutions:
    """The windows M (k, s, c, w) and states S (k, places, ..) of all layers of one shape, each in one tensor: one launch
    moves them all.

    `first` (k, 1) is the place of each layer's slot 0 in M as (k s, c, w).
    """

    layers: tuple[int, ...]
    M: Tensor
    first: Tensor
    S: Tensor


@dataclass
class Kept:
    """What a method stores in addition to the states between two windows; each such method has its own record type."""

    def by_slot(self) -> list[Any]:
        """The entries with a slot axis, in records and dicts."""
        return []


@dataclass
class InFlight:
    """What a window stores until its verdict.

    By group of layers of one shape: the projections that the convolutions read (`inputs`) and what they returned (`outputs`),
    all layers in one tensor, and one of the layers. By layer: `beside`, what enters a state without being in either;
    `attended`, keys and values of windows of several rows to a slot; `replayed`, a mixer and the inputs of its recurrence.
    """

    inputs: dict[int, tuple[Tensor, Recurrent]] = field(default_factory=dict)
    outputs: dict[int, tuple[Tensor, Recurrent]] = field(default_factory=dict)
    beside: dict[int, tuple[Tensor, ...]] = field(default_factory=dict)
    attended: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    replayed: dict[int, tuple[Recurrent, Any]] = field(default_factory=dict)


K = TypeVar("K", bound=Kept)
T = TypeVar("T")


def landed(flight: dict[int, T]) -> dict[int, T]:
    """Returns what was in flight and clears it."""
    found = dict(flight)
    flight.clear()
    return found


@dataclass
class Pools:
    """The layers in the order of `Model.mixers`; `length` (s) counts the tokens of a sequence that are in its states."""

    layers: tuple[RecurrentState | Cache, ...]
    length: Tensor
    kept: Kept = field(default_factory=Kept)
    convolutions: tuple[Convolutions, ...] = ()
    flight: InFlight = field(default_factory=InFlight)

    def of(self, kind: type[K]) -> K:
        """What the method stores, as its record type."""
        assert isinstance(self.kept, kind)
        return self.kept

    def recurrent(self, layer: int) -> RecurrentState:
        found = self.layers[layer]
        assert isinstance(found, RecurrentState)
        return found

    def cache(self, layer: int) -> Cache:
        found = self.layers[layer]
        assert isinstance(found, Cache)
        return found

    @property
    def bytes(self) -> int:
        return sum(x.numel() * x.element_size() for x in tensors([self.layers, self.length, self.kept, self.flight]))


def new_pools(
    model: Model,
    slots: int,
    cache: int,
    *,
    places: int | None = None,
    device: torch.device | str | None = None,
) -> Pools:
    """Zeros for `slots` sequences of at most `cache` tokens; `places` states in each recurrence (None: one for each slot).

    On the device "meta" nothing is allocated, so that the bytes can be counted.
    """
    where = model.device if device is None else torch.device(device)
    held = slots if places is None else places

    alike: dict[RecurrentConfig, list[int]] = {}
    for number, config in enumerate(model.config.mixers):
        if not isinstance(config, AttentionConfig):
            alike.setdefault(config, []).append(number)
    convolutions = tuple(
        Convolutions(
            tuple(numbers),
            torch.zeros((len(numbers), slots, config.conv.channels, config.conv.width), dtype=model.exact, device=where),
            torch.arange(0, len(numbers) * slots, slots, device=where)[:, None],
            torch.zeros((len(numbers), held, *config.state_shape), dtype=model.exact, device=where),
        )
        for config, numbers in alike.items()
    )
    recurrent = {
        layer: RecurrentState(M, S)
        for group in convolutions
        for layer, M, S in zip(group.layers, group.M, group.S, strict=True)
    }

    def layer(number: int, config: MixerConfig) -> RecurrentState | Cache:
        if isinstance(config, AttentionConfig):
            shape = (slots, cache, config.groups, config.channels)
            return Cache(*(torch.zeros(shape, dtype=model.dtype, device=where) for _ in range(2)))
        return recurrent[number]

    layers = tuple(layer(number, config) for number, config in enumerate(model.config.mixers))
    return Pools(layers, torch.zeros(slots, dtype=torch.int64, device=where), convolutions=convolutions)


def check_memory(what: str, needed: int, memory: int | None) -> None:
    """Raises: MemoryRefused for more bytes than allowed."""
    if memory is not None and needed > memory:
        raise MemoryRefused(
            f"{what} would take {needed:,} bytes, but the limit is {memory:,}; use fewer slots or a shorter cache"
        )


def tensors(x: Any) -> Iterator[Tensor]:
    """Every tensor inside records, dicts and sequences."""
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, dict):
        for value in x.values():
            yield from tensors(value)
    elif isinstance(x, list | tuple):
        for value in x:
            yield from tensors(value)
    elif hasattr(x, "__dataclass_fields__"):
        for name in x.__dataclass_fields__:
            yield from tensors(getattr(x, name))
