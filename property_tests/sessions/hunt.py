"""One run of a machine: every example agrees, or the smallest failing example is returned."""

import contextlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import hypothesis
from hypothesis import settings as Settings  # noqa: N812
from hypothesis.stateful import get_state_machine_test

from conformance.draws import by_seed_alone

from .ledger import Impossible
from .machine import DecoderMachine
from .reduce import reduced
from .session import Session


@dataclass(frozen=True)
class Failure:
    """The smallest failing example, its error, and the number of examples up to the first failure."""

    session: Session
    message: str
    examples: int

    @property
    def steps(self) -> int:
        """The number of its actions, the failing one included."""
        return len(self.session.lines)


def hunt(machine: type[DecoderMachine], how: Settings, seed: int | None = None, key: bytes | None = None) -> Failure | None:
    """Runs a machine once. `seed` determines its examples; `key` is where the database of `how` keeps the failing ones.
    Failing examples in the database, whoever found them, are replayed before anything is drawn; one that no longer fails is
    deleted.

    Raises: errors that are not deviations of the implementation but faults of ours: in the strategies, or `Impossible`."""
    totals, first = machine.totals, [0]
    if seed is not None and not how.derandomize:
        machine = hypothesis.seed(seed)(machine)  # set on the class: `seed` on the test would remove its database
    test: Callable[[], None] = get_state_machine_test(machine, settings=how, _flaky_state={"selecting_rule": False})
    if key is not None:
        test._hypothesis_internal_database_key = key  # type: ignore[attr-defined]
    seen = totals.examples

    def noted(session: Session) -> None:
        first[0] = first[0] or totals.examples - seen

    machine.failed = noted
    try:
        with contextlib.redirect_stdout(io.StringIO()), by_seed_alone():
            test()
    except KeyboardInterrupt:
        raise
    except (Exception, SystemExit) as error:  # an exception of the implementation is a finding too
        if not first[0] or totals.last is None or isinstance(error, Impossible):
            raise
        smallest, message = reduced(totals.last, machine.adapter)
        return Failure(smallest, message or said(error), first[0])
    return None


def said(error: BaseException) -> str:
    """The message of a failure."""
    return f"{type(error).__name__}: {error}".split("\n\n")[0]


def arguments(given: tuple[Any, ...], more: dict[str, Any]) -> str:
    """Arguments as source code of a call."""
    return ", ".join([*map(repr, given), *(f"{name}={value!r}" for name, value in more.items())])


def reproducer(failure: Failure, device: str = "cpu") -> str:
    """A program of a few lines that fails in the same way: `python FILE`."""
    s = failure.session
    names = [d.name for d in s.decodings]
    begun = f"{s.name!r}, {names!r}, {s.spec.words()!r}, slots={s.slots}, window={s.window}, cache={s.cache}"
    inside = [
        "from property_tests.sessions.session import Session",
        "",
        f"session = Session({begun}, device=place)",
        *(f"session.{name}({arguments(given, more)})" for name, given, more in s.lines),
    ]
    body = "\n".join(f"    {line}" if line else "" for line in inside)
    said_so = "\n".join(f"# {line}" for line in failure.message.splitlines())
    return f"{said_so}\nfrom conformance.interpreter.device import placed\n\nwith placed({device!r}) as place:\n{body}\n"
