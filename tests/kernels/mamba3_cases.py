"""Cases of Mamba-3 for its kernels: a pool with strangers, padding, no-ops, NaN where nothing may be read."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ssmspec_ref.mamba3 import Mamba3Params, Mamba3Window, width
from ssmspec_ref.records import rows as of_rows
from ssmspec_ref.shapes import Array
from tests.kernels.tensors import blank, draw, strided

LOOSE = 2  # slots of the pool that no row names
GAPS = {"x": 3, "dt": 2, "A": 4, "trap": 5, "angle": 2, "B": 7, "C": 1, "z": 6}
WEIGHTS = ("B_norm", "C_norm", "B_bias", "C_bias", "dt_bias", "D", "up", "gate", "down")


@dataclass(frozen=True)
class Options:
    """One case: sizes, storage types, what is on."""

    b: int = 3
    t: int = 4
    g: int = 1
    h: int = 2
    p: int = 3
    n: int = 6
    f: int = 2
    r: int = 1
    state: str = "fp32"
    io: str = "fp32"
    halves: bool = False
    maps: bool = False
    z: bool = False
    D: bool = True
    live: bool = False
    write: bool = True
    padding: bool = True
    places: int = 0
    """Slots for states after tokens."""
    index: torch.dtype = torch.int32
    seed: int = 0

    def __str__(self) -> str:
        on = [name for name in ("halves", "maps", "z", "D", "live", "write", "padding") if getattr(self, name)]
        sizes = "-".join(f"{a}{getattr(self, a)}" for a in "btghpnfr")
        return f"{sizes}-{self.state}-{self.io}-{'-'.join(on)}"


@dataclass
class Case:
    """The tensors of one call, and what the oracle takes: row i of the oracle is row rows[i] of the batch."""

    options: Options
    tensors: dict[str, Any]
    params: Mamba3Params
    S0: Array
    window: Mamba3Window
    rows: Array
    live: Array
    places: Array

    @property
    def named(self) -> Tensor:
        """The slots of the live rows."""
        return self.tensors["slots"][torch.from_numpy(self.rows)].long()

    @property
    def outputs(self) -> Array:
        return self.tensors["out"].double().numpy()[self.rows]

    def without(self, *names: str) -> dict[str, Any]:
        return {name: x for name, x in self.tensors.items() if name not in names}


def parameters(rng: np.random.Generator, o: Options) -> Mamba3Params:
    """About half of all tokens reach the floor."""
    up, gate, down = (draw(rng, o.h, o.r, o.p, forms=(o.io,)) if o.maps else None for _ in range(3))
    parts: list[Any] = [draw(rng, *shape, forms=(o.io,)) for shape in ((o.n,), (o.n,), (o.h, o.r, o.n), (o.h, o.r, o.n))]
    parts += [draw(rng, o.h, forms=(o.io,)), draw(rng, o.h, forms=(o.io,)) if o.D else None, up, gate, down]
    parts += [0.625, 2.0**-12, "halves" if o.halves else "neighbours"]
    return Mamba3Params(*parts)


def state(rng: np.random.Generator, o: Options, count: int) -> Array:
    """States whose angles lie within a turn."""
    S = draw(rng, count, o.h, width(o.p, o.n, o.f, o.r), forms=(o.state, o.io))
    turned = slice(o.p * o.n, o.p * o.n + o.f)
    S[..., turned] = torch.from_numpy(rng.uniform(0, 6.2, (count, o.h, o.f))).to(torch.bfloat16).double().numpy()
    return S


def window(rng: np.random.Generator, o: Options) -> Mamba3Window:
    lead = {"x": (o.h, o.p), "dt": (o.h,), "A": (o.h,), "trap": (o.h,), "angle": (o.f,)}
    lead |= {"B": (o.r, o.g, o.n), "C": (o.r, o.g, o.n), "z": (o.h, o.p)}
    made = {name: draw(rng, o.b, o.t, *shape, forms=(o.io,)) for name, shape in lead.items()}
    return Mamba3Window(**made if o.z else {**made, "z": None})


def given(params: Mamba3Params, io: str, **more: Any) -> dict[str, Any]:
    """The parameters as a launcher takes them."""
    types = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    arrays = {name: getattr(params, name) for name in WEIGHTS}
    found = {name: torch.from_numpy(a).to(types[io]) for name, a in arrays.items() if a is not None}
    return {**found, "A_floor": params.A_floor, "eps": params.eps, "halves": params.pairs == "halves", **more}


def case(o: Options) -> Case:
    """A pool whose slot 0 is the last row's, row 1 padding, rows out of order."""
    rng = np.random.default_rng(o.seed)
    params, count = parameters(rng, o), o.b + LOOSE
    S, slots = state(rng, o, count), 1 + rng.permutation(count - 1)[: o.b]
    slots[-1] = 0
    rows = np.array([i for i in range(o.b) if not (o.padding and i == 1 and o.b > 2)])
    tokens, live = window(rng, o), np.ones((o.b, o.t), dtype=bool)
    if o.live:
        live = rng.random((o.b, o.t)) < 0.6
        live[0], live[-1] = False, np.arange(o.t) == o.t // 2
    dead = ~live | ~np.isin(np.arange(o.b), rows)[:, None]
    pool = np.full((count + o.places, *S.shape[1:]), np.nan)
    pool[slots[rows]] = S[slots[rows]]
    tensors: dict[str, Any] = {}
    for name, gap in GAPS.items():
        if (values := getattr(tokens, name)) is not None:
            at = dead.reshape(dead.shape + (1,) * (values.ndim - 2))
            tensors[name] = strided(np.where(at, np.nan, values), o.io, gap if values.ndim > 3 or name == "angle" else 0)
    tensors |= {"S": strided(pool, o.state), **given(params, o.io)}
    tensors["slots"] = torch.from_numpy(np.where(np.isin(np.arange(o.b), rows), slots, -1)).to(o.index)
    tensors["out"] = blank(o.io, o.b, o.t, o.h, o.p)
    if o.live:
        tensors["live"] = torch.from_numpy(live)
    places = count + rng.permutation(o.places)[: o.b * o.t].reshape(o.b, -1) if o.places else np.zeros((0, 0), int)
    return Case(o, tensors, params, S[slots[rows]], of_rows(tokens, rows), rows, live[rows], places)
