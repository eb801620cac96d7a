"""Cases of both convolutions for their kernels: a pool with strangers, padding, no-ops, a previous window to replay.

The causal convolution has inputs u and a window of w columns. The short convolution has products B x as inputs, its outputs
are multiplied by C, and its state is the last w - 1 products.
"""

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ssmspec_ref import conv
from ssmspec_ref import error_bounds as eb
from ssmspec_ref.conv import ConvParams
from ssmspec_ref.error_bounds.arithmetic import Approx
from ssmspec_ref.records import each
from ssmspec_ref.shapes import Array
from ssmspec_ref.shortconv import ShortConvParams, ShortConvWindow
from tests.kernels.covers import launcher
from tests.kernels.tensors import BYTES, blank, check_within, contract, doubles, draw, integers, strided

LOOSE = 3  # slots of the pool that no row names
GAPS = {"u": 3, "B": 3, "C": 4, "x": 7}


@dataclass(frozen=True)
class Options:
    """One case: sizes, storage types, what is on. `replay` is None, "advanced" or "path"."""

    b: int = 4
    t: int = 5
    c: int = 11
    w: int = 4
    state: str = "fp32"
    io: str = "fp32"
    bias: bool = True
    activation: bool = True
    live: bool = False
    replay: str | None = None
    keep: str = "final"
    padding: bool = True
    whole: bool = False
    """Integers, no activation: every operation is exact."""
    short: bool = False
    """The short convolution."""
    places: int = 0
    """Slots for states after tokens."""
    index: torch.dtype = torch.int32
    seed: int = 0

    def __str__(self) -> str:
        on = [name for name in ("bias", "activation", "live", "padding", "short") if getattr(self, name)]
        return f"b{self.b}-t{self.t}-c{self.c}-w{self.w}-{self.state}-{self.io}-{self.replay}-{self.keep}-{'-'.join(on)}"

    @property
    def inputs(self) -> tuple[str, ...]:
        return ("B", "C", "x") if self.short else ("u",)

    @property
    def columns(self) -> int:
        """Those of the state."""
        return self.w - self.short

    @property
    def bytes(self) -> dict[str, int]:
        return {"state": BYTES[self.state], "io": BYTES[self.io]}

    @property
    def law(self) -> Any:
        """The oracle with its bounds."""
        return eb.shortconv if self.short else eb.conv


def short(**changes: Any) -> Options:
    """A case of the short convolution."""
    return Options(**{"short": True, "activation": False, "w": 3, **changes})


@dataclass
class Case:
    """The tensors of one call, and what the oracle takes: row i of the oracle is row rows[i] of the batch."""

    options: Options
    tensors: dict[str, Tensor]
    params: ConvParams | ShortConvParams
    M0: Array
    inputs: Any
    rows: Array
    live: Array
    places: Array
    taken: Array

    @property
    def state(self) -> Tensor:
        return self.tensors["S" if self.options.short else "M"]

    @property
    def named(self) -> Tensor:
        """The slots of the live rows."""
        return self.tensors["slots"][torch.from_numpy(self.rows)].long()

    @property
    def outputs(self) -> Array:
        return doubles(self.tensors["out"])[self.rows]

    def call(self, module: ModuleType, **changes: Any) -> Any:
        """The launcher of a module."""
        given = {**self.tensors, "block_d" if self.options.short else "block_c": 8, **changes}
        given |= (
            {}
            if isinstance(self.params, ShortConvParams) or "commit" in module.__name__
            else {"activation": self.params.activation}
        )
        return launcher(module)(**given)

    def unseen(self) -> None:
        """NaN in the oldest column, which no output sees."""
        self.state[:, :, 0] = float("nan")
        self.M0[:, :, 0] = 0.0

    def bound(self, tokens: int | None = None, rows: Any = slice(None)) -> tuple[Approx, Approx]:
        """Outputs and states after so many tokens of some live rows."""
        o, cut = self.options, each(lambda a: a[rows, :tokens], self.inputs)
        found: tuple[Approx, Approx] = o.law.scan(
            self.M0[rows], cut, self.params, contract(o.state, o.io), self.live[rows, :tokens]
        )
        return found

    def check_outputs(self, y: Approx) -> None:
        if self.options.whole:
            assert np.array_equal(self.outputs, y.value)
        check_within(self.outputs, y)


def window_of(o: Options, inputs: dict[str, Array]) -> Any:
    """The oracle's inputs."""
    return ShortConvWindow(**inputs) if o.short else inputs["u"]


def case(o: Options) -> Case:
    """A pool whose slot 0 is the last row's, row 1 padding, rows out of order, NaN wherever nothing may be read."""
    rng = np.random.default_rng(o.seed)
    forms = (o.state, o.io)
    values = integers if o.whole else (lambda rng, *shape: draw(rng, *shape, forms=forms))
    weight, bias = values(rng, o.c, o.w), values(rng, o.c) if o.bias else None
    count = o.b + LOOSE
    pool, slots = values(rng, count, o.c, o.columns), 1 + rng.permutation(count - 1)[: o.b]
    slots[-1] = 0
    rows = np.array([i for i in range(o.b) if not (o.padding and i == 1 and o.b > 2)])
    inputs = {name: values(rng, o.b, o.t, o.c) for name in o.inputs}
    live = np.ones((o.b, o.t), dtype=bool)
    if o.live:
        live = rng.random((o.b, o.t)) < 0.6
        live[0], live[-1] = False, np.arange(o.t) == o.t // 2
    named = np.isin(np.arange(o.b), rows)
    there, M = (live & named[:, None])[:, :, None], np.full((count + o.places, o.c, o.columns), np.nan)
    M[slots[rows]] = pool[slots[rows]]
    tensors = {name: strided(np.where(there, x, np.nan), o.io, GAPS[name]) for name, x in inputs.items()}
    tensors |= {"S" if o.short else "M": strided(M, o.state), "weight": strided(weight, o.io, gap=2)}
    tensors |= {"slots": torch.from_numpy(np.where(named, slots, -1)).to(o.index), "out": blank(o.io, o.b, o.t, o.c)}
    tensors |= {} if bias is None else {"bias": torch.from_numpy(bias).float()}
    tensors |= {"live": torch.from_numpy(live)} if o.live else {}
    places = count + rng.permutation(o.places)[: o.b * o.t].reshape(o.b, -1)
    params = ShortConvParams(weight, bias) if o.short else ConvParams(weight, bias, o.activation and not o.whole)
    seen = window_of(o, {name: x[rows] for name, x in inputs.items()})
    made = Case(o, tensors, params, pool[slots[rows]], seen, rows, live[rows], places, np.zeros(0, int))
    if o.replay:
        _replay(made, values, rng)
    return made


def _replay(made: Case, values: Any, rng: np.random.Generator) -> None:
    """A previous window of which some inputs were accepted; M0 becomes the window after them."""
    o = made.options
    tokens = o.w + 3
    previous, taken = values(rng, o.b, tokens, o.c), rng.integers(0, tokens, o.b)
    taken[0], taken[-1] = tokens, 0
    path = np.full((o.b, tokens), -1)
    for i, count in enumerate(taken):
        path[i, :count] = np.sort(rng.choice(tokens, count, replace=False)) if o.replay == "path" else np.arange(count)
    seen = (path[:, :, None] == np.arange(tokens)).any(axis=1)
    made.tensors["previous"] = strided(np.where(seen[:, :, None], previous, np.nan), o.io, gap=4)
    made.taken = taken[made.rows]
    made.M0 = conv.commit_path(made.M0, previous[made.rows], path[made.rows])
    name, accepted = ("path", path) if o.replay == "path" else ("advanced", taken)
    made.tensors[name] = torch.from_numpy(accepted).to(o.index)
