"""An adapter in a process of its own: each way of going wrong has its verdict and its words, and the run goes on."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.errors import AdapterUnavailable
from conformance.judge.verdict import Judgement
from conformance.refusal import FAILED
from conformance.run.open_adapters import Opening
from conformance.run.plan import Selection, plan
from conformance.run.process import PATIENCE, Process
from ssmspec_ref.contract import Verdict
from tests.commands import FAULTY, reported, without_seconds

from .judging import fails, of

RUNAWAYS, CONDUCT = "conformance.faults.misbehaving.runaways:adapter", "conformance.faults.misbehaving.conduct:adapter"


@pytest.fixture(scope="module")
def runaways() -> Iterator[Process]:
    process = Process(RUNAWAYS, timeout=0.8)
    yield process
    process.close()


@pytest.fixture(scope="module")
def conduct() -> Iterator[Process]:
    process = Process(CONDUCT)
    yield process
    process.close()


def judged(process: Process, subject: str, only: Any = lambda case: True, tier: str = "smoke") -> Iterator[Judgement]:
    jobs, _ = plan({"x": process.adapter}, Selection(tier=tier, subject=subject))
    return map(of, [job for job in jobs if only(job.case)])


def test_what_hangs_is_ended_and_after_three_times_not_tried(runaways: Process) -> None:
    found = [*judged(runaways, "hangs")]
    assert {(j.verdict, j.kind) for j in found} == {(Verdict.UNKNOWN, "timeout")}
    assert found[0].message == "no answer within 0.8 s, so the worker was killed; raise --timeout"
    assert [j.message.startswith("not run: 3 cases") for j in found[:5]] == [False] * PATIENCE + [True] * 2


def test_what_hangs_once_stops_nothing_else(runaways: Process) -> None:
    found = [*judged(runaways, "hangs_on_one_token", lambda case: case.seed == 0 and case.sizes["t"] < 7, "standard")]
    assert len(found) > 3
    assert [j.kind for j in found].count("timeout") == 1
    assert [j.verdict for j in found].count(Verdict.PASS) == len(found) - 1


def test_what_crashes_fails_with_the_signal_and_the_line_and_the_next_case_is_judged(runaways: Process) -> None:
    found = [*judged(runaways, "crashes_on_one_token")]
    crashed = [j for j in found if j.kind == "crash"]
    assert crashed
    assert all("was ended by SIGSEGV | " in j.message and " in crashes_on_one_token" in j.message for j in crashed)
    assert {j.verdict for j in found[found.index(crashed[0]) + 1 :] if j not in crashed} == {Verdict.PASS}


def test_a_lost_gpu_fails_the_case_that_lost_it_and_no_other(runaways: Process) -> None:
    found = [*judged(runaways, "loses_its_device", lambda case: case.seed == 0 and case.sizes["t"] < 7, "standard")]
    lost = [j for j in found if j.verdict is Verdict.FAIL]
    assert lost
    assert len(lost) < len(found)
    assert {j.verdict for j in found} == {Verdict.FAIL, Verdict.PASS}
    assert all("illegal memory access" in j.message and "later cases run in another one" in j.message for j in lost)
    for tokens, verdict in ((1, Verdict.FAIL), (7, Verdict.PASS)):
        of_them = judged(runaways, "loses_its_device", lambda case, tokens=tokens: case.sizes["t"] == tokens)
        assert next(of_them).verdict is verdict


def test_an_output_that_was_not_written_holds_no_earlier_result(runaways: Process) -> None:
    assert {j.kind for j in judged(runaways, "unwritten")} <= {"nan", "bound"}


def test_what_is_kept_from_call_to_call_shows_when_the_same_inputs_come_again(runaways: Process) -> None:
    found = [j for j in judged(runaways, "keeps_the_state", lambda case: case.family == "wide") if j.kind == "again"]
    assert found
    assert "wrong when the same inputs were given again in other arrays" in found[0].message


SAID: list[tuple[str, str, str, str]] = [
    ("runaways", "exits", "crash", "the process ended with exit code 3"),
    ("runaways", "prints", "printed", "printed 'launching (2, 7, 6, 5)\\n' to standard output"),
    ("runaways", "on_a_device", "dtype", "y is Tensor of torch.float32 on cuda:0; it must be a NumPy array of float32"),
    ("runaways", "WithoutCommit", "error", "AttributeError: 'WithoutCommit' object has no attribute 'commit'"),
    ("conduct", "wrong_shape", "shape", "S has shape (2, 6, 4, 5, 1); it must be (2, 6, 5, 4), axes (b h p n)"),
    ("conduct", "wrong_dtype", "dtype", "y is ndarray of float16; it must be a NumPy array of float32 or float64"),
    ("conduct", "raises", "error", "RuntimeError: no kernel image is available for execution on the device | "),
    ("conduct", "nan_output", "nan", "y holds nan in 1 of 420 places, first at b=1, t=6, h=5, p=4"),
    ("conduct", "mutates_input", "mutated", "the implementation wrote into its inputs; copy an input before writing to it"),
    ("conduct", "one_output", "outputs", "it returned 1 output; it must return a tuple of 2: y, S"),
    ("conduct", "keeps_wider_state", "dtype", "S is declared as bf16, but its values do not fit that format"),
]


@pytest.mark.parametrize(("home", "subject", "kind", "said"), SAID)
def test_a_bad_adapter_gets_a_verdict_that_says_what_is_wrong(
    home: str, subject: str, kind: str, said: str, request: pytest.FixtureRequest
) -> None:
    found = next(judged(request.getfixturevalue(home), subject))
    fails(found, kind)
    assert found.message.startswith(said)


def test_a_process_that_ends_while_it_loads_is_refused_with_how_it_ended() -> None:
    with pytest.raises(AdapterUnavailable, match="the process that loads it ended with exit code 4"):
        Process("conformance.faults.misbehaving.runaways:broken")


def test_what_refuses_to_load_says_so_from_the_other_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(AdapterUnavailable, match="needs a GPU"):
        Process(CONDUCT, device="cuda")


def test_two_processes_give_the_report_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "of it" / "ssmspec")])
    found = []
    for jobs in ("1", "2"):
        read = reported(FAILED, *FAULTY, "--tier", "smoke", "--seed", 7, "--jobs", jobs, report=tmp_path / jobs)
        found.append(without_seconds(read))
        assert {d.rerun.split(" run ")[0] for d in read.diagnoses} == {f"'{sys.argv[0]}' conform"}
    assert found[0] == found[1]


def test_in_one_process_or_in_two_the_verdicts_are_the_same(tmp_path: Path) -> None:
    words = ("--adapter", CONDUCT, "--subject", "[mnr]*", "--tier", "smoke", "--operation", "ssd.scan")
    isolated, here = (reported(FAILED, *words, *more, report=tmp_path).results for more in ([], ["--in-process"]))
    assert [(r.case, r.verdict, r.failing) for r in isolated] == [(r.case, r.verdict, r.failing) for r in here]


def test_shards_together_are_the_whole(tmp_path: Path) -> None:
    words = ("--adapter", "reference", "--operation", "conv.*", "--tier", "smoke", "--in-process", "--shard")
    whole, *parts = (
        {r.case for r in reported(0, *words, shard, report=tmp_path).results} for shard in ("1of1", "1of2", "2of2")
    )
    assert parts[0] | parts[1] == whole
    assert parts[0] & parts[1] <= {""}


def test_an_opening_ends_its_processes() -> None:
    with Opening((CONDUCT,)).open() as adapters:
        (adapter,) = adapters.values()
        bench: Any = next(iter(adapter.subjects[0].capabilities.values())).run
        child = bench.bench.child.process
    assert child.poll() is not None
