"""What a row of recurrent layers holds between two windows: the bytes of the tensors that the launchers take.

    snapshots T   T states, one for every token of a window                                          (1)
    ring T        one state, and the ring of 16 tokens and a window with its cursors                 (2)

Tensors are made without data, so that any size fits any machine.
"""

from dataclasses import fields
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from .catalogue import meta
from .gpu.steps import DELTA, SSD
from .measured import At, Missing

PERIOD = 16


def row_bytes(place: At) -> int:
    """The bytes of `snapshots T=4` or `ring T=4` at the dims of a kernel's shape.

    Raises: Missing for other names and shapes.
    """
    kind, _, tokens = place.operation.partition(" T=")
    if kind not in ("snapshots", "ring") or not tokens.isdigit() or place.shape not in SSD | DELTA:
        raise Missing(f"no {place.operation!r} of {place.shape} is a matter of allocation")
    held: list[Any]
    state = SSD[place.shape][:3] if place.shape in SSD else DELTA[place.shape][1:]
    if kind == "snapshots":
        held = [meta(int(tokens), *state, dtype=torch.float32)]  # (1)
    else:
        held = [meta(*state, dtype=torch.float32), *_ring(place.shape, PERIOD + int(tokens))]  # (2)
    return place.batch * sum(t.numel() * t.element_size() for t in held)


def _ring(shape: str, capacity: int) -> list[Tensor]:
    cursors = meta(1, dtype=torch.int32), meta(1, dtype=torch.int32)
    if shape in SSD:
        h, p, n, g = SSD[shape]
        entries = meta(1, capacity, h, p), meta(1, capacity, h, dtype=torch.float32), meta(1, capacity, g, n)
        made = import_module("ssmspec_kernels.ssd_ring").Ring(*entries, *cursors)
    else:
        g, h, k, v = DELTA[shape]
        entries = meta(1, capacity, h, v), meta(1, capacity, g, k), meta(1, capacity, h, dtype=torch.float32)
        made = import_module("ssmspec_kernels.delta_ring").Ring(*entries, *cursors)
    return [getattr(made, field.name) for field in fields(made) if isinstance(getattr(made, field.name), Tensor)]
