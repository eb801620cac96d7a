"""Mamba-1 under fuzzing."""

from dataclasses import replace
from typing import Any

from ssmspec_ref.layers.layer import Mamba1Layer
from ssmspec_ref.layers.mixer import SelectiveMixer
from ssmspec_ref.model import Layer
from ssmspec_ref.selective import SelectiveParams

from ..drawing.maker import Maker
from . import ssd
from .kind import Kind


def layer(m: Maker) -> Layer:
    d, n, rank = m.given("d", 5), m.given("n", 3), 2
    D = None if m.given("D", "head") == "none" else m.normal(d)
    params = SelectiveParams(m.rate(d, n), D, m.normal(d, offset=-1.0))
    x_proj, dt_proj = m.normal(rank + 2 * n, d, scale=d**-0.5), m.normal(d, rank)
    mix = SelectiveMixer(m.conv(d, m.given("conv_bias", True)), params, x_proj, dt_proj)
    return Mamba1Layer(mix, m.into(2 * d, m.given("bias", False)), m.out(d, m.given("bias", False)))


def forgetting(token: Any, params: Any) -> tuple[Any, Any]:
    first, params = ssd.forgetting(token, params)
    return replace(first, x=first.x / 4096), params


KIND = Kind("selective", {"mamba1": layer}, forgetting)
