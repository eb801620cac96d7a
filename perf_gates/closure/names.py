"""What a definition's text consists of, and how names are written in it: owned names by number, others by their meaning."""

import ast
import builtins
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from .package import HOUSE, Definition, Outside, Package, Submodule, Target, UnresolvedError
from .scopes import Scope, assigned, fresh, parameters

BUILTINS = frozenset(dir(builtins)) | {"__name__", "__file__"}
DYNAMIC_BUILTINS = {"getattr", "setattr", "delattr", "globals", "locals", "vars", "eval", "exec", "compile", "__import__"}
DYNAMIC_PATHS = (
    "importlib",
    "builtins",
    "inspect",
    "pkgutil",
    "runpy",
    "sys.modules",
    "operator.attrgetter",
    "operator.methodcaller",
)
DYNAMIC_ATTRIBUTES = {"__dict__", "__globals__", "__builtins__", "__getattribute__", "__getattr__", "__subclasses__"}


@dataclass(frozen=True)
class Reference:
    """A place for the number of a definition."""

    definition: Definition


@dataclass(frozen=True)
class Key:
    """A place for a string that is the key of a dict."""

    text: str


@dataclass(frozen=True)
class Parameter:
    """A place for the name of a parameter, if callers depend on it; otherwise empty."""

    owner: Definition
    name: str


Token: TypeAlias = str | Reference | Key | Parameter


@dataclass
class Template:
    """A definition as tokens, and what a closure must know about it: strings that are not keys, functions whose arguments
    come from a `**` and whether all its keys are seen, functions used other than by a call, attributes of unknown objects."""

    tokens: list[Token] = field(default_factory=list)
    strings: set[str] = field(default_factory=set)
    filled: dict[Definition, bool] = field(default_factory=dict)
    escaped: set[Definition] = field(default_factory=set)
    attributes: set[str] = field(default_factory=set)
    launches: bool = False

    @property
    def references(self) -> Iterator[Definition]:
        return (token.definition for token in self.tokens if isinstance(token, Reference))


class Names:
    """Writes names."""

    def __init__(self, package: Package, definition: Definition) -> None:
        self.package, self.definition, self.module = package, definition, package.modules[definition.module]
        self.made, self.scopes, self.numbers = Template(), list[Scope](), fresh()
        self.named: dict[str, int] = {}
        """Parameters by their place, while strings may name them: in the decorators of their function."""
        self.function: ast.FunctionDef | None = None
        self.class_names: set[str] = set()

    def error(self, node: ast.AST, why: str) -> UnresolvedError:
        """An error that names the place."""
        place = f"{self.package.name}.{self.definition.module}.{self.definition.name}".replace("..", ".")
        return UnresolvedError(f"{place}, line {getattr(node, 'lineno', '?')}: {why}")

    def node(self, node: ast.AST) -> None:
        raise NotImplementedError

    # --- tokens ---

    def text(self, *words: str) -> None:
        self.made.tokens += words

    def parts(self, *tokens: Token) -> None:
        self.made.tokens += ["(", *tokens, ")"]

    def string(self, value: str) -> None:
        if value in self.named:
            self.text(f"%{self.named[value]}")
        else:
            self.made.strings.add(value)
            self.text(json.dumps(value))

    def sequence(self, nodes: Iterable[ast.AST | None]) -> None:
        self.text("[")
        for node in nodes:
            self.optional(node)
        self.text("]")

    def optional(self, node: ast.AST | None) -> None:
        if node is None:
            self.text("-")
        else:
            self.node(node)

    # --- names ---

    def scope(self, arguments: ast.arguments, body: Iterable[ast.AST]) -> Scope:
        """The names of a function; the parameters have the first numbers."""
        names, imports, _, nonlocals = assigned(body)
        bound: dict[str, Target] = {}
        for node in imports:
            for name, target in self.package.imported(self.module, node):
                if target is None:
                    raise self.error(node, "all names of a module are imported; import by name")
                if bound.setdefault(name, target) != target:
                    raise self.error(node, f"{name} is imported from two places; give each its own name")
        own = [a.arg for a in parameters(arguments)]
        scope = Scope(({*names, *own}) - nonlocals - (bound.keys() - names), self.numbers, bound)
        for name in own:
            scope.number(name)
        return scope

    def local(self, name: str) -> str | None:
        """The number of a name that an enclosing function owns."""
        for scope in reversed(self.scopes):
            if name in scope.names:
                return f"%{scope.number(name)}"
            if name in scope.imports:
                return None
        return None

    def binding(self, name: str | None) -> None:
        """A name that a statement binds other than by an expression."""
        number = self.local(name) if name else "-"
        self.made.tokens.append(number or Reference(Definition(self.definition.module, str(name))))

    def target_of(self, node: ast.expr) -> Target | None:
        """The meaning of a name, or of a chain of attributes; None for locals, and for attributes of objects."""
        if isinstance(node, ast.Attribute):
            base = self.target_of(node.value)
            return self.package.member(base, node.attr) if base is not None else None
        if not isinstance(node, ast.Name) or node.id in self.class_names:
            return None
        for scope in reversed(self.scopes):
            if node.id in scope.names:
                return None
            if node.id in scope.imports:
                return self.package.settled(scope.imports[node.id])
        return self.package.lookup(self.definition.module, node.id)

    def target(self, target: Target, node: ast.AST, called: bool) -> None:
        if isinstance(target, Submodule):
            raise self.error(node, f"the module {target.name} is used as a value; name what is taken of it")
        if isinstance(target, Outside):
            if any(target.path == p or target.path.startswith(f"{p}.") for p in DYNAMIC_PATHS):
                self.dynamic(node, target.path)
            self.text(_told(target.path))
            return
        if not called and self.package.function(target) is not None:
            self.made.escaped.add(target)
        self.made.tokens.append(Reference(target))

    def dynamic(self, node: ast.AST, what: str) -> None:
        """A look-up by a computed name: the committed table lists what it may find; otherwise it is refused."""
        if f"{self.definition.module}.{self.definition.name}".removeprefix(".") not in self.package.dynamic:
            raise self.error(node, f"{what} may find any name; write the name, or a row of closure/dynamic.toml")

    def on_name(self, node: ast.Name, called: bool = False) -> None:
        number = self.local(node.id)
        target = None if number else self.target_of(node)
        if number:
            self.text(number)
        elif target is not None:
            self.target(target, node, called)
        elif node.id in self.class_names:
            self.text(json.dumps(node.id))
        elif node.id in BUILTINS:
            if node.id in DYNAMIC_BUILTINS:
                self.dynamic(node, node.id)
            self.text(node.id)
        else:
            raise self.error(node, f"{node.id} is bound nowhere, so its meaning is not known")

    def on_attribute(self, node: ast.Attribute, called: bool = False) -> None:
        target = self.target_of(node)
        if target is not None:
            self.target(target, node, called)
            return
        if node.attr in DYNAMIC_ATTRIBUTES:
            self.dynamic(node, node.attr)
        self.made.attributes.add(node.attr)
        self.text("(", ".")
        self.node(node.value)
        self.text(json.dumps(node.attr), ")")


def _told(path: str) -> str:
    """A name from outside; those of our own packages without their module."""
    if not path.startswith(f"{HOUSE}."):
        return path
    *_, owner, name = path.split(".")
    return f"{HOUSE}:{owner}.{name}" if owner[0].isupper() else f"{HOUSE}:{name}"
