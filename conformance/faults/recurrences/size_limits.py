"""Faults that act only past a size, in a range of inputs, after many tokens, or in arrays that lie otherwise in memory."""

import ctypes
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ssmspec_ref import delta, tree
from ssmspec_ref.functions import softplus
from ssmspec_ref.records import each, prefix
from ssmspec_ref.shapes import Array

from ...mistakes.mistake import Mistake, after, before
from ...mistakes.operators import at_least, drop
from ..fault import FP32, planted
from ..right import conv_along_ancestors
from .arithmetic import right, rounded


def forgets_at_256(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """The state is not passed from the first chunk of 256 tokens to the second."""
    if window.x.shape[1] <= 256:
        return right(S, window, params)
    tail = each(lambda a: a[:, 256:], window)
    (y, _), (y_tail, S_next) = right(S, prefix(window, 256), params), right(np.zeros_like(S), tail, params)
    return np.concatenate([y, y_tail], axis=1), S_next


def steps(window: Any, params: Any, change: Callable[[Array], Array]) -> tuple[Any, Any]:
    """A window whose steps are formed beforehand, and changed, and the parameters that leave them as they are."""
    dt = window.dt if params.dt_bias is None else window.dt + params.dt_bias
    dt = change(softplus(dt) if params.dt_softplus else dt)
    return replace(window, dt=np.clip(dt, *params.dt_limit)), replace(params, dt_bias=None, dt_softplus=False)


def formed(name: str, says: str, change: Callable[[Array], Array], of_softplus: bool = False) -> Mistake:
    """A mistake in the steps, which are formed beforehand; `of_softplus`: only where there is one."""

    def dt(dt: Array, dt_bias: Array | None, dt_softplus: bool, dt_limit: tuple[float, float]) -> Array:
        raw = dt if dt_bias is None else dt + dt_bias
        made = softplus(raw) if dt_softplus else raw
        return np.clip(change(made) if dt_softplus or not of_softplus else made, *dt_limit)

    return before(name, says, dt=dt, dt_bias=None, dt_softplus=False)


def assumes_compact(x: Array) -> Array:
    """x is read as if it were contiguous. Bug class INDEX."""
    return np.nan_to_num(np.frombuffer(ctypes.string_at(x.ctypes.data, x.nbytes)).reshape(x.shape))


class KeepsByAddress:
    """A converted array is cached by its address, and reused for another array there."""

    __name__ = "keeps_by_address"

    def __init__(self) -> None:
        self.kept: tuple[Array, Array] | None = None

    def __call__(self, S: Array, window: Any, params: Any) -> tuple[Array, Array]:
        if self.kept is None or self.kept[0] is not window.x:
            self.kept = window.x, window.x.copy()
        return right(S, replace(window, x=self.kept[1]), params)


def one_tile_of_keys(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """The output reads the first 64 key channels."""
    o, S_next = delta.scan(S, window, params)
    if window.k.shape[3] > 64:
        o = o.copy()
        q, _ = delta.keys_and_queries(window.q[:, -1], window.k[:, -1], window.v.shape[2], params)
        o[:, -1] = np.einsum("bhkv, bhk -> bhv", S_next[:, :, :64], q[:, :, :64])
    return rounded(o, S_next)


def near_ancestors(ancestors: Array) -> Array:
    """A node reads itself and its 15 nearest ancestors: the walk is truncated."""
    return ancestors & (np.cumsum(ancestors[:, :, ::-1], axis=2)[:, :, ::-1] <= 16)


def bits_of_a_word(M: Array, u: Array, parents: Array, params: Any) -> Array:
    """Nodes from the 64th on lose their earlier ancestors: the mask is one 64-bit word."""
    node = np.arange(parents.shape[1])
    seen = tree.ancestors(parents) & ~((node[:, None] >= 64) & (node < 64))
    return conv_along_ancestors(M, u, seen, params).astype(np.float32)


FAULTS = planted(
    *(
        (run, "ssd.scan", bug_class, FP32)
        for run, bug_class in (
            (
                after(
                    "transposed_square",
                    "The final state is stored transposed; for a square state the shape does not reveal it.",
                    S_next=lambda S_next: S_next.swapaxes(2, 3) if S_next.shape[2] == S_next.shape[3] else S_next,
                ),
                "TRANSPOSE",
            ),
            (
                before(
                    "one_tile_of_states",
                    "The output sums the first 64 states; a loop over tiles is missing.",
                    C=drop(-1, 64),
                ).of("y"),
                "INDEX",
            ),
            (after("eight_rows", "Rows past the eighth are not written.", y=drop(0, 8)), "INDEX"),
            (forgets_at_256, "CHUNK"),
            (
                formed(
                    "early_threshold",
                    "softplus(x) is taken as x from x = 8 on, although 20 is declared.",
                    lambda dt: np.where(dt > 8, dt + np.log1p(-np.exp(-dt)), dt),
                ),
                "NUMERIC",
            ),
            (
                formed(
                    "floor_under_steps",
                    "dt is clipped to at least 1e-4. huggingface/transformers#48989.",
                    at_least(1e-4),
                ),
                "NUMERIC",
            ),
            (before(x=assumes_compact), "INDEX"),
            (KeepsByAddress(), "CHEAT"),
        )
    ),
    (
        before("other_eps", "The l2 norm of keys and queries adds 1e-12 instead of the given eps.", eps=1e-12),
        "delta.scan",
        "NUMERIC",
        FP32,
    ),
    (one_tile_of_keys, "delta.scan", "INDEX", FP32),
    (before(ancestors=near_ancestors), "ssd.verify_tree", "TREE-MASK", FP32),
    (bits_of_a_word, "conv.verify_tree", "TREE-MASK", FP32),
)
