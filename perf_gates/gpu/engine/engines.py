"""Engines for the steps of `named`: random weights on the device, started sequences, drafts, and forced acceptance.

The drafter's forward passes run and are timed; acceptance is forced, after the logits are read as usual, so that a given tau
can be combined with the time. Nothing is prefilled: states and caches are zeros, which take as long.
"""

import gc
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

import torch

from perf_gates.gpu.clock import is_compiling

from ..kernels import ablation
from . import work
from .named import Step, fixed, png

ROOM = 512
"""Most tokens that a sequence may get while it is timed."""
MANY = 64
"""From this number of rows on a ring has the papers' size: 16 tokens and a window."""

_models: dict[tuple[str, str], Any] = {}


def engine(module: str, name: str) -> Any:
    """A function of the engine, by name."""
    return getattr(import_module(f"ssmspec_fast.{module}"), name)


def model_of(name: str, device: str) -> Any:
    """A model with random weights; while kernels are compiled, two blocks of each kind that it has."""
    key = name, device
    if key not in _models:
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        made = small_model if is_compiling() else engine("bench.models", "random_model")
        _models[key] = made(name, dtype, device)
    return _models[key]


def small_model(name: str, dtype: torch.dtype, device: str) -> Any:
    """Two blocks of each kind of a model: they launch everything that all of its blocks launch."""
    family, config = engine("bench.models", "family_of")(name)
    small = replace(config, blocks=tuple(block for kind in dict.fromkeys(config.blocks) for block in (kind, kind)))
    return family.assemble(small, engine("bench.models", "Random")(dtype, device))


def keep(step: Step, device: str) -> None:
    """Frees the models that a step does not need, and what earlier steps left: cuBLAS holds memory for every stream
    that it ran on, which would count as the step's."""
    for key in [key for key in _models if key[0] not in (step.model, step.drafter)]:
        del _models[key]
    gc.collect()
    if device == "cuda":
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()


def operations_of(step: Step, device: str) -> Any:
    if step.ablated:
        return ablation.operations(step.ablated)
    return engine("bench.steps", "operations_of")(torch.device(device))


def built(step: Step, device: str, operations: Any, recorder: Any) -> Any:
    """An engine whose sequences have begun."""
    model = model_of(step.model, device)
    subject = engine("bench.subjects", "Subject")(
        step.model, step.method, step.tokens, step.batch, step.drafts, step.parents, step.emitted
    )
    forced, drafter = engine("bench.subjects", "Forced")(subject, model), drafter_of(step, subject, device, operations)
    sizes = {"slots": step.batch, "cache": step.context + ROOM}
    found = engine("engine.loop", "Engine")(
        model, drafter, method_of(step), forced, operations=operations, graphs=recorder, **sizes
    )
    sequences = found.begin(engine("engine.requests", "Settings")(ROOM))
    slots = torch.arange(step.batch, device=model.device)
    prompt = [i % 61 for i in range(step.context + 1)]
    for slot in range(step.batch):
        sequences.add(slot, [slot % 61, *prompt[1:]], 2**40, slot)
    for decoder in (found.target, getattr(drafter, "decoder", None)):
        if decoder is not None:
            decoder.method.start(decoder.pools, slots)
            decoder.pools.length[: step.batch] = step.context
    return found


def method_of(step: Step) -> Any:
    """As in the engine's benchmark, except that the ring has the papers' size for many rows, and for single tokens."""
    if step.method == "buffer" and (step.batch >= MANY or step.tokens == 1):
        return engine("methods.replay_buffer", "ReplayBuffer")(work.RING + step.tokens)
    return engine("bench.subjects", "METHODS")[step.method](step.drafts)


def drafter_of(step: Step, subject: Any, device: str, operations: Any) -> Any:
    """Neighbours in the vocabulary, n-grams with a table as a fallback, or a model."""
    target = model_of(step.model, device)
    if not step.shape:
        return engine("bench.subjects", "Neighbours")(subject, target)
    if step.shape.startswith("PNG"):
        tokens, drafts = png(step.shape)
        rows = target.config.vocabulary, drafts, tokens
        table = torch.randint(target.config.vocabulary, rows, device=target.device)
        return engine("draft.ngram", "NGram")(tokens, drafts, table, trees=step.parents is not None)
    model, (kind, _, size) = model_of(step.drafter, device), step.shape.partition(" ")
    given = {"slots": step.batch, "cache": step.context + ROOM}
    if kind == "beam":
        return engine("draft.beam", "BeamDrafter")(model, *map(int, size.split("x")), operations, **given)
    parents = engine("draft.shapes", "chain")(step.tokens - 1) if kind == "chain" else fixed(size)
    return engine("draft.model", "ModelDrafter")(model, parents, operations, trees=kind == "tree", **given)


def stepping(step: Step, made: Any, device: str) -> Callable[[], object]:
    """What is timed: the step as it runs, a replay; each one continues from the previous one."""
    slots = torch.arange(step.batch, device=made.model.device)
    if not step.alone:
        found: Callable[[], object] = engine("bench.steps", "stepping")(made, slots)
        return ablation.with_copies(made.operations, found) if step.ablated else found

    def draft() -> object:
        return made.drafter.propose(made.sequences, engine("engine.graphs", "awake")(made.sequences, slots))

    if made.recorder is None:
        return draft
    replay: Callable[[], object] = made.recorder(draft)[1]
    return replay


def work_of(step: Step, target: Any, device: str) -> work.Work:
    """The bytes and products of a step of a model, its drafter's among them."""
    bytes_of = engine("bench.models", "weight_bytes")
    if not step.drafter:
        return work.of(step, target, bytes_of(target))
    return work.of(step, target, bytes_of(target), bytes_of(model_of(step.drafter, device)), forwards(step))


def forwards(step: Step) -> int:
    """The forward passes of a drafter for a window: one for each level that has drafts below it."""
    kind, _, size = step.shape.partition(" ")
    if kind == "beam":
        return int(size.split("x")[1])
    shapes = import_module("ssmspec_fast.draft.shapes")
    return len(shapes.Shape(step.parents or shapes.chain(step.tokens - 1)).levels)
