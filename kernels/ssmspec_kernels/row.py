"""One row a launcher: every tensor that it takes, as the annotations of its own signature say it.

    @launcher
    def ssd_scan(axes: Axes, S: Annotated[Tensor, updates("s h p n")], x: Annotated[Tensor, reads("b t h p")], ...

An annotation says which axes a tensor has, by the letters of `ssmspec_ref.shapes` with `s` for a slot of a pool, which types
it may have, whether the launch reads or writes it, and what its bytes are called in a count of traffic. A record, such as a
ring, is a class whose fields are annotated in the same way; its tensors are called `ring.x`.

"h | h p" are two forms. All arguments of a call with two forms have the same one: that of the first of them.

A call gives no `axes`: it is checked against the row, and the launcher receives the size of every axis. What the row does not
say, the launcher checks itself. A launcher that raises has written nothing.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from math import prod
from typing import Annotated, Any, Concatenate, Literal, ParamSpec, TypeAlias, TypeVar, get_args, get_origin

import torch
from torch import Tensor

from ssmspec_ref.errors import PrecisionError, ShapeMismatch

from .launch import FLOATS, INDICES, check_dense, check_whole

P = ParamSpec("P")
R = TypeVar("R")
Axes: TypeAlias = dict[str, int]
"""The size of every axis of a call, by its letter."""
Types = tuple[torch.dtype, ...]
Layout = Literal["", "dense", "whole"]
"""What a kernel needs that reads a tensor without some of its strides: that of the last axis is 1, or there are no gaps."""
FP32, BOOL = (torch.float32,), (torch.bool,)


@dataclass(frozen=True)
class Argument:
    """One tensor of a launcher; `size` is what a count of traffic calls the bytes of an element, "" if they do not count.
    `hint` is added to the refusal of another number of axes."""

    axes: str
    types: Types
    size: str
    read: bool
    written: bool
    layout: Layout = ""
    hint: str = ""

    @cached_property
    def forms(self) -> list[list[str]]:
        """The letters of the axes, in each form."""
        return [form.split() for form in self.axes.split(" | ")]


def reads(axes: str, types: Types = FLOATS, size: str | None = None, layout: Layout = "", hint: str = "") -> Argument:
    """An input."""
    return Argument(axes, types, _size(types) if size is None else size, True, False, layout, hint)


def writes(axes: str, types: Types = FLOATS, size: str | None = None, layout: Layout = "") -> Argument:
    """An output: no element is read before it is written."""
    return Argument(axes, types, _size(types) if size is None else size, False, True, layout)


def updates(axes: str, types: Types = FLOATS, size: str = "state", layout: Layout = "") -> Argument:
    """A state: read, and written in place."""
    return Argument(axes, types, size, True, True, layout)


def weighs(axes: str, types: Types = FLOATS, layout: Layout = "") -> Argument:
    """A parameter of the model, which caches hold: its bytes do not count."""
    return reads(axes, types, "", layout)


def points(axes: str, types: Types = INDICES) -> Argument:
    """Slots, lengths, cursors and other integers that say where something lies: their bytes do not count."""
    return reads(axes, types, "")


@dataclass(frozen=True)
class Only:
    """Of a record: these of its tensors are read, all of them if none is named, and none is written."""

    fields: tuple[str, ...] = ()


def _size(types: Types) -> str:
    return {FLOATS: "io", INDICES: "index", BOOL: "flag"}.get(types, "fp32")


Slots = Annotated[Tensor, points("b")]
Live = Annotated[Tensor, points("b t", BOOL)]
Lengths = Annotated[Tensor, points("b")]
Ancestors = Annotated[Tensor, reads("b t j", BOOL)]
Bounds = Annotated[Tensor, points("m")]
Fresh = Annotated[Tensor, points("b", BOOL)]


@dataclass(frozen=True)
class Entry:
    """An argument of a row: its name, the launcher's parameter, and if that is a record its class and the place in it."""

    name: str
    parameter: str
    record: type | None
    place: int | None
    argument: Argument
    optional: bool

    def of(self, call: Mapping[str, Any]) -> Tensor | None:
        """The tensor that a call gives."""
        given = call.get(self.parameter)
        if given is None or self.place is None:
            return given
        return (given if isinstance(given, tuple) else given.tensors)[self.place]


def launcher(function: Callable[Concatenate[Axes, P], R]) -> Callable[P, R]:
    """A launcher, which is called without `axes`: they are those of the call, once it was checked against the row."""
    row, code = entries_of(function), function.__code__
    names = code.co_varnames[1 : code.co_argcount]

    @wraps(function)
    def checked(*given: P.args, **named: P.kwargs) -> R:
        return function(sizes(row, {**dict(zip(names, given, strict=False)), **named}), *given, **named)

    checked.row = row  # type: ignore[attr-defined]
    checked.takes = frozenset(code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount])  # type: ignore[attr-defined]
    return checked


def row_of(launcher: Callable[..., Any]) -> tuple[Entry, ...]:
    """The row of a launcher."""
    return launcher.row  # type: ignore[attr-defined]


def takes(launcher: Callable[..., Any]) -> frozenset[str]:
    """The names of the parameters of a launcher."""
    return launcher.takes  # type: ignore[attr-defined]


def taken(launcher: Callable[..., Any], *records: Any, **named: Any) -> dict[str, Any]:
    """The arguments of a call by name: `named`, and of records the fields that the launcher has a parameter for.

    A record is a mapping, a named tuple or an object with fields. What a launcher does not read, such as the queries of a
    commit, it has no parameter for. Raises: TypeError (two records give one parameter).
    """
    found: dict[str, Any] = {}
    for record in records:
        given = {name: value for name, value in fields_of(record).items() if name in takes(launcher)}
        if twice := sorted(found.keys() & given.keys()):
            raise TypeError(f"two records have {', '.join(twice)}; {launcher.__name__} takes one of each name")
        found |= given
    return found | named


def fields_of(record: Any) -> Mapping[str, Any]:
    """The fields of a record by name."""
    if isinstance(record, Mapping):
        return record
    return record._asdict() if isinstance(record, tuple) else vars(record)  # type: ignore[attr-defined]


def entries_of(function: Callable[..., Any]) -> tuple[Entry, ...]:
    """What annotations say of tensors, in the order of a signature."""
    said = [(name, kind) for name, kind in function.__annotations__.items() if name != "return"]
    return tuple(entry for name, kind in said for entry in _entries(name, kind))


def _entries(parameter: str, kind: Any) -> Iterator[Entry]:
    optional = type(None) in get_args(kind)
    for place, argument in _tensors(kind):
        if place is None:
            yield Entry(parameter, parameter, None, None, argument, optional)
        else:
            yield Entry(f"{parameter}.{place[1]}", parameter, place[0], place[2], argument, optional)


def _tensors(kind: Any) -> Iterator[tuple[tuple[type, str, int] | None, Argument]]:
    """The arguments in an annotation; those of a record with its class, the name of the field, and its place."""
    if get_origin(kind) is Annotated:
        inner, *said = get_args(kind)
        for word in said:
            if isinstance(word, Argument):
                yield None, word
            else:
                for place, argument in _tensors(inner):
                    if place is not None and (not word.fields or place[1] in word.fields):
                        yield place, replace(argument, read=True, written=False)
    elif get_origin(kind) is tuple:
        yield from (((tuple, str(i), i), argument) for i, part in enumerate(get_args(kind)) for _, argument in _tensors(part))
    elif isinstance(kind, type) and kind is not Tensor and hasattr(kind, "__annotations__"):
        fields = enumerate(kind.__annotations__.items())
        yield from (((kind, name, i), argument) for i, (name, part) in fields for _, argument in _tensors(part))
    else:
        for part in get_args(kind):
            yield from _tensors(part)


def sizes(row: tuple[Entry, ...], call: Mapping[str, Any]) -> Axes:
    """The size of every axis over the tensors of a call.

    Raises: ShapeMismatch (an axis with two sizes, another number of axes, an empty axis, a layout that the kernel does not
    read), PrecisionError (a type or a device that is not allowed).
    """
    found: dict[str, tuple[int, str]] = {}
    device, form = None, None
    for entry in row:
        tensor, name, argument = entry.of(call), entry.name, entry.argument
        if tensor is None:
            continue
        if tensor.dtype not in argument.types:
            allowed = " or ".join(str(d).removeprefix("torch.") for d in argument.types)
            raise PrecisionError(f"{name} is {tensor.dtype}, but the kernel takes {allowed}; convert it first")
        device = tensor.device if device is None else device
        if tensor.device != device:
            raise PrecisionError(f"{name} lies on {tensor.device}, the arguments before it on {device}; move it there")
        forms = argument.forms
        if len(forms) > 1 and form is None:
            form = next((i for i, letters in enumerate(forms) if len(letters) == tensor.dim()), 0)
        letters = forms[form or 0] if len(forms) > 1 else forms[0]
        if tensor.dim() != len(letters):
            hint = f": {argument.hint}" if argument.hint else ""
            raise ShapeMismatch(f"{name} has shape {tuple(tensor.shape)}, but its axes are ({' '.join(letters)}){hint}")
        for axis, size in zip(letters, tensor.shape, strict=True):
            first, owner = found.setdefault(axis, (size, name))
            if first != size:
                raise ShapeMismatch(
                    f"{name} has shape {tuple(tensor.shape)} for the axes ({' '.join(letters)}), "
                    f"but axis {axis} has size {first} in {owner}; give both the same {axis}"
                )
            if size == 0:
                raise ShapeMismatch(f"{name} has shape {tuple(tensor.shape)}: axis {axis} is empty")
        if argument.layout == "whole":
            check_whole(**{name: tensor})
        elif argument.layout or tensor.dim() == 1 or (tensor.dim() > 2 and tensor.dtype in FLOATS):
            check_dense(**{name: tensor})
    return {axis: size for axis, (size, _) in found.items()}


def moved(
    launcher: Callable[..., Any],
    axes: Mapping[str, int],
    elements: Mapping[str, int],
    *,
    without: Collection[str] = (),
    kept: bool = True,
    form: int = 0,
) -> int:
    """Bytes that must cross the memory bus in a launch that reads and writes its tensors whole: once each.

    `axes` has the size of every axis, with the live rows for `s`; `elements` the bytes of an element by the names of the row,
    those of 4 and 1 bytes aside. `without` are optional tensors that are not given, `kept` says whether states are written.
    """
    total, elements = 0, {"fp32": 4, "flag": 1, **elements}
    for entry in row_of(launcher):
        argument = entry.argument
        if argument.size and entry.name not in without:
            times = argument.read + (argument.written and (kept or argument.size != "state"))
            letters = argument.forms[form if len(argument.forms) > 1 else 0]
            total += times * elements[argument.size] * prod(axes[letter] for letter in letters)
    return total
