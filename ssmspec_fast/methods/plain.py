"""Plain decoding: windows of one token, which needs no verification, so that every state advances at once."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ssmspec_ref.errors import Unsupported

from ..engine.sequences import Sequences
from ..engine.state import Pools, new_pools
from ..engine.window import Feed, Verdict, Window, plain_feed
from ..layers.attention import Attention
from ..layers.recurrent import Recurrent
from ..models.model import Model
from ..operations import Operations, Rows
from ..operations.slots import move
from .windows import advance, at, attend, recurrence


class Plain:
    """Plain decoding, which every other method must equal. The other methods override what they do differently."""

    name, drafts, trees, settles = "plain", 1, False, False
    lags = waits = False

    def check(self, model: Model, window: int, operations: Operations) -> None:
        if window != 1:
            raise Unsupported(
                f"plain decoding takes windows of 1 token, but this one has {window}; choose another method for drafts"
            )

    def new_pools(
        self, model: Model, slots: int, cache: int, window: int, operations: Operations, device: Any = None
    ) -> Pools:
        return new_pools(model, slots, cache, device=device)

    def places(self, pools: Pools, slots: Tensor) -> Tensor:
        return slots

    def start(self, pools: Pools, slots: Tensor) -> None:
        move(pools.length, slots, torch.zeros_like(slots))

    def committed(self, pools: Pools, slots: Tensor) -> Tensor:
        return at(pools.length, slots)

    def refed(self, pools: Pools, slots: Tensor) -> int:
        return 0

    def every_refed(self, pools: Pools) -> Iterable[int]:
        return (0,)

    def feed(self, pools: Pools, window: Window, sequences: Sequences, operations: Operations) -> Feed:
        return plain_feed(window, pools.length, operations)

    def room(self, pools: Pools, layer: int, mixer: Recurrent, feed: Feed) -> Tensor | None:
        return None

    def recur(
        self, pools: Pools, layer: int, mixer: Recurrent, pre: Tensor, gates: Any, feed: Feed, operations: Operations
    ) -> Rows:
        state = pools.recurrent(layer)
        c = operations.conv_window(state.M, pre, mixer.taps, slots=feed.slots)
        inputs = mixer.project(c, gates, operations)
        scan = recurrence(operations, mixer)
        if (gate := mixer.gate(gates)) is not None:
            y = scan.gated(state.S, inputs, mixer.params, gate, slots=feed.slots)
            if y is not None:
                return y
        return scan.scan(state.S, inputs, mixer.params, slots=feed.slots)

    def attend(
        self, pools: Pools, layer: int, mixer: Attention, q: Tensor, k: Tensor, v: Tensor, feed: Feed, operations: Operations
    ) -> Tensor:
        return attend(pools, layer, mixer, q, k, v, feed, operations)

    def commit(self, pools: Pools, feed: Feed, verdict: Verdict, operations: Operations) -> None:
        advance(pools, verdict)

    def settle(self, pools: Pools, slots: Tensor, model: Model, sequences: Sequences, operations: Operations) -> None:
        """Nothing lags."""
