"""Inputs by their names, and what a mistake is."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from ...mistakes.mistake import parameters
from ...suite.called import Arguments
from ..leaves import Leaf, changed, leaves

Made = Iterator[tuple[str, Callable[[Arguments], Arguments]]]
"""Mistakes in words, each as a change of the arguments."""
Named = Mapping[str, Leaf]
EACH = "*"
"""What the path of an input of every window holds."""


class Of(Protocol):
    """Makes a change of the arguments: of a function of them and of their leaves by name, or of new values by the names of
    inputs. A value that is a function reads inputs by their names, as in `conformance.mistakes.mistake`, and itself as `own`;
    a name that the arguments lack is left out."""

    def __call__(
        self, change: Callable[[Arguments, Named], Arguments] | None = None, /, **new: Any
    ) -> Callable[[Arguments], Arguments]: ...


def by_name(every: list[Leaf]) -> Named:
    return {leaf.name: leaf for leaf in every}


def of_operation(operation: str) -> Of:
    def of(change: Callable[[Arguments, Named], Arguments] | None = None, /, **new: Any) -> Callable[[Arguments], Arguments]:
        def made(arguments: Arguments) -> Arguments:
            named = by_name(leaves(operation, arguments))
            if change is not None:
                return change(arguments, named)
            return changed(arguments, *((named[name], _read(name, one, named)) for name, one in new.items() if name in named))

        return made

    return of


def _read(name: str, new: Any, named: Named) -> Callable[[Any], Any]:
    """A new value as a function of what is changed, which in several windows is that of each."""
    if not callable(new):
        return lambda own: new
    read = parameters(new)
    return lambda own: new(*(own if one in ("own", name) else named[one].value if one in named else None for one in read))
