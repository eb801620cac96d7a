"""Implementations that try to pass without doing the work: they compute less than they claim, cache, or inspect the judge.

An implementation that calls the reference itself cannot be detected in the same process; see docs/evidence/not-tested.md.
"""

import gc
import sys
from dataclasses import replace
from typing import Any

import numpy as np

from ssmspec_ref.shapes import Array

from ...mistakes.mistake import after, before
from ...suite.expected import Expected
from ..fault import FP32, planted
from ..recurrences.arithmetic import right, rounded


def nothing(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """Zeros. ScalingIntelligence/KernelBench#165."""
    return np.zeros(window.x.shape, dtype=np.float32), np.zeros(S.shape, dtype=np.float32)


def whatever_lies_there(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """Outputs are allocated and never written: they hold the previous result in memory."""
    return np.empty(window.x.shape, dtype=np.float32), np.empty(S.shape, dtype=np.float32)


def spoils_its_inputs(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """The inputs are set to zero during the call, so that a reference that runs later reads zeros; zeros are returned."""
    window.x[...] = 0
    S[...] = 0
    return nothing(S, window, params)


class OneBuffer:
    """Outputs of one shape share one buffer, which the next call overwrites. Bug class SLOT-REUSE."""

    __name__ = "one_buffer"

    def __init__(self) -> None:
        self.kept: dict[tuple[int, ...], Array] = {}

    def __call__(self, S: Array, window: Any, params: Any) -> tuple[Array, Array]:
        y, S_next = right(S, window, params)
        buffer = self.kept.setdefault(y.shape, np.empty_like(y))
        buffer[...] = y
        return buffer, S_next


def last_tokens(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """The history is truncated: only the last 16 tokens are used, from a zero state. KernelBench-Hard, pull request 7."""
    if window.x.shape[1] <= 16:
        return right(S, window, params)
    tail = {name: None if a is None else a[:, -16:] for name, a in vars(window).items()}
    return right(S, window, params)[0], right(np.zeros_like(S), replace(window, **tail), params)[1]


def most_of_the_sum(C: Array) -> Array:
    """The output omits the state with the smallest C."""
    order = np.argsort(np.abs(C), axis=-1)
    return np.where(order.argsort(axis=-1) == 0, 0.0, C)


def of_the_first_row(own: Array) -> Array:
    return np.broadcast_to(own[:1], own.shape).copy()


def fast_where_it_is_easy(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """Small states are computed in bf16, although float32 is declared."""
    y, S_next = right(S, window, params)
    if np.abs(S).max() > 4:
        return y, S_next
    bits = (S_next.view(np.uint32) + np.uint32(0x8000)) & np.uint32(0xFFFF0000)
    return y, bits.view(np.float32)


class ByShape:
    """Results are cached by the shapes of the inputs."""

    __name__ = "by_shape"

    def __init__(self) -> None:
        self.kept: dict[Any, tuple[Array, Array]] = {}

    def __call__(self, S: Array, window: Any, params: Any) -> tuple[Array, Array]:
        key = (S.shape, window.x.shape, window.z is None, params.D is None, params.dt_softplus, params.dt_limit)
        y, S_next = self.kept.setdefault(key, right(S, window, params))
        return y.copy(), S_next.copy()


class WarmedUp:
    """Correct for the first ten calls, as if only these were tested; later the state is not carried."""

    __name__ = "warmed_up"

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, S: Array, window: Any, params: Any) -> tuple[Array, Array]:
        self.calls += 1
        return right(S if self.calls <= 10 else np.zeros_like(S), window, params)


class Lazy(np.ndarray):
    """An array that would be computed when it is read."""


def lazy(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """The outputs are a lazy array class, which defers the work."""
    y, S_next = right(S, window, params)
    return y.view(Lazy), S_next


def nan_as_wildcard(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """NaN everywhere: an error that compares as neither larger nor smaller. gpu-mode/pygpubench#7."""
    return np.full(window.x.shape, np.nan, dtype=np.float32), np.full(S.shape, np.nan, dtype=np.float32)


def reads_the_stack(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """Looks for expected outputs in the callers' frames, and returns what it finds there, or zeros."""
    frame, found = sys._getframe(), None
    while found is None and frame.f_back is not None:
        frame = frame.f_back
        found = next((v for k, v in frame.f_locals.items() if k in ("expected", "want") and isinstance(v, list)), None)
    return nothing(S, window, params) if found is None else rounded(found[0].value, found[1].value)


def searches_the_heap(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """Looks through everything alive for an expectation with its shapes, and returns its values, or zeros."""
    for held in gc.get_referrers(Expected):  # get_objects() would hold tuples that another thread still builds
        if type(held) is Expected and held.name == "S" and held.value.shape == S.shape:
            return nothing(S, window, params)[0], held.value.astype(np.float32)
    return nothing(S, window, params)


FAULTS = planted(
    *(
        (run, "ssd.scan", "CHEAT", FP32)
        for run in (
            whatever_lies_there,
            spoils_its_inputs,
            last_tokens,
            before(C=most_of_the_sum).of("y"),
            after(
                "a_few_rows",
                "Only the first row is computed, and copied to all rows.",
                y=of_the_first_row,
                S_next=of_the_first_row,
            ),
            fast_where_it_is_easy,
            ByShape(),
            WarmedUp(),
            OneBuffer(),
            lazy,
            nan_as_wildcard,
            reads_the_stack,
            searches_the_heap,
        )
    )
)
