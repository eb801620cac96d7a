"""A child process with a supervisor (warden), which enforces limits of time and memory on it and all its descendants."""

import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from typing import IO, Any

from . import warden

LAST = 1 << 16
"""Bytes of standard error to read for its last lines."""


class Guarded:
    """One child and its warden. The child runs until `end`; its files exist until `close`.

    `code` is the Python code that starts the warden: `{watch}` and `{line}` in it become the numbers of two sockets,
    `{memory}` the limit in bytes. The warden reports over `watch` how the child ended; `line` is free for messages. Without
    `stdout`, the child's output goes to its standard error. `alone`, after `end`: whether the child ended before it was
    killed.
    """

    def __init__(self, code: str, limit: int, env: dict[str, str], stdin: int, stdout: int | None = None) -> None:
        self.errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the child
        self.alone, self.mark = False, secrets.token_hex(16)
        self.watch, watched = socket.socketpair()
        self.line, far = socket.socketpair()
        with watched, far:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", code.format(watch=watched.fileno(), line=far.fileno(), memory=limit)],
                stdin=stdin,
                stdout=self.errors if stdout is None else stdout,
                stderr=self.errors,
                env=env | {warden.MARK: self.mark},
                pass_fds=(far.fileno(), watched.fileno()),
                start_new_session=True,
            )

    def end(self, seconds: float = 0.0) -> bytes:
        """End the child and all its descendants; a child that exits within `seconds` is not killed.

        Returns the warden's message: `warden.MEMORY`, `warden.PROCESSES`, `warden.ENDED`, or nothing if it was killed.
        """
        self._waited(seconds)
        self.alone = self.process.poll() is not None
        with suppress(OSError):
            self.watch.shutdown(socket.SHUT_WR)
        self._waited(warden.ENDING)
        with suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.watch.setblocking(False)
        told = b""
        with suppress(OSError):
            told = self.watch.recv(64)
        if warden.ENDED not in told:  # the warden itself was killed
            warden.end_marked(self.mark)
        self._waited(warden.ENDING)
        return told

    def _waited(self, seconds: float) -> None:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=seconds)

    def last(self) -> list[str]:
        """The last non-empty lines of the child's standard error, stripped."""
        self.errors.seek(max(0, self.errors.seek(0, os.SEEK_END) - LAST))
        said = self.errors.read(LAST).decode(errors="replace")
        return [line.strip() for line in said.splitlines() if line.strip()]

    def close(self, *more: Any) -> None:
        """Close the sockets and files, and further ones that belong to the child."""
        for held in (self.line, self.watch, self.errors, *more):
            with suppress(OSError):
                held.close()
