"""What the methods for drafts share: a feed without lag, attention over it, and the moves behind a verdict.

Where one row speaks for a sequence, its keys and values go to the cache as they come, T + i for node i; behind the verdict a
tree's path moves to the front (`kv_compact`), and a chain's is there already. Where several rows share a slot, none may write
before one of them is chosen, so that keys and values of the window are kept until then.
"""

from typing import Any

import torch
from torch import Tensor

from ..layers.attention import Attention
from ..operations import Operations
from ..operations.slots import index, put
from ..state import Cache, Pools
from ..window import Feed, Verdict, Window

PENDING = "pending keys and values"
"""In `Pools.kept` between a window and its verdict only: keys and values of windows of several rows to a slot."""


def attend(
    pools: Pools, layer: int, mixer: Attention, q: Tensor, k: Tensor, v: Tensor, feed: Feed, operations: Operations
) -> Tensor:
    """Attention over the cache and the feed."""
    cache, alone = pools.cache(layer), feed.window.drafts == 1
    if not alone:
        pools.kept.setdefault(PENDING, {})[layer] = (k, v)
    return operations.attention(
        q,
        k,
        v,
        cache.K,
        cache.V,
        feed.start,
        ancestors=feed.ancestors,
        scale=mixer.scale,
        append=alone,
        slots=feed.slots,
    )


def keep_accepted(pools: Pools, feed: Feed, verdict: Verdict, operations: Operations) -> None:
    """Keys and values of the accepted nodes to the end of what is committed, in every attention layer."""
    pending = pools.kept.pop(PENDING, {})
    for layer, held in enumerate(pools.layers):
        if not isinstance(held, Cache):
            continue
        if layer in pending:
            k, v = (x[verdict.row] for x in pending[layer])
            operations.kv_append(held.K, held.V, k, v, feed.start, slots=verdict.slots)
        if feed.window.parents is not None:
            operations.kv_compact(held.K, held.V, verdict.run.path, feed.start, slots=verdict.slots)


def advance(pools: Pools, verdict: Verdict) -> None:
    """The lengths, by as many tokens as entered the states."""
    put(pools.length, verdict.slots, at(pools.length, verdict.slots) + verdict.run.advanced)


def at(cursor: Tensor, slots: Tensor) -> Tensor:
    """A cursor of each row; that of slot 0 for padding."""
    return cursor[index(slots)]


def draft_number(window: Window) -> Tensor:
    """Which draft of its sequence a row is (b)."""
    return torch.arange(len(window.slots), device=window.slots.device) % window.drafts


def recurrence(operations: Operations, mixer: Any) -> Any:
    """The recurrence of a layer."""
    return getattr(operations, mixer.kind)
