"""Fuzzing on a cluster finds what one process finds, and keeps it whatever dies."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from conformance.refusal import BROKEN, FAILED
from property_tests.store import failures, state
from tests.robust.on_ray import runs
from tests.robust.on_ray.clusters import cluster

pytestmark = [pytest.mark.robust, pytest.mark.timeout(1800)]
ADAPTER = """
import os
import pathlib
import signal
import time

from conformance.faults.decoding import sequences
from ssmspec_ref.contract import Adapter, FLOAT64, Decoding


class Slow(sequences.{kind}):
    def verify(self, *given, **more):
        pathlib.Path({called!r}, f"fuzz-{{os.getpid()}}").touch()
        time.sleep({wait})
        if {dies}:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().verify(*given, **more)


def adapter():
    return Adapter("slow", "1", decodings=(Decoding("slow", Slow, FLOAT64, trees=True),))
"""


def adapter(folder: Path, name: str, kind: str = "Right", wait: float = 0.0, dies: bool = False) -> str:
    called = folder / "called"
    called.mkdir(exist_ok=True)
    (folder / f"{name}.py").write_text(ADAPTER.format(kind=kind, wait=wait, dies=dies, called=str(called)))
    return f"{name}:adapter"


def fuzz(folder: Path, adapter: str, *words: str, examples: int = 5, parts: int = 6) -> list[str]:
    given = ["--adapter", adapter, "--profile", "ci", "--minutes", "20", "--seed", "3", "--folder", str(folder)]
    return ["fuzz", *given, "--examples", str(examples), "--parts", str(parts), *words]


def parts(folder: Path) -> list[dict[str, Any]]:
    """The parts as they were written down, without their times."""
    found = [json.loads(line) for line in (folder / "parts.jsonl").read_text().splitlines()]
    return [{name: value for name, value in part.items() if name != "seconds"} for part in found]


@pytest.mark.parametrize(("kind", "code"), [("Right", 0), ("FlushLosesTheLast", FAILED)])
def test_a_campaign_that_loses_a_node_finds_what_one_process_finds(tmp_path: Path, kind: str, code: int) -> None:
    """Examples, failures and their programs, byte for byte; what a later part found besides is kept too."""
    name = adapter(tmp_path, "subject", kind, wait=0.05)
    runs.ended(code, tmp_path, fuzz(tmp_path / "alone", name, examples=20))
    runs.forget(tmp_path)
    with (
        cluster(tmp_path / "cluster") as nodes,
        runs.running(tmp_path, *fuzz(tmp_path / "ray", name, "--ray", nodes.address, examples=20)) as run,
    ):
        runs.called(tmp_path, 2)
        nodes.kill(0)
        assert run.wait(600) == code, (tmp_path / "run.log").read_text()
    log = (tmp_path / "run.log").read_text()
    assert "lost its worker" in log
    if code == 0:  # else the first batch may end it
        assert re.search(r"batch \d ended; [1-6] done, \d running, about \d+ s left", log), log
    assert parts(tmp_path / "ray") == parts(tmp_path / "alone")
    found, expected = (
        {kept.name: kept.path.read_bytes() for kept in failures.kept(tmp_path / name)} for name in ("ray", "alone")
    )
    assert expected.items() <= found.items()
    assert state.finished(tmp_path / "ray")


def test_a_killed_driver_goes_on_to_the_same_parts(tmp_path: Path) -> None:
    name = adapter(tmp_path, "subject", wait=0.02)
    runs.ran(tmp_path, *fuzz(tmp_path / "alone", name))
    runs.forget(tmp_path)
    with cluster(tmp_path / "cluster") as nodes:
        with runs.running(tmp_path, *fuzz(tmp_path / "ray", name, "--ray", nodes.address)) as run:
            runs.called(tmp_path, 2)
            run.kill()
            run.wait(600)
        assert not state.finished(tmp_path / "ray")
        left = 6 - (len(parts(tmp_path / "ray")) if (tmp_path / "ray" / "parts.jsonl").exists() else 0)
        runs.ended(0, tmp_path, fuzz(tmp_path / "ray", name, "--ray", nodes.address, parts=left))
    assert parts(tmp_path / "ray") == parts(tmp_path / "alone")


def test_a_part_that_kills_its_workers_breaks_the_campaign(tmp_path: Path) -> None:
    """In one process the process itself would die; here the campaign says which part it was."""
    name = adapter(tmp_path, "poison", dies=True)
    with cluster(tmp_path / "cluster") as nodes:
        made = runs.ran(tmp_path, *fuzz(tmp_path / "ray", name, "--ray", nodes.address, "--ray-tries", "2"))
    assert made.returncode == BROKEN, made.stderr
    assert re.search(r"no worker finished batch \d+: 2 workers", made.stderr)
    assert not state.finished(tmp_path / "ray")
