"""Layers of Kimi Delta Attention whose gates, or whose three convolutions, are handled wrongly."""

from dataclasses import fields, replace
from typing import Any

import numpy as np

from ssmspec_ref.contract import FLOAT64, Limits
from ssmspec_ref.functions import sigmoid
from ssmspec_ref.layers.layer import DeltaLayer
from ssmspec_ref.layers.mixer import MixerInputs
from ssmspec_ref.shapes import Array

from ..single import Wrong
from .layers import Right


class Regated(DeltaLayer):
    """A layer that decays by `log_decay`."""

    def log_decay(self, a: Array, bound: float) -> Array:
        raise NotImplementedError

    def inputs(self, u: Array) -> tuple[MixerInputs, Array]:
        """The inputs, with another log decay if there is a lower bound."""
        inputs, z = super().inputs(u)
        if self.lower_bound is None:
            return inputs, z
        a = self.a_proj.apply(u).reshape(u.shape[:2] + self.dt_bias.shape) + self.dt_bias
        gates: Any = inputs.gates
        return replace(inputs, gates=replace(gates, g=self.log_decay(a, self.lower_bound))), z


class Clamped(Regated):
    def log_decay(self, a: Array, bound: float) -> Array:
        return np.maximum(bound, self.A[:, None] * np.logaddexp(0.0, a))


class Outside(Regated):
    def log_decay(self, a: Array, bound: float) -> Array:
        return bound * -self.A[:, None] * sigmoid(a)


def regated(kind: type[Regated], record: Any) -> Any:
    return kind(**{field.name: getattr(record, field.name) for field in fields(record)})


class ClampsSoftplus(Right):
    """A lower-bounded decay is the softplus gate, cut at the bound. lightseekorg/tokenspeed#847."""

    def __init__(self, record: Any, rows: int) -> None:
        super().__init__(regated(Clamped, record), rows)


class RateOutsideTheSigmoid(Right):
    """A lower-bounded decay has its rate as a factor of the sigmoid, not of what the sigmoid is taken of."""

    def __init__(self, record: Any, rows: int) -> None:
        super().__init__(regated(Outside, record), rows)


class KeepsOneConvolution(Right):
    """Of the convolutions of q, k and v only the first two are rolled back. A part of vllm-project/vllm#50272."""

    def rollback(self, tokens: int) -> None:
        kept, last = self.held.M, self.record.mixer.value_heads * self.record.mixer.value_channels  # type: ignore[attr-defined]
        super().rollback(tokens)
        M = np.concatenate([self.held.M[:, :-last], kept[:, -last:]], axis=1)
        self.held = replace(self.held, M=M)


BOUNDED = Limits({"kind": ("kda",), "safe_gate": ("on",)}, reason="a fault of the bounded gate")
KDA = Limits({"kind": ("kda",)}, reason="a fault of Kimi Delta Attention")
FAULTS: tuple[Wrong, ...] = (
    (ClampsSoftplus, "layer.prefill", "NUMERIC", FLOAT64, BOUNDED),
    (ClampsSoftplus, "layer.step", "NUMERIC", FLOAT64, BOUNDED),
    (RateOutsideTheSigmoid, "layer.prefill", "NUMERIC", FLOAT64, BOUNDED),
    (KeepsOneConvolution, "layer.rollback", "ROLLBACK", FLOAT64, KDA),
)
