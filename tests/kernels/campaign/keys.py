"""Names of breaks that hold while code moves: the function, and its statement as it is and as it is broken.

    name        function # statement . which of several alike : kind : broken statement
    function    its name; where several modules have one of that name, with a hash of it
    statement   by a hash of its text: a simple one, the head of one that holds others, a signature, or a constant's value

A text has no formatting, and numbers for the names that its function owns; every other name that it reads is left out. So a
break is found again after a move of the file, another name of the module or of a local.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from itertools import accumulate
from pathlib import Path

HEADS = (ast.If, ast.For, ast.While, ast.With, ast.Try)
Span = tuple[int, int]


def digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:16]


class Numbered(ast.NodeTransformer):
    """Numbers in place of the names that a function owns: its parameters, then its locals by their first place."""

    def __init__(self, function: ast.AST | None) -> None:
        nodes = [] if function is None else [*ast.walk(function)]
        arguments = [n for n in nodes if isinstance(n, ast.arg)]
        stored = [n for n in nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)]
        inner = [n for n in nodes if isinstance(n, ast.FunctionDef) and n is not function]
        places = [(n.lineno, n.col_offset, n.arg) for n in arguments] + [(n.lineno, n.col_offset, n.id) for n in stored]
        names = [name for *_, name in sorted([*places, *((n.lineno, n.col_offset, n.name) for n in inner)])]
        self.numbers = {name: f"_{number}" for number, name in enumerate(dict.fromkeys(names))}

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self.numbers.get(node.id, "_"), node.ctx)

    def visit_arg(self, node: ast.arg) -> ast.arg:
        annotation = node.annotation and self.visit(node.annotation)
        return ast.arg(self.numbers.get(node.arg, "_"), annotation)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.generic_visit(node)
        node.name = self.numbers.get(node.name, "_")
        return node

    def text(self, node: ast.AST) -> str:
        return ast.unparse(ast.fix_missing_locations(self.visit(deepcopy(node))))


def definition_text(node: ast.AST) -> str:
    """A whole definition, without its docstrings."""
    node = deepcopy(node)
    for part in ast.walk(node):
        if isinstance(part, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(part) is not None:
            part.body = part.body[1:] or [ast.Pass()]
    return Numbered(node if isinstance(node, ast.FunctionDef) else None).text(node)


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
    node: ast.AST = field(compare=False)
    whole: ast.AST = field(compare=False)


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
                    yield Owner(node.name, "", (self._part(node, True), *self._inside(node.body)), node, node)
                case ast.ClassDef():
                    for inner in (s for s in node.body if isinstance(s, ast.FunctionDef)):
                        yield Owner(node.name, inner.name, (self._part(inner, True), *self._inside(inner.body)), inner, node)
                case ast.Assign(targets=[ast.Name(id=name) | ast.Tuple(elts=[ast.Name(id=name), *_])]):
                    yield Owner(name, "", (self._part(node, False),), node, node)
                case ast.AnnAssign(target=ast.Name(id=name)):
                    yield Owner(name, "", (self._part(node, False),), node, node)

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
        self.files = {file: Statements(file.read_bytes()) for file in sorted(folder.rglob("*.py"))}
        self.known: dict[tuple[Path, Owner], tuple[Numbered, list[str]]] = {}
        self.hashed: dict[Owner, str] = {}
        homes = Counter(name for held in self.files.values() for name in {owner.name for owner in held.owners})
        self.several = {name for name, files in homes.items() if files > 1}

    def at(self, file: Path, span: Span) -> tuple[Owner, int]:
        """The definition that holds some bytes, and which of its statements. Raises: LookupError for none."""
        for owner in self.files[file].owners:
            places = [i for i, part in enumerate(owner.parts) if part.start <= span[0] and span[1] <= part.end]
            if places:
                return owner, places[-1]
        raise LookupError(f"bytes {span[0]} to {span[1]} of {file.name} are in no statement")

    def owner(self, file: Path, span: Span) -> str:
        """The name of the definition; where several modules have it, with a hash of what it is."""
        owner, _ = self.at(file, span)
        told = f"{owner.name}.{owner.method}".removesuffix(".")
        if owner.name in self.several and owner not in self.hashed:
            self.hashed[owner] = digest(definition_text(owner.whole))[:8]
        return f"{told}~{self.hashed[owner]}" if owner.name in self.several else told

    def name(self, file: Path, span: Span, kind: str, text: str) -> str:
        """Raises: LookupError for bytes of no statement, SyntaxError for a text that is no code there."""
        owner, at = self.at(file, span)
        numbered, texts = self.texts(file, owner)
        after = numbered.text(self.files[file].read(owner.parts[at], (span, text.encode())))
        which = texts[:at].count(texts[at])
        return f"{self.owner(file, span)}#{digest(texts[at])[:8]}.{which}:{kind}:{digest(after)[:8]}"

    def texts(self, file: Path, owner: Owner) -> tuple[Numbered, list[str]]:
        """What numbers the names of a definition, and its statements as texts."""
        if (file, owner) not in self.known:
            numbered = Numbered(owner.node if isinstance(owner.node, ast.FunctionDef) else None)
            self.known[file, owner] = numbered, [numbered.text(self.files[file].read(part)) for part in owner.parts]
        return self.known[file, owner]

    def hashes(self) -> dict[str, str]:
        """Of every module that defines something, by its own name: a hash that a comment, a name or a move leaves."""
        return {
            file.stem: digest("\n".join(sorted({digest(definition_text(owner.whole)) for owner in held.owners})))
            for file, held in self.files.items()
            if held.owners
        }


def function_of(name: str) -> str:
    """The definition that the name of a break tells."""
    return name.partition("#")[0].partition("~")[0]


@cache
def names_of(folder: Path) -> Names:
    return Names(folder)
