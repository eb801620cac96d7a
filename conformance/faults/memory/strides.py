"""Read by the strides of another array, which has the same shape, and the same strides wherever both are compact; or by those
of a block of 2^k elements, which are the right ones where a size is a power of two."""

from dataclasses import replace
from typing import Any

import numpy as np

from ssmspec_ref import conv, delta, ssd
from ssmspec_ref.contract import FLOAT64, Adapter, NumericContract
from ssmspec_ref.shapes import Ancestors, Array, Lengths

from ...adapters.reference_parts.acceptance import Runs, accept_greedy, accept_sampled
from ...adapters.reference_parts.attention import verify_tree
from ..recurrences.arithmetic import right, rounded
from ..single import Wrong, adapter_of

FP32 = NumericContract()


def read_as(a: Array, other: Array) -> Array:
    """What lies under an array from its first element on, at the strides of another; past its end from the beginning."""
    while isinstance(a.base, np.ndarray):
        a = a.base
    places = sum(np.indices(other.shape)[axis] * (step // a.itemsize) for axis, step in enumerate(other.strides))
    return np.nan_to_num(a.reshape(-1)[np.mod(places, a.size)])


def gate_as_input(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """z is read with the strides of x, though it is part of another projection. Bug class INDEX."""
    return right(S, window if window.z is None else replace(window, z=read_as(window.z, window.x)), params)


def read_as_write(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """C is read with the strides of B. Bug class INDEX."""
    return right(S, replace(window, C=read_as(window.C, window.B)), params)


def query_as_key(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """q is read with the strides of k. Bug class INDEX."""
    return rounded(*delta.scan(S, replace(window, q=read_as(window.q, window.k)), params))


def values_as_keys(
    K: Array, V: Array, length: Lengths, q: Array, k: Array, v: Array, ancestors: Ancestors, scale: Any
) -> Array:
    """The values of the cache are read with the strides of its keys. Bug class INDEX."""
    return verify_tree(K, read_as(V, K), length, q, k, v, ancestors, scale)


def drafter_as_target(tokens: Array, parents: Array, p: Array, q: Array, *rest: Any) -> Runs:
    """The drafter's distribution is read with the strides of the target's. Bug class INDEX."""
    return accept_sampled(tokens, parents, p, read_as(q, p), *rest)


def tokens_as_parents(tokens: Array, parents: Array, *rest: Any) -> Runs:
    """Drafts are read with the strides of the tree. Bug class INDEX."""
    return accept_greedy(read_as(tokens, parents), parents, *rest)


def in_blocks(a: Array) -> Array:
    """What lies under a compact array where its rows (the last axis) were as long as the next power of two."""
    rows, width = a.reshape(-1, a.shape[-1]).shape
    block = 1 << (width - 1).bit_length()
    places = np.arange(rows)[:, None] * block + np.arange(width)
    return a.reshape(-1)[np.mod(places, a.size)].reshape(a.shape)


def states_in_blocks(S: Array, token: Any, params: Any) -> tuple[Array, Array]:
    """The state is read with a step of BLOCK_N for n. Bug class INDEX."""
    return ssd.step(in_blocks(S), token, params)


def heads_in_blocks(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """Log decays and strengths are read with a step of BLOCK_H for h. Bug class INDEX."""
    heads = {name: in_blocks(a) for name in ("g", "beta") if (a := getattr(window, name)).ndim == 3}
    return delta.scan(S, replace(window, **heads), params)


def taps_in_blocks(M: Array, u: Array, params: Any) -> tuple[Array, Array]:
    """The window of the convolution is read with a step of BLOCK_W for w. Bug class INDEX."""
    y, _ = conv.scan(in_blocks(M), u, params)
    return y, conv.scan(M, u, params)[1]


FAULTS: tuple[Wrong, ...] = (
    (gate_as_input, "ssd.scan", "INDEX", FP32),
    (read_as_write, "ssd.scan", "INDEX", FP32),
    (query_as_key, "delta.scan", "INDEX", FP32),
    (values_as_keys, "attention.verify_tree", "INDEX", FLOAT64),
    (drafter_as_target, "acceptance.sampled", "INDEX", FLOAT64),
    (tokens_as_parents, "acceptance.greedy", "INDEX", FLOAT64),
    (states_in_blocks, "ssd.step", "INDEX", FLOAT64),
    (heads_in_blocks, "delta.scan", "INDEX", FLOAT64),
    (taps_in_blocks, "conv.scan", "INDEX", FLOAT64),
)
"""Each with its operation, its bug class, and what it declares."""
BLOCKS = FAULTS[-3:]
"""Those that sizes of powers of two hide."""


def adapter() -> Adapter:
    return adapter_of("strides", FAULTS)
