"""The table of a campaign, from its results and the arguments for what survived.

python -m tests.kernels.campaign.table tests/kernels/campaign/breaks.jsonl > docs/evidence/kernel-breaks.md
"""

import argparse
import json
import tomllib
from collections import Counter
from math import comb
from pathlib import Path
from typing import Any

EQUIVALENT = Path(__file__).with_name("equivalent.toml")
FRESH = Path(__file__).with_name("fresh.toml")


def load(results: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The header, and the breaks as drawn; `first` is what came of a break before cases were added."""
    header = json.loads(results.with_suffix(".header.json").read_text())
    rows: dict[str, dict[str, Any]] = {}
    for row in map(json.loads, results.read_text().splitlines()):
        first = rows.get(row["name"], row)
        rows[row["name"]] = {**row, "first": first.get("first", first["result"])}
    return header, [rows[name] for name in header["drawn"]]


def table(header: dict[str, Any], rows: list[dict[str, Any]], arguments: dict[str, str]) -> str:
    """Markdown: the numbers, what was left out, the survivors, every break."""
    results = Counter(row["result"] for row in rows)
    first = Counter(row["first"] for row in rows)
    kinds = Counter(row["how"].split(":")[0] for row in rows if row["result"] == "killed")
    survivors = [row for row in rows if row["result"] == "survived"]
    same = sum("same" in row for row in survivors)
    alive, breaks = len(survivors) - same, len(rows) - same
    unargued = [row["name"] for row in survivors if row["name"] not in arguments]
    if unargued:
        raise SystemExit("no argument for:\n" + "\n".join(unargued))
    void, unfit = header.get("void", 0), header.get("unfit", [])
    lines = [
        "# Breaks of the kernels",
        "",
        "Made by `python -m tests.kernels.campaign.table`; `tests/kernels/campaign` says how a",
        "break is drawn and tested.",
        "",
        f"- seed {header['seed']}, drawn uniformly from {header['places']} places; {header['count']} drawn, and the next "
        f"ones of every module until it has {header['each']}: {len(rows)} breaks of "
        f"{len({r['module'] for r in rows})} modules",
        f"- commit {header['commit']}, kernels {header['kernels']}",
        *_anew(header["anew"]),
        *(
            [f"- {same} of the breaks leave the machine code as it was, and do not count (`tests.kernels.campaign.same`)"]
            if same
            else []
        ),
        f"- **{results['killed']} killed, {alive} survived ({100 * alive / breaks:.1f} %)**; "
        f"{first['survived'] - same} survived before cases were added for them",
        f"- killed by: {', '.join(f'{kind} {count}' for kind, count in kinds.most_common())}",
        f"- the {header['killers']} tests that killed them pass on the unbroken package",
        *([f"- judged nothing, because they fail on the unbroken package: {', '.join(unfit)}"] if unfit else []),
        f"- skipped because the broken file uses an undefined name, or cannot be imported: {void}",
        "",
        "Left out of the places: " + "; ".join(f"{reason} ({count})" for reason, count in header["left_out"].items()) + ".",
        "",
        "## What survived",
        "",
        "| place | change | why nothing changes |",
        "|---|---|---|",
        *(f"| {_place(r)} | {_change(r)} | {arguments[r['name']]}{_same(r)} |" for r in survivors),
        "",
        "## All breaks",
        "",
        "`+` marks a break that survived until a case was added for it.",
        "",
        "| place | kind | change | result | by |",
        "|---|---|---|---|---|",
        *(f"| {_place(r)} | {r['kind']} | {_change(r)} | {_outcome(r)} | {_by(r)} |" for r in sorted(rows, key=_order)),
    ]
    return "\n".join(lines) + "\n"


def fresh(draws: list[dict[str, Any]]) -> str:
    """Markdown: what draws with other seeds left alive, and what came of it.

    Raises: SystemExit for a survivor with neither a test nor an argument, or with both.
    """
    rows = [row for drawn in draws for row in drawn["survivor"]]
    unsettled = [_place(row) for row in rows if ("by" in row) == ("because" in row)]
    if unsettled:
        raise SystemExit("neither or both of a test and an argument:\n" + "\n".join(unsettled))
    told = [(f"{drawn['seed']} ({drawn['kernels'][:6]})", row) for drawn in draws for row in drawn["survivor"]]
    lines = [
        "",
        "## Fresh draws",
        "",
        "Cases were added for the survivors of the draw above, so it does not show how many other breaks would survive.",
        'The draws below show that: each ran against the tests of its time. "At most" is the upper end of an interval that',
        "contains the true share in 95 of 100 draws.",
        "",
        *(line for drawn in draws for line in _drawn(drawn)),
        "",
        "Each of those breaks was made again by hand, and the test named killed it. Since then all kernels are tested with",
        "default arguments, with outputs that are not given, for what they return and for tensors that they refuse, and",
        "no two sizes are the same wherever bytes are counted (`tests/kernels/kernel_table.py`).",
        "",
        "| seed (kernels) | place | change | killed by, or why nothing changes |",
        "|---|---|---|---|",
        *(f"| {drawn} | {_place(row)} | {_change(row)} | {_settled(row)} |" for drawn, row in told),
    ]
    return "\n".join(lines) + "\n"


def _drawn(drawn: dict[str, Any]) -> list[str]:
    """One draw in a sentence or two."""
    rows = drawn["survivor"]
    idle, added = sum("because" in row for row in rows), sum(row.get("added", False) for row in rows)
    others, missed = drawn["drawn"] - idle, len(rows) - idle
    share = f"{100 * missed / others:.1f} %, at most {100 * _most(missed, others):.1f} %"
    cases = [f"  Cases were added for {added} of those; {missed - added} are killed by a case that was not run then."]
    return [
        f"- Seed {drawn['seed']}: **{len(rows)} of {drawn['drawn']} survived**. {idle} of them change nothing;",
        f"  of the {others} others {missed} were missed: {share}.",
        *(cases if missed else []),
        f"  Line numbers are those of kernels {drawn['kernels']}.",
        *([f"  Drawn within {drawn['within']}."] if "within" in drawn else []),
    ]


def _most(missed: int, others: int) -> float:
    """The share of missed breaks above which so few of `others` are missed in less than 5 of 100 draws (exact binomial)."""
    low, high = missed / others, 1.0
    for _ in range(50):
        share = (low + high) / 2
        few = sum(comb(others, k) * share**k * (1 - share) ** (others - k) for k in range(missed + 1))
        low, high = (share, high) if few > 0.05 else (low, share)
    return high


def _same(row: dict[str, Any]) -> str:
    return f" Compiled for sm_90, {row['same']} kernels have the same instructions." if "same" in row else ""


def _settled(row: dict[str, Any]) -> str:
    return " ".join(row["because"].split()) if "because" in row else _code(row["by"], 100)


def _anew(names: list[str]) -> list[str]:
    if not names:
        return []
    return [
        f"- {len(names)} of the breaks are in modules that changed after the first draw, and were drawn again: as many from "
        "each, uniformly among its places"
    ]


def _order(row: dict[str, Any]) -> tuple[str, ...]:
    return str(row.get("module") or row["file"]), str(row.get("function", "")), str(row["source"]), str(row["name"])


def _place(row: dict[str, Any]) -> str:
    """The module and the function; of a draw with another seed the line, as it was then."""
    return f"{row['file']}:{row['line']}" if "line" in row else f"{row['module']}.{row['function']}"


def _change(row: dict[str, Any]) -> str:
    return f"{_code(row['old'])} to {_code(row['new'])} in {_code(row['source'], 90)}"


def _code(text: str, most: int = 60) -> str:
    text = " ".join(text.split())
    text = text if len(text) <= most else text[: most - 2] + ".."
    return "`" + text.replace("|", "\\|").replace("](", "] (") + "`"


def _outcome(row: dict[str, Any]) -> str:
    return ("+ " if row["first"] != row["result"] else "") + (row["how"] if row["result"] == "killed" else "survived")


def _by(row: dict[str, Any]) -> str:
    return (
        _code(row["by"].removeprefix("tests/kernels/"), 100) if row["result"] == "killed" else f"{row['tests']} tests passed"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("results", type=Path)
    header, rows = load(parser.parse_args().results)
    arguments = tomllib.loads(EQUIVALENT.read_text()) if EQUIVALENT.exists() else {}
    print(table(header, rows, {name: " ".join(text.split()) for name, text in arguments.items()}), end="")
    print(fresh(tomllib.loads(FRESH.read_text())["draw"]), end="")


if __name__ == "__main__":
    main()
