"""The inputs of a recurrence, stored to advance its state later: without those that only its outputs need."""

from typing import Any

import torch
from torch import Tensor

from ..models.model import Model


def for_replay(inputs: Any) -> Any:
    """Inputs without those that only the outputs need: C and z, or q."""
    return inputs._replace(**dict.fromkeys(inputs.outputs))


def whole(inputs: Any) -> Any:
    """Inputs for a scan whose outputs are not read: B replaces C, k replaces q."""
    return inputs._replace(**{name: getattr(inputs, other) for name, other in inputs.outputs.items() if other})


def along(x: Tensor, entries: Tensor, places: Tensor) -> Tensor:
    """From entry entries[i, 0] of a cache, the tokens at places (b, k), in order."""
    return x[entries, places]


def new_inputs(mixer: Any, entries: int, tokens: int, model: Model, device: Any) -> Any:
    """Memory for the inputs of a recurrence: `tokens` of them in each entry."""

    def room(*shape: int) -> Tensor:
        return torch.zeros((entries, tokens, *shape), dtype=model.dtype, device=device)

    return for_replay(mixer.room(room))
