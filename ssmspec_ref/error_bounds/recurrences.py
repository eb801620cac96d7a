"""The kinds of recurrences, each with its error bounds."""

from dataclasses import dataclass
from typing import Any, Protocol

from ..contract import NumericContract
from ..registry import Registry
from ..shapes import Ancestors, Array, Mask
from . import delta, mamba3, selective, shortconv, ssd
from .arithmetic import Approx
from .inputs import Inexact
from .mamba3 import around as around_mamba3
from .projections import delta as around_delta
from .projections import selective as around_selective
from .projections import ssd as around_ssd
from .shortconv import around as around_shortconv


class Recurrence(Protocol):
    """The interface of a module with the bounds of a recurrence: `ssd`, `delta`, `selective`."""

    def scan(
        self,
        S: Array,
        window: Any,
        params: Any,
        contract: NumericContract,
        live: Mask | None = None,
        inexact: Inexact = None,
    ) -> tuple[Approx, Approx]: ...

    def tree(
        self,
        S: Array,
        window: Any,
        ancestors: Ancestors,
        params: Any,
        contract: NumericContract,
        inexact: Inexact = None,
    ) -> Approx: ...


class Projections(Protocol):
    """The interface of a module of `projections`."""

    def project(self, mixer: Any, c: Approx, gates: Any) -> tuple[Any, dict[str, Array]]: ...

    def inputs(self, x: Approx, layer: Any) -> tuple[Approx, Any, dict[str, Array], Approx]: ...

    def output(self, y: Approx, gate: Approx, layer: Any) -> Approx: ...


@dataclass(frozen=True)
class Bounds:
    """The bounds of one kind: of its recurrence, and of the projections around it in a layer."""

    name: str
    recurrence: Recurrence
    around: Projections


BOUNDS = Registry(
    "recurrence with bounds",
    Bounds("selective", selective, around_selective),
    Bounds("ssd", ssd, around_ssd),
    Bounds("delta", delta, around_delta),
    Bounds("shortconv", shortconv, around_shortconv),
    Bounds("mamba3", mamba3, around_mamba3),
)
