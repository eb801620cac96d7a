"""What a measurement was made on and with: the GPU, the versions, and the code of the kernels."""

import argparse
import ast
import functools
import hashlib
import importlib.util
import os
import platform
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path


def fingerprint() -> dict[str, str]:
    """GPU, driver, versions, the commit where it is known, and a hash of the kernels' code."""
    import torch
    import triton

    return {
        "gpu": torch.cuda.get_device_name(),
        "driver": _said(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": str(torch.version.cuda),
        "python": platform.python_version(),
    } | made_with()


def made_with() -> dict[str, str]:
    """The code that a result was made with: the commit where it is known, and a hash of the kernels."""
    return {"commit": os.environ.get("SSMSPEC_COMMIT") or _said(["git", "rev-parse", "HEAD"]), "kernels": kernels_hash()}


def need_gpu(parser: argparse.ArgumentParser) -> None:
    """End a command that measures where there is no GPU, before it has written or removed anything."""
    import torch

    if not torch.cuda.is_available():
        parser.error("torch sees no GPU here, and what this measures needs one; `ssmspec gates check` needs none")


def clock_mhz() -> int | None:
    """The clock of the GPU's processors now, of the device that this process sees first; None where nothing says it."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0] or "0"
    said = _said(["nvidia-smi", "-i", first, "--query-gpu=clocks.sm", "--format=csv,noheader,nounits"])
    return int(said) if said.isdigit() else None


def _said(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip().split("\n")[0]
    except (OSError, subprocess.SubprocessError):
        return "unknown"


@functools.cache
def kernels_hash() -> str:
    """A hash over the sources of `ssmspec_kernels` without docstrings: a result can be told from those of other kernels."""
    return _hash(sources().glob("*.py"))


@functools.cache
def kernel_hash(*names: str, folder: Path | None = None) -> str:
    """The same over some kernels' modules and all that they import of the package: other kernels may change beside them."""
    folder = folder or sources()
    return _hash(folder / f"{module}.py" for module in modules(*names, folder=folder))


def modules(*names: str, folder: Path) -> set[str]:
    """These modules of the package, and those that they import, and so on."""
    found: set[str] = set()
    waiting = [*names]
    while waiting:
        module = waiting.pop()
        if module not in found:
            found.add(module)
            waiting += _imports((folder / f"{module}.py").read_text())
    return found


def sources() -> Path:
    """The folder of the package."""
    spec = importlib.util.find_spec("ssmspec_kernels")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _hash(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(f"{file.name}\0{code(file.read_text())}".encode())
    return digest.hexdigest()[:16]


def _imports(source: str) -> Iterator[str]:
    """The modules of the package that a module of it takes names from."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            yield from [node.module] if node.module else [alias.name for alias in node.names]


def code(source: str) -> str:
    """A source without the lines of strings that stand alone, which say what is done and do nothing."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)  # type: ignore[operator]
    return "\n".join(line for line in lines if line.strip())
