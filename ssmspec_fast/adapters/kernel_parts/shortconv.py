"""The kernels of the short convolution for the suite: tokens, windows, prompts, trees, and windows one after the other."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ssmspec_fast.adapters.tensors import POOLS, mapped, nearest, wide
from ssmspec_kernels.conv.conv_taps import WIDEST
from ssmspec_kernels.conv.conv_tree import MOST
from ssmspec_kernels.shortconv.shortconv_buffered import shortconv_buffered
from ssmspec_kernels.shortconv.shortconv_commit import shortconv_commit
from ssmspec_kernels.shortconv.shortconv_flush import shortconv_flush
from ssmspec_kernels.shortconv.shortconv_packed import shortconv_packed
from ssmspec_kernels.shortconv.shortconv_ring import Ring
from ssmspec_kernels.shortconv.shortconv_scan import shortconv_scan
from ssmspec_kernels.shortconv.shortconv_snapshots import shortconv_snapshots
from ssmspec_kernels.shortconv.shortconv_tree import shortconv_tree
from ssmspec_ref.contract import Capability, Graph, Launch, Limits, NumericContract, Subject
from ssmspec_ref.shapes import Array

from .windows import GROWS, LONGEST, STEPS, Buffered, Decoding, Rule, Snapshots


class Committed(Decoding):
    """A window that only reads the state; the commit of all layers, here of one, enters the accepted products."""

    def verify(self, window: Any, parents: Array | None = None) -> Launch:
        self.window, self.branching = window, parents is not None
        if parents is None:
            return self.run(shortconv_scan, window, write_state=False)
        return self.run(shortconv_tree, window, parents=self.index(parents))

    def commit(self, advanced: Array, path: Array) -> Launch:
        (B, _, x, _), _ = self.rule.reads(self.window, self.params)
        named: dict[str, Any] = {"path": self.index(path)} if self.branching else {"advanced": self.index(advanced)}
        given, named = tuple(a[None] for a in (self.pool, B, x)), {**named, "slots": self.slots}
        return Launch((given, named), lambda: shortconv_commit(*given, **named))


class Singles(Buffered):
    """Single tokens, as the shortest windows of a ring."""

    capacity, longest = STEPS, 1


def rule(kernels: Any) -> Rule:
    """How the kernels are called; `kernels` is `adapters.kernels.Kernels`."""

    def reads(window: Any, params: Any) -> tuple[list[Any], dict[str, Any]]:
        inputs = kernels.given(window.B, window.C, window.x)
        return [*inputs, kernels.exact(params.weight)], {"bias": kernels.exact(params.bias)}

    def flush(pool: Tensor, ring: Any, params: Any, slots: Tensor) -> None:
        shortconv_flush(pool, ring, len(slots), slots=slots)

    return Rule(
        kernels, "shortconv", shortconv_snapshots, shortconv_buffered, shortconv_buffered, reads, Ring,
        lambda w: ((w.x, torch.float32),), flush,
    )  # fmt: skip


def subjects(kernels: Any, contract: NumericContract) -> list[Subject]:
    """The kernels with one storage format of the state and of the activations."""
    of, at_once = rule(kernels), replace(contract, order="output_only")

    def scan(S: Array, window: Any, params: Any, live: Array | None = None) -> Launch:
        inputs, rest = of.reads(window, params)
        made: Launch = kernels.launch(shortconv_scan, S, *inputs, live=kernels.exact(live), **rest)
        return made

    def step(S: Array, token: Any, params: Any) -> Launch:
        return scan(S, wide(token), params).then(lambda came: (came[0][:, 0], came[1]))

    def packed(S: Array, run: Any, bounds: Array, fresh: Array, params: Any) -> Launch:
        inputs, rest = of.reads(mapped(lambda a: a[0], run), params)
        given = {**rest, "fresh": kernels.exact(fresh)}
        made: Launch = kernels.launch(shortconv_packed, S, *inputs, kernels.exact(bounds), **given)
        return made.then(lambda came: (came[0][None], came[1]))

    def tree(S: Array, window: Any, ancestors: Array, params: Any) -> Launch:
        inputs, rest = of.reads(window, params)
        made: Launch = kernels.launch(shortconv_tree, S, *inputs, nearest(kernels.exact(ancestors)), **rest)
        return made.then(lambda came: came[0])

    def limits(pools: bool = True, longest: int = 0) -> Limits:
        sizes = {"q": (1, WIDEST - 1)} | ({"t": (1, longest)} if longest else {})
        return Limits(POOLS if pools else {}, sizes, reason="what one launch takes")

    def may(prepare: Callable[..., Any], how: NumericContract = contract, pools: bool = True, longest: int = 0) -> Capability:
        return Capability(Graph(prepare), how, limits(pools, longest))

    return [
        Subject("shortconv_scan", {
            "shortconv.step": may(step), "shortconv.scan": may(scan), "shortconv.scan_masked": may(scan),
        }),
        Subject("shortconv_packed", {"shortconv.scan_packed": may(packed)}),
        Subject("shortconv_tree", {"shortconv.verify_tree": may(tree, longest=MOST)}),
        Subject("shortconv_snapshots", {
            "shortconv.verify_snapshots": Capability(partial(Snapshots, of), contract, limits(pools=False), uncaptured=GROWS),
        }),
        Subject("shortconv_commit", {"shortconv.verify_replay": may(partial(Committed, of), at_once, False)}),
        Subject("shortconv_buffered", {
            "shortconv.buffered_verify": may(partial(Buffered, of), at_once, False, LONGEST),
            "shortconv.buffered_step": may(partial(Singles, of), at_once, False),
        }),
    ]  # fmt: skip
