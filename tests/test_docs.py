"""What the documents show is what runs: the README's commands, examples and links."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("kernels/*.md"), *ROOT.glob("perf_gates/*.md")]


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "docs" / "examples"), str(ROOT)])}
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=cwd, env=environment, check=False)


def test_the_readme_shows_the_examples_as_they_are() -> None:
    shown = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert shown == [(ROOT / "docs" / "examples" / name).read_text() for name in ("my_kernels.py", "undo_a_draft.py")]


def test_the_example_of_a_draft_runs(tmp_path: Path) -> None:
    done = run(str(ROOT / "docs" / "examples" / "undo_a_draft.py"), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_example_adapter_is_judged_and_passes(tmp_path: Path) -> None:
    done = run("-m", "conformance", "run", "--adapter", "my_kernels:adapter", "--tier", "smoke", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Nothing failed." in done.stdout


def test_the_example_adapter_with_a_planted_fault_fails(tmp_path: Path) -> None:
    """A decay of exp2(1.44 x) for exp(x): the kind of error that a tolerance of 0.01 lets pass."""
    source = (ROOT / "docs" / "examples" / "my_kernels.py").read_text()
    faulty = source.replace("np.exp(dt * A)", "np.exp2(np.float32(1.44) * dt * A)")
    assert faulty != source
    (tmp_path / "faulty_kernels.py").write_text(faulty)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    command = [sys.executable, "-m", "conformance", "run", "--adapter", "faulty_kernels:adapter", "--tier", "smoke"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
    assert done.returncode == 1, done.stdout + done.stderr


def test_ci_runs_the_command_of_the_readme() -> None:
    pattern = re.search(r"sed -n '(s/.*?/p)' README.md", (ROOT / ".ci" / "run").read_text())
    assert pattern
    found = subprocess.run(["sed", "-n", pattern[1], str(ROOT / "README.md")], capture_output=True, text=True, check=True)
    assert found.stdout.strip().endswith("tox run")
    assert f"    {found.stdout.strip()}\n" in README


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: str(d.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", document.read_text())
    missing = [t for t in targets if not t.startswith("http") and not (document.parent / t).exists()]
    assert missing == []
