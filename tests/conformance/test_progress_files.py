"""Files of a folder to which others can write: nothing but a regular file is read, and no file is overwritten."""

import errno
import os
import socket
import stat
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from conformance.progress import files, lines
from conformance.progress.lines import StoreError
from conformance.progress.made import make, remove
from ssmspec_ref.errors import OptionError
from ssmspec_ref.options import files as options

pytestmark = pytest.mark.timeout(60)


def link(path: Path) -> None:
    path.with_name("elsewhere").write_text("elsewhere")
    path.symlink_to(path.with_name("elsewhere"))


def bound(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


ODD: dict[str, Callable[[Path], object]] = {
    "FIFO": os.mkfifo, "folder": os.mkdir, "link": link, "socket": bound, "link to a device": device,
    "link to nothing": lambda path: path.symlink_to("nothing"),
}  # fmt: skip
odd = pytest.mark.parametrize("kind", ODD)


@pytest.fixture
def path(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A path at which something odd lies."""
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    ODD[kind](Path("file"))
    return Path("file")


@odd
@pytest.mark.parametrize("opened", [files.read, files.append])
def test_what_is_no_regular_file_is_neither_read_nor_appended_to(path: Path, opened: Callable[[Path], object]) -> None:
    with pytest.raises(OSError, match=files.IRREGULAR) as error:
        opened(path)
    assert error.value.filename == str(path)
    with pytest.raises(StoreError, match="file cannot be read"):
        lines.read(path)


@odd
def test_what_lies_there_is_replaced_and_a_link_is_not_written_through(path: Path, kind: str) -> None:
    if kind == "folder":
        with pytest.raises(IsADirectoryError) as error:
            files.write(path, "new")
        assert error.value.filename == str(path)
    else:
        files.write(path, "new")
        assert stat.S_ISREG(path.lstat().st_mode)
        assert path.read_text() == "new"
    assert not [name for name in os.listdir() if name.startswith(files.NEW)]
    assert "elsewhere" not in os.listdir() or Path("elsewhere").read_text() == "elsewhere"


def test_a_file_that_a_user_names_may_be_a_link_but_not_a_fifo(tmp_path: Path) -> None:
    link(tmp_path / "file")
    assert files.read(tmp_path / "file", follow=True) == b"elsewhere"
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "to it").symlink_to("fifo")
    with pytest.raises(OSError, match=files.IRREGULAR):
        files.read(tmp_path / "to it", follow=True)


def test_an_option_names_a_file_and_no_fifo(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OptionError, match=r"--prompts .*fifo is not a regular file, and may never end; save what it gives"):
        options.readable("--prompts", tmp_path / "fifo")
    with pytest.raises(OptionError, match="is not a regular file, and would be replaced by one"):
        options.writable("--report", tmp_path / "fifo", whole=True)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "large"
    file.write_bytes(b"12345")
    assert files.read(file, limit=5) == b"12345"
    with pytest.raises(OSError, match="it has more than 4 bytes"):
        files.read(file, limit=4)
    tracemalloc.start()
    try:
        files.read(file)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20  # as much as the file needs, not as much as it may
    finally:
        tracemalloc.stop()
    os.truncate(file, 1 << 40)
    with pytest.raises(OSError, match="it has more than 1,073,741,824 bytes"):
        files.read(file)
    with pytest.raises(StoreError, match="cannot be read \\(it has more than"):
        lines.read(file)


def test_a_new_file_has_the_mode_of_any_other_and_holds_the_bytes(tmp_path: Path) -> None:
    files.write(tmp_path / "file", b"\xff\n\r\n")
    (tmp_path / "other").touch()
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "other").stat().st_mode
    assert files.read(tmp_path / "file") == b"\xff\n\r\n"


def test_a_write_that_fails_names_the_file_and_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("old")

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as error:
        files.write(tmp_path / "file", "new")
    assert error.value.filename == str(tmp_path / "file")
    assert {found.name: found.read_text() for found in tmp_path.iterdir()} == {"file": "old"}


def test_what_a_killed_process_left_is_swept_and_nothing_else(tmp_path: Path) -> None:
    for name in (f"{files.NEW}1", "report.jsonl", ".lock"):
        (tmp_path / name).touch()
    (tmp_path / f"{files.NEW}2").mkdir()
    files.sweep(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {f"{files.NEW}2", "report.jsonl", ".lock"}


def test_only_what_was_made_and_is_empty_is_removed(tmp_path: Path) -> None:
    made = make(tmp_path / "shared" / "mine" / "deep")
    assert [folder.name for folder in made] == ["deep", "mine", "shared"]
    (tmp_path / "shared" / "neighbour").mkdir()
    (tmp_path / "shared" / "neighbour" / "failure.py").touch()
    (made[0] / "own").touch()
    remove([made[0] / "own", made[0] / "never"], made)
    assert sorted(found.name for found in tmp_path.rglob("*")) == ["failure.py", "neighbour", "shared"]
    assert make(tmp_path / "shared") == []


def test_a_folder_that_cannot_be_made_leaves_none_above_it(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="File name too long"):
        make(tmp_path / "above" / ("x" * 300) / "deep")
    (tmp_path / "file").touch()
    for below in (tmp_path / "file", tmp_path / "file" / "deep"):
        with pytest.raises(OSError, match=r"exists|Not a directory"):
            make(below)
    assert [found.name for found in tmp_path.iterdir()] == ["file"]
