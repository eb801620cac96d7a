"""The hash over files by which results were told before there were closure hashes: it is recomputed to prove the record."""

import ast
import hashlib
from pathlib import Path


def file_hash(folder: Path, *names: str) -> str:
    """Of some modules of a flat package and all that they import of it, without docstrings; of all modules without names."""
    modules = _reached(folder, [*names]) if names else {file.stem for file in folder.glob("*.py")}
    digest = hashlib.sha256()
    for file in sorted(folder / f"{module}.py" for module in modules):
        digest.update(f"{file.name}\0{_code(file.read_text())}".encode())
    return digest.hexdigest()[:16]


def _reached(folder: Path, waiting: list[str]) -> set[str]:
    found: set[str] = set()
    while waiting:
        module = waiting.pop()
        if module not in found:
            found.add(module)
            for node in ast.walk(ast.parse((folder / f"{module}.py").read_text())):
                if isinstance(node, ast.ImportFrom) and node.level == 1:
                    waiting += [node.module] if node.module else [alias.name for alias in node.names]
    return found


def _code(source: str) -> str:
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines[node.lineno - 1 : node.end_lineno] = [""] * ((node.end_lineno or 0) - node.lineno + 1)
    return "\n".join(line for line in lines if line.strip())
