"""Activation replay: the state before the last window, and what that window's recurrences read, until the next one.

    S = scan(S, accepted inputs of the last window)        at the head of the next window     (1)
    y = scan(S, inputs of the window), S only read                                            (2)
    cache = inputs of the window; advanced = what is accepted of them                         (3)

The windows of the convolutions, a few columns each, move on behind the verdict, all layers in one launch. The cached values
behind the convolution may be used again, because an accepted token saw accepted tokens only. A tree is the same with the
accepted path for the first tokens of (1).
In the fast mode, where there is a kernel for it, (1), (2) and (3) are one launch, over a cache of two windows (`half`).
Source: Snakes and Ladders, algorithm 2; STree, section 3, for trees.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from ssmspec_ref.errors import Unsupported

from ..model import Model, Recurrent
from ..operations import Operations, SSDInputs
from ..operations.slots import each, index, move
from ..sequences import Sequences
from ..state import Pools, RecurrentState, new_pools
from ..window import Feed, Verdict, Window
from .cached import along, for_replay, fused, new_inputs, whole
from .plain import Plain
from .windows import advance, at, convolutions_on, draft_number, keep_accepted, recurrence, room

ADVANCED, PATH, CHOSEN, CACHE, HALF = "advanced", "path", "chosen", "cache", "half"


class Last(NamedTuple):
    """What was accepted of the last windows: their slots, the mask of their paths, and where those lie cached."""

    slots: Tensor
    live: Tensor
    entries: Tensor
    nodes: Tensor


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
        chain = torch.arange(window, device=pools.length.device)  # a chain's path is its first tokens, as many as advanced
        pools.kept[PATH] = chain.repeat(slots, 1)
        pools.kept[HALF] = torch.zeros_like(pools.length)
        pools.kept[CACHE] = {
            layer: self.new_cache(mixer, slots, window, model, pools, operations)
            for layer, mixer in enumerate(model.mixers)
            if isinstance(pools.layers[layer], RecurrentState)
        }
        return pools

    def new_cache(self, mixer: Any, slots: int, window: int, model: Model, pools: Pools, operations: Operations) -> Any:
        """Room for the inputs of the recurrence: a record, or the cache of a kernel."""
        device, scan = pools.length.device, fused(operations, mixer, "replay")
        if scan is None or self.drafts > 1 or window > scan.longest_replay:
            return new_inputs(mixer, slots * self.drafts + 1, window, model, device)  # the last is padding's, and never read
        return scan.new_cache(new_inputs(mixer, slots, 2 * window, model, device), pools.kept[HALF])

    def start(self, pools: Pools, slots: Tensor) -> None:
        super().start(pools, slots)
        move(pools.kept[ADVANCED], slots, torch.zeros_like(slots))

    def feed(self, pools: Pools, window: Window, sequences: Sequences, operations: Operations) -> Feed:
        if self.trees != (window.parents is not None):
            came, needed = ("a tree", "tree") if window.parents is not None else ("a chain", "activation replay")
            raise Unsupported(f"the method {self.name} was given {came}; use the method {needed} for it")
        feed, slots = super().feed(pools, window, sequences, operations), window.sequences
        advanced, path = at(pools.kept[ADVANCED], slots), at(pools.kept[PATH], slots)
        if all(hasattr(cache, "half") for cache in pools.kept[CACHE].values()):
            return feed._replace(places=(advanced, path))
        entries = feed.slots
        if self.drafts > 1:
            entries = torch.where(entries >= 0, entries * self.drafts + draft_number(window), -1)
        to = torch.where(entries >= 0, entries, len(pools.length) * self.drafts)
        return feed._replace(places=(advanced, path, self.last(pools, slots, advanced, path), to))

    def last(self, pools: Pools, slots: Tensor, advanced: Tensor, path: Tensor) -> Last:
        """What was accepted of the last windows of these sequences, as it lies cached."""
        live = torch.arange(path.shape[1], device=path.device) < advanced[:, None]
        entries = index(slots) * self.drafts + at(pools.kept[CHOSEN], slots) if self.drafts > 1 else index(slots)
        return Last(slots, live & (slots >= 0)[:, None], entries[:, None], path.clamp_min(0))

    room = staticmethod(room)

    def recur(
        self, pools: Pools, layer: int, mixer: Recurrent, pre: Tensor, gates: Any, feed: Feed, operations: Operations
    ) -> Tensor:
        state, scan = pools.recurrent(layer), recurrence(operations, mixer)
        launched = hasattr(pools.kept[CACHE][layer], "half")
        if not launched:
            self.replay(pools, layer, mixer, feed.places[2], operations)
        if feed.parents is None:
            c = operations.conv_window(state.M, pre, mixer.taps, slots=feed.slots, keep="none")
        else:
            c = operations.conv_tree(state.M, pre, mixer.taps, feed.parents, slots=feed.slots)
        inputs = mixer.project(c, gates, operations)
        if launched:
            return self.launch(pools, layer, mixer, inputs, feed, operations)
        if feed.parents is None or feed.ancestors is None:
            y = scan.scan(state.S, inputs, mixer.params, slots=feed.slots, write_state=False)  # (2)
        else:
            y = scan.tree(state.S, inputs, mixer.params, feed.parents, feed.ancestors, slots=feed.slots)  # (2)
        self.cache(pools, layer, inputs, feed)
        return y

    def launch(self, pools: Pools, layer: int, mixer: Any, inputs: Any, feed: Feed, operations: Operations) -> Tensor:
        """(1) to (3) in one launch."""
        cache, (advanced, path, *_) = pools.kept[CACHE][layer], feed.places
        more = {"ancestors": feed.ancestors, "slots": feed.slots, "lengths": feed.window.lengths}
        more["path"] = path if self.trees else None
        S = pools.recurrent(layer).S
        return recurrence(operations, mixer).replay(S, cache, advanced, inputs, mixer.params, **more)

    def accepted(self, pools: Pools, layer: int, last: Last) -> Any:
        """The cached inputs of each slot along its path; what is behind the path is not live."""
        cached = pools.kept[CACHE][layer]
        if hasattr(cached, "half"):
            places = last.nodes + (at(cached.half, last.slots) * (cached.x.shape[1] // 2))[:, None]
            x, dt, B = (along(x, last.entries, places) for x in (cached.x, cached.dt, cached.B))
            return SSDInputs(x, dt, B, B)
        return whole(each(cached, lambda x: along(x, last.entries, last.nodes)))

    def replay(self, pools: Pools, layer: int, mixer: Recurrent, last: Last, operations: Operations) -> None:
        """What was accepted of the cached windows enters the states (1), in the order of the path."""
        ordered, S = self.accepted(pools, layer, last), pools.recurrent(layer).S
        recurrence(operations, mixer).scan(S, ordered, mixer.params, slots=last.slots, live=last.live)

    def cache(self, pools: Pools, layer: int, inputs: Any, feed: Feed) -> None:
        """(3)."""
        to, t = feed.places[3], feed.tokens.shape[1]
        for held, new in zip(pools.kept[CACHE][layer], for_replay(inputs), strict=True):
            if held is not None and new is not None:
                held[:, :t].index_copy_(0, to, new.to(held.dtype))

    def commit(self, pools: Pools, feed: Feed, verdict: Verdict, operations: Operations) -> None:
        slots, run, drafts = verdict.slots, verdict.run, feed.window.drafts
        given = {"path": run.path} if self.trees else {"advanced": run.advanced}
        convolutions_on(pools, verdict, operations, drafts, **given)
        move(pools.kept[ADVANCED], slots, run.advanced)
        if self.trees:
            path = functional.pad(run.path, (0, pools.kept[PATH].shape[1] - run.path.shape[1]), value=-1)
            move(pools.kept[PATH], slots, path)
        if turn := getattr(operations, "commit_halves", None):
            turn(pools.kept[HALF], rows=len(slots), slots=slots)
        else:
            move(pools.kept[HALF], slots, 1 - at(pools.kept[HALF], slots))
        if drafts > 1:
            move(pools.kept[CHOSEN], slots, verdict.row % drafts)
        keep_accepted(pools, feed, verdict, operations)
        advance(pools, verdict)

    def settle(self, pools: Pools, slots: Tensor, model: Model, sequences: Sequences, operations: Operations) -> None:
        """The states up to all committed tokens, and empty caches."""
        last = self.last(pools, slots, at(pools.kept[ADVANCED], slots), at(pools.kept[PATH], slots))
        for layer, mixer in enumerate(model.mixers):
            if layer in pools.kept[CACHE]:
                self.replay(pools, layer, mixer, last, operations)  # type: ignore[arg-type]
        move(pools.kept[ADVANCED], slots, torch.zeros_like(slots))
