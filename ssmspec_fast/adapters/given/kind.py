"""How the engine's adapters convert the suite's values of one recurrence."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from ssmspec_ref.shapes import Array

from ...layers.linear import Linear
from ...layers.recurrent import Recurrent
from ...operations import Recurrence, Taps
from ...operations.arithmetic import Arithmetic
from ..tensors import spelled
from .tokens import Tokens

Tensors = Callable[[Any], Any]
"""An array as a tensor on the device; None stays None."""


def translated(kind: Any, source: Any, tensor: Tensors) -> Any:
    """A record of the engine from one of the suite: of each field the value of its name, arrays as tensors."""
    fields = {name: value for name, value in spelled(source).items() if name in kind._fields}
    return kind(**{name: tensor(value) if hasattr(value, "shape") else value for name, value in fields.items()})


def records(inputs: Any, params: Any) -> Callable[[Tensors, Tensors, Any, Any], tuple[Any, Any]]:
    """`Given.inputs` for records that the suite spells as the engine does."""
    return lambda given, exact, window, held: (translated(inputs, window, given), translated(params, held, exact))


class Reader(Protocol):
    """Converts records of the reference into tensors and layers; raises Unsupported for what the engine's layers do not
    have."""

    def tensor(self, array: Any) -> Any: ...

    def linear(self, x: Any) -> Linear: ...

    def taps(self, x: Any) -> Taps: ...


@dataclass(frozen=True)
class Given:
    """One kind.

    `models` are the suite's names of the layer kinds that the engine supports. `inputs(given, exact, window, params)` builds
    the inputs of the recurrence, with activations as they are stored and exact parameters. `passing(gates)` lists the arrays
    that bypass the convolution; `handing(mixer, tokens, exact, gates)` is a layer that returns given values, for gates as
    these; `layer(read, record)` is a whole layer. `bare(window, params)` returns the mixer of a recurrence alone, the inputs
    of its convolution, and their names. `raw` computes the recurrence with gates as the contract defines them, where the
    engine's own applies functions to them first.
    """

    name: str
    models: tuple[str, ...]
    inputs: Callable[[Tensors, Tensors, Any, Any], tuple[Any, Any]]
    passing: Callable[[Any], tuple[Array | None, ...]]
    handing: Callable[[Any, Tokens, Tensors, Any], Recurrent]
    layer: Callable[[Reader, Any], Recurrent]
    bare: Callable[[Any, Any], tuple[Any, tuple[str, ...]]] | None = None
    raw: Callable[[Arithmetic], Recurrence] | None = None
