"""Right within the bound, but not in bits: what the order of a sum depends on shows in another batch, slot, split or run."""

from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np

from ssmspec_ref import ssd
from ssmspec_ref.contract import BITWISE, Adapter
from ssmspec_ref.records import each
from ssmspec_ref.shapes import Array

from ..fault import EVERYTHING, FP32, adapter_of, planted


def read(S: Array, token: Any, params: Any, halves: Array) -> tuple[Array, Array]:
    """The outputs of a token, and the state in float32. Where `halves` (b), the sum over the states has two parts."""
    y, S_next = ssd.scan(S, token, params)
    low = np.arange(token.C.shape[3]) < token.C.shape[3] // 2 + 1
    parts = (
        ssd.scan(S, replace(token, C=np.where(chosen, token.C, 0.0)), rest)[0].astype(np.float32)
        for chosen, rest in ((low, params), (~low, replace(params, D=None)))
    )
    return np.where(halves[:, None, None, None], sum(parts), y.astype(np.float32)), S_next.astype(np.float32)


def steps(S: Array, window: Any, params: Any, halves: Array) -> tuple[Array, Array]:
    """Token by token; `halves` (b, t)."""
    outputs: list[Array] = []
    for t in range(window.x.shape[1]):
        y, S = read(S.astype(np.float64), each(lambda a, t=t: a[:, t : t + 1], window), params, halves[:, t])
        outputs.append(y)
    return np.concatenate(outputs, axis=1).astype(np.float32), S


def one_order(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """Correct, for contrast: every sum in one order."""
    return steps(S, window, params, np.zeros(window.x.shape[:2], dtype=bool))


def splits_small_batches(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """In a batch of one row the sum over the states is split in two, to fill the device."""
    return steps(S, window, params, np.full(window.x.shape[:2], len(S) == 1))


def order_of_the_slot(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """Rows in odd slots are added up in another order."""
    odd = np.arange(len(S)) % 2 == 1
    return steps(S, window, params, np.broadcast_to(odd[:, None], window.x.shape[:2]))


def order_of_the_call(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """The order of a sum depends on the place of a token in its call, as with chunks that start where the call starts."""
    odd = np.arange(window.x.shape[1]) % 2 == 1
    return steps(S, window, params, np.broadcast_to(odd, window.x.shape[:2]))


CALLS = count()


def order_of_arrival(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """Parts of a sum are added as they arrive, as with atomic additions: every second run has another order."""
    return steps(S, window, params, np.full(window.x.shape[:2], next(CALLS) % 2 == 1))


FAULTS = planted(
    *(
        (run, "ssd.scan", "BITS", FP32, EVERYTHING, tuple(BITWISE))
        for run in (splits_small_batches, order_of_the_slot, order_of_the_call, order_of_arrival)
    )
)


def adapter() -> Adapter:
    return adapter_of("bits", FAULTS)
