"""A sequence out of a decoder and into another: for a fork, a preemption, or a hand-over to another method.

What leaves is settled: the states have seen all committed tokens, so that nothing of the method that held it is needed.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ssmspec_ref.errors import LengthError

from .sequences import Sequences
from .state import Cache

if TYPE_CHECKING:
    from .decoder import Decoder


@dataclass(frozen=True)
class Held:
    """One sequence: in each layer M and S, or K and V as far as they are committed; and how many tokens that are."""

    layers: tuple[tuple[Tensor, Tensor], ...]
    length: int


def take_out(decoder: "Decoder", slot: int, sequences: Sequences) -> Held:
    """A copy of what a slot holds, brought up to all its committed tokens."""
    pools, slots = decoder.pools, torch.tensor([slot], device=decoder.model.device)
    decoder.method.settle(pools, slots, decoder.model, sequences, decoder.operations)
    place, length = int(decoder.method.places(pools, slots)), int(pools.length[slot])
    pairs = (
        (state.K[slot, :length], state.V[slot, :length]) if isinstance(state, Cache) else (state.M[slot], state.S[place])
        for state in pools.layers
    )
    return Held(tuple((a.clone(), b.clone()) for a, b in pairs), length)


def put_in(decoder: "Decoder", slot: int, held: Held) -> None:
    """Into a free slot of a decoder of the same model, under any method.

    Raises: LengthError for a sequence longer than the cache, before anything is written.
    """
    if held.length > decoder.cache:
        raise LengthError(f"the sequence has {held.length} tokens, but a slot holds {decoder.cache}; give a longer cache")
    pools, slots = decoder.pools, torch.tensor([slot], device=decoder.model.device)
    decoder.method.start(pools, slots)
    place = int(decoder.method.places(pools, slots))
    for state, (a, b) in zip(pools.layers, held.layers, strict=True):
        if isinstance(state, Cache):
            state.K[slot, : held.length], state.V[slot, : held.length] = a, b
        else:
            state.M[slot], state.S[place] = a, b
    pools.length[slot] = held.length
