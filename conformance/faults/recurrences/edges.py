"""Wrong at an edge only: where a tile is full or one row too many, a path is deep, nothing is accepted, or exp overflows."""

from typing import Any
from unittest.mock import patch

import numpy as np

from ssmspec_ref.accept import multi_step
from ssmspec_ref.shapes import Array, Lengths, Path

from ...adapters.reference_parts.acceptance import Runs, accept_sampled
from ...mistakes.mistake import after, before
from ...mistakes.operators import at_least, at_most, drop, of_rows
from ..fault import FP32, planted
from ..windows import Snapshots, Taken, Windows, commits, fewer, forward, prefix

ROWS = 16


def overflowing_gate(y: Array, z: Array | None) -> Array:
    """The gate as z e^z / (1 + e^z) in single precision: NaN from z = 89 on, stored as 0."""
    if z is None:
        return y
    e = np.exp(z.astype(np.float32))
    return y * np.nan_to_num(z * e / (1 + e))


def full_chunks_of_a_run(S: Array, S_next: Array, bounds: Array) -> Array:
    """In a packed run, the state of a sequence whose last chunk of 64 tokens is full is not stored."""
    count = np.diff(bounds)
    return np.where(of_rows((count > 0) & (count % 64 == 0), S), S, S_next)


def eight_heads(y: Array, q: Array, k: Array) -> Array:
    """A key head serves at most eight query heads; further ones read the next key head."""
    h, g = q.shape[2], k.shape[2]
    return np.where((np.arange(h) % (h // g) < 8)[:, None], y, 0.0)


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


def end_in_any_branch(ended: Array, tokens: Array, parents: Array, eos: tuple[int, ...]) -> Array:
    """An end of sequence in a branch that was rejected ends the row."""
    return ended | (np.isin(tokens, eos) & (parents >= 0)).any(axis=1)


def end_at_the_root(budget: Array, tokens: Array, eos: tuple[int, ...]) -> Array:
    """The root is tested for an end of sequence too, although it was emitted before; then nothing is emitted."""
    return np.where(np.isin(tokens[:, 0], eos), 0, budget)


def twin_with_a_child(tokens: Array, parents: Array) -> Array:
    """Of two siblings with the same token the walk goes to the one with a child."""
    other = tokens.copy()
    for b, row in enumerate(parents):
        for node in range(1, len(row)):
            twins = (row[node + 1 :] == row[node]) & (tokens[b, node + 1 :] == tokens[b, node])
            later = np.flatnonzero(twins) + node + 1
            if row[node] >= 0 and not np.any(row == node) and any(np.any(row == twin) for twin in later):
                other[b, node] = -5
    return other


def half_precision(p: Array) -> Array:
    """The target's distribution is rounded to fp16."""
    narrow = p.astype(np.float16).astype(np.float64)
    return narrow / narrow.sum(axis=2, keepdims=True)


def twin_stands(tokens: Array, parents: Array, p: Array, q: Array, *rest: Any) -> Runs:
    """A sibling with probability 0 in its distribution is accepted: the ratio is p / 0."""
    skipping: Any = multi_step._accept_child

    def accept_child(*given: Any) -> Any:
        *before, q_rows, dice = given
        return skipping(*before, [[x or 1e-30 for x in row] for row in q_rows], dice)

    with patch.object(multi_step, "_accept_child", accept_child):
        return accept_sampled(tokens, parents, p, q, *rest)


def roots_from(rows: int) -> Any:
    """Rows from a number on commit the root alone."""
    return lambda advanced: np.where(np.arange(len(advanced)) < rows, advanced, np.minimum(advanced, 1))


def one_row_takes_the_last(advanced: Lengths, path: Path) -> Taken:
    alone = len(advanced) == 1 and advanced[0] == 0
    return prefix(np.array([path.shape[1]]), path) if alone else (advanced, path)


FAULTS = planted(
    (
        before(
            "one_row_takes_the_last",
            "An empty path in a batch of one is indexed at its end, and the window after all nodes is kept.",
            path=lambda path: np.arange(path.size)[None] if len(path) == 1 and (path < 0).all() else path,
        ),
        "conv.commit_path",
        "ACCEPT-IDX",
        FP32,
    ),
    (
        before(
            "bounded_silu",
            "The exponent of the activation is clipped to -8 .. 8, so that it cannot overflow.",
            activation=False,
        ).after(y=lambda y, activation: y / (1 + np.exp(-np.clip(y, -8, 8))) if activation else y),
        "conv.scan",
        "NUMERIC",
        FP32,
    ),
    (
        after(
            "run_of_the_width",
            "A run exactly as long as the window is wide does not update the oldest column.",
            M_next=lambda M, M_next, u: np.where(np.arange(M.shape[2]) < (u.shape[1] == M.shape[2]), M, M_next),
        ),
        "conv.scan",
        "CONV",
        FP32,
    ),
    (
        forward(
            "EvenRunsBeginLate",
            "Several tokens from a cache are processed in pairs: an even number starts with the window shifted by one "
            "column.",
            M=lambda M, past, tokens: np.roll(M, 1, axis=2) if past and tokens > 1 and tokens % 2 == 0 else M,
        ),
        "layer.continue",
        "CONV",
    ),
    (before(z=None).after(y=overflowing_gate), "ssd.scan", "NUMERIC", FP32),
    (
        after(
            "full_chunk_is_none",
            "The number of 64-token chunks is one too large: if the last chunk is full, its state is not stored.",
            S_next=lambda S, S_next, x: S if x.shape[1] % 64 == 0 else S_next,
        ),
        "ssd.scan",
        "CHUNK",
        FP32,
    ),
    (after(S_next=full_chunks_of_a_run), "ssd.scan_packed", "CHUNK", FP32),
    (
        before(
            "full_block_is_short",
            "If the last block of 64 cache slots is full, its last slot is not read.",
            length=lambda length: np.where((length > 0) & (length % 64 == 0), length - 1, length),
        ),
        "attention.verify_tree",
        "INDEX",
    ),
    (after(y=eight_heads), "attention.verify_tree", "INDEX"),
    (
        before("eight_are_moved", "The path holds at most eight nodes.", path=drop(1, 8, -1)),
        "attention.compact",
        "TREE-COMMIT",
    ),
    (moves_in_fours, "attention.compact", "TREE-COMMIT"),
    (
        before("spent_budget_emits", "A spent budget is tested only after the first token.", budget=at_least(1)),
        "acceptance.greedy",
        "STOP",
    ),
    (
        before("sixteen_deep", "The walk takes at most sixteen steps.", budget=at_most(16)),
        "acceptance.greedy",
        "INDEX",
    ),
    (after(ended=end_in_any_branch), "acceptance.greedy", "STOP"),
    (before(budget=end_at_the_root), "acceptance.greedy", "STOP"),
    (before(tokens=twin_with_a_child), "acceptance.greedy", "GREEDY"),
    (before(p=half_precision), "acceptance.sampled", "NUMERIC"),
    (twin_stands, "acceptance.sampled", "ACCEPT-RULE"),
    (
        commits(
            "OneRowTakesTheLast",
            "In a batch of one row without a window, the row gets the state after the last draft.",
            Windows,
            one_row_takes_the_last,
        ),
        "ssd.verify_snapshots",
        "PAD-SLOT",
    ),
    (
        commits(
            "SixteenRows",
            "Rows from the 17th on commit the root and no draft.",
            Windows,
            lambda advanced, path: prefix(roots_from(ROWS)(advanced), path),
        ),
        "ssd.verify_snapshots",
        "INDEX",
    ),
    (
        commits(
            "RowIsAByte",
            "Rows from the 129th on commit the root and no draft.",
            Windows,
            lambda advanced, path: prefix(roots_from(128)(advanced), path),
        ),
        "ssd.verify_snapshots",
        "INDEX",
    ),
    (
        commits(
            "SixteenRowsOfALayer",
            "In a layer, rows from the 17th on commit the root and no draft.",
            Snapshots,
            lambda advanced, path: fewer(roots_from(ROWS)(advanced), path),
        ),
        "speculate.chain",
        "INDEX",
    ),
)
