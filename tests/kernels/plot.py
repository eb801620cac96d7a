"""One call of a launcher, drawn from its row: slots out of order, a row of padding, poison wherever nothing may be read or
written. A recurrence says which values its arguments have, and what the oracle takes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ssmspec_kernels.row import FP32, Entry, row_of, sizes
from ssmspec_ref.contract import NumericContract
from ssmspec_ref.error_bounds.arithmetic import Approx
from ssmspec_ref.shapes import Array
from tests.kernels.calls import LAUNCHERS, placed, unfit
from tests.kernels.tensors import DTYPES, doubles

WIDTHS = 7
"""Of gaps: the output of a launcher has other strides than its inputs."""


@dataclass(frozen=True)
class Options:
    """What every case has; a recurrence adds its sizes, and what is on."""

    b: int = 3
    t: int = 3
    state: str = "fp32"
    io: str = "fp32"
    live: bool = False
    gentle: bool = False
    """Weak decay and a large state: what a wrong state does then lasts."""
    exact: bool = False
    """Values on which every operation is exact, in any order: judged with ==."""
    padding: bool = True
    write: bool = True
    """Whether the state is written."""
    seed: int = 0
    spare: int = 3
    """Slots of the pool that no row names."""
    poison: float = float("nan")
    """What lies in gaps, in outputs and in other slots: NaN shows what is read, a number shows what is written."""
    how: Mapping[str, Any] = field(default_factory=dict)
    """How the launcher is called: its tiles."""

    def __str__(self) -> str:
        changed = {f.name: getattr(self, f.name) for f in fields(self)}
        return " ".join(f"{name}={x}" for name, x in changed.items() if str(x) != str(getattr(type(self)(), name))) or "plain"

    @property
    def index(self) -> torch.dtype:
        return torch.int32 if self.seed % 2 else torch.int64

    def contract(self, **changes: Any) -> NumericContract:
        """What the kernels declare; NumPy, which stands in for the hardware, has an exp of 3 ulp."""
        return NumericContract(**{"state": self.state, "io": self.io, "function_ulp": 3.0, "exp": "ex2", **changes})


@dataclass(frozen=True)
class Commits(Options):
    """Of `layers`, with `drafts` rows of inputs for each sequence; a path of nodes is accepted, or a number of tokens."""

    t: int = 5
    layers: int = 2
    drafts: int = 1
    path: bool = False


@dataclass
class Call:
    """The arguments of one call. Row b reaches its state through slots[b]; `rows` are those that are no padding."""

    launcher: str
    options: Options
    given: dict[str, Any]
    rows: Array
    dead: Array
    """Tokens that hold poison, of all rows."""

    def __getitem__(self, name: str) -> Any:
        return self.given[name]

    def __setitem__(self, name: str, x: Any) -> None:
        self.given[name] = x

    @property
    def row(self) -> list[Entry]:
        """What the launcher's row says of the tensors that are given."""
        return [entry for entry in row_of(vars(LAUNCHERS[self.launcher])[self.launcher]) if entry.of(self.given) is not None]

    @property
    def tensors(self) -> dict[str, Tensor]:
        return {entry.name: entry.of(self.given) for entry in self.row}  # type: ignore[misc]

    @property
    def axes(self) -> dict[str, int]:
        return sizes(tuple(self.row), self.given)

    @property
    def named(self) -> Tensor:
        """The slots of the rows that are no padding."""
        return self.given["slots"][torch.from_numpy(self.rows)].long()

    @property
    def live(self) -> Array | None:
        return self.given["live"].numpy()[self.rows] if "live" in self.given else None

    @property
    def pool(self) -> str:
        """The name of the states, which rows reach through their slots."""
        return "M" if "M" in self.given else "S"

    def state(self) -> Array:
        """The states of the rows, as the oracle takes them."""
        return doubles(self.given[self.pool][self.named])

    def tokens(self, *names: str) -> dict[str, Array | None]:
        """What the rows are given for their tokens, as the oracle takes it: poison is 0."""
        found: dict[str, Array | None] = {}
        for name in names:
            x = self.given.get(name)
            found[name] = None if x is None else doubles(x)[self.rows]
            if x is not None:
                found[name][self.dead[self.rows]] = 0.0  # type: ignore[index]
        return found

    def weights(self, *names: str) -> dict[str, Array]:
        """Those parameters of the model that are given."""
        return {name: doubles(self.given[name]) for name in names if self.given.get(name) is not None}

    def run(self, module: ModuleType, **changes: Any) -> Any:
        return vars(module)[self.launcher](**self.given | dict(self.options.how) | changes)

    def places(self, letter: str) -> dict[str, int]:
        """The arguments that have an axis, and which of theirs it is."""
        forms = {entry.parameter: entry.argument.forms for entry in self.row if entry.record is None}
        named = {name: next(f for f in of if len(f) == self.given[name].dim()) for name, of in forms.items()}
        return {name: letters.index(letter) for name, letters in named.items() if letter in letters}

    def cut(self, part: slice, letter: str = "t") -> dict[str, Tensor]:
        """The arguments that have an axis, a part of each along it."""
        places = self.places(letter).items()
        return {name: self.given[name][(*(slice(None) for _ in range(axis)), part)] for name, axis in places}


def drawn(
    launcher: str,
    o: Options,
    values: Mapping[str, Array | Tensor | None],
    *,
    dead: Array | None = None,
    outputs: tuple[str, ...] = ("out",),
    **settings: Any,
) -> Call:
    """A call with these values for the tensors of its row, None for those that are not given; S has one state for each row of
    the batch. `dead` says which tokens are none, `settings` what is no tensor, and the sizes of axes that only outputs have.

    Tensors keep their types; arrays have the type of the row, or of the options.
    """
    rng, row = np.random.default_rng(o.seed + 1000), row_of(vars(LAUNCHERS[launcher])[launcher])
    slots = ordered(o, rng) if any(entry.name == "slots" for entry in row) else np.arange(o.b)
    rows = np.flatnonzero(slots >= 0)
    given: dict[str, Any] = {"slots": slots, **{name: x for name, x in values.items() if x is not None}}
    dead = np.zeros((o.b, o.t), dtype=bool) if dead is None else dead
    if o.live:
        given["live"] = live_tokens(o, rng)
        dead = dead | ~given["live"]
    found: dict[str, int] = {letter: settings.pop(letter) for letter in ("parts",) if letter in settings}
    kind: int | None = None
    for at, entry in enumerate(row):
        name, argument = entry.parameter, entry.argument
        if name in given:
            x = given[name]
            if len(argument.forms) > 1 and kind is None:
                kind = next(i for i, letters in enumerate(argument.forms) if len(letters) == len(x.shape))
            form = argument.forms[(kind or 0) if len(argument.forms) > 1 else 0]
            if isinstance(x, Tensor):
                array = x
            else:
                array = torch.from_numpy(pooled(x, form, slots, o) if "s" in form else np.array(x)).to(typed(entry, o))
            if form[:2] == ["b", "t"] and array.shape[:2] == dead.shape and array.is_floating_point():
                array = array.clone()
                array[torch.from_numpy(dead)] = o.poison
            found |= dict(zip(form, array.shape, strict=True))
        elif name in outputs:
            shape = [found[letter] for letter in argument.forms[(kind or 0) if len(argument.forms) > 1 else 0]]
            array = unfit(int(np.prod(shape)), typed(entry, o), o.poison).view(shape)
        else:
            continue
        given[name] = placed(array, argument, at, o.poison, WIDTHS)
    given = {name: x for name, x in given.items() if isinstance(x, Tensor)}
    return Call(launcher, o, given | settings, rows, dead)


def record(launcher: str, parameter: str, o: Options, sizes: Mapping[str, int], **fields: Tensor) -> Any:
    """A record that a launcher takes, such as a ring: poison in every field that is not given."""
    entries = [entry for entry in row_of(vars(LAUNCHERS[launcher])[launcher]) if entry.parameter == parameter]
    for at, entry in enumerate(entries):
        shape = [sizes[letter] for letter in entry.argument.forms[0]]
        empty = unfit(int(np.prod(shape)), typed(entry, o), o.poison).view(shape)
        fields.setdefault(entry.name.rpartition(".")[2], placed(empty, entry.argument, at, o.poison, WIDTHS))
    return entries[0].record(**fields)  # type: ignore[misc]


def committed(launcher: str, o: Commits, values: Mapping[str, Array | None], **settings: Any) -> Call:
    """A commit: the first row accepted all, the others a part, of many without padding the last none; the rest is poison."""
    rng = np.random.default_rng(o.seed + 2000)
    rows = np.arange(o.b) * o.drafts + rng.integers(0, o.drafts, o.b)
    count, path = np.array([o.t, *rng.integers(1, o.t, o.b - 1)]), np.full((o.b, o.t), -1)
    if o.b > 2 and not o.padding:
        count[-1] = 0
    for b, k in enumerate(count):
        path[b, :k] = np.sort(rng.choice(o.t, k, replace=False)) if o.path else np.arange(k)
    found = {**values, "rows": rows if o.drafts > 1 else None, **({"path": path} if o.path else {"advanced": count})}
    call = drawn(launcher, o, found, outputs=(), **settings)
    dead = np.ones((o.b * o.drafts, o.t), dtype=bool)
    for b in call.rows:
        dead[rows[b], path[b, : count[b]]] = False
    for entry in call.row:
        letters = "".join(entry.argument.forms[0])
        if letters.startswith(("imt", "bt")):
            call[entry.parameter][(*[slice(None)] * letters.startswith("i"), torch.from_numpy(dead))] = o.poison
    return call


def accepted(call: Call) -> list[tuple[int, Array]]:
    """Of each row that is no padding the row of its inputs, and the tokens that it accepted, in order."""
    t, rows = call.options.t, call.given.get("rows", torch.arange(call.options.b)).tolist()
    if "path" in call.given:
        return [(rows[b], path[(path >= 0) & (path < t)]) for b, path in enumerate(call["path"].numpy()) if b in call.rows]
    return [(rows[b], np.arange(int(call["advanced"][b]))) for b in call.rows]


def every_row(draw: Callable[[Any], Call]) -> Callable[[Any], Call]:
    """Commits of three rows in which all tokens count, and the last slot."""

    def drawn_whole(o: Any) -> Call:
        call = draw(o)
        call["slots"] = torch.tensor([4, 0, 2], dtype=torch.int32)
        for x in call.tensors.values():
            if x.is_floating_point():
                x.nan_to_num_(0.5)
        return call

    return drawn_whole


def with_places(call: Call) -> Call:
    """States after every token go to free slots out of order; the first of a row is not kept, its last goes to its slot."""
    o, slots = call.options, call["slots"]
    free = [s for s in range(o.b + o.spare) if s not in set(slots.tolist())]
    places = np.random.default_rng(o.seed + 50).permutation(free)[: o.b * o.t].reshape(o.b, o.t)
    row = int(call.rows[0])
    if o.padding:
        places[row, -1] = int(slots[row])
        places[row, 0] = -1
    call["places"] = torch.from_numpy(places).to(slots.dtype)
    return call


def kept(call: Call, states: Approx, t: Any = slice(None)) -> tuple[str, Any, Approx]:
    """The states of the rows after every token, or after one, where they are kept."""
    places = call["places"][torch.from_numpy(call.rows)][:, t]
    return "S", places[places >= 0].long(), states[(places >= 0).numpy()]


def ordered(o: Options, rng: np.random.Generator) -> Array:
    """Slots out of order, the first among them, and one row of padding, the last or the second."""
    slots = rng.permutation(o.b + o.spare)[: o.b]
    padding = 1 if o.seed % 2 else o.b - 1
    if o.padding and o.b > 1:
        slots[padding] = -1
    if not np.any(slots == 0):
        slots[0] = 0
    return slots


def live_tokens(o: Options, rng: np.random.Generator) -> Array:
    """Some tokens; of many rows the first has none, and the last one has one."""
    live = rng.random((o.b, o.t)) < 0.6
    if o.b > 3:
        live[0], live[-1] = False, np.arange(o.t) == o.t // 2
    return live


def pooled(x: Array, form: list[str], slots: Array, o: Options) -> Array:
    """A pool with the state of row b in slot slots[b], poison in all others."""
    axis, rows = form.index("s"), np.flatnonzero(slots >= 0)
    shape = [*x.shape]
    shape[axis] = o.b + o.spare
    pool = np.full(shape, o.poison)
    np.moveaxis(pool, axis, 0)[slots[rows]] = np.moveaxis(x, axis, 0)[rows]
    return pool


def typed(entry: Entry, o: Options) -> torch.dtype:
    """The type of an argument: that of states, of activations, of integers; parameters are fp32."""
    argument = entry.argument
    if torch.float32 not in argument.types:
        return o.index if o.index in argument.types else argument.types[0]
    if argument.types == FP32 or not argument.size:
        return torch.float32
    return DTYPES[o.state if argument.size == "state" else o.io]
