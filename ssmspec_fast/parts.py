"""What an engine is made of: checked and counted on tensors without memory first, then made again with the weights."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ssmspec_ref.errors import ParameterError

from . import choices
from .accept import Acceptance
from .accept.processors import Sampling
from .checkpoint import STORAGE, Checkpoint, open_checkpoint
from .device import check_device
from .draft import Drafter
from .errors import MemoryRefused
from .families.source import Plan
from .methods import Method
from .model import Model
from .operations import Operations
from .tokenizer import FILE, Bare, Tokenizer, check_size, same
from .watch import Watched

if TYPE_CHECKING:
    from .api import Generator


@dataclass(frozen=True)
class Memory:
    """Units: bytes. `reading` is what one tensor takes beside the weights while it is read."""

    weights: int
    reading: int
    states: int

    @property
    def peak(self) -> int:
        return self.weights + max(self.reading, self.states)

    def __str__(self) -> str:
        parts = f"weights {size(self.weights)}, states and caches {size(self.states)}"
        return f"peak memory {size(self.peak)}: {parts}; beside it the libraries and the activations of one window"


@dataclass
class Parts:
    """As the arguments of `api.load`. Raises: as there, when it is made; no tensor has been read then."""

    folder: str | Path
    drafter: str | Path | Drafter | None = None
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
    engine: type[Watched] = Watched

    def __post_init__(self) -> None:
        self.check_numbers()
        self.operations: Operations = choices.operations(self.mode, self.device, self.kernels)
        rule = self.acceptance
        self.rule = choices.acceptance(rule, self.sampling, self.seed) if rule is None or isinstance(rule, str) else rule
        self.target = open_checkpoint(self.folder)
        self.draft = self.open_drafter()
        self.type = self.target.dtype() if self.dtype is None else type_of(self.dtype)
        self.memory = self.counted()
        allowed = available(self.device) if self.limit is None else self.limit
        if self.memory.peak > allowed:
            raise MemoryRefused(
                f"{self.memory}; but {size(allowed)} are there; give fewer slots, a shorter cache or a smaller type"
            )

    def check_numbers(self) -> None:
        """Raises: ParameterError, Unsupported."""
        for name, value in (("slots", self.slots), ("cache", self.cache), ("drafts", self.drafts), ("rows", self.rows)):
            if value < 1:
                raise ParameterError(f"{name} came as {value}; give 1 or more")
        check_device(self.device)

    def open_drafter(self) -> Checkpoint | None:
        """The drafter's checkpoint, where it is a folder; through its text where it has another tokenizer than the target.

        Raises: TokenizerMismatch, and as `open_checkpoint`.
        """
        self.texts: tuple[Bare, Bare] | None = None
        ours = self.tokenizer(self.target)
        if not choices.is_folder(self.drafter):
            return None
        found = open_checkpoint(str(self.drafter))
        theirs = self.tokenizer(found)
        if ours is None or theirs is None:
            return found  # whose number of tokens the drafter compares
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

    def build(self, target: Model, draft: Model | None) -> Watched:
        """The engine on these models. Raises: Unsupported, ParameterError, RingOverflow."""
        drafting = choices.Drafting(
            self.drafts, self.rows, self.tree, self.rule.divides, self.sampling, self.seed, self.slots, self.cache, self.texts
        )
        drafter = choices.drafter(self.drafter, target, draft, drafting, self.operations)
        method = self.method
        if method is None or isinstance(method, str):
            method = choices.method(method, drafter)
        choices.check_fit(drafter, self.rule, method)
        cache = self.cache + drafter.nodes - 1  # the last window may reach beyond the last token
        return self.engine(target, drafter, method, self.rule, operations=self.operations, slots=self.slots, cache=cache)

    def counted(self) -> Memory:
        """What it takes, from an engine on tensors without memory."""
        folders = [found for found in (self.target, self.draft) if found is not None]
        plans = [Plan(self.type) for _ in folders]
        models = [found.family.assemble(found.config, plan) for found, plan in zip(folders, plans, strict=True)]
        engine = self.build(models[0], models[1] if len(models) > 1 else None)
        weights = sum(plan.bytes for plan in plans)
        reading = max(found.peak_bytes(self.type) - plan.bytes for found, plan in zip(folders, plans, strict=True))
        return Memory(weights, reading, engine.target.pools.bytes + engine.drafter.held)

    def load(self) -> "Generator":
        """Read the weights. Raises: BrokenFile."""
        from .api import Generator

        draft = None if self.draft is None else self.draft.load(self.type, self.device)
        engine = self.build(self.target.load(self.type, self.device), draft)
        return Generator(engine, self.tokenizer(self.target))


def type_of(name: torch.dtype | str) -> torch.dtype:
    """Raises: ParameterError."""
    if isinstance(name, torch.dtype):
        return name
    return STORAGE[choices.chosen("type", name, STORAGE)]


def available(device: str) -> int:
    """The bytes that are free on a device; on a CPU those of the machine, where the system does not tell what is free."""
    if device.startswith("cuda"):
        return int(torch.cuda.mem_get_info(device)[0])
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 2**63


def size(count: int) -> str:
    """Bytes, as a person reads them."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} B"
