"""Functions for the device fit on a screen, and take few arguments: `kernel_limits.toml` names the exceptions.

lines          of the signature and the body, blank ones and comments too; not those of decorators and the docstring    (1)
parameters     of the signature; one that is given a tuple counts as one                                                (2)
tuples         what a kernel is given holds at most 8 values, and a tuple in it no further tuple                        (3)
"""

import ast
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from perf_gates.digest.texts import package
from perf_gates.gpu.rehearsal import H200
from perf_gates.static import catalogue, compiled
from perf_gates.static.capture import given

KERNELS = package("ssmspec_kernels")
LINES, PARAMETERS, VALUES, DEPTH, EXCEPTIONS = 60, 40, 8, 2, 6
LIST, PENDING = (Path(__file__).with_name(f"kernel_limits{part}.toml") for part in ("", "_pending"))


def functions(module: ast.Module) -> Iterator[ast.FunctionDef]:
    """What Triton compiles of a module."""
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef) and any("jit" in ast.unparse(d) for d in node.decorator_list):
            yield node


def lines(function: ast.FunctionDef) -> int:
    """(1)"""
    (first, *_), end = function.body, function.end_lineno or 0
    doc = ast.get_docstring(function) is not None
    return end - function.lineno + 1 - (((first.end_lineno or 0) - first.lineno + 1) if doc else 0)


def parameters(function: ast.FunctionDef) -> int:
    """(2)"""
    a = function.args
    return len([*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg))])


def beyond(files: Iterable[Path]) -> dict[str, str]:
    """The functions that are too long or take too much, by module and name."""
    found = {}
    for file in files:
        for function in functions(ast.parse(file.read_text())):
            if lines(function) > LINES or parameters(function) > PARAMETERS:
                said = f"{parameters(function)} parameters of {PARAMETERS}, {lines(function)} lines of {LINES}"
                found[f"{file.stem}.{function.name}"] = said
    return found


def too_deep(value: Any, depth: int = 1) -> bool:
    """Whether an argument breaks (3)."""
    return isinstance(value, tuple) and (
        depth > DEPTH or len(value) > VALUES or any(too_deep(part, depth + 1) for part in value)
    )


def faults(found: dict[str, str], listed: dict[str, str]) -> list[str]:
    """What is wrong with functions that are beyond the limits and with the list of those that may be."""
    wrong = [f"{name}: {said}; group its arguments, or make parts of it functions" for name, said in found.items()
             if name not in listed]  # fmt: skip
    wrong += [f"{name} is within the limits or gone; take it off the list" for name in listed if name not in found]
    wrong += [f"{name} is listed without a measured cost" for name, cost in listed.items() if not any(map(str.isdigit, cost))]
    return wrong + (
        [f"{len(listed)} functions are listed, and at most {EXCEPTIONS} may be"] if len(listed) > EXCEPTIONS else []
    )


def listed() -> dict[str, str]:
    return {row["name"]: row["cost"] for row in tomllib.loads(LIST.read_text()).get("function", [])}


def pending() -> dict[str, str]:
    return tomllib.loads(PENDING.read_text()) if PENDING.exists() else {}


def test_functions_for_the_device_are_short_and_take_few_arguments() -> None:
    found, waiting = beyond(KERNELS.rglob("*.py")), pending()
    assert faults({name: said for name, said in found.items() if name not in waiting}, listed()) == []
    assert [f"{name} is within the limits; take it off {PENDING.name}" for name in waiting if name not in found] == []


@pytest.mark.compiler
def test_tuples_that_kernels_are_given_are_small() -> None:
    entries = [entry for entry in catalogue.entries() if H200 in entry.on]
    launches = [(entry.name, launch) for entry in entries for launch in compiled.launches_on(entry, H200)]
    assert len(launches) > len(entries) > 50
    assert [f"{name}: {arg}" for name, launch in launches for arg, value in given(launch).items() if too_deep(value)] == []


def written(folder: Path, parameters: int, lines: int) -> dict[str, str]:
    """A function of as many parameters and lines beside a docstring, as it is found."""
    signature = ", ".join(f"a{i}" for i in range(parameters))
    body = ["    # as a screen holds", "", *["    a0 += 1"] * (lines - 3)]
    text = [f"@triton.jit\ndef tile({signature}):", '    """Two\n    lines."""', *body]
    (folder / "part.py").write_text("import triton\n\n\n" + "\n".join(text) + "\n")
    return beyond([folder / "part.py"])


def test_a_function_that_is_too_long_or_takes_too_much_is_seen(tmp_path: Path) -> None:
    assert written(tmp_path, 40, 60) == {}
    assert written(tmp_path, 41, 60) == {"part.tile": "41 parameters of 40, 60 lines of 60"}
    assert written(tmp_path, 40, 61) == {"part.tile": "40 parameters of 40, 61 lines of 60"}


@pytest.mark.parametrize("value", [(0,) * 9, ((0,) * 9, 1), (((0,),),)])
def test_a_tuple_that_is_too_large_or_too_deep_is_seen(value: tuple[Any, ...]) -> None:
    assert too_deep(value)
    assert not too_deep(((0,) * 8,) * 8)
    assert not too_deep(0)


def test_a_list_that_grew_or_that_is_not_needed_is_seen() -> None:
    cost = "window B=1: 96 -> 128 registers"
    six = {f"part.f{i}": cost for i in range(EXCEPTIONS)}
    assert faults(dict.fromkeys(six, "long"), six) == []
    assert len(faults(dict.fromkeys([*six, "part.f6"], "long"), six)) == 1
    assert len(faults(dict.fromkeys([*six, "part.f6"], "long"), {**six, "part.f6": cost})) == 1
    assert len(faults(dict.fromkeys([*six][1:], "long"), six)) == 1
    assert len(faults(dict.fromkeys(six, "long"), {**six, "part.f0": "it would be slower"})) == 1
