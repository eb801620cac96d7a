"""A layer of SSD: parameters, pooled states and windows on the device, and the sampled heads as arguments for the oracle."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ssmspec_ref import error_bounds as eb
from ssmspec_ref.contract import NumericContract, Storage
from ssmspec_ref.error_bounds.arithmetic import Approx
from ssmspec_ref.shapes import Array
from ssmspec_ref.ssd import SSDParams, SSDWindow

from .call import Call, declared, launcher, pulled
from .rings import Tokens

Sizes = tuple[int, int, int, int]
"""h, p, n, g."""


@dataclass
class Layer:
    """Parameters, states and slots that several windows share, and the sampled rows and heads."""

    call: Call
    sizes: Sizes
    b: int
    extra: int = 0
    name: str = "ssd"
    io: str = "bf16"
    given: dict[str, Any] = field(default_factory=dict)
    entering: ClassVar[tuple[str, ...]] = ("x", "dt", "B")
    """What of a token enters a state."""
    committing: ClassVar[Any] = "output_only"
    """The order in which a commit computes."""

    @property
    def form(self) -> Storage:
        """Outputs of a batch are stored in fp32, which shows errors that bf16 would hide."""
        return "bf16" if self.b == 1 else "fp32"

    def __post_init__(self) -> None:
        call, (h, p, n, _) = self.call, self.sizes
        self.live = self.b - 1 if self.b > 1 else 1
        self.rows, self.heads = call.rows(self.b), call.heads(h)
        self.slots = call.slots(self.b)
        self.S = call.pool(self.slots, h, p, n, extra=self.extra)
        self.own = self.slots[: self.live].long()
        self.at = self.slots[torch.as_tensor(self.rows, device=call.device)].long()
        A, D, bias = -call.uniform(0.05, 1.0, h), call.normal(h, form="fp32"), call.normal(h, form="fp32", mean=-1.0)
        self.given = {"A": A, "D": D, "dt_bias": bias, "slots": self.slots}
        A_h, D_h, bias_h = (pulled(x, self.heads) for x in (A, D, bias))
        self.params = SSDParams(A_h, D_h, bias_h, dt_softplus=True)

    def window(self, t: int) -> dict[str, Tensor]:
        h, p, n, g = self.sizes
        x, B, C = self.call.beside(self.b, t, (h, p), (g, n), (g, n), form=self.io)
        _, dt = self.call.beside(self.b, t, (8,), (h,), form=self.io)
        return {"x": x, "dt": dt, "B": B, "C": C}

    def blank(self, t: int) -> Tensor:
        return self.call.blank(self.b, t, *self.sizes[:2], form=self.form)

    def same(self, **tensors: Tensor) -> dict[str, Tensor]:
        """The tensors that a call must not change."""
        return {"S": self.S, **{k: v for k, v in self.given.items() if isinstance(v, Tensor)}, **tensors}

    # --- the judged rows and heads, and the oracle ---

    def state(self) -> Array:
        return pulled(self.S, self.at.cpu().numpy(), self.heads, axis=1)

    def outputs(self, out: Tensor) -> Array:
        return pulled(out, self.rows, self.heads)

    def sampled(self, tensors: dict[str, Tensor], rows: Array | None = None) -> Tokens:
        """A window, each head with the B and C of its group; padding is 0."""
        group = self.heads // (self.sizes[0] // self.sizes[3])
        by = {"x": self.heads, "dt": self.heads, "B": group, "C": group}
        rows = self.rows if rows is None else rows
        return SSDWindow(**{name: np.nan_to_num(pulled(tensors[name], rows, by[name])) for name in by}), {}

    def contract(self, **changes: Any) -> NumericContract:
        return declared(io=self.form, **changes)

    def scan(self, S: Array, window: Any, inexact: dict[str, Array], **changes: Any) -> tuple[Approx, Approx]:
        return eb.ssd.scan(S, window, self.params, self.contract(**changes), inexact=inexact)

    def states(self, S: Array, window: Any, inexact: dict[str, Array]) -> tuple[Approx, Approx]:
        return eb.ssd.states(S, window, self.params, self.contract(), inexact=inexact)

    def tree(self, S: Array, window: Any, mask: Array, inexact: dict[str, Array]) -> Approx:
        return eb.ssd.tree(S, window, mask, self.params, self.contract(order="output_only"), inexact=inexact)

    # --- what differs between the families ---

    def ring(self, capacity: int) -> Any:
        """An empty ring, NaN in every entry, with a different origin for each row."""
        (h, p, n, g), call, s = self.sizes, self.call, len(self.S)
        entries = call.blank(s, capacity, h, p), call.blank(s, capacity, h, form="fp32"), call.blank(s, capacity, g, n)
        return launcher("ssd_ring", "Ring")(*entries, call.ints(call.rng.integers(0, capacity, s)), call.ints(np.zeros(s)))

    def flush(self, ring: Any) -> None:
        launcher("ssd_flush")(self.S, ring, self.given["A"], self.b, slots=self.slots)

    def cache(self, t: int) -> Any:
        (h, p, n, g), call, s = self.sizes, self.call, len(self.S)
        kept = (call.blank(s, 2 * t, *size, form=self.io) for size in ((h, p), (h,), (g, n)))
        return launcher("ssd_replay_scan", "Cache")(*kept, call.ints(call.rng.integers(0, 2, s)))
