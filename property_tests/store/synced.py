"""A shared database that may be unreachable: failures are first kept in a local folder, and sent when the shared one answers.

save     kept here; sent, or noted in `unsent`, a file that a later campaign in the same folder sends                (1)
fetch    local examples and, if the shared database answers, its own; noted ones are sent first                       (2)
delete   here and there; if the shared one does not answer its copy stays: who fetches it later tries and deletes it  (3)
"""

import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from hypothesis.database import ExampleDatabase
from pydantic import BaseModel, Field

from conformance.progress import lines
from conformance.progress.files import write

AGAIN = 10.0
"""Seconds after which a database that did not answer is tried again."""


class Unsent(BaseModel):
    """A line of the examples that are not yet sent."""

    key: str = Field(pattern="^([0-9a-f]{2})*$")
    value: str = Field(pattern="^([0-9a-f]{2})*$")


class Synced(ExampleDatabase):
    """`named` is the name of the shared database in messages; `clock` returns seconds."""

    def __init__(
        self,
        here: ExampleDatabase,
        shared: ExampleDatabase,
        unsent: Path,
        named: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self.here, self.shared, self.unsent, self.named, self.clock = here, shared, unsent, named, clock
        self.gone: float | None = None
        """The time since which the shared database does not answer."""
        self.waiting = [(bytes.fromhex(line["key"]), bytes.fromhex(line["value"])) for line in lines.read(unsent, Unsent)]

    def save(self, key: bytes, value: bytes) -> None:
        """(1)"""
        self.here.save(key, value)
        if not self.sent([*self.waiting, (key, value)]):
            self.waiting.append((key, value))
            line = {"schema": lines.SCHEMA, "key": key.hex(), "value": value.hex()}
            self.noted(lambda: lines.append(self.unsent, line))

    def fetch(self, key: bytes) -> Iterable[bytes]:
        """(2)"""
        self.sent(self.waiting)
        there: set[bytes] = set()
        self.tried(lambda: there.update(self.shared.fetch(key)))
        return {*self.here.fetch(key), *there}

    def delete(self, key: bytes, value: bytes) -> None:
        """(3)"""
        self.here.delete(key, value)
        if (key, value) in self.waiting:
            self.waiting = [one for one in self.waiting if one != (key, value)]
            self.note()
        self.tried(lambda: self.shared.delete(key, value))

    def sent(self, examples: list[tuple[bytes, bytes]]) -> bool:
        """Whether the shared database now holds all of them; if so, none waits any more."""

        def send() -> None:
            for key, value in examples:
                self.shared.save(key, value)
                if value not in set(self.shared.fetch(key)):
                    raise OSError("a saved example is missing")

        if not examples:
            return True
        if not self.tried(send):
            return False
        if self.waiting:
            print(f"{self.named} answers again: sent {len(self.waiting)} failing examples", file=sys.stderr)
            self.waiting = []
            self.note()
        return True

    def settle(self) -> None:
        """Sends what waits now, and reports what still does."""
        self.gone = None
        if not self.sent(self.waiting):
            print(f"{len(self.waiting)} failing examples in {self.unsent} are not yet sent to {self.named}", file=sys.stderr)

    def note(self) -> None:
        """Notes what waits."""
        if not self.waiting:
            self.noted(lambda: self.unsent.unlink(missing_ok=True))
            return
        noted = [{"schema": lines.SCHEMA, "key": key.hex(), "value": value.hex()} for key, value in self.waiting]
        self.noted(lambda: write(self.unsent, "".join(lines.text(line) for line in noted)))

    def noted(self, write: Callable[[], None]) -> None:
        """Writes to the folder. If the disk fails, this process still sends what waits: an error here would hide the failure
        that was found."""
        try:
            write()
        except OSError as error:
            print(f"{self.unsent} cannot be written ({error.strerror}); it is tried again later", file=sys.stderr)

    def tried(self, ask: Callable[[], None]) -> bool:
        """Whether the shared database answered; one that did not is tried again only after `AGAIN` seconds."""
        if self.gone is not None and self.clock() - self.gone < AGAIN:
            return False
        try:
            ask()
        except Exception as error:  # of its client, of the network, of the file system
            if self.gone is None:
                print(
                    f"{self.named} does not answer ({type(error).__name__}: {error}); failures are saved in "
                    f"{self.unsent.parent}, and sent when it is back",
                    file=sys.stderr,
                )
            self.gone = self.clock()
            return False
        self.gone = None
        return True
