"""The gated delta rule under fuzzing: layers of Gated DeltaNet and of Kimi Delta Attention."""

from dataclasses import replace
from typing import Any

import numpy as np

from ssmspec_ref.delta import DeltaParams
from ssmspec_ref.layers.layer import DeltaLayer
from ssmspec_ref.layers.mixer import DeltaMixer
from ssmspec_ref.layers.norm import GatedNorm
from ssmspec_ref.model import Layer

from ..drawing.maker import EPS, Maker
from . import kda
from .kind import Kind


def layer(m: Maker) -> Layer:
    g, k, v = m.given("g", 1), m.given("n", 4), m.given("p", 3)
    h = g * m.given("h", 2)
    mix = DeltaMixer(m.conv(2 * g * k + h * v, False), DeltaParams(eps=1e-2), g, h, k, v)
    gated = GatedNorm(m.weight(v), EPS, norm_first=True)
    maps = m.into(2 * g * k + h * v), m.into(h * v), m.into(h), m.into(h)
    return DeltaLayer(mix, *maps, m.rate(h), m.normal(h, offset=-1.0), gated, m.out(h * v))


def forgetting(token: Any, params: Any) -> tuple[Any, Any]:
    return replace(token, g=np.full_like(token.g, -1000.0)), params


KIND = Kind("delta", {"delta": layer, "kda": kda.layer}, forgetting, linear="v")
