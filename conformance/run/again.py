"""The parts of a command that runs the suite again from the user's folder: command, Python, and an adapter's path."""

import os
import shlex
import shutil
import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path


def command() -> str:
    """`ssmspec conform` as the shell finds it: by name if that is this installation, else by path."""
    here, found = Path(sys.argv[0]), shutil.which("ssmspec")
    if here.stem == "ssmspec":
        same = found is not None and Path(found).resolve() == here.resolve()
        return f"{'ssmspec' if same else shlex.quote(str(here))} conform"
    return f"{python()} -m conformance"


def python() -> str:
    """This Python: by name if the shell finds it, else by path, relative to the working folder where possible."""
    found, here = shutil.which("python"), Path(sys.executable)
    if found is not None and Path(found).absolute().parent == here.parent:
        return "python"
    return shlex.quote(str(here.relative_to(Path.cwd()) if here.is_relative_to(Path.cwd()) else here))


def path_of(adapter: str) -> str:
    """The current PYTHONPATH as a prefix of the command, if an adapter's module is found through it; else ""."""
    given = os.environ.get("PYTHONPATH", "")
    spec = _spec(adapter.partition(":")[0].partition(".")[0])
    home = spec and (spec.origin or next(iter(spec.submodule_search_locations or ()), None))
    if not given or not home:
        return ""
    root = Path(home).parent.parent if Path(home).name == "__init__.py" else Path(home).parent
    listed = [Path(entry).resolve() for entry in given.split(os.pathsep) if entry]
    needed = root.resolve() in listed and root.resolve() != Path.cwd() and not (root / "conformance").is_dir()
    return f"PYTHONPATH={shlex.quote(given)} " if needed else ""


def _spec(module: str) -> ModuleSpec | None:
    try:
        return find_spec(module) if module else None
    except (ImportError, ValueError):
        return None
