"""The kernels' package copied with its modules in folders and under other names, its imports rewritten."""

import re
from pathlib import Path

from perf_gates.digest.texts import package

RELATIVE = re.compile(r"^(\s*)from (\.+)([\w.]*) import", re.MULTILINE)


def place(module: tuple[str, ...]) -> tuple[str, ...]:
    """Where a module goes: one folder deeper by its first letters, of half of them by two, under another name."""
    name = module[-1]
    return (f"in_{name[:3]}", f"by_{name[-1]}", f"of_{name}") if len(name) % 2 else ("moved", f"of_{name}")


def relative(at: tuple[str, ...], to: tuple[str, ...]) -> str:
    """The import path from one module to another."""
    shared = next((i for i, (a, b) in enumerate(zip(at[:-1], to[:-1], strict=False)) if a != b), min(len(at), len(to)) - 1)
    return "." * (len(at) - shared) + ".".join(to[shared:])


def moved(folder: Path) -> Path:
    """A copy of the kernels' package below a folder, every module in another place."""
    source = package("ssmspec_kernels")
    paths = [file.relative_to(source).with_suffix("").parts for file in source.rglob("*.py")]
    modules = {path: place(path) for path in paths if path[-1] != "__init__"}
    out = folder / source.name

    def rewritten(path: tuple[str, ...]) -> str:
        def one(found: re.Match[str]) -> str:
            base = path[: len(path) - len(found[2])]
            return f"{found[1]}from {relative(modules[path], modules[(*base, *found[3].split('.'))])} import"

        return RELATIVE.sub(one, source.joinpath(*path).with_suffix(".py").read_text())

    for path, to in modules.items():
        file = out.joinpath(*to).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(rewritten(path))
    (out / "__init__.py").write_text((source / "__init__.py").read_text())
    return out
