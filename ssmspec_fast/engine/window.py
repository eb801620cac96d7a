"""What drafter, model and acceptance rule exchange in one step. All tensors have fixed shapes and are on the device."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..operations import Emitted, Operations
from ..operations.slots import index


class Window(NamedTuple):
    """What is verified in one step: in each row a root and its drafts, as a chain or as a packed tree.

    `tokens` (b, t); `slots` (b) names the sequence of each row, negative for padding. `lengths` (b) counts the real tokens of
    a chain, which come first (None: all are real). `parents` (b, t) makes the rows trees: -1 at the root, -2 at padding.
    Every `drafts` consecutive rows belong to one sequence: row i drafts + m is draft m of sequence i. `refed` is the number
    of places before the root for tokens that the method feeds again, if it was read before the step (None: it is read for the
    feed). `settled`: it is a root alone, and the method has settled its row, if it can (`Method.settles`): a plain step.
    """

    tokens: Tensor
    slots: Tensor
    lengths: Tensor | None = None
    parents: Tensor | None = None
    drafts: int = 1
    refed: int | None = None
    settled: bool = False

    @property
    def sequences(self) -> Tensor:
        """The slot of each sequence (n)."""
        return self.slots[:: self.drafts].contiguous()

    def live(self) -> Tensor:
        """The real tokens (b, t) of rows that are not padding."""
        t = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        real = (self.slots >= 0)[:, None].expand_as(self.tokens)
        if self.parents is not None:
            return real & (self.parents >= -1)
        return real if self.lengths is None else real & (t < self.lengths[:, None])

    def tree(self) -> Tensor:
        """The parents of every row; a chain is the tree with one path."""
        if self.parents is not None:
            return self.parents
        t = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        return torch.where(self.live(), t - 1, -2)


class Feed(NamedTuple):
    """A window as the layers receive it: `lag` committed tokens precede the root if the method feeds them again.

    `tokens`, `live`, `positions` (b, l); `start` (s) counts the tokens of each slot before the first one fed; `lag` (b);
    `parents`, `ancestors` for trees. The window's own token t of a row is at lag + t. `places` is what a method computes once
    for all layers. Tokens that are not live come after all live ones: where no state is written no mask is needed, because
    nothing live reads them.
    """

    window: Window
    tokens: Tensor
    live: Tensor
    positions: Tensor
    start: Tensor
    lag: Tensor | None = None
    parents: Tensor | None = None
    ancestors: Tensor | None = None
    places: Any = None

    @property
    def slots(self) -> Tensor:
        return self.window.slots


class Proposal(NamedTuple):
    """A window and the distribution that drew it: q (b, t, i) fp32 after each node, None for point masses."""

    window: Window
    q: Tensor | None = None
    law: str = "point_mass"

    def fed(self, refed: int | None) -> "Proposal":
        """The same, with `refed` places in front of the root."""
        return self._replace(window=self.window._replace(refed=refed))


class Verdict(NamedTuple):
    """The decision: for each sequence its accepted run, the accepted row of the window, and its slot (n)."""

    run: Emitted
    row: Tensor
    slots: Tensor


def plain_feed(window: Window, length: Tensor, operations: Operations) -> Feed:
    """A window fed without earlier tokens, after those in the states: position T + depth."""
    start = length[index(window.slots)][:, None]
    live = window.live()
    if window.parents is None:
        steps = torch.arange(window.tokens.shape[1], device=window.tokens.device)
        return Feed(window, torch.where(live, window.tokens, 0), live, start + steps, length)
    ancestors, depths = operations.tree_mask(window.parents)
    tokens = torch.where(live, window.tokens, 0)
    return Feed(window, tokens, live, start + depths.clamp_min(0), length, None, window.parents, ancestors)
