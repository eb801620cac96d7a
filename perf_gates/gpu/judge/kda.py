"""Kimi Delta Attention at the shape of Kimi-Linear, its bounded gates formed by the kernels."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from perf_gates.static.shapes import KDA
from ssmspec_ref import error_bounds as eb
from ssmspec_ref.error_bounds.arithmetic import Approx, constant

from .call import Check, Plan
from .delta import TINY
from .delta import Layer as DeltaLayer
from .ssd import commit, scan, snapshots, tree

BOUND = -5.0
"""The lower bound of a log decay, that of Kimi K3."""


def checks(plan: Plan) -> Iterator[Check]:
    for model, sizes in (TINY if plan.tiny else KDA).items():
        for b in plan.batches:
            at = partial(_check, model, sizes, b)
            for t in plan.windows:
                yield at("kda_scan", f"T={t}", scan, t=t, by="kda_scan", order="sequential")
                yield at("kda_scan", f"T={t} verify", scan, t=t, by="kda_scan", order="sequential", write_state=False)
                yield at("kda_commit", f"T={t}", commit, t=t)
            yield at("kda_snapshots", "T=6", snapshots, t=6)
            for t in plan.nodes:
                yield at("kda_tree", f"T={t}", tree, t=t, by="kda_tree")
                yield at("kda_commit", f"tree of {t}", commit, t=t, branching=True)


def _check(model: str, sizes: Any, b: int, kernel: str, variant: str, run: Any, **how: Any) -> Check:
    return Check(kernel, model, variant, b, partial(run, sizes=sizes, b=b, family=Layer, **how))


@dataclass
class Layer(DeltaLayer):
    """As for the delta rule, with a decay, and a bias of it, for each key channel."""

    name: str = "kda"
    by_channel: ClassVar[bool] = True
    entering: ClassVar[tuple[str, ...]] = ("k", "v", "g", "beta")
    committing: ClassVar[Any] = "sequential"

    def __post_init__(self) -> None:
        super().__post_init__()
        _, h, k, _ = self.sizes
        self.given |= {"dt_bias": self.call.normal(h, k, form="fp32", mean=-1.0), "lower_bound": BOUND}

    def decay(self, A: Approx, a: Approx) -> Approx:
        """The bounded gate, in the log."""
        return constant(BOUND, self.contract()) * eb.sigmoid(-A[:, None] * a)
