"""What a newcomer does is a patch: what is added is new files and few rows, is judged and passes; an option of a recurrence
is in ten files, with its tests; a failing gate is explained without a change; what is wrong in the flush of a ring is mended
in one file.

Made by `git diff -U1` in a checkout where the task was done; where a patch no longer applies, do the task again. The rows of
a recurrence are the first of their registries, and its imports come first: there the lines beside them stay as they are.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
COPIED = ("ssmspec_ref", "ssmspec_fast", "conformance", "property_tests", "kernels/ssmspec_kernels")
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.safetensors")


@dataclass(frozen=True)
class Task:
    """At most `most` existing files change. What is added passes the run, and fails it with `new` for `old` in a file."""

    patch: str
    most: int
    run: tuple[str, ...]
    file: str
    old: str
    new: str


TASKS = (
    Task(
        "add_recurrence", 8,
        ("--adapter", "ssmspec_fast", "--operation", "retention.scan", "--subject", "operations, bitwise"),
        "ssmspec_fast/layers/retention.py", "after = token.a[..., None, None] * S", "after = S",
    ),
    Task(
        "add_method", 4,
        ("--adapter", "ssmspec_fast", "--operation", "speculate.chain", "--subject", "restore"),
        "ssmspec_fast/methods/restore.py", "put(pools.recurrent(layer).S, verdict.slots, copy)", "pass",
    ),
    Task(
        "add_adapter", 3,
        ("--adapter", "numpy_fp32", "--operation", "ssd.scan"),
        "conformance/adapters/numpy_fp32.py", "np.exp(dt[:, t] * A)", "np.exp2(np.float32(1.44) * dt[:, t] * A)",
    ),
    Task(
        "add_option", 9,
        ("--adapter", "ssmspec_fast", "--subject", "operations", "--case", "selective.scan/b2,t7,d6,n4/dt_cap=on/gentle/s0"),
        "ssmspec_fast/operations/torch_recurrences.py", "dt.clamp(max=params.dt_cap)", "dt",
    ),
)  # fmt: skip
FLUSH = Task(
    "mend_flush", 1,
    ("--adapter", "ssmspec_fast", "--operation", "speculate.chain", "--subject", "replay buffer of two windows"),
    "ssmspec_fast/methods/replay_buffer.py", "torch.where(due, (origin + held) % kept.entries, origin)",
    "torch.where(due, (origin + advanced) % kept.entries, origin)",
)  # fmt: skip
CELL = "replayssm-6-batches, nemotron-3-nano-4b, batch 1"
SLOWED = ("nemotron-3-nano-4b", "buffered L=16 output only, aligned", 1)
"""A cell of a paper's table, and the measurement that is its numerator."""
each = pytest.mark.parametrize("task", TASKS, ids=lambda task: task.patch)


def changed(patch: str) -> list[str]:
    """The existing files that a patch changes."""
    files = re.split(r"^(?=diff --git )", patch, flags=re.MULTILINE)[1:]
    return [found[1] for text in files if (found := re.search(r"^--- a/(.+)$", text, re.MULTILINE))]


def judged(tree: Path, task: Task) -> int:
    """The exit code of the run in a tree."""
    path = os.pathsep.join((str(tree), str(tree / "kernels")))
    tier = () if "--case" in task.run else ("--tier", "smoke")
    command = [sys.executable, "-P", "-m", "conformance", "run", *task.run, *tier, "--report", "report"]
    shutil.rmtree(tree / "report", ignore_errors=True)
    done = subprocess.run(command, cwd=tree, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.returncode


@each
def test_few_existing_files_are_changed(task: Task) -> None:
    """The changelog is one more; it changes too often to be in a patch."""
    assert 0 < 1 + len(changed((HERE / f"{task.patch}.patch").read_text())) <= task.most


def test_an_option_of_a_recurrence_is_in_ten_files_with_its_tests() -> None:
    """The oracle, its other derivation, the bound, the suite, the engine; and no adapter that does not have it."""
    files = re.findall(r"^\+\+\+ b/(.+)$", (HERE / "add_option.patch").read_text(), re.MULTILINE)
    assert len(files) <= 10
    assert any(file.startswith("tests/") for file in files)


def copied(tree: Path, *more: str) -> None:
    """The packages of this tree, in a folder."""
    for name in (*COPIED, *more):
        shutil.copytree(ROOT / name, tree / name, ignore=LEFT_OUT)


def apply(patch: str, tree: Path) -> None:
    subprocess.run(["git", "apply", str(HERE / f"{patch}.patch")], cwd=tree, check=True)


def plant(tree: Path, task: Task) -> None:
    file = tree / task.file
    assert file.read_text().count(task.old) == 1
    file.write_text(file.read_text().replace(task.old, task.new))


@each
def test_what_a_newcomer_adds_is_judged(task: Task, tmp_path: Path) -> None:
    copied(tmp_path)
    apply(task.patch, tmp_path)
    assert judged(tmp_path, task) == 0
    plant(tmp_path, task)
    assert judged(tmp_path, task) == 1


def test_another_recurrence_leaves_the_patch_applicable(tmp_path: Path) -> None:
    """A row at the end of each registry, and its import in the order of names."""
    copied(tmp_path)
    files = [tmp_path / file for file in changed((HERE / "add_recurrence.patch").read_text())]
    for file in files:
        text, rows = re.subn(r"(?s)(= Registry\(.*?\n)\)", r"\1    another.RECURRENCE,\n)", file.read_text())
        assert rows == 1
        file.write_text(text.replace("import delta,", "import another, delta, mine,"))
    apply("add_recurrence", tmp_path)
    assert all("another" in file.read_text() for file in files)


def test_the_flush_of_a_ring_is_mended_in_one_file(tmp_path: Path) -> None:
    """The ring starts at the first entry that is held no more: what is flushed next is in part what was flushed before."""
    assert changed((HERE / f"{FLUSH.patch}.patch").read_text()) == [FLUSH.file]
    copied(tmp_path)
    plant(tmp_path, FLUSH)
    assert judged(tmp_path, FLUSH) == 1
    apply(FLUSH.patch, tmp_path)
    assert judged(tmp_path, FLUSH) == 0
    assert (tmp_path / FLUSH.file).read_text() == (ROOT / FLUSH.file).read_text()


def test_a_failing_gate_is_explained_without_a_change(tmp_path: Path) -> None:
    """A measurement of a committed run is doubled: the red cell is told with all that it is made of."""
    assert changed((HERE / "explain_gate.patch").read_text()) == []
    copied(tmp_path, "perf_gates")
    apply("explain_gate", tmp_path)
    results = tmp_path / "run"
    shutil.copytree(tmp_path / "perf_gates" / "results", results)
    part = json.loads((results / "buffered.json").read_text())
    (slowed,) = (t for t in part["timings"] if (t["model"], t["operation"], t["batch"]) == SLOWED)
    slowed["us"] *= 2
    (results / "buffered.json").write_text(json.dumps(part))
    path = os.pathsep.join((str(tmp_path), str(tmp_path / "kernels")))
    command = [sys.executable, "-P", "explain_gates.py", str(results)]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr
    rows = re.split(r"^(?=\S)", done.stdout, flags=re.MULTILINE)
    (told,) = (row for row in rows if re.match(rf"{CELL}\b", row))
    assert f"{results / 'buffered.json'}, made at {part['machine']['commit'][:7]}" in told
    shape, operation, batch = SLOWED
    assert f"  under     buffered, {shape}, {operation}, batch {batch}\n" in told
    assert f"buffered/{shape}/{operation}/{batch}: {slowed['us']:.2f} us" in told
    assert re.search(r"^  floor     [0-9.]+$", told, re.MULTILINE)


def test_a_file_that_exists_is_counted_and_a_new_one_is_not() -> None:
    old = "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n"
    new = "diff --git a/y b/y\nnew file mode 100644\n--- /dev/null\n+++ b/y\n"
    assert changed(old + new) == ["x"]
