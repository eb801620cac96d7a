"""The memory of a row of recurrent layers between two windows: the bytes of the tensors that the launchers take.

    snapshots T   T states, one for every token of a window                                          (1)
    ring T        one state, and the ring of 16 tokens and a window with its cursors                 (2)
    sequence, ..  either in every recurrent layer of the model, and the keys and values of LONG tokens in bf16    (3)

Tensors are created without data, so that any size fits any machine.
"""

from dataclasses import fields, replace
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from ..verdicts.measured import At, Missing
from .entry import meta
from .kernel_modules import kernel_module
from .shapes import DELTA, SSD

PERIOD = 16
LONG = 2048


def row_bytes(place: At) -> int:
    """The bytes of `snapshots T=4` or `ring T=4` at the dims of a kernel's shape, or of a `sequence` of its model.

    Raises: Missing for other names and shapes.
    """
    if place.operation.startswith("sequence, "):
        layers, cached = layers_of(place.shape)
        return layers * row_bytes(replace(place, operation=place.operation.removeprefix("sequence, "))) + place.batch * cached
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


def layers_of(model: str) -> tuple[int, int]:
    """The recurrent layers of a model, and the bytes of a sequence in its attention layers (3)."""
    mixers = import_module("ssmspec_fast.bench.models").family_of(model)[1].mixers
    attention = import_module("ssmspec_fast.models.config").AttentionConfig
    attending = [mixer for mixer in mixers if isinstance(mixer, attention)]
    return len(mixers) - len(attending), sum(LONG * 2 * mixer.groups * mixer.channels * 2 for mixer in attending)


def _ring(shape: str, capacity: int) -> list[Tensor]:
    cursors = meta(1, dtype=torch.int32), meta(1, dtype=torch.int32)
    if shape in SSD:
        h, p, n, g = SSD[shape]
        entries = meta(1, capacity, h, p), meta(1, capacity, h, dtype=torch.float32), meta(1, capacity, g, n)
        made = kernel_module("ssd_ring").Ring(*entries, *cursors)
    else:
        g, h, k, v = DELTA[shape]
        entries = meta(1, capacity, h, v), meta(1, capacity, g, k), meta(1, capacity, h, dtype=torch.float32)
        made = kernel_module("delta_ring").Ring(*entries, *cursors)
    return [getattr(made, field.name) for field in fields(made) if isinstance(getattr(made, field.name), Tensor)]
