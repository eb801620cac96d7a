"""The kernels of Kimi Delta Attention that decode window after window, for the suite: cases with a decay per key channel."""

from dataclasses import replace
from functools import partial
from typing import Any

from ssmspec_kernels.attention.tree_mask import tree_mask
from ssmspec_kernels.kda.kda_commit import kda_commit
from ssmspec_kernels.kda.kda_scan import kda_scan
from ssmspec_kernels.kda.kda_snapshots import kda_snapshots
from ssmspec_kernels.kda.kda_tree import kda_tree
from ssmspec_ref.contract import Capability, Graph, Launch, NumericContract, Subject
from ssmspec_ref.shapes import Array

from .windows import GROWS, Decoding, Snapshots, rules


class Committed(Decoding):
    """A window that only reads the state; the commit of all layers, here of one, enters the accepted tokens."""

    def verify(self, window: Any, parents: Array | None = None) -> Launch:
        self.window, self.branching = window, parents is not None
        if parents is None:
            return self.run(kda_scan, window, write_state=False)
        return self.run(kda_tree, window, ancestors=tree_mask(self.index(parents))[0])

    def commit(self, advanced: Array, path: Array) -> Launch:
        (_, *inputs), rest = self.rule.reads(self.window, self.params)
        how = {"path": self.index(path)} if self.branching else {"advanced": self.index(advanced)}
        named = {"l2_norm": rest["l2_norm"], "eps": rest["eps"], "slots": self.slots, **how}
        given = tuple(x[None] for x in (self.pool, *inputs))
        return Launch((given, named), lambda: kda_commit(*given, **named))


def by_channel(capability: Capability) -> Capability:
    """The same with a decay per key channel only."""
    given, why = capability.limits, "Kimi Delta Attention decays by key channel"
    reason = f"{why}; {given.reason}" if given.options or given.sizes else why
    return replace(capability, limits=replace(given, options={**given.options, "gate": ("channel",)}, reason=reason))


def subjects(kernels: Any, contract: NumericContract) -> list[Subject]:
    """The kernels with one storage format of the state and of the activations; `kernels` is `adapters.kernels.Kernels`."""
    rule = replace(rules(kernels)["delta"], snapshots=kda_snapshots)
    kept = Capability(partial(Snapshots, rule), contract, uncaptured=GROWS)
    replayed = Capability(Graph(partial(Committed, rule)), replace(contract, order="output_only"))
    return [
        Subject("kda_snapshots", {"delta.verify_snapshots": by_channel(kept)}),
        Subject("kda_commit", {"delta.verify_replay": by_channel(replayed)}),
    ]
