"""The code to send to nodes: our packages as imported here, and the adapters' modules. Nodes need no network for it.

Other packages that these import (NumPy, PyTorch, Triton, ...) must be installed on the nodes.
"""

import hashlib
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from ..errors import UnknownAdapter
from ..run.load import PROGRAM

OURS = ("ssmspec_ref", "conformance", "property_tests", "ssmspec_fast", "ssmspec_kernels")


def modules(names: Iterable[str], more: Iterable[str] = ()) -> tuple[str, ...]:
    """The folders and files to send, for adapters as named on the command line. Raises: UnknownAdapter."""
    tops = [name.partition(":")[0].split(".")[0] for name in names if not name.startswith(PROGRAM)]
    found = {place(top): None for top in OURS if find_spec(top)}
    for top in tops:
        if find_spec(top) is not None and not shipped(top):
            found[place(top)] = None
    for given in more:
        if not Path(given).exists():
            raise UnknownAdapter(f"--ray-ship {given} does not exist; give a module's folder or file")
        found[str(Path(given).resolve())] = None
    return tuple(found)


def shipped(top: str) -> bool:
    """Whether a name is that of an adapter in our package."""
    from ..run.load import shipped as ours

    return top in ours()


def place(top: str) -> str:
    """The folder of a package, or the file of a module."""
    spec = find_spec(top)
    assert spec is not None
    if spec.submodule_search_locations:
        return str(Path(next(iter(spec.submodule_search_locations))).resolve())
    return str(Path(spec.origin or "").resolve())


@cache
def digest() -> str:
    """A digest of the sources imported here, so that nodes can be checked for the same."""
    total = hashlib.sha256()
    for name, path in sources():
        total.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()[:16]


def sources() -> Iterator[tuple[str, Path]]:
    for top in filter(find_spec, OURS):
        home = Path(place(top))
        for path in sorted(home.rglob("*.py")):
            yield f"{top}/{path.relative_to(home).as_posix()}", path
