"""The published table: counts, every break, what killed it, and the arguments for what survived.

    cd tests/oracle_breaks
    python -m tests.oracle_breaks.table breaks.jsonl fresh.jsonl > ../../docs/evidence/oracle-breaks.md

The second is a later draw, with a section of its own. What survived and is not argued is counted against the suite, and
listed.
"""

import argparse
import json
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

from tests.kernels.campaign.table import _change, _code, _order, _place

EQUIVALENT = Path(__file__).with_name("equivalent.toml")
EARLIER = """An earlier draw of 60 (seed 20261122) left 11 alive. Seven were code that nothing judged: attention over whole
sequences, the longest prefix of a chain, trees path by path, and rows of joint attainment that rest; these are judged now,
and the seven are killed. Four were refusals, which no input of a case meets; three of them fail a unit test, and the fourth,
the checks of a record that has checks of its own, has one since."""
MISSED = "Missed"
"""How the text begins about a survivor that does change something, and what it is where there is none."""


def load(results: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The header, and the breaks in the order of the draw."""
    header = json.loads(results.with_suffix(".header.json").read_text())
    rows = {row["name"]: row for row in map(json.loads, results.read_text().splitlines())}
    return header, [rows[name] for name in header["drawn"]]


def table(header: dict[str, Any], rows: list[dict[str, Any]], arguments: dict[str, str]) -> str:
    """Markdown: the score, what survived, every break. Raises: SystemExit for an argument about no survivor."""
    survivors = [row for row in rows if row["result"] == "survived"]
    idle = set(arguments) - {row["name"] for row in survivors}
    if idle:
        raise SystemExit("an argument for what did not survive, or was not drawn:\n" + "\n".join(sorted(idle)))
    argued = [row for row in survivors if not arguments.get(row["name"], MISSED).startswith(MISSED)]
    killed = len(rows) - len(survivors)
    kinds = Counter(row["how"] for row in rows if row["result"] == "killed")
    lines = [
        "# Breaks of the oracle",
        "",
        "Made by `python -m tests.oracle_breaks.table`; `tests/oracle_breaks` says how a break is drawn and tested.",
        "The broken package is tested against the unbroken one.",
        "",
        f"- seed {header['seed']}, drawn uniformly from {header['places']} places of {header['files']} files; "
        f"{header['count']} drawn, and the next ones of every file until it has {header['each']}: {len(rows)} breaks",
        f"- commit {header['commit']}, sources {header['sources']}; the unbroken package passes all {header['cases']} cases",
        f"- **{killed} killed, {len(survivors)} survived: {len(argued)} argued equivalent, {len(survivors) - len(argued)} "
        f"missed; mutation score {100 * killed / (len(rows) - len(argued)):.1f} %**",
        f"- killed by: {', '.join(f'{kind} {count}' for kind, count in kinds.most_common())}",
        f"- skipped because the broken file uses an undefined name, or cannot be imported: {header['void']}",
        "",
        EARLIER,
        "",
        "Left out of the places: " + "; ".join(f"{reason} ({count})" for reason, count in header["left_out"].items()) + ".",
        "",
        "## What survived",
        "",
        "| place | change | why nothing changes, or what is missed | the unit test that fails |",
        "|---|---|---|---|",
        *(f"| {_place(r)} | {_change(r)} | {arguments.get(r['name'], MISSED)} | {_unit(r)} |" for r in survivors),
        "",
        "## All breaks",
        "",
        "| place | kind | change | result | by |",
        "|---|---|---|---|---|",
        *(f"| {_place(r)} | {r['kind']} | {_change(r)} | {_outcome(r)} | {_by(r)} |" for r in sorted(rows, key=_order)),
    ]
    return "\n".join(lines) + "\n"


def _outcome(row: dict[str, Any]) -> str:
    return row["how"] if row["result"] == "killed" else "survived"


def _unit(row: dict[str, Any]) -> str:
    if "unit" not in row:
        return "not run in full"
    return f"`{row['unit']}`" if row["unit"] else "none"


def _by(row: dict[str, Any]) -> str:
    return f"{row['subject']}: {_code(row['by'], 90)}" if row["result"] == "killed" else f"{row['cases']} cases passed"


def later(made: str) -> str:
    """The page of a later draw, as a section of the page of the first."""
    text = made.replace("# Breaks of the oracle\n", "# A fresh draw\n", 1).replace(EARLIER + "\n\n", "")
    return "\n".join(f"#{line}" if line.startswith("#") else line for line in text.splitlines()) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("results", type=Path, nargs="+")
    for number, results in enumerate(parser.parse_args().results):
        header, rows = load(results)
        argued = results.with_suffix(".toml") if number else EQUIVALENT
        arguments = {name: " ".join(text.split()) for name, text in tomllib.loads(argued.read_text()).items()}
        made = table(header, rows, arguments)
        print("\n" + later(made) if number else made, end="")


if __name__ == "__main__":
    main()
