"""Offsets formed in 32 bits: right for every pool of fewer than 2^31 elements, wrong where slots lie that far apart."""

from typing import Any

import numpy as np

from ssmspec_ref import conv, delta, selective, ssd
from ssmspec_ref.contract import FLOAT64, Adapter
from ssmspec_ref.shapes import Array
from ssmspec_ref.slots import Pool

from ...adapters.reference_parts.pools import WAYS, kept, looked_up
from ..single import Wrong, adapter_of

WRAP = 1 << 32


def wrapped(held: Pool, slots: Array, signed: bool) -> Array:
    """The slots whose offsets, in elements and in 32 bits, are those of the given ones; -1 before the pool."""
    step = held.states.strides[0] // held.states.itemsize
    offsets = slots * step % WRAP
    if signed:
        offsets = np.where(offsets >= WRAP // 2, offsets - WRAP, offsets)
    return np.where(slots < 0, -1, np.maximum(offsets // step, -1))


def read(held: Pool, slots: Array) -> Array:
    """The states of some slots; NaN where one lies before the pool, zeros for padding."""
    rows = looked_up(held.states, slots)
    rows[(slots < 0) & (held.read >= 0)] = np.nan
    return rows


def written(held: Pool, slots: Array, rows: Array) -> Array:
    """The pool after the rows have written to some slots; what lies before the pool is lost."""
    pool = kept(held, held.states.copy())
    for slot, row in zip(slots.tolist(), rows, strict=True):
        if slot >= 0:
            pool[slot] = row
    return pool


def reads_by_unsigned_offsets(S: Any, token: Any, params: Any) -> tuple[Array, Array]:
    """A slot times the size of a state is formed in 32 bits where the state is read. flashinfer-ai/flashinfer#3230."""
    if not isinstance(S, Pool):
        return ssd.step(S, token, params)
    y, rows = ssd.step(read(S, wrapped(S, S.read, signed=False)), token, params)
    return y, written(S, S.write, rows)


def reads_by_signed_offsets(S: Any, window: Any, params: Any) -> tuple[Array, Array]:
    """Offsets of states are int32: beyond 2^31 elements they are negative, and other memory is read. Bug class INDEX."""
    if not isinstance(S, Pool):
        return delta.scan(S, window, params)
    y, rows = delta.scan(read(S, wrapped(S, S.read, signed=True)), window, params)
    return y, written(S, S.write, rows)


def writes_by_unsigned_offsets(M: Any, u: Any, params: Any) -> tuple[Array, Array]:
    """An offset formed in 32 bits wraps, and the window of another slot is written. state-spaces/mamba#884."""
    if not isinstance(M, Pool):
        return conv.scan(M, u, params)
    y, rows = conv.scan(M.rows, u, params)
    return y, written(M, wrapped(M, M.write, signed=False), rows)


def writes_by_signed_offsets(S: Any, token: Any, params: Any) -> tuple[Array, Array]:
    """Offsets of states are int32 where they are written: new states beyond 2^31 elements are lost. Bug class INDEX."""
    if not isinstance(S, Pool):
        return selective.step(S, token, params)
    y, rows = selective.step(S.rows, token, params)
    return y, written(S, wrapped(S, S.write, signed=True), rows)


FAULTS: tuple[Wrong, ...] = (
    (reads_by_unsigned_offsets, "ssd.step", "INDEX", FLOAT64, WAYS),
    (reads_by_signed_offsets, "delta.scan", "INDEX", FLOAT64, WAYS),
    (writes_by_unsigned_offsets, "conv.scan", "INDEX", FLOAT64, WAYS),
    (writes_by_signed_offsets, "selective.step", "INDEX", FLOAT64, WAYS),
)


def adapter() -> Adapter:
    return adapter_of("offsets", FAULTS)
