"""What a file imports, by absolute names: read from its text, wherever an import stands."""

import ast
from collections.abc import Iterator, Sequence


def imported_names(source: str, package: Sequence[str]) -> Iterator[tuple[list[str], str]]:
    """The module of each import, in parts, and the name that is taken from it; "" where the module itself is imported.

    `package` is that of the file, from which relative imports are counted.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((alias.name.split("."), "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level + 1]) if node.level else []
            base += node.module.split(".") if node.module else []
            yield from ((base, alias.name) for alias in node.names)
