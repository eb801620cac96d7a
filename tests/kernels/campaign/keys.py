"""Names of breaks that hold while code moves: the function, and its statement as it is and as it is broken.

    name        function # statement . which of several alike : kind : broken statement
    function    its name; where several modules have one of that name, with a hash of it
    statement   by a hash of its text: a simple one, the head of one that holds others, a signature, or a constant's value

Texts are those of `perf_gates.closure`: without formatting, and with locals and parameters numbered in their function. So a
break is found again after a move of the file, another name of the module or of a local.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, count
from pathlib import Path

from perf_gates.closure.hashes import digest
from perf_gates.closure.names import Key, Parameter, Reference, Template
from perf_gates.closure.package import Definition, Package
from perf_gates.closure.scopes import fresh
from perf_gates.closure.template import Writer, shape

HEADS = (ast.If, ast.For, ast.While, ast.With, ast.Try)
Span = tuple[int, int]


@cache
def package_of(folder: Path) -> Package:
    return Package(folder)


@cache
def writer_of(folder: Path, module: str, name: str, method: str) -> Writer:
    """A writer that knows the numbers of all names of a function, or of none outside functions."""
    package = package_of(folder)
    definition = Definition(module, name)
    writer, node = Writer(package, definition), package.statements(definition)[0]
    if method:
        assert isinstance(node, ast.ClassDef)
        node = next(s for s in node.body if isinstance(s, ast.FunctionDef) and s.name == method)
    if isinstance(node, ast.FunctionDef):
        writer.function, writer.numbers = node, fresh()
        writer.scopes = [writer.scope(node.args, node.body)]
        writer.statements(node.body)
    return writer


def text_of(writer: Writer, node: ast.stmt, head: bool) -> str:
    """A statement, or the head of one, as text. Raises: UnresolvedError."""
    writer.made, writer.numbers = Template(), count(10_000)
    if isinstance(node, ast.FunctionDef) and head:
        scopes, writer.scopes = writer.scopes, []
        writer.sequence(node.decorator_list)
        writer.signature(node.args, lambda _: "")
        writer.annotation(node.returns)
        writer.scopes = scopes
    else:
        writer.statements([node])
    return " ".join(_told(token) for token in writer.made.tokens)


def _told(token: object) -> str:
    match token:
        case Key(text=text):
            return repr(text)
        case Reference():
            return "@"
        case Parameter():
            return ""
    return str(token)


@dataclass(frozen=True)
class Part:
    """A statement of a file, by bytes; of one that holds others the head. `column`: of its first byte."""

    start: int
    end: int
    column: int
    head: bool


@dataclass(frozen=True)
class Owner:
    """A definition with its statements, the signature first."""

    name: str
    method: str
    parts: tuple[Part, ...]


class Statements:
    """The statements of a file. A function in a function is one statement of it."""

    def __init__(self, source: bytes) -> None:
        self.source = source
        lines = source.splitlines(keepends=True)
        self.starts = [0, *accumulate(map(len, lines))]
        self.owners = [*self._owners(ast.parse(source).body)]

    def _owners(self, body: list[ast.stmt]) -> Iterator[Owner]:
        for node in body:
            match node:
                case ast.FunctionDef():
                    yield Owner(node.name, "", (self._part(node, True), *self._inside(node.body)))
                case ast.ClassDef():
                    for inner in (s for s in node.body if isinstance(s, ast.FunctionDef)):
                        yield Owner(node.name, inner.name, (self._part(inner, True), *self._inside(inner.body)))
                case ast.Assign(targets=[ast.Name(id=name) | ast.Tuple(elts=[ast.Name(id=name), *_])]):
                    yield Owner(name, "", (self._part(node, False),))
                case ast.AnnAssign(target=ast.Name(id=name)):
                    yield Owner(name, "", (self._part(node, False),))

    def _inside(self, body: list[ast.stmt]) -> Iterator[Part]:
        """The statements of a body and of those inside them, in order."""
        for node in body:
            yield self._part(node, isinstance(node, HEADS))
            if isinstance(node, HEADS):
                handlers = [s for handler in getattr(node, "handlers", []) for s in handler.body]
                later = [*getattr(node, "orelse", []), *getattr(node, "finalbody", [])]
                yield from self._inside([*node.body, *handlers, *later])

    def _part(self, node: ast.stmt, head: bool) -> Part:
        first = node.decorator_list[0] if isinstance(node, ast.FunctionDef) and node.decorator_list else None
        line, column = (first.lineno, first.col_offset - 1) if first else (node.lineno, node.col_offset)
        end = self.starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        if head:
            body = node.body[0]  # type: ignore[attr-defined]
            inner = body.decorator_list[0] if isinstance(body, ast.FunctionDef) and body.decorator_list else body
            end = self.starts[inner.lineno - 1] + inner.col_offset
        return Part(self.starts[line - 1] + column, end, column, head)

    def read(self, part: Part, change: tuple[Span, bytes] | None = None) -> ast.stmt:
        """A statement read alone, with a change. Raises: SyntaxError."""
        text = self.source[part.start : part.end]
        if change is not None:
            (low, high), new = change
            text = text[: low - part.start] + new + text[high - part.start :]
        code = text.decode().rstrip()
        code = " " * part.column + (code[2:] if code.startswith("elif") else code)
        if part.head:
            code += "\n" + " " * (part.column + 4) + "pass"
        tree = ast.parse(f"if 1:\n{code}" if part.column else code)
        return tree.body[0].body[0] if part.column else tree.body[0]  # type: ignore[attr-defined]


class Names:
    """The names of the breaks of a package."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[Path, Statements] = {}
        self.known: dict[tuple[Path, Owner], list[str]] = {}
        homes = Counter(name for module in package_of(folder).modules.values() for name in module.statements)
        self.several = {name for name, modules in homes.items() if modules > 1}

    def at(self, file: Path, span: Span) -> tuple[Owner, int]:
        """The definition that holds some bytes, and which of its statements. Raises: LookupError for none."""
        if file not in self.files:
            self.files[file] = Statements(file.read_bytes())
        for owner in self.files[file].owners:
            places = [i for i, part in enumerate(owner.parts) if part.start <= span[0] and span[1] <= part.end]
            if places:
                return owner, places[-1]
        raise LookupError(f"bytes {span[0]} to {span[1]} of {file.name} are in no statement")

    def owner(self, file: Path, span: Span) -> str:
        """The name of the definition; where several modules have it, with a hash of what it is."""
        owner, _ = self.at(file, span)
        told = f"{owner.name}.{owner.method}".removesuffix(".")
        if owner.name not in self.several:
            return told
        return f"{told}~{digest(shape(package_of(self.folder), Definition(self.module(file), owner.name)))[:8]}"

    def name(self, file: Path, span: Span, kind: str, text: str) -> str:
        """Raises: LookupError for bytes of no statement, SyntaxError for a text that is no code there."""
        owner, at = self.at(file, span)
        part, texts = owner.parts[at], self.texts(file, owner)
        after = text_of(self.writer(file, owner), self.files[file].read(part, (span, text.encode())), part.head)
        which = texts[:at].count(texts[at])
        return f"{self.owner(file, span)}#{digest(texts[at])[:8]}.{which}:{kind}:{digest(after)[:8]}"

    def writer(self, file: Path, owner: Owner) -> Writer:
        return writer_of(self.folder, self.module(file), owner.name, owner.method)

    def module(self, file: Path) -> str:
        return ".".join(file.relative_to(self.folder).with_suffix("").parts)

    def texts(self, file: Path, owner: Owner) -> list[str]:
        """The statements of a definition as texts."""
        if (file, owner) not in self.known:
            held, writer = self.files[file], self.writer(file, owner)
            self.known[file, owner] = [text_of(writer, held.read(part), part.head) for part in owner.parts]
        return self.known[file, owner]


def function_of(name: str) -> str:
    """The definition that the name of a break tells."""
    return name.partition("#")[0].partition("~")[0]


@cache
def names_of(folder: Path) -> Names:
    return Names(folder)
