"""Faults that act only past a size, in a range of inputs, after many tokens, or in arrays that lie otherwise in memory."""

import ctypes
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ssmspec_ref import conv, delta, ssd, tree
from ssmspec_ref.contract import Adapter, NumericContract
from ssmspec_ref.functions import softplus
from ssmspec_ref.records import each, prefix
from ssmspec_ref.shapes import Array
from ssmspec_ref.tree import paths as tree_paths

from ..single import single
from .arithmetic import right, rounded

FP32 = NumericContract()


def transposed_square(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """The final state is stored transposed; for a square state the shape does not reveal it."""
    y, S_next = right(S, window, params)
    return y, S_next.swapaxes(2, 3) if S.shape[2] == S.shape[3] else S_next


def one_tile_of_states(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """The output sums the first 64 states; a loop over tiles is missing."""
    return right(S, replace(window, C=window.C * (np.arange(S.shape[3]) < 64)), params)[0], right(S, window, params)[1]


def eight_rows(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """Rows past the eighth are not written."""
    y, S_next = right(S, window, params)
    y[8:] = 0
    return y, S_next


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


def early_threshold(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """softplus(x) is taken as x from x = 8 on, although 20 is declared."""
    return right(S, *steps(window, params, lambda dt: np.where(dt > 8, dt + np.log1p(-np.exp(-dt)), dt)))


def floor_under_steps(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """dt is clipped to at least 1e-4. huggingface/transformers#48989."""
    return right(S, *steps(window, params, lambda dt: np.maximum(dt, 1e-4)))


def assumes_compact(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """x is read as if it were contiguous. Bug class INDEX."""
    x = np.frombuffer(ctypes.string_at(window.x.ctypes.data, window.x.nbytes)).reshape(window.x.shape)
    return right(S, replace(window, x=np.nan_to_num(x)), params)


class KeepsByAddress:
    """A converted array is cached by its address, and reused for another array there."""

    __name__ = "keeps_by_address"

    def __init__(self) -> None:
        self.kept: tuple[Array, Array] | None = None

    def __call__(self, S: Array, window: Any, params: Any) -> tuple[Array, Array]:
        if self.kept is None or self.kept[0] is not window.x:
            self.kept = window.x, window.x.copy()
        return right(S, replace(window, x=self.kept[1]), params)


def other_eps(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """The l2 norm of keys and queries adds 1e-12 instead of the given eps."""
    return rounded(*delta.scan(S, window, replace(params, eps=1e-12)))


def one_tile_of_keys(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """The output reads the first 64 key channels."""
    o, S_next = delta.scan(S, window, params)
    if window.k.shape[3] > 64:
        o = o.copy()
        q, _ = delta.keys_and_queries(window.q[:, -1], window.k[:, -1], window.v.shape[2], params)
        o[:, -1] = np.einsum("bhkv, bhk -> bhv", S_next[:, :, :64], q[:, :, :64])
    return rounded(o, S_next)


def near_ancestors(S: Array, window: Any, ancestors: Array, params: Any) -> Array:
    """A node reads itself and its 15 nearest ancestors: the walk is truncated."""
    deep = np.cumsum(ancestors[:, :, ::-1], axis=2)[:, :, ::-1] <= 16
    y = tree_paths.scan(lambda state, path: ssd.scan(state, path, params), S, window, ancestors & deep)
    return y.astype(np.float32)


def bits_of_a_word(M: Array, u: Array, parents: Array, params: Any) -> Array:
    """Nodes from the 64th on lose their earlier ancestors: the mask is one 64-bit word."""
    node = np.arange(parents.shape[1])
    seen = tree.ancestors(parents) & ~((node[:, None] >= 64) & (node < 64))
    return tree_paths.scan(lambda state, path: conv.scan(state, path, params), M, u, seen).astype(np.float32)


FAULTS: dict[str, tuple[Callable[..., Any], ...]] = {
    "ssd.scan": (
        transposed_square,
        one_tile_of_states,
        eight_rows,
        forgets_at_256,
        early_threshold,
        floor_under_steps,
        assumes_compact,
        KeepsByAddress(),
    ),
    "delta.scan": (other_eps, one_tile_of_keys),
    "ssd.verify_tree": (near_ancestors,),
    "conv.verify_tree": (bits_of_a_word,),
}
"""The operation of each."""
WRONG = tuple((operation, run) for operation, runs in FAULTS.items() for run in runs)


subject = partial(single, contract=FP32)


def adapter() -> Adapter:
    return Adapter("faulty reach", "1", tuple(subject(*wrong) for wrong in WRONG))
