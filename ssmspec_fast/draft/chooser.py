"""Chooses how many tokens to draft, by the cost of a step at this batch size and by what was accepted of each row.

    a_j(r)  = accepted / offered at place j of row r's windows, older ones weighted less                       (1)
    tau_r(K) = 1 + a_1 + a_1 a_2 + .. + a_1 .. a_K                                                             (2)
    rate(K) = sum_r tau_r(K) / t(batch, tokens of the window)                                                  (3)
    K       = the one with the highest rate; 0 unless that is `margin` above rate(0)                           (4)
    lost    = t(K') - sum_r tau_r(K') / ((1 + margin) rate(K)), for the best K' > K                            (5)

K = 0 is a window of the root alone: plain decoding. A longer window K' than (4) says is tried whenever the time that it is
expected to lose, (5), keeps the sum of such losses below `share` of all time: so the chooser learns when drafting pays again,
and cannot lose much by asking. Rows of a step share one window, so (3) weighs them together; a new row begins with the mean
of the others.

Costs t come from a table, or are the engine's own step times (`costs`). Results are read one round late. K does not change
the distribution of sampled tokens, nor the tokens of greedy decoding and of the rule `naive`. Of the other rules a seed
determines the tokens only if the same K are chosen, which measured times do not repeat.
Source: Snakes and Ladders, section 5.3, which tabulates a plan for each batch size.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import accumulate
from operator import mul

import torch
from torch import Tensor

from ssmspec_ref.errors import ParameterError, Unsupported

from ..engine.prefill import Piece
from ..engine.rounds import Outcome
from ..engine.sequences import Sequences
from ..engine.window import Proposal, Window
from ..models.model import Model
from . import Drafter
from .costs import Costs, StepTimes
from .wrapper import Wrapper

CATCH_UP = -1
"""The shape of a window of the root alone, before which a drafter with a state reads what it has not read."""


class Row:
    """(1) and (2) of one row, from a_1, a_2, .. of other rows. `taus` are those of 0, 1, .. drafts."""

    def __init__(self, places: list[float], fade: float) -> None:
        self.offered, self.accepted, self.fade = [1.0] * len(places), list(places), fade
        self.taus = summed(places)

    def places(self) -> list[float]:
        """a_1, a_2, .."""
        return [a / o for a, o in zip(self.accepted, self.offered, strict=True)]

    def learn(self, drafts: int, emitted: int) -> None:
        """Updates (1) with a window of `drafts` drafts; one that emitted nothing is ignored."""
        tested = range(min(drafts, emitted))
        for place in tested:
            self.offered[place] = (1 - self.fade) * self.offered[place] + 1
            self.accepted[place] = (1 - self.fade) * self.accepted[place] + (place + 1 < emitted)
        if tested:
            self.taus = summed(self.places())


def summed(places: list[float]) -> list[float]:
    """(2) for 0, 1, .. drafts."""
    return list(accumulate(accumulate([1.0, *places], mul)))


def mean(rows: Collection[list[float]]) -> list[float]:
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


class Chooser:
    """(1) to (5). `windows` gives the tokens of the window for each number of drafts along a path (None: chains of 0 to
    `most`).

    Raises: ParameterError (most below 1, margin, fade or share outside [0, 1), no window without drafts, a table of shorter
    windows).
    """

    def __init__(
        self, costs: Costs, most: int, windows: Mapping[int, int] | None = None, *, margin: float = 0.02, fade: float = 0.05,
        share: float = 0.01, prior: float = 0.7,
    ) -> None:  # fmt: skip
        if most < 1 or not all(0 <= part < 1 for part in (margin, fade, share)) or not 0 <= prior <= 1:
            raise ParameterError(
                f"most, margin, fade, share, prior are {most}, {margin}, {fade}, {share}, {prior}; give 1 or more, "
                "three parts of 1, and a probability"
            )
        self.windows = dict(windows or {k: 1 + k for k in range(most + 1)})
        if self.windows.get(0) != 1 or max(self.windows) != most:
            raise ParameterError(f"windows are {self.windows}; give that of 0 drafts, 1 token, and that of {most} drafts")
        costs.check(self.windows[most])
        self.costs, self.most, self.margin, self.fade, self.share = costs, most, margin, fade, share
        self.rows: dict[int, Row] = {}
        self.before = [prior] * most
        self.spent = self.lost = 0.0

    def choose(self, batch: int) -> int:
        """(3) to (5)."""
        unknown = self.costs.unknown(batch, self.windows.values())
        if unknown is not None:
            return next(k for k, tokens in self.windows.items() if tokens == unknown)
        taus = [row.taus for row in self.rows.values()] or [summed(self.before)]
        us = {k: self.costs(batch, tokens) for k, tokens in self.windows.items()}
        emitted = {k: sum(tau[k] for tau in taus) / len(taus) for k in us}
        rates = {k: emitted[k] / us[k] for k in us}  # (3)
        best = max(rates, key=rates.__getitem__)
        best = best if rates[best] >= (1 + self.margin) * rates[0] else 0  # (4)
        longer = max((k for k in us if k > best), key=rates.__getitem__, default=best)
        lost = max(0.0, us[longer] - emitted[longer] / ((1 + self.margin) * rates[best]))  # (5)
        if self.lost + lost <= self.share * self.spent:
            self.lost, best = self.lost + lost, longer
        self.spent += us[best]
        return best

    def learn(self, drafts: int, emitted: Mapping[int, int], ended: tuple[int, ...] = ()) -> None:
        """The tokens that the windows of a step emitted, by row, and the rows that have ended."""
        if self.rows.keys() != emitted.keys():
            others = mean([row.places() for row in self.rows.values()]) if self.rows else self.before
            self.rows = {name: self.rows.get(name) or Row(others, self.fade) for name in emitted}
        for name, count in emitted.items():
            self.rows[name].learn(drafts, count)
        gone = [self.rows.pop(name).places() for name in ended if name in self.rows]
        if gone:
            self.before = mean([self.before, *gone])


class Chosen(Wrapper):
    """The drafts of another drafter, as many as the chooser says; nothing is drafted if that is 0.

    Raises: Unsupported for a drafter of several rows or several shapes; ParameterError for a chooser of other windows.
    """

    def __init__(self, inner: Drafter, chooser: Chooser) -> None:
        if inner.drafts > 1 or inner.nodes < 2 or tuple(inner.every_shape()) != (None,):
            raise Unsupported(
                "drafts cannot be chosen for this drafter: it must propose one chain or tree of one shape for each sequence; "
                "give ngram, lookup or a checkpoint, without rows and without a bandit"
            )
        if chooser.windows[chooser.most] != inner.nodes:
            raise ParameterError(
                f"the drafter has windows of {inner.nodes} tokens, but the chooser of {chooser.windows[chooser.most]}; "
                "give both the same"
            )
        super().__init__(inner)
        self.chooser, self.chosen, self.vocabulary = chooser, 0, 0
        self.unread, self.postponed = 1, 0
        if hasattr(inner, "decoder"):
            self.decoder = inner.decoder

    def check(self, model: Model) -> None:
        super().check(model)
        self.vocabulary = model.config.vocabulary

    def choose_shape(self, rows: int) -> int:
        """The number of drafts of the next window, for `rows` rows; CATCH_UP before drafts of a drafter that lags."""
        drafts = self.postponed or self.chooser.choose(rows)
        self.postponed = 0
        if self.inner.reads is not None:
            before_drafts, at_once = self.inner.reads
            if self.unread > (before_drafts if drafts else at_once - 1):
                self.postponed, drafts = drafts, CATCH_UP
            self.unread = self.unread + 1 if drafts == 0 else 1 + max(0, drafts)
        self.chosen = drafts
        return drafts

    def silent(self, shape: int | None) -> bool:
        return shape is not None and shape <= 0

    def every_shape(self) -> Iterator[int]:
        """Chooses and yields each number of drafts in turn."""
        for drafts in (*self.chooser.windows, *([] if self.inner.reads is None else [CATCH_UP])):
            self.chosen = drafts
            yield drafts

    def start(self, sequences: Sequences, slots: Tensor) -> None:
        super().start(sequences, slots)
        self.chooser.costs.started()

    def read_ahead(self, sequences: Sequences, pieces: Sequence[Piece]) -> None:
        super().read_ahead(sequences, pieces)
        self.chooser.costs.started()

    def read_round(self, outcome: Outcome) -> None:
        drafts = self.chosen if outcome.shape is None else outcome.shape
        self.chooser.costs.read(outcome.rows, self.chooser.windows.get(drafts))
        self.chooser.learn(max(0, drafts), outcome.emitted, outcome.ended)

    def propose(self, sequences: Sequences, slots: Tensor) -> Proposal:
        if self.chosen > 0:
            proposal = self.inner.propose(sequences, slots)
            window, whole = proposal.window, self.chosen == self.chooser.most
            return proposal if whole else proposal._replace(window=cut(window, 1 + self.chosen))
        if self.chosen == CATCH_UP:
            self.inner.catch_up(sequences, slots)
        q = None if self.law == "point_mass" else torch.zeros((len(slots), 1, self.vocabulary), device=slots.device)
        return Proposal(Window(sequences.roots(slots)[:, None], slots, settled=True), q, self.law)


def cut(window: Window, tokens: int) -> Window:
    """The first tokens of chains."""
    lengths = None if window.lengths is None else window.lengths.clamp_max(tokens)
    return window._replace(tokens=window.tokens[:, :tokens].contiguous(), lengths=lengths)


def chosen(inner: Drafter, costs: Costs | None = None) -> Chosen:
    """A drafter whose drafts are chosen by the engine's own step times: chains of 1, 2, 4, .. drafts if it reads tokens
    only, all of them or none if it is a model, or drafts trees."""
    depth = inner.depth
    some = [] if inner.trees or inner.follows else [1 << n for n in range((depth - 1).bit_length())]
    windows = {0: 1} | {k: 1 + k for k in some} | {depth: inner.nodes}
    return Chosen(inner, Chooser(StepTimes() if costs is None else costs, depth, windows))
