"""Packed prompts of many lengths: each sequence starts from its own state, or from zeros, never from another's state.

`scan_packed(S, run, bounds, fresh, params) -> y, S`: the run has one row, and sequence b has its tokens bounds[b] ..
bounds[b + 1] - 1; it starts from S[b], or from zeros if `fresh`. An empty sequence keeps its state, or has zeros
if `fresh`.

Sizes: b sequences, of t tokens, 1, about t / 2, none, and so on in turn; with `lengths=gaps` none, t, none, none, 1, about
t / 2, none; with `lengths=whole` all have t tokens; with `lengths=edges` those of `BESIDE_EDGES` that are at most t, in turn.
"""

from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from ssmspec_ref.contract import NumericContract
from ssmspec_ref.records import each
from ssmspec_ref.shapes import Array

from ...cases import Case
from ...judge.draw import DEAD, Draw
from ..called import Arguments, pure
from ..expected import Expected, allowed, oracles
from ..graph.replayed import replayed
from ..options.on_states import on_states
from ..options.option import with_options
from ..production import rows
from ..specification import Specification
from ..tables import Further, case_of, cases_of, sizes_of, unread
from ..weights_used import in_place
from .recurrence import Recurrence

BESIDE_EDGES = (16, 1, 32, 0, 64, 17, 8, 0, 15, 31, 128, 4, 2, 33, 63, 3, 127, 9, 65, 7)
"""Lengths on both sides of each power of two, in no order: full chunks come first, between others and before shorter ones;
of the two empty sequences the second is fresh."""


def lengths(sequences: int, tokens: int, way: str = "turns") -> Array:
    """The number of tokens of each sequence, from the sizes and the option only."""
    some = tokens // 2 + 1
    edges = tuple(n for n in BESIDE_EDGES if n <= tokens)
    turns = {"turns": (tokens, 1, some, 0), "gaps": (0, tokens, 0, 0, 1, some, 0), "whole": (tokens,), "edges": edges}[way]
    return np.array([turns[b % len(turns)] for b in range(sequences)])


class Packed:
    """One recurrence over packed runs."""

    def __init__(self, of: Recurrence) -> None:
        self.of = of

    def draw(self, case: Case, contract: NumericContract) -> Arguments:
        draw = Draw(case, contract)
        way = draw.options["lengths"]
        counts = lengths(draw.sizes["b"], draw.sizes["t"], way)
        every_third = np.arange(len(counts)) % 3 == (0 if way == "whole" else 1)
        if replayed(case):  # in each call other lengths, of as many tokens
            counts, every_third = np.roll(counts, case.seed), np.roll(every_third, case.seed)
        fresh = every_third & ((counts > 0) | (way == "edges")) & (draw.options["fresh"] == "some")
        S, bounds = draw.state("S", self.of.state), np.concatenate([[0], np.cumsum(counts)])
        S = np.where(fresh.reshape(-1, *[1] * (S.ndim - 1)), draw.dead, S) if draw.kills else S
        run = self.of.window(Draw(case, contract, b=1, t=int(bounds[-1])))
        return S, run, bounds, fresh, self.of.params(draw)

    def expect(self, arguments: Arguments, contract: NumericContract, used: Any) -> list[Expected]:
        """Run every sequence separately."""
        S, run, bounds, fresh, params = in_place(arguments, used, contract)
        contracts = (contract, *oracles(contract))
        after, wrong = np.where(fresh.reshape(-1, *[1] * (S.ndim - 1)), 0.0, S), np.zeros_like(S)
        outputs, errors = [], []
        for b, window in sequences(run, bounds):
            begin = after[b : b + 1]
            y, S_next = self.of.definition.scan(begin, window, params)
            pairs = [self.of.bounds.scan(begin, window, params, c) for c in contracts]
            outputs.append(y)
            errors.append(allowed([pair[0].error for pair in pairs], contract))
            after[b], wrong[b] = S_next[0], allowed([pair[1].error for pair in pairs], contract)[0]
        (name, axes), y, error = self.of.output, np.concatenate(outputs, axis=1), np.concatenate(errors, axis=1)
        return [Expected(name, axes, y, error), Expected("S", self.of.state, after, wrong, state=True, recurrent=True)]

    @cached_property
    def specification(self) -> Specification:
        table, tiny = self.of.table, self.of.table.tiny
        plain = Specification(
            operation=f"{self.of.name}.scan_packed",
            base={**table.base, "b": 5},
            rows=(*sizes_of("b1,t65", "b3,t33", "t1"), *table.grouped),
            options={"fresh": ("some", "none"), **self.of.options},
            rare={"lengths": ("turns", "gaps", "whole", "edges"), **DEAD},
            families=("gentle", "normal", "strong", "wide"),
            sources={**self.of.sources, "fresh": "bug class SLOT-SCOPE"},
            draw=self.draw,
            expect=self.expect,
            run=pure,
            ok=self.of.ok,
            further=(*FURTHER, *table.largest),
            production=(
                *table.production,
                *rows({**tiny, "t": 3}),
                *whole(tiny, (63, 127, 128)),
                ({**tiny, "b": len(BESIDE_EDGES), "t": 128}, {"lengths": "edges"}, "gentle"),
                *DEAD_STATES,
                ({**tiny, "b": 11, "t": 2}, {"lengths": "edges", "slots": "apart"}, "gentle"),
            ),
            deep=(*table.deep, *whole(tiny, (129, 255, 511, 512))),
        )
        return with_options(plain, *on_states(self.of.state, tiny))


def sequences(run: Any, bounds: Array) -> Iterator[tuple[int, Any]]:
    """Index and window of every sequence with tokens."""
    for b, (start, end) in enumerate(pairwise(bounds)):
        if end > start:
            yield b, each(lambda a, cut=slice(int(start), int(end)): a[:, cut], run)


def whole(small: Mapping[str, int], edges: tuple[int, ...]) -> Iterator[Further]:
    """Two sequences with the given numbers of tokens."""
    return (({**small, "b": 2, "t": t}, {"lengths": "whole"}, "gentle") for t in edges)


FURTHER = cases_of(
    "b2,t150",
    "b17,t9",
    "b1,t256",
    "b3,t64/lengths=whole",
    "b2,t256/lengths=whole",
    "b7,t9/lengths=gaps",
    "b70,t2",
    "b1,t9/lengths=whole",
)
"""More than two chunks; many sequences; full chunks, also in the middle of a run; empty sequences first, last and adjacent; a
single sequence, which is new."""
DEAD_STATES = unread(case_of("b5,t9"), **DEAD)
"""What a new sequence finds in its slot is never read."""
packed = cache(Packed)
"""One for each recurrence."""


def specifications(kind: Recurrence) -> tuple[Specification, ...]:
    """The operation on packed runs of a recurrence that is tested without layers."""
    return (packed(kind).specification,) if kind.alone else ()
