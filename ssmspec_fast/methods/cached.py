"""The inputs of a recurrence, kept to move its state on later: without what only its outputs read."""

from typing import Any

import torch
from torch import Tensor

from ..model import Model


def for_replay(inputs: Any) -> Any:
    """Inputs without C and z, or without q."""
    return inputs._replace(C=None, z=None) if "C" in inputs._fields else inputs._replace(q=None)


def whole(inputs: Any) -> Any:
    """Inputs as a scan takes them whose outputs are not read: B stands for C, k for q."""
    return inputs._replace(C=inputs.B) if "C" in inputs._fields else inputs._replace(q=inputs.k)


def along(x: Tensor, entries: Tensor, places: Tensor) -> Tensor:
    """Of entry entries[i, 0] of a cache, the tokens at places (b, k), in their order."""
    return x[entries, places]


def new_inputs(mixer: Any, entries: int, tokens: int, model: Model, device: Any) -> Any:
    """Room for the inputs of a recurrence: `tokens` of them in each entry."""

    def room(*shape: int) -> Tensor:
        return torch.zeros((entries, tokens, *shape), dtype=model.dtype, device=device)

    return for_replay(mixer.room(room))
