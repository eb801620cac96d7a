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
from typer.testing import CliRunner, Result

from conformance.refusal import FAILED, REFUSED
from property_tests.campaigns import database
from property_tests.campaigns.campaign import read
from property_tests.campaigns.database import DatabaseUnavailable
from property_tests.cli import app
from property_tests.store import failures, state

from .test_campaign_store import REFERENCE, STORES, campaign, part

pytestmark = pytest.mark.timeout(120)


def report(*folders: Path) -> Result:
    return CliRunner().invoke(app, ["report", *map(str, folders)], env={"COLUMNS": "300"})


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
    made = report(killed, found, early, tmp_path / "never", damaged)
    assert made.exit_code == FAILED
    assert "2 failures" in made.output
    assert "deviates: Deviation: faulty" in made.output
    assert "deviates: Deviation: beside the damage" in made.output
    for folder in (killed, early, tmp_path / "never"):
        assert f"unfinished: {folder}" in made.output
    assert f"not read: {damaged / 'parts.jsonl'}, line 1, is damaged" in made.output
    assert report(killed, early).exit_code == REFUSED, "nothing was done at all"


def test_a_worker_without_a_batch_is_no_success(tmp_path: Path) -> None:
    green = tmp_path / "green"
    words = ["--adapter", REFERENCE, "--profile", "ci", "--examples", "1", "--parts", "1", "--folder", str(green)]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert report(green).exit_code == 0
    assert report(green, tmp_path / "never").exit_code == FAILED


FILES = ("failures/0123456789abcdef.py", "parts.jsonl", "report.json")


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), os.mkdir])
@pytest.mark.parametrize("name", FILES)
def test_a_store_that_holds_no_file_is_refused_by_its_name(tmp_path: Path, name: str, make: Any) -> None:
    with state.owned(tmp_path):
        state.begin(tmp_path)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).unlink(missing_ok=True)
    make(tmp_path / name)
    made = report(tmp_path)
    assert made.exit_code == REFUSED
    assert f"{tmp_path / name} cannot be read (it is not a regular file)" in made.output
    if name != "report.json":  # it is replaced
        words = ["--adapter", REFERENCE, "--folder", str(tmp_path), "--parts", "1"]
        made = CliRunner().invoke(app, words, env={"COLUMNS": "300"})
        assert made.exit_code == REFUSED, made.output
        assert "cannot be read (it is not a regular file)" in made.output


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


@pytest.mark.parametrize("line", [*map(json.dumps, DAMAGED), "[" * 100_000, '{"head":' + "[" * 100_000, "\ud800"])
def test_a_damaged_line_of_batches_is_refused_by_its_place(tmp_path: Path, line: str) -> None:
    (tmp_path / "parts.jsonl").write_bytes(line.encode(errors="surrogatepass") + b"\n")
    made = report(tmp_path)
    assert made.exit_code == REFUSED
    assert "parts.jsonl, line 1, is damaged" in made.output
    assert "Traceback" not in made.output


@pytest.mark.parametrize("line", ["{}", '{"key": "xy", "value": "00"}', '{"key": 5, "value": "00"}', "[" * 100_000])
def test_a_damaged_line_of_what_is_not_sent_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "unsent.jsonl").write_text(line + "\n")
    words = ["--adapter", REFERENCE, "--folder", str(tmp_path), "--database", str(tmp_path / "shared")]
    made = CliRunner().invoke(app, words, env={"COLUMNS": "300"})
    assert made.exit_code == REFUSED, made.output
    assert "unsent.jsonl, line 1, is damaged" in made.output


@pytest.mark.parametrize(("text", "said"), [("{}", ""), ("[" * 100_000, "is not the report"), ('{"schema": 2}', "")])
def test_a_report_without_a_state_is_not_one_that_finished(tmp_path: Path, text: str, said: str) -> None:
    campaign(tmp_path).keep(part(0))
    (tmp_path / "report.json").write_text(text)
    made = report(tmp_path)
    assert made.exit_code == (REFUSED if said else FAILED if "schema" in text else 0)
    assert said in made.output


def test_planted_a_campaign_that_removes_the_topmost_folder_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent: Any
) -> None:
    monkeypatch.setattr("property_tests.campaigns.campaign.remove", lambda own, made: shutil.rmtree(made[-1]))
    with pytest.raises(FileNotFoundError):
        test_a_campaign_whose_server_is_silent_leaves_its_neighbours_their_folders(tmp_path, silent)
