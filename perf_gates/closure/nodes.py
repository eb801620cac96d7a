"""Statements and expressions as text: the written fields of each node of a syntax tree, in the same order on every Python."""

import ast
import json
from collections.abc import Iterable, Sequence

from .flow import Flow
from .names import Key
from .package import Definition
from .rows import Rows
from .scopes import Scope, parameters

FIELDS: dict[type[ast.AST], tuple[str, ...]] = {
    ast.Expr: ("value",), ast.Assign: ("targets", "value"), ast.AugAssign: ("target", "op", "value"),
    ast.Return: ("value",), ast.Delete: ("targets",), ast.For: ("target", "iter", "body", "orelse"),
    ast.While: ("test", "body", "orelse"), ast.If: ("test", "body", "orelse"), ast.With: ("items", "body"),
    ast.withitem: ("context_expr", "optional_vars"), ast.Raise: ("exc", "cause"), ast.Assert: ("test", "msg"),
    ast.Try: ("body", "handlers", "orelse", "finalbody"), ast.TryStar: ("body", "handlers", "orelse", "finalbody"),
    ast.Break: (), ast.Continue: (), ast.BoolOp: ("op", "values"), ast.NamedExpr: ("target", "value"),
    ast.BinOp: ("left", "op", "right"), ast.UnaryOp: ("op", "operand"), ast.IfExp: ("test", "body", "orelse"),
    ast.Set: ("elts",), ast.Yield: ("value",), ast.YieldFrom: ("value",), ast.Compare: ("left", "ops", "comparators"),
    ast.Starred: ("value",), ast.List: ("elts",), ast.Tuple: ("elts",), ast.Slice: ("lower", "upper", "step"),
    ast.Match: ("subject", "cases"), ast.match_case: ("pattern", "guard", "body"), ast.MatchValue: ("value",),
    ast.MatchSequence: ("patterns",), ast.MatchOr: ("patterns",),
    ast.Subscript: ("value", "slice"),
}  # fmt: skip
"""The fields of a node that are written, in this order, on every Python."""


class Nodes(Rows):
    """Writes nodes; subclasses write functions and classes."""

    def inner_function(self, node: ast.FunctionDef | ast.Lambda) -> None:
        raise NotImplementedError

    def statements(self, body: Iterable[ast.stmt]) -> None:
        self.text("[")
        for statement in body:
            if not idle(statement):
                self.node(statement)
        self.text("]")

    def annotation(self, node: ast.expr | None) -> None:
        """An annotation; text in quotes is read as code, except inside `Literal`."""
        if node is not None:
            node = unquoted(node)
        self.optional(node)

    def node(self, node: ast.AST) -> None:
        special = getattr(self, f"on_{type(node).__name__.lower()}", None)
        if special is not None:
            special(node)
        elif isinstance(node, ast.operator | ast.unaryop | ast.boolop | ast.cmpop):
            self.text(type(node).__name__)
        elif type(node) in FIELDS:
            self.text("(", type(node).__name__)
            for name in FIELDS[type(node)]:
                value = getattr(node, name)
                if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                    self.statements(value)
                elif isinstance(value, list):
                    self.sequence(value)
                else:
                    self.optional(value)
            self.text(")")
        else:
            raise self.error(
                node, f"{type(node).__name__} is not known to the hash of code; teach `closure.template` how to write it"
            )

    def on_constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, str):
            self.string(value)
        elif value is None or isinstance(value, bool) or value is Ellipsis:
            self.text(repr(value))
        elif isinstance(value, int | float | complex | bytes):
            self.text(f"{type(value).__name__}:{value!r}")
        else:
            raise self.error(node, f"a constant of {type(value).__name__}")

    def on_joinedstr(self, node: ast.JoinedStr) -> None:
        """Adjacent pieces of text are merged; no piece is empty, and no format either."""
        self.text("(", "format")
        piece = ""
        for value in node.values:
            if isinstance(value, ast.Constant):
                piece += str(value.value)
                continue
            if piece:
                self.string(piece)
            piece = ""
            assert isinstance(value, ast.FormattedValue)
            self.text("(", "field", str(value.conversion))
            self.node(value.value)
            spec = value.format_spec
            empty = isinstance(spec, ast.JoinedStr) and all(
                isinstance(v, ast.Constant) and v.value == "" for v in spec.values
            )
            self.optional(None if empty else spec)
            self.text(")")
        if piece:
            self.string(piece)
        self.text(")")

    def on_annassign(self, node: ast.AnnAssign) -> None:
        self.text("(", "AnnAssign")
        self.node(node.target)
        self.annotation(node.annotation)
        self.optional(node.value)
        self.text(")")

    def on_dict(self, node: ast.Dict) -> None:
        self.text("(", "Dict")
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str) and key.value not in self.named:
                self.made.tokens.append(Key(key.value))
            else:
                self.optional(key)
            self.node(value)
        self.text(")")

    def on_excepthandler(self, node: ast.ExceptHandler) -> None:
        self.text("(", "except")
        self.optional(node.type)
        self.binding(node.name)
        self.statements(node.body)
        self.text(")")

    def on_lambda(self, node: ast.Lambda) -> None:
        self.text("(")
        self.inner_function(node)
        self.text(")")

    def on_classdef(self, node: ast.ClassDef) -> None:
        raise self.error(node, f"class {node.name} stands in a function or a branch; define it in a module")

    def on_import(self, node: ast.Import | ast.ImportFrom) -> None:
        """Imports in a function are written where they are used; those in a branch of a module, here."""
        for name, target in self.package.imported(self.module, node) if not self.scopes else ():
            if target is None:
                raise self.error(node, "all names of a module are imported; import by name")
            self.text("(", "import")
            self.binding(name)
            self.target(self.package.settled(target), node, called=False)
            self.text(")")

    on_importfrom = on_import

    def on_global(self, node: ast.Global | ast.Nonlocal) -> None:
        """Written with its assignments."""

    on_nonlocal = on_global

    def on_matchsingleton(self, node: ast.MatchSingleton) -> None:
        self.text("(", "MatchSingleton", repr(node.value), ")")

    def on_matchas(self, node: ast.MatchAs) -> None:
        self.text("(", "MatchAs")
        self.optional(node.pattern)
        self.binding(node.name)
        self.text(")")

    def on_matchstar(self, node: ast.MatchStar) -> None:
        self.text("(", "MatchStar")
        self.binding(node.name)
        self.text(")")

    def on_matchclass(self, node: ast.MatchClass) -> None:
        self.text("(", "MatchClass")
        self.node(node.cls)
        self.sequence(node.patterns)
        self.text(*map(json.dumps, node.kwd_attrs))
        self.sequence(node.kwd_patterns)
        self.text(")")

    def comprehension(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> None:
        names = {n.id for g in node.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)}
        self.text("(", type(node).__name__)
        self.scopes.append(Scope(names, self.numbers))
        for generator in node.generators:
            if generator.is_async:
                raise self.error(node, "an asynchronous comprehension")
            if generator is node.generators[0]:
                inner = self.scopes.pop()
                self.node(generator.iter)
                self.scopes.append(inner)
            else:
                self.node(generator.iter)
            self.node(generator.target)
            self.sequence(generator.ifs)
        for part in (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,):
            self.node(part)
        self.scopes.pop()
        self.text(")")

    on_listcomp = on_setcomp = on_dictcomp = on_generatorexp = comprehension

    def on_call(self, node: ast.Call) -> None:
        """A call, or the launch of a kernel. Keywords of a function of the package are written by the place of its
        parameter."""
        launched = isinstance(node.func, ast.Subscript)
        target = self.target_of(head(node))
        function = target if isinstance(target, Definition) and self.package.function(target) is not None else None
        self.text("(", "launch" if launched and function else "call")
        if launched and function and isinstance(node.func, ast.Subscript):
            self.made.launches = True
            self.target(function, node, called=True)
            self.node(node.func.slice)
            if not Flow(self, ast.Tuple).always(node.func.slice):
                self.made.escaped.add(function)  # Triton may call the grid with the arguments by name
        elif function:
            self.target(function, node, called=True)
        else:
            self.node(node.func)
        self.sequence(node.args)
        self.keywords(node.keywords, function)
        self.text(")")

    def keywords(self, keywords: Sequence[ast.keyword], function: Definition | None) -> None:
        found = self.package.function(function)
        places = {a.arg: i for i, a in enumerate(parameters(found.args))} if found else {}
        stars = {a.arg for a in (found.args.vararg, found.args.kwarg) if a} if found else set()
        for keyword in keywords:
            self.text("(")
            if keyword.arg is None:
                self.text("**")
                if function:
                    seen = Flow(self, ast.Dict).always(keyword.value)
                    self.made.filled[function] = self.made.filled.get(function, True) and seen
            elif keyword.arg in places and keyword.arg not in stars:
                self.text(f"={places[keyword.arg]}")
            else:
                self.text(f"={json.dumps(keyword.arg)}")
            self.node(keyword.value)
            self.text(")")


def unquoted(node: ast.expr) -> ast.expr:
    """An annotation in which quoted text, as a whole or on a side of `|`, is read as code."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return unquoted(ast.parse(node.value, mode="eval").body)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return ast.copy_location(ast.BinOp(unquoted(node.left), node.op, unquoted(node.right)), node)
    return node


def head(call: ast.Call) -> ast.expr:
    """The callee, or the kernel launched over a grid."""
    return call.func.value if isinstance(call.func, ast.Subscript) else call.func


def idle(statement: ast.stmt) -> bool:
    """Whether a statement does nothing: a string alone, or `pass`."""
    text = (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )
    return text or isinstance(statement, ast.Pass)
