"""Retention under fuzzing."""

from dataclasses import replace
from typing import Any

import numpy as np

from property_tests.drawing.maker import Maker
from property_tests.recurrences.kind import Kind
from ssmspec_ref.model import Layer

from .oracle import RetentionParams
from .oracle.layer import RetentionLayer, RetentionMixer


def layer(m: Maker) -> Layer:
    h, k, v = m.given("h", 2), m.given("n", 3), m.given("p", 3)
    mixer = RetentionMixer(m.conv(h * (2 * k + v), m.given("conv_bias", True)), RetentionParams(m.rate(h)), k, v)
    return RetentionLayer(mixer, m.into(h * (2 * k + v)), m.into(h * v), m.out(h * v))


def forgetting(token: Any, params: Any) -> tuple[Any, Any]:
    return token, replace(params, A=np.full_like(params.A, -1000.0))


KIND = Kind("retention", {"retention": layer}, forgetting, linear="v")
