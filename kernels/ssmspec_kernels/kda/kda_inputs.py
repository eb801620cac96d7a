"""The arguments of the kernels of Kimi Delta Attention, and its gates.

    g    = A softplus(a + dt_bias)                    one log decay per value head and key channel     (1)
    g    = lower_bound sigmoid(-A (a + dt_bias))      instead, if a lower bound is given               (2)
    beta = sigmoid(b)                                                                                  (3)

if A is given; otherwise g (b, t, h, k) and beta (b, t, h) are taken as they are. A < 0 is one number per head, dt_bias one
per head and key channel. (2) stays in lower_bound .. 0, whatever a is. All else, with the device code of (1) to (3),
is that of `delta.delta_inputs`.

Source: for (1) Kimi Linear, section 4; for (2) the safe gate of Bailing and GLM (`ssmspec_ref.layers.layer.DeltaLayer`).
"""

from typing import Annotated

import torch
from torch import Tensor

from ssmspec_ref.errors import ParameterError

from ..delta.delta_inputs import check_inputs
from ..row import Axes, reads, weighs

PER_CHANNEL = "a decay per key channel; for a decay per head call the kernels of the delta rule"
KeyGates = Annotated[Tensor, reads("b t h k", size="gate", hint=PER_CHANNEL)]
KeyBias = Annotated[Tensor, weighs("h k", layout="dense")]


def check_kda(
    axes: Axes,
    A: Tensor | None,
    dt_bias: Tensor | None,
    lower_bound: float | None,
    slots: Tensor | None,
    scale: float | None,
    eps: float,
) -> float:
    """The scale of the queries: k^-1/2 if None is given.

    Raises: ParameterError.
    """
    check_bound(A, lower_bound)
    return check_inputs(axes, A, dt_bias, slots, scale, eps)


def check_bound(A: Tensor | None, lower_bound: float | None) -> None:
    """Raises: ParameterError for a lower bound that bounds no log decay, or without projections that it could bound."""
    if lower_bound is not None and not -float("inf") < lower_bound < 0:
        raise ParameterError(f"lower_bound is {lower_bound}; it bounds a log decay: give a finite number below 0, or None")
    if lower_bound is not None and A is None:
        raise ParameterError("lower_bound is given without A; give A for gates that come as projections, or leave both out")


def formed_gates(
    g: Tensor, beta: Tensor, A: Tensor | None, dt_bias: Tensor | None, lower_bound: float | None
) -> tuple[Tensor, Tensor]:
    """The gates (1) to (3) in fp32 by PyTorch, for kernels that take them formed; as they are without A."""
    if A is None:
        return g, beta
    biased, strength = g.float() if dt_bias is None else g.float() + dt_bias.float(), torch.sigmoid(beta.float())
    if lower_bound is None:
        return A[:, None] * (biased.clamp_min(0) + torch.log1p(torch.exp(-biased.abs()))), strength
    return lower_bound * torch.sigmoid(-A[:, None] * biased), strength
