"""One configuration of an engine, and a schedule sent to it: the requests are resolved, the answers tested."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

from ..diagnosis import explained
from ..errors import EngineDied, EngineFailed, EngineRefused, PlainFailed
from ..laws import COUNTED, Finding, applied, counted, cut, followed, lossless, probabilities, reported, zero
from ..oracle import Oracle
from ..protocol import Answer, Engine, Options, Request, Started
from ..schedules import Ask, Offer, Schedule, in_full
from .against_plain import AgainstPlain
from .found import DRAFTED, KEPT, purpose

AGAIN = "started again"
Break = tuple[Finding, str]
"""What is wrong with an answer, and what explains it."""


class Resolved(NamedTuple):
    """A request with the tokens of the plain run, its expected output, and how its prompt was made."""

    ask: Ask
    request: Request
    plain: tuple[int, ...]
    made: list[str]

    @property
    def whole(self) -> tuple[int, ...]:
        """The prompt and the expected output."""
        return (*self.request.ids, *self.plain)


class Attempts:
    """Schedules in one configuration of an engine, in the process that runs or in a new one."""

    def __init__(self, judge: AgainstPlain, name: str, options: Options) -> None:
        self.judge, self.name, self.options = judge, name, options
        self.engine: Engine | None = None
        self.started: Started | None = None
        self.drafter: Oracle | None = None
        self.zero: Finding | None = None
        """The first log-probability of 0 that is wrong; reported at the end, because it does not end the configuration."""
        self.once, self.fixed = False, False
        """Whether a process starts it a single time, and whether its options were decided before."""
        self.stuck = False
        """Whether a process that had run the engine could not start it again; then each start gets a new process."""
        self.unknown = False
        """Whether the plain run failed at a prompt of the last schedule, so that it was not judged."""

    def close(self) -> None:
        if self.engine is not None:
            self.engine.close()
            self.engine = None

    @property
    def offer(self) -> Offer:
        """What requests of this configuration may use. Raises: EngineDied for an engine that says nothing fitting."""
        assert self.started is not None
        told, varied = self.started, self.options.varied or self.fixed
        most = self.options.drafts if told.drafts is None else told.drafts
        offer = Offer(told.can, told.block, most, told.drafters)
        if varied and "drafter" in told.can and not told.drafters:
            raise EngineDied('says that requests can name a "drafter", but not which: `drafters` is empty')
        return offer if varied else offer.without(*COUNTED)

    def begin(self) -> None:
        """Start a new engine, in the existing process if it is alive; a process that answers that it cannot is a
        separate failure, and another is begun. Raises: as `Engine.start`."""
        if self.started is not None and (self.once or self.stuck):
            self.close()
        if self.engine is not None and self.started is not None:
            try:
                self.started = self.engine.start(self.judge.model, self.options)
            except EngineFailed as error:
                self.stuck = True
                self.judge.found.ended(self.name, AGAIN, error)
                self.close()
            except (EngineRefused, EngineDied):
                self.close()
                raise
            else:
                self.judge.found.count(self.name, AGAIN, "passed")
                return
        if self.engine is None:
            self.engine = self.judge.open()
            self.once, self.fixed = (getattr(self.engine, name, False) for name in ("once", "fixed"))
        try:
            self.started = self.engine.start(self.judge.model, self.options)
        except (EngineRefused, EngineFailed, EngineDied):
            self.close()
            raise

    def tried(self, schedule: Schedule, fresh: bool = False, count: bool = True) -> Break | None:
        """The first break of a schedule; an engine that dies breaks it too. A new engine that does not start breaks nothing
        of a schedule, and is noted. One with a prompt that the plain run has no answer to is not run."""
        count, self.unknown = count and not fresh, False
        try:
            self.prompts(schedule)
        except PlainFailed:
            self.unknown = True
            return None
        except (EngineDied, EngineFailed) as error:
            return self.died(error, count)
        try:
            if fresh or self.engine is None:
                self.begin()
        except (EngineRefused, EngineDied, EngineFailed) as error:
            if not fresh:
                raise
            self.judge.found.notes.append(f"{self.name}: the engine did not start again: {type(error).__name__}: {error}")
            self.close()
            return None
        try:
            return next(self.broken(schedule, count=count), None)
        except (EngineDied, EngineFailed) as error:
            if isinstance(error, EngineDied):
                self.close()
            return self.died(error, count)

    def died(self, error: EngineDied | EngineFailed, count: bool) -> Break:
        """An engine that died or failed, as a break."""
        if count:
            self.judge.found.count(self.name, purpose(self.name), "died")
        return Finding("died", Request(ids=(0,), most=1), 0, None, None, why=f"{type(error).__name__}: {error}"), ""

    def broken(self, schedule: Schedule, count: bool) -> Iterator[Break]:
        """Every violation, with the states that could explain it."""
        assert self.engine is not None
        whole: list[tuple[int, ...]] = []
        for call in self.resolved(schedule):
            requests = [one.request for one in call]
            whole += [one.whole for one in call]
            try:
                answers = self.engine.generate(tuple(requests))
            except EngineRefused:
                if count:
                    self.judge.found.count(self.name, "batch" if len(requests) > 1 else "repeated", "refused")
                continue
            preempted = sum(answer.preempted or 0 for answer in answers)
            self.judge.found.preempted[self.name] += preempted if count else 0
            for one, answer in zip(call, answers, strict=True):
                made = [*one.made, *(["preemption"] if preempted else [])]
                yield from self.judged(one.request, requests, one.plain, answer, made, count, whole)

    def resolved(self, schedule: Schedule) -> Iterator[list[Resolved]]:
        """The requests of each call, in order. A request continues or repeats one of an earlier call, not one beside it."""
        before: list[Resolved] = []
        for asks in schedule:
            call = [self.request(ask, before) for ask in asks]
            before += call
            yield call

    def request(self, ask: Ask, before: Sequence[Resolved]) -> Resolved:
        """What is sent for a request after others."""
        how: list[str] = []
        ids = ask.own
        if ask.of is not None and ask.of < len(before):
            how, of = ["continuation"] if ask.continues else ["fork"], before[ask.of]
            ids = (*(of.whole if ask.continues else of.request.ids[: ask.kept]), *ids)
        plain = self.judge.expect(ids, ask.temperature, ask.seed)
        stop = () if ask.stop_at is None or ask.stop_at >= len(plain) else (plain[ask.stop_at],)
        named: dict[str, Any] = {
            "temperature": ask.temperature,
            "seed": ask.seed,
            "drafts": ask.drafts,
            "drafter": ask.drafter,
            "after": ask.after,
            "cancel": ask.cancel,
        }
        request = Request(ids=ids, most=ask.most, stop=stop, **named)
        return Resolved(ask, request, cut(plain, ask.most, stop), how)

    def judged(
        self, request: Request, beside: Sequence[Request], plain: tuple[int, ...], answer: Answer, how: list[str],
        count: bool, whole: Sequence[tuple[int, ...]],
    ) -> Iterator[Break]:  # fmt: skip
        """The violation in one answer, if there is one."""
        found, oracle = self.judge.found, self.judge.oracle
        outcome, finding = lossless(oracle, request, plain, answer)
        speculates = bool(self.options.speculation)
        if count:
            found.requests += 1
            found.tokens += len(answer.ids)
            sums = found.counts[self.name]
            sums[0] += answer.drafted or 0
            sums[1] += answer.accepted or 0
            if answer.drafted is not None and answer.accepted is not None:
                found.told.add(self.name)
            for law in applied(request, beside, self.options, answer, how):
                if outcome != "differs":
                    found.count(self.name, law, outcome)
        if outcome == "differs" and finding is not None:
            others = [ids for ids in whole if ids[: len(request.ids)] != request.ids]
            yield finding, explained(oracle, finding, others, self.options.chunk) if oracle is not None and not count else ""
        if outcome == "passed" and (wrong := counted(request, answer)) is not None:
            yield wrong, ""
        elif self.drafter is not None and outcome == "passed" and self.follows(request, beside):
            drafts = self.options.drafts if request.drafts is None else request.drafts
            state, wrong = followed(self.drafter, request, answer, drafts, self.started is not None and self.started.rereads)
            if wrong is not None:
                yield wrong, ""
            elif count:
                found.count(self.name, "drafter followed", state)
        if oracle is not None and outcome == "passed":
            wrong = probabilities(oracle, request, answer, KEPT, speculates)
            if count and answer.logprobs is not None and None not in answer.logprobs and wrong is None:
                found.count(self.name, KEPT, "passed" if reported(answer, speculates) else "not judged")
            if count and speculates and answer.logprobs is not None:
                nothing = zero(oracle, request, answer)
                found.count(self.name, DRAFTED, "passed" if nothing is None else "differs")
                self.zero = self.zero or nothing
            if wrong is not None and not any(f.law == "log-probabilities" for f in found.failures):
                others = [ids for ids in whole if ids != request.ids]
                yield wrong, "" if count else explained(oracle, wrong, others, self.options.chunk)

    def follows(self, request: Request, beside: Sequence[Request]) -> bool:
        """Whether the drafts of a request are those of the configuration's model: where requests set their own, of each that
        does not name another drafter; else of one that runs alone."""
        if request.temperature or request.drafter not in (None, self.options.speculation):
            return False
        return len(beside) == 1 or bool(self.options.varied)

    def prompts(self, schedule: Schedule) -> list[tuple[Ask, tuple[int, ...]]]:
        """The requests of a schedule in order, each with its whole prompt."""
        return [(one.ask, one.request.ids) for call in self.resolved(schedule) for one in call]

    def full(self, *schedules: Schedule) -> Schedule:
        """Schedules as one, each request with its whole prompt."""
        return tuple(chain(*(in_full(one, [ids for _, ids in self.prompts(one)]) for one in schedules)))
