"""The committed results: the pages say what the files hold, every cell is measured, with the kernels that stand."""

import json

from perf_gates.digest import record
from perf_gates.gpu import model_shapes, sanitized
from perf_gates.gpu.engine import equality
from perf_gates.gpu.judge.call import Plan
from perf_gates.machine import kernels_hash
from perf_gates.ratchet import bars
from perf_gates.report import kernel_table
from perf_gates.verdicts import stable
from perf_gates.verdicts.measured import FURTHER, fault
from perf_gates.verdicts.verdict import Judged, Verdict, judge

from .gates_results import COMMITTED, GATES, ROOT

RUNS = 10
"""Of the core set, one after the other."""


def judged() -> list[Judged]:
    """Of the papers' tables."""
    found = judge(GATES, COMMITTED, kernels_hash(), bars.read())
    return [j for j in found if j.row.kernel is None]


def test_every_part_is_there() -> None:
    assert {*kernel_table.PARTS, *FURTHER} <= COMMITTED.parts.keys()


def test_every_cell_and_check_is_of_the_kernels_that_stand_or_listed_as_lacking() -> None:
    lacking = {j.row.name for j in judged() if j.verdict is Verdict.UNKNOWN and record.AGAIN not in j.listed}
    lacking |= {name for name in GATES.lacking if name.startswith(("core, ", "sanitized, "))}
    compared = {(t["model"], t["operation"]) for t in COMMITTED.parts["equality"]["timings"]}
    lacking |= {f"equality, {model}, {method}" for model, method in {*equality.cases()} - compared}
    verdicts = (v for v in COMMITTED.parts["model_shapes"]["verdicts"] if v["message"] != kernel_table.NOT_RUN)
    ran = {f"{v['kernel']}/{v['model']}/{v['variant']}/b{v['batch']}" for v in verdicts}
    planned = {check.name for check in model_shapes.checks(Plan(further=True))}
    assert ran <= planned
    met = {name.rsplit("/", 2)[0] for name in ran}
    lacking |= {
        f"model_shapes, {name if whole in met else whole}" for name in planned - ran for whole in [name.rsplit("/", 2)[0]]
    }
    assert lacking == GATES.lacking.keys()


def test_what_falls_short_says_what_bounds_it() -> None:
    short = [j for j in judged() if j.verdict in (Verdict.FAIL, Verdict.MISS)]
    assert [j.row.name for j in short if not j.table.bounds] == []


def test_speculation_is_plain_decoding_at_full_size() -> None:
    part = COMMITTED.parts["equality"]
    other = fault("equality", part["machine"], kernels_hash())
    assert not other or record.AGAIN in other
    lacking = [case for case in equality.cases() if f"equality, {', '.join(case)}" in GATES.lacking]
    assert [e for e in part["errors"] if not e.startswith(tuple(f"{case}: " for case in lacking))] == []
    assert [f"{t['model']}, {t['operation']}" for t in part["timings"] if t["differing"]] == []
    assert all(t["compared"] >= 100 and min(t["windows"]) > 0 for t in part["timings"])


def test_runs_of_the_core_set_say_the_same_and_each_catches_the_delay() -> None:
    read = json.loads((ROOT / "perf_gates" / "results" / stable.FILE).read_text())
    held = stable.with_current_best(read, GATES.limits, GATES.core)
    lacking = {core.name for core in GATES.core if f"core, {core.name}" in GATES.lacking}
    assert set(held["pairs"]) | lacking == {core.name for core in GATES.core}
    assert not set(held["pairs"]) & lacking
    assert list(stable.faults(held, RUNS)) == []
    assert "core_set" not in record.read().stale.parts, "run it again, and `python -m perf_gates.digest`"


def whole(check: str) -> str:
    """The name under which all checks of a kernel at one shape are listed as not run by compute-sanitizer."""
    return f"sanitized, {check.rsplit('/', 2)[0]}"


def test_compute_sanitizer_found_nothing_in_the_code_that_stands_and_the_page_says_how_many_checks_ran() -> None:
    """A check that did not run is one of many rows, or of a kernel that the tool never ran, which the gates list, or ran
    before the code of its kernel changed."""
    read = json.loads((ROOT / "perf_gates" / "results" / "sanitized.json").read_text())
    said = [sanitized.Said(**one) for one in read["tools"]]
    assert [one.tool for one in said if one.planted and not (one.found or one.failed or one.refused)] == sorted(
        sanitized.PLANTED
    )
    names = {check.name for check in sanitized.chosen()}
    many = {check.name for check in sanitized.chosen() if check.batch in sanitized.MANY.batches}
    for one in said:
        assert {*one.checks} | {*one.unrun} == names
        assert {*one.checks} & {*one.unrun} == set()
        assert one.codes.keys() == {*one.checks}
        assert all(sanitized.current(*check) for check in one.codes.items()), "run it again for what changed"
        listed = {name for name in GATES.lacking if name.startswith("sanitized, ")}
        assert {whole(name) for name in {*one.unrun} - many - one.stale.keys()} == listed
        assert [name for name, code in one.stale.items() if sanitized.current(name, code)] == []
        ran, stale = f"{len(one.checks)} of {len(names)} checks", len(one.stale.keys() - many)
        assert f"{one.tool}: nothing reported in {ran}, nor in {stale} more before" in kernel_table.README.read_text()
