"""Nothing that a campaign found is lost: cut writes, killed workers, a store of another version, a database that goes."""

import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis.database import ExampleDatabase, InMemoryExampleDatabase
from redis import Redis

from conformance.progress import lines
from conformance.progress.lines import StoreError
from conformance.refusal import BROKEN, FAILED, INTERRUPTED, REFUSED
from property_tests.campaigns import campaign as campaigns
from property_tests.campaigns.campaign import Campaign, Played, read
from property_tests.campaigns.database import DatabaseUnavailable, open_database
from property_tests.campaigns.on_ray import Running
from property_tests.store import failures, state
from property_tests.store.synced import AGAIN, Synced

from .campaigns import REFERENCE, campaign, module, part, played, plays, report, started
from .servers import redis_server

STORES = Path(__file__).parent / "stores"


def test_what_is_written_after_a_cut_line_is_read(tmp_path: Path) -> None:
    """A failure after a write that was cut off was glued to it, and ignored by the report."""
    made = campaign(tmp_path)
    made.keep(part(0))
    whole = (tmp_path / "parts.jsonl").read_bytes()
    for cut in (b'{"head": {}, "num', whole[:-1], b'{"' + b"x" * 10_000):
        (tmp_path / "parts.jsonl").write_bytes(whole + cut)
        made.keep(part(1, "Deviation: late"))
        assert [line["number"] for line in lines.read(tmp_path / "parts.jsonl")] == [0, 1]
        assert [said["message"] for said in read([tmp_path])["failures"]] == ["Deviation: late"]


def test_what_a_terminal_would_obey_is_escaped_where_a_store_is_read(tmp_path: Path) -> None:
    """Somebody else may have written it."""
    escape = "\x1b]0;title\x07\x1b[31m\0"
    made = campaign(tmp_path)
    made.keep(part(0, f"Deviation: {escape}"))
    (tmp_path / "failures" / "other.py").write_text(f"# ssmspec failure, schema 2\n# {escape}\nraise\n")
    line = part(1, escape).line | {"reached": {escape: 1}, "used": {escape: 0.5}, "decodings": {escape: 1}}
    with (tmp_path / "parts.jsonl").open("a") as stream:
        stream.write(json.dumps(line) + "\n")
    for words in ([], ["--markdown"]):
        shown = report(FAILED, tmp_path, *words, said="title")
        assert not any(escaped in shown for escaped in ("\x1b]", "\x07", "\0"))


def test_a_failure_is_named_by_its_content_and_stays_after_triage(tmp_path: Path) -> None:
    """One was removed after triage, and the next one took the name of the one that stayed."""
    first, second, third = (failures.save(tmp_path, f"# {word}\n").path for word in ("one", "two", "three"))
    before = third.read_text()
    first.unlink()
    again = failures.save(tmp_path, "# four\n").path
    assert len({second, third, again}) == 3
    assert third.read_text() == before
    third.write_text(before + "# seen: ours\n")
    assert failures.save(tmp_path, "# three\n").path == third
    assert third.read_text().endswith("# seen: ours\n")


def test_a_failure_whose_part_was_not_written_down_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ends between the program and the line of its part."""

    def killed(path: Path, record: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(campaigns.lines, "append", killed)
    with pytest.raises(KeyboardInterrupt):
        campaign(tmp_path).keep(part(0, "Deviation: seen"))
    found = read([tmp_path])
    assert [said["message"] for said in found["failures"]] == ["Deviation: seen"]
    assert found["unfinished"] == [str(tmp_path)]


def test_a_failure_that_the_disk_refuses_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(campaigns.failures, "save", full)
    with pytest.raises(OSError, match="No space"):
        campaign(tmp_path).keep(part(0, "Deviation: seen"))
    assert "# Deviation: seen" in capsys.readouterr().err


def full(*given: Any, **more: Any) -> Any:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("where", ["program", "line", "report"])
def test_a_failure_found_on_a_full_disk_is_told_kept_in_the_database_and_ends_with_three(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = module(tmp_path, "faulty_on_a_full_disk")
    monkeypatch.chdir(tmp_path)
    home, name = {
        "program": (failures, "write"), "line": (campaigns.lines, "append"), "report": (state, "finish"),
    }[where]  # fmt: skip
    monkeypatch.setattr(home, name, full)
    words = ("--minutes", 5, "--examples", 20, "--folder", "here")
    made = played(*words, adapter=adapter)
    assert made.exit_code == BROKEN, made.output
    assert made.stderr.splitlines()[-1] == (
        "RunBroken: here cannot be written (No space left on device); free some space, and run the same command again"
    )
    assert ("session.prefill(" in made.stderr) == (where == "program")
    assert ("again: python here/failures/" in made.stderr) == (where == "line")
    assert [*(tmp_path / "here" / "examples").rglob("*")]
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    again = plays(FAILED, *words, "--seed", 77, adapter=adapter)
    assert "LosesLastToken" in again or "deviates" in again


class OneBatch:
    """A cluster on which one batch has failed."""

    slots = 1

    def __init__(self, played: Played, found: Any) -> None:
        self.said = (played, found)

    def submit(self, *given: Any) -> None: ...

    def tell(self, text: str) -> None: ...

    def answer(self) -> Any:
        return 0, self.said


def test_on_a_cluster_a_failure_goes_to_the_database_before_a_full_disk_and_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made, database = campaign(tmp_path), InMemoryExampleDatabase()
    crew: Any = OneBatch(part(0, "Deviation: seen"), [(made.key, b"example")])
    monkeypatch.setattr(failures, "write", full)
    with pytest.raises(OSError, match="No space"):
        Running(made, crew, database, 1.0, 1).through()
    assert set(database.fetch(made.key)) == {b"example"}
    assert "# Deviation: seen" in capsys.readouterr().err
    monkeypatch.setattr(database, "save", full)
    with pytest.raises(OSError, match="No space"):
        Running(made, crew, database, 1.0, 1).through()
    assert "# Deviation: seen" in capsys.readouterr().err


def test_a_full_disk_does_not_hide_a_failure_from_a_database_that_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = InMemoryExampleDatabase()
    monkeypatch.setattr(shared, "save", full)
    synced = Synced(InMemoryExampleDatabase(), shared, tmp_path / "unsent.jsonl", "redis://x")
    monkeypatch.setattr(lines, "append", full)
    synced.save(b"key", b"value")
    assert "unsent.jsonl cannot be written (No space left on device); it is tried again later" in capsys.readouterr().err
    monkeypatch.undo()
    synced.settle()
    assert set(shared.fetch(b"key")) == {b"value"}


@pytest.mark.parametrize("version", [1, 2])
def test_a_store_of_this_or_an_older_version_is_read(version: int) -> None:
    found = read([STORES / f"version_{version}"])
    assert len(found["failures"]) == 1
    assert found["failures"][0]["message"].startswith("Deviation: faulty")
    assert found["unfinished"] == []
    report(FAILED, STORES / f"version_{version}")


@pytest.mark.parametrize("left", ["parts.jsonl", "report.json", "failures"])
def test_a_store_of_a_newer_version_is_refused_by_name(tmp_path: Path, left: str) -> None:
    """Each of its files alone, among those of this version."""
    store = shutil.copytree(STORES / "version_2", tmp_path / "store")
    changed = 0
    for path in (store / left).rglob("*") if (store / left).is_dir() else [store / left]:
        text = path.read_text()
        path.write_text(re.sub(r'(schema"?:? )2', r"\g<1>3", text))
        changed += path.read_text() != text
    assert changed
    with pytest.raises(StoreError, match=f"{left}.* has schema version 3; this ssmspec reads 1 to 2"):
        read([tmp_path / "store"])


def test_an_unfinished_worker_is_not_green(tmp_path: Path) -> None:
    """Its report of before is gone, and `report` exits with 1 until it comes to its end."""
    words = ("--examples", 1, "--folder", tmp_path)
    plays(0, *words)
    report(0, tmp_path)
    report(FAILED, tmp_path, tmp_path.with_name("never"))
    state.begin(tmp_path)
    report(FAILED, tmp_path, said="unfinished")
    with state.owned(tmp_path):
        plays(REFUSED, *words, said="another campaign runs in")


@pytest.mark.parametrize(
    ("error", "code"), [(RuntimeError("ours"), BROKEN), (KeyboardInterrupt(), INTERRUPTED), (SystemExit(0), BROKEN)]
)
def test_exit_codes_tell_what_ended_a_campaign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    def broken(*given: Any, **more: Any) -> None:
        raise error

    monkeypatch.setattr(Campaign, "play", broken)
    plays(code, "--folder", tmp_path)
    assert not state.finished(tmp_path)


def test_a_campaign_without_a_part_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Campaign, "numbers", lambda campaign: iter(()))
    plays(REFUSED, "--folder", tmp_path, said="has no finished batch")


def test_an_implementation_that_ends_the_process_is_a_failure(tmp_path: Path) -> None:
    with started(tmp_path / "out", module(tmp_path, "ends", "Ends"), examples=5) as worker:
        out, errors = worker.communicate(timeout=120)
    assert worker.returncode == FAILED, errors
    assert "SystemExit" in out


def test_a_killed_campaign_is_unfinished_and_goes_on_to_what_an_undisturbed_one_finds(tmp_path: Path) -> None:
    """SIGKILL at some moments, until one run comes to its end."""
    given: dict[str, Any] = {"examples": 2, "parts": 4, "seed": 3}
    with started(tmp_path / "calm", REFERENCE, **given) as calm:
        calm.communicate(timeout=120)
    done: list[int] = []
    for moment in (1.5, 2.5, 3.5, 120):
        with started(tmp_path / "cut", REFERENCE, **{**given, "parts": 4 - len(done)}) as worker:
            try:
                worker.communicate(timeout=moment)
            except subprocess.TimeoutExpired:
                worker.kill()
        done = [line["number"] for line in lines.read(tmp_path / "cut" / "parts.jsonl")]
        ended = state.finished(tmp_path / "cut")
        assert ended or worker.returncode != 0, "a campaign that came to its end says so"
        assert not ended or len(done) == 4, "one that was killed before its last part does not"
        if len(done) == 4:
            break
    found, again = (
        [(line["number"], line["digest"], line["failure"]) for line in lines.read(tmp_path / name / "parts.jsonl")]
        for name in ("calm", "cut")
    )
    assert found == again
    assert len(found) == 4


class Leaves(InMemoryExampleDatabase):
    """A shared database that does not answer while `away`."""

    away = False

    def fetch(self, key: bytes) -> Any:
        self.check()
        return super().fetch(key)

    def save(self, key: bytes, value: bytes) -> None:
        self.check()
        super().save(key, value)

    def delete(self, key: bytes, value: bytes) -> None:
        self.check()
        super().delete(key, value)

    def check(self) -> None:
        if self.away:
            raise ConnectionError("gone")


def test_what_fails_while_the_shared_database_is_away_is_sent_later(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    shared, unsent = Leaves(), tmp_path / "unsent.jsonl"

    def opened(here: ExampleDatabase) -> Synced:
        return Synced(here, shared, unsent, "redis://there", lambda: now[0])

    here = InMemoryExampleDatabase()
    synced = opened(here)
    shared.away = True
    synced.save(b"key", b"first")
    synced.save(b"key", b"second")
    assert set(synced.fetch(b"key")) == {b"first", b"second"}
    synced.delete(b"key", b"second")
    assert "redis://there does not answer (ConnectionError: gone)" in capsys.readouterr().err
    shared.away = False
    assert set(synced.fetch(b"key")) == {b"first"}
    assert not list(shared.fetch(b"key")), "it is left alone for a while"
    now[0] = AGAIN
    assert set(synced.fetch(b"key")) == {b"first"}
    assert list(shared.fetch(b"key")) == [b"first"]
    assert not unsent.exists()
    shared.away = True
    synced.save(b"key", b"third")
    shared.away = False
    opened(InMemoryExampleDatabase()).settle()
    assert set(shared.fetch(b"key")) == {b"first", b"third"}, "a later campaign over the folder sends them"


def test_a_campaign_goes_on_when_redis_dies_and_sends_its_failure_later(tmp_path: Path) -> None:
    """The server dies after the campaign began; the failure is in the folder, and the next campaign there sends it."""
    adapter = module(tmp_path, "one_fault")
    (tmp_path / "first").mkdir()
    with redis_server(tmp_path / "first") as address:
        worker = started(tmp_path / "out", adapter, database=address, examples=200, seed=2)
        for _ in range(6000):
            if state.REPORT in os.listdir(tmp_path / "out") if (tmp_path / "out").exists() else False:
                break
            time.sleep(0.02)
    _, errors = worker.communicate(timeout=120)
    assert worker.returncode == FAILED, errors
    assert "does not answer" in errors
    assert len(failures.kept(tmp_path / "out")) == 1
    assert lines.read(tmp_path / "out" / "unsent.jsonl")
    with redis_server(tmp_path / "first") as address:
        worker = started(tmp_path / "out", adapter, database=address, examples=2, seed=2)
        _, errors = worker.communicate(timeout=120)
        assert "answers again: sent" in errors
        with Redis.from_url(address) as server:
            assert [key for key in server.scan_iter() if b"one_fault:adapter ci cpu" in key]
    assert not (tmp_path / "out" / "unsent.jsonl").exists()


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("redis://127.0.0.1:1/0", "no Redis server answers at redis://127.0.0.1:1/0"),
        ("redis://127.0.0.1:port/0", "no Redis server answers at redis://127.0.0.1:port/0"),
        ("http://127.0.0.1/", "http://127.0.0.1/ is not a database"),
        ("FILE", "file (cannot be written|does not save)"),
        ("FILE/below", "file/below (cannot be written|does not save)"),
    ],
)
def test_a_database_that_cannot_be_used_is_refused_before_any_example(tmp_path: Path, place: str, said: str) -> None:
    (tmp_path / "file").write_text("")
    place = place.replace("FILE", str(tmp_path / "file"))
    with pytest.raises(DatabaseUnavailable, match=said):
        open_database(place, tmp_path)
    plays(REFUSED, "--folder", tmp_path / "out", "--database", place)
    assert not (tmp_path / "out" / "parts.jsonl").exists()


def test_a_redis_server_that_keeps_nothing_is_refused(tmp_path: Path) -> None:
    """A replica answers, and takes no writes."""
    with redis_server(tmp_path) as address:
        with Redis.from_url(address) as server:
            server.replicaof("127.0.0.1", "1")
        with pytest.raises(DatabaseUnavailable, match="does not save"):
            open_database(address, tmp_path)


def test_lines_are_json_of_one_line_each(tmp_path: Path) -> None:
    lines.append(tmp_path / "a.jsonl", {"said": "one\ntwo"})
    assert json.loads((tmp_path / "a.jsonl").read_text()) == {"said": "one\ntwo"}
