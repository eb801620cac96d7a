"""Judge a draw of breaks: each in a copy of the package, in a process of its own, by its kernel's tests.

    python -m tests.kernels.campaign.run --seed 1 --count 130 --out breaks.jsonl

The tests are run on the unbroken package first; a file that fails there judges nothing, and is named. A break is killed when
a test that passed there fails, or does not end. Results are lines of JSON; a run goes on where its file ends.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any, Self, TypeVar

from perf_gates.machine import kernels_hash
from tests.kernels.campaign.cases import tests_of
from tests.kernels.campaign.draw import Break, draw, found, redraw
from tests.kernels.campaign.keys import names_of
from tests.kernels.campaign.places import PACKAGE, Place, find, located
from tests.kernels.campaign.table import EQUIVALENT

ROOT = Path(__file__).parents[3]
TESTS = ROOT / "tests" / "kernels"
T = TypeVar("T")
R = TypeVar("R")
ASSERTIONS = {"AssertionError", "Failed"}
ILL_FORMED = re.compile(r"NameError|UnboundLocalError|SyntaxError|ImportError|is not defined|not associated with a value")
"""A break that names what is not there says nothing of the tests."""


class Tester:
    """A warm process (`warm`), one for each worker."""

    def __init__(self) -> None:
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        settings = {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        command = [sys.executable, "-m", "tests.kernels.campaign.warm"]
        self.process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **settings}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        self.process.wait()

    def __call__(self, files: Sequence[str], source: bytes | None, file: str, limit: float) -> dict[str, Any]:
        """The first failure of the test files with `source` as the file of the package; None: unbroken."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with tempfile.TemporaryDirectory(prefix="ssmspec_break_") as folder:
            package, report = Path(folder) / "ssmspec_kernels", Path(folder) / "report"
            shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
            if source is not None:
                located(package, file).write_bytes(source)
            report.touch()
            began = time.monotonic()
            order = {"folder": folder, "files": [str(TESTS / f) for f in files], "limit": limit}
            self.process.stdin.write(json.dumps(order) + "\n")
            self.process.stdin.flush()
            said = json.loads(self.process.stdout.readline())
            events = [json.loads(line) for line in report.read_text().splitlines()]
            seconds = round(time.monotonic() - began, 1)
            return {**verdict(events, said["code"], said["ended"], package), "seconds": seconds}


def each(items: Sequence[T], work: Callable[[Tester, T], R], workers: int) -> Iterator[tuple[T, R]]:
    """Every item with its result, as they come, by so many warm processes."""
    with ExitStack() as stack:
        free: Queue[Tester] = Queue()
        for _ in range(min(workers, len(items))):
            free.put(stack.enter_context(Tester()))
        pool = stack.enter_context(ThreadPoolExecutor(workers))

        def one(item: T) -> tuple[T, R]:
            tester = free.get()
            try:
                return item, work(tester, item)
            finally:
                free.put(tester)

        for done in as_completed([pool.submit(one, item) for item in items]):
            yield done.result()


def verdict(events: list[dict[str, Any]], code: int, ended: bool, package: Path) -> dict[str, Any]:
    """What a run of pytest says: killed (by which test and what), survived, or void."""
    if any(e["event"] == "no import" for e in events):
        return {"result": "void", "how": next(e["text"] for e in events if e["event"] == "no import")}
    if not any(e["event"] == "collected" and e["package"] == str(package) for e in events):
        raise RuntimeError(f"pytest ended with {code} before the tests of the copy")
    started = [e["test"] for e in events if e["event"] == "start"]
    failed = [e for e in events if e["event"] == "failed"]
    if failed:
        first = failed[0]
        text = first["text"].replace(str(package.parent), "")
        if ILL_FORMED.search(f"{first['error']}: {text}"):
            return {"result": "void", "how": f"{first['error']}: {text}"}
        return {"result": "killed", "by": first["test"], "how": how(first), "error": first["error"], "text": text}
    if not ended:
        return {"result": "killed", "by": started[-1], "how": "does not end"}
    if code < 0:
        return {"result": "killed", "by": started[-1], "how": f"crash: signal {-code}"}
    if code != 0:
        raise RuntimeError(f"pytest ended with {code} and no failure")
    return {"result": "survived", "tests": len([e for e in events if e["event"] == "passed"])}


def how(event: dict[str, Any]) -> str:
    """An assertion, a named error of ssmspec, or a crash in the kernel."""
    name = event["error"].rsplit(".", 1)[-1]
    if any(base.rsplit(".", 1)[-1] in ASSERTIONS for base in event["bases"]):
        return "assertion"
    return f"named error: {name}" if "ssmspec_ref.errors" in event["error"] else f"crash: {name}"


def baseline(out: Path, workers: int, chosen: Sequence[Break]) -> dict[str, float]:
    """The seconds of every test file that a break needs and that passes on the unbroken package; the others judge nothing."""
    kept = out.with_suffix(".baseline.json")
    seconds: dict[str, float] = json.loads(kept.read_text()) if kept.exists() else {}
    needed = {file for made in chosen for file in tests_of(Path(made.place.file).stem, PACKAGE, TESTS, {})}
    files = sorted(needed - {*seconds}, key=lambda file: (-(TESTS / file).stat().st_size, file))
    for file, result in each(files, lambda tester, file: tester([file], None, "", 900.0), workers):
        print(f"{file}: {result}", flush=True)
        if result["result"] == "survived":
            seconds[file] = result["seconds"]
    kept.write_text(json.dumps(seconds, indent=1))
    return seconds


def judge(tester: Tester, made: Break, seconds: dict[str, float]) -> dict[str, Any]:
    """The verdict over one break, by those of its tests that `seconds` has."""
    files = [f for f in tests_of(Path(made.place.file).stem, PACKAGE, TESTS, seconds) if f in seconds]
    limit = 60.0 + 5.0 * sum(seconds[f] for f in files)
    return {**made.row(PACKAGE), **tester(files, made.source(PACKAGE), made.place.file, limit), "files": len(files)}


def confirm(rows: Sequence[dict[str, Any]], workers: int) -> int:
    """The tests that killed a break pass on the unbroken package; their number.

    Raises: RuntimeError where one does not.
    """
    killers = sorted({row["by"].removeprefix("tests/kernels/") for row in rows if row["result"] == "killed"})
    parts = [part for k in range(workers) if (part := killers[k::workers])]
    for part, said in each(parts, lambda tester, part: tester(part, None, "", 3600.0), workers):
        if said["result"] != "survived" or said["tests"] != len(part):
            raise RuntimeError(f"{len(part)} tests killed breaks, but on the unbroken package: {said}")
    return len(killers)


def standing() -> set[str]:
    """The names of all tests of the kernels that there are."""
    asked = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-pno:cacheprovider", "-ptimeout", str(TESTS)]
    settings = {**os.environ, "TRITON_INTERPRET": "1"}
    said = subprocess.run(asked, cwd=ROOT, env=settings, capture_output=True, text=True, check=True)
    return {line for line in said.stdout.splitlines() if "::" in line}


def commit() -> str:
    """The commit of the checkout, or the one that is named where the sources are no checkout."""
    named = os.environ.get("SSMSPEC_COMMIT", "")[:7]
    asked = ["git", "rev-parse", "--short", "HEAD"]
    return named or subprocess.run(asked, cwd=ROOT, capture_output=True, text=True).stdout.strip()


def module_hashes() -> dict[str, str]:
    """Of every module of the package by its own name: of what it defines, so that a comment, a name or a move leaves it."""
    return names_of(PACKAGE).hashes()


def carried(results: Path, out: Path, places: Sequence[Place], each: int) -> tuple[list[Break], dict[str, int], list[str]]:
    """The breaks of an earlier campaign in modules that are the same, under whatever name, how many to draw in each of the
    others, and which of those kept were themselves drawn anew. A module that is new gets `each`, or as many as it has places;
    one of whose breaks stands at no place any more is drawn anew like one that changed.

    Their results are written to `out`, if it does not stand yet.
    """
    before, now = json.loads(results.with_suffix(".header.json").read_text()), module_hashes()
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    made, homes = found(places, set(before["drawn"])), {row["name"]: row["module"] for row in rows}
    lost = {before["modules"].get(homes[name]) for name in before["drawn"] if name not in made}
    same = {name for name, value in now.items() if value in {*before["modules"].values()} - lost}
    here = {name: one for name, one in made.items() if Path(one.place.file).stem in same}
    if not out.exists():
        out.write_text("".join(f"{json.dumps(row)}\n" for row in rows if row["name"] in here))
    kept = [here[name] for name in before["drawn"] if name in here]
    anew = [name for name in before["anew"] if name in here]
    had = Counter(homes[name] for name in before["drawn"] if name not in here)
    counts = {f"{name}.py": count for name, count in had.items() if name in now.keys() - same}
    new = {p.file for p in places} - {f"{name}.py" for name in {*same, *before["modules"]}}
    return kept, counts | dict.fromkeys(new, each), anew


def said(row: dict[str, Any]) -> str:
    """A line of progress."""
    change = f"{row['kind']} {row['old'][:40]!r} -> {row['new'][:40]!r}"
    return f"{row['module']} {row['function']} {change}: {row['result']} {row.get('how', '')[:60]} {row['seconds']} s"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=130)
    parser.add_argument("--each", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", nargs="*", help="names of files of kernels")
    parser.add_argument("--carry", type=Path, help="results of before: files that are the same keep their breaks")
    parser.add_argument("--again", action="store_true", help="judge the survivors again for which nothing argues")
    settings = parser.parse_args()
    places, left_out = find(f for f in PACKAGE.rglob("[!_]*.py") if not settings.only or f.name in settings.only)
    print(f"seed {settings.seed}; {len(places)} places in {len({p.file for p in places})} files")
    print(*(f"left out: {count} x {reason}" for reason, count in left_out.most_common()), sep="\n", flush=True)
    kept, counts, anew = carried(settings.carry, settings.out, places, settings.each) if settings.carry else ([], {}, [])
    known = {r["name"]: r for r in map(json.loads, settings.out.read_text().splitlines())} if settings.out.exists() else {}
    if settings.again:
        argued = tomllib.loads(EQUIVALENT.read_text())
        known = {name: row for name, row in known.items() if row["result"] != "survived" or name in argued}
    if any(row["result"] == "killed" for row in known.values()):
        tests = standing()  # a kill by a test that is no longer there is judged again
        known = {name: row for name, row in known.items() if row["result"] != "killed" or row["by"] in tests}
    unfit: set[str] = set()
    while True:
        void = {name for name, row in known.items() if row["result"] == "void"}
        if settings.carry:
            chosen = kept + redraw(places, settings.seed, counts, PACKAGE, void)
        else:
            chosen = draw(places, settings.seed, settings.count, settings.each, PACKAGE, void)
        waiting = [made for made in chosen if made.name not in known]
        if not waiting:
            break
        seconds = baseline(settings.out, settings.workers, waiting)
        unfit |= {f for made in waiting for f in tests_of(Path(made.place.file).stem, PACKAGE, TESTS, {})} - {*seconds}
        with settings.out.open("a") as file:
            judged = each(waiting, partial(judge, seconds=seconds), settings.workers)
            for k, (_, row) in enumerate(judged):
                known[row["name"]] = row
                file.write(json.dumps(row) + "\n")
                file.flush()
                print(f"{k + 1}/{len(waiting)} {said(row)}", flush=True)
    drawn = [made.name for made in chosen]
    came = [known[name]["result"] for name in drawn]
    header = {
        "seed": settings.seed,
        "count": settings.count,
        "each": settings.each,
        "commit": commit(),
        "kernels": kernels_hash(),
        "places": len(places),
        "unfit": sorted(unfit),
        "void": sum(row["result"] == "void" for row in known.values()),
        "anew": [*anew, *(made.name for made in chosen[len(kept) :])] if settings.carry else [],
        "killers": confirm([known[name] for name in drawn], settings.workers),
        "left_out": dict(left_out.most_common()),
        "modules": module_hashes(),
        "drawn": drawn,
    }
    settings.out.with_suffix(".header.json").write_text(json.dumps(header, indent=1) + "\n")
    print(f"seed {settings.seed}: {len(came)} breaks, {came.count('killed')} killed, {came.count('survived')} survived")


if __name__ == "__main__":
    main()
