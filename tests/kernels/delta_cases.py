"""Cases of the gated delta rule for the kernels that are not subjects of the laws: rings and packed prompts."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ssmspec_ref import error_bounds as eb
from ssmspec_ref.delta import DeltaWindow
from ssmspec_ref.error_bounds.arithmetic import Approx
from ssmspec_ref.shapes import Array
from tests.kernels.delta_plot import Options, formed
from tests.kernels.tensors import DTYPES, doubles


@dataclass
class Case:
    """The tensors of one call. Row b reaches its state through slots[b]; the last row of `slots` may be padding."""

    options: Options
    S: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor
    slots: Tensor
    out: Tensor
    extra: dict[str, Any] = field(default_factory=dict)

    def call(self, kernel: Any, **changes: Any) -> Tensor:
        o = self.options
        named = {"slots": self.slots, "l2_norm": o.l2_norm, "scale": o.scale, **self.extra, **changes}
        return kernel(**{**self.tensors, **named})

    @property
    def tensors(self) -> dict[str, Tensor]:
        """What a launch reads and writes, but for parameters and indices."""
        return {name: getattr(self, name) for name in ("S", "q", "k", "v", "g", "beta", "out")}

    def whole(self) -> dict[str, Tensor]:
        """All that lies around and between the tensors too, as it is now."""
        return {name: whole(x).clone() for name, x in self.tensors.items()}

    def check_untouched(self, before: dict[str, Tensor]) -> None:
        """Assert that all is as it was."""
        for name, x in self.whole().items():
            assert untouched(before[name], x), f"{name} was written where it must not be"

    @property
    def named(self) -> Array:
        """The slots of the rows that are not padding."""
        return self.slots.numpy()[self.rows]

    @property
    def rows(self) -> Array:
        """The rows that are not padding."""
        return np.flatnonzero(self.slots.numpy() >= 0)

    def state(self) -> Array:
        """S of the live rows, as the oracle takes it."""
        return doubles(self.S)[self.named]

    def window(self) -> tuple[DeltaWindow, dict[str, Array]]:
        """The oracle's window of the live rows, and what its gates are wrong by when the kernel forms them."""
        g, beta = (doubles(x)[self.rows] for x in (self.g, self.beta))
        q, k, v = (doubles(x)[self.rows] for x in (self.q, self.k, self.v))
        inexact: dict[str, Array] = {}
        if "A" in self.extra:
            bias = self.extra.get("dt_bias")
            A, bias = doubles(self.extra["A"]), None if bias is None else doubles(bias)
            pair = formed(self.options, np.nan_to_num(g), np.nan_to_num(beta), A, bias)
            g, beta = pair[0].value, pair[1].value
            inexact = {"g": pair[0].error, "beta": pair[1].error}
        live = self.live()
        if live is not None:  # what lies in a dead token is poison, which the oracle refuses
            dead = ~live
            for x in (q, k, v, g, beta, *inexact.values()):
                x[dead] = 0.0
        return DeltaWindow(q, k, v, g, beta), inexact

    def live(self) -> Array | None:
        live = self.extra.get("live")
        return None if live is None else live.numpy()[self.rows]

    def bound(self, **changes: Any) -> tuple[Approx, Approx]:
        """Outputs and state of the live rows with their bounds; call it before the kernel, which changes S."""
        window, inexact = self.window()
        o = self.options
        return eb.delta.scan(self.state(), window, o.params(), o.contract(**changes), live=self.live(), inexact=inexact)


def strided(x: Array, dtype: torch.dtype, fill: float) -> Tensor:
    """The values in a tensor with gaps on every axis but the last, poison in the gaps; index -1 is a gap too."""
    room = torch.full([2 * n + 3 for n in x.shape[:-1]] + [x.shape[-1] + 5], fill, dtype=dtype)
    view = room[tuple(slice(3, None, 2) for _ in x.shape[:-1])][..., 2 : 2 + x.shape[-1]]
    view.copy_(torch.from_numpy(np.ascontiguousarray(x)))
    return view


def draw(o: Options, padding: bool = True) -> Case:
    """A case with slots out of order, one row of padding among them, and poison wherever nothing must be read or written."""
    rng = np.random.default_rng(o.seed)
    state, io = DTYPES[o.state], DTYPES[o.io]
    q, k = rng.normal(size=(2, o.b, o.t, o.g, o.k))
    k = k if o.l2_norm else k / np.linalg.norm(k, axis=-1, keepdims=True)
    v = rng.normal(size=(o.b, o.t, o.h, o.v))
    gate = (o.b, o.t, o.h, o.k) if o.channel else (o.b, o.t, o.h)
    weakest, strongest = (0.001, 0.02) if o.gentle else (200.0, 900.0) if o.strong else (0.05, 1.5)
    strength = rng.uniform(weakest, strongest, gate)
    beta = rng.uniform(0.1, 1.0, (o.b, o.t, o.h))
    S = np.full((o.b + o.spare, o.h, o.k, o.v), o.poison)
    drawn = rng.permutation(o.b + o.spare)[: o.b]
    if not np.any(drawn == 0):
        drawn[0] = 0
    slots = torch.from_numpy(drawn).to(torch.int32 if o.seed % 2 else torch.int64)
    if padding and o.b > 1:
        slots[o.b - 1] = -1
    S[slots[slots >= 0].numpy()] = rng.normal(size=(o.b + o.spare, o.h, o.k, o.v))[: int((slots >= 0).sum())] * (
        30.0 if o.gentle else 1.0
    )
    extra: dict[str, Any] = {}
    if o.live:
        live = rng.random((o.b, o.t)) < 0.6
        extra["live"] = torch.from_numpy(live)
        for x in (q, k, v, beta, strength):
            x[~live] = np.nan
    if o.raw:
        extra["A"] = torch.from_numpy(-rng.uniform(0.1, 2.0, o.h)).float()
        shape = gate[2:]
        extra["dt_bias"] = torch.from_numpy(rng.normal(size=shape)).float() if o.bias else None
        extra |= {"lower_bound": o.lower} if o.lower is not None else {}
        strength, beta = -rng.normal(size=gate) * 3 + 0 * strength, rng.normal(size=beta.shape) + 0 * beta
    return Case(
        o,
        strided(S, state, o.poison),
        strided(q, io, o.poison),
        strided(k, io, o.poison),
        strided(v, io, o.poison),
        strided(-strength, torch.float32, o.poison),
        strided(beta, io if o.raw else torch.float32, o.poison),
        slots,
        strided(np.full(v.shape, o.poison), io, o.poison),
        extra,
    )


def steepen(case: Case, bias: float, *gates: Tensor) -> None:
    """Raw gates, those of the case or `gates`, by which a token that is real decays weakly, and one that is not, if its 0
    were taken for a projection, by 16 `bias`: the difference of two sums is then beyond the range of exp."""
    case.extra["A"].fill_(-16.0)
    case.extra["dt_bias"].fill_(bias)
    for g in gates or (case.g,):
        g.div_(3.0).sub_(bias + 4.0)


def assert_within(what: str, actual: Tensor, pair: Approx, rows: Array | None = None) -> float:
    """The utilisation of the bound, after the assertion that it holds."""
    found = doubles(actual) if rows is None else doubles(actual)[rows]
    comparison = eb.compare(found, pair.value, pair.error)
    assert comparison.passed, f"{what}: {comparison}"
    return comparison.utilisation


def untouched(before: Tensor, after: Tensor) -> bool:
    """Bit for bit the same, NaN included."""
    return bool(torch.equal(before.contiguous().view(torch.uint8), after.contiguous().view(torch.uint8)))


def whole(x: Tensor) -> Tensor:
    """All the storage of a view: the gaps between its elements too."""
    return x.as_strided((x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)
