"""Launches of one step over the kernels, counted without a device: prints, by method, those of a layer and those of a step.

Tensors have shapes and no data, so that a step that waits for a value, or whose shapes follow from one, fails here. A launch
is a kernel of ours, or an operation of PyTorch that is no view and fills no room.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from conformance.suite.graph.tape import Tape
from perf_gates.gpu.kernels import ablation
from perf_gates.static.capture import Launch, recorded
from ssmspec_fast.bench.models import random_model
from ssmspec_fast.bench.subjects import METHODS, Neighbours, Subject, tree_of
from ssmspec_fast.draft.model import ModelDrafter
from ssmspec_fast.draft.ngram import NGram, PromptLookup
from ssmspec_fast.draft.shapes import TREE_A, chain
from ssmspec_fast.engine.graphs import awake
from ssmspec_fast.engine.loop import Engine
from ssmspec_fast.engine.sequences import new_sequences
from ssmspec_fast.engine.window import Proposal, Window
from ssmspec_fast.operations.triton_ops import TritonOperations

MODEL = "mamba2-2.7b"
SUBJECTS = {
    "plain": Subject(MODEL, "plain"),
    "snapshots": Subject(MODEL, "snapshots", 7),
    "joint": Subject(MODEL, "joint", 7),
    "joint, 2 drafts": Subject(MODEL, "joint", 7, drafts=2),
    "replay": Subject(MODEL, "replay", 7),
    "buffer": Subject(MODEL, "buffer", 7),
    "tree": Subject(MODEL, "tree", 13, parents=tree_of(13)),
    "tree of 63": Subject(MODEL, "tree", 63, parents=tree_of(63)),
    "replay, 2 drafts": Subject(MODEL, "replay", 7, drafts=2),
}
ABLATED = ("chunk scan", "eager copy", "chunk scan, eager copy")
DRAFTERS: dict[str, Any] = {
    "n-gram": lambda small: NGram(6),
    "lookup": lambda small: PromptLookup(6),
    "model, chain of 4": lambda small: ModelDrafter(small, chain(4), TritonOperations(), slots=2, cache=64),
    "model, tree A": lambda small: ModelDrafter(small, TREE_A, TritonOperations(), slots=2, cache=64),
}


@contextmanager
def counted() -> Iterator[tuple[list[Launch], Tape]]:
    with recorded() as launches, Tape() as tape:
        yield launches, tape


def step(subject: Subject, layers: int) -> tuple[int, int]:
    """Kernels and operations of a step of one sequence, drafting left out."""
    launches, tape = launched(subject, layers, TritonOperations())
    return len(launches), len(tape.done)


def launched(subject: Subject, layers: int, operations: Any) -> tuple[list[Launch], Tape]:
    model = random_model(MODEL, device="meta", layers=layers)
    drafter = Neighbours(subject, model)
    engine = Engine(model, drafter, METHODS[subject.method](subject.drafts), operations=operations, slots=1, cache=64)
    sequences = new_sequences(1, 80, (0,), (), "meta")
    proposal = drafter.propose(sequences, torch.empty(1, dtype=torch.int64, device="meta"))
    with counted() as (launches, tape):
        engine.judge(proposal, sequences)
    return launches, tape


def silent(method: str) -> list[str]:
    """The launches of a step of a method for windows of 7 or 13 that is given a root alone."""
    model, subject = random_model(MODEL, device="meta", layers=2), SUBJECTS[method]
    made = METHODS[subject.method](1)
    engine = Engine(model, Neighbours(subject, model), made, operations=TritonOperations(), slots=1, cache=64)
    sequences, slots = new_sequences(1, 80, (0,), (), "meta"), torch.empty(1, dtype=torch.int64, device="meta")
    with counted() as (launches, tape):
        engine.judge(Proposal(Window(torch.zeros_like(slots)[:, None], slots, settled=True)), sequences)
    return [launch.name for launch in launches] + [str(done[0]) for done in tape.done]


def drafting(name: str, layers: int) -> int:
    """All launches of a proposal for two rows."""
    drafter = DRAFTERS[name](random_model("mamba2-130m", device="meta", layers=layers))
    sequences = new_sequences(2, 80, (0,), (), "meta")
    slots = torch.empty(2, dtype=torch.int64, device="meta")
    with counted() as (launches, tape):
        drafter.propose(sequences, awake(sequences, slots))
    return len(launches) + len(tape.done)


@torch.no_grad()
def main() -> None:
    found: dict[str, Any] = {}
    for name, subject in SUBJECTS.items():
        (few_kernels, few), (kernels, operations) = step(subject, 1), step(subject, 2)
        layer = [kernels - few_kernels, operations - few]
        found[name] = {"layer": layer, "step": [few_kernels - layer[0], few - layer[1]]}
    for name in DRAFTERS:
        found[name] = drafting(name, 1)
    for name in ABLATED:
        launches, tape = launched(SUBJECTS["joint, 2 drafts"], 1, ablation.operations(name))
        copies = sum("index_select" in str(done) for done in tape.done)
        found[name] = {"kernels": [launch.name for launch in launches], "copies": copies}
    found["silent"] = {method: silent(method) for method in ("plain", "replay", "tree", "buffer", "joint")}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
