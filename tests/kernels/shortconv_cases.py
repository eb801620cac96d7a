"""Cases of the short convolution for its kernels: a pool with strangers, padding, no-ops, NaN where nothing may be read."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ssmspec_ref.records import rows as of_rows
from ssmspec_ref.shapes import Array
from ssmspec_ref.shortconv import ShortConvParams, ShortConvWindow
from tests.kernels.tensors import blank, draw, integers, strided

LOOSE = 3  # slots of the pool that no row names


@dataclass(frozen=True)
class Options:
    """One case: sizes, storage types, what is on."""

    b: int = 4
    t: int = 5
    d: int = 11
    w: int = 3
    state: str = "fp32"
    io: str = "fp32"
    bias: bool = True
    live: bool = False
    write: bool = True
    padding: bool = True
    whole: bool = False
    """Small integers: every operation is exact."""
    places: int = 0
    """Slots for states after tokens."""
    index: torch.dtype = torch.int32
    seed: int = 0

    def __str__(self) -> str:
        on = [name for name in ("bias", "live", "write", "padding", "whole") if getattr(self, name)]
        return f"b{self.b}-t{self.t}-d{self.d}-w{self.w}-{self.state}-{self.io}-{'-'.join(on)}"


@dataclass
class Case:
    """The tensors of one call, and what the oracle takes: row i of the oracle is row rows[i] of the batch."""

    options: Options
    tensors: dict[str, Any]
    params: ShortConvParams
    S0: Array
    window: ShortConvWindow
    rows: Array
    live: Array
    places: Array
    extra: dict[str, Tensor] = field(default_factory=dict)

    @property
    def named(self) -> Tensor:
        """The slots of the live rows."""
        return self.tensors["slots"][torch.from_numpy(self.rows)].long()

    @property
    def outputs(self) -> Array:
        return self.tensors["out"].double().numpy()[self.rows]

    def without(self, *names: str) -> dict[str, Any]:
        return {name: x for name, x in self.tensors.items() if name not in names}


def case(o: Options) -> Case:
    """A pool whose slot 0 is the last row's, row 1 padding, rows out of order."""
    rng = np.random.default_rng(o.seed)
    values = integers if o.whole else (lambda rng, *shape: draw(rng, *shape, forms=(o.state, o.io)))
    params = ShortConvParams(values(rng, o.d, o.w), values(rng, o.d) if o.bias else None)
    count = o.b + LOOSE
    S, slots = values(rng, count, o.d, o.w - 1), 1 + rng.permutation(count - 1)[: o.b]
    slots[-1] = 0
    rows = np.array([i for i in range(o.b) if not (o.padding and i == 1 and o.b > 2)])
    window = ShortConvWindow(*(values(rng, o.b, o.t, o.d) for _ in range(3)))
    live = np.ones((o.b, o.t), dtype=bool)
    if o.live:
        live = rng.random((o.b, o.t)) < 0.6
        live[0], live[-1] = False, np.arange(o.t) == o.t // 2
    dead = ~live | ~np.isin(np.arange(o.b), rows)[:, None]
    pool = np.full((count + o.places, o.d, o.w - 1), np.nan)
    pool[slots[rows]] = S[slots[rows]]
    gaps = {"B": 3, "C": 4, "x": 7}
    tensors: dict[str, Any] = {
        name: strided(np.where(dead[:, :, None], np.nan, getattr(window, name)), o.io, gap) for name, gap in gaps.items()
    }
    tensors |= {"S": strided(pool, o.state), "weight": strided(params.weight, o.io, gap=2)}
    if params.bias is not None:
        tensors["bias"] = torch.from_numpy(params.bias).float()
    tensors["slots"] = torch.from_numpy(np.where(np.isin(np.arange(o.b), rows), slots, -1)).to(o.index)
    tensors["out"] = blank(o.io, o.b, o.t, o.d)
    if o.live:
        tensors["live"] = torch.from_numpy(live)
    places = count + rng.permutation(o.places)[: o.b * o.t].reshape(o.b, -1) if o.places else np.zeros((0, 0), int)
    return Case(o, tensors, params, S[slots[rows]], of_rows(window, rows), rows, live[rows], places)
