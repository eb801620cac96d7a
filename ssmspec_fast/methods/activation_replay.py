"""Activation replay: the state before the last window, and what that window's recurrences read, until the next one.

    S = scan(S, accepted inputs of the last window)        at the head of the next window     (1)
    y = scan(S, inputs of the window), S only read                                            (2)
    cache = inputs of the window; advanced = what is accepted of them                         (3)

The convolution replays its own inputs in the same way. The cached values behind the convolution may be used again, because an
accepted token saw accepted tokens only. A tree is the same with the accepted path for the first tokens of (1).
Source: Snakes and Ladders, algorithm 2; STree, section 3, for trees.
"""

from typing import Any

import torch
from torch import Tensor

from ssmspec_ref.errors import Unsupported

from ..model import Model, Recurrent
from ..operations import Operations
from ..operations.slots import each, put, take
from ..sequences import Sequences
from ..state import Pools, RecurrentState, new_pools
from ..window import Feed, Verdict
from .cached import along, for_replay, new_inputs, whole
from .plain import Plain
from .windows import advance, at, draft_number, keep_accepted, place, recurrence

ADVANCED, PATH, CHOSEN, CACHE = "advanced", "path", "chosen", "cache"


class ActivationReplay(Plain):
    """`drafts` rows for each sequence; a slot caches the windows of all of them."""

    name = "activation replay"
    trees = False

    def __init__(self, drafts: int = 1) -> None:
        self.drafts = drafts

    def check(self, model: Model, window: int, operations: Operations) -> None:
        """Any model, any window."""

    def new_pools(
        self, model: Model, slots: int, cache: int, window: int, operations: Operations, device: Any = None
    ) -> Pools:
        pools = new_pools(model, slots, cache + window, device=device)
        pools.kept[ADVANCED] = torch.zeros_like(pools.length)
        pools.kept[CHOSEN] = torch.zeros_like(pools.length)
        pools.kept[PATH] = torch.full((slots, window), -1, dtype=torch.int64, device=pools.length.device)
        pools.kept[CACHE] = {
            layer: new_inputs(mixer, slots * self.drafts, window, model, pools.length.device)
            for layer, mixer in enumerate(model.mixers)
            if isinstance(pools.layers[layer], RecurrentState)
        }
        return pools

    def start(self, pools: Pools, slots: Tensor) -> None:
        super().start(pools, slots)
        place(pools.kept[ADVANCED], slots, torch.zeros_like(slots))
        place(pools.kept[PATH], slots, torch.full_like(at(pools.kept[PATH], slots), -1))

    def recur(
        self, pools: Pools, layer: int, mixer: Recurrent, pre: Tensor, gates: Any, feed: Feed, operations: Operations
    ) -> Tensor:
        if self.trees != (feed.parents is not None):
            came, needed = ("a tree", "tree") if feed.parents is not None else ("a chain", "activation replay")
            raise Unsupported(f"the method {self.name} was given {came}; use the method {needed} for it")
        state, scan = pools.recurrent(layer), recurrence(operations, mixer)
        self.replay(pools, layer, mixer, feed.window.sequences, operations)
        if feed.parents is None or feed.ancestors is None:
            c = operations.conv_window(state.M, pre, mixer.taps, slots=feed.slots, live=feed.live, keep="none")
            inputs = mixer.project(c, gates, operations)
            y = scan.scan(state.S, inputs, mixer.params, slots=feed.slots, live=feed.live, write_state=False)  # (2)
        else:
            c = operations.conv_tree(state.M, pre, mixer.taps, feed.parents, slots=feed.slots)
            inputs = mixer.project(c, gates, operations)
            y = scan.tree(state.S, inputs, mixer.params, feed.parents, feed.ancestors, slots=feed.slots)  # (2)
        self.cache(pools, layer, pre, inputs, feed)
        return y

    def replay(self, pools: Pools, layer: int, mixer: Recurrent, slots: Tensor, operations: Operations) -> None:
        """What was accepted of the cached windows enters the states (1), in the order of the path."""
        state, (pre, cached) = pools.recurrent(layer), pools.kept[CACHE][layer]
        path, count = at(pools.kept[PATH], slots), at(pools.kept[ADVANCED], slots)
        entries = torch.where(slots >= 0, slots * self.drafts + at(pools.kept[CHOSEN], slots), -1)
        ordered = each(cached, lambda x: along(take(x, entries), path))
        live = torch.arange(path.shape[1], device=path.device) < count[:, None]
        recurrence(operations, mixer).scan(state.S, whole(ordered), mixer.params, slots=slots, live=live)
        operations.conv_commit(state.M, along(take(pre, entries), path), advanced=count, slots=slots)

    def cache(self, pools: Pools, layer: int, pre: Tensor, inputs: Any, feed: Feed) -> None:
        """(3)."""
        held_pre, cached = pools.kept[CACHE][layer]
        entries = torch.where(feed.slots >= 0, feed.slots * self.drafts + draft_number(feed.window), -1)
        t = pre.shape[1]
        put(held_pre[:, :t], entries, pre)
        for held, new in zip(cached, for_replay(inputs), strict=True):
            if held is not None and new is not None:
                put(held[:, :t], entries, new)

    def commit(self, pools: Pools, feed: Feed, verdict: Verdict, operations: Operations) -> None:
        slots, run = verdict.slots, verdict.run
        path = torch.full_like(at(pools.kept[PATH], slots), -1)
        path[:, : run.path.shape[1]] = run.path
        place(pools.kept[ADVANCED], slots, run.advanced)
        place(pools.kept[PATH], slots, path)
        place(pools.kept[CHOSEN], slots, verdict.row % feed.window.drafts)
        keep_accepted(pools, feed, verdict, operations)
        advance(pools, verdict)

    def settle(self, pools: Pools, slots: Tensor, model: Model, sequences: Sequences, operations: Operations) -> None:
        """The states up to all committed tokens, and empty caches."""
        for layer, mixer in enumerate(model.mixers):
            if layer in pools.kept[CACHE]:
                self.replay(pools, layer, mixer, slots, operations)  # type: ignore[arg-type]
        place(pools.kept[ADVANCED], slots, torch.zeros_like(slots))
