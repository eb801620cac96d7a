"""Read by the strides of another array, which has the same shape, and the same strides wherever both are compact; or by those
of a block of 2^k elements, which are the right ones where a size is a power of two."""

import numpy as np

from ssmspec_ref.contract import FLOAT64
from ssmspec_ref.shapes import Array

from ...mistakes.mistake import before
from ..fault import FP32, planted


def read_as(a: Array, other: Array) -> Array:
    """What lies under an array from its first element on, at the strides of another; past its end from the beginning."""
    while isinstance(a.base, np.ndarray):
        a = a.base
    places = sum(np.indices(other.shape)[axis] * (step // a.itemsize) for axis, step in enumerate(other.strides))
    return np.nan_to_num(a.reshape(-1)[np.mod(places, a.size)])


def in_blocks(a: Array) -> Array:
    """What lies under a compact array where its rows (the last axis) were as long as the next power of two."""
    rows, width = a.reshape(-1, a.shape[-1]).shape
    block = 1 << (width - 1).bit_length()
    places = np.arange(rows)[:, None] * block + np.arange(width)
    return a.reshape(-1)[np.mod(places, a.size)].reshape(a.shape)


def of_heads(own: Array) -> Array:
    return in_blocks(own) if own.ndim == 3 else own


FAULTS = planted(
    *(
        (before(name, says, **change), operation, "INDEX", contract)
        for name, says, change, operation, contract in (
            (
                "gate_as_input",
                "z is read with the strides of x, though it is part of another projection. Bug class INDEX.",
                {"z": lambda z, x: read_as(z, x)},
                "ssd.scan",
                FP32,
            ),
            (
                "read_as_write",
                "C is read with the strides of B. Bug class INDEX.",
                {"C": lambda C, B: read_as(C, B)},
                "ssd.scan",
                FP32,
            ),
            (
                "query_as_key",
                "q is read with the strides of k. Bug class INDEX.",
                {"q": lambda q, k: read_as(q, k)},
                "delta.scan",
                FP32,
            ),
            (
                "values_as_keys",
                "The values of the cache are read with the strides of its keys. Bug class INDEX.",
                {"V": lambda V, K: read_as(V, K)},
                "attention.verify_tree",
                FLOAT64,
            ),
            (
                "drafter_as_target",
                "The drafter's distribution is read with the strides of the target's. Bug class INDEX.",
                {"q": lambda q, p: read_as(q, p)},
                "acceptance.sampled",
                FLOAT64,
            ),
            (
                "tokens_as_parents",
                "Drafts are read with the strides of the tree. Bug class INDEX.",
                {"tokens": lambda tokens, parents: read_as(tokens, parents)},
                "acceptance.greedy",
                FLOAT64,
            ),
            (
                "states_in_blocks",
                "The state is read with a step of BLOCK_N for n. Bug class INDEX.",
                {"S": lambda S: in_blocks(S)},
                "ssd.step",
                FLOAT64,
            ),
            (
                "heads_in_blocks",
                "Log decays and strengths are read with a step of BLOCK_H for h. Bug class INDEX.",
                {"g": of_heads, "beta": of_heads},
                "delta.scan",
                FLOAT64,
            ),
        )
    ),
    (
        before(
            "taps_in_blocks",
            "The window of the convolution is read with a step of BLOCK_W for w. Bug class INDEX.",
            M=lambda M: in_blocks(M),
        ).of("y"),
        "conv.scan",
        "INDEX",
    ),
)
BLOCKS = FAULTS[-3:]
"""Those that sizes of powers of two hide."""
