"""NaN into all memory of a decoder that no sequence needs: what must never be read.

Dead are the slots without a sequence, and what is written for padding; behind a length, keys and values; beside the current
one, the states kept for a window; of a window that is decided, the cached inputs that were not accepted; of a ring, the
entries that are not held.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from .decoder import Decoder
from .methods import activation_replay, joint, replay_buffer, snapshots
from .state import Cache, RecurrentState, tensors

KEPT = (
    snapshots.CURRENT, joint.LAG, activation_replay.ADVANCED, activation_replay.PATH, activation_replay.CHOSEN,
    activation_replay.HALF, activation_replay.CACHE, replay_buffer.ORIGIN, replay_buffer.HELD, replay_buffer.RING,
)  # fmt: skip
"""What methods keep by slot between windows."""


def poison(decoder: Decoder, free: Iterable[int], live: Iterable[int]) -> None:
    """Between windows only."""
    for slot in free:
        for x in by_slot(decoder):
            if x.is_floating_point():
                x[slot] = float("nan")
    for _, padding in cached(decoder):
        if padding.is_floating_point():
            padding[:] = float("nan")
    for slot in live:
        length = int(decoder.pools.length[slot])
        for state in decoder.pools.layers:
            if isinstance(state, Cache):
                state.K[slot, length:], state.V[slot, length:] = float("nan"), float("nan")
        places(decoder, slot)
        inputs(decoder, slot)
        ring(decoder, slot)


def by_slot(decoder: Decoder) -> list[Tensor]:
    """All tensors that lie there by slot, with the slots as their first axis; what belongs to a window is no slot's."""
    slots, pools = decoder.slots, decoder.pools
    kept = [value for name, value in pools.kept.items() if name in KEPT and name != activation_replay.CACHE]
    owned = [*tensors([pools.layers, pools.length, kept]), *(x for x, _ in cached(decoder))]
    return [x.view(slots, -1, *x.shape[1:]) if len(x) != slots else x for x in owned]


def cached(decoder: Decoder) -> list[tuple[Tensor, Tensor]]:
    """Cached inputs of windows: the entries of slots, and behind them that of padding, where there is one."""
    found = tensors(decoder.pools.kept.get(activation_replay.CACHE, {}))
    rows = decoder.slots * getattr(decoder.method, "drafts", 1)
    return [(x[:rows], x[rows:]) for x in found]


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


def inputs(decoder: Decoder, slot: int) -> None:
    """Cached inputs of tokens off the path that waits to be replayed."""
    kept = decoder.pools.kept
    if activation_replay.CACHE not in kept:
        return
    drafts, chosen = decoder.method.drafts, int(kept[activation_replay.CHOSEN][slot])
    path = kept[activation_replay.PATH][slot][: int(kept[activation_replay.ADVANCED][slot])].tolist()
    for cache in kept[activation_replay.CACHE].values():
        behind = int(cache.half[slot]) * kept[activation_replay.PATH].shape[1] if hasattr(cache, "half") else 0
        for x in tensors(cache):
            if x.is_floating_point():
                erase(x[slot * drafts : (slot + 1) * drafts], {(chosen, behind + node) for node in path})


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
