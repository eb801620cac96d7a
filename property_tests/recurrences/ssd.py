"""Mamba-2 under fuzzing."""

from dataclasses import replace
from typing import Any

import numpy as np

from conformance.judge.draw import stored
from ssmspec_ref.layers.layer import Mamba2Layer
from ssmspec_ref.layers.mixer import SSDMixer
from ssmspec_ref.layers.norm import GatedNorm
from ssmspec_ref.model import Layer
from ssmspec_ref.ssd import SSDParams

from ..drawing.maker import EPS, Maker
from .kind import Kind


def layer(m: Maker) -> Layer:
    g, p, n = m.given("g", 1), m.given("p", 3), m.given("n", 5)
    h, bias, form = g * m.given("h", 2), m.given("bias", False), m.given("norm", "first")
    D = {"none": None, "head": m.normal(h), "channel": m.normal(h, p)}[m.given("D", "head")]
    params = SSDParams(m.rate(h), D, m.normal(h, offset=-1.0), dt_limit=tuple(m.given("limit", (0.0, np.inf))))
    xs, Bs = (max(1, h // 2), 1) if m.given("widened", False) else (h, g)
    channels = xs * p + (Bs + g) * n
    mix = SSDMixer(m.conv(channels, m.given("conv_bias", True)), params, p, n, g, *((xs, Bs) if xs < h else ()))
    total = h * p + channels + h
    gated = None if not form else GatedNorm(m.weight(h * p), EPS, groups=g, norm_first=form == "first")
    scales = stored(m.rng.uniform(0.5, 1.5, total), "fp32") if m.given("multipliers", False) else None
    return Mamba2Layer(mix, m.into(total, bias), m.out(h * p, bias), gated, 1.0, scales)


def forgetting(token: Any, params: Any) -> tuple[Any, Any]:
    return replace(token, dt=np.full_like(token.dt, 4000.0)), replace(params, A=np.minimum(params.A, -0.5))


KIND = Kind("ssd", {"mamba2": layer}, forgetting, linear="x", groups=True)
