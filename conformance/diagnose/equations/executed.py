"""The functions of the reference that a case runs, with the lines that ran and the values that their names had."""

import ast
import gc
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import ssmspec_ref
from ssmspec_ref.functions import ROUNDINGS

ROOT = Path(ssmspec_ref.__file__).parent
NO_EQUATION = frozenset(
    {"checks.py", "contract.py", "errors.py", "error_bounds", "options", "records.py", "registry.py", "shapes.py"}
)
"""Files and folders of the reference that check, describe or bound, and compute no output."""


@dataclass(frozen=True)
class Executed:
    """A function that ran: its syntax, the lines of its file that ran, and its local values at the end of its first call."""

    function: FunctionType
    tree: ast.FunctionDef
    lines: frozenset[int]
    values: Mapping[str, Any]

    @property
    def file(self) -> str:
        """The file's path from the reference's folder on."""
        return str(Path(self.function.__code__.co_filename).relative_to(ROOT.parent))


def executed(call: Callable[[], object]) -> list[Executed]:
    """The functions that a call runs, in the order in which they return first. Functions inside others belong to these."""
    lines: dict[str, set[int]] = {}
    values: dict[CodeType, Mapping[str, Any]] = {}

    def trace(frame: FrameType, event: str, _: object) -> Any:
        code = frame.f_code
        if not _computes(code.co_filename):
            return None
        lines.setdefault(code.co_filename, set()).add(frame.f_lineno)
        if event == RETURN and code not in values:
            values[code] = dict(frame.f_locals)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    functions = {f.__code__: f for f in gc.get_referrers(*values) if isinstance(f, FunctionType)}
    trees = {file: _definitions(file) for file in lines}
    found = []
    for code, held in values.items():
        tree = trees[code.co_filename].get(code.co_firstlineno)
        if code in functions and tree is not None and not code.co_freevars:
            found.append(Executed(functions[code], tree, frozenset(lines[code.co_filename]), held))
    return found


RETURN = "return"


def _computes(file: str) -> bool:
    path = Path(file)
    return path.is_relative_to(ROOT) and NO_EQUATION.isdisjoint(path.relative_to(ROOT).parts)


class Unrounded(ast.NodeTransformer):
    """An equation as its paper prints it: without the names of roundings, which change nothing in float64."""

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        rounds = isinstance(node.func, ast.Name) and node.func.id in ROUNDINGS
        return node.args[0] if rounds else node


def _definitions(file: str) -> dict[int, ast.FunctionDef]:
    """The functions of a file by their first line, which is that of a decorator."""
    tree = Unrounded().visit(ast.parse(Path(file).read_text()))
    every = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return {min([node.lineno, *(d.lineno for d in node.decorator_list)]): node for node in every}
