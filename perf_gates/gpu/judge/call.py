"""One call of a kernel at a model's shape: tensors on the device, NaN around them, unused slots, and the sampled rows.

Tensors lie in buffers of NaN, states in a pool whose other slots are NaN, the inputs of a padding row are NaN, outputs are
NaN before the call. Bits are compared on the device, all of them; values on a few rows and heads, where float64 can follow.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from perf_gates.static.kernel_modules import kernel_module
from ssmspec_ref import error_bounds as eb
from ssmspec_ref.contract import NumericContract
from ssmspec_ref.error_bounds.arithmetic import Approx
from ssmspec_ref.shapes import Array
from ssmspec_ref.tree import ancestors

FORMS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
INTS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
SPARE = 3
"""Slots of a pool that belong to no row."""
ROWS, HEADS = 3, 3
"""How many rows and heads are compared."""


def launcher(name: str, function: str | None = None) -> Any:
    """A launcher of ours, by name."""
    return getattr(kernel_module(name), function or name)


def declared(**changes: Any) -> NumericContract:
    """The contract that the kernels declare: state in fp32, activations in bf16."""
    contract: NumericContract = kernel_module("contract").CONTRACT
    return replace(contract, **{"state": "fp32", "io": "bf16", **changes})


@dataclass(frozen=True)
class Check:
    """A kernel at one shape; `run` returns the largest used share of a bound (0 if bits are compared), or raises
    AssertionError."""

    kernel: str
    model: str
    variant: str
    batch: int
    run: "Callable[[Call], float]"

    @property
    def name(self) -> str:
        return f"{self.kernel}/{self.model}/{self.variant}/b{self.batch}"


@dataclass(frozen=True)
class Plan:
    """What is tested: batches, lengths of windows, sizes of trees, windows and capacities of rings."""

    batches: tuple[int, ...] = (1, 16, 64)
    windows: tuple[int, ...] = (1, 5, 6, 10, 32)
    nodes: tuple[int, ...] = (13, 63, 128)
    rings: tuple[tuple[int, int], ...] = ((1, 2), (5, 16), (6, 22), (6, 32), (10, 64))
    tiny: bool = False
    """Sizes that the interpreter can take, to try the checks themselves."""
    rare: bool = False
    """With launches that are in no other check."""
    further: bool = False
    """With the checks of `further`, for other batches and trees."""


class Call:
    """The tensors of one check: drawn from one seed, on one device."""

    def __init__(self, device: str, seed: int, guard: int = 1024) -> None:
        self.device, self.guard = device, guard
        self.rng = np.random.default_rng(seed)
        self.drawn = torch.Generator(device).manual_seed(seed)

    # --- tensors ---

    def filled(self, value: float, *shape: int, form: str = "bf16") -> Tensor:
        """A tensor of one value, with NaN on both sides."""
        size = int(np.prod(shape))
        buffer = torch.full((size + 2 * self.guard,), float("nan"), dtype=FORMS[form], device=self.device)
        return buffer[self.guard : self.guard + size].view(shape).fill_(value)

    def blank(self, *shape: int, form: str = "bf16") -> Tensor:
        """An output that has not been written."""
        return self.filled(float("nan"), *shape, form=form)

    def normal(self, *shape: int, form: str = "bf16", scale: float = 1.0, mean: float = 0.0) -> Tensor:
        values = torch.randn(shape, generator=self.drawn, device=self.device) * scale + mean
        return self.filled(0.0, *shape, form=form).copy_(values)

    def uniform(self, low: float, high: float, *shape: int, form: str = "fp32") -> Tensor:
        values = torch.rand(shape, generator=self.drawn, device=self.device) * (high - low) + low
        return self.filled(0.0, *shape, form=form).copy_(values)

    def ints(self, array: Any, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.from_numpy(np.array(array)).to(self.device, dtype)

    def beside(self, b: int, t: int, *parts: tuple[int, ...], form: str = "bf16") -> list[Tensor]:
        """Activations as a projection writes them: parts of one row of memory; those of a padding row are NaN."""
        sizes = [int(np.prod(part)) for part in parts]
        whole = self.normal(b, t, sum(sizes), form=form)
        if b > 1:
            whole[-1] = float("nan")
        return [x.unflatten(-1, part) for x, part in zip(whole.split(sizes, dim=-1), parts, strict=True)]

    def slots(self, b: int) -> Tensor:
        """Slots out of order, slot 0 among them; if there are several rows, the last is padding."""
        slots = self.rng.permutation(b + SPARE)[:b]
        if 0 not in slots[: max(1, b - 1)]:
            slots[0] = 0
        if b > 1:
            slots[-1] = -1
        return self.ints(slots)

    def pool(self, slots: Tensor, *shape: int, form: str = "fp32", extra: int = 0) -> Tensor:
        """States for the rows, NaN in every other slot."""
        pool = self.blank(len(slots) + SPARE + extra, *shape, form=form)
        own = slots[slots >= 0].long()
        pool[own] = torch.randn((len(own), *shape), generator=self.drawn, device=self.device).to(FORMS[form])
        return pool

    # --- what is judged ---

    def sample(self, count: int, most: int) -> Array:
        """The first, the last, and some between."""
        inner = self.rng.permutation(np.arange(1, count - 1))[: max(0, most - 2)]
        return np.unique(np.concatenate([[0, count - 1], inner]))

    def rows(self, b: int) -> Array:
        """The sampled live rows."""
        return self.sample(b - 1 if b > 1 else 1, ROWS)

    def heads(self, h: int) -> Array:
        return self.sample(h, HEADS)

    @contextmanager
    def keeping(self, _owned: dict[str, Any], **tensors: Tensor) -> Iterator[None]:
        """Asserts that the block changes nothing of these tensors, guards and gaps included, except the rows owned."""
        before = {name: elements(t).clone() for name, t in tensors.items()}
        yield
        for name, t in tensors.items():
            old, new = before[name], elements(t)
            free = torch.zeros(len(old), dtype=torch.bool, device=t.device)
            if name in _owned:
                free.as_strided(t.shape, t.stride(), t.storage_offset())[_owned[name]] = True
            assert bool(((old == new) | free).all()), f"{name} changed outside the slots of the call"


def elements(t: Tensor) -> Tensor:
    """All bits of a tensor's memory."""
    return torch.empty(0, dtype=t.dtype, device=t.device).set_(t.untyped_storage()).view(INTS[t.element_size()])


def pulled(x: Tensor, rows: Array, heads: Array | None = None, axis: int = 2) -> Array:
    """Some rows, and some heads of them, as arguments for the oracle."""
    x = x[torch.as_tensor(rows, device=x.device)]
    if heads is not None:
        x = x.index_select(axis, torch.as_tensor(heads, device=x.device))
    return x.double().cpu().numpy()


class NothingJudgedError(AssertionError):
    """A comparison of no elements proves nothing."""


def within(what: str, found: Array, pair: Approx) -> float:
    """The used share of the bound, after asserting that the bound holds and is not so wide that zeros would pass."""
    if not found.size:
        raise NothingJudgedError(f"{what}: no element is compared")
    comparison = eb.compare(found, pair.value, pair.error)
    assert comparison.passed, f"{what}: {comparison}"
    assert bool((pair.error < np.abs(pair.value)).any()), f"{what}: zeros would pass"
    return comparison.utilisation


def finite(what: str, out: Tensor, live: int) -> None:
    """Asserts that every output of the live rows was written, and none of a padding row."""
    assert bool(out[:live].isfinite().all()), f"{what}: an output of a live row was not written, or is not finite"
    assert bool(out[live:].isnan().all()), f"{what}: an output of a padding row was written"


def chain(tokens: int) -> Array:
    return np.tri(tokens, dtype=bool)


def trees(call: Call, b: int, nodes: int) -> Array:
    """The parents of a different tree for each row, the first with all nodes; -2 is padding."""
    parents = np.full((b, nodes), -2)
    for row in range(b):
        size = nodes if row == 0 else int(call.rng.integers(max(1, nodes // 2), nodes + 1))
        i = np.arange(size)
        shapes = (i - 1, np.maximum(0, (i - 1) // 2), np.where(i % 2, i - 1, i - 2), call.rng.integers(0, np.maximum(i, 1)))
        parents[row, :size] = shapes[(row + 1) % 4]
        parents[row, 0] = -1
    return parents


def masks(call: Call, b: int, t: int, branching: bool) -> Array:
    """Which token sees which in each row: of trees, or of chains."""
    return ancestors(trees(call, b, t)) if branching else np.broadcast_to(chain(t), (b, t, t))


def poisoned(call: Call, tokens: dict[str, Tensor], mask: Array) -> Tensor:
    """Writes NaN into padding tokens; returns the mask on the device."""
    dead = call.ints(~np.einsum("btt -> bt", mask), torch.bool)
    for x in tokens.values():
        x[dead] = float("nan")
    return call.ints(mask, torch.bool)


def accepted(call: Call, mask: Array) -> tuple[Array, Array]:
    """A path of each row (the ancestors of some node), and its length; sometimes 0."""
    path, advanced = np.full(mask.shape[:2], -1), np.zeros(len(mask), dtype=int)
    for b, row in enumerate(mask):
        seen = np.flatnonzero(row[call.rng.choice(np.flatnonzero(np.diag(row)))])
        advanced[b] = 0 if call.rng.random() < 0.1 else len(seen)
        path[b, : advanced[b]] = seen[: advanced[b]]
    return path, advanced
