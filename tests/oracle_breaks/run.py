"""Judge a draw of breaks: the broken package is what the worker imports, the unbroken one is what it is judged by.

    python -m tests.oracle_breaks.run --seed 1 --count 120 --workers 24 --out breaks.jsonl

A break is killed by the first case of the suite that fails with it: of the operations and the paths that its file is named
after all of the standard tier, small ones before large ones, then of the others those of the tier smoke. One that cannot
be imported, or that names what is not there, says nothing and is replaced by the next of the draw. The unbroken package is
judged in the same way, and must pass. Of one that survives the unit tests of the reference are run, and the first that
fails is noted: that counts for nothing, but tells a refusal, which no input of a case reaches, from code that nothing judges.
"""

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import ssmspec_ref
from conformance.errors import AdapterUnavailable
from conformance.judge.verdict import judge
from conformance.run.load import load
from conformance.run.plan import Job, Selection, plan
from conformance.run.process import Process
from conformance.run.worker import environment
from ssmspec_ref.contract import Verdict
from tests.kernels.campaign.draw import Break, draw
from tests.kernels.campaign.places import find
from tests.kernels.campaign.run import ILL_FORMED, commit
from tests.oracle_breaks.judged import FILES

PACKAGE = Path(ssmspec_ref.__file__).parent
ADAPTER = "tests.oracle_breaks.judged:adapter"
SOURCES = {f"{name}.py": PACKAGE / f"{path}.py" for name, path in FILES.items()}
"""The files by the names that breaks are recorded under."""
TIMEOUT = 60.0
"""Seconds for one call: a hundred times the slowest."""


class OracleBreak(Break):
    """A break of a file of the reference, named by its bytes."""

    @property
    def name(self) -> str:
        at = self.place
        return f"{at.file}:{at.start}-{at.end}:{at.kind}:{self.text}"

    def row(self, package: Path) -> dict[str, Any]:
        at, source = self.place, (package / self.place.file).read_bytes()
        told = {"name": self.name, "file": at.file, "line": at.line, "start": at.start, "kind": at.kind}
        line = source.splitlines()[at.line - 1].decode().strip()
        return told | {"old": source[at.start : at.end].decode(), "new": self.text, "source": line}


def flat(folder: Path) -> Path:
    """All sources in one folder, as the draw wants them."""
    for name, path in SOURCES.items():
        shutil.copy(path, folder / name)
    return folder


@contextmanager
def broken(name: str, source: bytes | None) -> Iterator[Path]:
    """A folder with a copy of the package, first on the module path; `source` stands for one of its files."""
    with tempfile.TemporaryDirectory(prefix="oracle_break_") as folder:
        copy = Path(folder) / "ssmspec_ref"
        shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        if source is not None:
            (copy / SOURCES[name].relative_to(PACKAGE)).write_bytes(source)
        sys.path.insert(0, folder)
        try:
            yield Path(folder)
        finally:
            sys.path.remove(folder)


def near(job: Job, name: str) -> tuple[bool, int]:
    """How early a case is judged: whether neither operation nor subject are of the file's family, and its size."""
    stem, folder = name.removesuffix(".py"), SOURCES[name].parent.name
    families = stem.split("_")[0], f"{stem}ion", "acceptance" if folder == "accept" else ""
    group, _, operation = job.case.operation.partition(".")
    own = group in families or stem in operation or stem.replace("_", " ") in job.subject.name
    return not own, job.case.size()


@cache
def planned(tier: str) -> list[Job]:
    """What the unbroken adapter is judged by, once in a process: the plan takes longer than most breaks live."""
    return plan({"oracle": load(ADAPTER)}, Selection(tier=tier))[0]


def verdict(name: str, source: bytes | None) -> dict[str, Any]:
    """What came of one source: killed (by which case, how), survived, or void."""
    began, cases = time.monotonic(), 0
    with broken(name, source):
        try:
            process = Process(ADAPTER, timeout=TIMEOUT)
        except AdapterUnavailable as error:
            return {"result": "void", "text": str(error)[:300], "seconds": round(time.monotonic() - began, 1)}
        try:
            capabilities = {(s.name, o): run for s in process.adapter.subjects for o, run in s.capabilities.items()}
            own, others = planned("standard"), planned("smoke")
            jobs = [job for job in own if not near(job, name)[0]] + [job for job in others if near(job, name)[0]]
            for job in sorted(jobs, key=lambda job: near(job, name)):
                judgement = judge(job.specification, capabilities[job.subject.name, job.case.operation], job.case)
                cases += 1
                if judgement.verdict is not Verdict.PASS:
                    void = judgement.kind in ("error", "crash") and ILL_FORMED.search(judgement.message)
                    said = {"result": "void" if void else "killed", "by": job.identity, "subject": job.subject.name}
                    said |= {"how": judgement.kind, "text": judgement.message[:300]}
                    return {**said, "cases": cases, "seconds": round(time.monotonic() - began, 1)}
        finally:
            process.close()
    return {"result": "survived", "cases": cases, "seconds": round(time.monotonic() - began, 1)}


def unit_test(name: str, source: bytes | None) -> str:
    """The first unit test of the reference that fails with a source, or with the unbroken package; "" where none does."""
    found = sorted((PACKAGE.parent / "tests" / "ref").rglob("test_*.py"))
    tests = map(str, sorted(found, key=lambda path: name.split("_")[0].removesuffix(".py") not in path.stem))
    command = [sys.executable, "-P", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    with broken(name, source):
        done = subprocess.run(command, env=environment(), cwd=PACKAGE.parent, capture_output=True, text=True)
    failed = re.search(r"^(?:FAILED|ERROR) (?:.*/)?(test_\S+)", done.stdout, re.MULTILINE)
    return failed[1].partition("[")[0] if failed else ""


def one(made: Break, folder: Path) -> dict[str, Any]:
    return {**made.row(folder), **verdict(made.place.file, made.source(folder))}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=120)
    parser.add_argument("--each", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    settings = parser.parse_args()
    known = {r["name"]: r for r in map(json.loads, settings.out.read_text().splitlines())} if settings.out.exists() else {}
    with (
        tempfile.TemporaryDirectory(prefix="oracle_sources_") as sources,
        ProcessPoolExecutor(settings.workers, mp_context=get_context("spawn")) as pool,
        settings.out.open("a") as stream,
    ):
        folder = flat(Path(sources))
        places, left_out = find(folder.glob("*.py"))
        print(f"seed {settings.seed}; {len(places)} places in {len(SOURCES)} files", flush=True)
        while True:
            void = {name for name, row in known.items() if row["result"] == "void"}
            chosen = draw(places, settings.seed, settings.count, settings.each, folder, void, OracleBreak)
            waiting = [made for made in chosen if made.name not in known]
            if not waiting:
                break
            for k, done in enumerate(as_completed([pool.submit(one, made, folder) for made in waiting])):
                row = done.result()
                known[row["name"]] = row
                stream.write(json.dumps(row) + "\n")
                stream.flush()
                change = f"{row['kind']} {row['old'][:40]!r} -> {row['new'][:40]!r}"
                told = f"{row['result']} {row.get('how', '')} {row['seconds']} s"
                print(f"{k + 1}/{len(waiting)} {row['file']}:{row['line']} {change}: {told}", flush=True)
        alive = [made for made in chosen if known[made.name]["result"] == "survived" and "unit" not in known[made.name]]
        tests = [pool.submit(unit_test, made.place.file, made.source(folder)) for made in alive]
        for made, test in zip(alive, tests, strict=True):
            known[made.name]["unit"] = test.result()
            stream.write(json.dumps(known[made.name]) + "\n")
            stream.flush()
        unbroken, units = pool.submit(verdict, "ssd.py", None), pool.submit(unit_test, "ssd.py", None)
        passed = unbroken.result()
        if passed["result"] != "survived":
            raise SystemExit(f"the unbroken package does not pass: {passed}")
        if units.result():
            raise SystemExit(f"the unbroken package fails {units.result()}")
        header = {
            "seed": settings.seed,
            "count": settings.count,
            "each": settings.each,
            "commit": commit(),
            "sources": hashlib.sha256(b"".join(p.read_bytes() for p in SOURCES.values())).hexdigest()[:16],
            "places": len(places),
            "files": len(SOURCES),
            "cases": passed["cases"],
            "void": len(void),
            "left_out": dict(left_out.most_common()),
            "drawn": [made.name for made in chosen],
        }
    settings.out.with_suffix(".header.json").write_text(json.dumps(header, indent=1) + "\n")
    results = [known[name]["result"] for name in header["drawn"]]
    print(f"{len(results)} breaks, {results.count('killed')} killed, {results.count('survived')} survived")


if __name__ == "__main__":
    main()
