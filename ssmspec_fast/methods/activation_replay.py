"""Activation replay: the window only reads the state; the inputs of its recurrences are replayed for the accepted tokens.

    y = scan(S, inputs of the window), S only read          (1)
    S = scan(S, accepted inputs), after the verdict         (2)

The values after the convolution may be used again, because an accepted token depends on accepted tokens only. For a tree (2)
takes the accepted path instead of the first tokens. If there is a kernel for it, (2) is one launch for all layers of a
shape, whose inputs are in one tensor; otherwise a scan in each layer.
Source: Snakes and Ladders, algorithm 2; STree, section 3, for trees. There (2) is at the start of the next window, which
reads the state once and caches its inputs until then; here the state is read twice, and no token lags between two windows.
"""

from typing import Any

import torch
from torch import Tensor

from ssmspec_ref.errors import Unsupported

from ..engine.sequences import Sequences
from ..engine.state import Pools, landed, new_pools
from ..engine.window import Feed, Verdict, Window
from ..layers.recurrent import Recurrent
from ..models.model import Model
from ..operations import Operations, Rows
from ..operations.slots import each
from .cached import along, for_replay, whole
from .plain import Plain
from .windows import (
    Together,
    advance,
    convolutions_on,
    convolved,
    keep_accepted,
    outputs,
    parameters,
    recurrence,
    room,
    states_on,
    together,
)  # fmt: skip


class ActivationReplay(Plain):
    """`drafts` rows for each sequence."""

    name, settles = "activation replay", True

    def __init__(self, drafts: int = 1) -> None:
        self.drafts = drafts

    def check(self, model: Model, window: int, operations: Operations) -> None:
        """Any model, any window."""

    def new_pools(
        self, model: Model, slots: int, cache: int, window: int, operations: Operations, device: Any = None
    ) -> Pools:
        pools = new_pools(model, slots, cache + window, device=device)
        pools.kept = Together(parameters(model, pools, operations))
        return pools

    def feed(self, pools: Pools, window: Window, sequences: Sequences, operations: Operations) -> Feed:
        if self.trees != (window.parents is not None):
            came, needed = ("a tree", "tree") if window.parents is not None else ("a chain", "activation replay")
            raise Unsupported(f"the method {self.name} does not take {came}; use the method {needed}")
        return super().feed(pools, window, sequences, operations)

    room = staticmethod(room)

    def recur(
        self, pools: Pools, layer: int, mixer: Recurrent, pre: Tensor, gates: Any, feed: Feed, operations: Operations
    ) -> Rows:
        inputs = convolved(pools, layer, mixer, pre, gates, feed, operations)
        if not together(operations, mixer):
            pools.flight.replayed[layer] = mixer, for_replay(inputs)
        return outputs(pools.recurrent(layer).S, mixer, inputs, gates, feed, operations)  # (1)

    def commit(self, pools: Pools, feed: Feed, verdict: Verdict, operations: Operations) -> None:
        run, drafts = verdict.run, feed.window.drafts
        given = {"path": run.path} if self.trees else {"advanced": run.advanced}
        states_on(pools, verdict, operations, drafts, **given)  # (2)
        convolutions_on(pools, verdict, operations, drafts, **given)
        for layer, (mixer, inputs) in landed(pools.flight.replayed).items():
            self.replay(pools, layer, mixer, inputs, verdict, operations)
        keep_accepted(pools, feed, verdict, operations)
        advance(pools, verdict)

    def replay(
        self, pools: Pools, layer: int, mixer: Recurrent, inputs: Any, verdict: Verdict, operations: Operations
    ) -> None:
        """Enters the accepted tokens of a window into the states of one layer (2), in the order of the path."""
        S, slots, run = pools.recurrent(layer).S, verdict.slots, verdict.run
        steps = torch.arange(run.path.shape[1], device=slots.device)
        path = run.path if self.trees else steps.expand_as(run.path)
        live = (path >= 0) if self.trees else steps < run.advanced[:, None]
        ordered = whole(each(inputs, lambda x: along(x, verdict.row[:, None], path.clamp_min(0))))
        live = live & (slots >= 0)[:, None]
        recurrence(operations, mixer).scan(S, ordered, mixer.params, slots=slots, live=live)
