"""The judge over an engine of a few lines: what passes, what a fault shrinks to, what is never green."""

import itertools
import json
import sys
import time
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from conformance.engines import cli, sampled
from conformance.engines.errors import EngineDied, EngineFailed, EngineRefused
from conformance.engines.judge import Found, Judge, purpose
from conformance.engines.judge.run import Run
from conformance.engines.judge.smallest import Smallest
from conformance.engines.laws import Finding, cut, lossless
from conformance.engines.protocol import Answer, Options, Request, Started
from conformance.engines.schedules import LENGTHS, lengths
from conformance.engines.table import show, write
from conformance.refusal import FAILED, REFUSED
from ssmspec_ref.errors import SpecError
from tests.commands import call, holds

SPECULATING = {"plain": Options(), "ngram-4": Options(speculation="ngram")}
CACHED = {"plain": Options(), "cache": Options(cache=True)}
TIGHT = {"plain": Options(), "tight": Options(slots=3, tokens=96)}
GRAPHS = {"plain": Options(), "graphs": Options(graphs=True)}


def following(ids: tuple[int, ...], seed: int = 0) -> int:
    return (7 * sum(ids) + 3 * ids[-1] + len(ids) + seed) % 63 + 1


@dataclass
class Few:
    """Continues by arithmetic. `fault` says what it does wrong, `also` what else it can; one that is `single` starts once."""

    fault: str = ""
    also: tuple[str, ...] = ()
    once: bool = False
    single: bool = False
    started: bool = False

    def start(self, model: str, options: Options) -> Started:
        if options.cache:
            raise EngineRefused("no cache")
        if self.single and self.started:
            raise EngineFailed("'_lib_fn_wrapper' object has no attribute 'get'")
        self.started, self.speculates, self.calls = True, bool(options.speculation), 0
        self.room, self.recorded = options.tokens, list[int]() if options.graphs else None
        can = ("batch", "join", "stop", "seed", "cancel", *self.also)
        return Started(name="few", version="1", dtype="float32", can=can)

    def error(self, requests: tuple[Request, ...]) -> str:
        """What a call ends with, if it does."""
        longest, ids = max(len(request.ids) for request in requests), requests[0].ids
        repeated = len(requests) == 1 and ids == ids[:1] * 3
        return {
            "fails": "IndexError" * self.speculates,
            "always": "out of order",
            "short": "expect x to be transposed"
            if min(len(request.ids) for request in requests) == 1
            else f"tensor a (7) must match tensor b ({longest})" * (self.speculates and longest >= 4),
            "fragile": "tensor a (7) must match tensor b (6)" * (self.speculates and (self.calls == 6 or repeated)),
            "five": "CPU Generator does not use offset" * (longest >= 5),
        }.get(self.fault, "")

    def generate(self, requests: tuple[Request, ...]) -> tuple[Answer, ...]:
        self.calls += 1
        if self.fault == "dies" and self.speculates and self.calls > 3:
            raise EngineDied("ended by signal 11")
        if said := self.error(requests):
            raise EngineFailed(said)
        first, *rest = (self.one(request, requests) for request in requests)
        lost = self.room is not None and len(requests) > 1 and self.fault != "roomy"
        token = first.ids[0] % 63 + 1 if lost and self.fault == "forgets" else first.ids[0]
        if self.recorded is not None:
            self.recorded.append(token)
            token = self.recorded[0] if self.fault == "stale" else token
        return first.model_copy(update={"ids": (token, *first.ids[1:]), "preempted": int(lost)}), *rest

    def one(self, request: Request, beside: tuple[Request, ...]) -> Answer:
        ids = list(request.ids)
        wrong = self.speculates and (
            (self.fault == "long" and len(ids) >= 3)
            or (self.fault == "batch" and len(beside) > 1)
            or (self.fault == "cancel" and any(one.cancel for one in beside))
            or (self.fault == "later" and self.calls > 5)
        )
        while len(ids) < len(request.ids) + request.most:
            token = following(tuple(ids), request.seed if request.temperature else 0)
            ids.append(token % 63 + 1 if wrong and len(ids) == len(request.ids) + 1 else token)
            if ids[-1] in request.stop and not (self.fault == "stop" and self.speculates):
                break
        said = tuple(ids[len(request.ids) :])
        cancelled = request.cancel and len(said) > request.cancel
        active = self.fault != "idle"
        said, finish = (said[: request.cancel], "cancelled") if cancelled else (said, "length")
        return Answer(ids=said, finish=finish, drafted=4 * active, accepted=1 * active)

    def close(self) -> None:
        return


def judged(fault: str, schedules: int = 40, options: Any = SPECULATING, most: int = 0, **few: Any) -> Found:
    more = {"shrinking": 0.0, "most": most} if most else {}
    return Judge(lambda: Few(fault, **few), "model", None, schedules, **more).run(options)


def shown(found: Found, **console: Any) -> str:
    """The table of what was found."""
    text = StringIO()
    show(Console(file=text, **{"width": 200} | console), {"model": found})
    return text.getvalue()


def test_a_right_engine_is_green_and_every_law_of_its_features_was_exercised() -> None:
    found = judged("")
    assert found.green, found.failures
    laws = {law for configuration, law in found.cells if found.outcome(configuration, law) == "passed"}
    assert {"repeated", "speculation", "batch", "join", "cancel", "stop", "continuation", "fork", "seed"} <= laws
    assert found.schedules == 80


@pytest.mark.parametrize(
    ("fault", "law", "lines"), [("long", "speculation", 1), ("batch", "speculation", 2), ("stop", "stop", 1)]
)
def test_a_fault_is_shrunk_to_its_smallest_schedule(fault: str, law: str, lines: int) -> None:
    found = judged(fault)
    (failure,) = found.failures
    assert not found.green
    assert (failure.configuration, failure.law, len(failure.schedule)) == ("ngram-4", law, lines)
    if fault == "long":
        assert failure.schedule[0].startswith("round 0, request 0: prompt [")
        assert failure.schedule[0].count(",") == 4  # three tokens
        assert failure.schedule[0].endswith("most 2")  # the second token of the answer is wrong


def test_a_run_that_stops_early_says_which_configurations_it_left_and_is_not_green(tmp_path: Path) -> None:
    asked = SPECULATING | {"chunk-8": Options(chunk=8), "cache": Options(cache=True)}
    found = judged("long", 8, asked, most=1)
    assert len(found.failures) == 1
    assert found.not_run == ["chunk-8", "cache"]
    assert not found.green
    assert "the run stopped early; these configurations were not run: chunk-8, cache" in shown(found)
    write(tmp_path / "report.json", "few", {"model": found}, 0)
    told = json.loads((tmp_path / "report.json").read_text())["checkpoints"]["model"]
    assert (told["not_run"], told["green"]) == (["chunk-8", "cache"], False)
    assert not judged("long", 8, asked, most=2).not_run
    right = judged("", 8)
    assert right.green
    right.not_run = ["cache"]
    assert not right.green, "whatever passed"


def test_a_busy_machine_shrinks_a_schedule_as_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load is simulated: between two looks at a clock on the wall an hour passes."""
    idle = judged("batch").failures
    wall = itertools.count(0, 3600)
    for name in ("monotonic", "perf_counter", "time"):
        monkeypatch.setattr(time, name, lambda: float(next(wall)))
    assert judged("batch").failures == idle


def test_a_fault_that_needs_what_came_before_is_shrunk_with_it() -> None:
    """It shows in the sixth request of an engine: six requests are left, one after another."""
    (failure,) = judged("later").failures
    assert failure.schedule[0] == "slots 1"
    assert [line.partition(":")[0] for line in failure.schedule[1:]] == [f"round {n}, request {n}" for n in range(6)]
    assert all("prompt [1], most 1" in line for line in failure.schedule[1:-1])


def test_an_engine_that_starts_once_is_told_what_came_before() -> None:
    (failure,) = judged("later", once=True).failures
    assert "schedules before it" in failure.explained


def test_an_error_of_the_oracle_while_a_cause_is_sought_leaves_the_failure_and_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def repeat(self: Smallest) -> None:
        raise SpecError("the window holds 0 tokens")

    monkeypatch.setattr(Smallest, "repeat", repeat)
    found = judged("long")
    assert found.outcome("ngram-4", "speculation") == "differs"
    assert found.notes == ["ngram-4: the failure could not be reduced: SpecError: the window holds 0 tokens"]


@pytest.mark.parametrize(
    ("fault", "options", "also", "law", "outcome"),
    [
        ("dies", SPECULATING, (), "speculation", "died"),
        ("fails", SPECULATING, (), "speculation", "died"),
        ("idle", SPECULATING, (), "speculation", "not exercised"),
        ("", CACHED, (), "cache", "refused"),
        ("", {"cache": Options(cache=True)}, (), "cache", "refused"),
        ("", TIGHT, ("preempt",), "preemption", "passed"),
        ("roomy", TIGHT, ("preempt",), "preemption", "not exercised"),
        ("forgets", TIGHT, ("preempt",), "preemption", "differs"),
        ("", TIGHT, (), "preemption", "refused"),
        ("", GRAPHS, ("graphs",), "graphs", "passed"),
        ("stale", GRAPHS, ("graphs",), "graphs", "differs"),
        ("", GRAPHS, (), "graphs", "refused"),
    ],
)
def test_what_an_engine_does_is_told_of_its_last_configuration_and_green_if_all_passes(
    fault: str, options: dict[str, Options], also: tuple[str, ...], law: str, outcome: str
) -> None:
    """What is refused is no failure and no pass; steps that are recorded are judged as others; preemption counts only where
    it happened."""
    found = judged(fault, 30, options, also=also)
    *before, last = options
    assert found.outcome(last, law) == outcome
    assert found.green == (outcome == "passed" or (outcome == "refused" and bool(before)))
    assert found.red == (outcome in ("differs", "died"))
    assert all(found.outcome(plain, "repeated") == "passed" for plain in before)
    if outcome == "refused":
        assert found.refusals == {last: found.refusals[last]}
        assert (f'"{also_of(law)}" in `can`' if law != "cache" else "no cache") in found.refusals[last]
    if law == "preemption" and also:
        assert (found.preempted["tight"] > 5) == (outcome == "passed")
        assert (f"preempted: {found.preempted['tight']} times (tight)" in shown(found)) == (fault != "roomy")


def also_of(law: str) -> str:
    return {"preemption": "preempt"}.get(law, law)


def test_what_is_not_asked_for_is_not_sent() -> None:
    assert "graphs" not in Options().model_dump(exclude_none=True)


def test_a_prompt_that_the_plain_run_fails_at_is_one_finding_and_hides_no_other() -> None:
    """Each is told with its own smallest case, and schedules without such a prompt are judged."""
    found = judged("short")
    plain, drafts = found.failures
    assert (plain.configuration, plain.law, plain.schedule) == ("plain", "repeated", ("prompt [1], most 14",))
    assert plain.finding == "died: EngineFailed: expect x to be transposed"
    assert (drafts.configuration, drafts.law) == ("ngram-4", "speculation")
    assert drafts.finding == "died: EngineFailed: tensor a (7) must match tensor b (4)"
    assert [line.count(",") for line in drafts.schedule] == [5]  # four tokens
    assert found.outcome("plain", "repeated") == "died"
    assert found.outcome("plain", "batch") == "passed"
    assert not found.green


def test_an_engine_that_fails_at_every_prompt_ends_soon_and_is_red() -> None:
    found = judged("always")
    assert found.outcome("plain", "repeated") == found.outcome("ngram-4", "speculation") == "died"
    assert not found.green
    assert found.schedules <= 2


def test_a_sampled_request_that_fails_is_told_with_the_fewest_last_tokens() -> None:
    run = Run(Judge(lambda: Few("five"), "model", None, 1), "chunk-8", Options())
    run.attempts.engine = Few("five")
    run.attempts.engine.start("model", Options())
    asked = sampled.requests(4, 64)
    found = run.failing(asked, EngineFailed("CPU Generator does not use offset"))
    assert found.request.ids == asked[0].ids[-5:]
    assert found.request.seed == asked[0].seed
    assert run.failing(asked, EngineFailed("another")).request == asked[0]


def test_drafts_that_are_not_counted_are_not_observable_and_not_green() -> None:
    found = Found(counts={"ngram-4": [0, 0]})
    found.count("ngram-4", "speculation", "passed")
    assert found.outcome("ngram-4", "speculation") == "not observable"
    assert not found.green
    assert not found.red
    assert "ngram-4: not observable: the engine does not say" in shown(found)
    found.told.add("ngram-4")
    assert found.outcome("ngram-4", "speculation") == "not exercised"


def test_an_engine_that_cannot_start_again_is_told_and_its_failure_is_made_small_in_new_processes() -> None:
    found = judged("long", single=True)
    again, failure = found.failures
    assert (again.configuration, again.law) == ("ngram-4", "started again")
    assert "_lib_fn_wrapper" in again.finding
    assert (failure.law, len(failure.schedule)) == ("speculation", 1)
    assert found.outcome("ngram-4", "started again") == "died"
    assert judged("long").outcome("ngram-4", "started again") == "passed"


def test_an_error_that_no_request_of_its_schedule_gives_alone_is_sought_in_others() -> None:
    """Under speculation its sixth call fails, and so does a prompt of one token three times."""
    (failure,) = judged("fragile", once=True).failures
    (line,) = failure.schedule
    ids = json.loads(line.partition("prompt ")[2].partition(", most")[0])
    assert ids == ids[:1] * 3
    assert line.endswith("most 1")
    assert "schedules before it" not in failure.explained


def test_prompts_are_drawn_around_the_blocks_that_an_engine_keeps() -> None:
    assert lengths(None) == LENGTHS
    drawn = lengths(32)
    assert {25, 31, 32, 33} <= set(drawn)
    assert sum(n >= 25 for n in drawn) >= len(drawn) / 2
    assert min(lengths(1)) == 1


def test_a_configuration_that_the_user_named_and_the_engine_refuses_is_not_green() -> None:
    found = Found(refusals={"cache": "no cache"}, counts={"plain": [0, 0], "cache": [0, 0]})
    found.count("plain", "repeated", "passed")
    found.count("cache", "cache", "refused")
    assert found.green, "a configuration of the tier that the engine does not have"
    found.named = frozenset({"cache"})
    assert not found.green
    assert not found.red
    assert "cache: refused: no cache" in shown(found)


@pytest.mark.parametrize("terminal", [False, True])
def test_a_table_in_a_file_or_a_pipe_is_as_wide_as_its_names(terminal: bool) -> None:
    """A terminal of 40 columns wraps it."""
    found = Found()
    configurations = [f"configuration-{n}" for n in range(9)]
    for name in configurations:
        found.count(name, "log-probabilities of drafted tokens", "passed")
    said = shown(found, width=40, force_terminal=terminal)
    for name in (*configurations, "log-probabilities of drafted tokens"):
        assert (name in said) is not terminal


STARTS_ONCE = """
import json, os, sys
for line in sys.stdin:
    said = json.loads(line)
    if "start" in said["do"] and os.path.exists("started"):
        sys.exit("no memory left")
    open("started", "w").close()
    print(json.dumps({"refused": "nothing"}), flush=True)
"""


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("sh -c 'echo no model >&2; exit 3'", REFUSED, "ended with exit code 3 | no model"),
        ("sh -c 'kill -9 $$'", REFUSED, "ended by signal 9"),
        ("echo hello", REFUSED, "printed something that is not an answer: hello"),
        (
            f"{sys.executable} {{}}/engine.py",
            FAILED,
            "plain: repeated: NotStarted: ended with exit code 1 | no memory left",
        ),
    ],
    ids=["exits", "killed", "prints", "starts once"],
)
def test_an_engine_that_does_not_start_is_refused_and_one_that_started_once_has_died(
    command: str, code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "engine.py").write_text(STARTS_ONCE)
    monkeypatch.chdir(tmp_path)
    words = ("--family", "mamba2", "--family", "qwen3_5", "--tier", "smoke")
    made = call("engine", "--engine", f"program:{command.format(tmp_path)}", *words)
    assert made.exit_code == code, made.output
    holds(made.output, said)
    report = tmp_path / "engine-report.json"
    if code == REFUSED:
        assert made.stderr.splitlines()[-1].startswith(f"NotStarted: program:{command} did not start")
        assert made.stdout == "", "no table that says died"
        assert not report.exists()
    else:
        assert json.loads(report.read_text())["checkpoints"].keys() == {"mamba2", "qwen3_5"}


@pytest.mark.parametrize(
    ("configuration", "law"),
    [("plain", "repeated"), ("ngram-4 chunk-8", "speculation"), ("chunk-8", "chunk"), ("cache", "cache")],
)
def test_each_configuration_has_a_law_that_it_is_there_for(configuration: str, law: str) -> None:
    assert purpose(configuration) == law


def test_a_stop_comes_before_the_budget() -> None:
    assert cut((5, 6, 7, 8), 3, ()) == (5, 6, 7)
    assert cut((5, 6, 7, 8), 3, (6, 7)) == (5, 6)
    assert cut((5, 6, 7, 8), 3, (7,)) == (5, 6, 7)


def test_without_an_oracle_no_difference_is_a_near_tie() -> None:
    request = Request(ids=(1,), most=3)
    assert lossless(None, request, (1, 2, 3), Answer(ids=(1, 2, 3)))[0] == "passed"
    outcome, finding = lossless(None, request, (1, 2, 3), Answer(ids=(1, 9, 3)))
    assert outcome == "differs"
    assert isinstance(finding, Finding)
    assert (finding.at, finding.expected, finding.came) == (1, 2, 9)
    assert lossless(None, request, (1, 2, 3), Answer(ids=(1, 2)))[0] == "differs"
    asked = Request(ids=(1,), most=3, cancel=2)
    assert lossless(None, asked, (1, 2, 3), Answer(ids=(1, 2), finish="cancelled"))[0] == "passed"
    assert lossless(None, request, (1, 2, 3), Answer(ids=(1, 2), finish="cancelled"))[0] == "differs"


def test_progress_names_schedules_now_and_then_and_every_configuration_that_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, shown = iter([0.0, 5.0, 21.0, 21.0, 30.0, 50.0]), StringIO()
    monkeypatch.setattr(cli.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(cli, "left", lambda *given: ", left")
    watch = cli.Watch(Console(file=shown), 2)
    watch("plain: schedule 1 of 8", False)
    watch("plain: schedule 3 of 8", False)
    watch("plain: schedule 4 of 8", False)
    watch("plain: 8 schedules, 40 s", True)
    assert shown.getvalue().splitlines() == ["  0/2  plain: schedule 3 of 8", "  1/2  plain: 8 schedules, 40 s, left"]


def test_the_judge_tells_every_schedule_before_it_runs() -> None:
    told: list[tuple[str, bool]] = []
    Judge(Few, "model", None, 3, watch=lambda line, ended: told.append((line, ended))).run({"plain": Options()})
    assert [line for line, ended in told if not ended] == [f"plain: schedule {n} of 3" for n in (1, 2, 3)]
    assert [ended for _, ended in told] == [False, False, False, True]
