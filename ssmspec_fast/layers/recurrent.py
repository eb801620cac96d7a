"""The interface of a recurrent layer: all of it except its convolution and its recurrence."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Self

from torch import Tensor

from ..operations import Gate, Operations, Rows, Taps
from .linear import Linear, Product

if TYPE_CHECKING:
    from ..families.source import Source


class Recurrent(ABC):
    """A layer from residual stream to residual stream."""

    config: Any
    taps: Taps
    params: Any
    kind: ClassVar[str]
    """The name of its recurrence."""
    home: ClassVar[str] = "mixer"
    """The layer's name in a checkpoint's block, next to attention."""

    @classmethod
    @abstractmethod
    def stored(cls, source: "Source", prefix: str, width: int, c: Any) -> Self:
        """The layer of a config, in the format of most checkpoints."""

    @property
    @abstractmethod
    def projection(self) -> Linear:
        """The projection whose output, in its channels `reads`, the convolution reads."""

    @property
    @abstractmethod
    def reads(self) -> slice: ...

    @abstractmethod
    def inputs(self, u: Rows, operations: Operations, room: Tensor | None = None) -> tuple[Tensor, Any]:
        """The input of the convolution, and what bypasses it; the projection is written into `room` if given."""

    @abstractmethod
    def project(self, c: Tensor, gates: Any, operations: Operations) -> Any:
        """The inputs of the recurrence."""

    @abstractmethod
    def room(self, new: Callable[..., Tensor]) -> Any:
        """Tensors for the inputs of the recurrence; `new` is called with the axes after rows and tokens."""

    def beside(self, inputs: Any) -> tuple[Tensor, ...]:
        """The inputs that advance the state and come from neither the projection nor the convolution; for `moving`."""
        return ()

    def moving(self, projected: Tensor, c: Tensor, *beside: Tensor) -> Any:
        """The inputs that advance the state, from projection and convolution outputs and from what is beside them; for
        recurrences with `commit`."""
        raise NotImplementedError

    def gate(self, gates: Any) -> Gate | None:
        """What the norm after the recurrence reads in addition to y, if both may be computed together."""
        return None

    @abstractmethod
    def output(self, y: Any, gates: Any, operations: Operations) -> Product:
        """What the layer adds to the residual stream."""
