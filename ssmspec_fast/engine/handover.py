"""Moves a sequence from one decoder to another: for a fork, a preemption, or a change of method.

The copy is settled: the states include all committed tokens, so nothing that the old method stored is needed.
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
class SequenceState:
    """One sequence: for each layer M and S, or the committed K and V; and the number of committed tokens."""

    layers: tuple[tuple[Tensor, Tensor], ...]
    length: int


def take_out(decoder: "Decoder", slot: int, sequences: Sequences) -> SequenceState:
    """A copy of a slot's state, brought up to date with all its committed tokens."""
    pools, slots = decoder.pools, torch.tensor([slot], device=decoder.model.device)
    decoder.method.settle(pools, slots, decoder.model, sequences, decoder.operations)
    place, length = int(decoder.method.places(pools, slots)), int(pools.length[slot])
    pairs = (
        (state.K[slot, :length], state.V[slot, :length]) if isinstance(state, Cache) else (state.M[slot], state.S[place])
        for state in pools.layers
    )
    return SequenceState(tuple((a.clone(), b.clone()) for a, b in pairs), length)


def put_in(decoder: "Decoder", slot: int, held: SequenceState) -> None:
    """Writes a sequence into a free slot of a decoder of the same model, which may use any method.

    Raises: LengthError for a sequence longer than the cache, before anything is written.
    """
    if held.length > decoder.cache:
        raise LengthError(
            f"the sequence has {held.length} tokens, but a slot holds {decoder.cache}; build the decoder with a longer cache"
        )
    pools, slots = decoder.pools, torch.tensor([slot], device=decoder.model.device)
    decoder.method.start(pools, slots)
    place = int(decoder.method.places(pools, slots))
    for state, (a, b) in zip(pools.layers, held.layers, strict=True):
        if isinstance(state, Cache):
            state.K[slot, : held.length], state.V[slot, : held.length] = a, b
        else:
            state.M[slot], state.S[place] = a, b
    pools.length[slot] = held.length
