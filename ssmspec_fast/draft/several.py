"""Several drafters in one engine: a request names its own, and how many tokens it drafts at most.

    row b: the window of its own drafter, cut to its own number of drafts                                   (1)
    each drafter sees the rows of its own requests alone; the others are padding to it                      (2)

By (2) the state of a drafter follows its own requests only: it reads a prompt when such a request begins, and nothing of a
request that names another. Windows keep one shape, so that steps can be recorded.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ssmspec_ref.errors import ParameterError, Unsupported

from ..engine.decoder import Decoder
from ..engine.prefill import Piece
from ..engine.requests import Settings
from ..engine.sequences import Sequences
from ..engine.window import Proposal, Window
from ..models.model import Model
from ..operations.slots import index
from . import Drafter


class Several(Drafter):
    """Drafters by name; the first is that of requests that name none. Each proposes one chain of point masses.

    Raises: ParameterError (none), Unsupported (a drafter of trees, of several rows or shapes, of draws, or that needs the
    verdicts of all rows).
    """

    def __init__(self, named: Mapping[str, Drafter]) -> None:
        if not named:
            raise ParameterError("there is no drafter; give at least one, by its name")
        for name, one in named.items():
            plain = not one.trees and one.drafts == 1 and tuple(one.every_shape()) == (None,) and one.law == "point_mass"
            if not plain or type(one).observe is not Drafter.observe:
                raise Unsupported(
                    f"requests cannot choose the drafter {name}: it must propose one chain of most probable tokens; give "
                    "ngram, lookup or a checkpoint, without tree and rows, and the acceptance rule naive"
                )
        self.named, self.names = dict(named), tuple(named)
        self.nodes = max(one.nodes for one in named.values())
        self.on_device = all(one.on_device for one in named.values())
        self.follows = any(one.follows for one in named.values())
        self.reads = min((one.reads for one in named.values() if one.reads is not None), default=None)
        for one in named.values():
            if one.decoder is not None:
                self.decoder = one.decoder

    @property
    def held(self) -> int:
        return sum(one.held for one in self.named.values())

    def check(self, model: Model) -> None:
        for one in self.named.values():
            one.check(model)

    def attach(self, decoder: Decoder) -> None:
        for one in self.named.values():
            one.attach(decoder)

    def takes(self, settings: Settings) -> None:
        """Raises: ParameterError for a name that does not exist, or more drafts than a window holds."""
        if settings.drafter is not None and settings.drafter not in self.named:
            raise ParameterError(f"there is no drafter {settings.drafter!r}; name one of {', '.join(self.names)}")
        if settings.drafts is not None and settings.drafts > self.nodes - 1:
            raise ParameterError(f"drafts is {settings.drafts}; windows hold {self.nodes - 1} at most")

    def start(self, sequences: Sequences, slots: Tensor) -> None:
        owners = sequences.drafter[slots].tolist()
        for number, one in enumerate(self.named.values()):
            mine = [slot for slot, owner in zip(slots.tolist(), owners, strict=True) if owner == number]
            if mine:
                one.start(sequences, torch.tensor(mine, device=slots.device))

    def read_ahead(self, sequences: Sequences, pieces: Sequence[Piece]) -> None:
        for number, one in enumerate(self.named.values()):
            mine = [piece for piece in pieces if int(sequences.drafter[piece.slot]) == number]
            if mine:
                one.read_ahead(sequences, mine)

    def own(self, number: int, sequences: Sequences, slots: Tensor) -> Tensor:
        """The rows of a drafter; -1 in place of the others (2)."""
        return torch.where(sequences.drafter[index(slots)] == number, slots, -1)

    def most(self, sequences: Sequences, slots: Tensor) -> Tensor:
        """The most drafts of each row (b)."""
        return sequences.drafts[index(slots)]

    def catch_up(self, sequences: Sequences, slots: Tensor) -> None:
        for number, one in enumerate(self.named.values()):
            one.catch_up(sequences, self.own(number, sequences, slots))

    def propose(self, sequences: Sequences, slots: Tensor) -> Proposal:
        tokens = torch.zeros((len(slots), self.nodes), dtype=torch.int64, device=slots.device)
        tokens[:, 0] = sequences.roots(slots)
        lengths = torch.ones(len(slots), dtype=torch.int64, device=slots.device)
        for number, one in enumerate(self.named.values()):
            mine = self.own(number, sequences, slots)
            window = one.propose(sequences, mine).window
            long = torch.full_like(lengths, window.tokens.shape[1]) if window.lengths is None else window.lengths
            wide = torch.nn.functional.pad(window.tokens.long(), (0, self.nodes - window.tokens.shape[1]))
            tokens = torch.where((mine >= 0)[:, None], wide, tokens)
            lengths = torch.where(mine >= 0, long.long(), lengths)
        return Proposal(Window(tokens, slots, torch.minimum(lengths, 1 + self.most(sequences, slots))))  # (1)

    def release(self, slots: Tensor) -> None:
        for one in self.named.values():
            one.release(slots)
