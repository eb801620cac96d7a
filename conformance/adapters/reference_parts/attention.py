"""Attention over a cache as one dense masked softmax over all slots; and the move of accepted keys as a gather."""

from typing import Any

import numpy as np

from ssmspec_ref import tree
from ssmspec_ref.contract import FLOAT64, Capability, Subject
from ssmspec_ref.shapes import Ancestors, Array, Lengths, Parents, Path


def verify_tree(K: Array, V: Array, length: Lengths, q: Array, k: Array, v: Array, ancestors: Ancestors, scale: Any) -> Array:
    """Scores over cache and window together; positions that a node may not read are -inf."""
    b, t, h, e = q.shape
    keys, values = (np.repeat(np.concatenate(pair, axis=1), h // k.shape[2], axis=2) for pair in ((K, k), (V, v)))
    committed = np.broadcast_to((np.arange(K.shape[1]) < length[:, None])[:, None], (b, t, K.shape[1]))
    live = np.einsum("btt -> bt", ancestors)
    seen = np.concatenate([committed & live[:, :, None], ancestors], axis=2)[:, :, None]
    held = np.asarray(seen.any(axis=(1, 2)))[..., None, None]
    values = np.where(held, values, 0.0)  # what no node reads may be NaN
    size = e**-0.5 if scale is None else scale
    score = np.where(seen, size * np.einsum("bthe, blhe -> bthl", q, keys), -np.inf)
    weight = np.exp(score - np.where(seen.any(axis=3, keepdims=True), score.max(axis=3, keepdims=True), 0.0))
    total = weight.sum(axis=3, keepdims=True)
    weight = np.divide(weight, total, out=np.zeros_like(weight), where=total > 0)
    return np.einsum("bthl, blhe -> bthe", weight, values)


def positions(length: Lengths, parents: Parents) -> Array:
    """The length and the number of ancestors."""
    return np.asarray(length[:, None] + tree.ancestors(parents).sum(axis=2) - 1)


def compact(K: Array, V: Array, length: Lengths, path: Path) -> tuple[Array, Array]:
    """Computes the source of every slot, then gathers."""
    slots, t = K.shape[1], path.shape[1]
    source = np.broadcast_to(np.arange(slots), K.shape[:2]).copy()
    for b, T in enumerate(length):
        rank = np.arange(slots) - T
        taken = (rank >= 0) & (rank < (path[b] >= 0).sum())
        source[b] = np.where(taken, T + path[b, np.clip(rank, 0, t - 1)], source[b])
    moved = (np.take_along_axis(x, source[..., None, None], axis=1) for x in (K, V))
    return tuple(moved)  # type: ignore[return-value]


def subject() -> Subject:
    operations: dict[str, Any] = {"attention.verify_tree": verify_tree, "attention.compact": compact}
    operations["attention.positions"] = positions
    return Subject(
        "dense attention",
        {name: Capability(run, FLOAT64) for name, run in operations.items()},
        absent={"": "another part of the reference"},
    )
