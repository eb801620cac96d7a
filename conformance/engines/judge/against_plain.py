"""What every configuration is compared with: the outputs of a plain run, itself compared with the oracle.

The plain run is a separate process, which answers one request at a time.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ..diagnosis import explained
from ..errors import EngineFailed, PlainFailed
from ..laws import Finding, failure_of, reported, same_model
from ..oracle import Oracle
from ..protocol import Answer, Engine, Request
from ..schedules import LONGEST
from .found import Failure, Found, purpose

Key = tuple[tuple[int, ...], float, int]
"""A prompt, its temperature and its seed."""
MOST_FAILED = 0.5
"""Where the plain run fails at more than this part of its prompts, at least `FEW`, there is nothing to compare with."""
FEW = 12
SHRINKING = 90.0
"""Seconds of work to spend on shrinking a failure, unless the user says otherwise."""


class AgainstPlain:
    """What a configuration is judged by: the plain outputs, the oracle, and what was found so far.

    `open_engine` starts a process; without `weights`, *same model?* is not tested. `watch` gets a line for each schedule that
    begins, and one, with True, for each configuration that ended. After `most` failures no other configuration is run.
    """

    def __init__(
        self,
        open_engine: Callable[[], Engine],
        model: str,
        weights: Any,
        schedules: int,
        seed: int = 0,
        watch: Callable[[str, bool], None] = lambda line, ended: None,
        vocabulary: int = 64,
        open_plain: Callable[[], Engine] | None = None,
        samples: int = 0,
        shrinking: float | None = None,
        most: int | None = None,
    ) -> None:
        self.samples, self.most = samples, most
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
        self.can: tuple[str, ...] = ()
        """What the plain run said that it can do."""
        self.failed: set[str] = set()
        """The kinds of errors that the plain run answered with."""
        self.plain: Engine | None = None
        self.known: dict[Key, tuple[int, ...] | PlainFailed] = {}
        """What the plain run answered to a prompt, or that it failed there."""

    def expect(self, ids: tuple[int, ...], temperature: float = 0.0, seed: int = 0) -> tuple[int, ...]:
        """The plain output of a prompt, alone and without stop tokens; compared with the oracle at first use.

        Raises: PlainFailed for a prompt at which the plain run fails and lives; EngineFailed where it fails at most of them;
        EngineDied, EngineRefused.
        """
        key = ids, temperature, seed if temperature else 0
        if key not in self.known:
            assert self.plain is not None
            request = Request(ids=ids, most=LONGEST, temperature=temperature, seed=seed)
            try:
                answer = self.plain.generate((request,))[0]
            except EngineFailed as error:
                self.known[key] = self.unanswered(request, error)
            else:
                self.known[key] = answer.ids
                self.model_of(request, answer)
        known = self.known[key]
        if isinstance(known, PlainFailed):
            raise known
        return known

    def unanswered(self, request: Request, error: EngineFailed) -> PlainFailed:
        """A prompt at which the plain run failed; the first of each kind is reported with the shortest that fails so.

        Raises: EngineFailed where it fails at most prompts.
        """
        failed = sum(isinstance(one, PlainFailed) for one in self.known.values())
        if failed >= max(FEW, MOST_FAILED * len(self.known)):
            raise error
        finding = failure_of(request, error)
        if finding.kind not in self.failed:
            self.failed.add(finding.kind)
            finding = self.shortest(finding)
            prompt = f"prompt {list(finding.request.ids)}, most {finding.request.most}"
            self.found.failures.append(Failure("plain", purpose("plain"), f"died: {finding.why}", (prompt,)))
        self.found.count("plain", purpose("plain"), "died")
        return PlainFailed(str(error))

    def shortest(self, finding: Finding) -> Finding:
        """The same failure of a shorter prompt: of the token 1 alone, then of the prompt's last tokens."""
        assert self.plain is not None
        ids = finding.request.ids
        for length in range(1, len(ids) + 1):
            for some in ((1,) * length, ids[-length:]):
                request = Request(ids=some, most=LONGEST)
                try:
                    self.plain.generate((request,))
                except EngineFailed as error:
                    other = failure_of(request, error)
                    if other.kind == finding.kind:
                        return other
        return finding

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
