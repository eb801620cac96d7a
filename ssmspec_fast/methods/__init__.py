"""The ways to verify a window and to keep what was accepted of it: one small object for each, over the same operations.

A method decides what stands between the projections of a recurrent layer (`recur`), what attention reads (`attend`), and what
happens to states and cursors when the verdict is there (`commit`). The forward pass is `decoder`'s and the same for all.
"""

from collections.abc import Iterable
from typing import Any, Protocol

from torch import Tensor

from ..layers.attention import Attention
from ..model import Model, Recurrent
from ..operations import Operations, Rows
from ..sequences import Sequences
from ..state import Pools
from ..window import Feed, Verdict, Window


class Method(Protocol):
    """See docs/decisions/0005-the-engine.md. `drafts` is the rows of a sequence."""

    name: str
    drafts: int

    def check(self, model: Model, window: int, operations: Operations) -> None:
        """Raises: Unsupported, with the reason, where the method is not defined for the model or the operations."""
        ...

    def new_pools(
        self, model: Model, slots: int, cache: int, window: int, operations: Operations, device: Any = None
    ) -> Pools:
        """All that `slots` sequences own under this method; on the device "meta" to be counted only."""
        ...

    def places(self, pools: Pools, slots: Tensor) -> Tensor:
        """Where the states of these slots lie in the pools of the recurrences (prefill writes there)."""
        ...

    def start(self, pools: Pools, slots: Tensor) -> None:
        """Sequences begin in these slots: their cursors are set back."""
        ...

    def behind(self, pools: Pools, slots: Tensor) -> int:
        """The room in front of the roots of these rows for tokens that are brought again; the host may wait for it."""
        ...

    def every_behind(self, pools: Pools) -> Iterable[int]:
        """All that `behind` may say: over graphs there is one for each."""
        ...

    def feed(self, pools: Pools, window: Window, sequences: Sequences, operations: Operations) -> Feed:
        """The window as the layers receive it."""
        ...

    def room(self, pools: Pools, layer: int, mixer: Recurrent, feed: Feed) -> Tensor | None:
        """Where the projection in front of a convolution goes, if the method reads it behind the verdict."""
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
        """Root and accepted drafts enter every layer."""
        ...

    def settle(self, pools: Pools, slots: Tensor, model: Model, sequences: Sequences, operations: Operations) -> None:
        """Bring the states of these slots up to all their committed tokens: before a hand-over."""
        ...
