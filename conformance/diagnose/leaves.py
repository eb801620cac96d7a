"""The inputs of a case, each with its name and axes, and copies of the inputs with one of them changed."""

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, get_args, get_type_hints

import numpy as np

from ..run.program import arguments_of
from ..run.sessions import opened
from ..suite.called import Arguments
from ..suite.graph.replayed import Others

AXES = {
    "M": "b c w", "u": "b t c", "live": "b t", "parents": "b t", "ancestors": "b t j", "advanced": "b", "path": "b t",
    "K": "b l g e", "V": "b l g e", "length": "b", "tokens": "b t", "choice": "b t", "budget": "b", "fresh": "b",
    "coins": "b t", "picks": "b t", "bounds": "b", "p": "b t i", "q": "b t h e|b t i", "k": "b t g e", "v": "b t g e",
    "logits": "b i|b t i", "S": "b h p n", "prompt": "b l", "output": "b t",
}  # fmt: skip
"""Axes of arguments that are not in a record; if operations differ, those with the array's number of axes are used."""
WORDS = {
    "b": "row", "t": "token", "h": "head", "g": "group", "c": "channel", "p": "channel", "v": "channel", "d": "channel",
    "e": "channel", "n": "state", "k": "key channel", "w": "tap", "l": "slot", "j": "node", "i": "entry", "u": "channel",
    "q": "column", "s": "slot", "r": "rank", "f": "angle",
}  # fmt: skip
OPENED = ("S", "params", "rounds", "beside")


@dataclass(frozen=True)
class Leaf:
    """One input: its path in the arguments, its name, its axes if known, and its value.

    Over several windows there is one leaf for each of their inputs; `values` holds those of all windows, changed together.
    """

    path: tuple[Any, ...]
    name: str
    axes: tuple[str, ...]
    values: tuple[Any, ...]

    @property
    def value(self) -> Any:
        return self.values[0]


def named(operation: str, arguments: Arguments) -> tuple[str, ...]:
    """The names of the arguments of an operation."""
    group, _, _ = operation.partition(".")
    if group == "layer":
        names: tuple[str, ...] = ("layer", "script")
    elif group == "speculate":
        names = ("layer", "state", "rounds", "beside")
    elif group == "life":
        names = ("layer", "slots", "block", "steps", "ranks")
    elif group == "generate":
        names = arguments_of(operation)
    else:
        names = OPENED if opened(operation) else arguments_of(operation)
    return (*names, *(f"argument {at}" for at in range(len(names), len(arguments))))[: len(arguments)]


def full_name(leaf: Leaf, names: tuple[str, ...]) -> str:
    """The path of an input, such as window.dt, or rounds.*.window.dt if every window has it."""
    return ".".join([names[leaf.path[0]], *map(str, leaf.path[1:])])


def leaves(operation: str, arguments: Arguments, axes: Mapping[str, str] | None = None) -> list[Leaf]:
    """Every input: the arrays and numbers in all records. `axes` overrides the axes of arrays."""
    found: dict[tuple[Any, ...], Leaf] = {}
    known = {**AXES, **(axes or {})}
    arguments = tuple(argument for argument in arguments if not isinstance(argument, Others))
    for path, name, letters, value in _walk(named(operation, arguments), arguments, known):
        key = tuple("*" if isinstance(step, Each) else step for step in path)
        before = found.get(key)
        found[key] = Leaf(key, name, letters, (*(before.values if before else ()), value))
    return list(found.values())


class Each(int):
    """The index of one window among several."""


def _walk(
    names: tuple[str, ...], arguments: Arguments, known: Mapping[str, str]
) -> Iterator[tuple[tuple[Any, ...], str, tuple[str, ...], Any]]:
    for at, (name, value) in enumerate(zip(names, arguments, strict=True)):
        if isinstance(value, tuple) and value and is_dataclass(value[0]):
            for number, one in enumerate(value):
                yield from _under((at, Each(number)), name, one, known, "")
        else:
            yield from _under((at,), name, value, known, "")


def _under(
    path: tuple[Any, ...], name: str, value: Any, known: Mapping[str, str], hint: str
) -> Iterator[tuple[tuple[Any, ...], str, tuple[str, ...], Any]]:
    if is_dataclass(value) and not isinstance(value, type):
        hints = get_type_hints(type(value))
        for field in fields(value):
            inner = getattr(value, field.name)
            yield from _under((*path, field.name), field.name, inner, known, _letters(hints.get(field.name), inner))
        return
    letters: tuple[str, ...] = ()
    if isinstance(value, np.ndarray):
        offered = [tuple(one.split()) for one in (hint or known.get(name, "")).split("|")]
        letters = next((one for one in offered if len(one) == value.ndim), ())
        if len(letters) != value.ndim:
            letters = tuple("bt"[: value.ndim]) + ("",) * (value.ndim - 2)
    yield path, name, letters, value


def _letters(hint: Any, value: Any) -> str:
    """The axes that a record's annotation gives for an array of this dimension."""
    for one in (hint, *get_args(hint)):
        letters = getattr(one, "dim_str", None)
        if letters and isinstance(value, np.ndarray) and len(letters.split()) == value.ndim:
            return str(letters)
    return ""


Change = Callable[..., Any]


def changed(arguments: Arguments, *changes: tuple[Leaf, Change]) -> Arguments:
    """The arguments with some inputs changed, in every window. Raises: what a record raises."""
    new = list(arguments)
    for at, below in _by_first([(list(leaf.path), change) for leaf, change in changes]).items():
        several = [path[:1] == ["*"] for path, _ in below]
        if any(several):
            inner = [(path[1:], change) for path, change in below]
            new[at] = tuple(_set(one, inner) for one in arguments[at])
        else:
            new[at] = _set(arguments[at], below)
    return tuple(new)


Paths = list[tuple[list[Any], Change]]
"""Paths below a value, each with the change to make there."""


def unchecked(arguments: Arguments, leaf: Leaf, change: Change) -> Arguments:
    """The arguments with one field of their records changed to a value that the record may refuse."""

    def made(value: Any, path: tuple[Any, ...]) -> Any:
        if not path:
            return change(value)
        new = copy(value)
        object.__setattr__(new, path[0], made(getattr(value, path[0]), path[1:]))
        return new

    return tuple(made(one, leaf.path[1:]) if at == leaf.path[0] else one for at, one in enumerate(arguments))


def _set(value: Any, changes: Paths) -> Any:
    if not changes[0][0]:
        return changes[0][1](value)
    return replace(value, **{name: _set(getattr(value, name), below) for name, below in _by_first(changes).items()})


def _by_first(changes: Paths) -> dict[Any, Paths]:
    found: dict[Any, Paths] = {}
    for (first, *rest), change in changes:
        found.setdefault(first, []).append((rest, change))
    return found
