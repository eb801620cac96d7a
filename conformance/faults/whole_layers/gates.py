"""Layers of Kimi Delta Attention whose gates, or whose three convolutions, are handled wrongly."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np

from ssmspec_ref.contract import FLOAT64, Limits
from ssmspec_ref.functions import sigmoid
from ssmspec_ref.layers.layer import DeltaLayer
from ssmspec_ref.layers.mixer import MixerInputs
from ssmspec_ref.shapes import Array

from ..fault import planted
from ..windows import Right, records

Decay = Callable[[Array, Array, float], Array]
"""Of the input of the gate, the rate and the lower bound."""


def regated(decay: Decay) -> Callable[[Any], Any]:
    """A record that decays otherwise if there is a lower bound."""

    class Regated(DeltaLayer):
        def inputs(self, u: Array) -> tuple[MixerInputs, Array]:
            inputs, z = super().inputs(u)
            if self.lower_bound is None:
                return inputs, z
            a = self.a_proj.apply(u).reshape(u.shape[:2] + self.dt_bias.shape) + self.dt_bias
            gates: Any = inputs.gates
            return replace(inputs, gates=replace(gates, g=decay(a, self.A[:, None], self.lower_bound))), z

    return lambda record: Regated(**{field.name: getattr(record, field.name) for field in fields(record)})


ClampsSoftplus = records(
    "ClampsSoftplus",
    "A lower-bounded decay is the softplus gate, cut at the bound. lightseekorg/tokenspeed#847.",
    regated(lambda a, A, bound: np.maximum(bound, A * np.logaddexp(0.0, a))),
)
RateOutsideTheSigmoid = records(
    "RateOutsideTheSigmoid",
    "A lower-bounded decay has its rate as a factor of the sigmoid, not of what the sigmoid is taken of.",
    regated(lambda a, A, bound: np.asarray(bound * -A * sigmoid(a))),
)


class KeepsOneConvolution(Right):
    """Of the convolutions of q, k and v only the first two are rolled back. A part of vllm-project/vllm#50272."""

    def rollback(self, tokens: int) -> None:
        kept, last = self.held.M, self.record.mixer.value_heads * self.record.mixer.value_channels  # type: ignore[attr-defined]
        super().rollback(tokens)
        M = np.concatenate([self.held.M[:, :-last], kept[:, -last:]], axis=1)
        self.held = replace(self.held, M=M)


BOUNDED = Limits({"kind": ("kda",), "safe_gate": ("on",)}, reason="a fault of the bounded gate")
KDA = Limits({"kind": ("kda",)}, reason="a fault of Kimi Delta Attention")
FAULTS = planted(
    (ClampsSoftplus, "layer.prefill", "NUMERIC", FLOAT64, BOUNDED),
    (ClampsSoftplus, "layer.step", "NUMERIC", FLOAT64, BOUNDED),
    (RateOutsideTheSigmoid, "layer.prefill", "NUMERIC", FLOAT64, BOUNDED),
    (KeepsOneConvolution, "layer.rollback", "ROLLBACK", FLOAT64, KDA),
)
