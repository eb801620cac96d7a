"""Dicts of which only a row is used: a dict of a module under a constant key, or under a key of one of several dicts."""

import ast
import json

from .names import Names, Reference
from .package import Definition


class Rows(Names):
    """Writes subscripts."""

    def on_subscript(self, node: ast.Subscript) -> None:
        keys: list[ast.expr] = []
        base: ast.expr = node
        while isinstance(base, ast.Subscript):
            keys.insert(0, base.slice)
            base = base.value
        target = self.target_of(base)
        if isinstance(target, Definition) and (depth := self.rows_deep(target, len(keys))):
            wanted = tuple(
                k.value if isinstance(k, ast.Constant) and isinstance(k.value, str) else None for k in keys[:depth]
            )
            if any(wanted):
                self.text("(", "take")
                self.made.tokens.append(Reference(Definition(target.module, target.name, wanted)))
                for key, known in zip(keys, (*wanted, *[None] * len(keys)), strict=False):
                    if known is None:
                        self.node(key)
                self.text(")")
                return
        self.text("(", "Subscript")
        self.node(node.value)
        self.node(node.slice)
        self.text(")")

    def value_of(self, definition: Definition) -> ast.expr | None:
        """The only dict that is assigned to a value, if nothing changes it."""
        held = self.package.statements(definition)
        if len(held) != 1 or definition.name in self.package.modules[definition.module].imports:
            return None
        if Definition(definition.module, definition.name) in self.package.mutators:
            return None
        value = held[0].value if isinstance(held[0], ast.Assign | ast.AnnAssign) else None
        keyed = isinstance(value, ast.Dict) and all(
            isinstance(k, ast.Constant) and isinstance(k.value, str) for k in value.keys
        )
        return value if keyed else None

    def rows_deep(self, definition: Definition, most: int) -> int:
        """How many keys lead through nested dicts, at most `most`."""
        value = self.value_of(definition)
        if value is None or most == 0:
            return 0
        assert isinstance(value, ast.Dict)
        depths = []
        for row in value.values:
            inner = self.package.lookup(definition.module, row.id) if isinstance(row, ast.Name) else None
            depths.append(self.rows_deep(inner, most - 1) if isinstance(inner, Definition) else 0)
        return 1 + min(depths, default=0)

    def row(self, value: ast.expr | None, keys: tuple[str | None, ...]) -> None:
        """A row of a dict, or, for a key known only at run time, that part of all its rows."""
        target = self.package.lookup(self.definition.module, value.id) if isinstance(value, ast.Name) else None
        if keys and isinstance(target, Definition):
            self.made.tokens.append(Reference(Definition(target.module, target.name, keys)))
            return
        if not keys or not isinstance(value, ast.Dict):
            assert value is not None
            self.node(value)
            return
        rows = {k.value: v for k, v in zip(value.keys, value.values, strict=True) if isinstance(k, ast.Constant)}
        if keys[0] is not None:
            if keys[0] not in rows:
                raise self.error(value, f"{self.definition.name} has no row {keys[0]!r}")
            self.row(rows[keys[0]], keys[1:])
            return
        for key, part in rows.items():
            self.text("(", "key", json.dumps(key))
            self.row(part, keys[1:])
            self.text(")")
