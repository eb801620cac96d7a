"""Faults of one option or family that act past a tile only: an offset without the number of its tile, eps in each tile, a
flag in a byte, a slot that is looked up for the first tile alone; and padding that puts back what slot 0 held."""

from typing import Any

import numpy as np

from ssmspec_ref import ssd
from ssmspec_ref.contract import FLOAT64
from ssmspec_ref.records import each, prefix
from ssmspec_ref.shapes import Array
from ssmspec_ref.slots import Pool

from ...adapters.reference_parts.pools import FRESH, WAYS, pooled
from ...mistakes.mistake import after, before
from ...mistakes.operators import repeated
from ..fault import FP32, planted

TILE, ROWS, CHUNK = 32, 8, 16


def padding_puts_slot_zero_back(S_next: Array, states: Array, write: Array | None) -> Array:
    """A row of padding loads slot 0 and stores it unchanged, after the row that lives there. Bug class PAD-SLOT."""
    if write is not None and (write < 0).any():
        S_next[0] = states[0]
    return S_next


def second_chunk_by_row(S: Any, window: Any, params: Any) -> tuple[Array, Array]:
    """The second chunk of 16 tokens begins from the slot with the number of the row. Bug class SLOT-SCOPE."""
    if not isinstance(S, Pool) or window.x.shape[1] <= CHUNK:
        found: tuple[Array, Array] = pooled(ssd.scan)(S, window, params)
        return found
    tail = each(lambda a: a[:, CHUNK:], window)
    y, pool = pooled(ssd.scan)(S, prefix(window, CHUNK), params)
    y_tail, rows = ssd.scan(pool[np.arange(len(S.read))], tail, params)
    live = S.write >= 0
    pool[S.write[live]] = rows[live]
    return np.concatenate([y, y_tail], axis=1), pool


FAULTS = planted(
    (after(S_next=padding_puts_slot_zero_back), "ssd.step", "PAD-SLOT", FLOAT64, WAYS),
    (
        before(
            "gate_of_the_first_tile",
            "Key channels from 32 on have the gates of the first 32. Bug class INDEX.",
            g=lambda g, beta: g if g.ndim == beta.ndim else repeated(-1, TILE)(g),
        ),
        "delta.step",
        "INDEX",
    ),
    (
        before(
            "eps_of_each_tile",
            "The sum of squares is taken in tiles of 32 key channels, and each adds eps. Bug class NUMERIC.",
            eps=lambda eps, k: eps * -(-k.shape[-1] // TILE),
        ),
        "delta.scan",
        "NUMERIC",
        FP32,
    ),
    (
        before(
            "skip_of_the_first_tile",
            "Channels from 32 on have D of the first 32. Bug class INDEX.",
            D=lambda D: D if D.ndim < 2 else repeated(1, TILE)(D),
        ),
        "ssd.scan",
        "INDEX",
    ),
    (
        before(
            "fresh_in_a_byte",
            "Which rows are fresh is a mask of 8 bits: rows from 8 on never are. Bug class SLOT-REUSE.",
            fresh=lambda fresh: fresh & (np.arange(len(fresh)) < ROWS),
        ),
        "ssd.step",
        "SLOT-REUSE",
        FLOAT64,
        FRESH,
    ),
    (second_chunk_by_row, "ssd.scan", "SLOT-SCOPE", FLOAT64, WAYS),
)
