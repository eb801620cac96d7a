"""Files and folders that a command is to write or read. They are checked before any work; nothing is left behind."""

import os
from pathlib import Path

from ..errors import OptionError
from .words import nearest


def writable(option: str, file: Path | None, parents: bool = False, whole: bool = False) -> None:
    """Raises: OptionError for a file that cannot be written, such as a folder, or one in a folder that does not exist; with
    `parents` the folder is made by the command; with `whole` a new file replaces it, so that it must not be a device."""
    if file is None:
        return
    if file.is_dir():
        raise OptionError(f"{option} {file} is a folder; give a file, such as {file / 'out'}")
    if whole and file.exists() and not file.is_file():
        raise OptionError(f"{option} {file} is not a regular file, and would be replaced by one; name another file")
    if not file.parent.is_dir():
        if not parents:
            raise OptionError(f"{option} {file} cannot be written: {file.parent} is not a folder; create it first")
        folder(option, file.parent)
    elif not os.access(file if file.exists() else file.parent, os.W_OK):
        raise OptionError(f"{option} {file} cannot be written: permission denied; name another file")


def folder(option: str, path: Path | None) -> None:
    """Raises: OptionError for a folder that cannot be made or written."""
    if path is None:
        return
    there = next((part for part in (path, *path.parents) if part.exists()), Path())
    if not there.is_dir():
        raise OptionError(f"{option} {path} cannot be a folder: {there} is a file; name another folder")
    if not os.access(there, os.W_OK):
        raise OptionError(f"{option} {path} cannot be written: permission denied; name another folder")


def readable(option: str, file: Path) -> None:
    """Raises: OptionError for a file that cannot be read, with the nearest name beside it."""
    if file.is_dir():
        raise OptionError(f"{option} {file} is a folder; give a file")
    if not file.exists():
        beside = [found.name for found in file.parent.iterdir()] if file.parent.is_dir() else []
        raise OptionError(f"{option} {file} does not exist{nearest(file.name, beside)}; give a file")
    if not file.is_file():
        raise OptionError(f"{option} {file} is not a regular file, and may never end; save what it gives in a file")
    if not os.access(file, os.R_OK):
        raise OptionError(f"{option} {file} cannot be read: permission denied")
