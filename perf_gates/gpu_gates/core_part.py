"""The times of the core set as a part of a run: read from pytest-benchmark's file."""

from pathlib import Path
from typing import Any

from .. import files
from ..timed.place import PART


def write_part(benchmark: Path, out: Path) -> bool:
    """Writes DIR/core_set.json from the benchmarks; returns whether there were any. A measurement of several pairs counts
    once."""
    told = infos(benchmark, "timing")
    if not told:
        return False
    timings: dict[tuple[Any, ...], dict[str, Any]] = {}
    for one in told:
        place = one["place"]
        key = place["shape"], place["operation"], place["batch"]
        timings.setdefault(key, {"model": key[0], "operation": key[1], "batch": key[2]} | one["timing"])
    found = {"part": PART, "machine": told[0]["machine"], "complete": True, "errors": [], "timings": [*timings.values()]}
    files.write(out / f"{PART}.json", found)
    return True


def pairs(benchmark: Path) -> list[dict[str, Any]]:
    """The results of each pair."""
    return infos(benchmark, "ratio")


def infos(benchmark: Path, name: str) -> list[dict[str, Any]]:
    """What the benchmarks say that have this name."""
    read = files.read(benchmark)["benchmarks"] if benchmark.exists() and benchmark.stat().st_size else []
    return [b["extra_info"] for b in read if name in b["extra_info"]]


def reds(benchmark: Path) -> list[str]:
    """Pairs that do not pass, or miss the planted delay."""
    told = ((p, p["verdict"], p["delayed"]["verdict"]) for p in pairs(benchmark))
    return [
        f"core set: {p['name']}: {said}, with a delay {planted}; ratio {p['ratio']:.4f}, best {p['best']}"
        for p, said, planted in told
        if said != "pass" or planted != "FAIL"
    ]
