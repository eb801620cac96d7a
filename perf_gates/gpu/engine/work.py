"""The least work of a step: the bytes that it moves, and the products of its linear layers.

    weights                  read once, and those of the drafter once for each of its forward passes
    states, each             plain, joint, replay, tree: a read and a write; snapshots: a read and a write for each token;
                             buffer: a read, a write in one step of `period`, and the tokens that the ring holds
    keys and values          those of the context, read once for each sequence
    products                 2 for each weight and row

Units: bytes, floating-point operations.
"""

from dataclasses import dataclass
from importlib import import_module
from math import prod
from typing import Any

from .named import Step

RING = 16
"""Tokens that a ring holds in addition to a window."""


@dataclass(frozen=True)
class Work:
    """`moved` is everything but weights."""

    weights: int
    moved: int
    products: int


def of(step: Step, target: Any, weights: int, drafter_bytes: int = 0, forwards: int = 0) -> Work:
    """The work of a step on a target (a model) with the given bytes of weights."""
    config, moved = import_module("ssmspec_fast.models.config"), 0
    for mixer in target.config.mixers:
        if isinstance(mixer, config.AttentionConfig):
            moved += step.batch * step.context * 2 * mixer.groups * mixer.channels * 2
        else:
            moved += round(step.batch * (4 * prod(mixer.state_shape) * states(step) + ring(step, mixer)))
    drafted = drafter_bytes * forwards
    if step.alone:
        return Work(drafted, 0, drafted * step.batch)
    return Work(weights + drafted, moved, weights * step.rows)


def states(step: Step) -> float:
    """How many states are read and written for each sequence."""
    if step.method == "snapshots":
        return 1 + step.tokens
    return 1 + 1 / period(step) if step.method == "buffer" else 2


def period(step: Step) -> float:
    """Steps from one flush to the next: a row flushes when it holds more than RING tokens less a window."""
    return 1 + max(0, RING - step.tokens) // step.emitted


def ring(step: Step, mixer: Any) -> float:
    """The bytes that a step reads of a row's ring, half full, and writes after it: in bf16, and some in fp32."""
    if step.method != "buffer":
        return 0.0
    narrow, exact = mixer.ring_sizes
    return (2 * narrow + 4 * exact) * (RING / 2 + step.tokens)
