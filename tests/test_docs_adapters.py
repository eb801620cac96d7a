"""What docs/adapters.md tells a newcomer to do is done here, and what it shows is what is printed."""

import os
import re
import subprocess
import sys
from pathlib import Path

from conformance import process, starters
from conformance.program import PROTOCOL

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "adapters.md").read_text()
STEPS = PAGE.split("## Ten minutes")[1].split("## Three levels")[0]


def call(line: str, folder: Path) -> str:
    """One line of the page, run in a folder, its output in one line for each printed."""
    words = line.split("ssmspec ", 1)[1].split()
    command = [sys.executable, "-m", "conformance", *words[1:]]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "400"}
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=False).stdout


def test_the_ten_minutes_go_as_they_are_told(tmp_path: Path) -> None:
    lines = re.findall(r"^    (ssmspec conform .*)$", STEPS.split("```text\nfail")[0], re.MULTILINE)
    assert [line.split()[2] for line in lines] == ["init", "smoke", "run"]
    outputs = [call(line, tmp_path) for line in lines]
    (smoke,) = re.findall(r"```text\n(ok .*?)\n```", STEPS, re.DOTALL)
    assert outputs[1].strip() == smoke
    assert "4/4" in outputs[2]
    assert "0.34" in outputs[2]
    new, old = re.findall(r"`(np\..*?)`", STEPS)[:2]
    written = (tmp_path / "my_kernel.py").read_text()
    assert written.count(old) == 1
    (tmp_path / "my_kernel.py").write_text(written.replace(old, new))
    failure = call(lines[2], tmp_path)
    (shown,) = re.findall(r"```text\n(fail .*?)\n    ssmspec", STEPS, re.DOTALL)
    missing = [part for line in shown.splitlines() for part in [line.strip().removesuffix("...")] if part not in failure]
    assert missing == []


def test_the_page_says_what_the_code_has() -> None:
    assert f'"protocol": {PROTOCOL}' in PAGE
    assert f"`--timeout` seconds ({process.TIMEOUT:g})" in PAGE
    levels = {path.stem.rsplit("_", 1)[-1] for path in Path(starters.__file__).parent.glob("[!_]*.py")}
    assert levels == set(re.findall(r"^\| `(\w+)` \|", PAGE.split("## Three levels")[1].split("##")[0], re.MULTILINE))
