"""What README.md shows is what happens: its commands, examples, picture, counts and links."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from .picture import COMMAND, drawn

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FOUND = ROOT / "docs" / "found.md"
ENGINE_PAGE = ROOT / "docs" / "evidence" / "engines.md"
EXAMPLE = (ROOT / "docs" / "examples" / "my_kernels.py").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    (\S.*)$", re.sub(r"```.*?```", "", README, flags=re.DOTALL), re.MULTILINE)
(FROM_NOTHING,) = [command for command in COMMANDS if command.endswith(f".venv/bin/{COMMAND}")]
"""The one line that goes from a fresh clone to the first report; `test_from_nothing` runs it."""
ENGINES = {"transformers", "mamba-ssm", "flash-linear-attention", "vLLM", "SGLang", "FlashInfer", "mlx-lm", "llama.cpp"}


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """One line of the README, with this interpreter's ssmspec."""
    program, *words = shlex.split(command)
    assert program == "ssmspec"
    environment = os.environ | {"PYTHONPATH": str(folder), "COLUMNS": "200"}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"  # it is believed after an edit of the same size in the same second
    line = [sys.executable, "-c", "from conformance.main import main; main()", *words]
    return subprocess.run(line, capture_output=True, text=True, cwd=folder, env=environment, check=False)


def test_the_readme_is_short_and_shows_the_example_as_it_is() -> None:
    assert len(README.splitlines()) <= 120
    assert re.findall(r"```python\n(.*?)```", README, re.DOTALL) == [EXAMPLE]
    assert len([line for line in EXAMPLE.splitlines() if line]) <= 15


def counted(page: str) -> dict[str, int]:
    """The faults that a page records, by the project and version that a section is about."""
    sections = re.findall(r"^## (\S+ \d[\w.]*)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    faults = {name: len(re.findall(r'^### <a id="\w+"></a>', body, re.MULTILINE)) for name, body in sections}
    return {name: number for name, number in faults.items() if number}


def engines(page: str, runs: list[dict[str, Any]]) -> dict[str, int]:
    """The same of the page of whole engines: a section counts where a recorded failure of that version is told in it."""
    sections = re.findall(r'^## <a id="\w+"></a>\w+\. (\S+ \d[\w.]*)(.*?)(?=^## |\Z)', page, re.MULTILINE | re.DOTALL)
    told = [(run["engine"].lower(), failure["told"]) for run in runs for failure in run["failures"]]
    recorded = [name for name, body in sections if any(e.endswith(name.lower()) and said in body for e, said in told)]
    return dict(Counter(recorded))


def claimed(readme: str) -> tuple[int, dict[str, int]]:
    """The total and the faults by project that the README states."""
    (total, rest) = re.findall(r"\*\*(\d+) faults in released code so far:\*\* (.*?)\. \[", readme, re.DOTALL)[0]
    return int(total), {name: int(number) for number, name in re.findall(r"(\d+) in (\S+\s\d[\w.]*\w)", rest)}


def test_the_readme_counts_the_faults_that_are_recorded() -> None:
    total, by_project = claimed(README)
    found = FOUND.read_text(encoding="utf-8")
    page, runs = ENGINE_PAGE.read_text(encoding="utf-8"), json.loads(ENGINE_PAGE.with_suffix(".json").read_text("utf-8"))
    of_engines = engines(page, runs)
    assert by_project == Counter(counted(found)) + Counter(of_engines)
    assert len(re.findall(r"\(evidence/engines\.md#\w+\)", found)) == sum(of_engines.values())
    assert total == sum(by_project.values())
    named = {name.split()[0] for name in by_project} | ({"llama.cpp"} if "llama-cpp-python 0.3.36" in by_project else set())
    unrecorded = {engine for engine in ENGINES - named if engine in README}
    assert unrecorded == set()


def test_a_fault_of_an_engine_without_its_record_is_not_counted() -> None:
    page, runs = ENGINE_PAGE.read_text(encoding="utf-8"), json.loads(ENGINE_PAGE.with_suffix(".json").read_text("utf-8"))
    without = [run | {"failures": []} if run["engine"].startswith("llama") else run for run in runs]
    assert {name.split()[0] for name in engines(page, runs)} - {name.split()[0] for name in engines(page, without)} == {
        "llama-cpp-python"
    }


def test_a_fault_that_is_not_recorded_is_seen() -> None:
    page = FOUND.read_text(encoding="utf-8").replace('### <a id="v1"></a>', "### ")
    assert counted(page) != claimed(README)[1]


def told(picture: str) -> list[str]:
    """The text of a picture, without the errors, which another CPU's order of sums changes."""
    words = re.findall(r">([^<>]+)</text>", picture)
    return [word for word in words if not re.fullmatch(r"[\s\d.]*\d\.\d+\s*", word.replace("&#160;", " "))]


def test_the_picture_is_what_its_command_draws(tmp_path: Path) -> None:
    """The first command of the README, on code of others; it takes under two minutes, and its matrix is the picture."""
    done = run(f"{COMMAND} --report report", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    shown = (ROOT / "docs" / "pictures" / "qwen3.svg").read_text(encoding="utf-8")
    assert told(drawn(tmp_path / "report")) == told(shown), "python -m tests.docs.picture REPORT docs/pictures/qwen3.svg"
    assert "http" not in shown.replace('xmlns="http://www.w3.org/2000/svg"', "")


def test_the_example_passes_and_with_the_planted_fault_fails(tmp_path: Path) -> None:
    (line,) = [command for command in COMMANDS if "my_kernels" in command]
    (tmp_path / "my_kernels.py").write_text(EXAMPLE)
    done = run(line, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    cases, fails = re.findall(r"It passes all (\d+) cases.*?ssmspec fails more than (\d+) cases", README, re.DOTALL)[0]
    shown = re.search(rf"\s{cases}/{cases}\s+fp32/ulp=3/sequential +(\S+)", done.stdout)
    assert shown
    assert float(shown[1]) < 0.5
    new, old = re.findall(r"write `(.*?)` for\s`(.*?)`", README)[0]
    assert EXAMPLE.count(old) == 1
    (tmp_path / "my_kernels.py").write_text(EXAMPLE.replace(old, new))
    done = run(line, tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    failed = re.search(rf"(\d+) of {cases} cases", done.stdout)  # the sizes of two are drawn for each run
    assert failed
    assert int(failed[1]) > int(fails)
    assert re.search(r"differs +\S+ at row \d.*: expected \S+, got \S", done.stdout)
    assert "smallest" in done.stdout
    assert "exp2(1.44 x)" in done.stdout


def test_the_engine_of_the_readme_is_compared_with_its_plain_decoding(tmp_path: Path) -> None:
    lines = [command for command in COMMANDS if "my_engine" in command]
    assert [run(line, tmp_path).returncode for line in lines] == [0, 0]
    engine = tmp_path / "my_engine.py"
    text = engine.read_text()
    broken = text.replace("tokens.append(right)\n", "tokens.append(draft)\n")  # an unverified draft is emitted
    assert broken != text
    engine.write_text(broken)
    assert run(lines[1], tmp_path).returncode == 1


def test_every_command_of_the_readme_is_run_here_or_by_ci() -> None:
    """The installation and `generate --compare` are run by the walks (test_walks), the line of a fresh clone by
    `test_from_nothing`."""
    walk = (ROOT / "docs" / "walks" / "engine-author.sh").read_text(encoding="utf-8")
    compare = next(command for command in COMMANDS if command.endswith("--compare"))
    assert f"\n{compare} " in walk
    ran = {FROM_NOTHING, compare, "pip install ../ssmspec", *(c for c in COMMANDS if "my_kernels" in c or "my_engine" in c)}
    (left,) = set(COMMANDS) - ran
    assert left.endswith("tox run")


def test_ci_runs_the_command_of_the_readme() -> None:
    pattern = re.search(r"sed -n '(s/.*?/p)' README.md", (ROOT / ".ci" / "run").read_text())
    assert pattern
    found = subprocess.run(["sed", "-n", pattern[1], str(ROOT / "README.md")], capture_output=True, text=True, check=True)
    assert found.stdout.strip().endswith("tox run")
    assert f"    {found.stdout.strip()}\n" in README


def test_the_example_of_a_draft_runs(tmp_path: Path) -> None:
    line = [sys.executable, str(ROOT / "docs" / "examples" / "undo_a_draft.py")]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, "")


DOCUMENTS = [
    *ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("kernels/*.md"), *ROOT.glob("perf_gates/*.md")
]  # fmt: skip


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: str(d.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", document.read_text(encoding="utf-8"))
    missing = [t for t in targets if not t.startswith("http") and not (document.parent / t).exists()]
    assert missing == []
