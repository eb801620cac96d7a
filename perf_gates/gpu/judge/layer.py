"""A recurrence at the shape of a model: states, parameters, tokens and rings drawn from the rows of its launchers, and the
sampled rows and heads as arguments for the oracle.

A tensor is drawn, cut and compared by the letters of its row: `h`, or another axis that a family names, is sampled; `g` is
cut to the group of each sampled head, so that the oracle sees groups of one head.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from perf_gates.static.rows import FP32, Entry, bound_of, row_of, taken
from ssmspec_ref import error_bounds as eb
from ssmspec_ref.contract import NumericContract, Order, Storage
from ssmspec_ref.error_bounds.arithmetic import Approx
from ssmspec_ref.records import concat, each
from ssmspec_ref.shapes import Array

from .call import Call, declared, finite, launcher, within

GAP = 8
"""Elements before the tokens of a projection, which other tensors of the layer have."""


class Tokens(NamedTuple):
    """A window as the oracle takes it, and the errors of its fields."""

    window: Any
    errors: dict[str, Array]

    def map(self, function: Callable[[Array], Array]) -> "Tokens":
        return Tokens(each(function, self.window), {name: function(error) for name, error in self.errors.items()})

    def row(self, i: int) -> "Tokens":
        return self.map(lambda a: a[i : i + 1])

    def prefix(self, length: int) -> "Tokens":
        return self.map(lambda a: a[:, :length])

    def along(self, path: Array) -> "Tokens":
        """The tokens of a path (b, j)."""
        return self.map(lambda a: np.take_along_axis(a, path.reshape(path.shape + (1,) * (a.ndim - 2)), 1))

    def before(self, later: "Tokens") -> "Tokens":
        """Followed by other tokens."""
        errors = {name: np.concatenate([error, later.errors[name]], axis=1) for name, error in self.errors.items()}
        return Tokens(concat(self.window, later.window), errors)


def plain(layer: "Layer", tokens: dict[str, Array]) -> Tokens:
    """Tokens as they are given; padding is 0."""
    return Tokens(layer.of.window(**{name: np.nan_to_num(a) for name, a in tokens.items()}), {})


@dataclass(frozen=True)
class Family:
    """What rows do not say of a recurrence: the records of the oracle, which axis is sampled, formats and orders.

    `letters` are those of its sizes, and `derived` gives those that follow from them. `beside` are the tokens that one
    projection writes. `exact`: a state only moves numbers, so that its bits are compared. `by` is the sampled axis, with at
    most this many places. `reading`, `committing`: the order in which a ring is read, and a commit computes.
    """

    name: str
    letters: str
    window: Callable[..., Any]
    params: Callable[..., Any]
    beside: tuple[str, ...]
    derived: Callable[[dict[str, int]], dict[str, int]] = lambda axes: {}
    options: Callable[[dict[str, int]], dict[str, Any]] = lambda axes: {}
    without: Callable[[dict[str, int]], str] = lambda axes: ""
    record: Callable[["Layer", dict[str, Array]], Tokens] = plain
    row: str = ""
    form: int = 0
    state: str = "S"
    by: tuple[str, int] = ("h", 0)
    stored: Storage = "fp32"
    weights: Storage = "fp32"
    exact: bool = False
    wide: bool = True
    reading: Order = "output_only"
    committing: Order = "output_only"

    @property
    def scan(self) -> str:
        """The launcher whose row names its tensors."""
        return self.row or f"{self.name}_scan"


@dataclass
class Layer:
    """Parameters, states and slots that several windows share, and the sampled rows and heads.

    `extra` slots are for snapshots; `io` is the type of activations, `u` that of what a ring solves for.
    """

    call: Call
    of: Family
    sizes: tuple[int, ...]
    b: int
    extra: int = 0
    io: Storage = "bf16"
    u: Storage = "fp32"
    weights: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        call, of = self.call, self.of
        self.axes = dict(zip(of.letters.split(), self.sizes, strict=True))
        self.axes |= of.derived(self.axes)
        self.options, self.without = of.options(self.axes), of.without(self.axes).split()
        self.live = self.b - 1 if self.b > 1 else 1
        axis, most = of.by
        self.rows = call.rows(self.b)
        self.heads = call.sample(self.axes[axis], most) if most else call.heads(self.axes[axis])
        self.slots = call.slots(self.b)
        self.own = self.slots[: self.live].long()
        self.at = self.slots[torch.as_tensor(self.rows, device=self.slots.device)].long().cpu().numpy()
        row = [entry for entry in row_of(launcher(of.scan)) if entry.name not in self.without]
        self.given = {entry.name: entry for entry in row}
        self.S = call.pool(self.slots, *self.shape(self.given[of.state])[1:], form=of.stored, extra=self.extra)
        for name, entry in self.given.items():
            if not entry.argument.size and {*self.letters(entry)} <= self.axes.keys():
                self.weights[name] = self.weight(entry)
        self.params = of.params(**{name: self.cut(name, x) for name, x in self.weights.items()})

    # --- drawn by the rows ---

    def letters(self, entry: Entry) -> list[str]:
        forms = entry.argument.forms
        return forms[self.of.form if len(forms) > 1 else 0]

    def shape(self, entry: Entry, **more: int) -> list[int]:
        axes = self.axes | {"s": 0, "b": self.b} | more
        return [axes[letter] for letter in self.letters(entry)]

    def weight(self, entry: Entry) -> Tensor:
        shape = self.shape(entry)
        if entry.name == "A":
            return -self.call.uniform(0.05, 1.0, *shape)
        form: Storage = "fp32" if entry.argument.types == FP32 else self.of.weights
        return self.call.normal(*shape, form=form, mean=-1.0 if entry.name == "dt_bias" else 0.0)

    def tokens(self, t: int, b: int | None = None) -> dict[str, Tensor]:
        """A window as its projections write it."""
        made: dict[str, Tensor] = {}
        for names in self.of.beside:
            shapes = {name: self.shape(self.given[name], t=t)[2:] for name in names.split() if name in self.given}
            parts = self.call.beside(b or self.b, t, (GAP,), *map(tuple, shapes.values()), form=self.io)
            made |= dict(zip(shapes, parts[1:], strict=True))
        return made

    def record(self, kernel: str, parameter: str, l: int, **cursors: Array) -> Any:
        """An empty ring or cache of a launcher: NaN in every entry."""
        s, fields = len(self.S), [entry for entry in row_of(launcher(kernel)) if entry.parameter == parameter]
        made = []
        for entry in fields:
            name = entry.name.rpartition(".")[2]
            form: Storage = "fp32" if entry.argument.types == FP32 else self.u if entry.argument.size == "u" else self.io
            shape = self.shape(entry, s=s, l=l)
            made.append(self.call.ints(cursors[name]) if name in cursors else self.call.blank(*shape, form=form))
        kind: Any = fields[0].record
        return kind(*made)

    # --- launched ---

    @property
    def form(self) -> Storage:
        """Outputs of a batch are stored in fp32, which shows errors that bf16 would hide."""
        return "fp32" if self.of.wide and self.b > 1 else "bf16"

    def run(
        self,
        kernel: str,
        tokens: dict[str, Tensor],
        owned: Mapping[str, Any],
        live: int | None = None,
        **more: Any,
    ) -> dict[str, Any]:
        """A launch: its tensors, and what it returns. Nothing is written but the outputs of live rows, and what it owns."""
        run, live = launcher(kernel), self.live if live is None else live
        named = taken(run, {self.of.state: self.S, "slots": self.slots}, tokens, self.weights, self.options, **more)
        row = {entry.name: entry for entry in row_of(run)}
        t = next(iter(tokens.values())).shape[1 if self.letters(row["out"])[0] == "b" else 0]
        out = self.call.blank(*self.shape(row["out"], t=t), form=self.form)
        named, owned = named | {"out": out}, {"out": slice(0, live), **owned}
        found = {name: x for name, entry in row.items() if (x := entry.of(named)) is not None}
        mine = (self.of.state, *owned)
        with self.call.keeping(owned, **{n: x for n, x in found.items() if n in mine or not row[n].argument.written}):
            returned = run(**named)
        finite("y", out, live)
        return found | {"returned": returned}

    # --- judged ---

    def cut(self, name: str, x: Tensor, rows: Array | None = None) -> Array:
        """Of a tensor the sampled rows, or slots, and heads."""
        entry, groups = self.given[name], self.axes.get("g", 1)
        group = self.heads // (self.axes[self.of.by[0]] // groups)
        index = {"b": self.rows if rows is None else rows, "s": self.at if rows is None else rows, "g": group}
        index[self.of.by[0]] = self.heads
        for axis, letter in enumerate(self.letters(entry)):
            if letter in index:
                x = x.index_select(axis, torch.as_tensor(index[letter], device=x.device))
        return x.double().cpu().numpy()

    def state(self, slots: Array | None = None, S: Tensor | None = None) -> Array:
        """The states of the sampled rows, or of these slots, at the sampled heads."""
        return self.cut(self.of.state, self.S if S is None else S, slots)

    def outputs(self, out: Tensor, rows: Array | None = None) -> Array:
        return self.cut("out", out, rows)

    def window(self, tokens: dict[str, Tensor], rows: Array | None = None) -> Tokens:
        return self.of.record(self, {name: self.cut(name, x, rows) for name, x in tokens.items()})

    def contract(self, **changes: Any) -> NumericContract:
        ring = {"ring": self.u} if self.u != "fp32" else {}
        return declared(**{"io": self.form, "state": self.of.stored, **ring, **changes})

    def bound(self, kernel: str, S: Any, tokens: Tokens, *more: Array, **changes: Any) -> Any:
        """What a launcher's oracle returns, with its bounds, from a state or a pair of one."""
        pair = S if isinstance(S, Approx) else eb.exact(S, self.contract())
        inexact = {**tokens.errors, **({self.of.state: pair.error} if pair.error.any() else {})}
        return bound_of(kernel)(pair.value, tokens.window, *more, self.params, self.contract(**changes), inexact=inexact)

    def left(self, found: Array, S: Approx, what: str = "S") -> float:
        """The used share of the bound of states; 0 for those whose bits are compared."""
        if not self.of.exact:
            return within(what, found, S)
        assert np.array_equal(found, S.value), f"{what} is not what the oracle keeps"
        return 0.0
