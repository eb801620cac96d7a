"""The delta rule with a gate for each key channel (Kimi Delta Attention), where the channels are taken for one another."""

from typing import Any
from unittest.mock import patch

import numpy as np

from ssmspec_ref.contract import Limits
from ssmspec_ref.delta import chunked as delta_chunked
from ssmspec_ref.delta import tree as delta_tree
from ssmspec_ref.shapes import Array

from ...mistakes.mistake import before
from ..fault import FP32, planted
from .arithmetic import rounded

CHANNELS = Limits({"gate": ("channel",)}, reason="a fault of a gate by channel")


def first_channel(g: Array) -> Array:
    """The log decay of the first channel for all channels, if there is one for each."""
    return np.broadcast_to(g[..., :1], g.shape).copy() if g.ndim == 4 else g


def one_channel_for_a_window(g: Array) -> Array:
    """Single tokens decay by channel; several at once decay by the mean of the channels."""
    mean = g.mean(axis=-1, keepdims=True)
    return np.broadcast_to(mean, g.shape).copy() if g.ndim == 4 and g.shape[1] > 1 else g


def gate_of_the_key_head(g: Array, v: Array, k: Array) -> Array:
    """Value heads that share a key head share the gate of its first one too."""
    each_head = v.shape[2] // k.shape[2]
    return np.repeat(g[:, :, ::each_head], each_head, axis=2) if g.ndim == 4 else g


def divided_decays(log_decay: Array) -> Array:
    """What is left of each token at each later one, as a quotient of what is left since the start, in single precision."""
    left = np.exp(np.cumsum(log_decay, axis=-1).astype(np.float32))
    between = (left[..., :, None] / left[..., None, :]).astype(np.float64)
    return np.where(np.tri(log_decay.shape[-1], dtype=bool), between, 0.0)


def undoes_the_decay(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """In a chunk keys are divided by their decay: exp of minus its sum leaves single precision where no bound holds the gate.
    MoonshotAI/FlashKDA#7."""
    with patch.object(delta_chunked, "decays", divided_decays), np.errstate(all="ignore"):
        return rounded(*delta_chunked.scan(S, window, params))


FAULTS = planted(
    (
        before(
            "one_channel_for_all",
            "The decay of the first key channel is applied to all channels of a head.",
            g=first_channel,
        ),
        "delta.scan",
        "VARIANT",
        FP32,
        CHANNELS,
    ),
    (
        before(
            "one_channel_for_a_tree",
            "In a tree the decay of the first key channel is applied to all channels of a head.",
            g=first_channel,
        ).over(delta_tree.scan),
        "delta.verify_tree",
        "VARIANT",
        FP32,
        CHANNELS,
    ),
    (before(g=one_channel_for_a_window), "delta.scan", "VARIANT", FP32, CHANNELS),
    (before(g=gate_of_the_key_head), "delta.scan", "GROUP-MAP", FP32, CHANNELS),
    (undoes_the_decay, "delta.scan", "NUMERIC", FP32, CHANNELS),
)
