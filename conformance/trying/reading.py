"""A function by its name, and what the names of its arguments say."""

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from types import ModuleType
from typing import Any

from ssmspec_ref.errors import OptionError
from ssmspec_ref.options.words import nearest

from .spellings import FAMILIES, Family

AFFIXES = re.compile(r"^_+|(_t|_in|_raw|_seq|_)$")
"""What names have around a spelling: x_t, _x."""
UNKNOWN = 2
"""Needed arguments whose names say nothing, at most: those that remain are tried for them."""


@dataclass(frozen=True)
class Argument:
    """One argument: `needed` without a default, `by_name` if a call may name it."""

    name: str
    needed: bool
    by_name: bool
    default: Any = None


@dataclass(frozen=True)
class Function:
    """A function to try. `path` is its file, where it was named by one; `frameworks` are the kinds of arrays to try."""

    call: Callable[..., Any]
    module: str
    name: str
    path: Path | None
    arguments: tuple[Argument, ...]
    frameworks: tuple[str, ...]

    @property
    def listed(self) -> str:
        return f"{self.name}({', '.join(a.name if a.needed else f'{a.name}=..' for a in self.arguments)})"


@dataclass(frozen=True)
class Matching:
    """What the arguments are for one recurrence: the inputs and the flags, by argument. `told` are those arguments whose name
    said nothing, and which got an input that was left."""

    family: str
    inputs: Mapping[str, str]
    flags: Mapping[str, str]
    told: tuple[str, ...] = ()

    @property
    def of(self) -> Family:
        return FAMILIES[self.family]

    def argument(self, role: str) -> str | None:
        """The argument that takes an input or a flag; None if there is none."""
        return next((name for name, has in (*self.inputs.items(), *self.flags.items()) if has == role), None)


def function(target: str) -> Function:
    """The function that MODULE:FUNCTION or FILE.py:FUNCTION names.

    Raises: OptionError if the target is no such name, the module does not import, or there is no such function; if it has
    only `*args`, or no signature.
    """
    home, colon, name = target.rpartition(":")
    if not (colon and home and name):
        raise OptionError(f"{target!r} names no function; give MODULE:FUNCTION or FILE.py:FUNCTION")
    path = Path(home) if home.endswith(".py") else None
    module = _imported(home, path)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            near = nearest(part, [n for n, value in vars(found).items() if callable(value)])
            raise OptionError(f"{home} has no {name}{near}; give a function of it")
        found = getattr(found, part)
    if not callable(found):
        raise OptionError(f"{target} is of type {type(found).__name__}; give the name of a function")
    return Function(found, module.__name__, name, path, _arguments(target, found), _frameworks(found))


def _imported(home: str, path: Path | None) -> ModuleType:
    if path is not None:
        if not path.is_file():
            raise OptionError(f"{path} is no file; give MODULE:FUNCTION, or the path of a file that exists")
        if not path.stem.isidentifier():
            raise OptionError(f"{path} is not the name of a Python module; rename it so that `import` can read it")
        sys.path.insert(0, str(path.parent.resolve()))
    try:
        return importlib.import_module(path.stem if path else home)
    except (Exception, SystemExit) as error:
        raise OptionError(
            f"{home} cannot be imported ({raised(error)}); make `python -c 'import ..'` of it work first"
        ) from error


def raised(error: BaseException) -> str:
    """What was raised, in a line."""
    return f"{type(error).__name__}: {error}".strip(": ").splitlines()[0]


def _arguments(target: str, found: Callable[..., Any]) -> tuple[Argument, ...]:
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError) as error:
        raise OptionError(
            f"{target} has no signature that Python can read; wrap it in a function with named arguments"
        ) from error
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if not named:
        raise OptionError(
            f"{target} has no named arguments, so nothing says what they are; wrap it in a function that names them, "
            "such as step(state, x, dt, A, B, C)"
        )
    return tuple(Argument(p.name, p.default is p.empty, p.kind is not p.POSITIONAL_ONLY, p.default) for p in named)


def _frameworks(found: Callable[..., Any]) -> tuple[str, ...]:
    """torch and numpy, or one of them: by the annotations, what the function's code names, and what its module imports."""
    plain = inspect.unwrap(found)
    annotated = " ".join(map(str, getattr(plain, "__annotations__", {}).values())).lower()
    scope = getattr(plain, "__globals__", {})
    names = getattr(getattr(plain, "__code__", None), "co_names", ())
    homes = [getattr(scope.get(n), "__name__", "") or "" for n in names if n in scope]
    everywhere = [getattr(value, "__name__", "") or "" for value in scope.values() if inspect.ismodule(value)]
    torch = "tensor" in annotated or any(h.partition(".")[0] == "torch" for h in homes)
    numpy = "ndarray" in annotated or "array" in annotated or any(h.partition(".")[0] == "numpy" for h in homes)
    if torch != numpy:
        return ("torch",) if torch else ("numpy",)
    imports = any(h.partition(".")[0] == "torch" for h in everywhere)
    return ("torch", "numpy") if torch or imports else ("numpy",)


def matchings(of: Function, family: str) -> Iterator[Matching]:
    """What the arguments may be for a recurrence; nothing if an input or an argument is left over."""
    table = FAMILIES[family]
    inputs, flags = _named(of, table)
    unknown = [a.name for a in of.arguments if a.needed and a.name not in inputs and a.name not in flags]
    needed = [name for name, role in table.roles.items() if role.absent is None and name != table.state]
    without = [name for name in needed if name not in inputs.values()]
    left = [*without, *([table.state] if table.state not in inputs.values() else [])]
    if len(unknown) > UNKNOWN or len(inputs) < 2 or len(without) > len(unknown):
        return
    for chosen in permutations(left, len(unknown)):
        if {*without} <= {*chosen}:
            yield Matching(family, inputs | dict(zip(unknown, chosen, strict=True)), flags, tuple(unknown))


def _named(of: Function, table: Family) -> tuple[dict[str, str], dict[str, str]]:
    """The inputs and the flags that arguments are named after: exact spellings first, then without affixes and case."""
    spelled = [(name, 0, role.names) for name, role in table.roles.items()]
    spelled += [(name, 1, flag.names) for name, flag in table.flags.items()]
    found: tuple[dict[str, str], dict[str, str]] = {}, {}
    for plain in (str, lambda name: AFFIXES.sub("", name).lower()):
        for argument in of.arguments:
            taken = {*found[0].values(), *found[1].values()}
            if argument.name in found[0] or argument.name in found[1]:
                continue
            for row, kind, names in spelled:
                if row not in taken and plain(argument.name) in {plain(name) for name in names}:
                    found[kind][argument.name] = row
                    break
    return found
