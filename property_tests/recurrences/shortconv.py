"""The short convolution under fuzzing."""

from dataclasses import replace
from typing import Any

import numpy as np

from ssmspec_ref.layers.shortconv import ShortConvLayer, mixer_of
from ssmspec_ref.model import Layer
from ssmspec_ref.shortconv import ShortConvParams

from ..drawing.maker import Maker
from .kind import Kind


def layer(m: Maker) -> Layer:
    d, w, biased = m.given("h", 2) * m.given("p", 3), m.given("w", 4), m.given("conv_bias", True)
    params = ShortConvParams(m.normal(d, w, scale=w**-0.5), m.normal(d, scale=0.3) if biased else None)
    return ShortConvLayer(mixer_of(params), m.into(3 * d), m.out(d))


def forgetting(token: Any, params: Any) -> tuple[Any, Any]:
    """A convolution of which only the newest tap is not 0."""
    newest = np.arange(params.columns + 1) == params.columns
    return token, replace(params, weight=np.where(newest, params.weight, 0.0))


KIND = Kind("shortconv", {"shortconv": layer}, forgetting)
