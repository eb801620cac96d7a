"""Kimi Delta Attention at the shape of Kimi-Linear, its gates formed by the kernels: bounded in its own; with a softplus in
those of the delta rule that it shares, which are checked here with a decay for each key channel."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from perf_gates.static.shapes import KDA, KDA_BOUND
from ssmspec_ref import error_bounds as eb
from ssmspec_ref.error_bounds.arithmetic import Approx, constant

from .call import Check, Plan
from .delta import LONGEST
from .delta import Layer as DeltaLayer
from .rings import buffered, steps
from .ssd import commit, prefill, scan, snapshots, tree

TINY = {"tiny by channel": (2, 4, 17, 20)}


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
            shared = partial(at, family=Unbounded)
            for t in (t for t in plan.windows if t <= LONGEST):
                yield shared(
                    "delta_chunked", f"T={t} verify", scan, t=t, by="delta_chunked", order="output_only", write_state=False
                )
            for t, capacity in plan.rings:
                yield shared("delta_buffered", f"T={t} L={capacity}", buffered, t=t, capacity=capacity)
            for route in (True, False):
                yield shared("delta_buffered_step", f"L=16{'' if route else ' state'}", steps, capacity=16, output_only=route)
            yield shared("delta_chunk_scan", "packed", prefill, chunk=32)


def _check(model: str, sizes: Any, b: int, kernel: str, variant: str, run: Any, **how: Any) -> Check:
    return Check(kernel, model, variant, b, partial(run, sizes=sizes, b=b, **{"family": Layer, **how}))


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
        self.given |= {"dt_bias": self.call.normal(h, k, form="fp32", mean=-1.0), "lower_bound": KDA_BOUND}

    def decay(self, A: Approx, a: Approx) -> Approx:
        """The bounded gate, in the log."""
        return constant(KDA_BOUND, self.contract()) * eb.sigmoid(-A * a)


class Unbounded(Layer):
    """In the kernels of the delta rule, with its gate."""

    decay = DeltaLayer.decay

    def __post_init__(self) -> None:
        super().__post_init__()
        self.name = "delta"
        del self.given["lower_bound"]
