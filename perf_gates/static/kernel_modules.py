"""Modules of `ssmspec_kernels` by name alone: a launcher's module has the launcher's name, in any folder."""

import functools
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PACKAGE = "ssmspec_kernels"


@functools.cache
def homes() -> dict[str, str]:
    """The dotted name of every module of the package, by its own name.

    Raises: ImportError if two modules have the same name.
    """
    spec = find_spec(PACKAGE)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    folder = Path(spec.submodule_search_locations[0])
    found: dict[str, str] = {}
    for file in sorted(folder.rglob("*.py")):
        if file.stem != "__init__":
            home = ".".join((PACKAGE, *file.relative_to(folder).with_suffix("").parts))
            if file.stem in found:
                raise ImportError(f"{found[file.stem]} and {home} have one name; rename one, since launchers are found by it")
            found[file.stem] = home
    return found


def kernel_module(name: str) -> Any:
    """The module of a name. Raises: ImportError."""
    if name not in homes():
        raise ImportError(f"no module {name!r} in {PACKAGE}; there are {', '.join(homes())}")
    return import_module(homes()[name])
