"""Runs of the engine with the logits behind every token, for whoever judges whether a run is plain decoding's."""

import functools
import hashlib
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .accept import Acceptance
from .checkpoint import load, weight_files
from .decoder import Decoder
from .draft import Drafter
from .engine import Request, Settings
from .graphs import CUDARecorder, Recorder
from .methods.plain import Plain
from .operations import Operations
from .operations.torch_ops import TorchOperations
from .parts import Parts
from .sequences import Sequences, new_sequences
from .tokenizer import Tokenizer
from .watch import Counts, Seen, Watched, count
from .window import Proposal, Verdict, Window

CHUNK = 64


@dataclass(frozen=True)
class Trace:
    """By prompt: the tokens emitted, and the logits (n, i) in fp32 that each was chosen from; and the windows' statistics.

    The last window of a request, which its end may cut, is not counted. `steps` are windows of the whole batch.
    """

    tokens: tuple[tuple[int, ...], ...]
    logits: tuple[np.ndarray, ...]
    statistics: Counts
    steps: int


class Kept(Acceptance):
    """A rule that keeps the logits of what stands, by verdict, since a graph fills both again; otherwise the one inside."""

    def __init__(self, inner: Acceptance) -> None:
        self.inner, self.name = inner, inner.name
        self.logits: dict[int, Tensor] = {}

    def __call__(self, proposal: Proposal, logits: Tensor, sequences: Sequences, operations: Operations) -> Verdict:
        verdict = self.inner(proposal, logits, sequences, operations)
        self.logits[id(verdict)] = logits[verdict.row[:, None], verdict.run.path.clamp_min(0)]
        return verdict

    def check(self, drafter: Drafter) -> None:
        self.inner.check(drafter)


class Traced(Watched):
    """An engine that collects the windows and the logits of every request.

    It serves many and records few shapes: steps of all slots, a quarter and a sixteenth of them, and prompts that join by
    eighths.
    """

    def __init__(self, model: Any, drafter: Any, method: Any, acceptance: Any, **options: Any) -> None:
        self.kept = Kept(acceptance)
        super().__init__(model, drafter, method, self.kept, **options)
        self.steps = 0
        self.logits: dict[int, list[Tensor]] = defaultdict(list)
        self.windows: dict[int, list[Seen]] = defaultdict(list)
        self.show = lambda seen: self.windows[seen.request].append(seen)

    def padded(self, running: int) -> int:
        return next(n for share in (16, 4, 1) if (n := -(-self.slots // share)) >= running)

    def join(self, waiting: list[Request], running: dict[int, Request], sequences: Sequences, settings: Settings) -> None:
        free = self.slots - len(running)
        if not running or free >= min(len(waiting), -(-self.slots // 8)):
            super().join(waiting, running, sequences, settings)

    def step(self, running: dict[int, Request], sequences: Sequences) -> None:
        numbers = {slot: request.number for slot, request in running.items()}
        if self.graphs is None:
            self.kept.logits.clear()
        super().step(running, sequences)
        verdict = self.last.verdict
        assert verdict is not None
        self.steps += 1
        stood = self.kept.logits[id(verdict)][verdict.run.tokens >= 0].cpu()
        rows = torch.split(stood, verdict.run.advanced.tolist())
        for slot, logits in zip(verdict.slots.tolist(), rows, strict=True):
            if slot in numbers:
                self.logits[numbers[slot]].append(logits)


def run(
    folder: str | Path,
    prompts: Sequence[str],
    budget: int,
    *,
    graphs: Recorder | bool = False,
    slots: int | None = None,
    **given: Any,
) -> Trace:
    """Greedy runs of `budget` tokens each, whatever they say, so many `slots` at once (None: all); over `graphs` where asked.

    `given` as for `api.load`. Raises: as there.
    """
    encode = Tokenizer(folder).encode
    tokens = [encode(prompt) for prompt in prompts]
    room = {"slots": len(prompts) if slots is None else slots, "cache": max(map(len, tokens)) + budget}
    recorder = CUDARecorder() if graphs is True else graphs or None
    made: Any = functools.partial(Traced, graphs=recorder)
    engine = Parts(folder, engine=made, **room | given).load().engine
    assert isinstance(engine, Traced)
    began = time.perf_counter()
    results = engine.generate(tokens, Settings(budget))
    seconds = time.perf_counter() - began
    logits = tuple(torch.cat(engine.logits[n]).numpy() for n in range(len(prompts)))
    whole = [seen for n in range(len(prompts)) for seen in engine.windows[n][:-1]]
    return Trace(tuple(r.tokens for r in results), logits, count(whole, seconds), engine.steps)


@torch.no_grad()
def exact(folder: str | Path, prompt: str, output: Sequence[int], device: str = "cpu") -> np.ndarray:
    """The float64 logits (n, i) from which each token of the output is chosen: one forward of the plain operations."""
    model, begin = load(folder, torch.float64, device), Tokenizer(folder).encode(prompt)
    tokens = [*begin, *output][:-1]
    decoder = Decoder(model, Plain(), TorchOperations(), slots=1, cache=len(tokens))
    sequences = new_sequences(1, len(tokens) + 1, (), (), model.device)
    slots, found = torch.zeros(1, dtype=torch.int64, device=model.device), []
    for first in range(0, len(tokens), CHUNK):
        part = torch.tensor([tokens[first : first + CHUNK]], device=model.device)
        found.append(decoder.verify(decoder.feed(Window(part, slots), sequences))[0])
        decoder.pools.length += part.shape[1]
    return torch.cat(found)[len(begin) - 1 :].double().cpu().numpy()


def digest(folder: str | Path) -> str:
    """A hash over config and weights: results of other checkpoints can be told from these."""
    files = [Path(folder) / "config.json", *weight_files(Path(folder))]
    return hashlib.sha256(b"".join(hashlib.sha256(file.read_bytes()).digest() for file in files)).hexdigest()[:16]
