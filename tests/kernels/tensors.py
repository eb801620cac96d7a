"""Tensors for the tests of kernels: drawn on a grid that every storage type holds, with gaps full of NaN, and watched."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Any

import numpy as np
import torch
from torch import Tensor

from conformance.interpreter import memory
from conformance.interpreter.memory import Memory
from ssmspec_ref.contract import NumericContract
from ssmspec_ref.error_bounds import compare
from ssmspec_ref.error_bounds.arithmetic import Approx
from ssmspec_ref.shapes import Array
from tests.kernels.device import COMPILED, LARGE

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
GUARD = 1024  # elements
NORESERVE = 0x4000
"""Linux's MAP_NORESERVE, which Python's mmap names from 3.13 on: what is mapped may exceed the machine's memory."""
INTS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def contract(state: str, io: str, **changes: Any) -> NumericContract:
    """What the kernels declare; NumPy's exp, which stands in for the hardware's, has 3 ulp."""
    return NumericContract(state=state, io=io, function_ulp=3.0, exp="ex2", **changes)  # type: ignore[arg-type]


def draw(rng: np.random.Generator, *shape: int, forms: tuple[str, ...] = ("fp32",), scale: float = 1.0) -> Array:
    """Normal values that all of `forms` hold exactly."""
    x = torch.from_numpy(rng.standard_normal(shape) * scale)
    for form in forms:
        x = x.to(DTYPES[form])
    return x.double().numpy()


def integers(rng: np.random.Generator, *shape: int, size: int = 3) -> Array:
    return rng.integers(-size, size + 1, shape).astype(np.float64)


def strided(values: Array, form: str, gap: int = 3) -> Tensor:
    """The values as a tensor with NaN in every gap and on both sides; stride 1 on the last axis. Other gaps, other strides.

    A faulty kernel that writes beside the tensor meets the guards, and not the memory of the test.
    """
    gaps = [*(gap // 2 for _ in values.shape[:-1]), gap]
    wide = [n + g for n, g in zip(values.shape, gaps, strict=True)]
    size = int(np.prod(wide))
    guard = max(GUARD, size)  # an index twice that of the tensor stays within it
    buffer = torch.full((size + 2 * guard,), float("nan"), dtype=DTYPES[form])
    view = buffer[guard:-guard].view(wide)[tuple(slice(g, None) for g in gaps)]
    view.copy_(torch.from_numpy(values))
    return view


def blank(form: str, *shape: int) -> Tensor:
    """An output that nobody has written."""
    return strided(np.full(shape, np.nan), form, gap=5)


def far(tensor: Tensor, axis: int) -> Tensor:
    """The tensor with a stride on one axis that puts its last entries beyond 2^31 elements; few pages of it are touched.

    As much room lies in front of it: an offset that was cut to 32 bits leads there, and not out of the memory of the test.
    With two entries the stride itself would take 64 bits, and with it every product that it is in.
    """
    assert tensor.shape[axis] > 2
    one = [1 if k == axis else n for k, n in enumerate(tensor.shape)]
    stride = [*torch.empty(one).stride()]
    stride[axis] = 2**31 // (tensor.shape[axis] - 1) // 64 * 64 + 64
    count = 2**31 + (tensor.shape[axis] - 1) * stride[axis] + tensor.numel()
    return room(tensor, count).as_strided(tensor.shape, stride, 2**31).copy_(tensor)


def room(like: Tensor, count: int) -> Tensor:
    """So many elements of the tensor's type, which lie where it does; on a GPU of one process at a time."""
    if like.is_cuda:
        LARGE.acquire()
        return like.new_empty(count)
    pages = mmap(-1, count * like.element_size(), flags=MAP_PRIVATE | MAP_ANONYMOUS | NORESERVE)
    return torch.frombuffer(pages, dtype=like.dtype)


def doubles(tensor: Tensor) -> Array:
    return tensor.double().numpy()


class Kept:
    """The bits of some tensors, gaps included, as they were before a call."""

    def __init__(self, **tensors: Tensor | None) -> None:
        self.tensors = {name: t for name, t in tensors.items() if t is not None}
        self.before = {name: _elements(t).clone() for name, t in self.tensors.items()}

    def check(self, **owned: Any) -> None:
        """Assert that nothing changed but, in the tensors named, what an index says that the call owns."""
        self.check_all_but(owned.items())

    def check_all_but(self, owned: Iterable[tuple[str, Any]]) -> None:
        """The same with any number of indices for a tensor."""
        free = {name: torch.zeros(len(bits), dtype=torch.bool) for name, bits in self.before.items()}
        for name, index in owned:
            t = self.tensors[name]
            free[name].as_strided(t.shape, t.stride(), t.storage_offset())[index] = True
        for name, t in self.tensors.items():
            same = torch.equal(_elements(t)[~free[name]], self.before[name][~free[name]])
            assert same, f"{name} changed outside the slots of the call"


def _elements(t: Tensor) -> Tensor:
    return torch.empty(0, dtype=t.dtype).set_(t.untyped_storage()).view(INTS[t.element_size()])


def check_within(actual: Array, pair: Approx, form: str | None = None) -> float:
    """Assert that an output lies within its bound, stored in `form` where the pair is not; return the share of it used."""
    pair = pair if form is None else pair.store(form)  # type: ignore[arg-type]
    comparison = compare(actual, pair.value, pair.error)
    assert comparison.passed, str(comparison)
    return comparison.utilisation


def assert_one_product(S: Tensor, alone: Tensor) -> None:
    """States that hold one token each: of a window whose decays leave nothing else, and of the token alone.

    Each element is one product of an input and a few factors, whose roundings in a window of another length are some units of
    2^-24; the sum of such decays has units of 2^-11, and so has the weight where it is taken from two sums.
    """
    apart = (S.double() - alone.double()).abs()
    assert (apart <= 2.0**-18 * alone.double().abs()).all(), "the newest token's weight is not what it is alone"


@contextmanager
def watch(**tensors: Tensor) -> Iterator[Memory]:
    """`memory.watch`, for checks that judge more than bytes: on a GPU, where no access is seen, nothing is recorded."""
    if COMPILED:
        yield Memory()
    else:
        with memory.watch(**tensors) as seen:
            yield seen


def check_bytes(seen: Memory, expected: int, once: tuple[str, ...], apart: tuple[str, ...] = ()) -> None:
    """Assert the bytes that crossed the bus for the tensors `once`, each element asked for once, and no stray access.

    `apart` names what `traffic_bytes` leaves out: parameters, slots, masks. On a GPU there is nothing to assert.
    """
    if COMPILED:
        return
    assert seen.outside == [], seen.outside[:3]
    assert seen.races == [], seen.races[:3]
    names = {name for _, name in seen.accesses}
    assert names <= {*once, *apart}, f"{names - {*once, *apart}} touched"
    for (kind, name), access in seen.accesses.items():
        assert name in apart or access.requested == access.distinct, f"{kind} of {name}: {access.requested} bytes asked for"
    crossed = sum(access.distinct for (_, name), access in seen.accesses.items() if name in once)
    assert crossed == expected, f"{crossed} bytes crossed, {expected} by the formula"
