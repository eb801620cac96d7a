"""Bugs of our own invention, which no planted fault resembles, each as somebody's kernel would have it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from conformance.report.stream import Diagnosis
from conformance.run.known import read_known
from conformance.run.plan import Selection, plan
from conformance.run.results import Setting
from conformance.run.runner import run
from ssmspec_ref import attention, conv, delta, selective, ssd
from ssmspec_ref.attention import KVState
from ssmspec_ref.contract import Adapter, Capability, NumericContract, Subject
from ssmspec_ref.functions import silu
from ssmspec_ref.shapes import Array
from ssmspec_ref.ssd import tree as ssd_tree

FP32 = NumericContract()


def single(*outputs: Array) -> tuple[Array, ...]:
    """As a float32 kernel stores them."""
    return tuple(output.astype(np.float32) for output in outputs)


def taps_backwards(M: Array, u: Array, params: Any) -> tuple[Array, ...]:
    """The filter is correlated where it must be convolved."""
    return single(*conv.scan(M, u, replace(params, weight=params.weight[:, ::-1].copy())))


def crossed_rows(M: Array, u: Array, advanced: Array) -> Array:
    """The program of a row loads the count of the row before it."""
    return single(conv.commit(M, u, advanced[np.arange(len(advanced)) - 1]))[0]


def neighbours_C(S: Array, token: Any, params: Any) -> tuple[Array, ...]:
    """The output of a row is projected with C of the next row, whose pointer was advanced too early."""
    _, S_next = ssd.step(S, token, params)
    y, _ = ssd.step(S, replace(token, C=np.roll(token.C, -1, axis=0)), params)
    return single(y, S_next)


def late_B(S: Array, window: Any, params: Any) -> tuple[Array, ...]:
    """A load that is issued one token ahead is used one token too late."""
    B = np.concatenate([window.B[:, :1], window.B[:, :-1]], axis=1)
    return single(*ssd.scan(S, replace(window, B=B), params))


def swizzled_channels(S: Array, window: Any, params: Any) -> tuple[Array, ...]:
    """Two channels of a vectorised store come in the wrong order."""
    y, S_next = ssd.scan(S, window, params)
    order = np.arange(y.shape[3])
    order[: len(order) // 2 * 2] ^= 1
    return single(y[..., order], S_next)


def odd_batch(S: Array, window: Any, params: Any) -> tuple[Array, ...]:
    """Two rows to a block, and the launch rounds down: the last of an odd number is not computed."""
    y, S_next = ssd.scan(S, window, params)
    if len(y) > 1 and len(y) % 2:
        y[-1], S_next[-1] = 0.0, S[-1]
    return single(y, S_next)


def double_update(S: Array, window: Any, params: Any) -> tuple[Array, ...]:
    """A retried block adds its update to the state a second time."""
    y, S_next = ssd.scan(S, window, params)
    return single(y, S_next + (S_next - S))


def gate_before_skip(S: Array, window: Any, params: Any) -> tuple[Array, ...]:
    """The gate is applied before D x is added."""
    if window.z is None or params.D is None:
        return single(*ssd.scan(S, window, params))
    y, S_next = ssd.scan(S, replace(window, z=None), replace(params, D=None))
    D = params.D[:, None] if params.D.ndim == 1 else params.D
    return single(y * silu(window.z) + D * window.x, S_next)


def one_mask(S: Array, window: Any, ancestors: Array, params: Any) -> Array:
    """The mask of the first tree serves all rows."""
    seen = np.repeat(ancestors[:1], len(ancestors), axis=0)
    return single(ssd_tree.scan(S, window, seen, params))[0]


def full_write(S: Array, token: Any, params: Any) -> tuple[Array, ...]:
    """The strength of a write is read as a switch."""
    return single(*delta.step(S, replace(token, beta=np.ones_like(token.beta)), params))


def scaled_twice(S: Array, window: Any, params: Any) -> tuple[Array, ...]:
    """The queries come scaled, and are scaled again."""
    o, S_next = delta.scan(S, window, params)
    scale = window.q.shape[-1] ** -0.5 if params.scale is None else params.scale
    return single(o * scale, S_next)


def one_step_size(S: Array, window: Any, params: Any) -> tuple[Array, ...]:
    """dt is broadcast from the first channel of a tile."""
    return single(*selective.scan(S, replace(window, dt=np.repeat(window.dt[..., :1], window.dt.shape[-1], axis=-1)), params))


def one_slot_short(K: Array, V: Array, length: Array, path: Array) -> tuple[Array, ...]:
    """What was accepted is written from the last committed slot on, and not after it."""
    after = attention.compact(KVState(K, V, np.maximum(length - 1, 0)), path)
    return single(after.K, after.V)


class NextRowsSnapshot:
    """The state that is restored is that of the next row: the index runs over programs, not over rows."""

    def __init__(self, S: Array, params: Any) -> None:
        self.S, self.params = S, params

    def verify(self, window: Any, parents: Array | None = None) -> Array:
        y, after = ssd.states(self.S, window, self.params)
        self.kept = np.concatenate([self.S[None], after.swapaxes(0, 1)])
        return single(y)[0]

    def commit(self, advanced: Array, path: Array) -> None:
        taken = self.kept[advanced, np.arange(len(advanced))]
        self.S = np.roll(taken, -1, axis=0)

    def state(self) -> Array:
        return single(self.S)[0]


@dataclass(frozen=True)
class Bug:
    """One bug, the operation that it is in, and words that name its cause; none where the report need not name it."""

    run: Callable[..., Any]
    operation: str
    words: tuple[str, ...]


BUGS = (
    Bug(taps_backwards, "conv.scan", ("as if taps read weight in reverse order",)),
    Bug(crossed_rows, "conv.commit", ("as if row i read advanced of row i - 1",)),
    Bug(neighbours_C, "ssd.step", ("as if row i read C of row i + 1",)),
    Bug(late_B, "ssd.scan", ("as if token i read B of token i - 1",)),
    Bug(swizzled_channels, "ssd.scan", ("channels 0 and 1, 2 and 3 of y are swapped",)),
    Bug(odd_batch, "ssd.scan", ("(the last)", "y is 0 where it is wrong")),
    Bug(double_update, "ssd.scan", ("S is updated twice, beginning from the S passed in",)),
    Bug(gate_before_skip, "ssd.scan", ("D=off; or with z=off",)),
    Bug(full_write, "delta.step", ("as if beta were 1",)),
    Bug(scaled_twice, "delta.scan", ("times what it must be",)),
    Bug(one_step_size, "selective.scan", ("as if every channel read dt of channel 0",)),
    Bug(one_slot_short, "attention.compact", ("as if length were one less",)),
)
SLOW_BUGS = (
    Bug(one_mask, "ssd.verify_tree", ("as if every row read ancestors of row 0",)),
    Bug(NextRowsSnapshot, "ssd.verify_snapshots", ("rows 0 and 1 of S after window 0 are swapped",)),
)
"""Bugs of which the search takes half a minute."""


def diagnosed(bug: Bug) -> Iterable[Diagnosis]:
    """The diagnoses of a bug, at smoke or, where that passes, at standard."""
    subject = Subject("x", {bug.operation: Capability(bug.run, FP32)})
    for tier in ("smoke", "standard"):
        jobs, _ = plan({"x": Adapter("x", "1", (subject,))}, Selection(tier, operation=bug.operation))
        found = run(jobs, [], Setting({"x": read_known("x")}))
        if not found.green:
            return found.diagnoses
    return ()
