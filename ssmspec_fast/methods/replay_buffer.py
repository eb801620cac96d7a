"""The replay buffer: a checkpoint of the state, and a ring of the tokens since, which every window reads.

    y    = scan from S over [held | window]; S only read                                          (1)
    ring : the window's inputs after the held ones                                                  (2)
    S    = scan(S, held)    if held + 2 T > L, before the window is verified                        (3)
    held = advanced where flushed, else held + advanced;  origin moves to the first held one      (4)

T is the longest window, L the entries of the ring, L >= 2 T; so held + T <= L at every window. Rejected tokens are
overwritten. Here (1) replays the ring token by token: the bits equal those of plain decoding. In fast mode, if there is a
kernel for it, (1) to (3) are one launch, and the ring stores what the kernel needs.
Source: ReplaySSM, algorithms 4 and 8.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ssmspec_ref.errors import ParameterError, RingOverflow, Unsupported

from ..engine.sequences import Sequences
from ..engine.state import Kept, Pools, new_pools
from ..engine.window import Feed, Verdict
from ..layers.recurrent import Recurrent
from ..models.model import Model
from ..operations import Operations
from ..operations.slots import each, index, move, stand_in
from .cached import along, for_replay, new_inputs, whole
from .plain import Plain
from .windows import advance, at, convolutions_on, keep_accepted, recurrence, room


@dataclass
class Rings(Kept):
    """`origin` and `held` (s) are the cursors of all rings, of `entries` tokens each; `window` is the longest.

    By layer: `records`, the inputs of a recurrence; `launched`, the ring of a kernel that processes a window in one launch.
    """

    origin: Tensor
    held: Tensor
    entries: int
    window: int
    records: dict[int, Any] = field(default_factory=dict)
    launched: dict[int, Any] = field(default_factory=dict)

    def by_slot(self) -> list[Any]:
        return [self.origin, self.held, self.records, self.launched]


def is_due(held: Tensor, window: int, entries: int) -> Tensor:
    """Whether the next window must flush a ring before it is verified (3): after it, there might be no room."""
    return held + 2 * window > entries


class ReplayBuffer(Plain):
    """`capacity` entries to a ring (None: four windows).

    Raises: ParameterError for a capacity below 1.
    """

    name, drafts, settles, lags = "replay buffer", 1, True, True

    def __init__(self, capacity: int | None = None) -> None:
        if capacity is not None and capacity < 1:
            raise ParameterError(f"capacity is {capacity}; it must be the number of ring entries, two windows or more")
        self.capacity = capacity

    def check(self, model: Model, window: int, operations: Operations) -> None:
        """Raises: RingOverflow for a ring that cannot hold two windows."""
        if self.capacity is not None and self.capacity < 2 * window:
            raise RingOverflow(
                f"the ring holds {self.capacity} tokens for windows of {window}; "
                f"it must hold two windows, {2 * window}, or more"
            )

    def new_pools(
        self, model: Model, slots: int, cache: int, window: int, operations: Operations, device: Any = None
    ) -> Pools:
        pools = new_pools(model, slots, cache + window, device=device)
        zeros, held = torch.zeros_like(pools.length), torch.zeros_like(pools.length)
        pools.kept = kept = Rings(zeros, held, self.capacity or 4 * window, window)
        for layer, mixer in enumerate(model.mixers):
            if not isinstance(mixer, Recurrent):
                continue
            inputs = new_inputs(mixer, slots, kept.entries, model, pools.length.device)
            scan = recurrence(operations, mixer)
            if operations.bitwise or scan.buffered is None:
                kept.records[layer] = inputs
            else:
                kept.launched[layer] = scan.new_ring(inputs, kept.origin, kept.held)
        return pools

    def start(self, pools: Pools, slots: Tensor) -> None:
        super().start(pools, slots)
        for cursor in (pools.of(Rings).origin, pools.of(Rings).held):
            move(cursor, slots, torch.zeros_like(slots))

    room = staticmethod(room)

    def recur(
        self, pools: Pools, layer: int, mixer: Recurrent, pre: Tensor, gates: Any, feed: Feed, operations: Operations
    ) -> Tensor:
        if feed.parents is not None or feed.window.drafts > 1:
            raise Unsupported("a replay buffer holds one chain for each sequence; use activation replay or tree for more")
        state, slots, scan, kept = pools.recurrent(layer), feed.slots, recurrence(operations, mixer), pools.of(Rings)
        c = operations.conv_window(state.M, pre, mixer.taps, slots=slots, keep="none")
        inputs = mixer.project(c, gates, operations)
        if layer in kept.launched:
            given = {"window": kept.window, "slots": slots, "lengths": feed.window.lengths}
            return scan.buffered(state.S, kept.launched[layer], inputs, mixer.params, **given)
        held, live = self.history(kept, layer, slots)
        both = joined(held, inputs)
        y = scan.scan(state.S, both, mixer.params, slots=slots, live=torch.cat([live, feed.live], 1), write_state=False)
        due = torch.where(is_due(at(kept.held, slots), kept.window, kept.entries), slots, -1)
        scan.scan(state.S, held, mixer.params, slots=due, live=live)  # (3)
        self.append(kept, layer, inputs, slots)
        return y[:, live.shape[1] :].contiguous()  # (1)

    def history(self, kept: Rings, layer: int, slots: Tensor) -> tuple[Any, Tensor]:
        """The held entries of each row, oldest first, and the mask of what is held."""
        steps = torch.arange(kept.entries, device=slots.device)
        order = (at(kept.origin, slots)[:, None] + steps) % kept.entries
        live = (steps < at(kept.held, slots)[:, None]) & (slots >= 0)[:, None]
        return whole(each(kept.records[layer], lambda x: along(x, index(slots)[:, None], order))), live

    def append(self, kept: Rings, layer: int, inputs: Any, slots: Tensor) -> None:
        """Appends the inputs to the rings (2)."""
        t = inputs[0].shape[1]
        first = at(kept.origin, slots) + at(kept.held, slots)
        to = (first[:, None] + torch.arange(t, device=slots.device)) % kept.entries
        for ring, new in zip(kept.records[layer], for_replay(inputs), strict=True):
            if ring is not None:
                owner, (rows, places), some = stand_in(slots, new, to)
                there = owner[:, None], places
                ring.index_put_(there, torch.where(some, rows, ring[there]))

    def commit(self, pools: Pools, feed: Feed, verdict: Verdict, operations: Operations) -> None:
        slots, advanced, kept = verdict.slots, verdict.run.advanced, pools.of(Rings)
        convolutions_on(pools, verdict, operations, feed.window.drafts, advanced=advanced)
        if turn := operations.commit_window:
            turn(kept.origin, kept.held, advanced, slots=slots, capacity=kept.entries, window=kept.window)  # (4)
        else:
            origin, held = at(kept.origin, slots), at(kept.held, slots)
            due = is_due(held, kept.window, kept.entries)
            move(kept.origin, slots, torch.where(due, (origin + held) % kept.entries, origin))  # (4)
            move(kept.held, slots, held * ~due + advanced)
        keep_accepted(pools, feed, verdict, operations)
        advance(pools, verdict)

    def settle(self, pools: Pools, slots: Tensor, model: Model, sequences: Sequences, operations: Operations) -> None:
        """Flushes the rings into the checkpoints."""
        kept = pools.of(Rings)
        for layer, mixer in enumerate(model.mixers):
            if isinstance(mixer, Recurrent):
                self.flush(pools, layer, mixer, slots, operations)
        move(kept.held, slots, torch.zeros_like(slots))

    def flush(self, pools: Pools, layer: int, mixer: Recurrent, slots: Tensor, operations: Operations) -> None:
        """Flushes one layer's ring into its checkpoint."""
        S, scan, kept = pools.recurrent(layer).S, recurrence(operations, mixer), pools.of(Rings)
        if layer in kept.launched:
            scan.flush(S, kept.launched[layer], mixer.params, slots=slots)
            return
        held, live = self.history(kept, layer, slots)
        scan.scan(S, held, mixer.params, slots=slots, live=live)


def joined(held: Any, inputs: Any) -> Any:
    """Held tokens and window in one tensor; the held ones' outputs are not read, so their z is arbitrary."""
    count = next(x for x in held if x is not None).shape[1]

    def after(old: Tensor | None, new: Tensor | None) -> Tensor | None:
        if new is None:
            return None
        return torch.cat([new.new_zeros((len(new), count, *new.shape[2:])) if old is None else old, new], dim=1)

    return type(inputs)(*map(after, held, inputs))
