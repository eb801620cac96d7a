"""The command: what it runs, what it prints, how it ends."""

import signal
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from conformance import main
from conformance.errors import AdapterUnavailable, UnknownAdapter
from conformance.refusal import FAILED, REFUSED
from conformance.report.stream import read_report
from conformance.run.load import load, shipped
from conformance.run.open_adapters import Opening
from conformance.run.plan import Selection
from conformance.run.pool import Member
from conformance.run.results import Setting
from ssmspec_ref.contract import Adapter
from tests.commands import FAULTY, ROOT, call, done, ends, reported
from tests.reports import result, write

STEP = "conv.step/b1,c1,w2/plain/normal/s0"
ONE = ("--adapter", "reference", "--case", STEP, "--in-process")
CASE = "ssd.scan/b1,t3,g2,h4,p2,n3/D=channel,z=on/gentle/s5"
OWN = ("--adapter", "reference", "--case", CASE)
GROUPS = (*FAULTY[:2], "--subject", "group_map")
WHOLE = "ssd.scan/b2,t7,g2,h6,p5,n4/plain/gentle/s0"


def test_a_case_of_ones_own_is_run_by_its_id_and_reported(tmp_path: Path) -> None:
    results = reported(0, *OWN, report=tmp_path, said=("ssd chunked", "Nothing failed.")).results
    assert {r.case for r in results} == {CASE}
    assert {r.contract for r in results} >= {"fp64/chunked(4)", "fp32/sequential"}


def test_the_seed_of_the_inputs_that_come_second_stands_in_every_report(tmp_path: Path) -> None:
    said = "seed of the inputs of repeated calls: --seed 424242"
    assert reported(0, *OWN, "--seed", 424242, report=tmp_path, said=said).header.seeds == (424242,)
    assert "<dd>424242</dd>" in (tmp_path / "report.html").read_text()
    (drawn,) = reported(0, *OWN, report=tmp_path).header.seeds
    assert drawn not in (424242, 1009)


def test_what_stays_unknown_ends_with_one(tmp_path: Path) -> None:
    name = "conformance.faults.misbehaving.runaways:adapter"
    words = ["--subject", "hangs", "--operation", "ssd.scan", "--case", CASE, "--timeout", "1"]
    report = reported(FAILED, "--adapter", name, *words, report=tmp_path)
    assert {r.verdict for r in report.results} == {"unknown"}


def test_a_failure_ends_with_one_and_names_the_smallest_case_and_the_line_to_run_it(tmp_path: Path) -> None:
    smallest = "smallest  ssd.scan/b1,t1,g2,h4,p1,n1/plain/gentle/s2"
    shown = ends(FAILED, "run", *GROUPS, "--tier", "smoke", "--report", tmp_path, said=smallest)
    line = next(line.strip() for line in shown.splitlines() if "--case ssd.scan/b1," in line)
    words = line.split("conform" if "ssmspec" in line else "conformance", 1)[1].split()
    ends(FAILED, *words, "--report", tmp_path, said="1 fail")


def test_the_case_that_is_named_is_the_one_that_is_shown(tmp_path: Path) -> None:
    """Also where a smaller case fails."""
    report = reported(FAILED, *GROUPS, "--case", WHOLE, "--in-process", report=tmp_path, said=f"smallest  {WHOLE}")
    assert {d.smallest for d in report.diagnoses} == {WHOLE}


def test_the_last_screen_says_what_was_judged_and_where_the_report_lies(tmp_path: Path) -> None:
    words = ("--adapter", "reference", "--operation", "conv.step", "--tier", "smoke", "--report", tmp_path)
    last = call("run", *words, columns=160).output.strip().splitlines()[-12:]
    assert any("reference" in line and "cases, tier smoke" in line for line in last)
    assert "report.jsonl" in "".join(line.strip(" │") for line in last), "a long path is wrapped"


def test_a_report_is_shown_again_and_a_cut_one_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "report.jsonl", [result(0)])
    ends(0, "report", path, said="kernel")
    path.write_text("".join(path.read_text(encoding="utf-8").splitlines(keepends=True)[:-1]), encoding="utf-8")
    ends(REFUSED, "report", path, said="footer")


def test_the_cases_are_listed_with_what_they_are_there_for() -> None:
    said = (f"{WHOLE}  arXiv:2405.21060, section 3", "huggingface/transformers#48989")
    ends(0, "list", "--operation", "ssd.scan", said=said)


def test_one_case_leaves_the_report_of_the_whole_run_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ends(0, "run", *ONE)
    assert read_report(Path("conformance-report/case")).header.only.startswith("case conv.step")
    assert not Path("conformance-report/report.jsonl").exists()


@pytest.mark.usefixtures("heeds_interrupts")
def test_a_process_that_judges_ends_without_a_word_when_it_is_interrupted(capfd: pytest.CaptureFixture[str]) -> None:
    member = Member(Opening(("reference",), isolated=False), Selection(case=STEP), Setting({}, "cpu"))
    member.ask("judge", [])
    member.child.send_signal(signal.SIGINT)
    assert member.child.wait(timeout=60) == 0
    member.close()
    assert capfd.readouterr().err == ""


def test_the_command_tells_its_version() -> None:
    assert ends(0, "--version", app=main.build()) == f"ssmspec {version('ssmspec')}\n"


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
    said = "install ssmspec's extra transformers, such as pip install '../ssmspec[transformers]'"
    ends(REFUSED, "run", "--adapter", "transformers", "--in-process", said=said)


def test_without_torch_its_subject_is_inapplicable_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conformance.adapters.torch_fp32.find_spec", lambda name: None)
    (subject,) = [s for s in load("reference").subjects if s.name == "torch"]
    assert not subject.capabilities
    assert "pip install" in subject.absent[""]


def test_the_one_command_has_the_suite_even_from_a_bare_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "entry_points", lambda group: ())
    ends(0, "conform", "list", "--operation", "conv.commit", app=main.build(), said="conv.commit/")


def test_a_device_that_an_adapter_cannot_use_is_refused_not_ignored() -> None:
    with pytest.raises(AdapterUnavailable, match="omit it"):
        load("conformance.faults.misbehaving.conduct:adapter", device="cuda")


def test_kernels_are_not_judged_on_a_cpu_without_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(AdapterUnavailable, match="--device interpreter"):
        load("ssmspec_fast.adapters.kernels:adapter", device="cpu")


def test_a_kernel_is_judged_in_the_interpreter(tmp_path: Path) -> None:
    """In a process of its own: triton chooses the interpreter when it is imported."""
    words = ("--adapter", "ssmspec_fast.adapters.kernels:adapter", "--device", "interpreter", "--subject", "ssd_scan")
    said = "1 case, tier", "ran on: Triton interpreter (1 case)"
    done("run", *words, "--case", WHOLE, "--report", tmp_path, code=0, said=said)
    assert "triton" in read_report(tmp_path).header.versions


def test_a_case_outside_the_limits_is_inapplicable_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "examples"))
    case = "ssd.step/b1,g1,h1,p1,n1/plain/gentle/s0"
    words = ("--adapter", "my_kernels:adapter", "--case", case)
    (left_out,) = reported(FAILED, *words, report=tmp_path, said="No case was run.").results
    assert left_out.verdict == "inapplicable"
    assert "no such option" in left_out.reason
