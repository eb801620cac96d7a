"""The folders of campaigns beside each other: one that cannot begin removes nothing of a neighbour's, one that has nothing to
report does not hide the others, and a file that is none, or is damaged, is refused in a sentence."""

import json
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.progress.lines import StoreError
from conformance.refusal import FAILED, REFUSED
from property_tests.campaigns import database
from property_tests.campaigns.campaign import read
from property_tests.campaigns.database import DatabaseUnavailable
from property_tests.store import failures, state

from .campaigns import REFERENCE, campaign, part, plays, report
from .test_campaign_store import STORES

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[], object]], str]]:
    """The address of a server that accepts, never answers, and does something when somebody calls."""
    monkeypatch.setattr(database, "ANSWER", 0.5)
    servers: list[socket.socket] = []
    held: list[socket.socket] = []

    def serve(called: Callable[[], object]) -> str:
        server = socket.create_server(("127.0.0.1", 0))
        servers.append(server)

        def accept() -> None:
            try:
                while True:
                    held.append(server.accept()[0])
                    called()
            except OSError:  # the server was closed
                return

        threading.Thread(target=accept, daemon=True).start()
        return f"redis://127.0.0.1:{server.getsockname()[1]}/0"

    yield serve
    for one in (*servers, *held):
        one.close()


def test_a_campaign_whose_server_is_silent_leaves_its_neighbours_their_folders(tmp_path: Path, silent: Any) -> None:
    """The folder above both was made by the campaign that is refused; the neighbour came while it waited."""

    def neighbour() -> None:
        kept = campaign(tmp_path / "fuzz" / "0").keep(part(0, "Deviation: found"))
        assert kept is not None
        (tmp_path / "fuzz" / "notes.txt").write_text("put here meanwhile")

    with (
        pytest.raises(DatabaseUnavailable, match="no Redis server answers"),
        campaign(tmp_path / "fuzz" / "1", database=silent(neighbour)).opened(),
    ):
        pytest.fail("it began")
    assert sorted(found.name for found in (tmp_path / "fuzz").iterdir()) == ["0", "notes.txt"]
    assert [found["message"] for found in read([tmp_path / "fuzz" / "0"])["failures"]] == ["Deviation: found"]


def test_what_a_neighbour_puts_into_the_folder_itself_stays(tmp_path: Path, silent: Any) -> None:
    folder = tmp_path / "fuzz" / "1"
    place = silent(lambda: (folder / "notes.txt").write_text("put here meanwhile"))
    with pytest.raises(DatabaseUnavailable), campaign(folder, database=place).opened():
        pytest.fail("it began")
    assert [found.name for found in folder.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("error", [OSError("full"), KeyboardInterrupt()])
def test_a_campaign_that_cannot_begin_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def refuse(self: Any, key: bytes, value: bytes) -> None:
        raise error

    monkeypatch.setattr("hypothesis.database.DirectoryBasedExampleDatabase.save", refuse)
    with pytest.raises((DatabaseUnavailable, KeyboardInterrupt)), campaign(tmp_path / "a" / "b").opened():
        pytest.fail("it began")
    assert not os.listdir(tmp_path)


def test_a_report_of_several_shows_the_failures_beside_a_worker_without_a_batch(tmp_path: Path) -> None:
    """Killed in its first batch; with a failure among the examples only; never started; with a damaged file."""
    found = shutil.copytree(STORES / "version_2", tmp_path / "found")
    killed, early, damaged = tmp_path / "killed", tmp_path / "early", tmp_path / "damaged"
    for folder in (killed, early, damaged):
        with state.owned(folder):
            state.begin(folder)
    (early / "examples" / "key").mkdir(parents=True)
    (early / "examples" / "key" / "value").write_bytes(b"\0")
    (damaged / "parts.jsonl").write_text("{}\n")
    failures.save(damaged, "# Deviation: beside the damage\n")
    said = ["2 failures", "deviates: Deviation: faulty", "deviates: Deviation: beside the damage"]
    said += [f"unfinished: {folder}" for folder in (killed, early, tmp_path / "never")]
    said += [f"not read: {damaged / 'parts.jsonl'}, line 1, is damaged"]
    report(FAILED, killed, found, early, tmp_path / "never", damaged, said=said)
    report(REFUSED, killed, early)  # nothing was done at all


FILES = ("failures/0123456789abcdef.py", "parts.jsonl", "report.json")


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), os.mkdir])
@pytest.mark.parametrize("name", FILES)
def test_a_store_that_holds_no_file_is_refused_by_its_name(tmp_path: Path, name: str, make: Any) -> None:
    with state.owned(tmp_path):
        state.begin(tmp_path)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).unlink(missing_ok=True)
    make(tmp_path / name)
    report(REFUSED, tmp_path, said=f"{tmp_path / name} cannot be read (it is not a regular file)")
    if name != "report.json":  # it is replaced
        plays(REFUSED, "--folder", tmp_path, said="cannot be read (it is not a regular file)")


def test_a_failure_is_saved_where_something_else_has_its_name(tmp_path: Path) -> None:
    path = failures.save(tmp_path, "# seen\n").path
    path.unlink()
    os.mkfifo(path)
    assert [kept.message for kept in (failures.save(tmp_path, "# seen\n"), *failures.kept(tmp_path))] == ["seen", "seen"]


LINE = part(0).line | {"head": {"adapter": REFERENCE}}
DAMAGED = [
    *({name: value for name, value in LINE.items() if name != left} for left in ("head", "number", "examples", "failure")),
    LINE | {"head": 5},
    LINE | {"number": "x"},
    LINE | {"failure": {"at": 1}},
    [],
    5,
]


GLUED = '{"head": {}, "num{"head": {}, "number": 1}'


@pytest.mark.parametrize("line", [*map(json.dumps, DAMAGED), GLUED, "[" * 100_000, '{"head":' + "[" * 100_000, "\ud800"])
def test_a_damaged_line_of_batches_is_refused_by_its_place(tmp_path: Path, line: str) -> None:
    campaign(tmp_path).keep(part(0))
    with (tmp_path / "parts.jsonl").open("ab") as stream:
        stream.write(line.encode(errors="surrogatepass") + b"\n")
    with pytest.raises(StoreError, match=r"parts\.jsonl, line 2, is damaged"):
        read([tmp_path])
    assert "Traceback" not in report(REFUSED, tmp_path, said="parts.jsonl, line 2, is damaged")


@pytest.mark.parametrize("line", ["{}", '{"key": "xy", "value": "00"}', '{"key": 5, "value": "00"}', "[" * 100_000])
def test_a_damaged_line_of_what_is_not_sent_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "unsent.jsonl").write_text(line + "\n")
    words = ("--folder", tmp_path, "--database", tmp_path / "shared")
    plays(REFUSED, *words, said="unsent.jsonl, line 1, is damaged")


@pytest.mark.parametrize(("text", "said"), [("{}", ""), ("[" * 100_000, "is not the report"), ('{"schema": 2}', "")])
def test_a_report_without_a_state_is_not_one_that_finished(tmp_path: Path, text: str, said: str) -> None:
    campaign(tmp_path).keep(part(0))
    (tmp_path / "report.json").write_text(text)
    report(REFUSED if said else FAILED if "schema" in text else 0, tmp_path, said=said)


def test_planted_a_campaign_that_removes_the_topmost_folder_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent: Any
) -> None:
    monkeypatch.setattr("property_tests.campaigns.campaign.remove", lambda own, made: shutil.rmtree(made[-1]))
    with pytest.raises(FileNotFoundError):
        test_a_campaign_whose_server_is_silent_leaves_its_neighbours_their_folders(tmp_path, silent)
