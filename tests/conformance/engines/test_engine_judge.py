"""The judge over an engine of a few lines: what passes, what a fault shrinks to, what is never green."""

import itertools
import json
import sys
import time
from dataclasses import dataclass, field
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
from conformance.main import main
from ssmspec_ref.errors import SpecError

SPECULATING = {"ngram-4": Options(speculation="ngram")}


def following(ids: tuple[int, ...], seed: int = 0) -> int:
    return (7 * sum(ids) + 3 * ids[-1] + len(ids) + seed) % 63 + 1


@dataclass
class Few:
    """Continues by arithmetic. `fault` says what it does wrong under speculation."""

    fault: str = ""
    speculates: bool = False
    calls: int = 0
    kept: list[int] = field(default_factory=list)

    def start(self, model: str, options: Options) -> Started:
        if options.cache:
            raise EngineRefused("no cache")
        self.speculates, self.calls = bool(options.speculation), 0
        can = ("batch", "join", "stop", "seed", "cancel")
        return Started(name="few", version="1", dtype="float32", can=can)

    def generate(self, requests: tuple[Request, ...]) -> tuple[Answer, ...]:
        self.calls += 1
        if self.fault == "dies" and self.speculates and self.calls > 3:
            raise EngineDied("ended by signal 11")
        if self.fault == "fails" and self.speculates:
            raise EngineFailed("IndexError")
        if self.fault == "short":
            lengths = [len(request.ids) for request in requests]
            if min(lengths) == 1:
                raise EngineFailed("expect x to be transposed")
            if self.speculates and max(lengths) >= 4:
                raise EngineFailed(f"tensor a (7) must match tensor b ({max(lengths)})")
        if self.fault == "always":
            raise EngineFailed("out of order")
        return tuple(self.one(request, requests) for request in requests)

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
        active = self.fault != "idle"
        if request.cancel and len(said) > request.cancel:
            return Answer(ids=said[: request.cancel], finish="cancelled", drafted=4 * active, accepted=1 * active)
        return Answer(ids=said, finish="length", drafted=4 * active, accepted=1 * active)

    def close(self) -> None:
        return


def judged(fault: str, schedules: int = 40) -> Found:
    return Judge(lambda: Few(fault), "model", None, schedules).run({"plain": Options(), **SPECULATING})


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
    asked = {"plain": Options(), **SPECULATING, "chunk-8": Options(chunk=8), "cache": Options(cache=True)}
    found = Judge(lambda: Few("long"), "model", None, 8, shrinking=0.0, most=1).run(asked)
    assert len(found.failures) == 1
    assert found.not_run == ["chunk-8", "cache"]
    assert not found.green
    console = Console(file=StringIO(), width=160)
    show(console, {"model": found})
    said = "the run stopped early; these configurations were not run: chunk-8, cache"
    assert said in console.file.getvalue()  # type: ignore[attr-defined]
    write(tmp_path / "report.json", "few", {"model": found}, 0)
    told = json.loads((tmp_path / "report.json").read_text())["checkpoints"]["model"]
    assert (told["not_run"], told["green"]) == (["chunk-8", "cache"], False)
    assert not Judge(lambda: Few("long"), "model", None, 8, shrinking=0.0, most=2).run(asked).not_run


def test_what_was_left_is_not_green_whatever_passed() -> None:
    found = judged("", 8)
    found.not_run = ["cache"]
    assert not found.green


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


def test_an_engine_that_starts_once_is_told_what_came_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Few, "once", True, raising=False)
    (failure,) = judged("later").failures
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


@pytest.mark.parametrize("fault", ["dies", "fails"])
def test_an_engine_that_dies_or_fails_is_red(fault: str) -> None:
    found = judged(fault)
    assert not found.green
    assert found.outcome("ngram-4", "speculation") == "died"


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
    class Long(Few):
        def generate(self, requests: tuple[Request, ...]) -> tuple[Answer, ...]:
            if max(len(request.ids) for request in requests) >= 5:
                raise EngineFailed("CPU Generator does not use offset")
            return super().generate(requests)

    run = Run(Judge(Long, "model", None, 1), "chunk-8", Options())
    run.attempts.engine = Long()
    asked = sampled.requests(4, 64)
    found = run.failing(asked, EngineFailed("CPU Generator does not use offset"))
    assert found.request.ids == asked[0].ids[-5:]
    assert found.request.seed == asked[0].seed
    assert run.failing(asked, EngineFailed("another")).request == asked[0]


def test_drafts_that_were_never_accepted_are_not_exercised_and_not_green() -> None:
    found = judged("idle")
    assert found.outcome("ngram-4", "speculation") == "not exercised"
    assert not found.red
    assert not found.green


def test_drafts_that_are_not_counted_are_not_observable_and_not_green() -> None:
    found = Found(counts={"ngram-4": [0, 0]})
    found.count("ngram-4", "speculation", "passed")
    assert found.outcome("ngram-4", "speculation") == "not observable"
    assert not found.green
    assert not found.red
    console = Console(file=StringIO(), width=200)
    show(console, {"model": found})
    assert "ngram-4: not observable: the engine does not say" in console.file.getvalue()  # type: ignore[attr-defined]
    found.told.add("ngram-4")
    assert found.outcome("ngram-4", "speculation") == "not exercised"


def test_a_configuration_that_is_refused_is_no_failure_and_no_pass() -> None:
    found = Judge(Few, "model", None, 5).run({"plain": Options(), "cache": Options(cache=True)})
    assert found.outcome("cache", "cache") == "refused"
    assert found.refusals == {"cache": "no cache"}


@dataclass
class Tight(Few):
    """Has room for few tokens where it is asked to, so that of two requests the first loses its place."""

    room: int | None = None

    def start(self, model: str, options: Options) -> Started:
        self.room = options.tokens
        said = super().start(model, options)
        return said.model_copy(update={"can": (*said.can, "preempt")})

    def generate(self, requests: tuple[Request, ...]) -> tuple[Answer, ...]:
        answers = super().generate(requests)
        lost = self.room is not None and len(requests) > 1 and self.fault != "roomy"
        if lost and self.fault == "forgets":
            ids = answers[0].ids
            answers = (answers[0].model_copy(update={"ids": (ids[0] % 63 + 1, *ids[1:])}), *answers[1:])
        return (answers[0].model_copy(update={"preempted": int(lost)}), *answers[1:])


@pytest.mark.parametrize(("fault", "outcome"), [("", "passed"), ("roomy", "not exercised"), ("forgets", "differs")])
def test_preemption_counts_only_where_it_happened(fault: str, outcome: str) -> None:
    found = Judge(lambda: Tight(fault), "model", None, 30).run({"plain": Options(), "tight": Options(slots=3, tokens=96)})
    assert found.outcome("tight", "preemption") == outcome
    assert found.green == (outcome == "passed")
    assert (found.preempted["tight"] > 5) == (outcome == "passed")
    console = Console(file=StringIO(), width=200)
    show(console, {"model": found})
    said = f"preempted: {found.preempted['tight']} times (tight)"
    assert (said in console.file.getvalue()) == (fault != "roomy")  # type: ignore[attr-defined]


def test_an_engine_that_cannot_be_made_to_preempt_is_not_asked_to() -> None:
    found = Judge(Few, "model", None, 5).run({"plain": Options(), "tight": Options(slots=3, tokens=96)})
    assert '"preempt" in `can`' in found.refusals["tight"]
    assert found.green


@dataclass
class Recording(Few):
    """Records its steps where it is asked to. With the fault `stale` a step that is replayed gives its first token again."""

    recorded: list[int] | None = None

    def start(self, model: str, options: Options) -> Started:
        self.recorded = [] if options.graphs else None
        said = super().start(model, options)
        return said.model_copy(update={"can": (*said.can, "graphs")})

    def generate(self, requests: tuple[Request, ...]) -> tuple[Answer, ...]:
        answers = super().generate(requests)
        if self.fault != "stale" or self.recorded is None:
            return answers
        self.recorded.append(answers[0].ids[0])
        return (answers[0].model_copy(update={"ids": (self.recorded[0], *answers[0].ids[1:])}), *answers[1:])


@pytest.mark.parametrize(("fault", "outcome"), [("", "passed"), ("stale", "differs")])
def test_steps_that_are_recorded_are_judged_as_those_that_are_not(fault: str, outcome: str) -> None:
    found = Judge(lambda: Recording(fault), "model", None, 20).run({"plain": Options(), "graphs": Options(graphs=True)})
    assert found.outcome("graphs", "graphs") == outcome
    assert found.green == (outcome == "passed")
    assert found.outcome("plain", "repeated") == "passed"


def test_an_engine_that_records_no_steps_is_not_asked_to() -> None:
    found = Judge(Few, "model", None, 5).run({"plain": Options(), "graphs": Options(graphs=True)})
    assert '"graphs" in `can`' in found.refusals["graphs"]
    assert found.green
    assert "graphs" not in Options().model_dump(exclude_none=True)


@dataclass
class Single(Few):
    """Whatever it has run, it cannot start again."""

    started: bool = False

    def start(self, model: str, options: Options) -> Started:
        if self.started:
            raise EngineFailed("'_lib_fn_wrapper' object has no attribute 'get'")
        self.started = True
        return super().start(model, options)


def test_an_engine_that_cannot_start_again_is_told_and_its_failure_is_made_small_in_new_processes() -> None:
    found = Judge(lambda: Single("long"), "model", None, 40).run({"plain": Options(), **SPECULATING})
    again, failure = found.failures
    assert (again.configuration, again.law) == ("ngram-4", "started again")
    assert "_lib_fn_wrapper" in again.finding
    assert (failure.law, len(failure.schedule)) == ("speculation", 1)
    assert found.outcome("ngram-4", "started again") == "died"
    assert judged("long").outcome("ngram-4", "started again") == "passed"


@dataclass
class Fragile(Few):
    """Starts once in a process. Under speculation its sixth call fails, and so does a prompt of one token three times."""

    once: bool = True

    def generate(self, requests: tuple[Request, ...]) -> tuple[Answer, ...]:
        answers = super().generate(requests)
        ids = requests[0].ids
        if self.speculates and (self.calls == 6 or (len(requests) == 1 and ids == ids[:1] * 3)):
            raise EngineFailed("tensor a (7) must match tensor b (6)")
        return answers


def test_an_error_that_no_request_of_its_schedule_gives_alone_is_sought_in_others() -> None:
    (failure,) = Judge(Fragile, "model", None, 40).run({"plain": Options(), **SPECULATING}).failures
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
    console = Console(file=StringIO(), width=200)
    show(console, {"model": found})
    assert "cache: refused: no cache" in console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("terminal", [False, True])
def test_a_table_in_a_file_or_a_pipe_is_as_wide_as_its_names(terminal: bool) -> None:
    """A terminal of 40 columns wraps it."""
    found = Found()
    configurations = [f"configuration-{n}" for n in range(9)]
    for name in configurations:
        found.count(name, "log-probabilities of drafted tokens", "passed")
    console = Console(file=StringIO(), width=40, force_terminal=terminal)
    show(console, {"model": found})
    said = console.file.getvalue()  # type: ignore[attr-defined]
    for name in (*configurations, "log-probabilities of drafted tokens"):
        assert (name in said) is not terminal


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--drafter", "no/such"), "--drafter no/such has no use: the small checkpoints have drafters of their own"),
        (("--dtype", "fp32"), "--dtype is 'fp32' (did you mean 'float32'?); it must be one of float32, bfloat16, float64"),
        (("--model", "no/such"), "--model no/such is not a folder; give the folder of a checkpoint"),
        (("-x", "--max-failures", "2"), "--max-failures 2 has no use: -x stops at the first failure; omit it, or omit -x"),
        (("--max-failures", "0"), "--max-failures"),
    ],
)
def test_what_does_not_exist_is_refused_before_an_engine_starts(
    words: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("conformance.engines.cli.judged", lambda *given: pytest.fail("an engine was started"))
    monkeypatch.setattr("sys.argv", ["ssmspec", "conform", "engine", "--engine", "ssmspec", *words])
    with pytest.raises(SystemExit, match=r"^2$"):
        main()
    told = capsys.readouterr()
    assert said in told.err
    assert len(told.err.splitlines()) == 1
    assert told.out == ""
    assert not list(tmp_path.iterdir())


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
    ("command", "said"),
    [
        ("sh -c 'echo no model >&2; exit 3'", "ended with exit code 3 | no model"),
        ("sh -c 'kill -9 $$'", "ended by signal 9"),
        ("echo hello", "printed something that is not an answer: hello"),
    ],
)
def test_an_engine_that_ends_before_its_first_answer_is_refused(
    command: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = engine_of(command, monkeypatch, tmp_path, capsys, 2)
    assert told.err.splitlines()[-1].startswith(f"NotStarted: program:{command} did not start")
    assert said in told.err
    assert told.out == "", "no table that says died"
    assert not list(tmp_path.iterdir()), "no report"


def test_an_engine_that_started_once_and_then_does_not_has_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "engine.py").write_text(STARTS_ONCE)
    told = engine_of(f"{sys.executable} engine.py", monkeypatch, tmp_path, capsys, 1)
    assert "plain: repeated: NotStarted: ended with exit code 1 | no memory left" in told.out
    assert json.loads((tmp_path / "engine-report.json").read_text())["checkpoints"].keys() == {"mamba2", "qwen3_5"}


def engine_of(
    command: str, monkeypatch: pytest.MonkeyPatch, folder: Path, capsys: pytest.CaptureFixture[str], code: int
) -> Any:
    """What `conform engine` prints of a program on two small checkpoints."""
    monkeypatch.chdir(folder)
    words = ["--engine", f"program:{command}", "--family", "mamba2", "--family", "qwen3_5", "--tier", "smoke"]
    monkeypatch.setattr("sys.argv", ["ssmspec", "conform", "engine", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == code
    return capsys.readouterr()


def test_an_engine_that_refuses_everything_is_not_green() -> None:
    found = Judge(Few, "model", None, 5).run({"cache": Options(cache=True)})
    assert not found.green


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
