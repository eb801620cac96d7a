"""Calls of an implementation: their arguments and results."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ssmspec_ref.contract import Capability, WithWeights

Arguments = tuple[Any, ...]


@dataclass(frozen=True)
class Came:
    """What an implementation returned: its outputs; the weights that it really used, if it reports them, or what it found in
    its prefix cache, if that is less than it might be (`life.states`); how many drafts it proposed and accepted, if it says
    so; and which of the outputs its later calls changed."""

    outputs: tuple[Any, ...]
    used: Any = None
    drafts: tuple[int, int] | None = None
    changed: tuple[int, ...] = ()


def copied(came: Any) -> Any:
    """A copy of the outputs, so that later writes of the implementation to its buffers have no effect."""
    return came.copy() if isinstance(came, np.ndarray) else came


def unchanged(own: Any, copy: Any) -> bool:
    return not isinstance(own, np.ndarray) or np.array_equal(own, copy, equal_nan=own.dtype.kind == "f")


class Handed:
    """What an object handed out in its calls: each output copied when it came, and the array itself."""

    def __init__(self) -> None:
        self.copies: list[Any] = []
        self.own: list[Any] = []

    def take(self, came: Any) -> None:
        self.copies.append(copied(came))
        self.own.append(came)

    def came(self) -> Came:
        """The copies, and which of the arrays are no longer like theirs."""
        pairs = enumerate(zip(self.own, self.copies, strict=True))
        return Came(tuple(self.copies), changed=tuple(n for n, (own, copy) in pairs if not unchanged(own, copy)))


def weights(argument: Any) -> bool:
    """Whether an argument is the weights of a layer, which stay the same between calls and are the same for all rows."""
    return type(argument).__name__.endswith(("Params", "Mixer", "Layer"))


def poison(subject: Any) -> None:
    """Ask a subject that has a method for it to write NaN into its memory that is not in use."""
    if callable(write := getattr(subject, "poison", None)):
        write()


def pure(capability: Capability, arguments: Arguments) -> Came:
    """Call a pure operation."""
    got = capability.run(*arguments)
    if isinstance(got, WithWeights):
        return Came(got.outputs, got.params)
    return Came(got if isinstance(got, tuple) else (got,))
