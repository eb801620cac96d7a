"""What the tutorial and the reference of adapters say is what happens."""

import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

from conformance import starters
from conformance.run import process
from conformance.run.program import PROTOCOL
from conformance.suite import SPECIFICATIONS
from conformance.suite.recurrences import KINDS, RECURRENCES
from ssmspec_ref.contract import OPERATIONS, NumericContract

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
STEPS = (DOCS / "tutorial.md").read_text(encoding="utf-8")
CONTRACT = (DOCS / "reference" / "contract.md").read_text(encoding="utf-8")
KINDS_OF = {kind.name: name for name, rule in RECURRENCES.items() for kind in rule.layers}
"""The recurrence of each kind of layer."""
IDS = (DOCS / "reference" / "case-ids.md").read_text(encoding="utf-8")


def call(line: str, folder: Path) -> str:
    """One line of the page, run in a folder, its output in one line for each printed."""
    words = line.split("ssmspec ", 1)[1].split()
    command = [sys.executable, "-m", "conformance", *words[1:]]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "400"}
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=False).stdout


def test_the_ten_minutes_go_as_they_are_told(tmp_path: Path) -> None:
    lines = re.findall(r"^    (ssmspec conform .*)$", STEPS.split("```text\nfail")[0], re.MULTILINE)
    assert [line.split()[2] for line in lines] == ["init", "check", "run"]
    outputs = [call(line, tmp_path) for line in lines]
    (check,) = re.findall(r"```text\n(ok .*?)\n```", STEPS, re.DOTALL)
    assert outputs[1].strip() == check
    assert "5/5" in outputs[2]
    assert "0.38" in outputs[2]
    new, old = re.findall(r"`(np\..*?)`", STEPS)[:2]
    written = (tmp_path / "my_kernels.py").read_text()
    assert written.count(old) == 1
    (tmp_path / "my_kernels.py").write_text(written.replace(old, new))
    failure = call(lines[2], tmp_path)
    (shown,) = re.findall(r"```text\n(fail .*?)\n    ssmspec", STEPS, re.DOTALL)
    missing = [part for line in shown.splitlines() for part in [line.strip().removesuffix("...")] if part not in failure]
    assert missing == []


def test_the_pages_say_what_the_code_has() -> None:
    assert f'"protocol": {PROTOCOL}' in (DOCS / "how-to" / "any-language.md").read_text(encoding="utf-8")
    assert f"`--timeout` seconds ({process.TIMEOUT:g})" in CONTRACT
    levels = {path.stem.rsplit("_", 1)[-1] for path in Path(starters.__file__).parent.glob("[!_]*.py")}
    pages = "".join((DOCS / "how-to" / f"{name}.md").read_text(encoding="utf-8") for name in ("kernel", "engine", "layer"))
    assert {level for level in levels if f"--level {level}" in pages} == levels - {"operations"}


def test_the_page_of_layers_has_every_kind_and_every_operation() -> None:
    page = (DOCS / "how-to" / "layer.md").read_text(encoding="utf-8")
    kinds = dict(re.findall(r"^\| `(\w+)` \|.*\| ([^|]+) \|$", page, re.MULTILINE))
    assert kinds == {name: RECURRENCES[KINDS_OF[name]].state for name in KINDS}
    assert re.findall(r"^\| `(layer\.\w+)` \|", page, re.MULTILINE) == [o for o in OPERATIONS if o.startswith("layer.")]


def test_every_field_and_operation_of_a_contract_is_explained() -> None:
    table = CONTRACT.split("## Numeric contract")[1].split("\n##")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == [field.name for field in fields(NumericContract)]
    operations = CONTRACT.split("## Operations")[1]
    assert re.findall(r"^\| `([\w.]+)` \| `?(.*?)`? \|$", operations, re.MULTILINE) == list(OPERATIONS.items())


def rows(section: str) -> list[tuple[str, list[str]]]:
    """Of a table, the names in the first column with those in the second."""
    body = IDS.split(f"## {section}\n")[1].split("\n## ")[0]
    found = re.findall(r"^\| (`.*?) \| (.*?) \|", body, re.MULTILINE)
    return [(name, re.findall(r"`(\w+)`", values)) for names, values in found for name in re.findall(r"`(\w+)`", names)]


def test_every_axis_option_value_and_family_is_explained() -> None:
    axes = {axis for s in SPECIFICATIONS for axis in s.base}
    assert {axis for axis, _ in rows("Sizes")} == axes
    assert {family for family, _ in rows("Families of inputs")} == {family for s in SPECIFICATIONS for family in s.families}
    told: dict[str, set[str]] = {}
    for name, values in rows("Options"):
        told.setdefault(name, set()).update(values)
    offered: dict[str, set[str]] = {}
    for s in SPECIFICATIONS:
        for name, values in s.offered.items():
            offered.setdefault(name, set()).update(values)
    assert told == offered
