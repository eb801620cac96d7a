"""Run one engine on one checkpoint: every configuration through random schedules, check each answer, shrink each failure.

Plain output comes from a separate process that answers one request at a time. A configuration is another process, which runs
many schedules. A failing schedule is run again in a new engine and shrunk, each attempt in an engine that has just started.
If it only fails after earlier schedules, these are reported with it. A configuration ends at its first failure.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis.errors import HypothesisException

from ..draws import by_seed_alone
from . import sampled
from .checkpoint import NoOracle, read
from .diagnosis import explained
from .errors import EngineDied, EngineFailed, EngineRefused, NotStarted
from .laws import Cell, Finding, Outcome, applied, cut, followed, lossless, probabilities, reported, same_model, zero
from .oracle import Oracle
from .protocol import Answer, Options, Request, Started
from .schedules import LONGEST, Ask, Schedule, features, in_full, in_turn, reduced, schedules, told

KEPT, DRAFTED = "log-probabilities kept", "log-probabilities of drafted tokens"
IDLE = ("not exercised", "not observable")
SHRINKING = 90.0
"""Seconds to spend on shrinking a failure, unless the user says otherwise."""
MOST = 1000
"""Schedules to draw, at most, when a failure is sought in simpler traffic."""


class Engine(Protocol):
    """An object that transports the protocol: `program.Program`, `http.Server`."""

    def start(self, model: str, options: Options) -> Started: ...

    def generate(self, requests: tuple[Request, ...]) -> tuple[Answer, ...]: ...

    def close(self) -> None: ...


class Broken(Exception):
    """A schedule violated a law."""


@dataclass(frozen=True)
class Failure:
    """A failure after shrinking: the law, the finding, the schedule in lines, and its explanation."""

    configuration: str
    law: str
    finding: str
    schedule: tuple[str, ...] = ()
    explained: str = ""
    rerun: str = ""


@dataclass
class Found:
    """All results of a checkpoint."""

    engine: str = ""
    cells: dict[tuple[str, str], Cell] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    refusals: dict[str, str] = field(default_factory=dict)
    schedules: int = 0
    requests: int = 0
    tokens: int = 0
    counts: dict[str, list[int]] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)
    """Configurations whose answers say how many drafts were accepted."""
    notes: list[str] = field(default_factory=list)
    named: frozenset[str] = frozenset()
    """Configurations that the user named: one that the engine refuses leaves the verdict unknown."""

    def count(self, configuration: str, law: str, outcome: Outcome, many: int = 1) -> None:
        self.cells.setdefault((configuration, law), Cell()).counts[outcome] += many

    def ended(self, configuration: str, law: str, error: Exception) -> None:
        """Record that a configuration was refused, or that its engine died."""
        if isinstance(error, EngineRefused):
            self.refusals[configuration] = str(error)
            self.count(configuration, law, "refused")
        else:
            self.count(configuration, law, "died")
            self.failures.append(Failure(configuration, law, f"{type(error).__name__}: {error}"))

    def outcome(self, configuration: str, law: str) -> Outcome:
        """Of one cell, with the floor of activity: where no draft was accepted, or none rejected, the law is not passed; nor
        where the engine does not tell how many were; nor where log-probabilities are 0 of some of the tokens."""
        cell = self.cells.get((configuration, law))
        if cell is None:
            return "not exercised"
        found = cell.outcome()
        if law == KEPT and found == "passed" and cell.counts["not judged"]:
            return "not judged"
        if law == "speculation" and found in ("passed", "near tie"):
            if configuration not in self.told:
                return "not observable"
            drafted, accepted = self.counts.get(configuration, [0, 0])
            if not accepted or accepted == drafted:
                return "not exercised"
        return found

    @property
    def red(self) -> bool:
        return any(self.outcome(*key) in ("differs", "died") for key in self.cells)

    @property
    def green(self) -> bool:
        """Nothing failed, something passed, and every configuration exercised what it is meant to test."""
        unknown = [key for key in self.cells if self.outcome(*key) == "near tie"]
        unknown += [key for key in self.cells if key[1] == KEPT and self.outcome(*key) == "not judged"]
        idle = [c for c in self.counts if c not in self.refusals and self.outcome(c, purpose(c)) in IDLE]
        unknown += [(c, purpose(c)) for c in self.refusals if c in self.named]
        return not (self.red or unknown or idle) and any(self.outcome(*key) == "passed" for key in self.cells)


def purpose(configuration: str) -> str:
    """The law that a configuration is meant to test."""
    for name, law in (
        ("ngram", "speculation"),
        ("model", "speculation"),
        ("cache", "cache"),
        ("chunk", "chunk"),
        ("served", "speculation"),
    ):
        if name in configuration:
            return law
    return "repeated"


class Judge:
    """Tests an engine on a checkpoint. `open_engine` starts a process; without an `oracle`, *same model?* is not tested."""

    def __init__(
        self,
        open_engine: Callable[[], Engine],
        model: str,
        weights: Any,
        schedules: int,
        seed: int = 0,
        watch: Callable[[str], None] = lambda line: None,
        vocabulary: int = 64,
        open_plain: Callable[[], Engine] | None = None,
        samples: int = 0,
        shrinking: float | None = None,
    ) -> None:
        self.samples = samples
        self.shrinking = SHRINKING if shrinking is None else shrinking
        self.open_plain = open_engine if open_plain is None else open_plain
        self.open, self.model, self.weights, self.many, self.seed, self.watch = (
            open_engine,
            model,
            weights,
            schedules,
            seed,
            watch,
        )
        self.vocabulary = weights.vocabulary if weights is not None else vocabulary
        self.oracle: Oracle | None = None
        self.found = Found()
        self.plain: Engine | None = None
        self.known: dict[tuple[tuple[int, ...], float, int], tuple[int, ...]] = {}

    def run(self, configurations: dict[str, Options]) -> Found:
        """Compare every configuration with the plain one, whether or not that is in the list.

        Raises: NotStarted for an engine that ends before its first answer.
        """
        try:
            try:
                self.plain = self.open_plain()
                started = self.plain.start(self.model, Options(dtype=next(iter(configurations.values())).dtype))
            except EngineDied as error:
                raise NotStarted(str(error)) from error
            except (EngineRefused, EngineFailed) as error:
                self.found.ended("plain", "repeated", error)
                return self.found
            self.found.engine = f"{started.name} {started.version}"
            if self.weights is not None:
                self.oracle = Oracle(self.weights, started.dtype, started.state)
            for configuration, chosen in configurations.items():
                self.configuration(configuration, chosen)
        finally:
            if self.plain is not None:
                self.plain.close()
        return self.found

    def configuration(self, name: str, options: Options) -> None:
        began = time.monotonic()
        run = Run(self, name, options)
        try:
            run.all()
        except (EngineRefused, EngineFailed, EngineDied) as error:
            self.found.ended(name, purpose(name), error)
        finally:
            run.close()
        says = self.found.refusals.get(name) or "; ".join(
            f"{f.law}: {f.finding}" for f in self.found.failures if f.configuration == name
        )
        self.watch(f"{name}: {run.done} schedules, {time.monotonic() - began:.0f} s{f': {says}' if says else ''}")

    def expect(self, ids: tuple[int, ...], temperature: float = 0.0, seed: int = 0) -> tuple[int, ...]:
        """The plain output of a prompt, alone and without stop tokens; compared with the oracle at first use.

        Raises: EngineDied, EngineFailed, EngineRefused.
        """
        key = ids, temperature, seed if temperature else 0
        if key not in self.known:
            assert self.plain is not None
            request = Request(ids=ids, most=LONGEST, temperature=temperature, seed=seed)
            answer = self.plain.generate((request,))[0]
            self.known[key] = answer.ids
            self.model_of(request, answer)
        return self.known[key]

    def model_of(self, request: Request, answer: Answer) -> None:
        """*Same model?* for one plain answer; the first finding of each kind is kept."""
        if self.oracle is None:
            self.found.count("plain", "tokens", "not judged")
            return
        wrong = {finding.law: finding for finding in same_model(self.oracle, request, answer)}
        laws = [] if request.temperature else ["tokens"]
        laws += ["log-probabilities"] if reported(answer, False) else []
        for law in laws:
            self.found.count("plain", law, "differs" if law in wrong else "passed")
            if law in wrong and not any(f.law == law for f in self.found.failures):
                finding = self.smaller(wrong[law])
                says = explained(self.oracle, finding, [])
                self.found.failures.append(
                    Failure("plain", law, str(finding), (f"prompt {list(finding.request.ids)}",), says)
                )

    def smaller(self, finding: Finding) -> Finding:
        """The same violation with a shorter prompt: suffixes of the prompt, from one token on."""
        assert self.plain is not None
        assert self.oracle is not None
        ids = finding.request.ids
        for length in range(1, len(ids)):
            request = Request(ids=ids[-length:], most=LONGEST)
            with suppress(EngineFailed):
                answer = self.plain.generate((request,))[0]
                for other in same_model(self.oracle, request, answer):
                    if other.law == finding.law:
                        return other
        return finding


class Run:
    """One configuration of one engine."""

    def __init__(self, judge: Judge, name: str, options: Options) -> None:
        self.judge, self.name, self.options = judge, name, options
        self.engine: Engine | None = None
        self.started: Started | None = None
        self.drafter: Oracle | None = None
        self.done, self.shrinking, self.once, self.reducible = 0, 0.0, False, False
        self.past: list[Schedule] = []
        self.law = ""
        """The law that the first break was of; its smallest case may show in another."""
        self.smallest: tuple[Schedule, Finding, str] | None = None
        self.zero: Finding | None = None
        """The first log-probability of 0 that is wrong; reported at the end, because it does not end the configuration."""

    def close(self) -> None:
        if self.engine is not None:
            self.engine.close()
            self.engine = None

    def begin(self) -> None:
        """Start a new engine, in the existing process if it is alive. Raises: as `Engine.start`."""
        if self.started is not None and getattr(self.engine, "once", False):
            self.close()
        if self.engine is None:
            self.engine = self.judge.open()
        try:
            self.started = self.engine.start(self.judge.model, self.options)
        except EngineDied:
            self.close()
            raise

    def all(self) -> None:
        """Run all schedules. Raises: EngineRefused, EngineDied, EngineFailed at start."""
        self.begin()
        assert self.started is not None
        self.judge.found.counts.setdefault(self.name, [0, 0])
        if self.options.drafter is not None:
            with suppress(NoOracle):
                self.drafter = Oracle(read(Path(self.options.drafter)), self.started.dtype, self.started.state)
        strategy = schedules(self.judge.vocabulary, self.started.can, self.options.slots)

        @seeded(self.judge.seed)
        @settings(
            max_examples=self.judge.many, deadline=None, database=None, phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck), report_multiple_bugs=False, print_blob=False,
        )  # fmt: skip
        @given(schedule=strategy)
        def every(schedule: Schedule) -> None:
            self.one(schedule)

        try:
            with by_seed_alone():
                every()
        except Broken:
            pass
        except HypothesisException as error:  # the failure is not reproducible, or the time for shrinking has run out
            if self.smallest is None:
                self.judge.found.notes.append(f"{self.name}: {error}")
        if self.smallest is not None:
            if self.reducible:
                self.reduce(self.smallest[0])
            self.told(*self.smallest)
        elif self.judge.samples and self.judge.oracle is not None and "sample" in self.started.can:
            self.sampled(self.judge.oracle)
        if self.zero is not None and self.judge.oracle is not None:
            small = self.smaller_zero(self.judge.oracle, self.zero)
            line = f"prompt {list(small.request.ids)}, most {small.request.most}"
            self.judge.found.failures.append(Failure(self.name, DRAFTED, str(small), (line,)))

    def smaller_zero(self, oracle: Oracle, finding: Finding) -> Finding:
        """The same of a shorter prompt, alone and greedy: suffixes of the prompt, from one token on."""
        ids = finding.request.ids
        with suppress(EngineRefused, EngineFailed, EngineDied):
            self.begin()
            assert self.engine is not None
            for length in range(1, len(ids) + 1):
                request = Request(ids=ids[-length:], most=LONGEST)
                other = zero(oracle, request, self.engine.generate((request,))[0])
                if other is not None:
                    return other
        return finding

    def sampled(self, oracle: Oracle) -> None:
        """The law of sampled tokens. Raises: EngineDied, EngineFailed."""
        if self.engine is None:
            self.begin()
        assert self.engine is not None
        assert self.started is not None
        asked = sampled.requests(self.judge.samples, self.judge.vocabulary)
        width = self.options.slots if "batch" in self.started.can else 1
        answers: list[Answer] = []
        while len(answers) < len(asked):
            some = asked[len(answers) : len(answers) + width]
            try:
                answers += self.engine.generate(tuple(some))
            except EngineRefused:
                if width == 1:
                    raise
                width = 1
        outcome, finding = sampled.law(oracle, asked, answers)
        self.judge.found.count(self.name, "sampled law", outcome)
        if finding is not None:
            line = f"{len(asked)} requests of {sampled.TOKENS} tokens at temperature {sampled.TEMPERATURE}"
            self.judge.found.failures.append(Failure(self.name, "sampled law", str(finding), (line,)))

    def alone(self, schedule: Schedule) -> None:
        """Each request of a schedule by itself: what hypothesis, which keeps the order of what was drawn, does not reach in
        time. First the whole prompts, the longest first, of one that breaks then its last tokens; of none, those of all."""
        until = time.monotonic() + self.judge.shrinking / (1 if self.once else 3)
        pairs = self.prompts(schedule)
        self.close()
        longest = sorted(pairs, key=lambda one: -len(one[1]))
        first = self.breaking((ends(ask, ids, len(ids))[0] for ask, ids in longest), until)
        if first is not None:
            pairs = [(first, first.own)]
        every = (
            one
            for k in range(1, max(len(ids) for _, ids in pairs) + 1)
            for ask, ids in pairs
            if k <= len(ids)
            for one in ends(ask, ids, k)
        )
        self.breaking(every, until)

    def prompts(self, schedule: Schedule) -> list[tuple[Ask, tuple[int, ...]]]:
        """The requests of a schedule in order, each with its whole prompt."""
        asked, whole = list[tuple[int, ...]](), list[tuple[int, ...]]()
        for ask in (ask for asks in schedule for ask in asks):
            request, plain, _ = self.resolved(ask, asked, whole)
            asked.append(request.ids)
            whole.append((*request.ids, *plain))
        return list(zip((ask for asks in schedule for ask in asks), asked, strict=True))

    def breaking(self, candidates: Iterator[Ask], until: float) -> Ask | None:
        """The first request that breaks alone: one after another in one process, and again in a new one where it breaks."""
        for ask in candidates:
            if time.monotonic() > until:
                return None
            alone = ((ask,),)
            if self.tried(alone, fresh=self.engine is None, count=False) is None:
                continue
            broken = self.tried(alone, fresh=True)
            self.close()
            if broken is not None and self.smallest is not None and broken[0].kind == self.smallest[1].kind:
                self.smallest = alone, *broken
                return ask
        return None

    def one(self, schedule: Schedule) -> None:
        """Run a schedule. Raises: Broken, always from one line, by which hypothesis knows that it is the same break."""
        if self.shrinking and time.monotonic() > self.shrinking:
            return
        if not (self.smaller(schedule) if self.shrinking else self.first(schedule)):
            return
        raise Broken

    def first(self, schedule: Schedule) -> bool:
        """Whether a schedule breaks; the first that does is run again by a new engine, and each of its requests alone."""
        broken = self.tried(schedule)
        self.done += 1
        self.judge.found.schedules += 1
        if broken is None:
            self.past.append(schedule)
            return False
        self.law = broken[0].law
        again = self.tried(schedule, fresh=True)
        self.once = getattr(self.engine, "once", False)
        if again is None:
            self.smallest = schedule, broken[0], f"only after the {self.done - 1} schedules before it; {broken[1]}"
        else:
            self.smallest = schedule, *again
            self.alone(schedule)
        single = size(self.smallest[0])[0] == 1 and again is not None
        self.reducible = not (single or self.once)
        self.shrinking = time.monotonic() + (0 if self.once else self.judge.shrinking / (1 if single else 3))
        return True

    def reduce(self, schedule: Schedule) -> None:
        """Leave out what the break does not need: first that requests run together, and all slots but one. If nothing that
        was run breaks so, other requests are drawn that run one after another."""
        until = time.monotonic() + self.judge.shrinking
        assert self.smallest is not None
        kind = self.smallest[1].kind

        def breaks(other: Schedule) -> bool:
            broken = self.tried(other, fresh=True)
            if broken is None or broken[0].kind != kind:
                return False
            self.smallest = other, *broken
            return True

        options, history = self.options, self.full(*self.past, schedule)
        self.options = options.model_copy(update={"slots": 1})
        runs = [in_turn(self.full(schedule)), in_turn(history), *self.searched(kind, until - self.judge.shrinking / 2)]
        found = next(filter(breaks, runs), None)
        if found is None:
            self.options = options
            found = next(filter(breaks, (self.full(schedule), history)), None)
        if found is not None:
            reduced(found, breaks, lambda: time.monotonic() < until)

    def full(self, *schedules: Schedule) -> Schedule:
        """Schedules as one, each request with its whole prompt."""
        return tuple(chain(*(in_full(one, [ids for _, ids in self.prompts(one)]) for one in schedules)))

    def searched(self, kind: str, until: float) -> Iterator[Schedule]:
        """Requests one after another, up to one that breaks an engine with one slot in this way; nothing where none does in
        time."""
        assert self.started is not None
        can = [one for one in self.started.can if one not in ("batch", "join", "cancel")]
        run: list[Schedule] = []
        broken: list[Schedule] = []

        @seeded(self.judge.seed)
        @settings(
            max_examples=MOST, deadline=None, database=None, phases=(Phase.generate,), suppress_health_check=list(HealthCheck)
        )
        @given(schedule=schedules(self.judge.vocabulary, can, 1))
        def every(schedule: Schedule) -> None:
            if not broken and time.monotonic() < until:
                run.append(schedule)
                found = self.tried(schedule, fresh=len(run) == 1, count=False)
                if found is not None and found[0].kind == kind:
                    broken.append(schedule)

        with by_seed_alone():
            every()
        if broken:
            yield self.full(broken[0])
            yield self.full(*run)

    def smaller(self, schedule: Schedule) -> bool:
        """Whether a smaller schedule breaks a new engine too."""
        broken = self.tried(schedule, fresh=True)
        if broken is not None and self.smallest is not None and size(schedule) <= size(self.smallest[0]):
            self.smallest = schedule, *broken
        return broken is not None

    def tried(self, schedule: Schedule, fresh: bool = False, count: bool = True) -> tuple[Finding, str] | None:
        """The first break of a schedule; an engine that dies breaks it too. A new engine that does not start breaks nothing
        of a schedule, and is noted."""
        count = count and not fresh
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
            if count:
                self.judge.found.count(self.name, purpose(self.name), "died")
            request = Request(ids=(0,), most=1)
            return Finding("died", request, 0, None, None, why=f"{type(error).__name__}: {error}"), ""

    def broken(self, schedule: Schedule, count: bool) -> Iterator[tuple[Finding, str]]:
        """Every violation, with the states that could explain it."""
        assert self.engine is not None
        asked: list[tuple[int, ...]] = []
        whole: list[tuple[int, ...]] = []
        for asks in schedule:
            requests, plains, made = [], [], []
            for ask in asks:
                request, plain, how = self.resolved(ask, asked, whole)
                requests.append(request)
                plains.append(plain)
                made.append(how)
            asked += [request.ids for request in requests]
            whole += [(*request.ids, *plain) for request, plain in zip(requests, plains, strict=True)]
            try:
                answers = self.engine.generate(tuple(requests))
            except EngineRefused:
                if count:
                    self.judge.found.count(self.name, "batch" if len(requests) > 1 else "repeated", "refused")
                continue
            for request, plain, answer, how in zip(requests, plains, answers, made, strict=True):
                yield from self.judged(request, requests, plain, answer, how, count, whole)

    def resolved(
        self, ask: Ask, asked: Sequence[tuple[int, ...]], whole: Sequence[tuple[int, ...]]
    ) -> tuple[Request, tuple[int, ...], list[str]]:
        """A request with the tokens of the plain run, its expected output, and how its prompt was made."""
        how: list[str] = []
        ids = ask.own
        if ask.of is not None and ask.of < len(asked):
            how = ["continuation"] if ask.continues else ["fork"]
            ids = (*(whole[ask.of] if ask.continues else asked[ask.of][: ask.kept]), *ids)
        plain = self.judge.expect(ids, ask.temperature, ask.seed)
        stop = () if ask.stop_at is None or ask.stop_at >= len(plain) else (plain[ask.stop_at],)
        named: dict[str, Any] = {
            "temperature": ask.temperature,
            "seed": ask.seed,
            "drafts": ask.drafts,
            "after": ask.after,
            "cancel": ask.cancel,
        }
        request = Request(ids=ids, most=ask.most, stop=stop, **named)
        return request, cut(plain, ask.most, stop), how

    def judged(
        self, request: Request, beside: Sequence[Request], plain: tuple[int, ...], answer: Answer, how: list[str],
        count: bool, whole: Sequence[tuple[int, ...]],
    ) -> Iterator[tuple[Finding, str]]:  # fmt: skip
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
            yield finding, explained(oracle, finding, others) if oracle is not None and not count else ""
        if (
            self.drafter is not None
            and outcome == "passed"
            and len(beside) == 1
            and request.drafts is None
            and not request.temperature
        ):
            state, wrong = followed(self.drafter, request, answer, self.options.drafts)
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
                yield wrong, "" if count else explained(oracle, wrong, [ids for ids in whole if ids != request.ids])

    def told(self, schedule: Schedule, finding: Finding, says: str) -> None:
        """Report the failure, under the law that its smallest schedule violates."""
        assert self.started is not None
        left = [
            name
            for name in features(schedule, self.started)
            if name != "stop" or finding.expected is None or finding.came is None
        ]
        law = finding.law if finding.law in (KEPT, "drafter followed") and self.law == finding.law else purpose(self.name)
        if left and (law == "repeated" or self.judge.found.outcome("plain", left[0]) == "differs"):
            law = left[0]
        if finding.expected is None or finding.came is None:
            law = "stop" if finding.law != "died" else purpose(self.name)
        lines = (*(["slots 1"] if self.options.slots == 1 else []), *told(schedule))
        if finding.law == "died":
            self.judge.found.failures.append(Failure(self.name, law, f"died: {finding.why}", lines, says))
            self.judge.found.count(self.name, law, "died")
            return
        beside = f"needs: {', '.join(left)}; " if left and law not in left[:1] else ""
        self.judge.found.count(self.name, law, "differs")
        self.judge.found.failures.append(Failure(self.name, law, f"{beside}{finding}", lines, says))


def ends(ask: Ask, ids: tuple[int, ...], length: int) -> tuple[Ask, ...]:
    """A request of the last tokens of a prompt, by itself and greedy; and as it was asked for, where that differs."""
    usual: dict[str, Any] = {"tail": (), "of": None, "continues": False, "after": 0, "cancel": None}
    alone = replace(ask, pattern=ids[-length:], length=length, **usual)
    greedy = replace(alone, stop_at=None, temperature=0.0, drafts=None)
    found = (greedy, replace(greedy, stop_at=ask.stop_at), replace(alone, stop_at=None), alone)
    return tuple(dict.fromkeys(found))


def size(schedule: Schedule) -> tuple[int, int]:
    """The size of a schedule for shrinking: requests, then tokens and settings."""
    every = [ask for asks in schedule for ask in asks]
    return len(every), sum(len(ask.own) + ask.most + ask.after for ask in every)
