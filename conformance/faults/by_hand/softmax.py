"""Attention as an online softmax over tiles of 8, 16, 32 or 64 keys, with a sum that is not rescaled or a tile left out."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ssmspec_ref.decay_matrix import pieces
from ssmspec_ref.shapes import Ancestors, Array, Lengths

from ...mistakes.mistake import Mistake, before, instead
from ..fault import planted

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
    cut: Cut,
    rescaled: Rescaled,
    tile: int,
    K: Array,
    V: Array,
    length: Lengths,
    q: Array,
    k: Array,
    v: Array,
    seen: Ancestors,
    scale: Any,
) -> Array:
    """Keys of the cache, then of the window, in tiles. `rescaled` takes by how much the weights shrink when the maximum
    grows, and gives by how much the sum of values and that of weights do."""
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


def not_rescaled(name: str, says: str, cut: Cut, rescaled: Rescaled) -> Callable[[int], Mistake]:
    return lambda tile: instead(f"{name}_of_{tile}", says.format(tile), partial(online, cut, rescaled, tile))


def left_out(name: str, says: str, read: Callable[[Lengths, int], Lengths]) -> Callable[[int], Mistake]:
    return lambda tile: before(f"{name}_of_{tile}", says.format(tile), length=lambda length: read(length, tile))


def values_stay(shrunk: Array) -> tuple[Array | float, Array | float]:
    return 1.0, shrunk


def weights_stay(shrunk: Array) -> tuple[Array | float, Array | float]:
    return shrunk, 1.0


FAULTS = planted(
    *(
        (made(tile), "attention.verify_tree", bug_class)
        for made, bug_class in (
            (
                not_rescaled(
                    "values_not_rescaled",
                    "Over tiles of {} keys, the sum of values is not rescaled when the maximum grows; the sum of weights is.",
                    together,
                    values_stay,
                ),
                "NUMERIC",
            ),
            (
                not_rescaled(
                    "weights_not_rescaled",
                    "Over tiles of {} keys, the sum of weights is not rescaled when the maximum grows; the sum of values is.",
                    together,
                    weights_stay,
                ),
                "NUMERIC",
            ),
            (
                not_rescaled(
                    "values_not_rescaled_apart",
                    "Over tiles of {} keys of the cache, then of the window, the sum of values is not rescaled when the "
                    "maximum grows; the sum of weights is.",
                    apart,
                    values_stay,
                ),
                "NUMERIC",
            ),
            (
                not_rescaled(
                    "weights_not_rescaled_apart",
                    "Over tiles of {} keys of the cache, then of the window, the sum of weights is not rescaled when the "
                    "maximum grows; the sum of values is.",
                    apart,
                    weights_stay,
                ),
                "NUMERIC",
            ),
            (
                left_out(
                    "last_tile_is_left_out",
                    "The cache is read in tiles of {} keys, and the last is left out unless it is full.",
                    lambda length, tile: length // tile * tile,
                ),
                "INDEX",
            ),
            (
                left_out(
                    "full_tile_is_left_out",
                    "The cache is read in tiles of {} keys, and the last is left out if it is full.",
                    lambda length, tile: np.where((length > 0) & (length % tile == 0), length - tile, length),
                ),
                "INDEX",
            ),
        )
        for tile in TILES
    )
)
