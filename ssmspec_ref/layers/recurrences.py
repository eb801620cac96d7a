"""The kinds of recurrences, each with all of its parts in the reference; bounds are in `error_bounds.recurrences`."""

from dataclasses import dataclass
from typing import Any, Protocol

from ..delta import DeltaWindow
from ..delta import chunked as delta_chunked
from ..mamba3 import Mamba3Window
from ..mamba3 import chunked as mamba3_chunked
from ..model import tiny_layers
from ..model.tiny_layers import Make
from ..records import Record
from ..registry import Registry
from ..selective import SelectiveWindow
from ..selective import chunked as selective_chunked
from ..shapes import Array, Mask
from ..shortconv import ShortConvWindow
from ..shortconv import chunked as shortconv_chunked
from ..ssd import SSDWindow
from ..ssd import chunked as ssd_chunked
from .layer import DeltaLayer, Mamba1Layer, Mamba2Layer, RecurrentLayer
from .mamba3 import Mamba3Layer, Mamba3Mixer
from .mamba3 import tiny as tiny_mamba3
from .mixer import DeltaMixer, Mixer, SelectiveMixer, SSDMixer, TreeScan
from .mixer import Recurrence as Definition
from .shortconv import ShortConvLayer, ShortConvMixer
from .shortconv import tiny as tiny_shortconv


class Chunked(Protocol):
    """The interface of a chunked module: `ssd_chunked`, `delta_chunked`, `selective_chunked`."""

    def scan(
        self, S: Array, window: Any, params: Any, live: Mask | None = None, *, chunk: int = 64
    ) -> tuple[Array, Array]: ...


@dataclass(frozen=True)
class Recurrence:
    """One kind; `model` is the name of a tiny model made only of its layers."""

    window: type[Record]  # what it reads
    mixer: type[Mixer]  # which names the modules of the recurrence, of its tree scan and of its replay buffer
    layer: type[RecurrentLayer]
    chunked: Chunked
    model: str
    tiny: tuple[Make, ...]

    @property
    def name(self) -> str:
        return self.mixer.kind

    @property
    def definition(self) -> Definition:
        """Token by token: `step`, `scan`, `states`."""
        return self.mixer.recurrence

    @property
    def tree(self) -> TreeScan:
        return self.mixer.tree


RECURRENCES = Registry(
    "recurrence",
    Recurrence(
        SelectiveWindow,
        SelectiveMixer,
        Mamba1Layer,
        selective_chunked,
        "mamba1",
        (lambda r: tiny_layers.mamba1(r, False), lambda r: tiny_layers.mamba1(r, True)),
    ),
    Recurrence(
        SSDWindow,
        SSDMixer,
        Mamba2Layer,
        ssd_chunked,
        "mamba2",
        (lambda r: tiny_layers.mamba2(r, True), lambda r: tiny_layers.mamba2(r, False)),
    ),
    Recurrence(
        DeltaWindow,
        DeltaMixer,
        DeltaLayer,
        delta_chunked,
        "delta",
        (lambda r: tiny_layers.delta(r, False), lambda r: tiny_layers.delta(r, True)),
    ),
    Recurrence(
        ShortConvWindow,
        ShortConvMixer,
        ShortConvLayer,
        shortconv_chunked,
        "shortconv",
        (lambda r: tiny_shortconv(r, False), lambda r: tiny_shortconv(r, True)),
    ),
    Recurrence(
        Mamba3Window,
        Mamba3Mixer,
        Mamba3Layer,
        mamba3_chunked,
        "mamba3",
        (lambda r: tiny_mamba3(r, 1), lambda r: tiny_mamba3(r, 2)),
    ),
)
