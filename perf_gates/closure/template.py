"""A definition as text that is the same on every Python from 3.11 on, with placeholders that a closure numbers.

    %0, %1, ..       parameters in order, then locals by first use                                        (1)
    a Reference      another definition of the package, whatever its name and module                      (2)
    a Key            a string that is the key of a dict, and so may name a parameter that `**` fills      (3)

Names from outside are written by their whole path, strings and numbers unchanged. Left out are comments, docstrings and all
strings that are statements, `pass`, imports, type comments and positions. Of a dict that is used with a constant key only
that row is written. What cannot be followed by name raises UnresolvedError.
"""

import ast
import json
from collections.abc import Callable, Sequence

from .names import Parameter, Reference, Template, Token
from .nodes import Nodes, head, idle
from .package import Definition, Outside, Package, UnresolvedError, bound
from .scopes import fresh, parameters

JIT = {"triton.jit", "triton.runtime.jit.jit", "triton.runtime.jit"}


class Writer(Nodes):
    """Writes one definition."""

    def write(self) -> Template:
        held = self.package.statements(self.definition)
        if self.module.starred:
            raise UnresolvedError(f"{self.module.name}: `{self.module.starred[0]}` may bind any name; import by name")
        if self.definition.keys:
            self.text("row")
            self.row(self.value_of(self.definition), self.definition.keys)
        elif (function := self.package.function(self.definition)) is not None:
            self.top_function(function)
        elif len(held) == 1 and isinstance(held[0], ast.ClassDef):
            self.class_body(held[0])
        else:
            self.text("value")
            changes = self.package.mutators.get(self.definition, [])
            own = [*held, *(change for change in changes if isinstance(change, ast.stmt))]
            self.statements(sorted(own, key=lambda s: s.lineno))
            others = [change for change in changes if isinstance(change, Definition) and change != self.definition]
            for other in sorted(set(others), key=lambda d: shape(self.package, d)):
                self.parts("changed", Reference(other))
        for path in self.package.dynamic.get(f"{self.definition.module}.{self.definition.name}".removeprefix("."), []):
            module, _, name = path.rpartition(".")
            found = self.package.settled(Definition(module, name))
            if not isinstance(found, Definition):
                raise UnresolvedError(f"{path} in the table of dynamic look-ups is no definition")
            self.parts("finds", Reference(found))
        return self.made

    def top_function(self, node: ast.FunctionDef) -> None:
        self.function = node
        every = parameters(node.args)
        self.named = {a.arg: place for place, a in enumerate(every)}
        self.text("def")
        self.sequence(node.decorator_list)
        self.named = {}
        self.signature(node.args, lambda name: Parameter(self.definition, name))
        self.numbers = fresh()
        self.body(node.args, node.body, node.returns)

    def signature(self, arguments: ast.arguments, name: Callable[[str], Token]) -> None:
        """Parameters by kind, with annotations and defaults, which belong to the scope outside."""
        positional = [*arguments.posonlyargs, *arguments.args]
        defaults = [*[None] * (len(positional) - len(arguments.defaults)), *arguments.defaults]
        rows = [(a, "positional", d) for a, d in zip(positional, defaults, strict=True)]
        rows += [(a, "star", None) for a in (arguments.vararg,) if a]
        rows += [(a, "keyword", d) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
        rows += [(a, "stars", None) for a in (arguments.kwarg,) if a]
        for a, kind, default in rows:
            self.made.tokens += ["(", kind, "" if kind.startswith("star") else name(a.arg)]
            self.annotation(a.annotation)
            self.optional(default)
            self.text(")")

    def body(self, arguments: ast.arguments, body: Sequence[ast.stmt], returns: ast.expr | None) -> None:
        self.annotation(returns)
        self.scopes.append(self.scope(arguments, body))
        self.statements(body)
        self.scopes.pop()

    def on_functiondef(self, node: ast.FunctionDef) -> None:
        self.text("(")
        if self.scopes:
            self.binding(node.name)
            self.inner_function(node)
        else:  # one of several definitions of a global name
            self.binding(node.name)
            outer, self.function = self.function, node
            self.text("def")
            self.sequence(node.decorator_list)
            self.signature(node.args, json.dumps)
            self.body(node.args, node.body, node.returns)
            self.function = outer
        self.text(")")

    def inner_function(self, node: ast.FunctionDef | ast.Lambda) -> None:
        """An inner function: its parameters keep their names if they may be passed by name."""
        calls = [n for n in ast.walk(self.function) if isinstance(n, ast.Call)] if self.function else []
        unknown = [n for n in calls if self.package.function(self.target_of(head(n))) is None]
        keywords = {keyword.arg for call in unknown for keyword in call.keywords}
        called = {id(n.func) for n in calls}
        names = (n for n in ast.walk(self.function) if isinstance(n, ast.Name)) if self.function else iter(())
        escapes = isinstance(node, ast.FunctionDef) and any(n.id == node.name and id(n) not in called for n in names)

        def name(given: str) -> Token:
            return json.dumps(given) if escapes or keywords & {None, given} else ""

        if isinstance(node, ast.FunctionDef):
            self.text("inner")
            self.sequence(node.decorator_list)
            self.signature(node.args, name)
            self.body(node.args, node.body, node.returns)
        else:
            self.text("lambda")
            self.signature(node.args, name)
            self.scopes.append(self.scope(node.args, [node.body]))
            self.node(node.body)
            self.scopes.pop()

    def class_body(self, node: ast.ClassDef) -> None:
        """A whole class: names of fields and methods, and of their parameters, are kept, because the class of an object is
        unknown."""
        self.text("class")
        for part in (node.decorator_list, node.bases):
            self.sequence(part)
        self.keywords(node.keywords, None)
        self.class_names = {name for statement in node.body for name in bound(statement)}
        for statement in node.body:
            if idle(statement):
                continue
            self.text("(")
            if isinstance(statement, ast.FunctionDef):
                self.text("method", json.dumps(statement.name))
                self.sequence(statement.decorator_list)
                self.signature(statement.args, json.dumps)
                names, self.class_names, self.numbers, self.function = self.class_names, set(), fresh(), statement
                self.body(statement.args, statement.body, statement.returns)
                self.class_names, self.function = names, None
            else:
                self.node(statement)
            self.text(")")
        self.class_names = set()


def shape(package: Package, definition: Definition) -> str:
    """A definition's text without numbers of others: an order of definitions that does not depend on names."""
    made = Writer(package, definition).write()
    return " ".join(token if isinstance(token, str) else "@" for token in made.tokens)


def is_jit(package: Package, definition: Definition) -> bool:
    """Whether Triton compiles a function."""
    function, writer = package.function(definition), Writer(package, definition)
    heads = [d.func if isinstance(d, ast.Call) else d for d in (function.decorator_list if function else [])]
    found = (writer.target_of(head) for head in heads)
    return any(isinstance(target, Outside) and target.path in JIT for target in found)
