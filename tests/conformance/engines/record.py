"""Add reports of `ssmspec conform engine` to the records of docs/evidence/engines.md.

python -m tests.conformance.engines.record REPORT.. [--stored bfloat16] [--engine NAME]

`told` is the part of a finding that the page must tell; the gap in logits, unless the page quotes more.
"""

import argparse
import json
import re
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[3] / "docs" / "evidence" / "engines.json"


def recorded(name: str, one: dict[str, Any], stored: str, engine: str = "") -> dict[str, Any]:
    """One checkpoint of a report as a record, without the paths of the machine that it ran on.

    `engine` is the name and version of an engine that ended before it told them.
    """
    outcomes: dict[str, dict[str, list[Any]]] = {}
    for cell in one["cells"]:
        outcomes.setdefault(cell["configuration"], {})[cell["law"]] = [cell["outcome"], cell["counts"].get("passed", 0)]
    return {
        "engine": one["engine"] or engine, "checkpoint": name, "stored": stored,
        **{key: one[key] for key in ("schedules", "requests", "tokens", "drafts")}, "refused": one["refused"],
        "outcomes": outcomes, "failures": [told(failure) for failure in one["failures"]],
    }  # fmt: skip


def told(failure: dict[str, Any]) -> dict[str, Any]:
    finding = re.sub(r"/\S*/(?=\w+/\w+\.cpp:)", "", failure["finding"])
    gap = re.search(r"[\d.e-]+(?= logits apart)", finding)
    rerun = re.sub(r"(--python |program:)/\S+", r"\1ENGINE", failure["rerun"].removeprefix("again: "))
    return failure | {"finding": finding, "rerun": rerun, "told": gap[0] if gap else finding[-40:]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path, nargs="+")
    parser.add_argument("--stored", default="")
    parser.add_argument("--engine", default="", help="name and version, if it ended before it told them")
    given = parser.parse_args()
    runs = json.loads(FILE.read_text(encoding="utf-8"))
    for path in given.report:
        for name, one in json.loads(path.read_text())["checkpoints"].items():
            runs.append(recorded(name, one, f" in {given.stored}" if given.stored else "", given.engine))
    FILE.write_text("[\n" + ",\n".join(json.dumps(run) for run in runs) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
