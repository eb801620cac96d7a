"""Cases of SSD for its kernels: tensors on purpose awkward, the oracle's records, bounds, poison."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ssmspec_ref import error_bounds as eb
from ssmspec_ref import exact_probes, tree
from ssmspec_ref.contract import NumericContract
from ssmspec_ref.error_bounds.arithmetic import Approx
from ssmspec_ref.shapes import Array
from ssmspec_ref.ssd import SSDParams, SSDWindow
from tests.kernels.delta_cases import DTYPES, assert_within, doubles, strided, untouched, whole

__all__ = ["DTYPES", "assert_within", "doubles", "strided", "untouched", "whole"]

TOKENS = ("x", "dt", "B", "C")


@dataclass(frozen=True)
class Options:
    """One case: sizes, storage types, what is on."""

    b: int = 3
    t: int = 3
    h: int = 4
    g: int = 2
    p: int = 18
    n: int = 21
    state: str = "fp32"
    io: str = "fp32"
    D: str = "head"
    z: bool = False
    bias: bool = True
    softplus: bool = True
    limit: tuple[float, float] = (0.0, float("inf"))
    live: bool = False
    gentle: bool = False
    """Weak decay and a large state: what a wrong state does then lasts."""
    seed: int = 0
    spare: int = 3
    """Slots of the pool that no row names."""
    poison: float = float("nan")
    """What lies in gaps, in outputs and in other slots: NaN shows what is read, a number shows what is written."""

    def contract(self, **changes: Any) -> NumericContract:
        """What the kernels declare; NumPy, which stands in for the hardware, has an exp of 3 ulp."""
        return NumericContract(**{"state": self.state, "io": self.io, "function_ulp": 3.0, "exp": "ex2", **changes})


@dataclass
class Case:
    """The tensors of one call. Row b reaches its state through slots[b]; the last row of `slots` may be padding."""

    options: Options
    S: Tensor
    x: Tensor
    dt: Tensor
    A: Tensor
    B: Tensor
    C: Tensor
    slots: Tensor
    out: Tensor
    extra: dict[str, Any] = field(default_factory=dict)

    def call(self, kernel: Any, **changes: Any) -> Tensor:
        o = self.options
        named = {"slots": self.slots, "out": self.out, "dt_softplus": o.softplus, "dt_limit": o.limit, **self.extra}
        named |= {name: getattr(self, name) for name in ("S", "A", *TOKENS)}
        return kernel(**{**named, **changes})

    @property
    def rows(self) -> Array:
        """The rows that are not padding."""
        return np.flatnonzero(self.slots.numpy() >= 0)

    @property
    def named(self) -> Array:
        """Their slots."""
        return self.slots.numpy()[self.rows]

    def state(self) -> Array:
        """S of the live rows, as the oracle takes it."""
        return doubles(self.S)[self.named]

    def params(self) -> SSDParams:
        o, more = self.options, {name: doubles(self.extra[name]) for name in ("D", "dt_bias") if name in self.extra}
        return SSDParams(doubles(self.A), dt_softplus=o.softplus, dt_limit=o.limit, **more)

    def window(self, live: Array | None = None) -> SSDWindow:
        """The oracle's window of the live rows; what lies in a dead token is poison, which the oracle refuses."""
        live = self.live() if live is None else live
        tensors = {name: getattr(self, name) for name in TOKENS} | {"z": self.extra.get("z")}
        arrays = {name: doubles(x)[self.rows] for name, x in tensors.items() if x is not None}
        if live is not None:
            for x in arrays.values():
                x[~live] = 0.0
        return SSDWindow(**arrays)

    def live(self) -> Array | None:
        live = self.extra.get("live")
        return None if live is None else live.numpy()[self.rows]

    def bound(self, **changes: Any) -> tuple[Approx, Approx]:
        """Outputs and state of the live rows with their bounds; call it before the kernel, which changes S."""
        contract = self.options.contract(**changes)
        return eb.ssd.scan(self.state(), self.window(), self.params(), contract, live=self.live())

    def before(self, **more: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Every tensor of the call, and its storage as it is now."""
        tensors = {name: getattr(self, name) for name in ("S", *TOKENS, "A", "out")} | more
        tensors |= {name: x for name, x in self.extra.items() if isinstance(x, Tensor)}
        return {name: (x, whole(x).clone()) for name, x in tensors.items()}


def draw(o: Options, padding: bool = True) -> Case:
    """A case with slots out of order, one row of padding among them, and poison wherever nothing must be read or written."""
    rng = np.random.default_rng(o.seed)
    state, io = DTYPES[o.state], DTYPES[o.io]
    x = rng.normal(size=(o.b, o.t, o.h, o.p))
    dt = rng.normal(size=(o.b, o.t, o.h)) if o.softplus else rng.uniform(0.02, 1.0, (o.b, o.t, o.h))
    B, C = rng.normal(size=(2, o.b, o.t, o.g, o.n))
    A = -rng.uniform(0.001, 0.02, o.h) if o.gentle else -rng.uniform(0.1, 2.0, o.h)
    tokens = [x, dt, B, C]
    extra: dict[str, Any] = {}
    if o.z:
        tokens.append(rng.normal(size=x.shape))
    if o.live:
        live = rng.random((o.b, o.t)) < 0.6
        extra["live"] = torch.from_numpy(live)
        for a in tokens:
            a[~live] = np.nan
    x, dt, B, C = tokens[:4]
    if o.z:
        extra["z"] = strided(tokens[4], io, o.poison)
    if o.D:
        D = torch.from_numpy(rng.normal(size=(o.h,) if o.D == "head" else (o.h, o.p)))
        extra["D"] = D.float() if o.seed % 2 else D.bfloat16()
    if o.bias:
        extra["dt_bias"] = torch.from_numpy(rng.normal(size=o.h) - 1.0).float()
    S = np.full((o.b + o.spare, o.h, o.p, o.n), o.poison)
    slots = rng.permutation(o.b + o.spare)[: o.b]
    if not np.any(slots == 0):
        slots[0] = 0
    if padding and o.b > 1:
        slots[o.b - 1] = -1
        slots[0] = 0 if not np.any(slots == 0) else slots[0]
    kept = slots[slots >= 0]
    S[kept] = rng.normal(size=(len(kept), o.h, o.p, o.n)) * (30.0 if o.gentle else 1.0)
    return Case(
        o,
        strided(S, state, o.poison),
        strided(x, io, o.poison),
        strided(dt, io, o.poison),
        torch.from_numpy(A).float(),
        strided(B, io, o.poison),
        strided(C, io, o.poison),
        torch.from_numpy(slots).to(torch.int32 if o.seed % 2 else torch.int64),
        strided(np.full(x.shape, o.poison), io, o.poison),
        extra,
    )


def exact(o: Options, form: exact_probes.Form = "fp32") -> tuple[Case, SSDWindow, SSDParams, Array]:
    """A case on which every operation is exact, in any order, with its records; judged with ==."""
    S, window, params = exact_probes.ssd_probe(
        np.random.default_rng(o.seed), b=o.b, t=o.t, h=o.h, g=o.g, p=o.p, n=o.n, z=True, form=form
    )
    io, state = DTYPES[o.io], DTYPES[o.state]
    case = draw(o, padding=False)
    case.A = torch.from_numpy(params.A).float()
    case.extra = {"D": torch.from_numpy(params.D).float(), "dt_bias": torch.from_numpy(params.dt_bias).float()}
    case.S[case.slots.long()] = torch.from_numpy(S).to(state)
    case.extra["z"] = torch.from_numpy(window.z).to(io)
    for name in TOKENS:
        getattr(case, name).copy_(torch.from_numpy(getattr(window, name)))
    return case, window, params, S


def unchanged(before: dict[str, tuple[Tensor, Tensor]]) -> None:
    """Assert that every tensor holds the bits it held, gaps included."""
    for name, (x, old) in before.items():
        assert untouched(old, whole(x)), f"{name} was written where it must not be"


def forest(o: Options) -> Array:
    """Ancestors in a random forest for each row: some have two roots, rows have unequal sizes, the rest is padding."""
    rng = np.random.default_rng(o.seed + 7)
    parents = np.full((o.b, o.t), tree.PADDING)
    for b in range(o.b):
        size = o.t if b == 0 else int(rng.integers(1, o.t + 1))
        parents[b, 0] = -1
        for i in range(1, size):
            parents[b, i] = rng.integers(max(0, i - 4), i)
    mask = tree.ancestors(parents)
    if o.t > 2:
        below = mask[0, :, 2].copy()
        mask[0, below] &= ~mask[0, parents[0, 2]]  # node 2 becomes a root
    return mask
