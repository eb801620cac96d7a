"""The recurrences that the engine supports: for each its layer, and its implementations."""

from collections.abc import Callable
from dataclasses import dataclass

from ssmspec_ref.registry import Registry

from . import operations
from .layers.delta import Delta
from .layers.kda import KDA
from .layers.mamba1 import Mamba1
from .layers.mamba2 import Mamba2
from .layers.mamba3 import Mamba3, Mamba3Config, Mamba3Layer
from .layers.recurrent import Recurrent
from .layers.shortconv import ShortConv, ShortConvConfig, ShortConvLayer
from .models.config import DeltaConfig, KDAConfig, Mamba1Config, Mamba2Config, RecurrentConfig
from .operations import torch_recurrences, torch_windows
from .operations.arithmetic import Arithmetic


@dataclass(frozen=True)
class Recurrence:
    """One kind of recurrence.

    `config` gives the sizes of a layer and the shape of its state, `layer` reads it from a checkpoint. `torch(arithmetic,
    windows)` computes it in PyTorch, where `windows` allows several tokens at once; `triton(bitwise)` computes it by kernels,
    which are imported only then. A kind without kernels is computed in PyTorch, next to the kernels of the others.
    """

    name: str
    config: type[RecurrentConfig]
    layer: type[Recurrent]
    torch: Callable[[Arithmetic, bool], operations.Recurrence]
    triton: Callable[[bool], operations.Recurrence] | None = None

    def launched(self, bitwise: bool) -> operations.Recurrence:
        """The implementation by kernels, if there is one."""
        return self.torch(Arithmetic(bitwise), False) if self.triton is None else self.triton(bitwise)


def _ssd(arithmetic: Arithmetic, windows: bool) -> operations.Recurrence:
    at_once = windows and not arithmetic.bitwise
    return torch_windows.SSDWindows(arithmetic) if at_once else torch_recurrences.SSD(arithmetic)


def _kernels(name: str) -> Callable[[bool], operations.Recurrence]:
    """A class of `triton_recurrences`, imported when it is called: without a GPU the engine needs no Triton."""

    def made(bitwise: bool) -> operations.Recurrence:
        from .operations import triton_recurrences

        found: operations.Recurrence = getattr(triton_recurrences, name)(bitwise)
        return found

    return made


RECURRENCES = Registry(
    "recurrence of the engine",
    Recurrence("ssd", Mamba2Config, Mamba2, _ssd, _kernels("SSD")),
    Recurrence("selective", Mamba1Config, Mamba1, lambda a, _: torch_recurrences.Selective(a), _kernels("Selective")),
    Recurrence("kda", KDAConfig, KDA, lambda a, _: torch_recurrences.KDA(a), _kernels("KDA")),
    Recurrence("delta", DeltaConfig, Delta, lambda a, _: torch_recurrences.Delta(a), _kernels("Delta")),
    Recurrence("shortconv", ShortConvConfig, ShortConvLayer, lambda a, _: ShortConv(a), _kernels("ShortConv")),
    Recurrence("mamba3", Mamba3Config, Mamba3Layer, lambda a, _: Mamba3(a), _kernels("Mamba3")),
)
