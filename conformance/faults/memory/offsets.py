"""Offsets formed in 32 bits: right for every pool of fewer than 2^31 elements, wrong where slots lie that far apart."""

import numpy as np

from ssmspec_ref import conv, delta, selective, ssd
from ssmspec_ref.contract import FLOAT64
from ssmspec_ref.shapes import Array
from ssmspec_ref.slots import Pool

from ...adapters.reference_parts.pools import WAYS, looked_up
from ..fault import planted
from .pools import through, written

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


FAULTS = planted(
    *(
        (run, operation, "INDEX", FLOAT64, WAYS)
        for run, operation in (
            (
                through(
                    "reads_by_unsigned_offsets",
                    "A slot times the size of a state is formed in 32 bits where the state is read. "
                    "flashinfer-ai/flashinfer#3230.",
                    ssd.step,
                    lambda held: read(held, wrapped(held, held.read, signed=False)),
                ),
                "ssd.step",
            ),
            (
                through(
                    "reads_by_signed_offsets",
                    "Offsets of states are int32: beyond 2^31 elements they are negative, and other memory is read. Bug "
                    "class INDEX.",
                    delta.scan,
                    lambda held: read(held, wrapped(held, held.read, signed=True)),
                ),
                "delta.scan",
            ),
            (
                through(
                    "writes_by_unsigned_offsets",
                    "An offset formed in 32 bits wraps, and the window of another slot is written. state-spaces/mamba#884.",
                    conv.scan,
                    store=lambda held, rows: written(held, wrapped(held, held.write, signed=False), rows),
                ),
                "conv.scan",
            ),
            (
                through(
                    "writes_by_signed_offsets",
                    "Offsets of states are int32 where they are written: new states beyond 2^31 elements are lost. Bug class "
                    "INDEX.",
                    selective.step,
                    store=lambda held, rows: written(held, wrapped(held, held.write, signed=True), rows),
                ),
                "selective.step",
            ),
        )
    )
)
