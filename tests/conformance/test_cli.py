"""The command: what it runs, what it prints, how it ends."""

import errno
import os
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from conformance import main
from conformance.cli import app
from conformance.errors import AdapterUnavailable, UnknownAdapter
from conformance.refusal import FAILED, INTERRUPTED, REFUSED
from conformance.report.stream import read_report
from conformance.run.load import load, shipped
from conformance.run.open_adapters import Opening
from conformance.run.plan import Selection
from conformance.run.pool import Member
from conformance.run.results import Setting
from ssmspec_ref.contract import Adapter

ROOT = Path(__file__).parents[2]
ONE = ("--adapter", "reference", "--case", "conv.step/b1,c1,w2/plain/normal/s0")
CASE = "ssd.scan/b1,t3,g2,h4,p2,n3/D=channel,z=on/gentle/s5"


def call(*words: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "160"} | (env or {}))


def test_a_case_of_ones_own_is_run_by_its_id_and_reported(tmp_path: Path) -> None:
    made = call("run", "--adapter", "reference", "--case", CASE, "--report", str(tmp_path))
    assert made.exit_code == 0, made.output
    assert "ssd chunked" in made.output
    assert "Nothing failed." in made.output
    results = read_report(tmp_path / "report.jsonl").results
    assert {r.case for r in results} == {CASE}
    assert {r.contract for r in results} >= {"fp64/chunked(4)", "fp32/sequential"}


def test_the_seed_of_the_inputs_that_come_second_stands_in_every_report(tmp_path: Path) -> None:
    made = call("run", "--adapter", "reference", "--case", CASE, "--seed", "424242", "--report", str(tmp_path))
    assert "seed of the inputs of repeated calls: --seed 424242" in made.output
    assert read_report(tmp_path / "report.jsonl").header.seeds == (424242,)
    assert "<dd>424242</dd>" in (tmp_path / "report.html").read_text()
    call("run", "--adapter", "reference", "--case", CASE, "--report", str(tmp_path))
    (drawn,) = read_report(tmp_path / "report.jsonl").header.seeds
    assert drawn not in (424242, 1009)


def test_what_stays_unknown_ends_with_one(tmp_path: Path) -> None:
    name = "conformance.faults.misbehaving.runaways:adapter"
    words = ["--subject", "hangs", "--operation", "ssd.scan", "--case", CASE, "--timeout", "1"]
    made = call("run", "--adapter", name, *words, "--report", str(tmp_path))
    assert {r.verdict for r in read_report(tmp_path / "report.jsonl").results} == {"unknown"}
    assert made.exit_code == FAILED


def test_a_failure_ends_with_one_and_names_the_smallest_case_and_the_line_to_run_it(tmp_path: Path) -> None:
    name = "conformance.faults.recurrences.arithmetic:adapter"
    words = ["run", "--adapter", name, "--subject", "group_map", "--tier", "smoke", "--report", str(tmp_path)]
    made = call(*words)
    assert made.exit_code == FAILED
    assert "smallest case: ssd.scan/b1,t1,g2,h4,p1,n1/plain/gentle/s2" in made.output
    line = next(line.strip() for line in made.output.splitlines() if "--case ssd.scan/b1," in line)
    again = call(*line.split("conform" if "ssmspec" in line else "conformance", 1)[1].split(), "--report", str(tmp_path))
    assert again.exit_code == FAILED
    assert "1 fail" in again.output


def test_the_case_that_is_named_is_the_one_that_is_shown(tmp_path: Path) -> None:
    """Also where a smaller case fails."""
    words = ["--adapter", "conformance.faults.recurrences.arithmetic:adapter", "--subject", "group_map"]
    case = "ssd.scan/b2,t7,g2,h6,p5,n4/plain/gentle/s0"
    made = call("run", *words, "--case", case, "--in-process", "--report", str(tmp_path))
    assert made.exit_code == FAILED
    diagnoses = read_report(tmp_path / "report.jsonl").diagnoses
    assert {d.smallest for d in diagnoses} == {case}
    assert f"case: {case}" in made.output


def test_the_last_screen_says_what_was_judged_and_where_the_report_lies(tmp_path: Path) -> None:
    made = call("run", "--adapter", "reference", "--operation", "conv.step", "--tier", "smoke", "--report", str(tmp_path))
    last = made.output.strip().splitlines()[-12:]
    assert any("reference" in line and "cases, tier smoke" in line for line in last)
    assert "report.jsonl" in "".join(line.strip(" │") for line in last), "a long path is wrapped"


def test_a_report_is_shown_again_and_a_cut_one_refused(tmp_path: Path) -> None:
    call("run", "--adapter", "reference", "--operation", "conv.*", "--tier", "smoke", "--report", str(tmp_path))
    path = tmp_path / "report.jsonl"
    assert "conv filter" in call("report", str(path)).output
    path.write_text("".join(path.read_text(encoding="utf-8").splitlines(keepends=True)[:-1]), encoding="utf-8")
    refused = call("report", str(path))
    assert refused.exit_code == REFUSED
    assert "footer" in refused.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--adapter", "no_such"], "'no_such' is neither a module in this folder or on PYTHONPATH"),
        (["--adapter", "no_such_package.module:adapter"], "needs a module 'no_such_package', which is not found"),
        (["--adapter", "conformance.cases:adapter"], "has no adapter"),
        (["--adapter", "conformance.run.again:command"], "return a ssmspec_ref.contract.Adapter"),
        (["--adapter", "reference", "--case", "ssd.scan/b1"], "is not a case id"),
        (["--adapter", "reference", "--subject", "nobody"], "nothing to run: there is no subject 'nobody'; the subjects are"),
        (
            ["--adapter", "docs.examples.my_kernels:adapter", "--operation", "ssd.stop"],
            "the subjects are ssd; they have ssd.step",
        ),
        (
            ["--adapter", "reference", "--case", "ssd.scan/q1/plain/gentle/s0"],
            "ssd.scan has no axis q; its axes are b2, t7, g2,",
        ),
        (
            ["--adapter", "reference", "--case", "conv.step/b1/plain/gentle/s0"],
            "conv.step has no family gentle; its families are",
        ),
        (
            ["--adapter", "reference", "--case", "ssd.step/g2,h3/plain/gentle/s0"],
            "ssd.step has no case of these sizes together",
        ),
    ],
)
def test_a_mistake_is_named_and_ends_with_two(tmp_path: Path, words: list[str], said: str) -> None:
    made = call("run", *words, "--report", str(tmp_path / "none"), env={"COLUMNS": "400"})
    assert made.exit_code == REFUSED
    assert said in made.output
    assert not (tmp_path / "none").exists()


def test_a_tier_that_does_not_exist_is_refused() -> None:
    assert call("run", "--adapter", "reference", "--tier", "huge").exit_code == REFUSED


def test_the_cases_are_listed_with_what_they_are_there_for() -> None:
    made = call("list", "--operation", "ssd.scan")
    assert made.exit_code == 0
    assert "ssd.scan/b2,t7,g2,h6,p5,n4/plain/gentle/s0  arXiv:2405.21060, section 3" in made.output
    assert "huggingface/transformers#48989" in made.output


def test_cases_of_an_operation_that_does_not_exist_are_refused() -> None:
    made = call("list", "--operation", "ssd.stop")
    assert made.exit_code == REFUSED
    assert "UnknownCase: 'ssd.stop' is not an operation" in made.output


def test_one_case_leaves_the_report_of_the_whole_run_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = call("run", *ONE, "--in-process")
    assert made.exit_code == 0, made.output
    assert read_report(Path("conformance-report/case")).header.only.startswith("case conv.step")
    assert not Path("conformance-report/report.jsonl").exists()


@pytest.mark.parametrize("full", [False, True], ids=["no folder", "full disk"])
def test_a_report_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: bool) -> None:
    def refuse(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    folder = tmp_path / "report"
    if full:
        folder.mkdir()
        monkeypatch.setattr(os, "fsync", refuse)
    else:
        folder.write_text("a file")
    made = call("run", *ONE, "--in-process", "--report", str(folder), env={"COLUMNS": "400"})
    assert made.exit_code == REFUSED
    assert (f"ReportError: {folder}" if full else f"OptionError: --report {folder}") in made.output
    assert ("No space left" if full else "is a file; name another folder") in made.output


def test_an_interrupted_run_says_so_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("conformance.cli.run_plan", interrupted)
    made = call("run", *ONE, "--in-process", "--report", str(tmp_path), env={"COLUMNS": "400"})
    assert made.exit_code == INTERRUPTED
    assert f"interrupted; the report in {tmp_path} is unfinished; --resume continues" in made.output


@pytest.mark.usefixtures("heeds_interrupts")
def test_a_process_that_judges_ends_without_a_word_when_it_is_interrupted(capfd: pytest.CaptureFixture[str]) -> None:
    member = Member(Opening(("reference",), isolated=False), Selection(case=ONE[-1]), Setting({}, "cpu"))
    member.ask("judge", [])
    member.child.send_signal(signal.SIGINT)
    assert member.child.wait(timeout=60) == 0
    member.close()
    assert capfd.readouterr().err == ""


def test_the_command_tells_its_version() -> None:
    made = CliRunner().invoke(main.build(), ["--version"])
    assert made.exit_code == 0
    assert made.output == f"ssmspec {version('ssmspec')}\n"


def test_adapters_are_found_by_name() -> None:
    assert "reference" in shipped()
    assert isinstance(load("reference"), Adapter)
    assert isinstance(load("conformance.faults.misbehaving.conduct:adapter"), Adapter)
    with pytest.raises(UnknownAdapter, match=r"package\.module:factory"):
        load("conformance")


def test_an_implementation_that_is_not_installed_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(AdapterUnavailable, match=r"install ssmspec's extra transformers"):
        load("transformers")
    made = call("run", "--adapter", "transformers", "--in-process")
    assert made.exit_code == REFUSED
    assert "install ssmspec's extra transformers, such as pip install '../ssmspec[transformers]'" in made.output


def test_without_torch_its_subject_is_inapplicable_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conformance.adapters.torch_fp32.find_spec", lambda name: None)
    (subject,) = [s for s in load("reference").subjects if s.name == "torch"]
    assert not subject.capabilities
    assert "pip install" in subject.absent[""]


def test_the_one_command_has_the_suite_even_from_a_bare_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "entry_points", lambda group: ())
    made = CliRunner().invoke(main.build(), ["conform", "list", "--operation", "conv.commit"])
    assert made.exit_code == 0
    assert "conv.commit/" in made.output


def test_the_suite_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "conformance", "list", "--operation", "conv.commit"]
    made = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False)
    assert made.returncode == 0, made.stderr
    assert "conv.commit/" in made.stdout


def test_a_device_that_an_adapter_cannot_use_is_refused_not_ignored() -> None:
    with pytest.raises(AdapterUnavailable, match="omit it"):
        load("conformance.faults.misbehaving.conduct:adapter", device="cuda")
    made = call("run", "--adapter", "conformance.faults.misbehaving.conduct:adapter", "--device", "cuda")
    assert made.exit_code == 2


def test_kernels_are_not_judged_on_a_cpu_without_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(AdapterUnavailable, match="--device interpreter"):
        load("ssmspec_fast.adapters.kernels:adapter", device="cpu")


def test_a_kernel_is_judged_in_the_interpreter(tmp_path: Path) -> None:
    """In a process of its own: triton chooses the interpreter when it is imported."""
    case = "ssd.scan/b2,t7,g2,h6,p5,n4/plain/gentle/s0"
    command = [sys.executable, "-m", "conformance", "run", "--adapter", "ssmspec_fast.adapters.kernels:adapter"]
    command += ["--device", "interpreter", "--subject", "ssd_scan", "--case", case, "--report", "report"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "kernels")])}
    made = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    assert "1 case, tier" in made.stdout


@pytest.mark.parametrize("sizes", ["b0,g1,h1,p1,n1", "b1,b2,g1,h1,p1,n1"])
def test_a_case_with_an_empty_or_repeated_axis_is_refused(sizes: str) -> None:
    made = call("run", "--adapter", "reference", "--case", f"ssd.step/{sizes}/plain/gentle/s0")
    assert made.exit_code == REFUSED


def test_a_case_outside_the_limits_is_inapplicable_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "examples"))
    case = "ssd.step/b1,g1,h1,p1,n1/plain/gentle/s0"
    made = call("run", "--adapter", "my_kernels:adapter", "--case", case, "--report", str(tmp_path))
    assert made.exit_code == FAILED, "nothing was run, which proves nothing"
    assert "No case was run." in made.output
    (result,) = read_report(tmp_path / "report.jsonl").results
    assert result.verdict == "inapplicable"
    assert "no such option" in result.reason
