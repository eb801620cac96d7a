"""Functions of kernels return as many values at each of their ends.

Where an `if` that is decided at compilation returns two values and the line behind it one, Triton 3.7.1 gives as many as the
line behind and drops the others without a word; 3.6.0 refuses. The interpreter runs Python and shows neither.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import ssmspec_kernels

FILES = sorted(Path(ssmspec_kernels.__path__[0]).rglob("*.py"))


def uneven(source: str) -> Iterator[str]:
    """The names of compiled functions whose ends return different numbers of values."""
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef) and any("jit" in ast.unparse(d) for d in function.decorator_list):
            values = [node.value for node in ast.walk(function) if isinstance(node, ast.Return)]
            if len({len(value.elts) if isinstance(value, ast.Tuple) else 0 for value in values}) > 1:
                yield function.name


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_end_of_a_function_returns_as_many_values(file: Path) -> None:
    assert list(uneven(file.read_text())) == []


def test_two_values_and_one_are_found() -> None:
    assert list(uneven("@triton.jit\ndef tile(x, MORE):\n    if MORE:\n        return x, x\n    return (x,)")) == ["tile"]


def test_a_value_of_the_same_kind_at_each_end_is_not() -> None:
    assert not list(uneven("@triton.jit\ndef tile(x, MORE):\n    if MORE:\n        return x, x\n    return x, 0 * x"))
