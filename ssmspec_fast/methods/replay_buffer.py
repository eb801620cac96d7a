"""The replay buffer: a checkpoint of the state, and a ring of what came since, read by every window.

    y    = scan from S over [held | window]; S only read                                          (1)
    ring : the window's inputs behind the held ones                                               (2)
    S    = scan(S, held)    where held + 2 T > L, before the window is judged                     (3)
    held = advanced where flushed, else held + advanced;  origin moves to the first held one      (4)

T is the longest window, L the entries of the ring, L >= 2 T; so held + T <= L at every window. Rejected tokens are written
over. Here (1) replays the ring token by token: the bits are plain decoding's. In the fast mode, where there is a kernel for
it, (1) to (3) are one launch, and the ring holds what the kernel needs.
Source: ReplaySSM, algorithms 4 and 8.
"""

from typing import Any

import torch
from torch import Tensor

from ssmspec_ref.errors import ParameterError, RingOverflow, Unsupported

from ..model import Model, Recurrent
from ..operations import Operations
from ..operations.slots import each, index, move, stand_in
from ..sequences import Sequences
from ..state import Pools, RecurrentState, new_pools
from ..window import Feed, Verdict
from .cached import along, for_replay, new_inputs, whole
from .plain import Plain
from .windows import advance, at, convolutions_on, keep_accepted, recurrence, room

ORIGIN, HELD, RING = "origin", "held", "ring"
ENTRIES, WINDOW = "entries of a ring", "longest window"


class ReplayBuffer(Plain):
    """`capacity` entries to a ring (None: four windows).

    Raises: ParameterError for a capacity below 1.
    """

    name, drafts = "replay buffer", 1

    def __init__(self, capacity: int | None = None) -> None:
        if capacity is not None and capacity < 1:
            raise ParameterError(f"capacity came as {capacity}; give the entries of a ring, two windows or more")
        self.capacity = capacity

    def check(self, model: Model, window: int, operations: Operations) -> None:
        """Raises: RingOverflow for a ring that two windows do not fit."""
        if self.capacity is not None and self.capacity < 2 * window:
            raise RingOverflow(
                f"the ring holds {self.capacity} tokens for windows of {window}; give two windows, {2 * window}, or more"
            )

    def new_pools(
        self, model: Model, slots: int, cache: int, window: int, operations: Operations, device: Any = None
    ) -> Pools:
        pools = new_pools(model, slots, cache + window, device=device)
        pools.kept[ORIGIN], pools.kept[HELD] = torch.zeros_like(pools.length), torch.zeros_like(pools.length)
        pools.kept[ENTRIES], pools.kept[WINDOW] = self.capacity or 4 * window, window
        pools.kept[RING] = {
            layer: self.new_ring(mixer, slots, model, pools, operations)
            for layer, mixer in enumerate(model.mixers)
            if isinstance(pools.layers[layer], RecurrentState)
        }
        return pools

    def new_ring(self, mixer: Any, slots: int, model: Model, pools: Pools, operations: Operations) -> Any:
        """Room for the inputs of so many tokens: a record, or the ring of a kernel."""
        inputs = new_inputs(mixer, slots, pools.kept[ENTRIES], model, pools.length.device)
        scan = recurrence(operations, mixer)
        if operations.bitwise or scan.buffered is None:
            return inputs
        return scan.new_ring(inputs, pools.kept[ORIGIN], pools.kept[HELD])

    def start(self, pools: Pools, slots: Tensor) -> None:
        super().start(pools, slots)
        for name in (ORIGIN, HELD):
            move(pools.kept[name], slots, torch.zeros_like(slots))

    room = staticmethod(room)

    def recur(
        self, pools: Pools, layer: int, mixer: Recurrent, pre: Tensor, gates: Any, feed: Feed, operations: Operations
    ) -> Tensor:
        if feed.parents is not None or feed.window.drafts > 1:
            raise Unsupported("a replay buffer holds one chain for each sequence; use activation replay or tree for more")
        state, slots, scan = pools.recurrent(layer), feed.slots, recurrence(operations, mixer)
        c = operations.conv_window(state.M, pre, mixer.taps, slots=slots, keep="none")
        inputs = mixer.project(c, gates, operations)
        if hasattr(pools.kept[RING][layer], "origin"):
            given = {"window": pools.kept[WINDOW], "slots": slots, "lengths": feed.window.lengths}
            return scan.buffered(state.S, pools.kept[RING][layer], inputs, mixer.params, **given)
        held, live = self.history(pools, layer, slots)
        both = joined(held, inputs)
        y = scan.scan(state.S, both, mixer.params, slots=slots, live=torch.cat([live, feed.live], 1), write_state=False)
        due = torch.where(self.due(pools, slots), slots, -1)
        scan.scan(state.S, held, mixer.params, slots=due, live=live)  # (3)
        self.append(pools, layer, inputs, slots)
        return y[:, live.shape[1] :].contiguous()  # (1)

    def history(self, pools: Pools, layer: int, slots: Tensor) -> tuple[Any, Tensor]:
        """The held entries of each row, first ones first, and the mask of what is held."""
        steps = torch.arange(pools.kept[ENTRIES], device=slots.device)
        order = (at(pools.kept[ORIGIN], slots)[:, None] + steps) % pools.kept[ENTRIES]
        live = (steps < at(pools.kept[HELD], slots)[:, None]) & (slots >= 0)[:, None]
        return whole(each(pools.kept[RING][layer], lambda x: along(x, index(slots)[:, None], order))), live

    def due(self, pools: Pools, slots: Tensor) -> Tensor:
        return at(pools.kept[HELD], slots) + 2 * pools.kept[WINDOW] > pools.kept[ENTRIES]

    def append(self, pools: Pools, layer: int, inputs: Any, slots: Tensor) -> None:
        """(2)."""
        t = inputs[0].shape[1]
        first = at(pools.kept[ORIGIN], slots) + at(pools.kept[HELD], slots)
        to = (first[:, None] + torch.arange(t, device=slots.device)) % pools.kept[ENTRIES]
        for ring, new in zip(pools.kept[RING][layer], for_replay(inputs), strict=True):
            if ring is not None:
                owner, (rows, places), some = stand_in(slots, new, to)
                there = owner[:, None], places
                ring.index_put_(there, torch.where(some, rows, ring[there]))

    def commit(self, pools: Pools, feed: Feed, verdict: Verdict, operations: Operations) -> None:
        slots, advanced = verdict.slots, verdict.run.advanced
        convolutions_on(pools, verdict, operations, feed.window.drafts, advanced=advanced)
        if turn := operations.commit_window:
            sizes = {"capacity": pools.kept[ENTRIES], "window": pools.kept[WINDOW]}
            turn(pools.kept[ORIGIN], pools.kept[HELD], advanced, slots=slots, **sizes)  # (4)
        else:
            origin, held = at(pools.kept[ORIGIN], slots), at(pools.kept[HELD], slots)
            due = self.due(pools, slots)
            move(pools.kept[ORIGIN], slots, torch.where(due, (origin + held) % pools.kept[ENTRIES], origin))  # (4)
            move(pools.kept[HELD], slots, held * ~due + advanced)
        keep_accepted(pools, feed, verdict, operations)
        advance(pools, verdict)

    def settle(self, pools: Pools, slots: Tensor, model: Model, sequences: Sequences, operations: Operations) -> None:
        """The rings into the checkpoints, and empty."""
        for layer, mixer in enumerate(model.mixers):
            if layer in pools.kept[RING]:
                self.flush(pools, layer, mixer, slots, operations)
        move(pools.kept[HELD], slots, torch.zeros_like(slots))

    def flush(self, pools: Pools, layer: int, mixer: Any, slots: Tensor, operations: Operations) -> None:
        """One layer's ring into its checkpoint."""
        S, scan = pools.recurrent(layer).S, recurrence(operations, mixer)
        if hasattr(pools.kept[RING][layer], "origin"):
            scan.flush(S, pools.kept[RING][layer], mixer.params, slots=slots)
            return
        held, live = self.history(pools, layer, slots)
        scan.scan(S, held, mixer.params, slots=slots, live=live)


def joined(held: Any, inputs: Any) -> Any:
    """Held tokens and window as one; the held ones' outputs are not read, so any z does."""
    parts: list[Tensor | None] = []
    for name, old, new in zip(inputs._fields, held, inputs, strict=True):
        if new is None:
            parts.append(None)
            continue
        old = held.x if name == "z" else old
        parts.append(torch.cat([old, new], dim=1))
    return type(inputs)(*parts)
