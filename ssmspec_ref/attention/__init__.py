"""Grouped-query attention over a key-value cache, for windows and trees: the other kind of layer in hybrid models.

position of node i = T + depth(i)                                  (1)
q, k rotated to their positions (rotary embedding)                 (2)
k, v of node i written to slot T + i                               (3)
y_i = softmax(scale q_i K^T) V over the slots l < T, and T + j for the ancestors j of i   (4)
accepted path p: slot T + p_m -> slot T + m, then T + |p|          (5)

T is the committed length of a row. The position is the depth of the node, not its index; only in a chain are they equal. The
node at rank m of a path has depth m, so a key that moves by (5) is already rotated for its new position; no key is rotated
twice. Slots from T on are dead: they are never read, not even with a weight of zero, which would let a NaN through.

A window is a tree with one path, so the same code serves prefill, plain decoding, windows and trees. Query head h reads key
head h // (h_q / h_kv).
"""

from dataclasses import dataclass

import numpy as np
from numpy import concatenate, einsum, exp, flatnonzero, repeat

from .. import tree
from ..checks import check_groups, checked
from ..errors import AcceptanceError, ParameterError
from ..layers.rotary import rotate
from ..lengths import check_lengths
from ..records import Record
from ..shapes import KV, Ancestors, Array, Cache, Frequencies, Lengths, Mask, Path, Positions, Query


@dataclass(frozen=True)
class AttentionParams(Record):
    """How a layer reads its cache. `scale` None means e^-1/2; without `frequencies` there is no position embedding.

    Raises: ParameterError for a scale that is not positive.
    """

    scale: float | None = None
    frequencies: Frequencies | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scale is not None and not self.scale > 0:
            raise ParameterError(f"scale is {self.scale}; it must be > 0, or None for e^-1/2")


@dataclass(frozen=True)
class AttentionWindow(Record):
    """Queries, keys and values of a window of tokens, before the position embedding."""

    q: Query
    k: KV
    v: KV


@dataclass(frozen=True)
class KVState(Record):
    """Keys, rotated to their positions, and values. The first `length` slots of a row are committed; the rest is dead.

    Raises: LengthError for a length larger than the cache.
    """

    K: Cache
    V: Cache
    length: Lengths

    def __post_init__(self) -> None:
        super().__post_init__()
        check_lengths("KVState.length", self.length, self.K.shape[1])


def new_state(rows: int, groups: int, channels: int) -> KVState:
    """An empty cache for `rows` sequences; `append` adds slots."""
    empty = np.zeros((rows, 0, groups, channels))
    return KVState(empty, empty, np.zeros(rows, dtype=np.int64))


def positions(length: Lengths, ancestors: Ancestors) -> Positions:
    """T + depth (1)."""
    return length[:, None] + ancestors.sum(axis=2) - 1


def turned(x: KV, at: Positions, params: AttentionParams) -> KV:
    """Queries or keys rotated to their positions (2)."""
    return x if params.frequencies is None else rotate(x, at, params.frequencies)


@checked
def append(state: KVState, k: KV, v: KV, live: Mask) -> KVState:
    """Write rotated keys, and values, of the live tokens after the committed slots (3); the length does not change.

    The cache grows if needed.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow.
    """
    b, t = np.nonzero(live)
    slot = state.length[b] + t
    grown = max(0, int(slot.max(initial=-1)) + 1 - state.K.shape[1])
    K, V = (np.pad(cache, ((0, 0), (0, grown), (0, 0), (0, 0))) for cache in (state.K, state.V))
    K[b, slot], V[b, slot] = k[b, t], v[b, t]  # (3)
    return KVState(K, V, state.length)


@checked
def read(q: Query, state: KVState, ancestors: Ancestors, params: AttentionParams) -> Query:
    """Attention of rotated queries over the committed slots and those of their ancestors (4); 0 at padding.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, ParameterError if the key heads do not divide the query heads.
    """
    rows, nodes, heads, channels = q.shape
    groups = state.K.shape[2]
    check_groups(groups, heads)
    scale = channels**-0.5 if params.scale is None else params.scale
    y = np.zeros_like(q)
    for b in range(rows):
        committed = np.arange(state.length[b])
        for i in range(nodes):
            if ancestors[b, i].any():
                seen = concatenate([committed, state.length[b] + flatnonzero(ancestors[b, i])])
                K, V = (repeat(cache[b, seen], heads // groups, axis=1) for cache in (state.K, state.V))
                y[b, i] = _attend(scale * q[b, i], K, V)  # (4)
    return y


def _attend(q: Array, K: Array, V: Array) -> Array:
    """softmax(q K^T) V of one query, head by head; the largest score is subtracted before exp, which could overflow."""
    score = einsum("he, lhe -> lh", q, K)
    weight = exp(score - score.max(axis=0))
    return einsum("lh, lhe -> he", weight / weight.sum(axis=0), V)


@checked
def verify(state: KVState, window: AttentionWindow, ancestors: Ancestors, params: AttentionParams) -> tuple[Query, KVState]:
    """The outputs at every node, and the cache with the nodes after its committed slots: equations (1) to (4) of the module.

    The ancestor sets of the mask must nest (`tree`), so that every node has one depth.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, ParameterError, NotTopological, NotNested.
    Source: STree, section 3 (the mask of SpecInfer); the positions are ours, because the paper does not give them.
    """
    tree.check_nested(ancestors)
    at = positions(state.length, ancestors)  # (1)
    q, k = turned(window.q, at, params), turned(window.k, at, params)  # (2)
    appended = append(state, k, window.v, tree.live(ancestors))  # (3)
    return read(q, appended, ancestors, params), appended  # (4)


@checked
def compact(state: KVState, path: Path) -> KVState:
    """Move the accepted nodes to the end of the committed slots, in path order, and commit them (5).

    All are read before any is written. To do it in place, move in ascending order: p_m >= m, so slot T + m has been read
    already or is not a source; in descending order a move would overwrite the source of a later one.

    Raises: ShapeMismatch, PrecisionError, AcceptanceError for a path that does not ascend, or points outside the cache.
    """
    K, V, advanced = state.K.copy(), state.V.copy(), (path >= 0).sum(axis=1)
    for b, T in enumerate(state.length):
        p = path[b, : advanced[b]]
        if np.any(p < 0) or np.any(np.diff(p) <= 0) or T + p.max(initial=-1) >= K.shape[1]:
            raise AcceptanceError(
                f"sequence {b}: the path is {path[b].tolist()} after {T} of {K.shape[1]} slots; "
                "list ascending nodes that were appended, then -1"
            )
        K[b, T : T + len(p)], V[b, T : T + len(p)] = state.K[b, T + p], state.V[b, T + p]  # (5)
    return KVState(K, V, state.length + advanced)


def trim(state: KVState) -> KVState:
    """The cache without dead slots: as long as its longest row, with zeros after shorter rows."""
    longest = int(state.length.max(initial=0))
    dead = (np.arange(longest) >= state.length[:, None])[..., None, None]
    K, V = (np.where(dead, 0.0, cache[:, :longest]) for cache in (state.K, state.V))
    return KVState(K, V, state.length)


def chain(live: Mask) -> Ancestors:
    """The mask of a chain: every live token attends to itself and to the live tokens before it."""
    return np.tri(live.shape[1], dtype=bool) & live[:, :, None] & live[:, None, :]


@checked
def scan(state: KVState, window: AttentionWindow, params: AttentionParams, live: Mask | None = None) -> tuple[Query, KVState]:
    """Plain decoding: advance by every live token of a window. Other tokens take no slot and no position.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, ParameterError.
    """
    live = np.ones(window.q.shape[:2], dtype=bool) if live is None else live
    y, appended = verify(state, window, chain(live), params)
    tokens = live.shape[1]
    ordered = np.sort(np.where(live, np.arange(tokens), tokens), axis=1)
    return y, trim(compact(appended, np.where(ordered < tokens, ordered, -1)))
