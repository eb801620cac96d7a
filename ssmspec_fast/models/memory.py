"""The memory of an engine, counted before any is allocated: the same code runs on tensors without memory.

    peak = weights + max(one tensor as it is read, states + tokens + max(a run of prompts, a step))

A run is counted for one block of each kind, because blocks run one after the other, and for one token of a recurrence, with
the outputs of all tokens; a step is counted for all blocks, because methods keep what the convolutions read of every layer
until the verdict. On a GPU the kernels' own launchers run, without their launches, and the work is what the allocator
reserves (`counting`):

    work = a run of prompts, then a step; with graphs as `gpu_bytes` says
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..engine.decoder import Decoder
from ..engine.loop import Engine
from ..engine.prefill import Piece, feed, packed
from ..engine.requests import Settings
from ..engine.sequences import Sequences, new_sequences
from ..engine.state import Pools
from ..engine.window import Proposal, Window
from ..operations import Operations
from ..operations.arithmetic import BLOCK, Arithmetic, exact
from ..operations.slots import expand, take
from ..operations.torch_ops import TorchOperations
from ..operations.torch_recurrences import Sequential, at
from .config import AttentionConfig, RecurrentConfig
from .counting import WORKSPACE, Counting, counted
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


class AtOnce(Arithmetic):
    """Takes the same memory as `Arithmetic`, in one call instead of block by block or row by row."""

    def map(self, function: Any, x: Tensor) -> Tensor:
        if not self.bitwise or x.is_cuda:
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
        after_each: Callable[[int, Tensor], None] = lambda t, state: None,
    ) -> tuple[Tensor, Tensor]:
        state, tokens = take(S, slots).to(exact(inputs[0])), self.prepare(inputs, params)
        y, after = self.step(state, at(tokens, 0))
        state = after if live is None else torch.where(expand(live[:, 0], state), after, state)
        after_each(0, state)
        outputs = y.new_empty((inputs[0].shape[1], *y.shape))
        del y, after
        return self._outputs(list(outputs), inputs, params, live), state


def counting_operations(bitwise: bool) -> TorchOperations:
    """PyTorch's operations with `AtOnce` for their arithmetic."""
    arithmetic = AtOnce(bitwise)
    found = TorchOperations(bitwise, windows=not bitwise, arithmetic=arithmetic)
    kinds = {name: type(f"Quick{name}", (Quick, type(scan)), {}) for name, scan in found.recurrences.items()}
    found.recurrences = {name: kind(arithmetic) for name, kind in kinds.items()}
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
    run = packed([Piece(0, 0, [0] * tokens)], torch.device("cpu"))
    with counted(model, pools.layers, pools.kept, list(pools.convolutions)) as counting:
        feed(model, pools, decoder.method, run, operations)
    return counting.peak


def step_bytes(engine: Engine, operations: TorchOperations, sequences: Sequences) -> int:
    """The bytes of one window of every slot: drafts, logits, verdict; with full caches."""
    target, slots, inner = engine.target, torch.arange(engine.slots), engine.drafter.innermost
    on_host(target.pools)
    decoder = inner.decoder
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
            step(engine, sequences, slots)
    finally:
        target.operations, engine.operations = kept[0], kept[1]
        inner.attach(target)
    return counting.peak


def step(engine: Engine, sequences: Sequences, slots: Tensor) -> None:
    """One window of these slots; of a drafter that needs the host its drafts alone."""
    inner = engine.drafter.innermost
    if inner.on_device:
        proposal = inner.propose(sequences, slots)
    else:
        rows = slots.repeat_interleave(inner.drafts)
        blank = torch.zeros((len(rows), inner.nodes), dtype=torch.int64, device="meta")
        parents = torch.arange(-1, inner.nodes - 1, device="meta").expand_as(blank) if inner.trees else None
        proposal = Proposal(Window(blank, rows, None, parents, inner.drafts))
    engine.judge(proposal, sequences)


def gpu_bytes(engine: Engine, decoders: list[Decoder], tokens: int, device: torch.device) -> int:
    """What a GPU's allocator reserves for a run of prompts of each decoder, and a step.

    Graphs share a pool, which nothing else uses. Steps are recorded for 1, 2, 4, .. rows and for all (`Engine.prepare`). Each
    runs first beside the pool, on a stream with a workspace of cuBLAS; recording it gives back what no tensor holds:

        peak = max(prompts + pool(all rows), step(all rows) + workspace + pool(the largest number recorded before))
    """
    if not engine.recorder:
        return gpu_work(engine, decoders, tokens, device).reserved
    fewer = max((engine.padded(n) for n in range(1, engine.slots) if engine.padded(n) < engine.slots), default=0)
    step = gpu_work(engine, [], 0, device).reserved
    prompts = gpu_work(engine, decoders, tokens, device, rows=0).reserved
    return max(prompts + step, step + WORKSPACE + gpu_work(engine, [], 0, device, rows=fewer).reserved)


def gpu_work(engine: Engine, decoders: list[Decoder], tokens: int, device: torch.device, rows: int | None = None) -> Counting:
    """Runs of prompts that end at the last token of a slot, then a window of the first `rows` slots (None: of all), as on
    this GPU."""
    sequences = new_sequences(engine.slots, engine.cache + engine.target.window, (), (), "meta")
    sequences.ask([Settings(1)])
    slots, runs = torch.arange(engine.slots if rows is None else rows), []
    for decoder in decoders:
        model, room = one_of_each(decoder.model), max(decoder.cache, tokens)
        pools = decoder.method.new_pools(model, 1, room, decoder.window, decoder.operations, device="meta")
        on_host(pools)
        pools.length += room - tokens
        run = packed([Piece(0, 0, [0] * tokens)], torch.device("cpu"))
        runs.append((model, pools, decoder.method, run, of_gpu(decoder.operations)))
    inner = engine.drafter.innermost
    own = inner.decoder
    on_host(engine.target.pools)
    if own is not None:
        on_host(own.pools)
    given = [engine.model, engine.target.pools, sequences, None if own is None else (own.model, own.pools), vars(inner)]
    given += [pools for _, pools, _, _, _ in runs]
    with counted(*given, device=device) as counting:
        for one in runs:
            feed(*one)
        if len(slots):
            step(engine, sequences, slots)
    return counting


def gpu_reading(assemble: Callable[[], Model], weights: int, device: torch.device) -> int:
    """What reading takes beside the weights on a GPU: projections that are joined from several tensors. Tensors are converted
    on the host."""
    with counted(device=device) as counting:
        model = assemble()
    del model
    return max(0, counting.peak - weights)


def of_gpu(operations: Operations) -> Operations:
    """The same operations, those of PyTorch at once."""
    return counting_operations(operations.bitwise) if type(operations) is TorchOperations else operations


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
    for name in (
        "length",
        "prompt",
        "budget",
        "request",
        "seed",
        "own",
        "sampling",
        "eos",
        "stop",
        "ended",
        "drafts",
        "drafter",
    ):
        held = getattr(found, name)
        setattr(found, name, torch.zeros(held.shape, dtype=held.dtype))
    found.ended[:] = False
    found.ask([settings])
    return found


def one_of_each(model: Model) -> Model:
    """The model with one block of each kind."""
    first = dict(reversed([*zip(model.config.blocks, model.blocks, strict=True)]))
    return replace(model, config=replace(model.config, blocks=tuple(first)), blocks=tuple(first.values()))
