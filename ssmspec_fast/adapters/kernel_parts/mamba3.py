"""The kernels of Mamba-3 for the suite: tokens, windows, prompts, and windows one after the other."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from ssmspec_fast.adapters.tensors import POOLS, mapped, wide
from ssmspec_kernels.attention.tree_mask import tree_mask
from ssmspec_kernels.mamba3.mamba3_buffered import mamba3_buffered
from ssmspec_kernels.mamba3.mamba3_commit import mamba3_commit
from ssmspec_kernels.mamba3.mamba3_flush import mamba3_flush
from ssmspec_kernels.mamba3.mamba3_packed import mamba3_packed
from ssmspec_kernels.mamba3.mamba3_ring import Ring
from ssmspec_kernels.mamba3.mamba3_scan import mamba3_scan
from ssmspec_kernels.mamba3.mamba3_snapshots import mamba3_snapshots
from ssmspec_kernels.mamba3.mamba3_tree import LARGEST, mamba3_tree
from ssmspec_ref.contract import Capability, Graph, Launch, Limits, NumericContract, Subject
from ssmspec_ref.shapes import Array

from .windows import GROWS, LONGEST, STEPS, Buffered, Decoding, Rule, Snapshots

ENTRY = ("x", "dt", "A", "trap", "angle", "B")
INPUTS = (*ENTRY, "C", "z")
WEIGHTS = ("B_norm", "C_norm", "B_bias", "C_bias", "dt_bias", "D", "up", "gate", "down")


class Committed(Decoding):
    """A window that only reads the state; the commit of all layers, here of one, enters the accepted tokens."""

    def verify(self, window: Any, parents: Array | None = None) -> Launch:
        self.window, self.branching = window, parents is not None
        if parents is None:
            return self.run(mamba3_scan, window, write_state=False)
        return self.run(mamba3_tree, window, ancestors=tree_mask(self.index(parents))[0])

    def commit(self, advanced: Array, path: Array) -> Launch:
        given = self.rule.reads(self.window, self.params)[1]
        layers = {name: given[name] for name in (*ENTRY, "B_norm", "B_bias", "dt_bias", "up")}
        layers = {name: x if x is None else x[None] for name, x in layers.items()}
        rest: dict[str, Any] = {name: given[name] for name in ("A_floor", "eps", "halves")}
        how: dict[str, Any] = {"path": self.index(path)} if self.branching else {"advanced": self.index(advanced)}
        pool, named = self.pool[None], {**layers, **rest, **how, "slots": self.slots}
        return Launch((pool, named), lambda: mamba3_commit(pool, **named))


class Singles(Buffered):
    """Single tokens, as the shortest windows of a ring."""

    capacity, longest = STEPS, 1


def rule(kernels: Any) -> Rule:
    """How the kernels are called; `kernels` is `adapters.kernels.Kernels`."""

    def reads(window: Any, params: Any) -> tuple[list[Any], dict[str, Any]]:
        inputs = dict(zip(INPUTS, kernels.given(*(getattr(window, name) for name in INPUTS)), strict=True))
        weights = {name: kernels.exact(getattr(params, name)) for name in WEIGHTS}
        return [], inputs | weights | {"A_floor": params.A_floor, "eps": params.eps, "halves": params.pairs == "halves"}

    def flush(pool: Tensor, ring: Any, params: Any, slots: Tensor) -> None:
        weights = {name: kernels.exact(getattr(params, name)) for name in ("B_norm", "B_bias", "dt_bias", "up")}
        given = {"A_floor": params.A_floor, "eps": params.eps, "halves": params.pairs == "halves"}
        mamba3_flush(pool, ring, rows=len(slots), **weights, **given, slots=slots)

    return Rule(
        kernels, "mamba3", mamba3_snapshots, mamba3_buffered, mamba3_buffered, reads, Ring,
        lambda w: tuple((getattr(w, name), None) for name in ENTRY), flush,
    )  # fmt: skip


def subjects(kernels: Any, contract: NumericContract) -> list[Subject]:
    """The kernels with one storage format of the state and of the activations."""
    of, at_once = rule(kernels), replace(contract, order="output_only")

    def scan(S: Array, window: Any, params: Any, live: Array | None = None) -> Launch:
        made: Launch = kernels.launch(mamba3_scan, S, **of.reads(window, params)[1], live=kernels.exact(live))
        return made

    def step(S: Array, token: Any, params: Any) -> Launch:
        return scan(S, wide(token), params).then(lambda came: (came[0][:, 0], came[1]))

    def packed(S: Array, run: Any, bounds: Array, fresh: Array, params: Any) -> Launch:
        given = of.reads(mapped(lambda a: a[0], run), params)[1]
        given |= {"bounds": kernels.exact(bounds), "fresh": kernels.exact(fresh)}
        made: Launch = kernels.launch(mamba3_packed, S, **given)
        return made.then(lambda came: (came[0][None], came[1]))

    def tree(S: Array, window: Any, ancestors: Array, params: Any) -> Launch:
        given = {**of.reads(window, params)[1], "ancestors": kernels.exact(ancestors)}
        made: Launch = kernels.launch(mamba3_tree, S, **given)
        return made.then(lambda came: came[0])

    def may(prepare: Callable[..., Any], how: NumericContract = contract, pools: bool = True, longest: int = 0) -> Capability:
        sizes = {"t": (1, longest)} if longest else {}
        return Capability(Graph(prepare), how, Limits(POOLS if pools else {}, sizes, reason="what one launch takes"))

    return [
        Subject("mamba3_scan", {"mamba3.step": may(step), "mamba3.scan": may(scan), "mamba3.scan_masked": may(scan)}),
        Subject("mamba3_packed", {"mamba3.scan_packed": may(packed)}),
        Subject("mamba3_snapshots", {
            "mamba3.verify_snapshots": Capability(partial(Snapshots, of), contract, uncaptured=GROWS),
        }),
        Subject("mamba3_tree", {"mamba3.verify_tree": may(tree, at_once, longest=LARGEST)}),
        Subject("mamba3_commit", {"mamba3.verify_replay": may(partial(Committed, of), at_once, False, LARGEST)}),
        Subject("mamba3_buffered", {
            "mamba3.buffered_verify": may(partial(Buffered, of), contract, False, LONGEST),
            "mamba3.buffered_step": may(partial(Singles, of), contract, False),
        }),
    ]  # fmt: skip
