"""Cases of the selective scan for its kernels: a pool with strangers, padding, no-ops, gentle decay and a large state."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ssmspec_ref.records import each
from ssmspec_ref.selective import SelectiveParams, SelectiveWindow
from ssmspec_ref.shapes import Array
from tests.kernels.tensors import blank, draw, integers, strided

LOOSE = 3  # slots of the pool that no row names


@dataclass(frozen=True)
class Options:
    """One case: sizes, storage types, what is on."""

    b: int = 4
    t: int = 3
    d: int = 11
    n: int = 5
    state: str = "fp32"
    io: str = "fp32"
    D: bool = True
    z: bool = True
    bias: bool = True
    softplus: bool = True
    live: bool = False
    write: bool = True
    padding: bool = True
    gentle: bool = False
    """Weak decay and a large state: what a wrong state does then lasts."""
    whole: bool = False
    """Integers, A = 0, no softplus and no gate: every operation is exact."""
    index: torch.dtype = torch.int32
    seed: int = 0

    def __str__(self) -> str:
        on = [name for name in ("D", "z", "bias", "softplus", "live", "write", "padding", "gentle") if getattr(self, name)]
        return f"b{self.b}-t{self.t}-d{self.d}-n{self.n}-{self.state}-{self.io}-{'-'.join(on)}"


@dataclass
class Case:
    """The tensors of one call, and what the oracle takes: row i of the oracle is row rows[i] of the batch."""

    options: Options
    tensors: dict[str, Any]
    params: SelectiveParams
    S0: Array
    window: SelectiveWindow
    rows: Array
    live: Array
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def named(self) -> Tensor:
        """The slots of the live rows."""
        return self.tensors["slots"][torch.from_numpy(self.rows)].long()

    @property
    def outputs(self) -> Array:
        return self.tensors["out"].double().numpy()[self.rows]


def case(o: Options) -> Case:
    """A pool whose slot 0 is the last row's, row 1 padding, rows out of order, NaN wherever nothing may be read."""
    rng = np.random.default_rng(o.seed)
    params, S, window = _values(rng, o)
    slots = 1 + rng.permutation(o.b + LOOSE - 1)[: o.b]
    slots[-1] = 0
    rows = np.array([i for i in range(o.b) if not (o.padding and i == 1 and o.b > 2)])
    live = np.ones((o.b, o.t), dtype=bool)
    if o.live:
        live = rng.random((o.b, o.t)) < 0.6
        live[0], live[-1] = False, np.arange(o.t) == o.t // 2
    dead = ~live | ~np.isin(np.arange(o.b), rows)[:, None]
    pool = np.full((o.b + LOOSE, o.d, o.n), np.nan)
    pool[slots[rows]] = S[rows]
    poisoned = each(lambda a: np.where(dead[:, :, None], np.nan, a), window)
    gaps = {"x": 3, "dt": 4, "B": 2, "C": 6, "z": 7}
    tensors = {name: strided(getattr(poisoned, name), o.io, gap) for name, gap in gaps.items() if name != "z" or o.z}
    tensors["S"] = strided(pool, o.state)
    tensors["A"] = strided(params.A, "fp32", gap=2)
    for name in ("D", "dt_bias"):
        value = getattr(params, name)
        if value is not None:
            tensors[name] = torch.from_numpy(value).float()
    tensors["slots"] = torch.from_numpy(np.where(np.isin(np.arange(o.b), rows), slots, -1)).to(o.index)
    tensors["out"] = blank(o.io, o.b, o.t, o.d)
    if o.live:
        tensors["live"] = torch.from_numpy(live)
    kept = each(lambda a: a[rows], window)
    return Case(o, tensors, params, S[rows], kept, rows, live[rows], {"dt_softplus": params.dt_softplus})


def _values(rng: np.random.Generator, o: Options) -> tuple[SelectiveParams, Array, SelectiveWindow]:
    """Parameters, states and a window that the storage types hold exactly."""
    if o.whole:
        params = SelectiveParams(np.zeros((o.d, o.n)), integers(rng, o.d) if o.D else None, None, False)
        x, B, C = (integers(rng, o.b, o.t, size) for size in (o.d, o.n, o.n))
        return params, integers(rng, o.b, o.d, o.n), SelectiveWindow(x, integers(rng, o.b, o.t, o.d), B, C, None)
    slow, large = (0.02, 30.0) if o.gentle else (1.0, 1.0)
    A = -np.abs(draw(rng, o.d, o.n, scale=slow))
    bias = draw(rng, o.d) if o.bias else None
    params = SelectiveParams(A, draw(rng, o.d) if o.D else None, bias, o.softplus)
    x, dt, z = (draw(rng, o.b, o.t, o.d, forms=("bf16", o.io)) for _ in range(3))
    dt = dt if o.softplus else np.abs(dt) + (0 if bias is None else 4.0)
    dt = torch.from_numpy(dt).bfloat16().double().numpy()
    B, C = (draw(rng, o.b, o.t, o.n, forms=("bf16", o.io)) for _ in range(2))
    S = draw(rng, o.b, o.d, o.n, forms=("bf16", o.state), scale=large)
    return params, S, SelectiveWindow(x, dt, B, C, z if o.z else None)
