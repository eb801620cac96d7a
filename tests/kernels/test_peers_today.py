"""Peers of today, in Triton's interpreter at small shapes: what is timed is compared with float64, and what is wrong is told.

The peers' own kernels are not here; a copy of our side with a fault planted stands for them.
"""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from perf_gates.gpu import __main__ as gpu
from perf_gates.gpu.clock import compiling
from perf_gates.gpu.kernels import peers_today
from perf_gates.gpu.today import loading, works
from perf_gates.gpu.today.side import Side
from perf_gates.report import peers_today as report
from perf_gates.verdicts.measured import TODAY

pytestmark = pytest.mark.interpreter
TINY = {"SSD": (4, 32, 16, 2), "delta": (2, 4, 32, 32), "kda": (2, 2, 32, 32)}


def small(work: works.Work) -> works.Work:
    """The same work at a small shape."""
    kind = "SSD" if work.name.startswith("SSD") else "kda" if any(m.startswith("kimi") for m in work.shapes) else "delta"
    return replace(work, shapes={"tiny": TINY[kind]})


@pytest.fixture(autouse=True)
def few_copies() -> Iterator[None]:
    with compiling():
        yield


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("at", range(len(works.WORKS)), ids=[f"{w.name}, {next(iter(w.shapes))}" for w in works.WORKS])
def test_our_side_of_every_work_keeps_its_bound_and_writes_every_output(at: int, batch: int) -> None:
    side = small(works.WORKS[at]).side(works.OURS, "tiny", batch, "cpu")
    error = side.error()
    assert error.used <= 1, error
    assert 0 < error.outputs < 0.01
    assert error.states is not None
    assert error.states < 0.002
    for launch in side.launches():
        launch()
    assert all(bool(out.isfinite().all()) for out in side.written.values())


# --- faults ---


def scaled(side: Side) -> Side:
    """Outputs are 5 % too large."""

    def launch(i: int) -> None:
        inner(i)
        [*side.written.values()][i].mul_(1.05)

    inner, side.launch = side.launch, launch
    return side


def unwritten(side: Side) -> Side:
    """No launch writes anything."""
    side.launch = lambda i: None
    return side


def narrowed(side: Side) -> Side:
    """States are rounded to bf16 where they are stored."""

    def launch(i: int) -> None:
        inner(i)
        side.pools[0].copy_(side.pools[0].bfloat16())

    inner, side.launch = side.launch, launch
    return side


PLANTED: dict[str, tuple[Callable[[Side], Side], Callable[[Any], bool]]] = {
    "outputs off": (scaled, lambda row: row.used > 5 and 0.04 < row.outputs < 0.06),
    "nothing written": (unwritten, lambda row: math.isinf(row.used) and math.isinf(row.outputs)),
    "states in bf16": (narrowed, lambda row: row.used > 100 and 1e-3 < row.states < 3e-3),
}


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> works.Work:
    """A work with a peer that has a fault; times are made up."""
    fault, _ = PLANTED[request.param]
    work = small(works.WORKS[0])
    made = work.sides[works.OURS]
    work = replace(work, sides={works.OURS: made, "vLLM": lambda d: fault(made(d))})
    monkeypatch.setattr(works, "WORKS", (work,))
    monkeypatch.setattr(report, "WORKS", (work,))
    monkeypatch.setattr(peers_today, "is_compiling", lambda: False)
    monkeypatch.setattr(peers_today, "microseconds", lambda side: 1.0)
    side = work.side
    monkeypatch.setattr(works.Work, "side", lambda self, name, model, batch: side(name, model, batch, "cpu"))
    return work


@pytest.mark.parametrize("planted", PLANTED, indirect=True)
def test_a_wrong_peer_is_timed_and_its_error_is_told(planted: works.Work, request: pytest.FixtureRequest) -> None:
    (good,) = peers_today.timings(planted.name, "tiny", 1, works.OURS)
    (bad,) = peers_today.timings(planted.name, "tiny", 1, "vLLM")
    assert isinstance(good, peers_today.PeerTiming)
    assert isinstance(bad, peers_today.PeerTiming)
    assert good.used <= 1
    assert PLANTED[request.node.callspec.params["planted"]][1](bad), bad
    assert bad.us == 1.0


@pytest.mark.parametrize("planted", ["outputs off", "nothing written"], indirect=True)
def test_the_table_calls_a_wrong_peer_wrong(planted: works.Work) -> None:
    rows = [peers_today.timings(planted.name, "tiny", 1, side)[0] for side in planted.sides]
    found = report.measured({"timings": [vars(row) for row in rows]})
    ours, theirs = [*report.table(found)][2:]
    assert "**wrong**" in theirs
    assert "wrong" not in ours


# --- what is missing ---


@pytest.mark.parametrize("folder", [None, "empty"])
def test_without_the_folder_a_peer_is_an_error_of_its_own_case_and_ours_is_measured(
    folder: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = [(work.name, "tiny", 1, side) for work in map(small, works.WORKS[:1]) for side in work.sides]
    monkeypatch.setattr(works, "cases", lambda: iter(cells))
    monkeypatch.setattr(works, "work_of", lambda name, model: small(works.WORKS[0]))
    side = works.Work.side
    monkeypatch.setattr(works.Work, "side", lambda self, name, model, batch: side(self, name, model, batch, "cpu"))
    monkeypatch.setattr(peers_today, "microseconds", lambda made: 1.0)
    for name in ("copy_bytes_per_us", "empty_launch_us", "clock_mhz"):
        monkeypatch.setattr(gpu, name, lambda: 1.0)
    monkeypatch.setattr(gpu, "fingerprint", lambda: {"kernels": "k", "commit": "c"})
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    gpu.measure(TODAY, tmp_path / f"{TODAY}.json", tmp_path if folder else None)
    part = json.loads((tmp_path / f"{TODAY}.json").read_text())
    assert [t["side"] for t in part["timings"]] == [works.OURS]
    assert len(part["errors"]) == len(cells) - 1
    assert all("PeerMissing" in error and "perf_gates.gpu.today.build" in error for error in part["errors"])
    loading.load(None)
