"""The memory of an engine, counted before any is allocated: the same code runs on tensors without memory.

    peak = weights + max(one tensor as it is read, states + tokens + max(a run of prompts, a step))

A run is counted for one block of each kind, because blocks run one after the other, and for one token of a recurrence, with
the outputs of all tokens; a step is counted for all blocks, because methods keep what the convolutions read of every layer
until the verdict. On a GPU the workspace of the kernels is assumed to equal that of PyTorch's operations, which is not exact:
docs/generate.md has what an H200 took.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ..engine.decoder import Decoder
from ..engine.loop import Engine
from ..engine.prefill import feed, packed
from ..engine.requests import Settings
from ..engine.sequences import Sequences, new_sequences
from ..engine.state import Pools, tensors
from ..engine.window import Proposal, Window
from ..operations.arithmetic import BLOCK, Arithmetic, exact
from ..operations.slots import expand, take
from ..operations.torch_ops import TorchOperations
from ..operations.torch_recurrences import Sequential, at
from .config import AttentionConfig, RecurrentConfig
from .model import Model

LARGE = 2**29
"""Below this number of bytes a bound on the work is reported, because counting it takes a second or two."""


@dataclass(frozen=True)
class Memory:
    """Units: bytes. `reading` is the additional memory while a tensor is read; `work` what a run of prompts or a step takes
    in addition to states, caches and tokens: counted, or, if it is small, bounded (`bound`)."""

    weights: int
    reading: int
    states: int
    tokens: int = 0
    work: int = 0
    bound: bool = False

    @property
    def peak(self) -> int:
        return self.weights + max(self.reading, self.states + self.tokens + self.work)

    def __str__(self) -> str:
        work = "work at most" if self.bound else "work"
        parts = {"weights": self.weights, "states and caches": self.states, "tokens": self.tokens, work: self.work}
        return f"peak memory {size(self.peak)}: {', '.join(f'{name} {size(n)}' for name, n in parts.items())}"


def size(count: int) -> str:
    """Bytes in readable units."""
    for unit, factor in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} B"


class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the live bytes of tensors without memory, except those in `given`.

    What the host reads comes from small tensors with memory; combined with others they become tensors without.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self.given = {place(x) for x in tensors(list(given))}
        self.held: dict[int, tuple[int, int]] = {}
        self.watched: dict[int, Any] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(x.is_meta for x in leaves(args)) or any(x.is_meta for x in leaves(tuple(kwargs.values()))):
            args, kwargs = moved(args), {name: moved(x) for name, x in kwargs.items()}
        found = chosen(*args) if masked(function, args) else function(*args, **kwargs)
        for x in leaves((found,)):
            if x.is_meta:
                self.hold(x)
        return found

    def hold(self, x: Tensor) -> None:
        at = place(x)
        if at in self.given:
            return
        count, size = self.held.get(at, (0, x.untyped_storage().nbytes()))
        if not count:
            self.live += size
            self.peak = max(self.peak, self.live)
        self.held[at] = count + 1, size
        gone = weakref.ref(x, lambda gone: self.drop(at, gone))
        self.watched[id(gone)] = gone  # a set would compare the tensors

    def drop(self, at: int, gone: Any) -> None:
        del self.watched[id(gone)]
        count, size = self.held.pop(at)
        if count > 1:
            self.held[at] = count - 1, size
        else:
            self.live -= size


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


class AtOnce(Arithmetic):
    """Takes the same memory as `Arithmetic`, in one call instead of block by block or row by row."""

    def map(self, function: Any, x: Tensor) -> Tensor:
        if not self.bitwise:
            return function(x)
        flat = torch.nn.functional.pad(x.reshape(-1), (0, -x.numel() % BLOCK))
        return torch.empty_like(flat)[: x.numel()].view(x.shape)

    def product(self, x: Tensor, W: Tensor) -> Tensor:
        if not self.bitwise:
            return torch.nn.functional.linear(x, W)
        rows = x.reshape(-1, x.shape[-1])
        return rows.new_empty((len(rows), W.shape[0])).view(*x.shape[:-1], W.shape[0])


class Quick(Sequential):
    """Steps once, and takes the memory of the outputs of all tokens."""

    def walk(
        self,
        S: Tensor,
        inputs: Any,
        params: Any,
        slots: Tensor,
        live: Tensor | None,
        behind: Callable[[int, Tensor], None] = lambda t, state: None,
    ) -> tuple[Tensor, Tensor]:
        state, tokens = take(S, slots).to(exact(inputs[0])), self.prepare(inputs, params)
        y, after = self.step(state, at(tokens, 0))
        state = after if live is None else torch.where(expand(live[:, 0], state), after, state)
        behind(0, state)
        outputs = y.new_empty((inputs[0].shape[1], *y.shape))
        del y, after
        return self._outputs(list(outputs), inputs, params, live), state


@contextmanager
def counted(*given: Any) -> Iterator[Counting]:
    """Counts what runs inside, on tensors without memory."""
    with torch.no_grad(), Counting(*given) as counting:
        yield counting


def counting_operations(bitwise: bool) -> TorchOperations:
    """PyTorch's operations with `AtOnce` for their arithmetic."""
    found = TorchOperations(bitwise, windows=not bitwise, arithmetic=AtOnce(bitwise))
    for scan in found.recurrences.values():
        scan.__class__ = type("Quick", (Quick, type(scan)), {})
    return found


def bound_of(engine: Engine, models: list[Model], widest: int, tokens: int) -> int:
    """An upper bound of `run_bytes` and `step_bytes`: at most 12 fp32 numbers for each output of a projection, four for each
    state of a channel of Mamba-1, 30 for each logit; attention takes 32 queries at once, times keys, in four tensors; n-grams
    20 numbers of 8 bytes for each token of a history, and three for each token of its window."""
    model, target, rows = engine.model.config, engine.target, engine.slots * engine.drafter.drafts
    places = [c.heads * c.channels * (target.cache + target.window) for c in model.mixers if isinstance(c, AttentionConfig)]
    attended, nodes = max(places, default=0), target.window
    logits = rows * nodes * (120 * model.vocabulary + 48 * widest * len(model.blocks))
    histories = 8 * engine.slots * engine.cache * (20 + 3 * nodes)
    channels = [c.formed for one in models for c in one.config.mixers if isinstance(c, RecurrentConfig)]
    return tokens * (48 * widest + 16 * max(channels, default=0)) + 16 * attended * (32 + rows * nodes) + logits + histories


def run_bytes(decoder: Decoder, operations: TorchOperations, tokens: int) -> int:
    """The bytes of a run of prompts that ends at the last token of a slot."""
    model = one_of_each(decoder.model)
    pools = decoder.method.new_pools(model, 1, max(decoder.cache, tokens), decoder.window, operations, device="meta")
    on_host(pools)
    pools.length += max(0, decoder.cache - tokens)
    run = packed([(0, 0, [0] * tokens)], torch.device("cpu"))
    with counted(model, pools.layers, pools.kept, list(pools.convolutions)) as counting:
        feed(model, pools, decoder.method, run, operations)
    return counting.peak


def step_bytes(engine: Engine, operations: TorchOperations, sequences: Sequences) -> int:
    """The bytes of one window of every slot: drafts, logits, verdict; with full caches."""
    target, slots = engine.target, torch.arange(engine.slots)
    on_host(target.pools)
    inner: Any = engine.drafter
    while hasattr(inner, "inner"):
        inner = inner.inner
    decoder = getattr(inner, "decoder", None)
    if decoder is not None:
        on_host(decoder.pools)
    kept = [target.operations, engine.operations]
    for one in (target, engine, decoder):
        if one is not None:
            one.operations = operations
    inner.attach(target)  # a drafter takes its kernels from there
    given = [engine.model, target.pools, sequences, None if decoder is None else (decoder.model, decoder.pools), vars(inner)]
    try:
        with counted(*given) as counting:
            if inner.on_device:
                proposal = inner.propose(sequences, slots)
            else:
                rows = slots.repeat_interleave(inner.drafts)
                blank = torch.zeros((len(rows), inner.nodes), dtype=torch.int64, device="meta")
                parents = torch.arange(-1, inner.nodes - 1, device="meta").expand_as(blank) if inner.trees else None
                proposal = Proposal(Window(blank, rows, None, parents, inner.drafts))
            engine.judge(proposal, sequences)
    finally:
        target.operations, engine.operations = kept[0], kept[1]
        inner.attach(target)
    return counting.peak


def on_host(pools: Pools) -> None:
    """Replaces the cursors by tensors with memory, because the host reads some."""
    pools.length = torch.zeros(pools.length.shape, dtype=torch.int64)
    for name, value in vars(pools.kept).items():
        if isinstance(value, Tensor) and value.dim() == 1 and value.dtype == torch.int64:
            setattr(pools.kept, name, torch.zeros(value.shape, dtype=torch.int64))


def token_room(engine: Engine) -> Sequences:
    """The sequences of an engine, with token tensors without memory."""
    found = new_sequences(engine.slots, engine.cache + engine.target.window, (), (), "meta")
    settings = Settings(1)
    for name in ("length", "prompt", "budget", "request", "seed", "own", "sampling", "eos", "stop", "ended"):
        held = getattr(found, name)
        setattr(found, name, torch.zeros(held.shape, dtype=held.dtype))
    found.ended[:] = False
    found.ask([settings])
    return found


def one_of_each(model: Model) -> Model:
    """The model with one block of each kind."""
    first = dict(reversed([*zip(model.config.blocks, model.blocks, strict=True)]))
    return replace(model, config=replace(model.config, blocks=tuple(first)), blocks=tuple(first.values()))
