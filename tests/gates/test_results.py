"""The committed results: the pages say what the files hold, every cell is measured, with the kernels that stand."""

import json
from pathlib import Path

from perf_gates.digest import record
from perf_gates.gpu import model_shapes, sanitized
from perf_gates.gpu.engine import equality
from perf_gates.gpu.judge.call import Plan
from perf_gates.machine import kernels_hash
from perf_gates.ratchet import bars
from perf_gates.report import kernel_table, paper_table
from perf_gates.verdicts import gates, stable
from perf_gates.verdicts.measured import FURTHER, Results, fault
from perf_gates.verdicts.verdict import Judged, Verdict, judge

ROOT = Path(__file__).parents[2]
RUNS = 10
"""Of the core set, one after the other."""
RESULTS = Results(ROOT / "perf_gates" / "results")


def judged() -> list[Judged]:
    """Of the papers' tables."""
    found = judge(gates.load(), RESULTS, kernels_hash(), bars.read())
    return [j for j in found if j.row.kernel is None]


def test_the_table_of_the_kernels_is_that_of_the_results_and_names_what_they_lack() -> None:
    """A cell without its measurement, or a part of other kernels than those that stand, changes the text and fails."""
    _, said, _ = kernel_table.MADE.split(kernel_table.README.read_text())
    assert said == kernel_table.text(RESULTS).strip(), (
        "run `python -m perf_gates.report.kernel_table perf_gates/results --write`"
    )


def test_the_papers_tables_are_those_of_the_results() -> None:
    _, said, _ = paper_table.MADE.split((ROOT / "docs" / "performance.md").read_text())
    assert said == paper_table.text(gates.load(), judged()).strip(), "run `ssmspec gates table --write`"


def test_every_part_is_there() -> None:
    assert {*kernel_table.PARTS, *FURTHER} <= RESULTS.parts.keys()


def test_every_cell_and_check_is_of_the_kernels_that_stand_or_listed_as_lacking() -> None:
    lacking = {j.row.name for j in judged() if j.verdict is Verdict.UNKNOWN and record.AGAIN not in j.listed}
    lacking |= {name for name in gates.load().lacking if name.startswith(("core, ", "sanitized, "))}
    compared = {(t["model"], t["operation"]) for t in RESULTS.parts["equality"]["timings"]}
    lacking |= {f"equality, {model}, {method}" for model, method in {*equality.cases()} - compared}
    verdicts = (v for v in RESULTS.parts["model_shapes"]["verdicts"] if v["message"] != kernel_table.NOT_RUN)
    ran = {f"{v['kernel']}/{v['model']}/{v['variant']}/b{v['batch']}" for v in verdicts}
    planned = {check.name for check in model_shapes.checks(Plan(further=True))}
    assert ran <= planned
    met = {name.rsplit("/", 2)[0] for name in ran}
    lacking |= {
        f"model_shapes, {name if whole in met else whole}" for name in planned - ran for whole in [name.rsplit("/", 2)[0]]
    }
    assert lacking == gates.load().lacking.keys()


def test_what_falls_short_says_what_bounds_it() -> None:
    short = [j for j in judged() if j.verdict in (Verdict.FAIL, Verdict.MISS)]
    assert [j.row.name for j in short if not j.table.bounds] == []


def test_speculation_is_plain_decoding_at_full_size() -> None:
    part = RESULTS.parts["equality"]
    other = fault("equality", part["machine"], kernels_hash())
    assert not other or record.AGAIN in other
    lacking = [case for case in equality.cases() if f"equality, {', '.join(case)}" in gates.load().lacking]
    assert [e for e in part["errors"] if not e.startswith(tuple(f"{case}: " for case in lacking))] == []
    assert [f"{t['model']}, {t['operation']}" for t in part["timings"] if t["differing"]] == []
    assert all(t["compared"] >= 100 and min(t["windows"]) > 0 for t in part["timings"])


def test_runs_of_the_core_set_say_the_same_and_each_catches_the_delay() -> None:
    read = json.loads((ROOT / "perf_gates" / "results" / stable.FILE).read_text())
    held = stable.with_current_best(read, gates.load().limits, gates.load().core)
    lacking = {core.name for core in gates.load().core if f"core, {core.name}" in gates.load().lacking}
    assert set(held["pairs"]) | lacking == {core.name for core in gates.load().core}
    assert not set(held["pairs"]) & lacking
    assert list(stable.faults(held, RUNS)) == []
    assert "core_set" not in record.read().stale.parts, "run it again, and `python -m perf_gates.digest`"
    _, said, _ = stable.MADE.split((ROOT / "docs" / "performance.md").read_text())
    assert said == "\n".join(stable.table(held)), (
        "run `python -m perf_gates.verdicts.stable FILE .. --out perf_gates/results`"
    )


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
        listed = {name for name in gates.load().lacking if name.startswith("sanitized, ")}
        assert {whole(name) for name in {*one.unrun} - many - one.stale.keys()} == listed
        assert [name for name, code in one.stale.items() if sanitized.current(name, code)] == []
        ran, stale = f"{len(one.checks)} of {len(names)} checks", len(one.stale.keys() - many)
        assert f"{one.tool}: nothing reported in {ran}, nor in {stale} more before" in kernel_table.README.read_text()
