"""Functions of the reference with one line changed, as code that can take the place of the function's own."""

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from .executed import Executed
from .expressions import instead, instead_of_all

STEPS = "_steps_left"
"""The name that the loops of edited functions ask whether to go on."""
LONGEST = 110
"""Characters of a line that are shown."""
WHOLE = (ast.Raise, ast.Assert, ast.JoinedStr, ast.Lambda)
"""What is not looked into, besides the headers of loops that end by a condition."""


@dataclass(frozen=True)
class Edit:
    """One change: what the line says and would say, and the function's code with it."""

    says: str
    function: FunctionType
    code: CodeType


def edits(one: Executed) -> Iterator[Edit]:
    """Every change of one line that ran: of an expression, then of whole statements."""
    for body, number in _statements(one.tree):
        statement = body[number]
        if not _ran(statement, one) or isinstance(statement, WHOLE):
            continue
        before = _line(statement)
        for owner, field, at in _expressions(statement):
            value = getattr(owner, field)
            old = value if at is None else value[at]
            for new in (*instead(old, one.values), *_further(owner, old), *_earlier(one.tree, statement, old)):
                _put(owner, field, at, new)
                after = _line(statement)
                code = None if after == before else compiled(one)
                _put(owner, field, at, old)
                if code is not None:
                    guards = _guarded_line(statement)
                    says = f"line {statement.lineno} of {one.file} read `{after}`, not `{before}`{guards}"
                    yield Edit(says, one.function, code)
        yield from _whole(one, body, number)


def compiled(one: Executed) -> CodeType | None:
    """The function's code as its syntax is now; None if it is none, or needs other values from outside."""
    own = ast.FunctionDef(one.tree.name, _bare(one.tree.args), one.tree.body, [], None, None)
    module = ast.fix_missing_locations(ast.Module([ast.copy_location(own, one.tree)], []))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            code = compile(module, one.function.__code__.co_filename, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, TypeError):
        return None
    found = next(constant for constant in code.co_consts if isinstance(constant, CodeType))
    return None if found.co_freevars else found


def guarded(one: Executed) -> CodeType | None:
    """The function's own code, whose loops ask `STEPS` before each turn; None if it has no such loop. The syntax keeps it."""
    loops = [node for node in ast.walk(one.tree) if isinstance(node, ast.While)]
    for loop in loops:
        asked = ast.Call(ast.Name(STEPS, ast.Load()), [], [])
        loop.test = ast.copy_location(ast.BoolOp(ast.And(), [asked, loop.test]), loop.test)
    return compiled(one) if loops else None


def _bare(arguments: ast.arguments) -> ast.arguments:
    """Arguments without annotations; defaults belong to the function, not to its code."""

    def bare(one: ast.arg | None) -> Any:
        return None if one is None else ast.arg(one.arg)

    a = arguments
    keyword: list[ast.expr | None] = [ast.Constant(None) if default is not None else None for default in a.kw_defaults]
    defaults: list[ast.expr] = [ast.Constant(None) for _ in a.defaults]
    return ast.arguments(
        [*map(bare, a.posonlyargs)], [*map(bare, a.args)], bare(a.vararg), [*map(bare, a.kwonlyargs)], keyword, bare(a.kwarg),
        defaults,
    )  # fmt: skip


def _guarded_line(statement: ast.stmt) -> str:
    """The first line under a condition that was changed."""
    return f", before `{_line(statement.body[0])}`" if isinstance(statement, ast.If) else ""


def _whole(one: Executed, body: list[ast.stmt], number: int) -> Iterator[Edit]:
    """The statement left out, after the next one, or storing instead of adding."""
    statement = body[number]
    where = f"line {statement.lineno} of {one.file}"
    if isinstance(statement, ast.Assign | ast.AugAssign | ast.Expr):
        made: list[tuple[str, list[Any]]] = [(f"{where}, `{_line(statement)}`, were left out", [ast.Pass()])]
        if number + 1 < len(body) and isinstance(body[number + 1], ast.Assign | ast.AugAssign | ast.Expr):
            after = body[number + 1]
            made.append((f"{where}, `{_line(statement)}`, came after `{_line(after)}`", [after, statement]))
        if isinstance(statement, ast.AugAssign):
            put = ast.Assign([statement.target], statement.value)
            made.append((f"{where} read `{ast.unparse(ast.fix_missing_locations(put))}`, not `{_line(statement)}`", [put]))
        for says, new in made:
            kept = body[:]
            body[number : number + len(new)] = new
            code = compiled(one)
            body[:] = kept
            if code is not None:
                yield Edit(says, one.function, code)


def _statements(node: ast.AST) -> Iterator[tuple[list[ast.stmt], int]]:
    for field in ("body", "orelse", "finalbody"):
        body: Any = getattr(node, field, None)
        for number in range(len(body)) if isinstance(body, list) else ():
            yield body, number
            yield from _statements(body[number])


def _ran(statement: ast.stmt, one: Executed) -> bool:
    end = statement.body[0].lineno - 1 if hasattr(statement, "body") else statement.end_lineno or statement.lineno
    return not one.lines.isdisjoint(range(statement.lineno, max(end, statement.lineno) + 1))


def _expressions(node: ast.AST) -> Iterator[tuple[ast.AST, str, int | None]]:
    """The places of all expressions of a statement that are read, not those of statements inside it."""
    for field, value in ast.iter_fields(node):
        if field in ("targets", "target", "annotation", "func", "ctx") and not isinstance(node, ast.Call):
            continue
        if isinstance(node, ast.While) and field == "test":
            continue
        parts = [(None, value)] if isinstance(value, ast.AST) else [*enumerate(value)] if isinstance(value, list) else []
        for at, part in parts:
            if isinstance(part, (ast.stmt, *WHOLE)):
                continue
            if isinstance(part, ast.expr) and not (isinstance(node, ast.Call) and field == "func"):
                yield node, field, at
            yield from _expressions(part)


def _further(owner: ast.AST, old: ast.expr) -> Iterator[ast.expr]:
    """What may replace any expression in its place: parts of what a loop runs over, and a condition that always holds
    or never."""
    if isinstance(owner, ast.For | ast.comprehension) and owner.iter is old:
        yield from instead_of_all(old)
    if isinstance(owner, ast.If) and owner.test is old and not isinstance(old, ast.Compare):
        yield ast.Constant(True)
        yield ast.Constant(False)


def _earlier(tree: ast.FunctionDef, statement: ast.stmt, old: ast.expr) -> Iterator[ast.expr]:
    """A value as it was before the last step of its line: a term, a factor or an argument of what the name was given."""
    if not isinstance(old, ast.Name):
        return
    for body, number in _statements(tree):
        made = body[number]
        if made is statement or made.lineno >= statement.lineno or not isinstance(made, ast.Assign):
            continue
        if [getattr(target, "id", None) for target in made.targets] == [old.id]:
            if isinstance(made.value, ast.BinOp):
                yield made.value.left
                yield made.value.right
            elif isinstance(made.value, ast.Call) and made.value.args:
                yield made.value.args[0]


def _put(owner: ast.AST, field: str, at: int | None, new: ast.expr) -> None:
    if at is None:
        setattr(owner, field, new)
    else:
        getattr(owner, field)[at] = new


def _line(statement: ast.stmt) -> str:
    text = ast.unparse(ast.fix_missing_locations(statement)).splitlines()[0].replace(f"{STEPS}() and ", "")
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."
