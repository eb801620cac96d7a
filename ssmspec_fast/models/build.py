"""Builds an engine: checked and counted on tensors without memory first, then built again with the weights."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from ssmspec_ref.errors import ParameterError, Unsupported

from ..accept import Acceptance
from ..cli import choices
from ..device import check_device
from ..draft import Drafter
from ..engine.emitted_windows import StreamingEngine
from ..engine.requests import whole
from ..engine.sampling import Sampling
from ..errors import MemoryRefused
from ..families.source import Plan
from ..generator import Generator
from ..methods import Method
from ..operations import Operations
from .checkpoint import STORAGE, Checkpoint, open_checkpoint
from .memory import (
    LARGE,
    Memory,
    bound_of,
    counting_operations,
    gpu_bytes,
    gpu_reading,
    run_bytes,
    size,
    step_bytes,
    token_room,
)
from .model import Model
from .tokenizer import FILE, Bare, Tokenizer, check_size, same


@dataclass
class Parts:
    """The arguments of `api.load`. Raises: as there, at construction, before any tensor is read."""

    folder: str | Path
    drafter: str | Path | Drafter | dict[str, str | Path] | None = None
    method: str | Method | None = None
    acceptance: str | Acceptance | None = None
    mode: str = "bitwise"
    device: str = "cpu"
    dtype: torch.dtype | str | None = None
    drafts: int = 4
    slots: int = 8
    cache: int = 2048
    sampling: Sampling | None = None
    seed: int = 0
    limit: int | None = None
    rows: int = 1
    tree: str | None = None
    kernels: bool | None = None
    engine: type[StreamingEngine] = StreamingEngine
    prompt: int | None = None
    """Most tokens of a prompt; None: as many as the cache holds."""
    piece: int | None = None
    """Most tokens of prompts that are read between two steps; None: whole prompts."""
    accept: Sequence[str] = ()
    """Fields of the target's config.json that are not known, and do not change the result."""
    choose: bool = False
    """Whether the engine chooses how much is drafted, by its own step times and by what is accepted."""

    def __post_init__(self) -> None:
        self.check_numbers()
        self.operations: Operations = choices.operations(self.mode, self.device, self.kernels)
        rule = self.acceptance
        self.rule = choices.acceptance(rule, self.sampling, self.seed) if rule is None or isinstance(rule, str) else rule
        self.target = open_checkpoint(self.folder, self.accept)
        self.draft = self.open_drafter()
        self.type = self.target.dtype() if self.dtype is None else type_of(self.dtype)
        self.memory = self.counted()
        allowed = available(self.device) if self.limit is None else self.limit
        if self.memory.peak > allowed:
            raise MemoryRefused(
                f"{self.memory}; but {size(allowed)} are available; use fewer slots, a shorter cache or a smaller type"
            )

    def check_numbers(self) -> None:
        """Raises: ParameterError, Unsupported."""
        for name, value in (("slots", self.slots), ("cache", self.cache), ("drafts", self.drafts), ("rows", self.rows)):
            if not 1 <= whole(name, value) <= 2**40:
                raise ParameterError(f"{name} is {value}; it must be 1 or more, and less than 10^12")
        check_device(self.device)

    def open_drafter(self) -> Checkpoint | None:
        """The drafter's checkpoint, if it is a folder; it drafts text if its tokenizer differs from the target's.

        Raises: TokenizerMismatch, Unsupported (several folders), and as `open_checkpoint`.
        """
        every = list(self.drafter.values()) if isinstance(self.drafter, dict) else [self.drafter]
        folders = [one for one in every if choices.is_folder(one)]
        if len(folders) > 1:
            raise Unsupported(f"{len(folders)} of the drafters are checkpoints; give one, and ngram or lookup beside it")
        self.texts: tuple[Bare, Bare] | None = None
        ours = self.tokenizer(self.target)
        if not folders:
            return None
        found = open_checkpoint(str(folders[0]))
        theirs = self.tokenizer(found)
        if ours is None or theirs is None:
            return found  # the drafter compares the vocabulary sizes
        if not same(ours, theirs):
            self.texts = Bare(theirs), Bare(ours)
        return found

    @staticmethod
    def tokenizer(checkpoint: Checkpoint) -> Tokenizer | None:
        """Raises: TokenizerMismatch, BrokenFile."""
        if not (checkpoint.folder / FILE).is_file():
            return None
        tokenizer = Tokenizer(checkpoint.folder)
        check_size(tokenizer, checkpoint.config.vocabulary)
        return tokenizer

    def build(self, target: Model, draft: Model | None) -> StreamingEngine:
        """The engine of these models. Raises: Unsupported, ParameterError, RingOverflow."""
        drafting = choices.Drafting(
            self.drafts, self.rows, self.tree, self.rule.divides, self.sampling, self.seed, self.slots, self.cache,
            self.texts, self.choose,
        )  # fmt: skip
        drafter = choices.drafter(self.drafter, target, draft, drafting, self.operations)
        method = self.method
        if method is None or isinstance(method, str):
            method = choices.method(method, drafter)
        choices.check_fit(drafter, self.rule, method)
        cache = self.cache + drafter.nodes - 1  # the last window may reach beyond the last token
        room = {"operations": self.operations, "slots": self.slots, "cache": cache, "piece": self.piece}
        return self.engine(target, drafter, method, self.rule, **room)

    def counted(self) -> Memory:
        """The memory it takes, from an engine on tensors without memory."""
        folders = [found for found in (self.target, self.draft) if found is not None]
        plans = [Plan(self.type) for _ in folders]
        models = [found.family.assemble(found.config, plan) for found, plan in zip(folders, plans, strict=True)]
        engine = self.build(models[0], models[1] if len(models) > 1 else None)
        weights = sum(plan.bytes for plan in plans)
        reading = max(self.reading(found, plan.bytes) for found, plan in zip(folders, plans, strict=True))
        states, sequences = engine.target.pools.bytes + engine.drafter.held, token_room(engine)
        tokens = sequences.tokens.numel() * sequences.tokens.element_size()
        least = Memory(weights, reading, states, tokens)
        allowed = available(self.device) if self.limit is None else self.limit
        if least.peak > allowed:
            return least  # already more than allowed
        longest = min(engine.target.chunk, self.slots * min(self.cache, self.prompt or self.cache))
        own = engine.drafter.innermost.decoder
        decoders = [engine.target, *(() if own is None else (own,))]
        if self.device.startswith("cuda"):
            return replace(least, work=gpu_bytes(engine, decoders, longest, torch.device(self.device)))
        widest = max(shape[0] for plan in plans for shape in plan.shapes.values() if len(shape) > 1)
        bound = replace(least, work=bound_of(engine, models, widest, longest), bound=True)
        if bound.peak < min(allowed, LARGE):
            return bound
        operations = counting_operations(self.operations.bitwise)
        work = max(run_bytes(decoder, operations, longest) for decoder in decoders)
        return replace(least, work=max(work, step_bytes(engine, operations, sequences)))

    def reading(self, checkpoint: Checkpoint, weights: int) -> int:
        """The bytes that reading it takes at its peak, beside its weights."""
        if not self.device.startswith("cuda"):
            return checkpoint.peak_bytes(self.type) - weights
        assemble = partial(checkpoint.family.assemble, checkpoint.config, Plan(self.type))
        return gpu_reading(assemble, weights, torch.device(self.device))

    def load(self) -> Generator:
        """Reads the weights. Raises: BrokenFile."""
        draft = None if self.draft is None else self.draft.load(self.type, self.device)
        engine = self.build(self.target.load(self.type, self.device), draft)
        return Generator(engine, self.tokenizer(self.target))


def type_of(name: torch.dtype | str) -> torch.dtype:
    """Raises: ParameterError."""
    if isinstance(name, torch.dtype):
        if name not in STORAGE.values():
            raise ParameterError(f"dtype is {name}; it must be one of {', '.join(STORAGE)}")
        return name
    return STORAGE[choices.chosen("type", name, STORAGE)]


def available(device: str) -> int:
    """The free bytes of a device; on a CPU all bytes of the machine, if the system does not report the free ones."""
    if device.startswith("cuda"):
        return int(torch.cuda.mem_get_info(device)[0])
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 2**63
