"""Faults of one option or family that act past a tile only: an offset without the number of its tile, eps in each tile, a
flag in a byte, a slot that is looked up for the first tile alone; and padding that puts back what slot 0 held."""

from dataclasses import replace
from typing import Any

import numpy as np

from ssmspec_ref import delta, ssd
from ssmspec_ref.contract import FLOAT64, Adapter, NumericContract
from ssmspec_ref.records import each, prefix
from ssmspec_ref.shapes import Array
from ssmspec_ref.slots import FreshPool, Pool

from ...adapters.reference_parts.pools import FRESH, WAYS, pooled
from ..single import EVERYTHING, Wrong, adapter_of
from .pools import states

TILE, ROWS, CHUNK = 32, 8, 16
FP32 = NumericContract()


def padding_puts_slot_zero_back(S: Any, token: Any, params: Any) -> tuple[Array, Array]:
    """A row of padding loads slot 0 and stores it unchanged, after the row that lives there. Bug class PAD-SLOT."""
    y, after = pooled(ssd.step)(S, token, params)
    if (given := states(S)) is not None and (given[2] < 0).any():
        after[0] = given[0][0]
    return y, after


def gate_of_the_first_tile(S: Array, token: Any, params: Any) -> tuple[Array, Array]:
    """Key channels from 32 on have the gates of the first 32. Bug class INDEX."""
    if token.g.ndim == token.beta.ndim:
        return delta.step(S, token, params)
    return delta.step(S, replace(token, g=token.g[..., np.arange(token.g.shape[-1]) % TILE]), params)


def eps_of_each_tile(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """The sum of squares is taken in tiles of 32 key channels, and each adds eps. Bug class NUMERIC."""
    tiles = -(-window.k.shape[-1] // TILE)
    o, after = delta.scan(S, window, replace(params, eps=params.eps * tiles))
    return o.astype(np.float32), after.astype(np.float32)


def skip_of_the_first_tile(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """Channels from 32 on have D of the first 32. Bug class INDEX."""
    if params.D is None or params.D.ndim < 2:
        return ssd.scan(S, window, params)
    return ssd.scan(S, window, replace(params, D=params.D[:, np.arange(params.D.shape[1]) % TILE]))


def fresh_in_a_byte(S: Any, token: Any, params: Any) -> tuple[Array, Array]:
    """Which rows are fresh is a mask of 8 bits: rows from 8 on never are. Bug class SLOT-REUSE."""
    if isinstance(S, FreshPool):
        S = FreshPool(S.states, S.read, S.write, S.fresh & (np.arange(len(S.fresh)) < ROWS))
    found: tuple[Array, Array] = pooled(ssd.step)(S, token, params)
    return found


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


FAULTS: tuple[Wrong, ...] = (
    (padding_puts_slot_zero_back, "ssd.step", "PAD-SLOT", FLOAT64, WAYS),
    (gate_of_the_first_tile, "delta.step", "INDEX", FLOAT64, EVERYTHING),
    (eps_of_each_tile, "delta.scan", "NUMERIC", FP32, EVERYTHING),
    (skip_of_the_first_tile, "ssd.scan", "INDEX", FLOAT64, EVERYTHING),
    (fresh_in_a_byte, "ssd.step", "SLOT-REUSE", FLOAT64, FRESH),
    (second_chunk_by_row, "ssd.scan", "SLOT-SCOPE", FLOAT64, WAYS),
)
"""Each with its operation, its bug class, what it declares and what it takes."""


def adapter() -> Adapter:
    return adapter_of("past a tile", FAULTS)
