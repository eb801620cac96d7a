"""A configuration through all its schedules, up to the first that breaks."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, reject, settings
from hypothesis import seed as seeded
from hypothesis.errors import HypothesisException

from ssmspec_ref.errors import SpecError

from ...draws import by_seed_alone, without_the_clock
from .. import sampled
from ..checkpoint import NoOracle, read
from ..errors import EngineDied, EngineFailed, EngineRefused
from ..laws import COUNTED, Finding, failure_of, zero
from ..oracle import Oracle
from ..protocol import Answer, Options, Request
from ..schedules import LONGEST, Schedule, features, schedules, told
from .against_plain import AgainstPlain
from .attempts import Attempts
from .found import DRAFTED, KEPT, Failure, purpose
from .smallest import Smallest


class Broken(Exception):
    """A schedule violated a law."""


class Run:
    """One configuration of one engine."""

    def __init__(self, judge: AgainstPlain, name: str, options: Options) -> None:
        self.judge, self.name = judge, name
        self.attempts = Attempts(judge, name, options)
        self.past: list[Schedule] = []
        """Schedules that broke nothing."""
        self.law = ""
        """The law that the first break was of; its smallest case may show in another."""
        self.smallest: Smallest | None = None

    @property
    def done(self) -> int:
        """How many schedules were run."""
        return len(self.past) + (self.smallest is not None)

    def close(self) -> None:
        self.attempts.close()

    def all(self) -> None:
        """Run all schedules. Raises: EngineRefused, EngineDied, EngineFailed at start."""
        self.attempts.begin()
        options, started = self.attempts.options, self.attempts.started
        assert started is not None
        self.judge.found.counts.setdefault(self.name, [0, 0])
        if options.drafter is not None:
            with suppress(NoOracle):
                self.attempts.drafter = Oracle(read(Path(options.drafter)), started.dtype, started.state)
        strategy = schedules(self.judge.vocabulary, self.attempts.offer, options.slots)

        @seeded(self.judge.seed)
        @settings(
            max_examples=self.judge.many, deadline=None, database=None, phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck), report_multiple_bugs=False, print_blob=False,
        )  # fmt: skip
        @given(schedule=strategy)
        def every(schedule: Schedule) -> None:
            self.one(schedule)

        try:
            with by_seed_alone(), without_the_clock():
                every()
        except Broken:
            pass
        except HypothesisException as error:  # the failure is not reproducible, or the time for shrinking has run out
            if self.smallest is None:
                self.judge.found.notes.append(f"{self.name}: {error}")
        if self.smallest is not None:
            self.smallest.reduce()
            self.told(self.smallest)
        elif self.judge.samples and self.judge.oracle is not None and "sample" in started.can:
            self.sampled(self.judge.oracle)
        if self.attempts.zero is not None and self.judge.oracle is not None:
            small = self.smaller_zero(self.judge.oracle, self.attempts.zero)
            line = f"prompt {list(small.request.ids)}, most {small.request.most}"
            self.judge.found.failures.append(Failure(self.name, DRAFTED, str(small), (line,)))

    def one(self, schedule: Schedule) -> None:
        """Run a schedule. Raises: Broken, always from one line, by which hypothesis knows that it is the same break; what
        hypothesis draws another schedule for, where the plain run has no answer to a prompt of this one."""
        broken = self.first(schedule) if self.smallest is None else self.smallest.smaller(schedule)
        if self.attempts.unknown and self.smallest is None:
            reject()
        if broken:
            raise Broken

    def first(self, schedule: Schedule) -> bool:
        """Whether a schedule breaks; the first that does is run again by a new engine, and each of its requests alone."""
        self.judge.watch(f"{self.name}: schedule {self.done + 1} of {self.judge.many}", False)
        broken = self.attempts.tried(schedule)
        if self.attempts.unknown:
            return False
        self.judge.found.schedules += 1
        if broken is None:
            self.past.append(schedule)
            return False
        self.law = broken[0].law
        self.smallest = Smallest(self.attempts, schedule, broken, self.past)
        try:
            self.smallest.repeat()
        except SpecError as error:  # of the oracle, which looks for a cause
            self.judge.found.notes.append(f"{self.name}: the failure could not be reduced: {type(error).__name__}: {error}")
        return True

    def smaller_zero(self, oracle: Oracle, finding: Finding) -> Finding:
        """The same of a shorter prompt, alone and greedy: suffixes of the prompt, from one token on."""
        ids = finding.request.ids
        with suppress(EngineRefused, EngineFailed, EngineDied):
            self.attempts.begin()
            assert self.attempts.engine is not None
            for length in range(1, len(ids) + 1):
                request = Request(ids=ids[-length:], most=LONGEST)
                other = zero(oracle, request, self.attempts.engine.generate((request,))[0])
                if other is not None:
                    return other
        return finding

    def sampled(self, oracle: Oracle) -> None:
        """The law of sampled tokens. Raises: EngineDied."""
        if self.attempts.engine is None:
            self.attempts.begin()
        assert self.attempts.engine is not None
        assert self.attempts.started is not None
        asked = sampled.requests(self.judge.samples, self.judge.vocabulary)
        width = self.attempts.options.slots if "batch" in self.attempts.started.can else 1
        answers: list[Answer] = []
        while len(answers) < len(asked):
            some = asked[len(answers) : len(answers) + width]
            try:
                answers += self.attempts.engine.generate(tuple(some))
            except EngineRefused:
                if width == 1:
                    raise
                width = 1
            except EngineFailed as error:
                failed = self.failing(some, error)
                line = f"prompt {list(failed.request.ids)}, most {failed.request.most}"
                line += f", temperature {failed.request.temperature:g}, seed {failed.request.seed}"
                self.judge.found.count(self.name, "sampled law", "died")
                self.judge.found.failures.append(Failure(self.name, "sampled law", f"died: {failed.why}", (line,)))
                return
        outcome, finding = sampled.law(oracle, asked, answers)
        self.judge.found.count(self.name, "sampled law", outcome)
        if finding is not None:
            line = f"{len(asked)} requests of {sampled.TOKENS} tokens at temperature {sampled.TEMPERATURE}"
            self.judge.found.failures.append(Failure(self.name, "sampled law", str(finding), (line,)))

    def failing(self, requests: Sequence[Request], error: EngineFailed) -> Finding:
        """The shortest request that fails so alone, of the last tokens of one of `requests`; the first if none does."""
        assert self.attempts.engine is not None
        found = failure_of(requests[0], error)
        for request in requests:
            for length in range(1, len(request.ids) + 1):
                try:
                    self.attempts.engine.generate((request.model_copy(update={"ids": request.ids[-length:]}),))
                except EngineFailed as again:
                    other = failure_of(request.model_copy(update={"ids": request.ids[-length:]}), again)
                    if other.kind == found.kind:
                        return other
        return found

    def told(self, smallest: Smallest) -> None:
        """Report the failure, under the law that its smallest schedule violates."""
        schedule, finding, says = smallest.schedule, smallest.finding, smallest.says
        assert self.attempts.started is not None
        left = [
            name
            for name in features(schedule, self.attempts.started)
            if name != "stop" or finding.expected is None or finding.came is None
        ]
        own = finding.law in ("drafter followed", *COUNTED) or finding.law == self.law == KEPT
        law = finding.law if own else purpose(self.name)
        if left and (law == "repeated" or self.judge.found.outcome("plain", left[0]) == "differs"):
            law = left[0]
        if finding.expected is None or finding.came is None:
            law = "stop" if finding.law != "died" else purpose(self.name)
        lines = (*(["slots 1"] if self.attempts.options.slots == 1 else []), *told(schedule))
        if finding.law == "died":
            self.judge.found.failures.append(Failure(self.name, law, f"died: {finding.why}", lines, says))
            self.judge.found.count(self.name, law, "died")
            return
        beside = f"needs: {', '.join(left)}; " if left and law not in left[:1] else ""
        self.judge.found.count(self.name, law, "differs")
        self.judge.found.failures.append(Failure(self.name, law, f"{beside}{finding}", lines, says))
