"""A drafter that wraps another one and passes on every call that it does not override."""

from collections.abc import Iterable, Sequence

from torch import Tensor

from ..engine.decoder import Decoder
from ..engine.prefill import Piece
from ..engine.requests import Settings
from ..engine.rounds import Outcome
from ..engine.sequences import Sequences
from ..engine.window import Proposal, Verdict
from ..models.model import Model
from . import Drafter


class Wrapper(Drafter):
    """Proposes what the inner drafter proposes."""

    def __init__(self, inner: Drafter) -> None:
        self.inner = inner
        self.nodes, self.law, self.drafts, self.trees = inner.nodes, inner.law, inner.drafts, inner.trees
        self.on_device, self.follows, self.reads, self.names = inner.on_device, inner.follows, inner.reads, inner.names
        self.decoder = inner.decoder

    @property
    def innermost(self) -> Drafter:
        return self.inner.innermost

    @property
    def held(self) -> int:
        return self.inner.held

    @property
    def depth(self) -> int:
        return self.inner.depth

    def check(self, model: Model) -> None:
        self.inner.check(model)

    def takes(self, settings: Settings) -> None:
        self.inner.takes(settings)

    def attach(self, decoder: Decoder) -> None:
        self.inner.attach(decoder)

    def start(self, sequences: Sequences, slots: Tensor) -> None:
        self.inner.start(sequences, slots)

    def read_ahead(self, sequences: Sequences, pieces: Sequence[Piece]) -> None:
        self.inner.read_ahead(sequences, pieces)

    def catch_up(self, sequences: Sequences, slots: Tensor) -> None:
        self.inner.catch_up(sequences, slots)

    def propose(self, sequences: Sequences, slots: Tensor) -> Proposal:
        return self.inner.propose(sequences, slots)

    def observe(self, sequences: Sequences, proposal: Proposal, verdict: Verdict) -> None:
        self.inner.observe(sequences, proposal, verdict)

    def release(self, slots: Tensor) -> None:
        self.inner.release(slots)

    def choose_shape(self, rows: int) -> int | None:
        return self.inner.choose_shape(rows)

    def silent(self, shape: int | None) -> bool:
        return self.inner.silent(shape)

    def every_shape(self) -> Iterable[int | None]:
        return self.inner.every_shape()

    def read_round(self, outcome: Outcome) -> None:
        self.inner.read_round(outcome)
