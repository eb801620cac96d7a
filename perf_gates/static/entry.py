"""An entry of the catalogue: a launcher, called with its own tiles on tensors without data, which are drawn from its row.

`stores` names every argument that the kernels write, and no other may be written; `wide` those that must be read
`width` bytes at a time, 16 by default.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor

from . import shapes
from .kernel_modules import kernel_module
from .rows import FP32 as EXACT
from .rows import Entry as Argument
from .rows import row_of, takes

FP32, BF16, FP16, I32, I64, BOOL = (torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.int64, torch.bool)

ARCHITECTURES = (80, 90, 100)
SSD = {"mamba2-2.7b": shapes.SSD["mamba2-2.7b"], "nemotron-4b": shapes.SSD["nemotron-3-nano-4b"]}
"""h, p, n, g; the names are those of the budgets."""


@dataclass(frozen=True)
class Entry:
    """The launches of one call at one shape; `quick` lists the architectures for which the tests compile it, `on` all of
    them. `stores`: None if another entry declares what its kernels write."""

    kernel: str
    variant: str
    shape: str
    call: Callable[[], object]
    stores: frozenset[str] | None
    wide: frozenset[str] = frozenset()
    quick: tuple[int, ...] = ()
    width: int = 16
    on: tuple[int, ...] = ARCHITECTURES

    @property
    def name(self) -> str:
        return f"{self.kernel} {self.variant} {self.shape}"


@dataclass(frozen=True)
class Kind:
    """What the rows of some launchers do not say: how an engine gives their tensors.

    `letters` are those of `sizes`; `give` the optional tensors that it gives. Tensors that a projection writes lie in one
    memory (`beside`, at the shapes of the launcher `projected`), those `apart` in a second one like it; those of `same` are
    one tensor. States and weights are
    in fp32, activations in bf16 and integers in `ints`, but for `types`. `out` is what kernels call the outputs; entries of
    other shapes than `quick` are not compiled by the tests, if it is given.
    """

    letters: str = ""
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    give: str = "slots"
    types: Mapping[str, torch.dtype] = field(default_factory=dict)
    ints: torch.dtype = I32
    beside: str = ""
    projected: str = ""
    apart: str = ""
    same: tuple[str, ...] = ()
    form: int = 0
    out: str = "y"
    wide: str = "S"
    quick: str = ""
    derived: Callable[[dict[str, int]], dict[str, int]] = lambda axes: {}

    def axes(self, shape: str, b: int, t: int) -> dict[str, int]:
        """Sizes by letter: of a shape, of b rows of t tokens, and of what goes with them."""
        own = dict(zip(self.letters.split(), self.sizes.get(shape, ()), strict=True))
        return {"s": b, "b": b, "t": t, "m": b + 1, "j": t, "i": 2} | own | self.derived(own)

    def letters_of(self, entry: Argument) -> list[str]:
        forms = entry.argument.forms
        return forms[self.form if len(forms) > 1 else 0]

    def dtype(self, entry: Argument) -> torch.dtype:
        argument = entry.argument
        if entry.name in self.types:
            return self.types[entry.name]
        if not argument.types[0].is_floating_point:
            return BOOL if argument.types == (BOOL,) else self.ints
        return FP32 if argument.types == EXACT or argument.size in ("state", "") else BF16

    def drawn(self, row: list[Argument], axes: Mapping[str, int]) -> dict[str, Tensor]:
        """The tensors of a row."""
        found = self.projection(row, axes) if self.beside else {}
        for entry in row:
            shape = (axes[letter] for letter in self.letters_of(entry))
            found.setdefault(entry.name, meta(*shape, dtype=self.dtype(entry)))
        for names in self.same:
            given = [name for name in names.split() if name in found]
            for name in given[1:]:
                found[name] = found[given[0]]
        return found

    def projection(self, row: list[Argument], axes: Mapping[str, int]) -> dict[str, Tensor]:
        """Those of a row that a projection writes, beside each other."""
        whole = {entry.name: entry for entry in row_of(getattr(kernel_module(self.projected), self.projected))}
        own = {name: [axes[letter] for letter in self.letters_of(whole[name])[2:]] for name in self.beside.split()}
        tokens = {entry.name: self.letters_of(entry) for entry in row if entry.name in own}
        if not tokens:
            return {}
        letters, sizes = next(iter(tokens.values())), [prod(shape) for shape in own.values()]
        lead = [axes[letter] for letter in letters[: letters.index("t") + 1]]
        one, other = (dict(zip(own, torch.split(meta(*lead, sum(sizes)), sizes, -1), strict=True)) for _ in range(2))
        parts = {name: (other if name in self.apart.split() else one)[name] for name in tokens}
        return {name: x if len(own[name]) == 1 else x.view(*lead, *own[name]) for name, x in parts.items()}


def entry(
    of: Kind,
    shape: str,
    kernel: str,
    variant: str,
    b: int = 64,
    t: int = 1,
    *,
    stores: str | None = None,
    also: str = "",
    give: str = "",
    without: str = "",
    axes: Mapping[str, int] | None = None,
    wide: str | None = None,
    quick: tuple[int, ...] = (),
    module: str | None = None,
    width: int = 16,
    on: tuple[int, ...] = ARCHITECTURES,
    **options: Any,
) -> Entry:
    """An entry by names: b rows of t tokens. `stores` are the tensors that the row writes and a call gives, with the outputs
    and `also`, if nothing else is said."""
    launcher = getattr(kernel_module(module or kernel), kernel)
    given = {*f"{of.give} {give}".split()} - {*without.split()}
    row = [e for e in row_of(launcher) if e.parameter not in options and (not e.optional or e.parameter in given)]
    tensors = of.drawn(row, of.axes(shape, b, t) | dict(axes or {}))
    launched = assembled(row, tensors) | options
    if stores is None:
        stores = " ".join([*written(row, options), of.out if "out" in takes(launcher) else "", also])
    return Entry(
        kernel,
        variant,
        shape,
        lambda: launcher(**launched),
        frozenset(stores.split()),
        frozenset((of.wide if wide is None else wide).split()),
        quick if shape == (of.quick or shape) else (),
        width,
        on,
    )


def written(row: list[Argument], options: Mapping[str, Any]) -> list[str]:
    """What a call writes of a row; of states only where it is not told to leave them."""
    kept = options.get("write_state") is False or options.get("keep") == "none"
    names = (e.name for e in row if e.argument.written and not (kept and e.argument.size == "state"))
    return [name.replace(".", "_") for name in names]


def assembled(row: list[Argument], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The tensors as a launcher takes them: those of a record in one."""
    made: dict[str, Any] = {}
    for one in row:
        kind: Any = one.record
        if kind is None:
            made[one.parameter] = tensors[one.name]
        elif one.parameter not in made:
            made[one.parameter] = kind(*(tensors[f"{one.parameter}.{name}"] for name in kind.__annotations__))
    return made


def meta(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    """A tensor without data."""
    return torch.empty(shape, dtype=dtype, device="meta")
