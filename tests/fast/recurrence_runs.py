"""Runs that the engine's tests of every recurrence share: twelve windows in a row, and two windows beside the reference."""

from typing import Any

from property_tests.drawing.models import Spec
from property_tests.sessions.session import Session
from ssmspec_fast.adapters import sequences
from ssmspec_fast.models.model import Model

from .drafters import CHAINS, NODES, skilled
from .models import prompts
from .runs import emitted, engine
from .test_methods import settled_as_plain, windows

LENGTHS, WINDOWS = (2, 7, 4), 12


def leaves_what_plain_decoding_leaves(model: Model, method: str) -> None:
    """Twelve windows of a batch with padding, some drafts accepted in each: all tokens and kept tensors, bit for bit."""
    given = prompts(4, LENGTHS)
    wanted, made = emitted(engine(model), given, 45), CHAINS[method]()
    run = windows(model, made, skilled(wanted, method, 0.6), given, WINDOWS)
    for number in range(len(given)):
        assert WINDOWS < settled_as_plain(model, made, *run, number, wanted) < WINDOWS * NODES


def session(kind: str, method: str, options: dict[str, Any]) -> Session:
    """A model of one layer of a kind and one of attention, under a method."""
    spec = Spec((kind, "attention"), 1, 4, tuple(sorted(options.items())))
    return Session(sequences.adapter(), [f"{method}; torch"], spec.words(), slots=2, window=4, cache=24)


def played(made: Session) -> None:
    """Two windows of two sequences; the float64 reference is behind every output and state."""
    made.prefill(0, [[1, 2, 3], [3]], [0, 1])
    for tokens in ([[2, 1, 0], [1, 1, 3]], [[1, 3, 3], [2, 0, 1]]):
        roots = [made.rooms[0][slot][-1] for slot in (0, 1)]
        made.verify(0, [[root, *row[1:]] for root, row in zip(roots, tokens, strict=True)], [0, 1])
        made.commit([[0, 1], [0]], [2, 1], [0, 1], [1, 2])
