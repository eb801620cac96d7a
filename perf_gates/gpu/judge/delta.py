"""The gated delta rule at the shape of Qwen3.5-4B, its gates formed by the kernels."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from perf_gates.static.shapes import DELTA
from ssmspec_ref import error_bounds as eb
from ssmspec_ref.contract import NumericContract
from ssmspec_ref.delta import DeltaParams, DeltaWindow
from ssmspec_ref.error_bounds.arithmetic import Approx
from ssmspec_ref.shapes import Array

from .call import Check, Plan, declared, launcher, pulled
from .rings import Tokens, buffered, steps
from .ssd import prefill, scan, snapshots, tree
from .ssd_layer import Layer as SSDLayer

TINY = {"tiny": (2, 4, 17, 20)}
LONGEST = 32
"""Most tokens of a window of `delta_chunked`."""


def checks(plan: Plan) -> Iterator[Check]:
    for model, sizes in (TINY if plan.tiny else DELTA).items():
        for b in plan.batches:
            at = partial(_check, model, sizes, b)
            for t in plan.windows:
                yield at("delta_scan", f"T={t}", scan, t=t, by="delta_scan", order="sequential")
                yield at("delta_scan", f"T={t} verify", scan, t=t, by="delta_scan", order="sequential", write_state=False)
            for t in (t for t in plan.windows if t <= LONGEST):
                yield at("delta_chunked", f"T={t}", scan, t=t, by="delta_chunked", order="output_only")
                yield at(
                    "delta_chunked", f"T={t} verify", scan, t=t, by="delta_chunked", order="output_only", write_state=False
                )
            yield at("delta_snapshots", "T=6", snapshots, t=6)
            for t in plan.nodes:
                yield at("delta_tree", f"T={t}", tree, t=t, by="delta_tree")
                if plan.rare:
                    yield at("delta_tree", f"T={t} without the inverse", tree, t=t, by="delta_tree", inverse=False)
            for u in ("bf16", "fp32"):
                for t, capacity in plan.rings:
                    yield at("delta_buffered", f"T={t} L={capacity} u={u}", buffered, t=t, capacity=capacity, u=u)
                for capacity in (16, 5):
                    for route in (True, False):
                        name = f"L={capacity} u={u}{'' if route else ' state'}"
                        yield at("delta_buffered_step", name, steps, capacity=capacity, output_only=route, u=u)
            yield at("delta_chunk_scan", "packed", prefill, chunk=32)
            yield at("delta_chunk_scan", "packed in bf16", prefill, chunk=64, products="bf16")


def _check(model: str, sizes: Any, b: int, kernel: str, variant: str, run: Any, **how: Any) -> Check:
    return Check(kernel, model, variant, b, partial(run, sizes=sizes, b=b, family=Layer, **how))


@dataclass
class Layer(SSDLayer):
    """As for SSD; `u` is the storage type of the solved values in the ring."""

    name: str = "delta"
    u: str = "fp32"
    by_channel: ClassVar[bool] = False
    """Whether a head has a decay for each key channel, or one."""

    def __post_init__(self) -> None:
        call, (_, h, k, v) = self.call, self.sizes
        self.live = self.b - 1 if self.b > 1 else 1
        self.rows, self.heads = call.rows(self.b), call.heads(h)
        self.slots = call.slots(self.b)
        self.S = call.pool(self.slots, h, k, v, extra=self.extra)
        self.own = self.slots[: self.live].long()
        self.at = self.slots[torch.as_tensor(self.rows, device=call.device)].long()
        A, bias = -call.uniform(0.05, 1.0, h), call.normal(h, form="fp32", mean=-1.0)
        self.given = {"A": A, "dt_bias": bias, "slots": self.slots}
        self.rule = DeltaParams(scale=None, l2_norm=True)

    def window(self, t: int) -> dict[str, Tensor]:
        g, h, k, v = self.sizes
        q, key, value = self.call.beside(self.b, t, (g, k), (g, k), (h, v))
        gate, beta = self.call.beside(self.b, t, (h, k) if self.by_channel else (h,), (h,))
        return {"q": q, "k": key, "v": value, "g": gate, "beta": beta}

    def blank(self, t: int) -> Tensor:
        return self.call.blank(self.b, t, self.sizes[1], self.sizes[3], form=self.form)

    def sampled(self, tensors: dict[str, Tensor], rows: Array | None = None) -> Tokens:
        """A window, each head with the keys of its group, its gates as pairs; padding is 0."""
        group = self.heads // (self.sizes[1] // self.sizes[0])
        by = {"q": group, "k": group, "v": self.heads, "g": self.heads, "beta": self.heads}
        rows = self.rows if rows is None else rows
        dead = np.isnan(pulled(tensors["beta"], rows, self.heads))
        found = {name: np.nan_to_num(pulled(tensors[name], rows, by[name])) for name in by}
        c = self.contract()
        A, bias = (eb.exact(pulled(self.given[name], self.heads), c) for name in ("A", "dt_bias"))
        A = A[:, None] if self.by_channel else A
        gate, beta = self.decay(A, eb.exact(found["g"], c) + bias), eb.sigmoid(eb.exact(found["beta"], c))
        gate, beta = gate.where(~dead[..., None] if self.by_channel else ~dead), beta.where(~dead)
        window = DeltaWindow(found["q"], found["k"], found["v"], gate.value, beta.value)
        return window, {"g": gate.error, "beta": beta.error}

    def decay(self, A: Approx, a: Approx) -> Approx:
        """A token's log decay."""
        return A * eb.softplus(a)

    def contract(self, **changes: Any) -> NumericContract:
        return declared(io=self.form, **({"ring": self.u} if self.u != "fp32" else {}), **changes)

    def scan(self, S: Array, window: DeltaWindow, inexact: dict[str, Array], **changes: Any) -> tuple[Approx, Approx]:
        return eb.delta.scan(S, window, self.rule, self.contract(**changes), inexact=inexact)

    def states(self, S: Array, window: DeltaWindow, inexact: dict[str, Array]) -> tuple[Approx, Approx]:
        return eb.delta.states(S, window, self.rule, self.contract(), inexact=inexact)

    def tree(self, S: Array, window: DeltaWindow, mask: Array, inexact: dict[str, Array]) -> Approx:
        return eb.delta.tree(S, window, mask, self.rule, self.contract(order="output_only"), inexact=inexact)

    def ring(self, capacity: int) -> Any:
        """An empty ring, NaN in every entry, with a different origin for each row."""
        (g, h, k, v), call, s = self.sizes, self.call, len(self.S)
        gate = (h, k) if self.by_channel else (h,)
        entries = (
            call.blank(s, capacity, h, v, form=self.u),
            call.blank(s, capacity, g, k),
            call.blank(s, capacity, *gate, form="fp32"),
        )
        return launcher("delta_ring", "Ring")(*entries, call.ints(call.rng.integers(0, capacity, s)), call.ints(np.zeros(s)))

    def flush(self, ring: Any) -> None:
        launcher("delta_flush")(self.S, ring, self.b, slots=self.slots)
