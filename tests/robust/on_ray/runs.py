"""What the tests of campaigns on a cluster share: small adapters in a folder of their own, runs, and what runs found."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from conformance.isolation.warden import living

SEED = "5000000000"
ADAPTER = '''
"""An SSD step in float64. `WAIT` seconds a call, and as long as the file `HELD` exists; `DIES` ends the process that judges;
`WRONG` is no implementation."""

import os
import signal
import time

import conformance
from ssmspec_ref import ssd
from ssmspec_ref.contract import FLOAT64, Adapter, Capability, Limits, Subject

WAIT, DIES, WRONG, NAME, SUBJECTS, CALLED, HELD = {wait}, {dies}, {wrong}, {name!r}, {subjects}, {called!r}, {held!r}
OPTIONS = {{"D": ("off",), "z": ("off",), "dt_bias": ("off",), "softplus": ("on",), "dt_limit": ("off",)}}


def step(S, token, params):
    open(f"{{CALLED}}/{{NAME}}-{{os.getpid()}}", "w").close()
    time.sleep(WAIT)
    while os.path.exists(HELD):
        time.sleep(0.02)
    if DIES:
        warden = open(f"/proc/{{os.getppid()}}/stat").read()
        os.kill(int(warden.rpartition(")")[2].split()[1]), signal.SIGKILL)
        time.sleep(60)
    y, after = ssd.step(S, token, params)
    return (y * 2 if WRONG else y), after


def adapter():
    limits = Limits(OPTIONS, reason="no such option")
    operations = {{"ssd.step": Capability(step, FLOAT64, limits)}}
    home = "shipped" if "py_modules" in conformance.__file__ and "py_modules" in __file__ else "here"
    return Adapter(NAME, home, tuple(Subject(f"ssd {{i}}", operations) for i in range(SUBJECTS)))
'''


def adapter(folder: Path, name: str, wait: float = 0.0, dies: bool = False, wrong: bool = False, subjects: int = 1) -> str:
    """A module with a tiny adapter, which only those find that have `folder` on their path; its name for --adapter."""
    called = folder / "called"
    called.mkdir(parents=True, exist_ok=True)
    text = ADAPTER.format(
        wait=wait, dies=dies, wrong=wrong, name=name, subjects=subjects, called=str(called), held=str(folder / "held")
    )
    (folder / f"{name}.py").write_text(text)
    return f"{name}:adapter"


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Inside, no call of an adapter returns."""
    (folder / "held").touch()
    try:
        yield
    finally:
        (folder / "held").unlink()


def called(folder: Path, count: int, name: str = "", seconds: float = 300) -> None:
    """Wait until so many processes with an adapter were called; what was noted before is forgotten."""
    until = time.monotonic() + seconds
    noted = folder / "called"
    while len(list(noted.glob(f"{name}*"))) < count:
        assert time.monotonic() < until, (folder / "run.log").read_text()
        time.sleep(0.05)


def workers(folder: Path, name: str = "") -> tuple[set[int], set[int]]:
    """The processes with an adapter that were called, and those of them that are alive."""
    noted = {int(note.name.rpartition("-")[2]) for note in (folder / "called").glob(f"{name}*")}
    return noted, noted & dict(living()).keys()


def died(folder: Path, name: str, seconds: float = 120) -> None:
    """Wait until one of the processes with an adapter that were called has ended."""
    until = time.monotonic() + seconds
    while True:
        noted, left = workers(folder, f"{name}-")
        if noted != left:
            return
        assert time.monotonic() < until, "no worker ended with its node"
        time.sleep(0.05)


def forget(folder: Path) -> None:
    for note in (folder / "called").iterdir():
        note.unlink()


def command(folder: Path, *words: str) -> tuple[list[str], dict[str, str]]:
    """`ssmspec ...` where the modules of `folder` are found."""
    line = [sys.executable, "-P", "-c", "from conformance.main import main; main()", *words]
    place = os.environ | {"PYTHONPATH": str(folder), "RAY_gcs_rpc_server_reconnect_timeout_s": "8", "COLUMNS": "200"}
    return line, place


def ran(folder: Path, *words: str, timeout: float = 600) -> "subprocess.CompletedProcess[str]":
    line, place = command(folder, *words)
    return subprocess.run(line, env=place, cwd=folder, capture_output=True, text=True, timeout=timeout, check=False)


def ended(code: int, folder: Path, words: list[str], said: str = "", timeout: float = 600) -> None:
    """A command ends with a code, and says something."""
    made = ran(folder, *words, timeout=timeout)
    assert made.returncode == code, made.stderr
    assert said in " ".join(made.stderr.replace("│", " ").split())


@contextmanager
def running(folder: Path, *words: str) -> Iterator["subprocess.Popen[str]"]:
    """The same, while it runs; its output in run.log."""
    line, place = command(folder, *words)
    with (
        (folder / "run.log").open("w") as log,
        subprocess.Popen(line, env=place, cwd=folder, stdout=log, stderr=log) as process,
    ):
        try:
            yield process  # type: ignore[misc]
        finally:
            process.kill()


def conform(report: Path, adapters: list[str], *words: str) -> list[str]:
    """A smoke run over some adapters, under one seed."""
    named = [word for name in adapters for word in ("--adapter", name)]
    return ["conform", "run", *named, "--tier", "smoke", "--seed", SEED, "--report", str(report), *words]


def on(nodes: Any, folder: Path, adapters: list[str], *words: str) -> list[str]:
    """The same on a cluster; its report lies in the folder `ray`."""
    return conform(folder / "ray", adapters, "--ray", nodes.address, *words)


def lines(report: Path) -> list[dict[str, Any]]:
    """The lines of a report without what differs between any two runs: times, and the digest of them."""
    found = [json.loads(line) for line in (report / "report.jsonl").read_text().splitlines()]
    left_out = ("seconds", "started", "finished", "digest")
    return [{name: value for name, value in line.items() if name not in left_out} for line in found]


def tasks(report: Path) -> list[dict[str, Any]]:
    """Where each task ran."""
    return [json.loads(line) for line in (report / "tasks.jsonl").read_text().splitlines()]
