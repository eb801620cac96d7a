"""What became of every window, for streams and statistics: read behind a step, from what the step left on the device."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from .draft import Drafter
from .draft.around import Around
from .engine import Engine
from .requests import Request
from .sequences import Sequences
from .window import Proposal, Verdict


class Seen(NamedTuple):
    """One window of one request: what it emitted, of which the first `accepted` were drafts.

    `drafted` counts its drafts. `whole` says that nothing drafted stands below the last accepted one: the chain was accepted,
    or the tree down to a leaf.
    """

    request: int
    tokens: tuple[int, ...]
    drafted: int
    whole: bool

    @property
    def accepted(self) -> int:
        return max(0, len(self.tokens) - 1)


@dataclass(frozen=True)
class Counts:
    """Of some windows. `none`, `some`, `all`: windows with drafts by how much of them was accepted."""

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
        """Tokens emitted for each call of the target, the bonus included."""
        return self.emitted / self.windows if self.windows else 0.0

    @property
    def per_second(self) -> float:
        return self.emitted / self.seconds if self.seconds else 0.0


def count(seen: Iterable[Seen], seconds: float = 0.0) -> Counts:
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


class Last(Around):
    """A drafter that keeps hold of the last proposal and verdict; otherwise the one inside."""

    def __init__(self, inner: Drafter) -> None:
        super().__init__(inner)
        self.proposal: Proposal | None = None
        self.verdict: Verdict | None = None

    def observe(self, sequences: Sequences, proposal: Proposal, verdict: Verdict) -> None:
        self.proposal, self.verdict = proposal, verdict
        super().observe(sequences, proposal, verdict)


class Watched(Engine):
    """An engine that shows every window to `show` as it is decided."""

    show: Callable[[Seen], None] | None = None

    def __init__(self, model: Any, drafter: Drafter, *more: Any, **options: Any) -> None:
        self.last = Last(drafter)
        super().__init__(model, self.last, *more, **options)

    def step(self, running: dict[int, Request], sequences: Sequences) -> None:
        super().step(running, sequences)
        if self.show is not None and self.last.proposal is not None and self.last.verdict is not None:
            for seen in windows(self.last.proposal, self.last.verdict, {s: r.number for s, r in running.items()}):
                self.show(seen)


def windows(proposal: Proposal, verdict: Verdict, numbers: dict[int, int]) -> Iterable[Seen]:
    """The windows of the sequences that are there, row by row."""
    run, live, parents = verdict.run, proposal.window.live()[verdict.row], proposal.window.tree()[verdict.row]
    last = run.path.gather(1, (run.advanced - 1).clamp_min(0).long()[:, None])
    below = (live & (parents == last) & (run.advanced > 0)[:, None]).any(1)
    columns = (verdict.slots, run.tokens, run.advanced, live.sum(1) - 1, ~below)
    for slot, tokens, advanced, drafted, whole in zip(*(column.tolist() for column in columns), strict=True):
        if slot in numbers:
            yield Seen(numbers[slot], tuple(tokens[:advanced]), drafted, whole)
