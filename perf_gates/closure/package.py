"""The modules of a package as syntax trees, and what each name in them means. Nothing is imported.

A name of a module is a definition of the package, a module of it, or something outside, identified by its whole dotted path.
All statements that assign a name belong to its definition.
"""

import ast
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

TABLE = Path(__file__).parent / "dynamic.toml"
HOUSE = "ssmspec_ref"
"""A package whose modules may move: its names are written without their module."""
MUTATORS = {"append", "extend", "add", "update", "insert", "remove", "pop", "popitem", "clear", "setdefault", "discard"}
MUTATORS |= {"sort", "reverse", "__setitem__"}


class UnresolvedError(ValueError):
    """Code whose meaning cannot be followed by name."""


@dataclass(frozen=True, order=True)
class Definition:
    """A function, class or value of a module; with `keys` only that row of a dict, None for a key known at run time."""

    module: str
    name: str
    keys: tuple[str | None, ...] = ()


@dataclass(frozen=True)
class Submodule:
    """A module of the package; the package itself is the empty name."""

    name: str


@dataclass(frozen=True)
class Outside:
    """A name from elsewhere, by its dotted path."""

    path: str


Target: TypeAlias = Definition | Submodule | Outside


@dataclass
class Module:
    """A module: its tree, its imports by the name they bind, and the statements that bind each other name."""

    name: str
    is_package: bool
    tree: ast.Module
    imports: dict[str, Target] = field(default_factory=dict)
    statements: dict[str, list[ast.stmt]] = field(default_factory=dict)
    starred: list[str] = field(default_factory=list)


class Package:
    """All modules below a folder. `dynamic`: what look-ups by a computed name may find, by the function that makes them.

    Raises: UnresolvedError, from its methods, for what cannot be followed.
    """

    def __init__(self, folder: Path, dynamic: dict[str, list[str]] | None = None) -> None:
        self.folder, self.name = folder, folder.name
        self.dynamic = written_down() if dynamic is None else dynamic
        self.modules: dict[str, Module] = {}
        for file in sorted(folder.rglob("*.py")):
            path = file.relative_to(folder).with_suffix("").parts
            is_package = path[-1] == "__init__"
            name = ".".join(path[:-1] if is_package else path)
            self.modules[name] = Module(name, is_package, ast.parse(file.read_bytes()))
        for name in [*self.modules]:  # folders without an __init__.py
            while name := name.rpartition(".")[0]:
                self.modules.setdefault(name, Module(name, True, ast.Module([], [])))
        if "" not in self.modules:
            raise UnresolvedError(f"{folder} holds no __init__.py; give the folder of a package")
        for module in self.modules.values():
            for statement in split(module.tree.body):
                self._bind(module, statement)

    # --- what a module binds ---

    def _bind(self, module: Module, statement: ast.stmt) -> None:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            for name, target in self.imported(module, statement):
                if target is None:
                    module.starred.append(ast.unparse(statement))
                elif name in module.imports and module.imports[name] != target:
                    raise UnresolvedError(f"{module.name}: {name} is imported twice, from two places; give each its own name")
                else:
                    module.imports[name] = target
        elif isinstance(statement, ast.If) and _typing_only(statement.test):
            for inner in [*statement.body, *statement.orelse]:
                self._bind(module, inner)
        else:
            for name in bound(statement):
                module.statements.setdefault(name, []).append(statement)

    def imported(self, module: Module, node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, Target | None]]:
        """The names that an import binds; None for all names of a module."""
        if isinstance(node, ast.Import):
            for alias in node.names:
                path = alias.name if alias.asname else alias.name.partition(".")[0]
                yield alias.asname or path, self.absolute(path)
            return
        base = self._base(module, node)
        for alias in node.names:
            if alias.name == "*":
                yield "*", None
            elif base.partition(".")[0] == self.name:
                yield alias.asname or alias.name, Definition(base.removeprefix(self.name).removeprefix("."), alias.name)
            else:
                yield alias.asname or alias.name, self.absolute(f"{base}.{alias.name}")

    def _base(self, module: Module, node: ast.ImportFrom) -> str:
        """The whole dotted path that names are imported from."""
        if not node.level:
            return node.module or ""
        parts = [self.name, *(module.name.split(".") if module.name else [])]
        parts = parts[: len(parts) - node.level + module.is_package]
        if not parts:
            raise UnresolvedError(f"{module.name}: {ast.unparse(node)} leaves the package {self.name}")
        return ".".join([*parts, *([node.module] if node.module else [])])

    def absolute(self, path: str) -> Target:
        if path.partition(".")[0] != self.name:
            return Outside(path)
        return Submodule(path.removeprefix(self.name).removeprefix("."))

    # --- what a name means ---

    def lookup(self, module: str, name: str) -> Target | None:
        """A global name of a module; None for one that is not bound there."""
        held = self.modules[module]
        if name in held.statements and name in held.imports:
            raise UnresolvedError(f"{module}: {name} is imported and assigned; give one of them another name")
        if name in held.statements:
            return Definition(module, name)
        if name in held.imports:
            return self.settled(held.imports[name])
        return Definition(module, name) if (module, name) in self.globals else None

    def settled(self, target: Target) -> Target:
        """The meaning of an import after all re-exports."""
        seen = set()
        while isinstance(target, Definition):
            if target in seen:
                raise UnresolvedError(f"{target.module}: {target.name} is imported in a circle")
            seen.add(target)
            held = self.modules.get(target.module)
            if held is None:
                raise UnresolvedError(f"{self.name} has no module {target.module}, of which {target.name} is imported")
            if target.name in held.statements or (target.module, target.name) in self.globals:
                return target
            if target.name in held.imports and held.imports[target.name] != target:
                target = held.imports[target.name]
                continue
            inner = f"{target.module}.{target.name}".removeprefix(".")
            if inner not in self.modules:
                raise UnresolvedError(f"{self.name}.{target.module} has no name {target.name}; import it where it is defined")
            return Submodule(inner)
        if isinstance(target, Submodule) and target.name not in self.modules:
            raise UnresolvedError(f"{self.name} has no module {target.name}")
        return target

    def member(self, target: Target, name: str) -> Target | None:
        """An attribute of a module, or of what is outside; None of a definition."""
        if isinstance(target, Outside):
            return Outside(f"{target.path}.{name}")
        return self.settled(Definition(target.name, name)) if isinstance(target, Submodule) else None

    def statements(self, definition: Definition) -> list[ast.stmt]:
        return self.modules[definition.module].statements.get(definition.name, [])

    def function(self, target: Target | None) -> ast.FunctionDef | None:
        """The function of a definition, if it is exactly one."""
        held = self.statements(target) if isinstance(target, Definition) and not target.keys else []
        return held[0] if len(held) == 1 and isinstance(held[0], ast.FunctionDef) else None

    def definitions(self) -> Iterator[Definition]:
        for module in self.modules.values():
            yield from (Definition(module.name, name) for name in module.statements)

    @cached_property
    def classes(self) -> dict[Definition, ast.ClassDef]:
        found = ((d, self.statements(d)) for d in self.definitions())
        return {d: held[0] for d, held in found if len(held) == 1 and isinstance(held[0], ast.ClassDef)}

    @cached_property
    def globals(self) -> set[tuple[str, str]]:
        """Names that functions declare global, by module."""
        walked = ((module.name, node) for module in self.modules.values() for node in ast.walk(module.tree))
        return {(module, name) for module, node in walked if isinstance(node, ast.Global) for name in node.names}

    # --- what changes a value ---

    @cached_property
    def mutators(self) -> dict[Definition, list[ast.stmt | Definition]]:
        """The statements of its own module, and the definitions anywhere, that change a value after its assignment."""
        found: dict[Definition, list[ast.stmt | Definition]] = {}
        for module in self.modules.values():
            for statement in split(module.tree.body):
                if isinstance(statement, ast.Import | ast.ImportFrom):
                    continue
                owners = bound(statement)
                for value in self._changed(module, statement):
                    if value.module == module.name and not isinstance(statement, ast.FunctionDef | ast.ClassDef):
                        if value.name not in owners:
                            found.setdefault(value, []).append(statement)
                    elif owners:
                        found.setdefault(value, []).extend(Definition(module.name, name) for name in sorted(owners))
                    else:
                        raise UnresolvedError(f"{module.name} changes {value.name} of {value.module}; assign it there")
        return found

    def _changed(self, module: Module, statement: ast.stmt) -> set[Definition]:
        """The values that a statement, or a whole function, changes; for a bare call everything that it names."""
        function = isinstance(statement, ast.FunctionDef | ast.ClassDef)
        own = (
            {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
            | {n.arg for n in ast.walk(statement) if isinstance(n, ast.arg)}
            if function
            else set()
        )
        declared = {name for n in ast.walk(statement) if isinstance(n, ast.Global) for name in n.names}
        found = {Definition(module.name, name) for name in declared & own}
        for node in ast.walk(statement):
            if isinstance(node, ast.Subscript | ast.Attribute) and not isinstance(node.ctx, ast.Load):
                roots = [node.value]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS:
                roots = [node.func.value]
            else:
                continue
            for root in roots:
                target = self._root(module, root, own - declared)
                if isinstance(node, ast.Attribute) and isinstance(target, Submodule):
                    target = self.member(target, node.attr)
                if isinstance(target, Definition):
                    found.add(target)
        if isinstance(statement, ast.Expr) and not isinstance(statement.value, ast.Constant):
            names = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name)}
            found |= {t for name in names if isinstance(t := self.lookup(module.name, name), Definition)}
        return found

    def _root(self, module: Module, node: ast.expr, own: set[str]) -> Target | None:
        """The meaning of the innermost name of a chain of attributes and subscripts, following modules."""
        if isinstance(node, ast.Name):
            return None if node.id in own else self.lookup(module.name, node.id)
        if isinstance(node, ast.Attribute):
            base = self._root(module, node.value, own)
            return self.member(base, node.attr) if isinstance(base, Submodule) else base
        return self._root(module, node.value, own) if isinstance(node, ast.Subscript) else None


def split(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements, where `A, B = 1, 2` is two."""
    for statement in body:
        match statement:
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)) if len(names) == len(
                values
            ) and not any(isinstance(part, ast.Starred) for part in [*names, *values]):
                for name, value in zip(names, values, strict=True):
                    yield ast.copy_location(ast.Assign([name], value), statement)
            case _:
                yield statement


def bound(statement: ast.stmt) -> set[str]:
    """The global names that a statement of a module binds, at any depth, but not inside functions and classes."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    found: set[str] = set()
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
            continue
        if isinstance(node, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            continue
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name.partition(".")[0] for alias in node.names} - {"*"}
        waiting += ast.iter_child_nodes(node)
    return found


def _typing_only(test: ast.expr) -> bool:
    return ast.unparse(test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def written_down() -> dict[str, list[str]]:
    """The committed table of look-ups by a computed name: `module.function` and what it may find."""
    rows = tomllib.loads(TABLE.read_text()).get("dynamic", [])
    return {row["function"]: row["finds"] for row in rows}
