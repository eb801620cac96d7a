"""Joint attainment and advancement: the state lags, and the next window feeds the accepted drafts again.

    fed   = accepted drafts of the last window | root | drafts             (1)
    S     = state after the root, the last token that is certain           (2)
    lag'  = accepted drafts                                                (3)

So the states advance by what is fed, and nothing is undone. Tokens after the real ones are no-ops. `Joint` always feeds
2 K + 1, so that the host need not wait; `JointByLag` feeds as few as the batch needs, for which the host reads the lags:

    room  = K, or the largest lag of the rows                              (4)
    a feed has room + 1 + K tokens                                         (5)

Attention reads what precedes the feed; keys and values of the tokens fed again are overwritten.
Source: Snakes and Ladders, section 3.1. There a separate row advances the state, and a new root is fed with the others; here
the state after the root is stored in the same launch, or, if there is a kernel for it, the feed only reads the states, and
one launch after the verdict advances those of all layers.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ssmspec_ref.errors import Unsupported

from ..engine.prefill import Piece, feed, packed
from ..engine.sequences import Sequences
from ..engine.state import Pools, new_pools
from ..engine.window import Feed, Verdict, Window
from ..layers.attention import Attention
from ..layers.recurrent import Recurrent
from ..models.model import Model
from ..operations import Operations, Rows
from ..operations.slots import index, move
from .plain import Plain
from .windows import (
    Together,
    at,
    convolutions_on,
    convolved,
    draft_number,
    outputs,
    parameters,
    recurrence,
    room,
    states_on,
    together,
)  # fmt: skip


@dataclass
class Lagging(Together):
    """`lag` (s): the accepted drafts that the next window feeds again (3); `window`: the longest."""

    lag: Tensor
    window: int

    def by_slot(self) -> list[Any]:
        return [self.lag]


class Joint(Plain):
    """`drafts` rows for each sequence; the first of them advances the state."""

    name, settles, lags, waits = "joint", True, True, True

    def __init__(self, drafts: int = 1) -> None:
        self.drafts = drafts

    def check(self, model: Model, window: int, operations: Operations) -> None:
        """Any model, any window that is a chain."""

    def new_pools(
        self, model: Model, slots: int, cache: int, window: int, operations: Operations, device: Any = None
    ) -> Pools:
        pools = new_pools(model, slots, cache + window, device=device)
        pools.kept = Lagging(parameters(model, pools, operations), torch.zeros_like(pools.length), window)
        return pools

    def start(self, pools: Pools, slots: Tensor) -> None:
        super().start(pools, slots)
        move(pools.of(Lagging).lag, slots, torch.zeros_like(slots))

    def committed(self, pools: Pools, slots: Tensor) -> Tensor:
        return at(pools.length, slots) + at(pools.of(Lagging).lag, slots)

    def refed(self, pools: Pools, slots: Tensor) -> int:
        return pools.of(Lagging).window - 1

    def every_refed(self, pools: Pools) -> Iterable[int]:
        return (pools.of(Lagging).window - 1,)

    def feed(self, pools: Pools, window: Window, sequences: Sequences, operations: Operations) -> Feed:
        if window.parents is not None:
            raise Unsupported("joint attainment feeds accepted drafts again, in rows; use the method tree for trees")
        slots, t, owner = window.slots, window.tokens.shape[1], index(window.slots)
        lag, start = pools.of(Lagging).lag[owner], pools.length[owner]
        refed = self.refed(pools, slots) if window.refed is None else window.refed  # (4)
        steps = torch.arange(refed + t, device=slots.device)  # (5)
        own, positions = steps - lag[:, None], start[:, None] + steps
        again = sequences.tokens[owner[:, None], positions.clamp_max(sequences.tokens.shape[1] - 1)]
        fresh = torch.gather(window.tokens, 1, own.clamp(0, t - 1))
        real = t if window.lengths is None else window.lengths[:, None]
        live = (own < real) & (slots >= 0)[:, None]
        tokens = torch.where(own < 0, again, fresh) * live
        advancing, kept = slots, None
        if window.drafts > 1:
            advancing = torch.where(draft_number(window) == 0, slots, -1)
        if len(pools.of(Lagging).params) < len(pools.convolutions):  # else the states are advanced after the verdict
            at_root = torch.where(steps == lag[:, None], slots[:, None], -1)  # (2)
            kept = at_root if window.drafts == 1 else live & (own <= 0)
        places = advancing, kept
        return Feed(window, tokens, live, positions, pools.length, lag, places=places)

    room = staticmethod(room)

    def recur(
        self, pools: Pools, layer: int, mixer: Recurrent, pre: Tensor, gates: Any, feed: Feed, operations: Operations
    ) -> Rows:
        S, slots, (advancing, kept) = pools.recurrent(layer).S, feed.slots, feed.places
        scan, params = recurrence(operations, mixer), mixer.params
        inputs = convolved(pools, layer, mixer, pre, gates, feed, operations)
        if together(operations, mixer):
            return outputs(S, mixer, inputs, gates, feed, operations)
        if feed.window.drafts == 1:
            return scan.snapshots(S, inputs, params, kept, slots=slots)
        y = scan.scan(S, inputs, params, slots=slots, write_state=False)
        scan.scan(S, inputs, params, slots=advancing, live=kept)
        return y

    def attend(
        self, pools: Pools, layer: int, mixer: Attention, q: Tensor, k: Tensor, v: Tensor, feed: Feed, operations: Operations
    ) -> Tensor:
        cache, alone = pools.cache(layer), feed.window.drafts == 1
        given = {"scale": mixer.scale, "slots": feed.slots, "append": alone}
        y = operations.attention(q, k, v, cache.K, cache.V, feed.start, **given)  # type: ignore[arg-type]
        if not alone:  # certain tokens are the same in all rows of a slot
            operations.kv_append(cache.K, cache.V, k, v, feed.start, slots=feed.places[0])
        return y

    def commit(self, pools: Pools, feed: Feed, verdict: Verdict, operations: Operations) -> None:
        """Advances the states by the feed up to the root (2); the accepted drafts are the next lag (3)."""
        slots, advanced, drafts = verdict.slots, verdict.run.advanced, feed.window.drafts
        took = advanced > 0
        assert feed.lag is not None
        lag, owner = feed.lag[::drafts], index(slots)
        certain = lag + 1
        first = verdict if drafts == 1 else verdict._replace(row=verdict.row // drafts * drafts)
        states_on(pools, first, operations, drafts, advanced=certain)  # (2)
        convolutions_on(pools, first, operations, drafts, advanced=certain)
        entered = certain * took  # nothing where nothing was accepted, and for padding
        pools.length.index_add_(0, owner, entered)
        pools.of(Lagging).lag.index_add_(0, owner, advanced - entered)

    def settle(self, pools: Pools, slots: Tensor, model: Model, sequences: Sequences, operations: Operations) -> None:
        """Feeds the lagging tokens as the tail of a prompt."""
        lag, length = pools.of(Lagging).lag.tolist(), pools.length.tolist()
        refed = [Piece(s, length[s], sequences.tokens[s, length[s] : length[s] + lag[s]].tolist()) for s in slots.tolist()]
        pieces = [piece for piece in refed if piece.tokens]
        run = packed(pieces, model.device) if pieces else None
        if run is not None:
            feed(model, pools, self, run._replace(fresh=torch.zeros_like(run.fresh)), operations)
            pools.length[run.slots] += run.lengths
        move(pools.of(Lagging).lag, slots, torch.zeros_like(slots))


class JointByLag(Joint):
    """The same tokens from shorter feeds, of K + 1 lengths, each with its own graph, as in the paper. The host waits for the
    verdict of one step before it launches the next."""

    name = "joint by lag"

    def refed(self, pools: Pools, slots: Tensor) -> int:
        lag = torch.where(slots >= 0, at(pools.of(Lagging).lag, slots), 0)
        return int(lag.max()) if len(slots) else 0

    def every_refed(self, pools: Pools) -> Iterable[int]:
        return range(pools.of(Lagging).window)
