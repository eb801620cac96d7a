"""What compute-sanitizer says is believed where it saw a planted fault, ran over every kernel, and said how much it found."""

import json
import subprocess
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from triton.runtime.jit import JITFunction

from perf_gates.gpu import sanitized
from perf_gates.gpu.sanitized import JUDGED, Said, chosen, heard
from perf_gates.machine import kernels_hash

MEMCHECK = "========= Invalid __global__ write of size 4 bytes\n========= ERROR SUMMARY: 64 errors\n"
RACECHECK = "========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)\n"


def planted_kernel(x: int) -> None: ...


def share(summary: str, *leave: str, wrong: str = "") -> str:
    """The output of a process that had every check but some."""
    verdicts = (
        {"check": c.name, "passed": c.name != wrong, "message": "apart", "kernels": [f"{c.kernel}_kernel"]}
        for c in chosen()
        if c.name not in leave
    )
    return "".join(f"{JUDGED}{json.dumps(verdict)}\n" for verdict in verdicts) + summary


def test_every_kernel_of_the_checks_is_chosen_and_every_variant_once() -> None:
    from perf_gates.gpu.model_shapes import checks

    names = [(check.kernel, check.variant) for check in chosen() if check.batch in sanitized.PLAN.batches]
    assert len(names) == len(set(names))
    assert set(names) == {(check.kernel, check.variant) for check in checks(sanitized.PLAN)}


def test_launchers_with_several_kernels_are_checked_with_many_rows_too() -> None:
    many = [check for check in chosen() if check.batch in sanitized.MANY.batches]
    names = sanitized.OTHERWISE.removeprefix("^(").removesuffix(")/").split("|")
    assert {check.kernel for check in many} == set(names)
    assert len({check.name for check in chosen()}) == len(chosen())


def test_what_triton_launches_is_noted_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(JITFunction, "run", lambda kernel, *args, **named: made.append((args, named)))
    kernel = JITFunction(planted_kernel)
    with sanitized.launched() as names:
        assert names == set()
        kernel[(1,)](3, warps=1)
    kernel[(2,)](3)
    assert names == {"planted_kernel"}
    assert made == [((3,), {"grid": (1,), "warmup": False, "warps": 1}), ((3,), {"grid": (2,), "warmup": False})]


@pytest.mark.parametrize(("tool", "planted"), [("memcheck", MEMCHECK), ("racecheck", RACECHECK)])
def test_a_tool_that_saw_its_fault_and_no_other_is_clean(tool: str, planted: str) -> None:
    none = {
        "memcheck": "========= ERROR SUMMARY: 0 errors",
        "racecheck": RACECHECK.replace("1 ", "0 ").replace("hazard ", "hazards "),
    }
    said = heard(tool, planted, [share(none[tool])])
    assert said.clean
    assert said.lines == []
    assert said.kernels == sorted({f"{check.kernel}_kernel" for check in chosen()})
    assert (said.planted, said.found, len(said.checks)) == (64 if tool == "memcheck" else 1, 0, len(chosen()))


def test_what_is_found_wrong_or_unrun_is_not_clean() -> None:
    name = chosen()[0].name
    found = heard("memcheck", MEMCHECK, [share(MEMCHECK)])
    assert (found.clean, found.found) == (False, 64)
    assert found.lines == ["========= Invalid __global__ write of size 4 bytes"]
    unrun = heard("memcheck", MEMCHECK, [share("========= ERROR SUMMARY: 0 errors", name)])
    assert (unrun.clean, unrun.unrun) == (False, [name])
    wrong = heard("memcheck", MEMCHECK, [share("========= ERROR SUMMARY: 0 errors", wrong=name)])
    assert (wrong.clean, wrong.failed) == (False, [f"{name}: apart"])


def test_a_share_that_ends_without_a_summary_is_not_clean() -> None:
    """It was killed: its last errors may not have been written."""
    said = heard("memcheck", MEMCHECK, [share("")])
    assert (said.clean, len(said.unrun)) == (False, 1)


def test_a_tool_that_is_refused_or_blind_says_nothing_of_the_kernels() -> None:
    for text in ("Error: Device not supported\n", "========= ERROR SUMMARY: 0 errors\n", ""):
        said = heard("memcheck", text, [share("========= ERROR SUMMARY: 0 errors")])
        assert not said.clean
        assert said.refused
        assert said.checks == []


def test_why_a_tool_refused_is_what_is_kept() -> None:
    said = heard("memcheck", "========= COMPUTE-SANITIZER\n========= Error: Device not supported\n=========\n", [])
    assert said.refused == "========= Error: Device not supported"
    assert heard("memcheck", "========= COMPUTE-SANITIZER\nended\n", []).refused == "========= COMPUTE-SANITIZER; ended"


def test_a_machine_without_the_tool_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any, **__: Any) -> None:
        raise FileNotFoundError("compute-sanitizer: not found")

    monkeypatch.setattr(subprocess, "Popen", missing)
    said = heard("racecheck", sanitized.run("racecheck", "planted", "", 1.0), [])
    assert said.refused == "compute-sanitizer: not found"


def test_a_process_that_does_not_end_is_ended_with_all_that_it_started_and_heard_as_far_as_it_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "compute-sanitizer"
    tool.write_text("#!/bin/sh\necho judged so far\nsleep 300 &\nsleep 300\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    began = monotonic()
    assert sanitized.run("memcheck", "0/1", "", 1.0) == "judged so far\n"
    assert monotonic() - began < 30


def test_a_file_keeps_what_was_said_on_such_a_machine(tmp_path: Path) -> None:
    file = tmp_path / "sanitized.json"
    assert sanitized.kept(file, {"kernels": "a", "gpu": "G"}) == []
    tools = [asdict(Said("memcheck", 1)), asdict(Said("racecheck", 2))]
    file.write_text(json.dumps({"machine": {"kernels": "a", "gpu": "G", "commit": "c"}, "tools": tools}))
    assert sanitized.kept(file, {"kernels": "b", "gpu": "G", "commit": "d"}) == [Said("memcheck", 1), Said("racecheck", 2)]
    assert sanitized.kept(file, {"kernels": "a", "gpu": "other", "commit": "c"}) == []


def said_of(*names: str, **more: Any) -> Said:
    left = sorted({check.name for check in chosen()} - {*names})
    return Said("memcheck", 1, [*names], unrun=left, codes=dict.fromkeys(names, kernels_hash()), **more)


def test_checks_of_a_kernel_whose_code_changed_are_stale_and_not_run() -> None:
    first, second = sorted(check.name for check in chosen())[:2]
    before = said_of(first, second)
    before.codes[second] = "0" * 16
    found = sanitized.standing(before)
    assert (found.checks, [*found.codes], found.stale) == ([first], [first], {second: "0" * 16})
    assert (first in found.unrun, second in found.unrun) == (False, True)


def test_a_run_is_joined_with_what_stands_of_the_one_before() -> None:
    first, second, third = sorted(check.name for check in chosen())[:3]
    before = said_of(first, second, third)
    before.codes[second] = before.codes[third] = "0" * 16
    found = sanitized.joined(before, said_of(second))
    assert (found.checks, found.stale) == ([first, second], {third: "0" * 16})
    assert {*found.checks} | {*found.unrun} == {check.name for check in chosen()}
    assert {*found.checks} & {*found.unrun} == set()


@pytest.mark.parametrize("fault", [{"found": 1}, {"failed": ["x"]}, {"refused": "no"}])
def test_nothing_is_kept_of_a_run_that_found_something(fault: dict[str, Any]) -> None:
    first, second = sorted(check.name for check in chosen())[:2]
    assert sanitized.joined(said_of(first, **fault), said_of(second)).checks == [second]
