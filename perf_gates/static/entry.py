"""An entry of the catalogue: a launcher, called with its own tiles on tensors without data.

`stores` names every argument that the kernels write, and no other may be written; `wide` those that must be read
`width` bytes at a time, 16 by default.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import shapes
from .kernel_modules import kernel_module
from .shapes import DELTA, KDA, SELECTIVE

FP32, BF16, FP16, I32, I64, BOOL = (torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.int64, torch.bool)

ARCHITECTURES = (80, 90, 100)
SSD = {"mamba2-2.7b": shapes.SSD["mamba2-2.7b"], "nemotron-4b": shapes.SSD["nemotron-3-nano-4b"]}
"""h, p, n, g; the names are those of the budgets."""


@dataclass(frozen=True)
class Entry:
    """The launches of one call at one shape; `quick` lists the architectures for which the tests compile it, `on` all of
    them. `stores`: None if another entry declares what its kernels write."""

    kernel: str
    variant: str
    shape: str
    call: Callable[[], object]
    stores: frozenset[str] | None
    wide: frozenset[str] = frozenset()
    quick: tuple[int, ...] = ()
    width: int = 16
    on: tuple[int, ...] = ARCHITECTURES

    @property
    def name(self) -> str:
        return f"{self.kernel} {self.variant} {self.shape}"


def entry(
    kernel: str,
    variant: str,
    shape: str,
    args: tuple[Any, ...],
    options: dict[str, Any],
    *,
    stores: str,
    wide: str = "",
    quick: tuple[int, ...] = (),
    module: str | None = None,
    width: int = 16,
    on: tuple[int, ...] = ARCHITECTURES,
) -> Entry:
    """An entry by names: kernels are imported by name only."""

    def call() -> object:
        return getattr(kernel_module(module or kernel), kernel)(*args, **options)

    return Entry(kernel, variant, shape, call, frozenset(stores.split()), frozenset(wide.split()), quick, width, on)


def meta(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    """A tensor without data."""
    return torch.empty(shape, dtype=dtype, device="meta")


def ssd_entry(
    shape: str,
    kernel: str,
    variant: str,
    b: int,
    t: int,
    *more: Tensor,
    stores: str,
    between: tuple[Any, ...] = (),
    quick: tuple[int, ...] = (),
    on: tuple[int, ...] = ARCHITECTURES,
    **options: Any,
) -> Entry:
    """An entry of SSD: b rows of t tokens at a shape; `between` are the arguments before the window, `more` those after
    it."""
    h, p, n, g = SSD[shape]
    window = meta(b, t, h, p), meta(b, t, h), meta(h, dtype=FP32), meta(b, t, g, n), meta(b, t, g, n)
    given = {"D": meta(h, dtype=FP32), "dt_bias": meta(h, dtype=FP32), "slots": meta(b, dtype=I32)}
    args = (meta(b, h, p, n, dtype=FP32), *between, *window, *more)
    return entry(
        kernel,
        variant,
        shape,
        args,
        given | options,
        stores=stores,
        wide="S",
        quick=quick if shape == next(iter(SSD)) else (),
        on=on,
    )


def delta_entry(
    shape: str,
    kernel: str,
    variant: str,
    b: int,
    t: int,
    *more: Tensor,
    stores: str,
    between: tuple[Any, ...] = (),
    quick: tuple[int, ...] = (),
    width: int = 16,
    on: tuple[int, ...] = ARCHITECTURES,
    **options: Any,
) -> Entry:
    """An entry of the delta rule, or of Kimi Delta Attention at its shape: b rows of t tokens, the gates as projections."""
    g, h, k, v = (DELTA | KDA)[shape]
    gate = (h, k) if shape in KDA else (h,)
    window = meta(b, t, g, k), meta(b, t, g, k), meta(b, t, h, v), meta(b, t, *gate), meta(b, t, h)
    given = {"A": meta(h, dtype=FP32), "dt_bias": meta(*gate, dtype=FP32), "slots": meta(b, dtype=I32)}
    args = (meta(b, h, k, v, dtype=FP32), *between, *window, *more)
    return entry(kernel, variant, shape, args, given | options, stores=stores, wide="S", quick=quick, width=width, on=on)


def selective_entry(
    shape: str,
    kernel: str,
    variant: str,
    b: int,
    t: int,
    *more: Tensor,
    stores: str,
    quick: tuple[int, ...] = (),
    width: int = 16,
    **options: Any,
) -> Entry:
    """An entry of Mamba-1: b rows of t tokens at a shape."""
    d, n = SELECTIVE[shape]
    window = meta(b, t, d), meta(b, t, d), meta(d, n, dtype=FP32), meta(b, t, n), meta(b, t, n)
    given = {"D": meta(d, dtype=FP32), "z": meta(b, t, d), "dt_bias": meta(d, dtype=FP32), "slots": meta(b, dtype=I32)}
    args = (meta(b, d, n, dtype=FP32), *window, *more)
    return entry(kernel, variant, shape, args, given | options, stores=stores, wide="S", quick=quick, width=width)
