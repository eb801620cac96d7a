"""NaN into all memory of a decoder that no sequence needs: what must never be read.

Dead are the slots without a sequence, and what is written for padding; behind a length, keys and values; beside the current
one, the states kept for a window; of a ring, the entries that are not held.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from .decoder import Decoder
from .methods import joint, replay_buffer, snapshots
from .state import Cache, RecurrentState, tensors

KEPT = (
    snapshots.CURRENT, joint.LAG, replay_buffer.ORIGIN, replay_buffer.HELD, replay_buffer.RING,
)  # fmt: skip
"""What methods keep by slot between windows."""


def poison(decoder: Decoder, free: Iterable[int], live: Iterable[int]) -> None:
    """Between windows only."""
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
    """All tensors that lie there by slot, with the slots as their first axis; what belongs to a window is no slot's."""
    slots, pools = decoder.slots, decoder.pools
    owned = tensors([pools.layers, pools.length, [value for name, value in pools.kept.items() if name in KEPT]])
    return [x.view(slots, -1, *x.shape[1:]) if len(x) != slots else x for x in owned]


def places(decoder: Decoder, slot: int) -> None:
    """States of the last window that do not stand."""
    pools = decoder.pools
    room = pools.kept.get(snapshots.ROOM)
    if room is None:
        return
    dead = torch.arange(room) != int(pools.kept[snapshots.CURRENT][slot])
    for state in pools.layers:
        if isinstance(state, RecurrentState):
            state.S.view(-1, room, *state.S.shape[1:])[slot, dead] = float("nan")


def ring(decoder: Decoder, slot: int) -> None:
    """Entries of a ring that are not held."""
    kept = decoder.pools.kept
    if replay_buffer.RING not in kept:
        return
    origin, held = int(kept[replay_buffer.ORIGIN][slot]), int(kept[replay_buffer.HELD][slot])
    entries = kept[replay_buffer.ENTRIES]
    for record in kept[replay_buffer.RING].values():
        for x in tensors(record):
            if x.is_floating_point():
                erase(x[slot : slot + 1], {(0, (origin + i) % entries) for i in range(held)})


def erase(x: Any, kept: set[tuple[int, int]]) -> None:
    """NaN into the entries (row, token) that are not kept."""
    for row in range(x.shape[0]):
        for token in range(x.shape[1]):
            if (row, token) not in kept:
                x[row, token] = float("nan")
