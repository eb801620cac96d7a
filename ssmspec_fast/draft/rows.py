"""The sequences of a draft model, and scratch rows for its drafts.

A slot of the drafter belongs to the same slot of the target, and holds the state after all committed tokens:

    state = scan(state, tokens emitted since), real tokens only; its last output follows the root   (1)
    row   = a copy of a state, advanced by drafts, then discarded                                  (2)

So the state follows the accepted path for any drafts, and needs no verdict: the sequences' tokens are enough.
Source: STree's code, which keeps a verified draft state; Mamba Drafters, section 3.1, for (2).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ssmspec_ref.errors import LengthError, ParameterError

from ..engine.decoder import Decoder
from ..engine.prefill import Piece
from ..engine.sequences import Sequences
from ..engine.state import Cache, Pools, new_pools
from ..engine.window import Feed, Window, plain_feed
from ..layers.recurrent import Recurrent
from ..methods.plain import Plain
from ..methods.windows import at, recurrence
from ..models.model import Model, head
from ..operations import Operations
from ..operations.slots import index, move, sent, stand_in

CATCH_UP = 32
"""Tokens that a state reads at once after windows that were not drafted."""


class Live(Plain):
    """A method for windows that need no verification; `count` of each row's tokens are real."""

    name = "draft rows"

    def check(self, model: Model, window: int, operations: Operations) -> None:
        """Any model, any window that is a chain."""

    def new_pools(
        self, model: Model, slots: int, cache: int, window: int, operations: Operations, device: Any = None
    ) -> Pools:
        return new_pools(model, slots, cache + window, device=device)

    def recur(
        self, pools: Pools, layer: int, mixer: Recurrent, pre: Tensor, gates: Any, feed: Feed, operations: Operations
    ) -> Tensor:
        state = pools.recurrent(layer)
        c = operations.conv_window(state.M, pre, mixer.taps, slots=feed.slots, live=feed.live)
        inputs = mixer.project(c, gates, operations)
        return recurrence(operations, mixer).scan(state.S, inputs, mixer.params, slots=feed.slots, live=feed.live)


class Rows:
    """`slots` sequences of at most `cache` tokens, `width` scratch rows for each, windows of at most `window` tokens.

    Raises: ParameterError (slots below 1), MemoryRefused.
    """

    def __init__(
        self, model: Model, operations: Operations, *, slots: int, width: int, cache: int, window: int, memory: int | None
    ) -> None:
        if slots < 1 or cache < 1:
            raise ParameterError(f"slots and cache are {slots} and {cache}; give at least 1 of each")
        self.model, self.operations = model, operations
        self.slots, self.width, self.window, self.cache = slots, width, window, cache
        self.decoder = Decoder(
            model, Live(), operations, slots=slots * (1 + width), cache=cache + max(window, CATCH_UP), window=window,
            memory=memory,
        )  # fmt: skip
        self.ahead = set[int]()
        """Slots whose prompts are read, or are being read, before `start`."""

    def start(self, sequences: Sequences, slots: Tensor) -> None:
        """Reads prompts into their slots, if they were not read ahead. Raises: ParameterError, LengthError, before any
        work."""
        self.check(sequences, slots)
        mine = [slot for slot in slots.tolist() if slot not in self.ahead]
        self.ahead -= set(slots.tolist())
        rows = zip(sequences.tokens[mine].tolist(), sequences.length[mine].tolist(), strict=True)
        self.decoder.prefill([tokens[:n] for tokens, n in rows], mine)

    def read_ahead(self, sequences: Sequences, pieces: Sequence[Piece]) -> None:
        """Raises: ParameterError, LengthError, before any work."""
        slots = [piece.slot for piece in pieces]
        self.check(sequences, sent(slots, self.model.device))
        self.ahead |= set(slots)
        self.decoder.read_pieces(pieces)

    def check(self, sequences: Sequences, slots: Tensor) -> None:
        """Raises: ParameterError, LengthError."""
        count, longest = sequences.tokens.shape
        if count > self.slots:
            raise ParameterError(f"the engine has {count} slots, but the drafter {self.slots}; build it with slots={count}")
        needed = int((sequences.length[slots] + sequences.budget[slots]).max()) if len(slots) else 0
        if needed > self.cache:
            raise LengthError(
                f"a sequence may reach {needed} tokens, but the drafter holds {self.cache}; build it with cache={longest}"
            )

    def follow(self, sequences: Sequences, slots: Tensor, most: int | None = None) -> Tensor:
        """Updates the states (1) by at most `most` tokens (None: those of a window): the logits after each root (b, i)."""
        pools, owner, most = self.decoder.pools, index(slots), self.window if most is None else most
        held = at(pools.length, slots)
        count = (sequences.length[owner] - held).clamp(1, most)
        places = held[:, None] + torch.arange(most, device=slots.device)
        tokens = sequences.tokens[owner[:, None], places.clamp_max(sequences.tokens.shape[1] - 1)]
        return self.run(tokens, slots, count)

    def run(self, tokens: Tensor, rows: Tensor, count: Tensor) -> Tensor:
        """Reads the first `count` (b) tokens (b, t) into each row (b): the logits after the last of them (b, i)."""
        pools = self.decoder.pools
        x = self.decoder.hidden(plain_feed(Window(tokens, rows, count), pools.length, self.operations))
        last = x.gather(1, (count - 1).clamp_min(0)[:, None, None].expand(-1, 1, x.shape[2]))
        move(pools.length, rows, at(pools.length, rows) + count)
        return head(self.model, last, self.operations)[:, 0]

    def beside(self, slots: Tensor, rows: int) -> Tensor:
        """The first `rows` scratch rows of each slot (b, w); negative for padding."""
        steps = torch.arange(rows, device=slots.device)
        return torch.where((slots >= 0)[:, None], self.slots + slots[:, None] * self.width + steps, -1)

    def copy(self, source: Tensor, to: Tensor) -> None:
        """Copies all that rows hold into other rows (2)."""
        pools = self.decoder.pools
        rows, (read,), _ = stand_in(to.flatten(), source.flatten().clamp_min(0))  # padding copies 0 to 0
        for group in pools.convolutions:
            for piece in (group.M, group.S):
                piece.index_copy_(1, rows, piece[:, read])
        for cache in pools.layers:
            if isinstance(cache, Cache):
                for pool in (cache.K, cache.V):
                    pool.index_copy_(0, rows, pool[read])
        pools.length.index_copy_(0, rows, pools.length[read])

    def step(self, tokens: Tensor, rows: Tensor) -> Tensor:
        """Reads one token into each row (b, w): the logits after it (b, w, i)."""
        pools, flat = self.decoder.pools, rows.flatten().contiguous()
        feed = plain_feed(Window(tokens.reshape(-1, 1), flat), pools.length, self.operations)
        logits = self.decoder.verify(feed)
        pools.length.index_add_(0, index(flat), (flat >= 0).long())
        return logits.view(*rows.shape, -1)
