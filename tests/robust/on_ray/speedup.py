"""How much faster two workers of one CPU are than one: `python -m tests.robust.on_ray.speedup`, from the checkout."""

import os
import sys
import tempfile
import time
from pathlib import Path

from tests.robust.on_ray import runs
from tests.robust.on_ray.clusters import cluster


def main(words: list[str]) -> None:
    """Beside each time what the closed form of `docs/campaigns.md` allows, from the tasks' own seconds."""
    os.environ["OMP_NUM_THREADS"] = "1"
    for workers in (1, 2):
        with tempfile.TemporaryDirectory() as folder, cluster(Path(folder) / "cluster", nodes=workers) as nodes:
            begun = time.monotonic()
            made = runs.ran(
                Path(folder),
                *runs.conform(Path(folder) / "ray", ["reference"], "--ray", nodes.address, *words),
                timeout=900,
            )
            took = time.monotonic() - begun
            noted = runs.tasks(Path(folder) / "ray")
        took_each = [task["seconds"] for task in noted]
        span = max(task["began"] + task["seconds"] for task in noted) - min(task["began"] for task in noted)
        work, longest = sum(took_each), max(took_each)
        least, most = max(work / workers, longest), work / workers + (1 - 1 / workers) * longest
        print(
            f"{workers} workers: {took:.1f} s, exit {made.returncode}; {len(noted)} tasks of {work:.1f} s in all, the "
            f"longest {longest:.1f} s, in {span:.1f} s, where the closed form says {least:.1f} to {most:.1f} s: "
            f"{work / span:.2f} at a time; {sum(task['cpu_seconds'] for task in noted):.1f} s of CPU",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
