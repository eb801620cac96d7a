"""Results as a table: `python -m perf_gates.report perf_gates/results/h200-kernels.json`."""

import argparse
import json
from pathlib import Path
from typing import Any


def table(results: dict[str, Any]) -> str:
    """Markdown: a row for each model and operation, a column for each batch: microseconds, and plain steps or copy."""
    timings = results["timings"]
    batches = sorted({t["batch"] for t in timings})
    rows: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
    for t in timings:
        operation = t["operation"].rsplit(",", 1)[0] if "rows" in t["operation"] else t["operation"]
        rows.setdefault((t["model"], operation), {})[t["batch"]] = t
    lines = [
        f"| | | {' | '.join(map(str, batches))} |",
        f"|---|---|{'---|' * len(batches)}",
        *(
            f"| {model} | {operation} | {' | '.join(_cell(found.get(b)) for b in batches)} |"
            for (model, operation), found in rows.items()
        ),
    ]
    return "\n".join(lines)


def _cell(timing: dict[str, Any] | None) -> str:
    if timing is None:
        return ""
    plain = timing["operation"] == "step" or timing["of_step"] is None
    beside = f"{timing['of_copy']:.2f} copy" if plain else f"{timing['of_step']:.2f} steps"
    return f"{timing['us']:.2f}, {beside}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    results = json.loads(parser.parse_args().results.read_text())
    machine = results["machine"]
    print(f"{machine['gpu']}, torch {machine['torch']}, triton {machine['triton']}, kernels {machine['kernels']},", end=" ")
    print(f"copy {machine['copy_bytes_per_us'] / 1e6:.2f} TB/s, empty launch {machine['empty_launch_us']:.2f} us\n")
    print(table(results))


if __name__ == "__main__":
    main()
