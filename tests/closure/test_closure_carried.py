"""The record that carries older results: its proofs are recomputed, and a record without proof is refused."""

import copy
import io
import json
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perf_gates.closure import carried, carry
from perf_gates.closure.hashes import Closures, joined, kernels
from perf_gates.closure.package import Package
from perf_gates.verdicts.measured import RUNS
from tests.closure.sample import written
from tests.kernels.file_hash import file_hash

ROOT = Path(__file__).parent.parent.parent
STEPS: list[dict[str, Any]] = carried.record()["steps"]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kernels at the revision of the first step."""
    revision, folder = STEPS[0]["proof"]["revision"], tmp_path_factory.mktemp("before")
    command = ["git", "-C", str(ROOT), "archive", "--format=tar", revision, "kernels"]
    made = subprocess.run(command, capture_output=True)
    assert made.returncode == 0, (
        f"{revision} is needed to recompute what older results were told by; fetch all of the history"
    )
    with tarfile.open(fileobj=io.BytesIO(made.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "kernels" / "ssmspec_kernels"


def test_the_record_is_proof() -> None:
    assert list(carried.faults(carried.record())) == []


def test_each_old_hash_and_its_new_one_are_those_of_the_same_files(package: Path) -> None:
    """A whole, a part, a launcher: both hashes, over files and over code, are made anew at the revision."""
    closures = Closures(Package(package))
    assert STEPS[0]["proof"]["kind"] == "files"
    known = {f"{d.module}.{d.name}": d for d in closures.launchers}
    for code in STEPS[0]["codes"]:
        launchers = [known[name] for name in code["of"]]
        if code["of"] == [*known]:
            found = file_hash(package), closures.whole()
        else:
            modules = sorted({d.module for d in launchers})
            found = file_hash(package, *modules), joined(map(closures.hash, launchers))
        assert found == (code["old"], code["new"]), code["of"]
    told = [code["of"] for code in STEPS[0]["codes"]]
    assert all([name] in told for name in known)
    assert [*known] in told


def test_the_kernels_are_those_that_were_measured_by_a_chain_of_proofs() -> None:
    """From the revision of the results to this tree, `tox run -e same-code` and `closure.carry` add each step."""
    first = carried.record()["steps"][0]
    assert first["proof"]["revision"].startswith("0aa014c")
    measured = first["codes"][0]["old"]
    assert carried.same(measured, kernels().whole())
    assert not carried.same(measured, "0" * 16)
    assert {step["proof"]["kind"] for step in carried.record()["steps"][1:]} == {"same code", "added", "rewritten"}


def test_results_of_code_that_is_proven_the_same_hold_and_others_do_not() -> None:
    held = json.loads((ROOT / "perf_gates" / "results" / "steps.json").read_text())["machine"]
    assert carried.same(held["code"], kernels().of(*RUNS["steps"]))
    assert carried.same(held["kernels"], kernels().whole())
    assert not carried.same(held["code"], kernels().whole())
    assert not carried.same("0" * 16, kernels().whole())
    assert not carried.same(held["code"], "0" * 16)
    assert carried.same("0" * 16, "0" * 16)


def test_steps_are_joined_and_launchers_keep_their_results_under_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c = ("a" * 16, "b" * 16, "c" * 16)
    steps = [
        {"renamed": {"scan": "walk"}, "codes": [{"of": ["walk"], "old": a, "new": b}]},
        {"renamed": {"walk": "sweep"}, "codes": [{"of": ["sweep"], "old": b, "new": c}]},
    ]
    monkeypatch.setattr(carried, "record", lambda: {"steps": steps})
    carried.proven.cache_clear()
    assert carried.same(a, c)
    assert not carried.same(c, a)
    assert (carried.present("scan"), carried.present("norm")) == ("sweep", "norm")
    carried.proven.cache_clear()


RUN = {"triton": "3.7.1", "compared": 9, "timed": 3, "differ": 0, "before": "1" * 16, "after": "2" * 16, "entries": "3" * 16}
SAME: dict[str, Any] = {
    "renamed": {},
    "proof": {"kind": "same code", "before": "a" * 40, "after": "b" * 40, "runs": [RUN, RUN | {"triton": "3.6.0"}]},
    "codes": [{"of": ["scan"], "old": "c" * 16, "new": "d" * 16}],
}


def test_a_comparison_of_machine_code_on_two_versions_of_triton_is_proof() -> None:
    assert list(carried.faults({"steps": [SAME]})) == []


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (lambda step: step["proof"]["runs"].pop(), "fewer than 2 versions of Triton"),
        (lambda step: step["proof"]["runs"][0].update(differ=1), "1 differ"),
        (lambda step: step["proof"]["runs"][0].update(compared=0), "0 launches were compared"),
        (lambda step: step["proof"]["runs"][0].update(timed=0), "nothing that is timed"),
        (lambda step: step["proof"]["runs"][0].update(ir=8, machine_code=[]), "not said of each launch"),
        (lambda step: [run.update(ir=9, machine_code=[]) for run in step["proof"]["runs"]], "no run compiled a launch"),
        (lambda step: step["proof"]["runs"][0].update(ir=8, machine_code=["a", "b"]), "not said of each launch"),
        (lambda step: step["proof"]["runs"][0].update(after="4" * 16), "different packages"),
        (lambda step: step["proof"]["runs"][0].update(entries="4" * 16), "different packages or launches"),
        (lambda step: step["proof"].update(before="main"), "names no revision"),
        (lambda step: step["proof"].update(kind="trust"), "trust is no proof"),
        (lambda step: step["codes"].clear(), "carries nothing"),
        (lambda step: step["codes"].append(step["codes"][0]), "carried twice"),
        (lambda step: step["codes"][0].update(new="c" * 16), "not two different hashes"),
        (lambda step: step["codes"][0].update(old="?"), "not two different hashes"),
    ],
)
def test_a_step_without_proof_is_refused(edit: Callable[[dict[str, Any]], object], why: str) -> None:
    step = copy.deepcopy(SAME)
    edit(step)
    assert any(why in fault for fault in carried.faults({"steps": [step]}))


def test_a_step_carries_what_changed_from_runs_of_these_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = Closures(Package(written(tmp_path / "a"), {}))
    edits = ("deep/launchers.py", '"no count"', '"count"'), ("deep/launchers.py", "def other(", "def others(")
    after = Closures(Package(written(tmp_path / "b", *edits), {}))
    monkeypatch.setattr(carry, "RUNS", {"part": ("scan", "others")})
    runs = [RUN | {"before": before.whole(), "after": after.whole(), "triton": name} for name in ("3.7.1", "3.6.0")]
    made = carry.step(before, after, runs, {"other": "others"})
    made["proof"] |= {"before": "a" * 40, "after": "b" * 40}
    assert list(carried.faults({"steps": [made]})) == []
    scan = {"of": ["deep.launchers.scan"], "old": before.of("scan"), "new": after.of("scan")}
    assert scan in made["codes"]
    both = {"old": before.of("scan", "other"), "new": after.of("scan", "others")}
    assert any(both.items() <= code.items() for code in made["codes"])
    assert not any(code["of"] == ["deep.launchers.others"] for code in made["codes"])  # its hash is the same
    carry.write({"steps": [*STEPS, made]}, tmp_path / "carried.json")
    assert json.loads((tmp_path / "carried.json").read_text()) == {"steps": [*STEPS, made]}
    with pytest.raises(ValueError, match="other kernels"):
        carry.step(after, before, runs, {})


ADDED = ("deep/launchers.py", "def other(", "def added(S):\n    return other(S)\n\n\ndef other(")


def test_launchers_that_were_only_added_carry_the_whole_and_nothing_else(tmp_path: Path) -> None:
    change = ("deep/launchers.py", '"no count"', '"count"')
    packages = {"was": (), "more": (ADDED,), "now": (change, ADDED)}
    was, more, now = (Closures(Package(written(tmp_path / name, *edits), {})) for name, edits in packages.items())
    made = carry.grown(was, more)
    assert [(code["old"], code["new"]) for code in made["codes"]] == [(was.whole(), more.whole())]
    made["proof"] |= {"before": "a" * 40, "after": "b" * 40}
    assert list(carried.faults({"steps": [made]})) == []
    made["codes"].append({"of": ["scan"], "old": "c" * 16, "new": "d" * 16})
    assert any("more than the whole" in fault for fault in carried.faults({"steps": [made]}))
    for before, after, why in ((was, now, "gone or changed"), (more, was, "added: gone"), (was, was, "nothing to carry")):
        with pytest.raises(ValueError, match=why):
            carry.grown(before, after)


def test_a_rewritten_launcher_carries_the_whole_from_the_last_kernels_without_it(tmp_path: Path) -> None:
    again, other = (
        ("deep/launchers.py", "return other(S)", "return other(S + S)"),
        ("deep/launchers.py", '"no count"', '"count"'),
    )
    packages = {"was": (), "more": (ADDED,), "now": (ADDED, again), "both": (ADDED, again, other)}
    was, more, now, both = (Closures(Package(written(tmp_path / name, *edits), {})) for name, edits in packages.items())
    revisions = {"before": "a" * 40, "after": "b" * 40}
    first = carry.grown(was, more)
    first["proof"] |= revisions
    made = carry.rewritten(more, now, ["added"], [first])
    made["proof"] |= revisions
    assert [(code["old"], code["new"]) for code in made["codes"]] == [(was.whole(), now.whole())]
    assert list(carried.faults({"steps": [first, made]})) == []
    made["codes"][0]["old"] = more.whole()
    assert any("without what was rewritten" in fault for fault in carried.faults({"steps": [first, made]}))
    for before, after, names, why in (
        (more, both, ["added"], "changed, gone or added"),
        (was, now, ["other"], "changed, gone or added"),
        (more, now, [], "changed, gone or added"),
    ):
        with pytest.raises(ValueError, match=why):
            carry.rewritten(before, after, names, [first])
    with pytest.raises(ValueError, match="no earlier step"):
        carry.rewritten(more, now, ["added"], [])


def test_runs_of_two_packages_carry_launchers_to_which_others_were_added_and_no_launcher_that_changed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = ("deep/launchers.py", '"no count"', '"count"')
    added = ADDED
    more = ("deep/launchers.py", "WIDTH=STAGES", "WIDTH=1 + STAGES")
    packages = {
        "was": (),
        "now": (change,),
        "was, more": (added,),
        "now, more": (change, added),
        "other": (change, added, more),
    }
    made = {name: Closures(Package(written(tmp_path / name, *edits), {})) for name, edits in packages.items()}
    monkeypatch.setattr(carry, "RUNS", {})
    shown = made["was"], made["now"]
    run = RUN | {"before": shown[0].whole(), "after": shown[1].whole()}
    runs = [run, run | {"triton": "3.6.0"}]
    both = made["was, more"], made["now, more"]
    codes = carry.step(*both, runs, {}, shown)["codes"]
    assert {"old": both[0].whole(), "new": both[1].whole()}.items() <= codes[0].items()
    assert any(code["of"] == ["deep.launchers.scan"] for code in codes)
    with pytest.raises(ValueError, match=r"did not compare deep\.launchers\.(added|other)"):
        carry.step(made["was, more"], made["other"], runs, {}, shown)
    with pytest.raises(ValueError, match=r"did not compare deep\.launchers\.added"):
        carry.step(made["was"], made["now, more"], runs, {}, shown)
    with pytest.raises(ValueError, match="other kernels"):
        carry.step(*both, runs, {}, both)
