"""Drafts from the text so far: prompt lookup, and the windows that followed the last token most often.

    lookup(history, tokens, longest, choice) -> drafts        what followed an earlier occurrence of the longest suffix
    png(history, drafts, tokens, table) -> drafts             the most frequent windows after the root, then rows of a table

Any draft is lossless, since the target verifies it; a wrong one costs speed, and no test of tokens shows it. `history` (b l)
is padded with -1; drafts that do not exist are -1. Of several occurrences `choice` takes the last or the first one.
Everything is an integer and compared with ==.

Sizes: b rows, l tokens of the longest history, t tokens of a draft, i of the vocabulary, m drafts of a sequence.
"""

from typing import Any

import numpy as np

from ssmspec_ref.contract import NumericContract
from ssmspec_ref.draft import ngram
from ssmspec_ref.shapes import Array

from ...cases import Case
from ...judge.draw import Draw
from ..acceptance import LARGE_ID, run
from ..called import Arguments
from ..expected import Expected
from ..specification import Specification
from ..tables import case_of, cases_of, sizes_of

LONGEST = {"three": 3, "one": 1, "five": 5}


def histories(draw: Draw) -> Array:
    """Random tokens, or a motif of five tokens with one in twelve replaced; rows end anywhere, the first at the end."""
    (b, l), rng, i = draw.shape("b l"), draw.rng("history"), draw.sizes["i"]
    history = rng.integers(0, i, (b, l))
    if draw.case.family == "repeated":
        motif = rng.integers(0, i, (b, 5))
        history = np.where(rng.random((b, l)) < 1 / 12, history, np.take_along_axis(motif, np.arange(l)[None] % 5, axis=1))
    length = rng.integers(1, l + 1, b)
    length[0] = l
    return np.where(np.arange(l) < length[:, None], history, -1)


def draw_lookup(case: Case, contract: NumericContract) -> Arguments:
    """With `ids=large` single precision does not tell the tokens apart."""
    draw = Draw(case, contract)
    history = histories(draw)
    if draw.options["ids"] == "large":
        history = np.where(history < 0, history, history + LARGE_ID)
    return history, draw.sizes["t"], LONGEST[draw.options["longest"]], draw.options["choice"]


def draw_png(case: Case, contract: NumericContract) -> Arguments:
    """A table whose rows often agree with windows of the history."""
    draw = Draw(case, contract)
    history, (i, m, t) = histories(draw), draw.shape("i m t")
    table = draw.rng("table").integers(0, i, (i, m, t))
    for row in history[:, : t + 1][history[:, : t + 1].min(axis=1) >= 0]:
        table[row[0], 0, : len(row) - 1] = row[1:]
    return history, m, t, table


def expect_lookup(arguments: Arguments, contract: NumericContract, used: Any) -> list[Expected]:
    history, tokens, longest, choice = arguments
    rows = (ngram.prompt_lookup(row[row >= 0], tokens, longest, first=choice == "first") for row in history)
    return [_exactly(np.array([[*row, *[-1] * (tokens - len(row))] for row in rows]), "b t")]


def expect_png(arguments: Arguments, contract: NumericContract, used: Any) -> list[Expected]:
    history, drafts, tokens, table = arguments
    found = np.full((len(history), drafts, tokens), -1)
    for b, row in enumerate(history):
        made = ngram.png(row[row >= 0], drafts, tokens, table)
        found[b, : len(made)] = made
    return [_exactly(found, "b m t")]


def _exactly(value: Array, axes: str) -> Expected:
    return Expected("drafts", axes, value.astype(np.float64), np.zeros(value.shape), whole=True)


BASE = {"b": 5, "l": 24, "t": 3, "i": 4}
ROWS = sizes_of("b1", "l1", "l5,t7", "t1", "i40", "b17,l9")
FURTHER = cases_of("b3,l300/repeated", "b3,l130,t8,i2/repeated", "b3,l40,i1/repeated", "b65,l12/repeated")
"""Histories past a block of 256 tokens; long drafts; one token only; many rows."""
SOURCES = {"": "prompt lookup decoding; Snakes and Ladders, section 5.2", "choice": "transformers takes the first occurrence"}
SHARED: dict[str, Any] = {"families": ("repeated", "random"), "sources": SOURCES, "run": run, "further": FURTHER}

SPECIFICATIONS = (
    Specification(
        operation="draft.lookup",
        base=BASE,
        rows=ROWS,
        options={"longest": tuple(LONGEST), "choice": ("last", "first")},
        draw=draw_lookup,
        expect=expect_lookup,
        production=(*(({"b": b, "l": 9}, {}, "repeated") for b in (4, 8, 16, 64)), case_of("ids=large/repeated")),
        rare={"ids": ("near", "large")},
        **SHARED,
    ),
    Specification(
        operation="draft.png",
        base={**BASE, "m": 3},
        rows=(*ROWS, *sizes_of("m1", "m9")),
        options={},
        draw=draw_png,
        expect=expect_png,
        production=tuple(({"b": b, "l": 9}, {}, "repeated") for b in (4, 8, 16, 64)),
        **SHARED,
    ),
)
