"""What may replace an expression: the slips that implementations are made of, for each kind of expression."""

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

Values = Mapping[str, Any]
"""The values of the names in a function."""
OTHER_NAMES = 6
"""Names tried in place of one."""
OTHER_FUNCTIONS = {
    "maximum": "minimum", "minimum": "maximum", "max": "min", "min": "max", "any": "all", "all": "any", "argmax": "argmin",
    "argmin": "argmax",
}  # fmt: skip
OTHER_COMPARISONS = {
    ast.Lt: (ast.LtE, ast.Gt), ast.LtE: (ast.Lt,), ast.Gt: (ast.GtE, ast.Lt), ast.GtE: (ast.Gt,), ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,), ast.In: (ast.NotIn,), ast.NotIn: (ast.In,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,),
}  # fmt: skip
OTHER_OPERATORS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.FloorDiv: ast.Mod, ast.Mod: ast.FloorDiv, ast.Div: ast.Mult}
SUMS = (ast.Add, ast.Sub)
PARTS = (ast.Slice(None, ast.Constant(-1)), ast.Slice(ast.Constant(1)))
"""All but the last, and all but the first."""


def instead(node: ast.expr, values: Values) -> Iterator[ast.expr]:
    """Every expression to try in place of one."""
    yield from KINDS.get(type(node), _nothing)(node, values)


def instead_of_all(node: ast.expr) -> Iterator[ast.expr]:
    """What a loop may run over in place of all that it should: all but the last, or all but the first."""
    for part in PARTS:
        yield ast.Subscript(ast.Call(_name("list"), [node], []), part, ast.Load())


def _nothing(node: ast.expr, values: Values) -> Iterator[ast.expr]:
    yield from ()


def _binary(node: ast.BinOp, values: Values) -> Iterator[ast.expr]:
    """One term or factor alone, another operator, a factor of one term of a sum, or a term added before a function."""
    yield node.left
    yield node.right
    if type(node.op) in OTHER_OPERATORS:
        yield ast.BinOp(node.left, OTHER_OPERATORS[type(node.op)](), node.right)
    if isinstance(call := node.left, ast.Call) and isinstance(node.op, SUMS) and len(call.args) == 1:
        yield ast.Call(call.func, [ast.BinOp(call.args[0], node.op, node.right)], call.keywords)
    if not isinstance(node.op, ast.Mult | ast.Div):
        return
    if isinstance(right := node.right, ast.BinOp) and isinstance(right.op, SUMS) and isinstance(node.op, ast.Mult):
        yield ast.BinOp(ast.BinOp(node.left, ast.Mult(), right.left), right.op, right.right)
        yield ast.BinOp(right.left, right.op, ast.BinOp(node.left, ast.Mult(), right.right))
    if isinstance(left := node.left, ast.BinOp) and isinstance(left.op, SUMS):
        yield ast.BinOp(ast.BinOp(left.left, node.op, node.right), left.op, left.right)
        yield ast.BinOp(left.left, left.op, ast.BinOp(left.right, node.op, node.right))


def _call(node: ast.Call, values: Values) -> Iterator[ast.expr]:
    """The first argument alone, a function's opposite, arguments exchanged or left out, a term added after the function."""
    plain = [argument for argument in node.args if not isinstance(argument, ast.Starred)]
    if plain and plain[0] is node.args[0]:
        yield node.args[0]
    if isinstance(node.func, ast.Attribute):
        yield node.func.value
    named = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
    if named in OTHER_FUNCTIONS:
        yield _called(node, OTHER_FUNCTIONS[named])
    for number in range(1, len(plain) - 1 if len(plain) == len(node.args) else 0):
        order = [*node.args]
        order[number : number + 2] = order[number + 1], order[number]
        yield ast.Call(node.func, order, node.keywords)
    for number in range(len(node.keywords)):
        yield ast.Call(node.func, node.args, [k for n, k in enumerate(node.keywords) if n != number])
    if len(plain) == len(node.args) == 1 and isinstance(whole := plain[0], ast.BinOp) and isinstance(whole.op, SUMS):
        yield ast.BinOp(ast.Call(node.func, [whole.left], node.keywords), whole.op, whole.right)
        yield ast.BinOp(whole.left, whole.op, ast.Call(node.func, [whole.right], node.keywords))
    yield from SPECIAL.get(named, _nothing)(node, values)


def _called(node: ast.Call, name: str) -> ast.expr:
    function = ast.Attribute(node.func.value, name, ast.Load()) if isinstance(node.func, ast.Attribute) else _name(name)
    return ast.Call(function, node.args, node.keywords)


def _where(node: ast.Call, values: Values) -> Iterator[ast.expr]:
    yield from node.args[1:]


def _range(node: ast.Call, values: Values) -> Iterator[ast.expr]:
    """One step fewer, at the end or at the beginning, and in the other direction."""
    yield ast.Call(node.func, [*node.args[:-1], _plus(node.args[-1], -1)], [])
    first = node.args[0] if len(node.args) > 1 else ast.Constant(0)
    yield ast.Call(node.func, [_plus(first, 1), node.args[-1]], [])
    yield ast.Call(_name("reversed"), [node], [])


def _cumsum(node: ast.Call, values: Values) -> Iterator[ast.expr]:
    """A running sum without the entry itself."""
    yield ast.BinOp(node, ast.Sub(), node.args[0])


def _einsum(node: ast.Call, values: Values) -> Iterator[ast.expr]:
    """An operand read along another axis of the product."""
    spec = node.args[0]
    if not isinstance(spec, ast.Constant) or not isinstance(spec.value, str):
        return
    inputs, _, output = spec.value.partition("->")
    letters = sorted({letter for letter in inputs if letter.isalpha()})
    for at, old in enumerate(inputs):
        for new in letters if old.isalpha() else ():
            operand = next(part for part in _operands(inputs) if part[0] <= at < part[1])
            if new not in inputs[operand[0] : operand[1]]:
                yield ast.Call(
                    node.func, [ast.Constant(f"{inputs[:at]}{new}{inputs[at + 1 :]}->{output}"), *node.args[1:]], []
                )


def _operands(inputs: str) -> Iterator[tuple[int, int]]:
    start = 0
    for part in inputs.split(","):
        yield start, start + len(part)
        start += len(part) + 1


SPECIAL: dict[str, Callable[[Any, Values], Iterator[ast.expr]]] = {
    "where": _where, "range": _range, "cumsum": _cumsum, "einsum": _einsum,
}  # fmt: skip


def _compare(node: ast.Compare, values: Values) -> Iterator[ast.expr]:
    for number, op in enumerate(node.ops):
        for other in OTHER_COMPARISONS[type(op)]:
            ops = [*node.ops]
            ops[number] = other()
            yield ast.Compare(node.left, ops, node.comparators)
    yield ast.Constant(True)
    yield ast.Constant(False)


def _either(node: ast.BoolOp, values: Values) -> Iterator[ast.expr]:
    yield from node.values


def _unary(node: ast.UnaryOp, values: Values) -> Iterator[ast.expr]:
    yield node.operand


def _choice(node: ast.IfExp, values: Values) -> Iterator[ast.expr]:
    yield node.body
    yield node.orelse


def _constant(node: ast.Constant, values: Values) -> Iterator[ast.expr]:
    if isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node.value, int):
        yield ast.Constant(node.value + 1)
        yield ast.Constant(node.value - 1)
    elif isinstance(node.value, float):
        yield ast.Constant(1.0 - node.value)


def _subscript(node: ast.Subscript, values: Values) -> Iterator[ast.expr]:
    """A neighbour's entry, or a slice that begins or ends one place off."""
    every = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    for number, index in enumerate(every):
        for other in _places(index):
            made = [*every]
            made[number] = other
            yield ast.Subscript(node.value, ast.Tuple(made, ast.Load()) if len(made) > 1 else other, ast.Load())
    if isinstance(node.slice, ast.Slice):
        for part in PARTS:
            yield ast.Subscript(ast.Subscript(node.value, part, ast.Load()), node.slice, ast.Load())


def _places(index: ast.expr) -> Iterator[ast.expr]:
    if isinstance(index, ast.Slice):
        if index.lower is not None or index.upper is not None:
            yield ast.Slice()
        for step in (1, -1):
            if index.lower is not None:
                yield ast.Slice(_plus(index.lower, step), index.upper, index.step)
            if index.upper is not None:
                yield ast.Slice(index.lower, _plus(index.upper, step), index.step)
        if index.lower is None and index.upper is not None:
            yield ast.Slice(_minus(index.upper), None, index.step)
        yield ast.Slice(index.lower, ast.Constant(-1), index.step)
    elif not isinstance(index, ast.Constant):
        yield _plus(index, -1)
        yield _plus(index, 1)
        yield ast.Constant(0)
        yield ast.Constant(-1)


def _names(node: ast.Name, values: Values) -> Iterator[ast.expr]:
    """Another value of the function with the same shape; of sequences also both, one after the other."""
    if node.id not in values:
        return
    others = [name for name in values if name != node.id and _alike(values[node.id], values[name])][:OTHER_NAMES]
    for name in others:
        yield _name(name)
        if isinstance(values[node.id], list | tuple):
            both: list[ast.expr] = [ast.Starred(_name(each), ast.Load()) for each in (name, node.id)]
            yield ast.List(both, ast.Load())


def _fields(node: ast.Attribute, values: Values) -> Iterator[ast.expr]:
    """Another field of the same record with the same shape."""
    owner = values.get(node.value.id) if isinstance(node.value, ast.Name) else None
    if is_dataclass(owner) and hasattr(owner, node.attr):
        held = {field.name: getattr(owner, field.name) for field in fields(owner)}
        own = getattr(owner, node.attr)
        yield from [
            ast.Attribute(node.value, name, ast.Load())
            for name, value in held.items()
            if name != node.attr and _alike(own, value)
        ][:OTHER_NAMES]


def _alike(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return bool(a.shape == b.shape and a.dtype.kind == b.dtype.kind)
    return type(a) is type(b) and a is not None and not callable(a)


KINDS: dict[type[ast.expr], Callable[[Any, Values], Iterator[ast.expr]]] = {
    ast.BinOp: _binary, ast.Call: _call, ast.Compare: _compare, ast.BoolOp: _either, ast.UnaryOp: _unary, ast.IfExp: _choice,
    ast.Constant: _constant, ast.Subscript: _subscript, ast.Name: _names, ast.Attribute: _fields,
}  # fmt: skip


def _name(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def _plus(node: ast.expr, step: int) -> ast.expr:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return ast.Constant(node.value + step)
    return ast.BinOp(node, ast.Add() if step > 0 else ast.Sub(), ast.Constant(abs(step)))


def _minus(node: ast.expr) -> ast.expr:
    return ast.UnaryOp(ast.USub(), node)
