"""Statistics and streamed output of every window: read after a step, from what the step left on the device."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from ..draft import Drafter
from ..draft.wrapper import Wrapper
from .loop import Engine
from .requests import Request
from .sequences import Sequences
from .window import Proposal, Verdict


class EmittedWindow(NamedTuple):
    """One window of one request: what it emitted, of which the first `accepted` were drafts.

    `drafted` counts its drafts. `whole`: no draft follows the last accepted one: the whole chain was accepted,
    or the tree down to a leaf. `logits` (n, i) are those that the tokens were chosen from, if the engine keeps them.
    """

    request: int
    tokens: tuple[int, ...]
    drafted: int
    whole: bool
    logits: Tensor | None = None

    @property
    def accepted(self) -> int:
        return max(0, len(self.tokens) - 1)


@dataclass(frozen=True)
class Counts:
    """Counts over some windows. `none`, `some`, `all`: windows with drafts, by how much of them was accepted."""

    windows: int = 0
    emitted: int = 0
    drafted: int = 0
    histogram: tuple[int, ...] = ()
    none: int = 0
    some: int = 0
    all: int = 0
    seconds: float = 0.0

    @property
    def tau(self) -> float:
        """Tokens emitted for each call of the target, the bonus token included."""
        return self.emitted / self.windows if self.windows else 0.0

    @property
    def per_second(self) -> float:
        return self.emitted / self.seconds if self.seconds else 0.0


def count(seen: Iterable[EmittedWindow], seconds: float = 0.0) -> Counts:
    """`histogram[a]` counts the windows that accepted `a` drafts."""
    windows = list(seen)
    most = max((w.accepted for w in windows), default=-1)
    histogram = [0] * (most + 1)
    for window in windows:
        histogram[window.accepted] += 1
    drafts = [w for w in windows if w.drafted]
    none = sum(w.accepted == 0 for w in drafts)
    every = sum(w.accepted > 0 and w.whole for w in drafts)
    emitted, drafted = sum(len(w.tokens) for w in windows), sum(w.drafted for w in windows)
    return Counts(len(windows), emitted, drafted, tuple(histogram), none, len(drafts) - none - every, every, seconds)


class LastWindow(Wrapper):
    """Wraps a drafter and keeps its last proposal and verdict."""

    def __init__(self, inner: Drafter) -> None:
        super().__init__(inner)
        self.proposal: Proposal | None = None
        self.verdict: Verdict | None = None

    def observe(self, sequences: Sequences, proposal: Proposal, verdict: Verdict) -> None:
        self.proposal, self.verdict = proposal, verdict
        super().observe(sequences, proposal, verdict)


class StreamingEngine(Engine):
    """An engine that passes every window to its request's `show` as soon as it is decided."""

    def __init__(self, model: Any, drafter: Drafter, *more: Any, **options: Any) -> None:
        self.last = LastWindow(drafter)
        super().__init__(model, self.last, *more, **options)

    def logits(self, verdict: Verdict) -> Tensor | None:
        """The logits of the last step's verdict (n, t, i), if they are kept."""
        return None

    def step(self, running: dict[int, Request], sequences: Sequences) -> None:
        super().step(running, sequences)
        shown = {request.number: request for request in running.values() if request.show is not None}
        if not shown or self.last.proposal is None or self.last.verdict is None:
            return
        numbers, logits = {s: r.number for s, r in running.items()}, self.logits(self.last.verdict)
        for seen in emitted_windows(self.last.proposal, self.last.verdict, numbers, logits):
            request = shown.get(seen.request)
            if request is not None and request.show is not None and request.fault is None:
                try:
                    request.show(seen)
                except Exception as error:  # the caller's code
                    request.fault = error


def emitted_windows(
    proposal: Proposal, verdict: Verdict, numbers: dict[int, int], logits: Tensor | None = None
) -> Iterable[EmittedWindow]:
    """The windows of the running sequences, row by row."""
    run, live, parents = verdict.run, proposal.window.live()[verdict.row], proposal.window.tree()[verdict.row]
    last = run.path.gather(1, (run.advanced - 1).clamp_min(0).long()[:, None])
    below = (live & (parents == last) & (run.advanced > 0)[:, None]).any(1)
    columns = (verdict.slots, run.tokens, run.advanced, live.sum(1) - 1, ~below)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for row, (slot, tokens, advanced, drafted, whole) in enumerate(rows):
        if slot in numbers:
            chosen = None if logits is None else logits[row, :advanced]
            yield EmittedWindow(numbers[slot], tuple(tokens[:advanced]), drafted, whole, chosen)
