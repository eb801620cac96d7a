"""A state after every token of a window; the verdict selects the one to keep.

    S[place_t] = state after token t,  place_t = current + 1 + m T + t  (mod 1 + M T)      for draft m    (1)
    current'   = the place of the last accepted token                                                     (2)

A slot owns 1 + M T places. The next window never writes the current one, so nothing is copied. The window of the
convolution advances after the verdict, by its inputs. Trees are not supported: a path has a last state only in chains.
Source: vLLM's speculative decoding of Mamba; ReplaySSM, algorithm 3.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ssmspec_ref.errors import Unsupported

from ..engine.sequences import Sequences
from ..engine.state import Kept, Pools, RecurrentState, new_pools
from ..engine.window import Feed, Verdict, Window
from ..layers.recurrent import Recurrent
from ..models.model import Model
from ..operations import Operations
from ..operations.slots import move, put
from .plain import Plain
from .windows import advance, at, convolutions_on, draft_number, keep_accepted, recurrence, room


@dataclass
class Places(Kept):
    """`current` (s): which of its `room` places holds the state of a slot."""

    current: Tensor
    room: int

    def by_slot(self) -> list[Any]:
        return [self.current]


class Snapshots(Plain):
    """`drafts` rows for each sequence. With `eager`, the accepted state is copied to its slot after each verdict."""

    name = "snapshots"

    def __init__(self, drafts: int = 1, eager: bool = False) -> None:
        self.drafts, self.eager = drafts, eager

    def check(self, model: Model, window: int, operations: Operations) -> None:
        """Any model, any window that is a chain."""

    def new_pools(
        self, model: Model, slots: int, cache: int, window: int, operations: Operations, device: Any = None
    ) -> Pools:
        room = 1 + self.drafts * window
        pools = new_pools(model, slots, cache, places=slots * room, device=device)
        pools.kept = Places(torch.zeros_like(pools.length), room)
        return pools

    def places(self, pools: Pools, slots: Tensor) -> Tensor:
        return torch.where(slots >= 0, slots * pools.of(Places).room + at(pools.of(Places).current, slots), -1)

    def start(self, pools: Pools, slots: Tensor) -> None:
        super().start(pools, slots)
        move(pools.of(Places).current, slots, torch.zeros_like(slots))

    def feed(self, pools: Pools, window: Window, sequences: Sequences, operations: Operations) -> Feed:
        feed = super().feed(pools, window, sequences, operations)
        slots, t = feed.slots, feed.tokens.shape[1]
        steps = draft_number(window)[:, None] * t + torch.arange(t, device=slots.device)
        to = slots[:, None] * pools.of(Places).room + self.entry(pools, slots, steps)
        return feed._replace(places=(torch.where(feed.live, to, -1), self.places(pools, slots)))

    room = staticmethod(room)

    def recur(
        self, pools: Pools, layer: int, mixer: Recurrent, pre: Tensor, gates: Any, feed: Feed, operations: Operations
    ) -> Tensor:
        if feed.parents is not None:
            raise Unsupported("snapshots keep a state for each token of a chain; use the method tree for trees")
        state, (kept, begin) = pools.recurrent(layer), feed.places
        c = operations.conv_window(state.M, pre, mixer.taps, slots=feed.slots, keep="none")
        inputs = mixer.project(c, gates, operations)
        return recurrence(operations, mixer).snapshots(state.S, inputs, mixer.params, kept, slots=begin)

    def entry(self, pools: Pools, slots: Tensor, steps: Tensor) -> Tensor:
        """Place number of token `steps` among those of its slot (1)."""
        return (at(pools.of(Places).current, slots)[:, None] + 1 + steps) % pools.of(Places).room

    def commit(self, pools: Pools, feed: Feed, verdict: Verdict, operations: Operations) -> None:
        t, slots, advanced, kept = feed.tokens.shape[1], verdict.slots, verdict.run.advanced, pools.of(Places)
        convolutions_on(pools, verdict, operations, feed.window.drafts, advanced=advanced)
        last = (verdict.row % feed.window.drafts) * t + advanced - 1
        current = torch.where(
            advanced > 0, self.entry(pools, slots, last[:, None])[:, 0], at(pools.of(Places).current, slots)
        )
        if self.eager:
            self.copy(pools, slots, current)
            current = torch.zeros_like(current)
        move(kept.current, slots, current)  # (2)
        keep_accepted(pools, feed, verdict, operations)
        advance(pools, verdict)

    def copy(self, pools: Pools, slots: Tensor, current: Tensor) -> None:
        """Copies the accepted states into place 0 of their slots."""
        home = torch.where(slots >= 0, slots * pools.of(Places).room, -1)
        for state in pools.layers:
            if isinstance(state, RecurrentState):
                put(state.S, home, state.S[home.clamp_min(0) + current])
