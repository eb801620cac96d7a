"""The adapter of llama.cpp before a small llama-server: what is right passes, what is planted in either is caught."""

import json
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.engines import cli, judge
from conformance.engines.adapters import build_llama
from conformance.engines.errors import EngineRefused
from conformance.engines.known import ENGINES, opener
from conformance.engines.protocol import Options, Request
from conformance.engines.small import make, pair

from .fake_llama import home

DRAFTED = "log-probabilities of drafted tokens"
ADAPTER = Path(ENGINES["llama.cpp"].words[0])


def judged(
    fault: str, family: str, chosen: tuple[str, ...], schedules: int, tmp_path: Path, adapter: Path = ADAPTER
) -> judge.Found:
    """These configurations of a small model."""
    target, drafter = pair(family, tmp_path, num_hidden_layers={"mamba2": 1, "bamba": 2}.get(family, 3))
    every = cli.configurations(drafter, cli.Tier.smoke, "float32", target.with_name(f"{family}-recurrent"))
    command = f"program:{sys.executable} {adapter} {home(tmp_path / 'home', fault)}"
    options = {name: every[name] for name in chosen}
    return cli.judged(opener(command, None), None, target, options, False, (schedules, 0, 0), lambda *_: None, 0.5)


@pytest.fixture(autouse=True)
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Sockets and converted checkpoints in a folder of the test, with a short name."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


@pytest.mark.parametrize(
    ("chosen", "schedules", "also"),
    [(("ngram-4", "model-3"), 5, ("speculation", "drafter followed", DRAFTED)), (("cache",), 8, ("cache", "join", "cancel"))],
)
def test_a_right_server_is_green(chosen: tuple[str, ...], schedules: int, also: tuple[str, ...], tmp_path: Path) -> None:
    found = judged("", "llama", chosen, schedules, tmp_path)
    assert found.green, (found.failures, found.notes, found.counts)
    laws = {law for configuration, law in found.cells if found.outcome(configuration, law) == "passed"}
    assert {"tokens", "log-probabilities", "log-probabilities kept", "batch", "stop", "continuation", *also} <= laws


QUICK = ("aborts", "log-probabilities of 0", "a checkpoint one token late")
"""Planted by CI; the others by `tox run -e engine-faults`."""
FAULTS = [
    ("aborts", "llama", "model-3 recurrent", "speculation", "died"),
    ("another model", "bamba", "plain", "log-probabilities", "differs"),
    ("log-probabilities of 0", "llama", "ngram-4", DRAFTED, "differs"),
    ("rejected drafts stay", "mamba2", "model-3", "", ""),
    ("a checkpoint one token late", "llama", "cache", "", ""),
    ("a stop that is not seen", "llama", "plain", "stop", "differs"),
    ("never drafts", "llama", "ngram-4", "speculation", "not exercised"),
    ("does not start", "llama", "plain", "repeated", "died"),
]


@pytest.mark.parametrize(
    ("fault", "family", "configuration", "law", "outcome"),
    [pytest.param(*one, marks=() if one[0] in QUICK else (pytest.mark.robust,), id=one[0]) for one in FAULTS],
)
def test_a_planted_fault_is_caught(
    fault: str, family: str, configuration: str, law: str, outcome: str, tmp_path: Path
) -> None:
    """Which law a state of other tokens breaks first depends on the schedule: where none is named, any may be."""
    found = judged(fault, family, (configuration,), SCHEDULES.get(fault, 12), tmp_path)
    assert not found.green
    assert found.red is (outcome != "not exercised")
    assert not law or found.outcome(configuration, law) == outcome, (found.failures, found.counts)
    assert {failure.configuration for failure in found.failures} <= {configuration}
    said = " ".join(f"{failure.finding} {failure.explained}" for failure in found.failures)
    assert SAYS.get(fault, "") in said


SCHEDULES = {"another model": 3, "log-probabilities of 0": 3, "never drafts": 3, "a checkpoint one token late": 8}
SAYS = {
    "aborts": "was ended by signal 6: failed to remove sequence 1 with p0=2, p1=-1",
    "another model": "rotary positions of 1 of a head",
    "does not start": "unknown architecture",
}


@pytest.mark.parametrize("waits", [True, False])
def test_the_door_waits_until_no_slot_is_busy(waits: bool, tmp_path: Path, temporary: Path) -> None:
    """Behind a cancelled request; an adapter in which the wait is left out is seen."""
    text, wait = ADAPTER.read_text(), "        self.settled()\n"
    assert text.count(wait) == 1
    adapter = tmp_path / ADAPTER.name
    adapter.write_text(text if waits else text.replace(wait, ""))
    (tmp_path / "lines.py").write_text((ADAPTER.parent / "lines.py").read_text())
    engine = opener(f"program:{sys.executable} {adapter} {home(tmp_path / 'home')}", None)()
    try:
        engine.start(str(make("llama", tmp_path / "llama", num_hidden_layers=1)), Options())
        (answer,) = engine.generate((Request(ids=(1, 2, 3), most=8, cancel=2),))
        assert (len(answer.ids), answer.finish) == (2, "cancelled")
        (address,) = temporary.glob("llama-*/server.sock")
        assert busy(address) is not waits
    finally:
        engine.close()


def busy(address: Path) -> bool:
    """Whether a slot of the server is busy."""
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(str(address))
        line.sendall(b"GET /slots HTTP/1.0\r\n\r\n")
        said = b"".join(iter(lambda: line.recv(1 << 16), b""))
    return any(slot["is_processing"] for slot in json.loads(said.partition(b"\r\n\r\n")[2]))


def test_without_a_server_the_door_says_what_makes_one(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    engine = opener(f"program:{sys.executable} {ADAPTER} {tmp_path / 'empty'}", None)()
    try:
        with pytest.raises(EngineRefused, match=r"build_llama\.py makes one"):
            engine.start("model", Options())
    finally:
        engine.close()


def test_what_is_built_is_not_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_llama.subprocess, "run", lambda *given, **named: pytest.fail("something was run"))
    monkeypatch.setattr("sys.argv", ["build_llama.py", "--into", str(tmp_path)])
    (tmp_path / "made").write_text(build_llama.MADE)
    build_llama.main()
    assert (tmp_path / "convert.py").read_text() == (ADAPTER.parent / "convert_llama.py").read_text()


def test_a_folder_of_somebody_else_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files were removed, with all that they held, if --into named a folder that was there."""
    monkeypatch.setattr(build_llama.subprocess, "run", lambda *given, **named: pytest.fail("something was run"))
    monkeypatch.setattr("sys.argv", ["build_llama.py", "--into", str(tmp_path / "work")])
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "thesis.tex").touch()
    with pytest.raises(SystemExit, match="holds files that this script did not make"):
        build_llama.main()
    assert [path.name for path in tmp_path.rglob("*")] == ["work", "thesis.tex"]


def test_another_distribution_than_the_pinned_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(words: list[str], check: bool) -> None:
        (Path(words[words.index("--dest") + 1]) / "llama_cpp_python-0.3.36.tar.gz").write_bytes(b"another")

    monkeypatch.setattr(build_llama.subprocess, "run", download)
    with pytest.raises(SystemExit, match="nothing was built"):
        build_llama.source(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["llama_cpp_python-0.3.36.tar.gz"]
