"""Implementations that do not return, or do not return arrays: they hang, exit, crash, print, or lack a method.

They need their own process:

    ssmspec conform run --adapter conformance.faults.misbehaving.runaways:adapter --timeout 1
"""

import ctypes
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ssmspec_ref.contract import Adapter
from ssmspec_ref.shapes import Array

from ...device import driver
from ..fault import FP32, single
from ..recurrences.arithmetic import right


def hangs(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """Never returns."""
    while True:
        time.sleep(1)


def hangs_on_one_token(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """Never returns if the window has one token."""
    return hangs(S, window, params) if window.x.shape[1] == 1 else right(S, window, params)


def exits(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """Ends its process without a message."""
    os._exit(3)


def crashes_on_one_token(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """Reads address 0 if the window has one token."""
    if window.x.shape[1] == 1:
        ctypes.string_at(0)
    return right(S, window, params)


def prints(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """Prints to standard output."""
    print("launching", window.x.shape)
    return right(S, window, params)


class LosesItsDevice:
    """Reads outside the memory of a GPU if the window has one token; then every call of the process fails, as CUDA has it."""

    __name__ = "loses_its_device"

    def __init__(self) -> None:
        self.usable = True

    def __call__(self, S: Array, window: Any, params: Any) -> tuple[Array, Array]:
        if window.x.shape[1] == 1:
            self.usable, driver.lost = False, lambda: True
        if not self.usable:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return right(S, window, params)


class Tensor:
    """An array on a device, with the attributes that the suite reads."""

    def __init__(self, a: Array, device: str) -> None:
        self.a, self.dtype, self.device = a, "torch.float32", device


def on_a_device(S: Array, window: Any, params: Any) -> tuple[Any, Any]:
    """The outputs are left on the device."""
    y, S_next = right(S, window, params)
    return Tensor(y, "cuda:0"), S_next


def unwritten(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """The last token's output is allocated and not written. Bug class INDEX."""
    y, S_next = right(S, window, params)
    came = np.empty(y.shape, dtype=np.float32)
    came[:, :-1] = y[:, :-1]
    return came, S_next


class KeepsTheState:
    """A call starts from the state that the previous call left, if the shapes agree."""

    __name__ = "keeps_the_state"

    def __init__(self) -> None:
        self.held: dict[Any, Array] = {}
        self.calls = 0

    def __call__(self, S: Array, window: Any, params: Any) -> tuple[Array, Array]:
        self.calls += 1
        key = S.tobytes(), window.x.tobytes()
        y, S_next = right(self.held.get(key, S), window, params)
        self.held[key] = S_next.astype(np.float64)
        return y, S_next


class WithoutCommit:
    """Verifies, and has no `commit`."""

    def __init__(self, mixer: Any, state: Any) -> None:
        self.mixer, self.held = mixer, state

    def verify(self, inputs: Any, parents: Any = None) -> Array:
        return np.zeros((*inputs.pre.shape[:2], 1, 1), dtype=np.float32)


SCANS: tuple[Callable[..., Any], ...] = (
    hangs, hangs_on_one_token, exits, crashes_on_one_token, prints, on_a_device, unwritten, KeepsTheState(),
    LosesItsDevice(),
)  # fmt: skip


def adapter() -> Adapter:
    subjects = (*(single("ssd.scan", run, FP32) for run in SCANS), single("speculate.chain", WithoutCommit, FP32))
    return Adapter("runaways", "1", subjects)


def broken() -> Adapter:
    """An adapter that ends the process that loads it."""
    os._exit(4)
