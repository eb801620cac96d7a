"""The verdicts hold: green on the committed results, red on each edit that would hide a regression."""

from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from perf_gates import cli
from perf_gates.digest import texts
from perf_gates.machine import kernels_hash
from perf_gates.ratchet import accepting, bars, baselines, peers
from perf_gates.ratchet.outcome import Outcome, outcome
from perf_gates.verdicts.measured import FURTHER, PARTS, TODAY, At, Results
from perf_gates.verdicts.value import sources
from perf_gates.verdicts.verdict import Verdict
from tests.gates.gates_results import COMMITTED, GATES, Edit, Parts, edited

BARS = bars.read()


def judged(results: Results) -> Outcome:
    return outcome(GATES, results, kernels_hash(), BARS)


def timings(parts: Parts) -> list[tuple[str, dict[str, Any]]]:
    return [(part, t) for part, found in parts.items() for t in found.get("timings", []) if t["us"] > 0]


def slower(share: float, of: Callable[[str, dict[str, Any]], bool] = lambda _part, _timing: True) -> Edit:
    def edit(parts: Parts) -> None:
        for part, t in timings(parts):
            if of(part, t):
                t["us"] *= 1 + share

    return edit


def plain_step(_part: str, t: dict[str, Any]) -> bool:
    return t["operation"] in ("step", "step, ours") or t["operation"].startswith("plain, window of 1")


def one_step(part: str, t: dict[str, Any]) -> bool:
    return (part, t["model"], t["operation"], t["batch"]) == ("steps", "mamba2-2.7b", "step", 64)


def deleted(parts: Parts) -> None:
    """Every seventh measurement."""
    for found in parts.values():
        if "timings" in found:
            found["timings"] = [t for i, t in enumerate(found["timings"]) if i % 7]


def set_all(us: float) -> Edit:
    def edit(parts: Parts) -> None:
        for _, t in timings(parts):
            t["us"] = us

    return edit


def on_machine(**values: str) -> Edit:
    def edit(parts: Parts) -> None:
        for found in parts.values():
            found["machine"].update(values)

    return edit


def one_us(parts: Parts) -> None:
    for part, t in timings(parts):
        if part in ("steps", "buffered", "peers") and t["operation"].startswith("step"):
            t["us"] = 1.0


def not_a_number(parts: Parts) -> None:
    parts["steps"]["timings"][0]["us"] = float("nan")


def more_memory(parts: Parts) -> None:
    for _, t in timings(parts):
        t["memory"] = int(1.1 * t.get("memory", 0))


def slow_copy(parts: Parts) -> None:
    """A copy that is slower makes all that is told in parts of it look better."""
    for found in parts.values():
        if "copy_bytes_per_us" in found["machine"]:
            found["machine"]["copy_bytes_per_us"] *= 0.9


def without_a_part(parts: Parts) -> None:
    del parts["prefill"]["timings"][:]


def without_noise(parts: Parts) -> None:
    parts["steps"]["timings"][0]["noise"] = None


EDITS: dict[str, tuple[Edit, str]] = {
    "plain steps 20 % slower": (slower(0.2, plain_step), "slower"),
    "everything 10 % slower": (slower(0.1), "slower"),
    "everything 50 % slower": (slower(0.5), "slower"),
    "a baseline alone slower": (slower(0.5, one_step), "steps/mamba2-2.7b/step/64: slower"),
    "peers 20 % slower": (slower(0.2, lambda _, t: t["operation"].endswith(("vLLM", "fla"))), "slower"),
    "measurements deleted": (deleted, "not measured"),
    "a part without its measurements": (without_a_part, "not measured"),
    "steps of one microsecond": (one_us, "its bytes and products take"),
    "all below their bytes": (set_all(0.5), "its bytes and products take"),
    "all at half of their bars": (slower(-0.5), "leapt"),
    "products above the peak": (
        slower(-0.7, lambda part, t: part == "prefill" and t["operation"].startswith("causal")),
        "its bytes and products take",
    ),
    "another GPU": (on_machine(gpu="NVIDIA H100 80GB HBM3"), "made on NVIDIA H100 80GB HBM3, not NVIDIA H200"),
    "another torch": (on_machine(torch="2.13.0+cu130"), "was made with torch 2.13.0+cu130, not 2.11.0"),
    "another Triton": (on_machine(triton="3.7.1"), "was made with triton 3.7.1, not 3.6.0"),
    "other kernels": (on_machine(kernels="0" * 16, commit="0" * 40), "are not recorded"),
    "not a number": (not_a_number, "nan"),
    "more memory": (more_memory, "larger"),
    "a slower copy": (slow_copy, "copy/1: slower"),
    "no noise": (without_noise, "holds no noise"),
}


def test_the_committed_results_are_green_and_their_bars_ask_for_nothing() -> None:
    found = judged(COMMITTED)
    assert (found.reds, found.asks) == ([], [])
    assert CliRunner().invoke(cli.app, ["verdicts", "--tight"]).exit_code == 0


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_that_hides_a_regression_is_red(name: str, tmp_path: Path) -> None:
    edit, why = EDITS[name]
    found = judged(edited(tmp_path, edit))
    assert any(why in line for line in found.reds), found.reds[:5]


@pytest.mark.parametrize("name", ["plain steps 20 % slower", "measurements deleted", "another GPU"])
def test_the_command_exits_with_1(name: str, tmp_path: Path) -> None:
    edited(tmp_path, EDITS[name][0])
    found = CliRunner().invoke(cli.app, ["verdicts", str(tmp_path)])
    assert found.exit_code == 1
    assert "red: " in found.output


@pytest.mark.parametrize("part", sorted({*PARTS, *FURTHER} - {"model_shapes", "equality"}))
def test_a_part_that_is_gone_is_red(part: str, tmp_path: Path) -> None:
    found = judged(edited(tmp_path, lambda parts: parts.pop(part) and None))
    assert any(m.how == "missing" and m.name.startswith(f"{part}/") for m in found.worse)


def test_a_slower_denominator_makes_no_cell_pass(tmp_path: Path) -> None:
    """What fails or is missed today passes nowhere when all plain steps take twice as long."""
    before = {j.row.name for j in judged(COMMITTED).judged if j.verdict is Verdict.PASS}
    after = judged(edited(tmp_path, slower(1.0, plain_step))).judged
    assert {j.row.name for j in after if j.verdict is Verdict.PASS} <= before


def test_a_faster_denominator_makes_no_cell_fail(tmp_path: Path) -> None:
    found = judged(edited(tmp_path, slower(-0.15, lambda part, t: part == "bench" and plain_step(part, t))))
    over = [j for j in found.judged if any("plain, window of 1" in p.operation for p in sources(j.cell))]
    assert [str(j) for j in over if j.verdict is Verdict.FAIL] == []
    assert found.asks


def test_a_known_miss_that_reaches_its_target_asks_to_be_tightened(tmp_path: Path) -> None:
    name = "snakes-1, 5 tokens over 1, batch 4"
    assert name in BARS.missed

    def faster(parts: Parts) -> None:
        for t in parts["steps"]["timings"]:
            if t["model"] == "mamba2-2.7b" and t["operation"].startswith("scan of 5") and t["batch"] == 4:
                t["us"] *= 0.9

    (j,) = [j for j in judged(edited(tmp_path, faster)).judged if j.row.name == name]
    assert j.verdict is Verdict.TIGHTEN


def test_noise_within_two_runs_changes_nothing(tmp_path: Path) -> None:
    """Every time a little apart, one up and one down: as two runs of the same code are."""

    def noisy(parts: Parts) -> None:
        for i, (_, t) in enumerate(timings(parts)):
            t["us"] *= 1.01 if i % 2 else 0.99

    found = judged(edited(tmp_path, noisy))
    assert [line for line in found.reds if "slower" in line or "leapt" in line] == []


def test_cells_that_differ_between_parts_are_unstable_and_take_the_worse(tmp_path: Path) -> None:
    """Nemotron-3-Nano's step of 64 rows took 138.6 to 140.1 us in one part and 124.7 in three others."""
    own = [j for j in judged(COMMITTED).judged if "unstable" in j.unstable]
    told = " ".join(j.unstable for j in own)
    fast, slow = (COMMITTED.timing(At(part, "nemotron-3-nano-4b", "step", 64))["us"] for part in ("steps", "papers"))
    assert slow > 1.1 * fast
    assert f"took {fast:.1f} us in steps, {slow:.1f} us in papers" in told


def test_bars_come_back_as_they_were_written(tmp_path: Path) -> None:
    bars.write(BARS, tmp_path / "bars.json")
    assert bars.read(tmp_path / "bars.json") == BARS
    assert (tmp_path / "bars.json").read_text() == bars.FILE.read_text()


def test_bars_are_those_of_the_committed_results() -> None:
    """But for steps of the engine, whose limits stay where a later run was within their noise, or a baseline was slower."""
    made = accepting.accepted(GATES, COMMITTED, kernels_hash(), BARS, BARS.reason)
    assert (made.run, made.commits) == (BARS.run, BARS.commits)
    assert made.commits["papers"] != made.commits["steps"], "parts that were measured at two commits name both"
    assert made.times.keys() == BARS.times.keys()
    other = [name for name, bar in BARS.times.items() if bar != made.times[name]]
    assert {name.partition("/")[0] for name in other} <= {"bench"}
    assert [
        m.how for m in bars.moved(BARS, made.times, GATES.limits, GATES.slacks) if m.how not in ("faster", "smaller")
    ] == []
    assert made.missed.keys() <= BARS.missed.keys(), "a cell that misses its target by its limits still does"


def in_llama(_part: str, t: dict[str, Any]) -> bool:
    return t["model"] == "mamba-in-llama-8b" and t["operation"] == "plain, window of 1"


def test_no_slower_baseline_becomes_a_limit(tmp_path: Path) -> None:
    """A run whose baseline is 3.4 % slower than its limit, all else being equal: the limit stays, by name of its cells, and
    what misses its target misses it by the new limits too."""
    name = "bench/mamba-in-llama-8b/plain, window of 1/1"

    def at_bar(parts: Parts) -> None:
        for part, t in timings(parts):
            if in_llama(part, t):
                t["us"] = 1.034 * BARS.times[name].us

    results = edited(tmp_path, at_bar)
    (one,) = [one for one in baselines.kept(GATES, results, BARS) if one.name == name and one.unit == "us"]
    assert one.before == BARS.times[name].us
    assert "stree-8, beam tree of 3 x 4" in str(one)
    made = accepting.accepted(GATES, results, kernels_hash(), BARS, "a run")
    assert made.times[name].us == BARS.times[name].us
    short = {j.row.name for j in judged(COMMITTED).judged if j.value is not None and not j.table.holds(j.value, j.target)}
    assert made.missed.keys() >= short & {*one.cells}
    after = outcome(GATES, results, kernels_hash(), made).judged
    assert {j.row.name for j in after if j.verdict is Verdict.PASS} & BARS.missed.keys() == set()


@pytest.mark.parametrize("share", [0.034, 0.1])
def test_limits_of_slower_baselines_alone_change_no_value(share: float, tmp_path: Path) -> None:
    """Every denominator slower, the copy too: by the limits that are accepted then, no cell has a better value."""

    def every(parts: Parts) -> None:
        slower(share)(parts)
        for found in parts.values():
            if "copy_bytes_per_us" in found["machine"]:
                found["machine"]["copy_bytes_per_us"] /= 1 + share

    results = edited(tmp_path, every)
    made = accepting.accepted(GATES, results, kernels_hash(), BARS, "a slow day")
    for before, after in zip(judged(COMMITTED).judged, outcome(GATES, results, kernels_hash(), made).judged, strict=True):
        if before.value is not None and after.value is not None and "unstable" not in before.unstable + after.unstable:
            better = after.value < before.value if before.table.sense == "most" else after.value > before.value
            assert not better or after.value == pytest.approx(before.value, rel=1e-9), str(after)


def test_a_slower_copy_is_no_better_baseline(tmp_path: Path) -> None:
    held = {j.row.name: j.value for j in judged(COMMITTED).judged if j.row.kernel}
    slow = {j.row.name: j.value for j in judged(edited(tmp_path, slow_copy)).judged if j.row.kernel}
    assert slow == pytest.approx(held)


def peer_version(version: str | None) -> Edit:
    def edit(parts: Parts) -> None:
        machine = parts["bench"]["machine"]
        machine |= {"commit": "a later one", "kernels": kernels_hash(), "code": texts.text()}
        machine.pop("peers")
        if version:
            machine["peers"] = {"transformers": version}

    return edit


HELD = BARS.peers["bench"]["transformers"]


@pytest.mark.parametrize("version", ["5.23.0", "unknown", None])
def test_a_peer_of_another_version_is_never_green(version: str | None, tmp_path: Path) -> None:
    """5.17.0 takes 14.0 and 57.9 GB where 5.23.0 takes 11.4 and 16.5. The record of a committed run excuses no later one."""
    found = judged(edited(tmp_path, peer_version(version)))
    theirs = [j for j in found.judged if j.table.id == "engine-transformers"]
    assert [(j.verdict, j.red) for j in theirs] == [(Verdict.UNKNOWN, True)] * 2
    assert f"bench timed transformers {version or 'unknown'}, but the limits are of {HELD}" in theirs[0].why
    assert len([j for j in found.judged if "timed transformers" in j.why]) == 2


def test_a_named_version_is_judged_and_accepted(tmp_path: Path) -> None:
    same_one, other = edited(tmp_path, peer_version(HELD)), peer_version("5.24.0")
    assert judged(same_one).reds == []
    made = accepting.accepted(GATES, edited(tmp_path / "other", other), kernels_hash(), BARS, "a new version")
    assert made.peers == BARS.peers | {"bench": {"transformers": "5.24.0"}}
    with pytest.raises(accepting.NotAcceptedError, match="bench timed transformers unknown"):
        accepting.accepted(GATES, edited(tmp_path / "unnamed", peer_version(None)), kernels_hash(), BARS, "none named")


def test_the_head_of_a_part_names_its_peers() -> None:
    assert peers.head("steps") == {}
    assert peers.head("bench") == {"peers": {"transformers": metadata.version("transformers")}}
    assert peers.installed("no such package") == peers.UNKNOWN
    timed = {(at.part, name) for at in COMMITTED.timings if at.part != TODAY and (name := peers.peer(at))}
    assert timed == {(part, name) for part, named in peers.PEERS.items() if part != TODAY for name in named}


def test_no_bar_is_accepted_without_a_reason_or_of_another_gpu(tmp_path: Path) -> None:
    with pytest.raises(accepting.NotAcceptedError, match="no reason was given"):
        accepting.accepted(GATES, COMMITTED, kernels_hash(), BARS, " ")
    other = edited(tmp_path, on_machine(gpu="NVIDIA H100"))
    with pytest.raises(accepting.NotAcceptedError, match="made on NVIDIA H100"):
        accepting.accepted(GATES, other, kernels_hash(), BARS, "because")


def test_every_bar_has_a_slack_with_its_reason() -> None:
    assert all(bars.slack_of(name, GATES.slacks).reason for name in BARS.times)
    with pytest.raises(LookupError, match="end the list with an entry"):
        bars.slack_of("a/b/c/1", GATES.slacks[:1])


def test_why_prints_what_stands_behind_a_figure() -> None:
    found = CliRunner().invoke(cli.app, ["why", "snakes-1, 5 tokens over 1, batch 4"])
    assert found.exit_code == 0
    for word in ("figure", "target", "over", "under", "limit", "steps.json, made at", "last good", "floor", "reason"):
        assert word in found.output
    assert CliRunner().invoke(cli.app, ["why", "no such row"]).exit_code == 2
