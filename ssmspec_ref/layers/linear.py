"""Linear maps of the last axis, optionally with a bias or a low-rank factor."""

from dataclasses import dataclass

from numpy import einsum

from ..errors import ShapeMismatch
from ..records import Record
from ..shapes import Array, Scale, Weight


@dataclass(frozen=True)
class Linear(Record):
    """y = weight (down x) + bias; `down` is given if the map is factored through a low rank (Kimi Linear).

    Raises: ShapeMismatch for a bias or a factor that does not fit.
    """

    weight: Weight
    bias: Scale | None = None
    down: Weight | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bias is not None and len(self.bias) != self.outputs:
            raise ShapeMismatch(f"a linear map has {self.outputs} outputs and a bias of {len(self.bias)}; they must be equal")
        if self.down is not None and len(self.down) != self.weight.shape[1]:
            raise ShapeMismatch(
                f"the factors of a low-rank map have shapes {self.weight.shape} and {self.down.shape}; "
                "their ranks must be equal"
            )

    @property
    def outputs(self) -> int:
        return int(self.weight.shape[0])

    def apply(self, x: Array) -> Array:
        """Apply the map token-wise. x is (.. inputs), the result (.. outputs).

        Raises: ShapeMismatch.
        """
        first = self.weight if self.down is None else self.down
        if x.shape[-1] != first.shape[1]:
            raise ShapeMismatch(f"x has {x.shape[-1]} channels, but the linear map reads {first.shape[1]}")
        if self.down is not None:
            x = einsum("...i, oi -> ...o", x, self.down)
        y = einsum("...i, oi -> ...o", x, self.weight)
        return y if self.bias is None else y + self.bias
