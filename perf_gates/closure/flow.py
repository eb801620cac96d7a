"""Whether a value is always built from dict or tuple displays that are written in the package, on every path."""

import ast
from typing import TYPE_CHECKING

from .package import Definition
from .scopes import own_nodes

if TYPE_CHECKING:
    from .rows import Rows


class Flow:
    """Follows dicts (all of whose keys must be constants there) or tuples to where they are written."""

    def __init__(self, writer: "Rows", kind: type[ast.Dict | ast.Tuple], seen: frozenset[object] = frozenset()) -> None:
        self.writer, self.kind, self.seen = writer, kind, seen

    def always(self, node: ast.expr) -> bool:
        """Whether every path to this value ends at such a display."""
        match node:
            case ast.Dict() if self.kind is ast.Dict:
                pairs = zip(node.keys, node.values, strict=True)
                return all(self.always(v) if k is None else isinstance(k, ast.Constant) for k, v in pairs)
            case ast.Tuple():
                return self.kind is ast.Tuple
            case ast.BinOp(op=ast.BitOr(), left=left, right=right):
                return self.always(left) and self.always(right)
            case ast.IfExp(body=body, orelse=orelse):
                return self.always(body) and self.always(orelse)
            case ast.Call(func=func):
                return self._returned(func, None)
            case ast.Name(id=name) if self.writer.local(name):
                return self._local(name)
            case ast.Name() | ast.Attribute():
                target = self.writer.target_of(node)
                if isinstance(target, Definition):
                    return isinstance(self.writer.value_of(target), self.kind)
                return isinstance(node, ast.Attribute) and target is None and self._property(node.attr)
        return False

    def _local(self, name: str) -> bool:
        """A local that is only ever assigned such values."""
        if name in self.seen:
            return True
        inner, function = Flow(self.writer, self.kind, self.seen | {name}), self.writer.function
        good = stored = 0
        for node in own_nodes(function.body if function else []):
            stored += isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load)
            match node:
                case ast.Assign(targets=[ast.Name(id=found)], value=value) if found == name:
                    good += inner.always(value)
                case ast.AnnAssign(target=ast.Name(id=found), value=ast.expr() as value) if found == name:
                    good += inner.always(value)
                case ast.AugAssign(target=ast.Name(id=found), op=ast.BitOr(), value=value) if found == name:
                    good += inner.always(value)
                case ast.Assign(targets=[ast.Tuple(elts=parts)], value=value):
                    places = [at for at, part in enumerate(parts) if isinstance(part, ast.Name) and part.id == name]
                    good += sum(inner._element(value, at) for at in places)
        return 0 < good == stored

    def _element(self, value: ast.expr, at: int) -> bool:
        if isinstance(value, ast.Tuple) and not any(isinstance(e, ast.Starred) for e in value.elts):
            return at < len(value.elts) and self.always(value.elts[at])
        return isinstance(value, ast.Call) and self._returned(value.func, at)

    def _property(self, name: str) -> bool:
        """An attribute for which every class that defines it returns such values."""
        classes = self.writer.package.classes.items()
        found = [(d, s) for d, c in classes for s in c.body if isinstance(s, ast.FunctionDef) and s.name == name]
        return bool(found) and all(self._of(owner, function, None) for owner, function in found)

    def _returned(self, func: ast.expr, at: int | None) -> bool:
        target = self.writer.target_of(func)
        function = self.writer.package.function(target)
        return function is not None and isinstance(target, Definition) and self._of(target, function, at)

    def _of(self, owner: Definition, function: ast.FunctionDef, at: int | None) -> bool:
        """Whether everything that a function returns is such a value, or has such an element."""
        if function in self.seen:
            return True
        writer = type(self.writer)(self.writer.package, owner)
        writer.function = function
        writer.scopes.append(writer.scope(function.args, function.body))
        inner = Flow(writer, self.kind, frozenset(n for n in self.seen if not isinstance(n, str)) | {function})
        returns = [n.value for n in own_nodes(function.body) if isinstance(n, ast.Return)]
        values = [value for value in returns if value is not None]
        good = (inner.always(v) if at is None else inner._element(v, at) for v in values)
        return bool(values) and len(values) == len(returns) and all(good)
