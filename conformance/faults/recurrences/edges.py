"""Wrong at an edge only: where a tile is full or one row too many, a path is deep, nothing is accepted, or exp overflows."""

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

from ssmspec_ref import conv, ssd
from ssmspec_ref.accept import multi_step
from ssmspec_ref.backtrack import snapshots
from ssmspec_ref.contract import FLOAT64, Adapter, NumericContract
from ssmspec_ref.layers.mixer import Mixer, MixerState
from ssmspec_ref.shapes import Ancestors, Array, Lengths, Path

from ...adapters.reference_parts import attention
from ...adapters.reference_parts.acceptance import Runs, accept_greedy, accept_sampled
from ...adapters.reference_parts.windows import Bare
from ..rollback.speculation import Snapshots
from ..rollback.windows import prefix
from ..single import Wrong, adapter_of
from ..whole_layers.layers import Right
from .arithmetic import rounded
from .packed import right as right_packed

FP32 = NumericContract()
ROWS = 16


def one_row_takes_the_last(M: Array, u: Array, path: Array) -> Array:
    """An empty path in a batch of one is indexed at its end, and the window after all nodes is kept."""
    if len(path) == 1 and (path < 0).all():
        return conv.commit(M, u, np.array([u.shape[1]])).astype(np.float32)
    return conv.commit_path(M, u, path).astype(np.float32)


def bounded_silu(M: Array, u: Array, params: Any) -> tuple[Array, Array]:
    """The exponent of the activation is clipped to -8 .. 8, so that it cannot overflow."""
    y, M_next = conv.scan(M, u, replace(params, activation=False))
    return rounded(y / (1 + np.exp(-np.clip(y, -8, 8))) if params.activation else y, M_next)


def run_of_the_width(M: Array, u: Array, params: Any) -> tuple[Array, Array]:
    """A run exactly as long as the window is wide does not update the oldest column."""
    y, M_next = conv.scan(M, u, params)
    old = np.arange(M.shape[2]) < (u.shape[1] == M.shape[2])
    return rounded(y, np.where(old, M, M_next))


def overflowing_gate(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """The gate as z e^z / (1 + e^z) in single precision: NaN from z = 89 on, stored as 0."""
    y, S_next = ssd.scan(S, replace(window, z=None), params)
    if window.z is None:
        return rounded(y, S_next)
    with np.errstate(over="ignore", invalid="ignore"):
        e = np.exp(window.z.astype(np.float32))
        return rounded(y * np.nan_to_num(window.z * e / (1 + e)), S_next)


def full_chunk_is_none(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """The number of 64-token chunks is one too large: if the last chunk is full, its state is not stored."""
    y, S_next = ssd.scan(S, window, params)
    return rounded(y, S if window.x.shape[1] % 64 == 0 else S_next)


def full_chunks_of_a_run(S: Array, run: Any, bounds: Array, fresh: Array, params: Any) -> tuple[Array, Array]:
    """In a packed run, the state of a sequence whose last chunk of 64 tokens is full is not stored."""
    y, S_next = right_packed("ssd", S, run, bounds, fresh, params)
    count = np.diff(bounds)
    full = (count > 0) & (count % 64 == 0)
    return rounded(y, np.where(full[:, None, None, None], S, S_next))


def full_block_is_short(
    K: Array, V: Array, length: Lengths, q: Array, k: Array, v: Array, ancestors: Ancestors, scale: Any
) -> Array:
    """If the last block of 64 cache slots is full, its last slot is not read."""
    cut = np.where((length > 0) & (length % 64 == 0), length - 1, length)
    return attention.verify_tree(K, V, cut, q, k, v, ancestors, scale)


def eight_heads(K: Array, V: Array, length: Lengths, q: Array, k: Array, v: Array, ancestors: Ancestors, scale: Any) -> Array:
    """A key head serves at most eight query heads; further ones read the next key head."""
    h, g = q.shape[2], k.shape[2]
    y, each = attention.verify_tree(K, V, length, q, k, v, ancestors, scale), h // g
    return np.where((np.arange(h) % each < 8)[:, None], y, 0.0)


def eight_are_moved(K: Array, V: Array, length: Lengths, path: Path) -> tuple[Array, Array]:
    """The path holds at most eight nodes."""
    return attention.compact(K, V, length, np.where(np.arange(path.shape[1]) < 8, path, -1))


def moves_in_fours(K: Array, V: Array, length: Lengths, path: Path) -> tuple[Array, Array]:
    """Four nodes are moved at once; the last four are taken again where the path ends, after some of them were moved over."""
    K, V = K.copy(), V.copy()
    for b, row in enumerate(path):
        source = length[b] + row[row >= 0]
        target, count = length[b] + np.arange(len(source)), len(source)
        for first in range(0, count, 4):
            at = slice(max(0, min(first, count - 4)), first + 4)
            for x in (K, V):
                x[b, target[at]] = x[b, source[at]]
    return K, V


def spent_budget_emits(tokens: Array, parents: Array, choice: Array, budget: Array, eos: tuple[int, ...]) -> Runs:
    """A spent budget is tested only after the first token."""
    return accept_greedy(tokens, parents, choice, np.maximum(budget, 1), eos)


def sixteen_deep(tokens: Array, parents: Array, choice: Array, budget: Array, eos: tuple[int, ...]) -> Runs:
    """The walk takes at most sixteen steps."""
    return accept_greedy(tokens, parents, choice, np.minimum(budget, 16), eos)


def end_in_any_branch(tokens: Array, parents: Array, choice: Array, budget: Array, eos: tuple[int, ...]) -> Runs:
    """An end of sequence in a branch that was rejected ends the row."""
    emitted, path, advanced, ended = accept_greedy(tokens, parents, choice, budget, eos)
    return emitted, path, advanced, ended | (np.isin(tokens, eos) & (parents >= 0)).any(axis=1)


def end_at_the_root(tokens: Array, parents: Array, choice: Array, budget: Array, eos: tuple[int, ...]) -> Runs:
    """The root is tested for an end of sequence too, although it was emitted before; then nothing is emitted."""
    spent = np.where(np.isin(tokens[:, 0], eos), 0, budget)
    return accept_greedy(tokens, parents, choice, spent, eos)


def twin_with_a_child(tokens: Array, parents: Array, choice: Array, budget: Array, eos: tuple[int, ...]) -> Runs:
    """Of two siblings with the same token the walk goes to the one with a child."""
    other = tokens.copy()
    for b, row in enumerate(parents):
        for node in range(1, len(row)):
            twins = (row[node + 1 :] == row[node]) & (tokens[b, node + 1 :] == tokens[b, node])
            later = np.flatnonzero(twins) + node + 1
            if row[node] >= 0 and not np.any(row == node) and any(np.any(row == twin) for twin in later):
                other[b, node] = -5
    return accept_greedy(other, parents, choice, budget, eos)


def half_precision(tokens: Array, parents: Array, p: Array, *rest: Any) -> Runs:
    """The target's distribution is rounded to fp16."""
    narrow = p.astype(np.float16).astype(np.float64)
    return accept_sampled(tokens, parents, narrow / narrow.sum(axis=2, keepdims=True), *rest)


def twin_stands(tokens: Array, parents: Array, p: Array, q: Array, *rest: Any) -> Runs:
    """A sibling with probability 0 in its distribution is accepted: the ratio is p / 0."""
    skipping: Any = multi_step._accept_child

    def accept_child(*given: Any) -> Any:
        *before, q_rows, dice = given
        return skipping(*before, [[x or 1e-30 for x in row] for row in q_rows], dice)

    with patch.object(multi_step, "_accept_child", accept_child):
        return accept_sampled(tokens, parents, p, q, *rest)


class EvenRunsBeginLate(Right):
    """Several tokens from a cache are processed in pairs: an even number starts with the window shifted by one column."""

    def forward(self, u: Array, live: Any = None) -> Array:
        if self.past and u.shape[1] > 1 and u.shape[1] % 2 == 0:
            self.held = replace(self.held, M=np.roll(self.held.M, 1, axis=2))
        return super().forward(u, live)


class OneRowTakesTheLast(Bare):
    """In a batch of one row without a window, the row gets the state after the last draft."""

    def __init__(self, S: Array, params: Any) -> None:
        super().__init__(snapshots, S, params)

    def commit(self, advanced: Lengths, path: Path) -> None:
        if len(advanced) == 1 and advanced[0] == 0:
            advanced, path = prefix(np.array([path.shape[1]]), path)
        super().commit(advanced, path)


class SixteenRows(Bare):
    """Rows from the 17th on commit the root and no draft."""

    rows = ROWS

    def __init__(self, S: Array, params: Any) -> None:
        super().__init__(snapshots, S, params)

    def commit(self, advanced: Lengths, path: Path) -> None:
        near = np.arange(len(advanced)) < self.rows
        super().commit(*prefix(np.where(near, advanced, np.minimum(advanced, 1)), path))


class RowIsAByte(SixteenRows):
    """Rows from the 129th on commit the root and no draft."""

    rows = 128


class SixteenRowsOfALayer(Snapshots):
    """In a layer, rows from the 17th on commit the root and no draft."""

    def __init__(self, mixer: Mixer, state: MixerState) -> None:
        super().__init__(mixer, state)

    def commit(self, advanced: Lengths, path: Path) -> None:
        few = np.where(np.arange(len(advanced)) < ROWS, advanced, np.minimum(advanced, 1))
        super().commit(few, np.where(np.arange(path.shape[1]) < few[:, None], path, -1))


FAULTS: tuple[Wrong, ...] = (
    (one_row_takes_the_last, "conv.commit_path", "ACCEPT-IDX", FP32),
    (bounded_silu, "conv.scan", "NUMERIC", FP32),
    (run_of_the_width, "conv.scan", "CONV", FP32),
    (EvenRunsBeginLate, "layer.continue", "CONV", FLOAT64),
    (overflowing_gate, "ssd.scan", "NUMERIC", FP32),
    (full_chunk_is_none, "ssd.scan", "CHUNK", FP32),
    (full_chunks_of_a_run, "ssd.scan_packed", "CHUNK", FP32),
    (full_block_is_short, "attention.verify_tree", "INDEX", FLOAT64),
    (eight_heads, "attention.verify_tree", "INDEX", FLOAT64),
    (eight_are_moved, "attention.compact", "TREE-COMMIT", FLOAT64),
    (moves_in_fours, "attention.compact", "TREE-COMMIT", FLOAT64),
    (spent_budget_emits, "acceptance.greedy", "STOP", FLOAT64),
    (sixteen_deep, "acceptance.greedy", "INDEX", FLOAT64),
    (end_in_any_branch, "acceptance.greedy", "STOP", FLOAT64),
    (end_at_the_root, "acceptance.greedy", "STOP", FLOAT64),
    (twin_with_a_child, "acceptance.greedy", "GREEDY", FLOAT64),
    (half_precision, "acceptance.sampled", "NUMERIC", FLOAT64),
    (twin_stands, "acceptance.sampled", "ACCEPT-RULE", FLOAT64),
    (OneRowTakesTheLast, "ssd.verify_snapshots", "PAD-SLOT", FLOAT64),
    (SixteenRows, "ssd.verify_snapshots", "INDEX", FLOAT64),
    (RowIsAByte, "ssd.verify_snapshots", "INDEX", FLOAT64),
    (SixteenRowsOfALayer, "speculate.chain", "INDEX", FLOAT64),
)
"""Each with its operation, its bug class, and what it declares."""


def adapter() -> Adapter:
    return adapter_of("edges", FAULTS)
