"""Schedules of batches, without an implementation: sequences join, decode, leave, wait, return, move and fork.

A schedule is a list of calls of `session.Session` with their arguments; another project translates them into
its own. It is drawn from a `Ledger`, so that the contract allows every call.
"""

from collections import Counter
from typing import Any, NamedTuple

from hypothesis import strategies as st

from ssmspec_ref.contract import FLOAT64, Decoding

from ..sessions.ledger import Ledger
from .actions import ACTIONS, offered


class Schedule(NamedTuple):
    """Calls in order, and their features (`features`)."""

    calls: tuple[tuple[str, dict[str, Any]], ...]
    reached: Counter[str]


def nothing(*given: Any, **more: Any) -> Any:
    raise NotImplementedError("a schedule has no implementation; replay it on a session")


CHAINS = Decoding("chains", nothing, FLOAT64)
TREES = Decoding("trees", nothing, FLOAT64, trees=True)


@st.composite
def batch_schedules(
    draw: st.DrawFn,
    steps: int = 20,
    slots: int = 3,
    window: int = 4,
    cache: int = 32,
    vocabulary: int = 4,
    decodings: tuple[Decoding, ...] = (TREES, CHAINS),
) -> Schedule:
    """Between one and `steps` calls on decoders of these decodings; most windows get their verdict at once.

    Units: `cache` is the tokens of a sequence, `window` those of a window.
    """
    ledger, calls = Ledger(decodings, vocabulary, slots, window, cache), []

    def call(name: str) -> None:
        given = ACTIONS[name].draw(draw, ledger)
        if given is not None:
            calls.append((ACTIONS[name].call, given))
            getattr(ledger, ACTIONS[name].call)(**{key: value for key, value in given.items() if key != "look"})
            ledger.reached[f"rule {ACTIONS[name].call}"] += 1
            ledger.reached[ledger.situation()] += 1

    call("prefill")
    for _ in range(draw(st.integers(0, steps - 1))):
        if ledger.pending is not None:
            call(draw(st.sampled_from(["commit", "commit", "commit", "fork"])))
        else:
            call(draw(st.sampled_from(offered(ledger))))
    return Schedule(tuple(calls), ledger.reached)
