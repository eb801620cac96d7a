"""Fills all memory of a decoder that no sequence needs with NaN: nothing may read it.

Unneeded are: slots without a sequence, and values written for padding; keys and values beyond a length; states kept for a
window other than the current one; unused entries of a ring.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ..engine.decoder import Decoder
from ..engine.state import Cache, RecurrentState, tensors
from ..methods.replay_buffer import Rings
from ..methods.snapshots import Places


def poison(decoder: Decoder, free: Iterable[int], live: Iterable[int]) -> None:
    """To be called between windows only."""
    for slot in free:
        for x in by_slot(decoder):
            if x.is_floating_point():
                x[slot] = float("nan")
    for slot in live:
        length = int(decoder.pools.length[slot])
        for state in decoder.pools.layers:
            if isinstance(state, Cache):
                state.K[slot, length:], state.V[slot, length:] = float("nan"), float("nan")
        places(decoder, slot)
        ring(decoder, slot)


def by_slot(decoder: Decoder) -> list[Tensor]:
    """All tensors indexed by slot, with slots as their first axis; tensors of a window are left out."""
    slots, pools = decoder.slots, decoder.pools
    owned = tensors([pools.layers, pools.length, pools.kept.by_slot()])
    return [x.view(slots, -1, *x.shape[1:]) if len(x) != slots else x for x in owned]


def places(decoder: Decoder, slot: int) -> None:
    """Fills the states of the last window that were not accepted."""
    pools = decoder.pools
    if not isinstance(pools.kept, Places):
        return
    room = pools.kept.room
    dead = torch.arange(room) != int(pools.kept.current[slot])
    for state in pools.layers:
        if isinstance(state, RecurrentState):
            state.S.view(-1, room, *state.S.shape[1:])[slot, dead] = float("nan")


def ring(decoder: Decoder, slot: int) -> None:
    """Fills the unused entries of a ring."""
    kept = decoder.pools.kept
    if not isinstance(kept, Rings):
        return
    origin, held, entries = int(kept.origin[slot]), int(kept.held[slot]), kept.entries
    for record in (*kept.records.values(), *kept.launched.values()):
        for x in tensors(record):
            if x.is_floating_point():
                erase(x[slot : slot + 1], {(0, (origin + i) % entries) for i in range(held)})


def erase(x: Any, kept: set[tuple[int, int]]) -> None:
    """Writes NaN into the entries (row, token) that are not kept."""
    for row in range(x.shape[0]):
        for token in range(x.shape[1]):
            if (row, token) not in kept:
                x[row, token] = float("nan")
