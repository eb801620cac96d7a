"""Drafters: what they read, what they must provide, and what an engine may ask of them."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from ssmspec_ref.errors import ParameterError

from ..engine.prefill import Piece
from ..engine.requests import Settings
from ..engine.rounds import Outcome
from ..engine.sequences import Sequences
from ..engine.window import Proposal, Verdict

if TYPE_CHECKING:
    from ..engine.decoder import Decoder
    from ..models.model import Model


class Drafter(ABC):
    """Reads the tokens of the sequences, never the target's state. A subclass defines `nodes` and `propose`. The other
    defaults are right for a drafter that keeps no state, proposes one chain of one shape for each sequence, and needs the
    host.

    nodes      t of every window, the root included
    law        the distribution that drafts are drawn from, as `Proposal.law`
    drafts     rows of a sequence
    trees      whether windows are trees
    on_device  whether it proposes by launches of fixed shapes only, so that they can be recorded (`graphs`)
    follows    whether it keeps a state that follows the accepted tokens
    reads      for such a state, how many unread tokens `propose` and `catch_up` read at most; None: any number
    names      the drafters that a request may name, if there are several (`several.Several`)
    decoder    that of its own model, if it has one
    """

    nodes: int
    law = "point_mass"
    drafts = 1
    trees = False
    on_device = False
    follows = False
    reads: tuple[int, int] | None = None
    names: tuple[str, ...] = ()
    decoder: "Decoder | None" = None

    @property
    def innermost(self) -> "Drafter":
        """The drafter without those around it."""
        return self

    @property
    def depth(self) -> int:
        """The most drafts along a path of its windows."""
        return self.nodes - 1

    @property
    def held(self) -> int:
        """The bytes of its own states and caches."""
        return 0

    def check(self, model: "Model") -> None:  # noqa: B027
        """Checks that it can serve this target. Raises: an error if it cannot."""

    def takes(self, settings: Settings) -> None:
        """Checks the settings of a request. Raises: ParameterError for its own drafter or number of drafts, unless there are
        several to choose from."""
        if settings.drafts is not None or settings.drafter is not None:
            raise ParameterError(
                f"a request has drafts={settings.drafts} and drafter={settings.drafter}, but all requests of this engine "
                "draft alike; omit them, or give the drafters by name: drafter={'ngram': 'ngram'}"
            )

    def attach(self, decoder: "Decoder") -> None:  # noqa: B027
        """Receives the target's decoder, for a drafter that reads the input of the target's head."""

    def start(self, sequences: Sequences, slots: Tensor) -> None:  # noqa: B027
        """Called when sequences begin in these slots; their prompts are in `sequences`."""

    def read_ahead(self, sequences: Sequences, pieces: Sequence[Piece]) -> None:  # noqa: B027
        """Called with pieces of prompts that are being read, before `start` is called for their slots."""

    def catch_up(self, sequences: Sequences, slots: Tensor) -> None:  # noqa: B027
        """Reads the tokens of windows that it did not propose, before it proposes again; only if `reads` says how many."""

    @abstractmethod
    def propose(self, sequences: Sequences, slots: Tensor) -> Proposal:
        """A window for each slot, root first; negative slots are padding."""

    def observe(self, sequences: Sequences, proposal: Proposal, verdict: Verdict) -> None:  # noqa: B027
        """Called with the verdict on the last proposal; `sequences` includes the new tokens."""

    def release(self, slots: Tensor) -> None:  # noqa: B027
        """Called when sequences leave these slots."""

    def choose_shape(self, rows: int) -> int | None:
        """The number of the next window's shape, for `rows` rows; None if there is only one shape."""
        return None

    def silent(self, shape: int | None) -> bool:
        """Whether windows of a shape are roots alone, which a method may leave to plain decoding (`Window.settled`)."""
        return False

    def every_shape(self) -> Iterable[int | None]:
        """Chooses and yields each shape in turn, for recording before any request; empty if shapes are recorded on first
        use."""
        return (None,)

    def read_round(self, outcome: Outcome) -> None:  # noqa: B027
        """Called one step late with the outcome of a step."""
