"""Every place of the kernels' sources that can be broken, found in their syntax trees, and the breaks of each.

A place is a node of the tree; its breaks are texts that may stand instead of it. What cannot be broken, or not seen in an
interpreter, is left out by `leaves_out`, with the reason.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

PACKAGE = Path(__file__).parents[3] / "kernels" / "ssmspec_kernels"

COMPARISONS = {
    ast.Lt: ("<", ["<=", ">"]), ast.LtE: ("<=", ["<", ">"]), ast.Gt: (">", [">=", "<"]), ast.GtE: (">=", [">", "<"]),
    ast.Eq: ("==", ["!="]), ast.NotEq: ("!=", ["=="]), ast.Is: ("is", ["is not"]), ast.IsNot: ("is not", ["is"]),
}  # fmt: skip
ARITHMETIC = {
    ast.Add: ("+", ["-"]), ast.Sub: ("-", ["+"]), ast.Mult: ("*", ["+"]), ast.Div: ("/", ["*"]),
    ast.FloorDiv: ("//", ["*", "%"]), ast.Mod: ("%", ["//"]), ast.Pow: ("**", ["*"]), ast.RShift: (">>", ["<<"]),
    ast.BitAnd: ("&", ["|"]), ast.BitOr: ("|", ["&"]), ast.BitXor: ("^", ["|"]), ast.LShift: ("<<", [">>"]),
    ast.MatMult: ("@", ["*"]),
}  # fmt: skip
FUNCTIONS = {
    "maximum": "minimum", "minimum": "maximum", "max": "min", "min": "max", "exp": "abs", "rsqrt": "sqrt", "log": "exp",
    "zeros_like": "ones_like",
}  # fmt: skip
MASKS = re.compile(r"in_\w|inside|real|took|there|alive|visible|sees|near|moves|fits")
SIZES = re.compile(r"[A-Z]|CAPACITY|WINDOW")
TUNING_NAME = re.compile(
    r"(outputs|inputs)?_?(block(_[a-z])?|warps|stages|num_\w+|tiles?|program(_p)?|run|rows_of|default|each)$"
)
TUNING_KEYWORD = re.compile(r"num_\w+|BLOCK(_\w+)?|STAGES|RUN|TILES|ROWS|HALF_N|eviction_policy|cache_modifier|launch_pdl")
TILES = re.compile(r"_?(\w+_)?tile|window_tiles|_?warps|_heads|_split|_overlaps|_block_\w+")
LIMITS = {"WALKED", "SMS", "WGMMA", "LONGEST_WALK"}
ORDER = {"debug_barrier", "gdc_wait", "gdc_launch_dependents", "_awaited", "assume", "multiple_of", "max_contiguous"}


RULERS = {"contract.py", "__init__.py"}


@dataclass(frozen=True)
class Place:
    """A node of a file: bytes start .. end, `line` of the first, and the texts that break it."""

    file: str
    line: int
    start: int
    end: int
    kind: str
    breaks: tuple[str, ...]


def apply(source: bytes, place: Place, text: str) -> bytes:
    """The source with `text` at the place."""
    return source[: place.start] + text.encode() + source[place.end :]


def located(package: Path, name: str) -> Path:
    """The file of that name, whichever folder of the package it lies in."""
    (found,) = package.rglob(name)
    return found


def find(files: Iterable[Path]) -> tuple[list[Place], Counter[str]]:
    """All places of the files, and how many nodes were left out, by reason."""
    found: list[Place] = []
    left_out: Counter[str] = Counter()
    for file in sorted(files):
        if file.name in RULERS:
            left_out["what is declared, by which the tests judge"] += 1
            continue
        finder = Finder(file.name, file.read_bytes())
        finder.visit(finder.tree)
        left_out += finder.left_out
        found += finder.places
    return sorted(found, key=lambda p: (p.file, p.start, p.end, p.kind)), left_out


class Finder(ast.NodeVisitor):
    """The places of one file."""

    def __init__(self, file: str, source: bytes) -> None:
        self.file, self.source, self.tree = file, source, ast.parse(source)
        lines = source.splitlines(keepends=True)
        self.starts = [0, *(sum(map(len, lines[: k + 1])) for k in range(len(lines)))]
        self.places: list[Place] = []
        self.left_out: Counter[str] = Counter()
        self.bound: dict[str, int] = {}
        self.parameters: list[str] = []
        self.constexpr: set[str] = set()
        self.jit = False
        self.stored: set[ast.AST] = set()
        self.unordered: set[ast.AST] = set()
        self.same: dict[str, str] = {}
        """Names that stand for another's value, as slot does behind `slot = b` until one of them is assigned again."""

    # Positions and texts

    def span(self, node: ast.AST) -> tuple[int, int]:
        start = self.starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        return start, self.starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]

    def text(self, node: ast.AST) -> str:
        start, end = self.span(node)
        return self.source[start:end].decode()

    def add(self, node: ast.AST, kind: str, breaks: Iterable[str], span: tuple[int, int] | None = None) -> None:
        start, end = span or self.span(node)
        line = self.source.count(b"\n", 0, start) + 1
        self.places.append(Place(self.file, line, start, end, kind, tuple(breaks)))

    def operator(self, left: ast.AST, right: ast.AST, sign: str, kind: str, others: list[str]) -> None:
        """The operator between two operands: the gap holds it, brackets, and blanks."""
        low, high = self.span(left)[1], self.span(right)[0]
        at = low + self.source[low:high].index(sign.encode())
        self.add(left, kind, others, (at, at + len(sign)))

    # What is left out

    def visit(self, node: ast.AST) -> None:
        reason = leaves_out(node, self.jit)
        if reason:
            self.left_out[reason] += 1
            return
        super().visit(node)

    # Statements

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        outer = self.bound, self.parameters, self.jit
        self.same = {}
        self.parameters = [a.arg for a in arguments]
        self.bound = dict.fromkeys(self.parameters, 0)
        self.constexpr = {a.arg for a in arguments if a.annotation and "constexpr" in ast.unparse(a.annotation)}
        self.jit = _is_jit(node)
        for argument, default in zip(reversed(node.args.args), reversed(node.args.defaults), strict=False):
            self.default(argument, default)
        for argument, value in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
            self.default(argument, value)
        for statement in node.body:
            self.visit(statement)
        self.bound, self.parameters, self.jit = outer

    def default(self, argument: ast.arg, value: ast.expr | None) -> None:
        if value is None:
            return
        if TUNING_NAME.match(argument.arg) or argument.arg in ("block_l", "rows", "split"):
            self.left_out["a tuning choice"] += 1
        else:
            self.visit(value)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for statement in node.body:
            if isinstance(statement, ast.FunctionDef):
                self.visit(statement)

    def visit_Assign(self, node: ast.Assign) -> None:
        names = [n.id for target in node.targets for n in ast.walk(target) if isinstance(n, ast.Name)]
        if all(name in self.bound for name in names):
            self.add(node, "assignment removed", ["pass"])
        self.visit(node.value)
        self.bound.update(dict.fromkeys(names, node.lineno))
        self.differ(names)
        if isinstance(node.value, ast.Name) and isinstance(node.targets[0], ast.Name):
            self.same[names[0]] = node.value.id

    def differ(self, names: Iterable[str]) -> None:
        """The names have values of their own from here on."""
        self.same = {name: other for name, other in self.same.items() if not {name, other} & {*names}}

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)
        if isinstance(node.target, ast.Name):
            self.bound[node.target.id] = node.lineno

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.add(node, "assignment removed", ["pass"])
        sign, others = ARITHMETIC[type(node.op)]
        if not isinstance(node.value, ast.Tuple):
            self.operator(node.target, node.value, sign, "arithmetic", others)
        self.visit(node.value)
        self.differ([ast.unparse(node.target)])

    def visit_While(self, node: ast.While) -> None:
        self.same = {}
        self.generic_visit(node)

    def visit_For(self, node: ast.For) -> None:
        self.same = {}
        self.bound.update({n.id: node.lineno for n in ast.walk(node.target) if isinstance(n, ast.Name)})
        call = node.iter
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("range"):
            last = call.args[min(1, len(call.args) - 1)]
            self.add(last, "loop bound", [f"{self.text(last)} - 1", f"{self.text(last)} + 1"])
            for argument in call.args:
                self.visit(argument)
        else:
            self.visit(call)
        for statement in node.body:
            self.visit(statement)

    def visit_If(self, node: ast.If) -> None:
        if all(isinstance(s, ast.Raise) for s in node.body):
            self.add(node.test, "refusal removed", ["False"])
        elif not isinstance(node.test, ast.Compare | ast.BoolOp):
            self.add(node.test, "condition", [f"not ({self.text(node.test)})"])
        before = self.same
        self.generic_visit(node)
        self.same = dict(before.items() & self.same.items())

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self.add(node, "statement removed", ["pass"])
        self.visit(node.value)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None:
            self.visit(node.value)

    # Expressions

    def visit_Compare(self, node: ast.Compare) -> None:
        for left, op, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
            if type(op) in COMPARISONS:
                sign, others = COMPARISONS[type(op)]
                self.operator(left, right, sign, "comparison", others)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        sign, others = ARITHMETIC[type(node.op)]
        self.operator(node.left, node.right, sign, "arithmetic", others)
        if isinstance(node.op, ast.BitAnd | ast.BitOr):
            self.add(node, "term of a mask dropped", [f"({self.text(node.left)})", f"({self.text(node.right)})"])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        sign, other = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in pairwise(node.values):
            self.operator(left, right, sign, "and / or", [other])
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.USub | ast.Not):
            self.add(node, "sign", [f"({self.text(node.operand)})"])
        self.visit(node.operand)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        a, b = self.text(node.body), self.text(node.orelse)
        self.add(node, "branches swapped", [f"({b}) if {self.text(node.test)} else ({a})"])
        self.generic_visit(node)

    def visit_Tuple(self, node: ast.Tuple) -> None:
        self.swapped(node, node.elts)
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if isinstance(node.slice, ast.Tuple) and len(node.slice.elts) == 2:
            a, b = (self.text(x) for x in node.slice.elts)
            if {a, b} == {":", "None"}:
                self.add(node.slice, "axes of a block swapped", [f"{b}, {a}"])
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self.add(node, "constant", [str(not value)])
        elif isinstance(value, int):
            self.add(node, "constant", [str(value + 1), *([str(value - 1)] if value > 0 else [])])
        elif isinstance(value, float):
            self.add(node, "constant", {0.0: ["1.0"], 1.0: ["0.0", "2.0"]}.get(value, [f"(2 * {self.text(node)})"]))
        elif value == "ieee":
            self.add(node, "precision of a product", ['"tf32"'])

    def visit_Name(self, node: ast.Name) -> None:
        siblings = self.siblings(node.id)
        others = [x for x in siblings if self.same.get(x) != node.id and self.same.get(node.id) != x]
        if isinstance(node.ctx, ast.Load) and others:
            self.add(node, "name swapped with a sibling", others)
        if len(others) < len(siblings):
            self.left_out["a name by another of the same value"] += 1

    def siblings(self, name: str) -> list[str]:
        """Names of the same kind that are bound here: strides, masks, sizes, indices."""
        if name.startswith("stride_"):
            near = [p for p in self.parameters if p.startswith(name.rsplit("_", 1)[0] + "_") and p != name]
            return near or [p for p in self.parameters if p.startswith("stride_") and p != name][:2]
        pointers = set(self.parameters) if self.jit else set()
        local = [x for x in self.bound if x != name and x not in pointers]
        if MASKS.fullmatch(name):
            return [x for x in local if MASKS.fullmatch(x)]
        if name in pointers:
            sizes = [p for p in self.parameters if p in self.constexpr and SIZES.fullmatch(p)]
            return [p for p in sizes if p != name] if name in sizes else []
        if re.fullmatch(r"[a-z]|slot", name):
            return [x for x in local if re.fullmatch(r"[a-z]|slot", x)]
        return []

    def visit_Call(self, node: ast.Call) -> None:
        function = ast.unparse(node.func)
        last = function.rsplit(".", 1)[-1]
        if TILES.fullmatch(last) and not self.jit:
            self.left_out["a tuning choice"] += 1
            return
        if last == "to" and isinstance(node.func, ast.Attribute) and len(node.args) == 1:
            if node in self.stored:
                self.left_out["a cast to the type of a pointer, which its store makes itself"] += 1
            else:
                self.add(node, "cast dropped", [f"({self.text(node.func.value)})"])
            self.visit(node.func.value)
            return
        if last == "float" and node.args and isinstance(node.args[0], ast.Constant):
            self.add(node, "constant", ["0.0" if "-" in str(node.args[0].value) else "1.0"])
            return
        if last == "store" and len(node.args) > 1 and ast.unparse(node.args[1]).endswith(".dtype.element_ty)"):
            self.stored.add(node.args[1])
        if last in ("any", "all") and node.args and isinstance(node.args[0], ast.GeneratorExp):
            self.unordered.add(node.args[0].generators[0].iter)
        if last == "where":
            a, b = (self.text(x) for x in node.args[1:3])
            self.add(node, "branches swapped", [f"{function}({self.text(node.args[0])}, {b}, {a})"])
        if last == "exp":
            self.add(node, "exponent", [f"{function}(-({self.text(node.args[0])}))", f"({self.text(node.args[0])})"])
        if last == "program_id":
            axis = node.args[0]
            self.add(axis, "constant", [str(k) for k in range(2) if str(k) != self.text(axis)])
            return
        if last in FUNCTIONS and last != "exp":
            self.add(node.func, "function", [function.removesuffix(last) + FUNCTIONS[last]])
        self.swapped(node, node.args)
        self.visit(node.func)
        for argument in node.args:
            self.visit(argument)
        for keyword in node.keywords:
            self.keyword(keyword)

    def keyword(self, keyword: ast.keyword) -> None:
        if keyword.arg and TUNING_KEYWORD.fullmatch(keyword.arg):
            self.left_out["a tuning choice"] += 1
        elif keyword.arg == "other":
            self.add(keyword.value, "value of masked lanes", ["1.0" if "." in self.text(keyword.value) else "1"])
        elif keyword.arg == "axis" and isinstance(keyword.value, ast.Constant) and isinstance(keyword.value.value, int):
            self.add(keyword.value, "constant", [str(1 - keyword.value.value)])
        elif keyword.arg not in ("dtype", "device", "out_dtype", "strict"):
            self.visit(keyword.value)

    def swapped(self, node: ast.AST, elements: list[ast.expr]) -> None:
        """Two neighbours that are names of the same kind change places; one place for each list."""
        breaks, (start, end) = [], self.span(node)
        for a, b in pairwise(elements):
            if isinstance(a, ast.Name) and isinstance(b, ast.Name) and a.id != b.id and _kind(a.id) == _kind(b.id):
                low, high = self.span(a), self.span(b)
                parts = self.source[start : low[0]], b.id.encode(), self.source[low[1] : high[0]], a.id.encode()
                breaks.append((b"".join(parts) + self.source[high[1] : end]).decode())
        if breaks and node in self.unordered:
            self.left_out["an order that nothing sees"] += 1
        elif breaks:
            self.add(node, "arguments swapped", breaks)


def leaves_out(node: ast.AST, jit: bool) -> str | None:
    """Why a node has no places, None where it has some."""
    match node:
        case ast.Import() | ast.ImportFrom():
            return "an import"
        case ast.Expr(value=ast.Constant()):
            return "a docstring"
        case ast.Raise():
            return "the text of an error"
        case ast.JoinedStr():
            return "the text of an error"
        case ast.FunctionDef(name=name) if TILES.fullmatch(name) and not _is_jit(node):
            return "a tuning choice"
        case ast.Assign(targets=[target]) if not jit and _all_tuning(target):
            return "a tuning choice"
        case ast.AnnAssign(target=ast.Name(id="H200")):
            return "a tuning choice"
        case ast.Assign(targets=[ast.Name(id=name)]) if name in LIMITS or name in ("Argument", "FLOATS", "INDICES"):
            return "a tuning choice" if name in LIMITS else "a type"
        case ast.FunctionDef(name=name) if name in ORDER:
            return "an order of threads or launches, which the interpreter has not"
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name))) if name in ORDER:
            return "an order of threads or launches, which the interpreter has not"
        case ast.If(body=[ast.Expr(value=ast.Call(func=ast.Attribute(attr=name)))]) if name in ORDER:
            return "an order of threads or launches, which the interpreter has not"
    return None


def _is_jit(node: ast.FunctionDef) -> bool:
    return any("jit" in ast.unparse(d) for d in node.decorator_list)


def _all_tuning(target: ast.expr) -> bool:
    names = [n.id for n in ast.walk(target) if isinstance(n, ast.Name)]
    return bool(names) and all(TUNING_NAME.match(n) for n in names)


def _kind(name: str) -> str:
    for kind, pattern in (("stride", r"stride_.*"), ("size", r"BLOCK.*|[A-Z]{4,}"), ("mask", MASKS.pattern)):
        if re.fullmatch(pattern, name):
            return kind
    return "value"
