"""The live bytes of tensors, counted while operations run on tensors without memory; on a GPU in blocks of its allocator.

    live   the sum of the storages that a tensor holds             a storage lives until its last tensor is gone       (1)
    peak   the most that was live, and beside it what an operation takes inside                                       (2)

PyTorch's allocator on a GPU gives blocks of multiples of 512 bytes, cut out of segments, which it keeps: segments of 2 MiB
for blocks of up to 1 MiB, of 20 MiB for blocks below 10 MiB, else of multiples of 2 MiB (`Segments`). Source:
https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management, and c10/cuda/CUDACachingAllocator.cpp of PyTorch 2.11.
What its operations take inside is in no tensor: the buffers of a sort (`inside`), and a workspace of cuBLAS for each stream
(https://docs.pytorch.org/docs/stable/notes/cuda.html#cublas-workspaces).
"""

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ..engine.state import tensors

BLOCK, SMALL, LARGE = 512, 2**20, 10 * 2**20
"""Bytes of the least block, of the largest one in a segment for small blocks, and from which a block has its own segment."""
SEGMENT, SHARED = 2 * 2**20, 20 * 2**20
WORKSPACE = 4096 * 8 * 1024
"""cuBLAS' workspace on sm_90 and later (`:4096:8`); on earlier GPUs it is 8.1 MiB."""
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "mv", "addmv")
SORTS = ("sort", "argsort")
SHORT = 4096
"""Rows up to this length are sorted in registers."""


class Segments:
    """A rehearsal of the GPU's caching allocator: the best fitting free block of its kind, cut if enough is left.

    `reserved` is the sum of the segments, which are never given back.
    """

    def __init__(self) -> None:
        self.reserved = 0
        self.free: dict[bool, dict[tuple[int, int], int]] = {True: {}, False: {}}  # small: (segment, start) -> bytes
        self.segments = 0

    @staticmethod
    def rounded(size: int) -> int:
        return max(BLOCK, -(-size // BLOCK) * BLOCK)

    def take(self, size: int) -> tuple[bool, int, int, int]:
        """A block: its kind, segment, start and bytes."""
        size = self.rounded(size)
        small = size <= SMALL
        free = self.free[small]
        fits = [(held, at) for at, held in free.items() if held >= size]
        if fits:
            held, at = min(fits)
            del free[at]
        else:
            held = SEGMENT if small else SHARED if size < LARGE else -(-size // SEGMENT) * SEGMENT
            self.segments += 1
            self.reserved += held
            at = (self.segments, 0)
        if held - size >= BLOCK if small else held - size > SMALL:
            free[at[0], at[1] + size] = held - size
            held = size
        return small, *at, held

    def give(self, block: tuple[bool, int, int, int]) -> None:
        """Frees a block, and joins it with its free neighbours."""
        small, segment, start, size = block
        free = self.free[small]
        size += free.pop((segment, start + size), 0)
        before = next((at for at, held in free.items() if at[0] == segment and at[1] + held == start), None)
        if before is not None:
            start, size = before[1], size + free.pop(before)
        free[segment, start] = size


class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the live bytes of tensors without memory, except those in `given`; with `real` also of tensors with memory.

    What the host reads comes from small tensors with memory; combined with others they become tensors without. On a GPU
    (`gpu`) storages are blocks, `segments` has what the allocator reserves, and what operations take inside counts.
    """

    def __init__(self, *given: Any, gpu: bool = False, real: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self.real, self.segments = real, Segments() if gpu else None
        self.given = {place(x) for x in tensors(list(given))}
        self.held: dict[int, tuple[int, int]] = {}
        self.blocks: dict[int, Any] = {}
        self.watched: dict[int, Any] = {}
        self.library = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self.real and any(x.is_meta for x in (*leaves(args), *leaves(tuple(kwargs.values())))):
            args, kwargs = moved(args), {name: moved(x) for name, x in kwargs.items()}
        found = chosen(*args) if not self.real and masked(function, args) else function(*args, **kwargs)
        for x in leaves((found,)):
            if x.is_meta or self.real:
                self.hold(x)
        if self.segments is not None:
            self.work(function, args)
        return found

    @property
    def reserved(self) -> int:
        """The segments of a GPU's allocator; without one what is live at most."""
        return self.peak if self.segments is None else self.segments.reserved

    def work(self, function: Any, args: Any) -> None:
        """(2): what an operation takes inside, and gives back; a workspace stays."""
        name = function._schema.name.removeprefix("aten::")
        if name in PRODUCTS and not self.library:
            self.library = WORKSPACE
            self.grow(self.take(WORKSPACE)[1])
        taken = [self.take(size) for size in inside(name, args)]
        self.peak = max(self.peak, self.live + sum(size for _, size in taken))
        for block, _ in taken:
            self.give(block)

    def take(self, size: int) -> tuple[Any, int]:
        if self.segments is None:
            return None, size
        return self.segments.take(size), Segments.rounded(size)

    def give(self, block: Any) -> None:
        if self.segments is not None:
            self.segments.give(block)

    def grow(self, size: int) -> None:
        self.live += size
        self.peak = max(self.peak, self.live)

    def hold(self, x: Tensor) -> None:
        at = place(x)
        if at in self.given:
            return
        count, size = self.held.get(at, (0, x.untyped_storage().nbytes()))
        if not count and size:
            self.blocks[at], size = self.take(size)
            self.grow(size)
        self.held[at] = count + 1, size
        gone = weakref.ref(x, lambda gone: self.drop(at, gone))
        self.watched[id(gone)] = gone  # a set would compare the tensors

    def drop(self, at: int, gone: Any) -> None:
        del self.watched[id(gone)]
        count, size = self.held.pop(at)
        if count > 1:
            self.held[at] = count - 1, size
        elif size:
            self.live -= size
            self.give(self.blocks.pop(at))


def leaves(values: Any) -> Iterator[Tensor]:
    """The tensors among arguments, and in lists of them."""
    for x in values:
        if isinstance(x, Tensor):
            yield x
        elif isinstance(x, list | tuple):
            yield from leaves(x)


def moved(x: Any) -> Any:
    """The same tensor without memory."""
    if isinstance(x, Tensor):
        return x if x.is_meta else x.to("meta")
    return type(x)(moved(y) for y in x) if type(x) in (list, tuple) else x


def place(x: Tensor) -> int:
    return int(x.untyped_storage()._cdata)


def masked(function: Any, args: Any) -> bool:
    """Whether rows are selected by a mask, whose number depends on the values."""
    return function is torch.ops.aten.index.Tensor and any(x is not None and x.dtype == torch.bool for x in args[1])


def chosen(x: Tensor, indices: list[Tensor | None]) -> Tensor:
    """All rows that a mask may select."""
    axis = next(n for n, mask in enumerate(indices) if mask is not None)
    mask = indices[axis]
    assert mask is not None
    return x.new_empty((*x.shape[:axis], mask.numel(), *x.shape[axis + mask.dim() :]))


def inside(name: str, args: Any) -> Iterator[int]:
    """The buffers of an operation on a GPU. Units: bytes.

    A stable sort of long rows sorts all rows at once, by their values and then by their rows: places and rows twice, the
    sorted values, and what a radix sort takes, values and places once more. Source: `segmented_sort_pairs_by_full_sort` in
    aten/src/ATen/native/cuda/Sort.cu of PyTorch 2.11; for one row, and from 128 rows on, fewer are taken.
    """
    if name in SORTS and args[0].dim() and args[0].shape[-1] > SHORT:
        n, value = args[0].numel(), args[0].element_size()
        yield from (8 * n, 8 * n, value * n, (value + 8) * n)


class OnGPU(TorchFunctionMode):
    """All tensors of this thread say that they are on a GPU: those without memory, and small ones that the host reads."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function == Tensor.device.__get__:
            return self.device
        if function == Tensor.is_cuda.__get__:  # type: ignore[attr-defined]
            return True
        return function(*map(self.there, args), **{name: self.there(x) for name, x in (kwargs or {}).items()})

    @staticmethod
    def there(x: Any) -> Any:
        """A GPU as the device without memory."""
        on = (isinstance(x, torch.device) and x.type == "cuda") or (isinstance(x, str) and x.startswith("cuda"))
        return torch.device("meta") if on else x


ALONE = threading.RLock()
"""Held while launches are left out: one engine is counted at a time."""


@contextmanager
def without_launches() -> Iterator[None]:
    """In the block this thread launches no kernel of Triton; the other threads do."""
    try:
        from triton.runtime.jit import KernelInterface
    except ImportError:  # nothing can be launched
        yield
        return
    with ALONE:
        launching, here = KernelInterface.__getitem__, threading.get_ident()

        def left_out(kernel: Any, grid: Any) -> Any:
            return launching(kernel, grid) if threading.get_ident() != here else lambda *args, **named: None

        KernelInterface.__getitem__ = left_out
        try:
            yield
        finally:
            KernelInterface.__getitem__ = launching


@contextmanager
def counted(*given: Any, device: torch.device | None = None) -> Iterator[Counting]:
    """Counts what runs inside, on tensors without memory; with a `device` as on that GPU, whether there is one or not."""
    with torch.no_grad(), Counting(*given, gpu=device is not None) as counting:
        if device is None:
            yield counting
            return
        with without_launches(), capability(), OnGPU(device):
            yield counting


@contextmanager
def capability() -> Iterator[None]:
    """Without a GPU, kernels choose as on an H200."""
    if torch.cuda.is_available():
        yield
        return
    asked, torch.cuda.get_device_capability = torch.cuda.get_device_capability, lambda device=None: (9, 0)
    try:
        yield
    finally:
        torch.cuda.get_device_capability = asked
