"""The ways of decoding that a table compares, and an engine for each; the engine is loaded by its names."""

import gc
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import torch

from .forced import Forced

SEED = 0
PLAIN, FORCED, CHOSEN = "plain", "forced", "chosen"


@dataclass(frozen=True)
class Way:
    """How is drafted and verified: as the options of `ssmspec generate`. `longest`: the longest suffix of prompt lookup."""

    name: str
    drafter: str | None = None
    drafts: int = 4
    tree: str | None = None
    method: str | None = None
    rule: str | None = None
    temperature: float = 0.0
    choose: bool = False
    longest: int = 3

    @property
    def how(self) -> str:
        return PLAIN if self.drafter is None else CHOSEN if self.choose else FORCED

    def chosen(self) -> "Way":
        return replace(self, choose=True)

    def sampled(self, temperature: float, rule: str = "naive") -> "Way":
        return replace(self, temperature=temperature, rule=rule)


def plain_at(temperature: float) -> Way:
    """Plain decoding, greedy or sampled."""
    return Way("plain") if temperature == 0 else Way("plain").sampled(temperature)


@dataclass(frozen=True)
class Room:
    """Sequences at once, and the most tokens of one."""

    slots: int
    cache: int


@dataclass(frozen=True)
class Models:
    """A target and, for ways that draft by a model, drafters by name."""

    target: Any
    drafters: dict[str, Any]


def dtype_of(device: str) -> torch.dtype:
    return torch.bfloat16 if device == "cuda" else torch.float32


def engine(module: str, name: str) -> Any:
    """Something of the engine, by name."""
    return getattr(import_module(f"ssmspec_fast.{module}"), name)


def built(way: Way, models: Models, room: Room, texts: Any = None) -> Any:
    """An engine in fast mode, with graphs on a GPU; `texts` (n, l) force the tokens."""
    choices, target = import_module("ssmspec_fast.cli.choices"), models.target
    sampling = engine("accept.processors", "Sampling")(way.temperature) if way.temperature else None
    rule = choices.acceptance(way.rule, sampling, SEED)
    cuda = target.device.type == "cuda"
    operations = choices.operations("fast", target.device.type)
    own = models.drafters.get(way.drafter or "")
    given: Any = "a model" if own is not None else way.drafter
    if way.drafter == "lookup":
        given = engine("draft.ngram", "PromptLookup")(way.drafts, way.longest)
    more = {"tree": way.tree, "samples": rule.divides, "sampling": sampling, "seed": SEED, "choose": way.choose}
    drafting = choices.Drafting(way.drafts, slots=room.slots, cache=room.cache, **more)
    drafter = choices.drafter(given, target, own, drafting, operations)
    method = choices.method(way.method, drafter)
    choices.check_fit(drafter, rule, method)
    recorder = engine("engine.graphs", "CUDARecorder")() if cuda else None
    return engine("engine.loop", "Engine")(
        target, drafter, method, rule if texts is None else Forced(rule, texts), operations=operations, slots=room.slots,
        cache=room.cache + drafter.nodes - 1, graphs=recorder,
    )  # fmt: skip


def freed() -> None:
    """Frees what an engine held: its graphs and tensors refer to each other."""
    gc.collect()
    if torch.cuda.is_available():
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
