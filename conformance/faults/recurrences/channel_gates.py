"""The delta rule with a gate for each key channel (Kimi Delta Attention), where the channels are taken for one another."""

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

from ssmspec_ref import delta
from ssmspec_ref.contract import Limits, NumericContract
from ssmspec_ref.delta import chunked as delta_chunked
from ssmspec_ref.delta import tree as delta_tree
from ssmspec_ref.shapes import Array

from ..single import Wrong
from .arithmetic import rounded

FP32 = NumericContract()
CHANNELS = Limits({"gate": ("channel",)}, reason="a fault of a gate by channel")


def spread(window: Any, g: Array) -> Any:
    """The window with a log decay (b, t, h, 1) for all channels, if it has one for each."""
    return replace(window, g=np.broadcast_to(g, window.g.shape).copy()) if window.g.ndim == 4 else window


def first_channel(window: Any) -> Any:
    return spread(window, window.g[..., :1])


def one_channel_for_all(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """The decay of the first key channel is applied to all channels of a head."""
    return rounded(*delta.scan(S, first_channel(window), params))


def one_channel_for_a_tree(S: Array, window: Any, ancestors: Array, params: Any) -> Array:
    """In a tree the decay of the first key channel is applied to all channels of a head."""
    made: Array = delta_tree.scan(S, first_channel(window), ancestors, params).astype(np.float32)
    return made


def one_channel_for_a_window(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """Single tokens decay by channel; several at once decay by the mean of the channels."""
    several = window.v.shape[1] > 1
    return rounded(*delta.scan(S, spread(window, window.g.mean(axis=-1, keepdims=True)) if several else window, params))


def gate_of_the_key_head(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """Value heads that share a key head share the gate of its first one too."""
    each_head = window.v.shape[2] // window.k.shape[2]
    g = np.repeat(window.g[:, :, ::each_head], each_head, axis=2)
    return rounded(*delta.scan(S, replace(window, g=g) if g.ndim == 4 else window, params))


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


FAULTS: tuple[Wrong, ...] = (
    (one_channel_for_all, "delta.scan", "VARIANT", FP32, CHANNELS),
    (one_channel_for_a_tree, "delta.verify_tree", "VARIANT", FP32, CHANNELS),
    (one_channel_for_a_window, "delta.scan", "VARIANT", FP32, CHANNELS),
    (gate_of_the_key_head, "delta.scan", "GROUP-MAP", FP32, CHANNELS),
    (undoes_the_decay, "delta.scan", "NUMERIC", FP32, CHANNELS),
)
