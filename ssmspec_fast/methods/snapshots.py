"""A state after every token of a window; what was accepted names the one that stays.

    S[place_t] = state after token t,  place_t = current + 1 + m T + t  (mod 1 + M T)      of draft m     (1)
    current'   = the place of the last accepted token                                                     (2)

A slot owns 1 + M T places, of which the current one is no place of the next window: so nothing is copied. The window of the
convolution moves on behind the verdict, by its inputs. Trees: token by token there is no last state of a path but in chains.
Source: vLLM's speculative decoding of Mamba; ReplaySSM, algorithm 3.
"""

from typing import Any

import torch
from torch import Tensor

from ssmspec_ref.errors import Unsupported

from ..model import Model, Recurrent
from ..operations import Operations
from ..operations.slots import put
from ..state import Pools, RecurrentState, new_pools
from ..window import Feed, Verdict
from .plain import Plain
from .windows import advance, at, draft_number, keep_accepted, recurrence

CURRENT, ROOM, INPUTS = "current", "places of a slot", "inputs of the convolution"


class Snapshots(Plain):
    """`drafts` rows for each sequence. With `eager`, the accepted state is copied to its slot behind each verdict."""

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
        pools.kept[ROOM] = room
        pools.kept[CURRENT] = torch.zeros_like(pools.length)
        return pools

    def places(self, pools: Pools, slots: Tensor) -> Tensor:
        return torch.where(slots >= 0, slots * pools.kept[ROOM] + at(pools.kept[CURRENT], slots), -1)

    def start(self, pools: Pools, slots: Tensor) -> None:
        super().start(pools, slots)
        put(pools.kept[CURRENT], slots, torch.zeros_like(slots))

    def recur(
        self, pools: Pools, layer: int, mixer: Recurrent, pre: Tensor, gates: Any, feed: Feed, operations: Operations
    ) -> Tensor:
        if feed.parents is not None:
            raise Unsupported("snapshots keep a state for each token of a chain; use the method tree for trees")
        state, slots = pools.recurrent(layer), feed.slots
        pools.kept.setdefault(INPUTS, {})[layer] = pre
        c = operations.conv_window(state.M, pre, mixer.taps, slots=slots, live=feed.live, keep="none")
        inputs = mixer.project(c, gates, operations)
        steps = draft_number(feed.window)[:, None] * pre.shape[1] + torch.arange(pre.shape[1], device=pre.device)
        to = slots[:, None] * pools.kept[ROOM] + self.entry(pools, slots, steps)
        kept = torch.where(feed.live, to, -1)
        begin = self.places(pools, slots)
        return recurrence(operations, mixer).snapshots(state.S, inputs, mixer.params, kept, slots=begin, live=feed.live)

    def entry(self, pools: Pools, slots: Tensor, steps: Tensor) -> Tensor:
        """Place number of token `steps` among those of its slot (1)."""
        return (at(pools.kept[CURRENT], slots)[:, None] + 1 + steps) % pools.kept[ROOM]

    def commit(self, pools: Pools, feed: Feed, verdict: Verdict, operations: Operations) -> None:
        inputs, t = pools.kept.pop(INPUTS, {}), feed.tokens.shape[1]
        slots, advanced = verdict.slots, verdict.run.advanced
        for layer, pre in inputs.items():
            M = pools.recurrent(layer).M
            operations.conv_commit(M, pre[verdict.row], advanced=advanced, slots=slots)
        last = (verdict.row % feed.window.drafts) * t + advanced - 1
        current = torch.where(advanced > 0, self.entry(pools, slots, last[:, None])[:, 0], at(pools.kept[CURRENT], slots))
        if self.eager:
            self.copy(pools, slots, current)
            current = torch.zeros_like(current)
        put(pools.kept[CURRENT], slots, current)  # (2)
        keep_accepted(pools, feed, verdict, operations)
        advance(pools, verdict)

    def copy(self, pools: Pools, slots: Tensor, current: Tensor) -> None:
        """The accepted states into place 0 of their slots."""
        home = torch.where(slots >= 0, slots * pools.kept[ROOM], -1)
        for state in pools.layers:
            if isinstance(state, RecurrentState):
                put(state.S, home, state.S[home.clamp_min(0) + current])
