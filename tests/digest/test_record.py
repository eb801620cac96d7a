"""The record of what was measured: recomputed from git, refused if it is forged, never green where nothing proves it."""

import ast
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from perf_gates.digest import __main__ as command
from perf_gates.digest import record, texts, trees
from perf_gates.digest.record import Current, Part, Record, Revision, Stale

HELD = record.read()
NOTHING = Stale({}, {}, [])
RECORD = Record(
    trees.TRITON,
    "text",
    {
        "steps": Part("a" * 40, "2.11.0", "", {"m/step/1": "c1 i1", "m/scan/1": "c2 i1"}),
        "bench": Part("b" * 7, "2.11.0", why="lost"),
    },
    {"k1": Revision("a" * 40, {"norm": "n1n1n1n1", "scan": "s1s1s1s1 s2s2s2s2"})},
    {"trained": ["a" * 40, "e1"]},
    {},
    NOTHING,
)
NOW = Current(
    {"steps/m/step/1": "c1 i1", "steps/m/scan/1": "c2 i1"},
    {"norm x": "n1n1n1n1", "scan x": "s1s1s1s1", "scan y": "s2s2s2s2"},
    "e1",
)


@dataclass(frozen=True)
class Draw:
    """Measurements of one commit, one of which is carried where any is; and launchers. All by part/shape/operation/batch."""

    commit: str
    names: list[str]
    carried: list[str]
    launchers: list[str]


def seed() -> int:
    """By the current commit: other measurements after every commit, all of them in the nightly run."""
    done = subprocess.run(["git", "-C", str(trees.ROOT), "rev-parse", "HEAD"], capture_output=True, text=True)
    return int(done.stdout.strip() or "0", 16)


def drawn(at: int) -> Draw:
    parts = {name: part for name, part in HELD.parts.items() if part.calls and name != record.CUDA.partition("/")[0]}
    calls = {f"{name}/{of}": call.split()[0] for name, part in parts.items() for of, call in part.calls.items()}
    commit_of = {name: parts[name.partition("/")[0]].commit for name in calls}
    first = sorted(calls)[at % len(calls)]
    own = sorted(name for name in calls if commit_of[name] == commit_of[first])
    start = own.index(first)
    names = [*dict.fromkeys(own[(start + 97 * i) % len(own)] for i in range(5))]
    carried = [name for name in own[start:] + own[:start] if calls[name] in HELD.same_code][:1]
    launchers = sorted({launcher for one in HELD.revisions.values() for launcher in one.calls})
    return Draw(commit_of[first], names, carried, [launchers[(at + 17 * i) % len(launchers)] for i in range(3)])


DRAW = drawn(seed())


@pytest.fixture(scope="module")
def revisions(tmp_path_factory: pytest.TempPathFactory) -> command.Revisions:
    return command.Revisions(tmp_path_factory.mktemp("revisions"))


@pytest.fixture(scope="module")
def older(revisions: command.Revisions) -> trees.Recorded:
    """What is drawn, as it was measured."""
    return revisions.some(DRAW.commit, {*DRAW.names, *DRAW.carried}, DRAW.carried)


@pytest.fixture(scope="module")
def newer() -> trees.Recorded:
    """What is drawn, of the current code."""
    names = {*DRAW.names, *DRAW.carried, *DRAW.launchers}
    parts = sorted({name.partition("/")[0] for name in (*DRAW.names, *DRAW.carried)})
    return record.recorded_now(trees.asked(parts, entries=True, names=names, machine=DRAW.carried))


def differs(newer: trees.Recorded) -> list[str]:
    """What is drawn and recorded as of other code and is not, or the reverse."""
    now = Current(newer["calls"], newer["entries"], texts.engine_text())
    parts = {
        name: replace(part, calls={of: call for of, call in part.calls.items() if f"{name}/{of}" in now.calls})
        for name, part in HELD.parts.items()
    }
    revisions = {
        name: replace(one, calls={of: calls for of, calls in one.calls.items() if of in DRAW.launchers})
        for name, one in HELD.revisions.items()
    }
    found, told = record.stale(replace(HELD, parts=parts, revisions=revisions), now), HELD.stale
    compared = (
        ("{1}/{0}", parts, found.parts, told.parts), ("{0} of the kernels {1}", revisions, found.revisions, told.revisions)
    )  # fmt: skip
    wrong = [
        said.format(of, name)
        for said, held, now_stale, was_stale in compared
        for name, one in held.items()
        for of in one.calls
        if (of in now_stale.get(name, ())) != (of in was_stale.get(name, ()))
    ]
    return wrong + [name for name in record.OUTSIDE_GRAPHS if (name in found.engines) != (name in told.engines)]


def test_what_is_recorded_as_of_other_code_is_recomputed(newer: trees.Recorded) -> None:
    """What the commit draws; all of it where that differs, or the text of the kernels or of their measurements changed."""
    if HELD.text != texts.text() or differs(newer):
        assert record.stale(HELD, record.current()) == HELD.stale, (
            f"the kernels or their measurements changed; run `{record.COMMAND}`"
        )


@pytest.mark.nightly
def test_all_that_is_recorded_as_of_other_code_is_recomputed() -> None:
    assert record.stale(HELD, record.current()) == HELD.stale, (
        f"the kernels or their measurements changed; run `{record.COMMAND}`"
    )


def forged(told: dict[str, list[str]], name: str, of: str) -> dict[str, list[str]]:
    """Says the opposite of one."""
    return told | {name: sorted({*told.get(name, ())} ^ {of})}


def test_a_forged_record_of_other_code_is_found(newer: trees.Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    part, _, of = DRAW.names[0].partition("/")
    launcher = DRAW.launchers[0]
    (kernels, *_) = (name for name, one in HELD.revisions.items() if launcher in one.calls)
    before = differs(newer)
    lie = {"parts": forged(HELD.stale.parts, part, of), "revisions": forged(HELD.stale.revisions, kernels, launcher)}
    monkeypatch.setitem(globals(), "HELD", replace(HELD, stale=replace(HELD.stale, **lie)))
    assert {*differs(newer)} ^ {*before} == {DRAW.names[0], f"{launcher} of the kernels {kernels}"}


@pytest.mark.usefixtures("older")
def test_measurements_drawn_by_the_commit_are_recomputed_from_git(revisions: command.Revisions) -> None:
    names = DRAW.names
    assert [*command.checked(HELD, revisions, names)] == [], f"run `{record.COMMAND}`"
    part, _, of = names[0].partition("/")
    calls = HELD.parts[part].calls | {of: "0" * 16 + HELD.parts[part].calls[of][16:]}
    lie = replace(HELD, parts=HELD.parts | {part: replace(HELD.parts[part], calls=calls)})
    (line,) = command.checked(lie, revisions, names[:1])
    assert line.startswith(f"{names[0]}: 0000000000000000 ")


def test_a_carried_measurement_drawn_by_the_commit_is_compiled_again(older: trees.Recorded, newer: trees.Recorded) -> None:
    """On both sides."""
    found = command.pairs(older, newer)
    assert found == {old: HELD.same_code[old] for old in found}, f"run `{record.COMMAND} --carry`"
    assert len(found) == len(DRAW.carried)


def test_a_pair_that_the_compiler_does_not_confirm_is_no_pair() -> None:
    def side(call: str, machine: str) -> trees.Recorded:
        return {"calls": {"steps/m/step/1": f"{call} i1"}, "entries": {}, "machine": {"steps/m/step/1": machine}}

    assert command.pairs(side("c1", "m1"), side("c2", "m1")) == {"c1": ["c2", "m1"]}
    assert command.pairs(side("c1", "m1"), side("c2", "m2")) == {}
    assert command.pairs(side("c1", "m1"), side("c1", "m1")) == {}


def test_pairs_that_go_round_in_a_circle_are_refused() -> None:
    forged = replace(RECORD, same_code={"c1": ["c7", "m"], "c7": ["c1", "m"]})
    with pytest.raises(ValueError, match="leads from c1 round in a circle"):
        record.stale(forged, NOW)


def test_the_first_launch_of_each_kernel_whose_source_changed_is_chosen() -> None:
    def side(source: str, **calls: str) -> trees.Recorded:
        entries = {"norm x": "n1", "norm y": "n2", "scan x": "s1"} | {name.replace("_", " "): c for name, c in calls.items()}
        kernels = {name: {"norm_kernel" if "norm" in name else "scan_kernel": source} for name in entries}
        return {"entries": entries, "kernels": kernels}

    assert command.samples(side("a"), side("b")) == {"norm_kernel": "norm x", "scan_kernel": "scan x"}
    assert command.samples(side("a"), side("b", norm_x="n9")) == {"norm_kernel": "norm y", "scan_kernel": "scan x"}
    assert command.samples(side("a"), side("a")) == {}


def test_other_machine_code_of_the_same_call_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def recorded(source: str) -> Callable[..., trees.Recorded]:
        def made(*work: dict[str, Any]) -> trees.Recorded:
            assert all(one["apart"] for one in work)
            machine = {"norm x": "m1", "scan x": source}
            kernels = {name: {f"{name}_kernel": source} for name in machine}
            return {"entries": dict.fromkeys(machine, "c1"), "kernels": kernels, "machine": machine}

        return made

    monkeypatch.setattr(command.Revisions, "recorded", lambda _, commit, *work: recorded("a")(*work))
    monkeypatch.setattr(command, "recorded_now", recorded("b"))
    assert command.unlike(command.Revisions(tmp_path), "a" * 40) == ["scan x"]


@pytest.mark.nightly
@pytest.mark.parametrize("kernels", [name for name, one in HELD.revisions.items() if not one.why])
def test_the_same_call_of_a_kernel_whose_source_changed_has_the_same_machine_code(
    kernels: str, revisions: command.Revisions
) -> None:
    """One launch of each: that a digest tells the machine code is tested, not assumed."""
    assert command.unlike(revisions, HELD.revisions[kernels].commit) == []


@pytest.mark.nightly
def test_all_of_the_record_is_recomputed_from_git(revisions: command.Revisions) -> None:
    assert [*command.checked(HELD, revisions)] == []


def test_a_commit_that_git_holds_is_not_lost(revisions: command.Revisions) -> None:
    (name, part), *_ = ((name, part) for name, part in HELD.parts.items() if part.calls)
    lie = replace(HELD, parts={name: replace(part, calls={}, why=record.LOST)})
    assert [*command.checked(lie, revisions, [])] == [
        f"{name}: git does not hold {part.commit[:7]} is recorded, but git does"
    ]


def test_the_checkout_is_found_from_an_environment_in_it_and_from_the_working_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`git archive` of a folder below the root holds that folder only."""
    root, outside = tmp_path / "checkout", tmp_path / "elsewhere"
    subprocess.run(["git", "init", "--quiet", str(root)], check=True)
    inside = root / ".tox" / "lib"
    for folder in (inside, outside):
        folder.mkdir(parents=True)
    monkeypatch.setattr(trees, "ROOT", inside)
    assert trees.checkout() == root
    monkeypatch.setattr(trees, "ROOT", outside)
    monkeypatch.chdir(root)
    assert trees.checkout() == root
    monkeypatch.chdir(outside)
    assert trees.checkout() == outside


def test_in_a_shallow_clone_nothing_is_proven_and_no_result_is_called_lost(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole, shallow = tmp_path / "whole", tmp_path / "shallow"
    subprocess.run(["git", "init", "--quiet", str(whole)], check=True)
    commit = ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--allow-empty", "--message"]
    for message in ("first", "second"):
        subprocess.run(["git", "-C", str(whole), *commit, message], check=True)
    subprocess.run(["git", "clone", "--quiet", "--depth", "1", f"file://{whole}", str(shallow)], check=True)
    monkeypatch.setattr(trees, "ROOT", shallow)
    made = command.Revisions(tmp_path / "made")
    for proof in (lambda: [*command.checked(HELD, made, DRAW.names[:1])], lambda: command.updated(HELD, made, NOW)):
        with pytest.raises(trees.Unproven, match="git fetch --unshallow"):
            proof()
    monkeypatch.setattr(trees, "ROOT", whole)
    (line,) = command.checked(HELD, made, DRAW.names[:1])
    assert line == f"{DRAW.names[0].partition('/')[0]}: {record.LOST} {DRAW.commit[:7]}, whose calls are recorded"


def test_kernels_of_a_commit_that_git_does_not_hold_are_unknown(tmp_path: Path) -> None:
    lost = "f" * 40
    told = replace(HELD, revisions={name: replace(one, commit=lost) for name, one in HELD.revisions.items()})
    made = command.updated(told, command.Revisions(tmp_path), NOW)
    assert [*made.revisions.values()] == [Revision(lost, {}, record.LOST)] * len(told.revisions)


def test_kernels_that_are_not_those_of_their_commit_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(command, "ids", lambda: {"0" * 16: "a" * 40})
    monkeypatch.setattr(trees, "held", lambda _: True)
    monkeypatch.setattr(command, "heads", dict)
    monkeypatch.setattr(command.Revisions, "revision", lambda *_: ("1" * 16, Revision("a" * 40, {})))
    with pytest.raises(trees.Unproven, match="names the kernels 0000000000000000, but those of its commit aaaaaaa are 1"):
        command.updated(HELD, command.Revisions(tmp_path), NOW)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, NOTHING),
        ({"calls": {"steps/m/step/1": "c9 i1", "steps/m/scan/1": "c2 i1"}}, replace(NOTHING, parts={"steps": ["m/step/1"]})),
        ({"calls": {"steps/m/step/1": "c1 i9", "steps/m/scan/1": "c2 i1"}}, replace(NOTHING, parts={"steps": ["m/step/1"]})),
        ({"calls": {"steps/m/step/1": "c1 i1"}}, replace(NOTHING, parts={"steps": ["m/scan/1"]})),
        (
            {"entries": {"norm x": "n9n9n9n9", "scan x": "s1s1s1s1", "scan y": "s2s2s2s2"}},
            replace(NOTHING, revisions={"k1": ["norm"]}),
        ),
        ({"entries": {"norm x": "n1n1n1n1", "scan x": "s1s1s1s1"}}, replace(NOTHING, revisions={"k1": ["scan"]})),
        ({"entries": NOW.entries | {"new x": "x1x1x1x1"}}, NOTHING),
        ({"engine": "e2"}, replace(NOTHING, engines=["trained"])),
    ],
)
def test_only_what_changed_is_of_other_code(changed: dict[str, object], expected: Stale) -> None:
    assert record.stale(RECORD, replace(NOW, **changed)) == expected  # type: ignore[arg-type]


def test_machine_code_that_is_the_same_carries_a_call_and_what_is_carried_again() -> None:
    now = replace(NOW, calls={"steps/m/step/1": "c8 i1", "steps/m/scan/1": "c9 i1"})
    held = replace(RECORD, same_code={"c1": ["c7", "machine"], "c7": ["c8", "machine"]})
    assert record.stale(held, now) == replace(NOTHING, parts={"steps": ["m/scan/1"]})


@pytest.fixture
def at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The record of this file, over a code whose text is another."""
    monkeypatch.setattr(record, "read", lambda: RECORD)
    monkeypatch.setattr(record, "text", lambda: "another")
    monkeypatch.setattr(record, "current", lambda: replace(NOW, calls={"steps/m/step/1": "c9 i1", "steps/m/scan/1": "c2 i1"}))
    record.standing.cache_clear()


@pytest.mark.usefixtures("at_hand")
def test_a_measurement_of_other_code_is_unknown_until_it_is_measured_again() -> None:
    assert record.fault("steps", "a" * 40, "k1", "m/step/1") == record.fault("steps", "a" * 40, "k1")
    for part, commit, of, said in (
        ("steps", "a" * 40, ["m/step/1"], record.AGAIN),
        ("bench", "b" * 7, ["m/step/1"], f"bench: {record.AGAIN}, lost bbbbbbb"),
        ("steps", "c" * 40, [], "at ccccccc are not recorded"),
        ("steps", "a" * 40, ["m/guess/1"], "no digest of m/guess/1 is recorded"),
        ("trained", "c" * 40, [], "its engine at ccccccc is not recorded"),
        ("steps", "a" * 40, ["m/scan/1"], ""),
        ("steps", "a" * 40, ["m/step, vLLM/1"], ""),
        ("trained", "a" * 40, [], ""),
    ):
        found = record.fault(part, commit, "k1", *of)
        assert said in found
        assert bool(found) is bool(said)
    assert "are not recorded" in record.revision_fault("k2")
    assert record.revision_fault(texts.kernels_text()) == ""
    record.standing.cache_clear()


@pytest.mark.usefixtures("at_hand")
def test_without_the_triton_of_the_results_a_changed_code_is_unproven(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def current() -> Current:
        trees.folder()
        raise AssertionError

    monkeypatch.setattr(trees, "FOLDER", tmp_path)
    monkeypatch.setattr(record, "current", current)
    assert f"unproven: Triton {trees.TRITON} is not in {tmp_path}; run `{trees.INSTALL}`" in record.fault(
        "steps", "a" * 40, "k1"
    )
    record.standing.cache_clear()


def test_the_hash_of_a_text_is_the_same_on_every_version_of_python() -> None:
    """Later versions have `type_params`, and `ast.unparse` chooses other quotes for `f"{a['b']}"`."""
    tree = ast.parse("def f(a):\n    return f\"{a['b']}\"")
    told = texts._told(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node._fields = (*node._fields, "type_params")
            node.type_params = []  # type: ignore[attr-defined]
    assert texts._told(tree) == told
    assert texts._told(ast.parse("def f(a):\n    return f\"{a['c']}\"")) != told


def test_the_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    record.write(HELD, tmp_path / "digests.json")
    assert record.read(tmp_path / "digests.json") == HELD
    assert (tmp_path / "digests.json").read_text() == record.FILE.read_text()


def test_every_result_is_recorded_and_no_other() -> None:
    heads = command.heads()
    assert HELD.parts.keys() == heads.keys() & {*command.PARTS}
    assert {name: part.commit for name, part in HELD.parts.items()} == {name: heads[name]["commit"] for name in HELD.parts}
    assert HELD.revisions.keys() == command.ids().keys()
    for name, part in HELD.parts.items():
        if part.calls:
            rows = json.loads((command.RESULTS / f"{name}.json").read_text()).get("timings", [])
            timed = {f"{row['model']}/{row['operation']}/{row['batch']}" for row in rows}
            ours = {of for of in timed if not record.THEIRS.search(of.split("/")[1])}
            assert ours <= part.calls.keys()


def test_the_papers_tables_are_written_by_a_command_that_runs() -> None:
    """Not by a module that only defines it."""
    done = subprocess.run([sys.executable, *command.PAGES[-1], "--help"], capture_output=True, text=True, cwd=trees.ROOT)
    assert done.returncode == 0, done.stderr
    assert "--write" in done.stdout
