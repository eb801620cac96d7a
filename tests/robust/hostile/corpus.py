"""The corpus: each attack with the ways of failing that the suite may give it, and what it must say.

    --adapter tests.robust.hostile.corpus:NAME

Attacks are functions that stand for the operation ssd.scan, or for the factory of the adapter.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from ssmspec_ref.contract import Adapter, Capability, NumericContract, Subject

PARTS = ("processes", "lines", "texts", "declarations", "outputs", "folders", "programs")
REFUSED = "refused"
"""The way of failing of an adapter that is refused before its first case."""


@dataclass(frozen=True)
class Attack:
    """One attack: `kinds` are the ways of failing that are right, `said` is found in what is told. `source` makes it a
    program; `quick` puts it among those that CI runs."""

    name: str
    does: str
    kinds: tuple[str, ...]
    said: str
    make: Callable[[], Adapter] | None = None
    source: str = ""
    quick: bool = False


ATTACKS: dict[str, Attack] = {}


def wrong(S: Any, window: Any, params: Any) -> tuple[Any, Any]:
    """Nothing is computed."""
    return np.zeros(window.x.shape, dtype=np.float32), np.zeros(S.shape, dtype=np.float32)


def declares(run: Callable[..., Any], adapter: str = "hostile", subject: str = "attack", **given: Any) -> Adapter:
    capability = Capability(run, NumericContract(**given.pop("contract", {})), *given.pop("limits", ()))
    return Adapter(adapter, given.pop("version", "1"), (Subject(subject, {"ssd.scan": capability}, **given),))


def attack(*kinds: str, said: str = "", quick: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as the operation of an adapter."""

    def register(run: Callable[..., Any]) -> Callable[..., Any]:
        made = Attack(run.__name__, run.__doc__ or "", kinds, said, lambda: declares(run), quick=quick)
        ATTACKS[run.__name__] = made
        return run

    return register


def factory(*kinds: str, said: str = "", quick: bool = False) -> Callable[[Callable[[], Adapter]], Callable[[], Adapter]]:
    """Register a function as the factory of an adapter."""

    def register(make: Callable[[], Adapter]) -> Callable[[], Adapter]:
        ATTACKS[make.__name__] = Attack(make.__name__, make.__doc__ or "", kinds, said, make, quick=quick)
        return make

    return register


def program(name: str, does: str, source: str, *kinds: str, said: str = "", quick: bool = False) -> None:
    """Register a program by what it does when it is called."""
    ATTACKS[name] = Attack(name, does, kinds, said, source=source, quick=quick)


def corpus() -> dict[str, Attack]:
    for part in PARTS:
        import_module(f"tests.robust.hostile.{part}")
    return ATTACKS


def right() -> Adapter:
    """What is judged beside every attack: it passes, so that the run is seen to go on."""
    from ssmspec_ref import ssd

    def scan(S: Any, window: Any, params: Any) -> tuple[Any, ...]:
        return tuple(np.asarray(a, dtype=np.float32) for a in ssd.scan(S, window, params))

    return declares(scan, "right", "right")


def __getattr__(name: str) -> Callable[[], Adapter]:
    """The factory of an attack."""
    found = None if name.startswith("_") else corpus().get(name)
    if found is None or found.make is None:
        raise AttributeError(name)
    return found.make
