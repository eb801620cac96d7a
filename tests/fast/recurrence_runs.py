"""Runs that the engine's tests of every recurrence share: twelve windows in a row, and two windows beside the reference."""

from typing import Any

import torch

from property_tests.drawing.models import Spec
from property_tests.sessions.session import Session
from ssmspec_fast.adapters import sequences
from ssmspec_fast.engine.decoder import Decoder
from ssmspec_fast.engine.loop import Engine
from ssmspec_fast.engine.requests import Settings
from ssmspec_fast.methods.plain import Plain
from ssmspec_fast.models.model import Model

from .drafters import CHAINS, NODES, Skilled
from .models import prompts
from .test_methods import BITWISE, held, windows

LENGTHS, WINDOWS = (2, 7, 4), 12


def leaves_what_plain_decoding_leaves(model: Model, method: str) -> None:
    """Twelve windows of a batch with padding, some drafts accepted in each: all tokens and kept tensors, bit for bit."""
    given = prompts(4, LENGTHS)
    plain = Engine(model, slots=4, cache=64, operations=BITWISE)
    wanted = [result.tokens for result in plain.generate(given, Settings(45))]
    made = CHAINS[method]()
    decoder, rows = windows(model, made, Skilled(wanted, NODES, 0.6, tree=method == "tree"), given, WINDOWS)
    for number in range(len(given)):
        slot = len(given) + 1 - number
        tokens = rows.tokens[slot, : int(rows.length[slot])].tolist()
        come = tokens[len(given[number]) :]
        assert WINDOWS < len(come) < WINDOWS * NODES
        assert come == list(wanted[number][: len(come)])
        again = Decoder(model, Plain(), BITWISE, slots=1, cache=64)
        with torch.no_grad():
            again.prefill([tokens], [0])
        one, other = held(decoder.pools, made, slot, len(tokens) - 1), held(again.pools, Plain(), 0, len(tokens) - 1)
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


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
