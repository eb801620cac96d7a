"""Runs of the engine that keep the logits of every token, to compare with plain decoding."""

import functools
import hashlib
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..accept import Acceptance
from ..draft import Drafter
from ..methods.plain import Plain
from ..models.build import Parts
from ..models.checkpoint import load, weight_files
from ..models.tokenizer import Tokenizer, encoded
from ..operations import Operations
from ..operations.torch_ops import TorchOperations
from .decoder import Decoder
from .emitted_windows import Counts, EmittedWindow, StreamingEngine, count, emitted_windows
from .graphs import CUDARecorder, Recorder
from .requests import Request, Result, Settings
from .sequences import Sequences, new_sequences
from .window import Proposal, Verdict, Window

CHUNK = 64
PROMPTS = 1 << 16
"""Prompt tokens read in one run."""


@dataclass(frozen=True)
class Trace:
    """By prompt: the emitted tokens, and the logits (n, i) in fp32 that each was chosen from; and the windows' statistics.

    The last window of a request, which may be cut short, is not counted. `steps` are windows of the whole batch.
    """

    tokens: tuple[tuple[int, ...], ...]
    logits: tuple[np.ndarray, ...]
    statistics: Counts
    steps: int


class Kept(Acceptance):
    """Wraps an acceptance rule and keeps the logits of the accepted rows, by verdict, because a graph overwrites both."""

    def __init__(self, inner: Acceptance) -> None:
        self.inner, self.name = inner, inner.name
        self.logits: dict[int, Tensor] = {}

    def __call__(self, proposal: Proposal, logits: Tensor, sequences: Sequences, operations: Operations) -> Verdict:
        verdict = self.inner(proposal, logits, sequences, operations)
        self.logits[id(verdict)] = logits[verdict.row[:, None], verdict.run.path.clamp_min(0)]
        return verdict

    def check(self, drafter: Drafter) -> None:
        self.inner.check(drafter)

    def takes(self, settings: Settings) -> None:
        self.inner.takes(settings)


class Traced(StreamingEngine):
    """An engine that collects the windows and the logits of every request.

    It takes many requests and records few shapes: steps of all slots, a quarter and a sixteenth of them, in multiples of
    sixteen, for which a kernel is compiled once; prompts join in eighths of the slots.
    """

    def __init__(self, model: Any, drafter: Any, method: Any, acceptance: Any, **options: Any) -> None:
        self.kept = Kept(acceptance)
        super().__init__(model, drafter, method, self.kept, **options)
        for decoder in (self.target, getattr(drafter, "decoder", None)):
            if decoder is not None:
                decoder.chunk = PROMPTS
        self.moments: list[Moment] = []

    def padded(self, running: int) -> int:
        return next(n for share in (16, 4, 1) if (n := min(self.slots, -(-self.slots // (16 * share)) * 16)) >= running)

    def join(self, waiting: list[Request], running: dict[int, Request], sequences: Sequences) -> None:
        free = self.slots - len(running)
        if not running or free >= min(len(waiting), -(-self.slots // 8)):
            super().join(waiting, running, sequences)

    def step(self, running: dict[int, Request], sequences: Sequences) -> None:
        numbers = {slot: request.number for slot, request in running.items()}
        if self.graphs is None:
            self.kept.logits.clear()
        super().step(running, sequences)
        proposal, verdict = self.last.proposal, self.last.verdict
        assert proposal is not None
        assert verdict is not None
        plain = proposal._replace(q=None)
        self.moments.append(Moment(numbers, copied(plain), copied(verdict), self.kept.logits[id(verdict)].clone()))


class Moment(NamedTuple):
    """A copy of one step's results on the device: graphs overwrite the originals, and the host does not wait to read them."""

    numbers: dict[int, int]
    proposal: Proposal
    verdict: Verdict
    logits: Tensor


def copied(record: Any, to: Callable[[Tensor], Tensor] = torch.clone) -> Any:
    """The same nested record with copied tensors."""
    if isinstance(record, Tensor):
        return to(record)
    if isinstance(record, tuple) and hasattr(record, "_fields"):
        return type(record)(*(copied(part, to) for part in record))
    return record


def on_host(records: list[Any]) -> list[Any]:
    """The records with plain numbers in place of tensors, all fetched from the device in one copy."""
    found: list[Tensor] = []

    def listed(x: Tensor) -> Tensor:
        found.append(x)
        return x

    for record in records:
        copied(record, listed)
    if not found:
        return records
    numbers = torch.split(torch.cat([x.reshape(-1).long() for x in found]).cpu(), [x.numel() for x in found])
    parts = iter([part.view(x.shape) for part, x in zip(numbers, found, strict=True)])
    return [copied(record, lambda x: next(parts).to(x.dtype)) for record in records]


def collected(moments: Sequence[Moment], count: int) -> tuple[list[list[EmittedWindow]], list[list[Tensor]]]:
    """Windows and logits of each of `count` requests."""
    seen: list[list[EmittedWindow]] = [[] for _ in range(count)]
    logits: list[list[Tensor]] = [[] for _ in range(count)]
    if not moments:
        return seen, logits
    stood = torch.cat([(m.verdict.run.tokens >= 0).flatten() for m in moments])
    chosen = torch.cat([m.logits.flatten(0, 1) for m in moments])[stood].cpu()
    proposals, verdicts = on_host([m.proposal for m in moments]), on_host([m.verdict for m in moments])
    first = 0
    for moment, proposal, verdict in zip(moments, proposals, verdicts, strict=True):
        for window in emitted_windows(proposal, verdict, moment.numbers):
            seen[window.request].append(window)
        for slot, advanced in zip(verdict.slots.tolist(), verdict.run.advanced.tolist(), strict=True):
            if slot in moment.numbers:
                logits[moment.numbers[slot]].append(chosen[first : first + advanced])
            first += advanced
    return seen, logits


def run(folder: str | Path, prompts: Sequence[str | Sequence[int]], budget: int, **given: Any) -> Trace:
    """Greedy runs of `budget` tokens each, past any end of sequence; `given` as for `running`. Raises: as `api.load`."""
    (found,) = together([running(folder, prompts, budget, **given)])
    if isinstance(found, Exception):
        raise found
    return found


def running(
    folder: str | Path,
    prompts: Sequence[str | Sequence[int]],
    budget: int,
    *,
    graphs: Recorder | bool = False,
    slots: int | None = None,
    **given: Any,
) -> Generator[None, None, Trace]:
    """A run that yields after every step: `slots` sequences at once (None: all), over `graphs` if given.

    `given` as for `api.load`. Raises: as there.
    """
    tokens = encoded(folder, prompts)
    room = {"slots": len(prompts) if slots is None else slots, "cache": max(map(len, tokens)) + budget}
    recorder = CUDARecorder() if graphs is True else graphs or None
    made: Any = functools.partial(Traced, graphs=recorder)
    engine = Parts(folder, engine=made, **room | given).load().engine
    assert isinstance(engine, Traced)
    began, results = time.perf_counter(), dict[int, Result]()
    for ended in engine.stream_steps(tokens, Settings(budget)):
        results |= ended
        yield
    seconds = time.perf_counter() - began
    seen, logits = collected(engine.moments, len(prompts))
    whole = [window for of in seen for window in of[:-1]]
    parts = tuple(torch.cat(of).numpy() for of in logits)
    return Trace(tuple(results[n].tokens for n in range(len(prompts))), parts, count(whole, seconds), len(engine.moments))


def together(runs: Sequence[Generator[None, None, Trace]]) -> list[Trace | Exception]:
    """Interleaves several runs step by step, each to its end or its error; on a GPU each on its own stream, so that the
    launches of one use the time in which another is idle."""
    found: list[Any] = [None] * len(runs)
    streams = [torch.cuda.Stream() if torch.cuda.is_available() else None for _ in runs]  # type: ignore[no-untyped-call]
    going = dict(enumerate(runs))
    while going:
        for n, one in list(going.items()):
            try:
                with torch.cuda.stream(streams[n]):
                    next(one)
            except StopIteration as end:
                found[n] = end.value
                del going[n]
            except Exception as error:
                found[n] = error
                del going[n]
    return found


class Exact:
    """The float64 forward of a folder's model in plain operations (or that of another `dtype`); its weights are read once."""

    def __init__(
        self, folder: str | Path, device: str = "cpu", accept: Sequence[str] = (), dtype: torch.dtype = torch.float64
    ) -> None:
        self.model, self.folder = load(folder, dtype, device, accept=accept), folder
        self.tokenizer: Tokenizer | None = None

    @torch.no_grad()
    def __call__(self, prompt: str | Sequence[int], output: Sequence[int]) -> np.ndarray:
        """The logits (n, i) from which each token of the output is chosen: one forward."""
        if isinstance(prompt, str):
            self.tokenizer = self.tokenizer or Tokenizer(self.folder)
            prompt = self.tokenizer.encode(prompt)
        begin = list(prompt)
        tokens, device = [*begin, *output][:-1], self.model.device
        decoder = Decoder(self.model, Plain(), TorchOperations(), slots=1, cache=len(tokens))
        sequences = new_sequences(1, len(tokens) + 1, (), (), device)
        slots, found = torch.zeros(1, dtype=torch.int64, device=device), []
        for first in range(0, len(tokens), CHUNK):
            part = torch.tensor([tokens[first : first + CHUNK]], device=device)
            found.append(decoder.verify(decoder.feed(Window(part, slots), sequences))[0])
            decoder.pools.length += part.shape[1]
        return torch.cat(found)[len(begin) - 1 :].double().cpu().numpy()


def digest(folder: str | Path) -> str:
    """A hash over config and weights, which identifies the checkpoint of a result."""
    files = [Path(folder) / "config.json", *weight_files(Path(folder))]
    return hashlib.sha256(b"".join(hashlib.sha256(file.read_bytes()).digest() for file in files)).hexdigest()[:16]
