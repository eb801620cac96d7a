"""Chooses how many tokens to draft, by the cost of a step at this batch size and by what was accepted of each row.

    a_j(r)  = accepted / offered at place j of row r's windows, older ones weighted less                          (1)
    tau_r(K) = 1 + a_1 + a_1 a_2 + .. + a_1 .. a_K                                                                (2)
    t(K)    = the cost of a step; a change to drafts or from them, catching up included, adds its cost / HOLD     (3)
    rate(K) = mean over r of tau_r(K), over t(K)                                                                  (4)
    K       = the one with the highest rate; to begin with drafts, it must be `margin` above rate(0)              (5)
    lost    = what TRIED windows of K' > K, and the changes to them and back, take longer than K for their tokens (6)
    credit  = what drafts gained over plain steps, less what they lost, within GAMBLED plain steps; it pays for       (7)
              staying with drafts through steps that (5) expects to lose, while their mean gain is positive

K = 0 is a window of the root alone: plain decoding. By (3) and (5) drafts begin only where they gain more than the change
costs in HOLD steps, and go on while they gain. A longer window K' than (5) says is tried when `share` of the time since the
last try is as much as (6) is expected to be; what a try then really took, with all that it caused, is taken from that
allowance. So the chooser learns when drafting pays again, and loses at most `share` of all time by asking. Without
drafts no a_j is observed: its weight fades, so that a try counts for more the longer ago the last one was.

Rows of a step share one window, so (4) weighs them together; a new row begins with the mean of the others. Costs t come from
a table, or are the engine's own step times (`costs`). Results are read one round late. K does not change the distribution of
sampled tokens, nor the tokens of greedy decoding and of the rule `naive`. Of the other rules a seed determines the tokens
only if the same K are chosen, which measured times do not repeat.
Source: Snakes and Ladders, section 5.3, which tabulates a plan for each batch size.
"""

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import accumulate
from operator import mul
from typing import NamedTuple

from torch import Tensor

from ssmspec_ref.errors import ParameterError, Unsupported

from ..engine.prefill import Piece
from ..engine.rounds import Outcome
from ..engine.sequences import Sequences
from ..engine.window import Proposal, Window
from . import Drafter
from .costs import Costs, Step, StepTimes
from .wrapper import Wrapper

CATCH_UP = -1
"""The shape of a window of the root alone, before which a drafter with a state reads what it has not read."""


SLOW, GAMBLED, WARY = 0.02, 8, 4.0
"""The weight of a step in the mean gain; the plain steps of (7); how much `margin` grows in (5) as the credit is used up."""
HOLD, TRIED = 32, 3
"""Steps for which a change must gain what it costs; the windows of a try, of which one is steady (`costs`)."""
WEIGHT = 2.0
"""Observations for which the estimates count that a row begins with, or that it has left after a long time."""


class Row:
    """(1) and (2) of one row, from a_1, a_2, .. of other rows. `taus` are those of 0, 1, .. drafts."""

    def __init__(self, places: list[float], fade: float) -> None:
        self.offered, self.accepted = [WEIGHT] * len(places), [WEIGHT * place for place in places]
        self.keep, self.silent = 1 - fade, 0
        self.taus = summed(places)

    def places(self) -> list[float]:
        """a_1, a_2, .."""
        return [a / o for a, o in zip(self.accepted, self.offered, strict=True)]

    def learn(self, drafts: int, emitted: int) -> None:
        """Updates (1) with a window of `drafts` drafts; one that emitted nothing is ignored."""
        if not drafts or not emitted:
            self.silent += not drafts
            return
        if self.silent:
            self.forget(self.keep**self.silent)
        for place in range(min(drafts, emitted)):
            self.offered[place] = self.keep * self.offered[place] + 1
            self.accepted[place] = self.keep * self.accepted[place] + (place + 1 < emitted)
        self.taus = summed(self.places())

    def forget(self, part: float) -> None:
        """Weighs all that was observed less, without changing (1)."""
        for place, offered in enumerate(self.offered):
            kept = max(min(offered, WEIGHT), part * offered) / offered
            self.offered[place], self.accepted[place] = kept * offered, kept * self.accepted[place]
        self.silent = 0


def summed(places: list[float]) -> list[float]:
    """(2) for 0, 1, .. drafts."""
    return list(accumulate(accumulate([1.0, *places], mul)))


def mean(rows: Collection[list[float]]) -> list[float]:
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


class Chose(NamedTuple):
    """A choice: the drafts, the time that a token of a row takes without it, whether it tries something, and whether the
    step is without drafts, after others without them, so that it neither gains nor loses."""

    drafts: int
    us: float
    tries: bool
    plain: bool


class Chooser:
    """(1) to (7). `windows` gives the tokens of the window for each number of drafts along a path (None: chains of 0 to
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
        self.chose, self.unread = Chose(0, 0.0, False, True), deque[Chose]()
        self.allowance = self.price = self.credit = self.limit = self.gains = 0.0
        self.left = 0

    def choose(self, batch: int, catch_ups: int = 0) -> int:
        """(3) to (7); `catch_ups` is how often the drafter would have to catch up first."""
        self.chose = self.decided(batch, catch_ups)
        return self.again()

    def again(self) -> int:
        """Another step of the last choice: of a drafter that catches up."""
        self.unread.append(self.chose)
        return self.chose.drafts

    def decided(self, batch: int, catch_ups: int) -> Chose:
        drafted = self.chose.drafts
        unknown = self.costs.unknown(batch, self.windows.values())
        if unknown is not None:
            drafts = next(k for k, tokens in self.windows.items() if tokens == unknown)
            return Chose(drafts, self.costs(batch, 1) if drafts else 0.0, drafts > 0, not drafts)
        if self.left and drafted:
            self.left -= 1
            return self.chose
        taus = [row.taus for row in self.rows.values()] or [summed(self.before)]
        us = {k: self.costs(batch, tokens) for k, tokens in self.windows.items()}
        emitted = {k: sum(tau[k] for tau in taus) / len(taus) for k in us}
        begin = self.costs.change(batch, True) + catch_ups * self.costs.catch_up(batch)
        end = self.costs.change(batch, False)
        change = {k: (end if not k else 0.0) if drafted else (begin if k else 0.0) for k in us}
        rates = {k: emitted[k] / (us[k] + change[k] / HOLD) for k in us}  # (3) (4)
        best = max(rates, key=rates.__getitem__)
        self.limit = GAMBLED * us[0]
        margin = self.margin * (1.0 + WARY * max(0.0, -2 * self.credit) / self.limit)
        best = best if drafted or rates[best] >= (1 + margin) * rates[0] else 0  # (5)
        best = best if self.credit > -self.limit / 2 else 0
        if drafted and not best and self.gains > 0 and self.credit >= us[drafted] - emitted[drafted] * us[0]:  # (7)
            best = drafted
        a_token = us[best] / emitted[best]
        longer = max((k for k in us if k > best), key=rates.__getitem__, default=best)
        if longer > best:
            loses = max(self.margin * us[longer], us[longer] - emitted[longer] * a_token)
            self.price = TRIED * loses + (0.0 if best else begin + end)  # (6)
            if self.price <= max(self.allowance, 0.0 if best else self.credit) and not (
                self.chose.tries or any(one.tries for one in self.unread)
            ):
                self.left = TRIED - 1
                return Chose(longer, a_token, True, False)
        return Chose(best, us[0], False, not (best or drafted))

    def paid(self, us: float | None, emitted: Collection[int]) -> None:
        """What the oldest step that was not read took (None: left out), and what it emitted in each row."""
        if not self.unread:
            return
        step = self.unread.popleft()
        if us is None or not emitted:
            return
        self.allowance = max(self.allowance, min(self.price, self.allowance + self.share * us))
        if step.plain:
            self.credit = max(self.credit, min(0.0, self.credit + self.share * us))
            return
        gained = step.us * sum(emitted) / len(emitted) - us
        if step.tries and self.allowance + self.price > self.credit:
            self.allowance += gained
        else:
            self.credit = max(-self.limit / 2, min(self.limit, self.credit + gained))
        if not step.tries:
            self.gains += SLOW * (gained - self.gains)

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
        self.chooser, self.chosen = chooser, 0
        self.postponed = self.unread = self.active = 0
        self.lags: dict[int, int] = {}
        self.begun = set[tuple[int, int, bool]]()

    def choose_shape(self, rows: int) -> int:
        """The number of drafts of the next window, for `rows` rows; CATCH_UP before drafts of a drafter that lags."""
        if self.postponed:
            self.chooser.again()
        drafts = self.postponed or self.chooser.choose(rows, self.catch_ups())
        self.postponed = drafts if drafts and self.catch_ups() else 0
        drafts = CATCH_UP if self.postponed else drafts
        self.emit(drafts)
        self.first(rows, drafts)
        self.chosen, self.unread = drafts, self.unread + 1
        return drafts

    def catch_ups(self) -> int:
        """How often the drafter must catch up before it drafts: `lags` are the most tokens that it has not read of a row."""
        if self.inner.reads is None:
            return 0
        before_drafts, at_once = self.inner.reads
        return -(-max(0, max(self.lags.values(), default=1) - before_drafts) // at_once)

    def emit(self, drafts: int) -> None:
        """Counts what a step reads and what it emits at most."""
        read = 0 if self.inner.reads is None or not drafts else self.inner.reads[drafts == CATCH_UP]
        self.lags = {slot: max(0, lag - read) + 1 + max(0, drafts) for slot, lag in self.lags.items()}

    def first(self, rows: int, drafts: int) -> None:
        """The first step of a shape, or the first that brings states up to date after it, is not counted."""
        step = 1 << (rows - 1).bit_length(), drafts, self.silent(drafts) and not self.silent(self.chosen)
        if step not in self.begun:
            self.begun.add(step)
            self.chooser.costs.left_out(1 + self.unread)

    def silent(self, shape: int | None) -> bool:
        return shape is not None and shape <= 0

    def every_shape(self) -> Iterator[int]:
        """Chooses and yields each number of drafts in turn."""
        for drafts in (*self.chooser.windows, *([] if self.inner.reads is None else [CATCH_UP])):
            self.chosen = drafts
            yield drafts
        self.chosen = 0

    def start(self, sequences: Sequences, slots: Tensor) -> None:
        super().start(sequences, slots)
        self.active += len(slots)
        if self.inner.reads is not None:
            self.lags |= dict.fromkeys(slots.tolist(), 1)
        self.chooser.costs.left_out(1 + self.unread)

    def read_ahead(self, sequences: Sequences, pieces: Sequence[Piece]) -> None:
        super().read_ahead(sequences, pieces)
        self.chooser.costs.left_out(1 + self.unread)

    def release(self, slots: Tensor) -> None:
        super().release(slots)
        self.active = max(0, self.active - len(slots))
        for slot in slots.tolist() if self.lags else ():
            self.lags.pop(slot, None)
        if not self.active:
            self.unread = self.postponed = 0
            self.chooser.unread.clear()

    def read_round(self, outcome: Outcome) -> None:
        drafts, windows = self.chosen if outcome.shape is None else outcome.shape, self.chooser.windows
        self.unread = max(0, self.unread - 1)
        us = self.chooser.costs.read(Step(outcome.rows, windows.get(drafts), windows.get(self.chosen)))
        self.chooser.paid(us, outcome.emitted.values())
        self.chooser.learn(max(0, drafts), outcome.emitted, outcome.ended)

    def propose(self, sequences: Sequences, slots: Tensor) -> Proposal:
        if self.chosen > 0:
            proposal = self.inner.propose(sequences, slots)
            window, whole = proposal.window, self.chosen == self.chooser.most
            return proposal if whole else proposal._replace(window=cut(window, 1 + self.chosen))
        if self.chosen == CATCH_UP:
            self.inner.catch_up(sequences, slots)
        return Proposal(Window(sequences.roots(slots)[:, None], slots, settled=True))


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
