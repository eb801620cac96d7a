"""What keeps a state inside a program: windows, layers, and a server of states, each named by the number of a session.

A state that leaves a server of states travels as a file: what "export" wrote is handed to "take" as it is, in a session of
the same server or of another one. Its format is the program's own.
"""

from pathlib import Path
from typing import Any, Protocol

from ..errors import AdapterUnavailable, ProgramError

OPENED: dict[str, tuple[str, ...]] = {
    "layer": ("layer", "rows"),
    "speculate": ("mixer", "state"),
    "life": ("mixer", "slots", "block", "ranks"),
}
WINDOWS = ("verify_snapshots", "verify_replay", "buffered_verify", "buffered_step")
METHODS: dict[str, tuple[str, ...]] = {
    "verify": ("window", "parents"),
    "commit": ("advanced", "path"),
    "state": ("slot",),
    "forward": ("u", "live"),
    "rollback": ("tokens",),
    "begin": ("slot", "tokens"),
    "feed": ("slot", "tokens", "inputs"),
    "fork": ("slot", "to"),
    "end": ("slot",),
    "evict": (),
    "export": ("slot",),
    "take": ("slot",),
}
"""The questions about a session, and the names of their arguments; only a server of states has slots."""
SHOWN = 100
"""Characters of an answer to show."""


class Asked(Protocol):
    """What a session needs of its program (`program.Program`)."""

    def ask(self, question: dict[str, Any]) -> dict[str, Any]: ...

    def exchange(
        self, question: dict[str, Any], named: tuple[str, ...], given: tuple[Any, ...]
    ) -> tuple[dict[str, Any], Any]: ...

    def files(self) -> tuple[Path, Path]: ...


class Session:
    """An operation with a state inside a program: the methods of `ssmspec_ref.contract`'s layers and windows."""

    def __init__(self, program: Asked, number: int) -> None:
        self.program, self.number = program, number

    def _asked(self, what: str, *given: Any) -> tuple[dict[str, Any], Any]:
        return self.program.exchange({"do": what, "session": self.number}, METHODS[what], given)

    def _do(self, what: str, *given: Any) -> Any:
        return self._asked(what, *given)[1]

    def verify(self, window: Any, parents: Any = None) -> Any:
        return self._do("verify", window, parents)

    def commit(self, advanced: Any, path: Any) -> None:
        self._do("commit", advanced, path)

    def state(self, *slot: int) -> Any:
        return self._do("state", *slot)

    def forward(self, u: Any, live: Any = None) -> Any:
        return self._do("forward", u, live)

    def rollback(self, tokens: int) -> None:
        self._do("rollback", tokens)

    def __del__(self) -> None:
        try:
            self.program.ask({"do": "close", "session": self.number})
        except (ProgramError, AdapterUnavailable):
            return


class Server(Session):
    """A server of states inside a program: the methods of `ssmspec_ref.contract.States`. Raises: ProgramError."""

    def begin(self, slot: int, tokens: Any) -> int:
        found = self._asked("begin", slot, tokens)[0].get("found")
        if type(found) is not int or not 0 <= found < len(tokens):
            most = len(tokens) - 1
            raise ProgramError(
                f"begin was answered with found = {str(found)[:SHOWN]}; give how many tokens of the prompt the saved state "
                f"has seen, from 0 to {most}: the last one is always fed"
            )
        return found

    def feed(self, slot: int, tokens: Any, inputs: Any) -> Any:
        return self._do("feed", slot, tokens, inputs)

    def fork(self, slot: int, to: int) -> None:
        self._do("fork", slot, to)

    def end(self, slot: int) -> None:
        self._do("end", slot)

    def evict(self) -> None:
        self._do("evict")

    def export(self, slot: int) -> bytes:
        """The file that the program wrote."""
        _, written = self.program.files()
        self.program.ask({"do": "export", "session": self.number, "values": {"slot": slot}, "outputs": str(written)})
        try:
            return written.read_bytes()
        except OSError as error:
            raise ProgramError(f"export wrote no file to its outputs ({error.strerror}); write the state there") from error

    def take(self, slot: int, held: bytes) -> None:
        given, _ = self.program.files()
        given.write_bytes(held)
        self.program.ask({"do": "take", "session": self.number, "values": {"slot": slot}, "inputs": str(given)})


def opened(operation: str) -> tuple[str, ...]:
    """The names of the arguments that open an operation with a state; empty for other operations."""
    group, name = operation.split(".")
    return OPENED.get(group, ("S", "params") if name in WINDOWS else ())


def session_of(operation: str) -> type[Session]:
    """What the answer to "open" becomes."""
    return Server if operation.startswith("life.") else Session
