"""Attention as an online softmax over tiles of 8, 16, 32 or 64 keys, with a sum that is not rescaled or a tile left out."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ssmspec_ref.contract import Adapter
from ssmspec_ref.decay_matrix import pieces
from ssmspec_ref.shapes import Ancestors, Array, Lengths

from ...adapters.reference_parts import attention
from ..single import Wrong, adapter_of
from .chunks import named

TILES = (8, 16, 32, 64)
Cut = Callable[[int, int, int], list[tuple[int, int]]]
Rescaled = Callable[[Array], tuple[Array | float, Array | float]]


def together(held: int, new: int, tile: int) -> list[tuple[int, int]]:
    """Tiles over cache and window, one of which may hold keys of both."""
    return pieces(held + new, tile)


def apart(held: int, new: int, tile: int) -> list[tuple[int, int]]:
    """Tiles over the cache, then others over the window."""
    return [*pieces(held, tile), *((held + begin, held + end) for begin, end in pieces(new, tile))]


def online(
    cut: Cut, tile: int, rescaled: Rescaled, length: Lengths, seen: Ancestors, q: Array, pairs: tuple[Array, ...], scale: Any
) -> Array:
    """Keys of the cache, then of the window, in tiles. `rescaled` takes by how much the weights shrink when the maximum
    grows, and gives by how much the sum of values and that of weights do."""
    K, V, k, v = pairs
    y, each = np.zeros_like(q), q.shape[2] // k.shape[2]
    for b, T in enumerate(length):
        keys, values = (np.repeat(np.concatenate([old[b, :T], new[b]]), each, axis=1) for old, new in ((K, k), (V, v)))
        size = q.shape[3] ** -0.5 if scale is None else scale
        live = np.diagonal(seen[b])
        mask: Array = np.concatenate([np.broadcast_to(live[:, None], (len(live), T)), seen[b]], axis=1)[:, None]
        read = np.asarray(mask.any(axis=(0, 1)))[:, None, None]
        keys, values = np.where(read, keys, 0.0), np.where(read, values, 0.0)
        score = np.where(mask, size * np.einsum("the, lhe -> thl", q[b], keys), -np.inf)
        most, total, summed = np.full(score.shape[:2], -np.inf), np.zeros(score.shape[:2]), np.zeros_like(q[b])
        for begin, end in cut(int(T), q.shape[1], tile):
            part = score[:, :, begin:end]
            more = np.maximum(most, part.max(axis=2))
            base = np.where(np.isfinite(more), more, 0.0)
            weight = np.exp(part - base[:, :, None])
            of_values, of_weights = rescaled(np.exp(most - base))
            total = of_weights * total + weight.sum(axis=2)
            summed = np.asarray(of_values)[..., None] * summed + np.einsum("thl, lhe -> the", weight, values[begin:end])
            most = more
        y[b] = np.divide(summed, total[..., None], out=np.zeros_like(summed), where=total[..., None] > 0)
    return y


def values_not_rescaled(
    tile: int, K: Array, V: Array, length: Lengths, q: Array, k: Array, v: Array, ancestors: Ancestors, scale: Any
) -> Array:
    """Over tiles of {chunk} keys, the sum of values is not rescaled when the maximum grows; the sum of weights is."""
    return online(together, tile, lambda shrunk: (1.0, shrunk), length, ancestors, q, (K, V, k, v), scale)


def weights_not_rescaled(
    tile: int, K: Array, V: Array, length: Lengths, q: Array, k: Array, v: Array, ancestors: Ancestors, scale: Any
) -> Array:
    """Over tiles of {chunk} keys, the sum of weights is not rescaled when the maximum grows; the sum of values is."""
    return online(together, tile, lambda shrunk: (shrunk, 1.0), length, ancestors, q, (K, V, k, v), scale)


def values_not_rescaled_apart(
    tile: int, K: Array, V: Array, length: Lengths, q: Array, k: Array, v: Array, ancestors: Ancestors, scale: Any
) -> Array:
    """Over tiles of {chunk} keys of the cache, then of the window, the sum of values is not rescaled when the maximum grows;
    the sum of weights is."""
    return online(apart, tile, lambda shrunk: (1.0, shrunk), length, ancestors, q, (K, V, k, v), scale)


def weights_not_rescaled_apart(
    tile: int, K: Array, V: Array, length: Lengths, q: Array, k: Array, v: Array, ancestors: Ancestors, scale: Any
) -> Array:
    """Over tiles of {chunk} keys of the cache, then of the window, the sum of weights is not rescaled when the maximum grows;
    the sum of values is."""
    return online(apart, tile, lambda shrunk: (shrunk, 1.0), length, ancestors, q, (K, V, k, v), scale)


def last_tile_is_left_out(
    tile: int, K: Array, V: Array, length: Lengths, q: Array, k: Array, v: Array, ancestors: Ancestors, scale: Any
) -> Array:
    """The cache is read in tiles of {chunk} keys, and the last is left out unless it is full."""
    return attention.verify_tree(K, V, length // tile * tile, q, k, v, ancestors, scale)


def full_tile_is_left_out(
    tile: int, K: Array, V: Array, length: Lengths, q: Array, k: Array, v: Array, ancestors: Ancestors, scale: Any
) -> Array:
    """The cache is read in tiles of {chunk} keys, and the last is left out if it is full."""
    read = np.where((length > 0) & (length % tile == 0), length - tile, length)
    return attention.verify_tree(K, V, read, q, k, v, ancestors, scale)


FAULTS: tuple[Wrong, ...] = tuple(
    (named(wrong, chunk=tile), "attention.verify_tree", bug_class)
    for wrong, bug_class in (
        (values_not_rescaled, "NUMERIC"),
        (weights_not_rescaled, "NUMERIC"),
        (values_not_rescaled_apart, "NUMERIC"),
        (weights_not_rescaled_apart, "NUMERIC"),
        (last_tile_is_left_out, "INDEX"),
        (full_tile_is_left_out, "INDEX"),
    )
    for tile in TILES
)
"""Each with its operation and its bug class."""


def adapter() -> Adapter:
    return adapter_of("softmax", FAULTS)
