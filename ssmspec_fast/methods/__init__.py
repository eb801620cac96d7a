"""The ways to verify a window and to keep its accepted tokens: one small object for each, over the same operations.

A method decides what happens between the projections of a recurrent layer (`recur`), what attention reads (`attend`), and
what happens to states and cursors after the verdict (`commit`). The forward pass is `decoder`'s and the same for all.
"""

from collections.abc import Iterable
from typing import Any, Protocol

from torch import Tensor

from ..engine.sequences import Sequences
from ..engine.state import Pools
from ..engine.window import Feed, Verdict, Window
from ..layers.attention import Attention
from ..layers.recurrent import Recurrent
from ..models.model import Model
from ..operations import Operations, Rows


class Method(Protocol):
    """See docs/decisions/0005-the-engine.md. `drafts` is the rows of a sequence, `trees` whether its windows are trees.
    `settles`: after `settle` its pools hold what plain decoding's would, so that plain steps may follow (`Window.settled`).
    `lags`: before it they may not; `waits`: `settle` reads values on the host, so that it cannot be recorded.
    """

    name: str
    drafts: int
    trees: bool
    settles: bool
    lags: bool
    waits: bool

    def check(self, model: Model, window: int, operations: Operations) -> None:
        """Raises: Unsupported, with the reason, if the method does not support the model, the window or the operations."""
        ...

    def new_pools(
        self, model: Model, slots: int, cache: int, window: int, operations: Operations, device: Any = None
    ) -> Pools:
        """All that `slots` sequences own under this method; on the device "meta" for counting only."""
        ...

    def places(self, pools: Pools, slots: Tensor) -> Tensor:
        """The indices of these slots' states in the pools of the recurrences (prefill writes there)."""
        ...

    def start(self, pools: Pools, slots: Tensor) -> None:
        """Called when sequences begin in these slots: resets their cursors."""
        ...

    def committed(self, pools: Pools, slots: Tensor) -> Tensor:
        """The committed tokens of each row without its root, whether its states have advanced by them or not (b)."""
        ...

    def refed(self, pools: Pools, slots: Tensor) -> int:
        """The places in front of the roots of these rows for tokens that are fed again; the host may wait for it."""
        ...

    def every_refed(self, pools: Pools) -> Iterable[int]:
        """All values that `refed` may return: graphs are recorded for each."""
        ...

    def feed(self, pools: Pools, window: Window, sequences: Sequences, operations: Operations) -> Feed:
        """The window as the layers receive it."""
        ...

    def room(self, pools: Pools, layer: int, mixer: Recurrent, feed: Feed) -> Tensor | None:
        """Where the projection before a convolution is written, if the method reads it after the verdict."""
        ...

    def recur(
        self, pools: Pools, layer: int, mixer: Recurrent, pre: Tensor, gates: Any, feed: Feed, operations: Operations
    ) -> Rows:
        """Convolution and recurrence of one layer over the feed: the outputs y."""
        ...

    def attend(
        self, pools: Pools, layer: int, mixer: Attention, q: Tensor, k: Tensor, v: Tensor, feed: Feed, operations: Operations
    ) -> Tensor:
        """Attention of one layer over the feed: the outputs y."""
        ...

    def commit(self, pools: Pools, feed: Feed, verdict: Verdict, operations: Operations) -> None:
        """Enters the root and the accepted drafts into every layer."""
        ...

    def settle(self, pools: Pools, slots: Tensor, model: Model, sequences: Sequences, operations: Operations) -> None:
        """Updates the states of these slots with all their committed tokens: before they are handed over."""
        ...
