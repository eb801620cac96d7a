"""Hashes of Python modules as texts: of the kernels, of what measures them, and of the engine.

They have no comments, docstrings and layout, and do not depend on where a module is. The same text makes the same calls.
Another may make them too, which `record` finds out.
"""

import ast
import functools
import tomllib
from collections.abc import Iterable
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

UNTIMED = ("serve", "adapters")
"""Folders of the engine that no timed run imports."""
UNTOLD = ("ctx", "kind", "type_comment")
"""Fields of a syntax tree that follow from others, or from the text."""


def digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:16]


def package(name: str) -> Path:
    """The folder of an importable package, without importing it."""
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def of_files(files: Iterable[Path]) -> str:
    return digest("\n".join(sorted(_told(_without_docstrings(ast.parse(file.read_bytes()))) for file in files)))


def _told(value: object) -> str:
    """A syntax tree as text, the same on every version of Python: `ast.unparse` chooses the quotes of a formatted string by
    version, and later versions have more fields, which are empty in code of today."""
    if isinstance(value, list):
        return f"[{' '.join(map(_told, value))}]"
    if not isinstance(value, ast.AST):
        return repr(value)
    fields = [(name, field) for name, field in ast.iter_fields(value) if field not in (None, []) and name not in UNTOLD]
    return f"{type(value).__name__}({' '.join(f'{name}={_told(field)}' for name, field in fields)})"


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            told = [s for s in body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
            node.body = told or [ast.Pass()]  # type: ignore[attr-defined]
    return tree


def kernels_text(folder: Path | None = None) -> str:
    """Of a package of kernels; without a folder of the installed one, as it is at the first call in a process. It names the
    revision of a result."""
    return of_files(folder.rglob("*.py")) if folder else _installed()


@functools.cache
def _installed() -> str:
    return of_files(package("ssmspec_kernels").rglob("*.py"))


@functools.cache
def text() -> str:
    """Of the kernels, the engine, and what measures and records them, at the first call in a process."""
    own = package("perf_gates")
    files = (file for name in ("gpu", "static", "digest") for file in (own / name).rglob("*.py"))
    pairs = tomllib.loads((own / "gates.toml").read_text())["core"]
    return digest(f"{kernels_text()} {engine_text()} {of_files(files)} {pairs}")


@functools.cache
def engine_text(folder: Path | None = None) -> str:
    """Of the engine, but for what no timed run imports."""
    own = folder or package("ssmspec_fast")
    return of_files(file for file in own.rglob("*.py") if file.relative_to(own).parts[0] not in UNTIMED)


def cuda_text(folder: Path | None = None) -> str:
    """Of `gpu/one_launch` in a package `perf_gates`: the CUDA source that NVRTC is given, and the module with its options."""
    own = (folder or package("perf_gates")) / "gpu" / "one_launch"
    return digest(f"{(own / 'step.cu').read_text()}\n{of_files([own / 'nvrtc.py'])}")
