"""Which names a function owns: parameters and locals, numbered by first use, and its own imports."""

import ast
from collections.abc import Iterable, Iterator
from itertools import count

from .package import Target, UnresolvedError

INNER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class Scope:
    """The names of one function, lambda or comprehension. Numbers are drawn from one counter a definition."""

    def __init__(self, names: Iterable[str], numbers: Iterator[int], imports: dict[str, Target] | None = None) -> None:
        self.names, self.numbers, self.imports = set(names), numbers, imports or {}
        self.known: dict[str, int] = {}
        if both := self.names & self.imports.keys():
            raise UnresolvedError(f"{min(both)} is imported and assigned in one function; give one of them another name")

    def number(self, name: str) -> int:
        if name not in self.known:
            self.known[name] = next(self.numbers)
        return self.known[name]


def fresh() -> Iterator[int]:
    return count()


def parameters(arguments: ast.arguments) -> list[ast.arg]:
    """All of them, in the order of the signature."""
    stars = [a for a in (arguments.vararg,) if a], [a for a in (arguments.kwarg,) if a]
    return [*arguments.posonlyargs, *arguments.args, *stars[0], *arguments.kwonlyargs, *stars[1]]


def own_nodes(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """The nodes of a body, without those of inner scopes; the heads of inner scopes are included."""
    waiting = list(body)
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, INNER):
            continue
        if isinstance(node, COMPREHENSIONS):
            waiting += [n for n in ast.walk(node) if isinstance(n, ast.NamedExpr)]
            waiting.append(node.generators[0].iter)
        else:
            waiting += ast.iter_child_nodes(node)


def assigned(body: Iterable[ast.AST]) -> tuple[set[str], list[ast.Import | ast.ImportFrom], set[str], set[str]]:
    """The names that a body binds, its imports, and what it declares global and nonlocal."""
    names: set[str] = set()
    imports: list[ast.Import | ast.ImportFrom] = []
    outer: tuple[set[str], set[str]] = set(), set()
    for node in own_nodes(body):
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                names.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                names.add(name)
            case ast.MatchMapping(rest=str(name)):
                names.add(name)
            case ast.Import() | ast.ImportFrom():
                imports.append(node)
            case ast.Global():
                outer[0].update(node.names)
            case ast.Nonlocal():
                outer[1].update(node.names)
    return names - outer[0] - outer[1], imports, *outer
