"""Greedy acceptance from logits, as engines decide it, and the positions of the nodes of a tree.

    greedy_logits(tokens, parents, logits, budget, eos) -> tokens, path, advanced, ended
    positions(length, parents) -> positions

The choice at a node is its largest logit, the lowest token where several are equal. Logits of bf16 models are often equal; an
implementation that takes another of them, or whichever comes first, emits other tokens in another batch. With `ties=none` one
logit is the largest, by one step of the input format; with `ties=some` it has equals. The position of a node is the length of
its sequence and its depth. Everything is an integer and compared with ==. Sizes: b rows, t nodes, i tokens.
"""

from typing import Any

import numpy as np

from ssmspec_ref import tree
from ssmspec_ref.accept import greedy
from ssmspec_ref.contract import UNIT_ROUNDOFF, NumericContract
from ssmspec_ref.shapes import Array

from ...cases import Case
from ...judge.draw import PLAUSIBLE, Draw, stored
from .. import acceptance
from ..called import Arguments
from ..expected import Expected
from ..specification import Specification
from ..tables import Beside, Further, case_of, cases_of, sizes_of, unread

TOP, LARGE = 3.0, 9
"""The largest logit of a node; rows of a small batch."""


def draw_logits(case: Case, contract: NumericContract) -> Arguments:
    """The choices of greedy acceptance as logits: the chosen token at `TOP`, others below, or later tokens at `TOP` too."""
    plain = Case("acceptance.greedy", case.sizes, {**case.options, "ids": "near"}, case.family, case.seed)
    tokens, parents, choice, budget, eos = acceptance.draw_greedy(plain, contract)
    draw = Draw(case, contract)
    rng, (b, t, i) = draw.rng("logits"), draw.shape("b t i")
    logits = stored(np.minimum(rng.standard_normal((b, t, i)), 2.5), contract.io)
    if case.family == "masked":
        logits[rng.random(logits.shape) < 0.33] = -np.inf
    chosen = np.arange(i) == choice[..., None]
    other = rng.integers(0, i, (b, t))[..., None]
    near = np.arange(i) == other
    if draw.options["ties"] == "some":
        logits[rng.random(logits.shape) < 0.5] = TOP
        before = np.arange(i) < choice[..., None]
        logits = np.where(before & (logits == TOP), 1.0, logits)
    else:
        logits = np.where(near, TOP * (1 - 2 * UNIT_ROUNDOFF[contract.io] * 2 / 3), logits)
    logits = np.where(chosen, TOP, logits)
    if case.family == "masked":  # in a large batch, rows without a logit above 0
        logits[LARGE::2] = stored(logits[LARGE::2] - 2 * TOP, contract.io)
    return tokens, parents, draw.unread(logits, parents != tree.PADDING), budget, eos


def expect_logits(arguments: Arguments, contract: NumericContract, used: Any) -> list[Expected]:
    tokens, parents, logits, budget, eos = arguments
    choice = greedy.choices(np.where((parents == tree.PADDING)[..., None], 0.0, logits))
    return acceptance.expect_greedy((tokens, parents, choice, budget, eos), contract, used)


def draw_positions(case: Case, contract: NumericContract) -> Arguments:
    draw = Draw(case, contract)
    return draw.rng("length").integers(0, 1 << 20, draw.sizes["b"]), draw.parents(resting=True)


def expect_positions(arguments: Arguments, contract: NumericContract, used: Any) -> list[Expected]:
    """Node by node: the root is at the length, every other node one after its parent."""
    length, parents = arguments
    found: Array = np.zeros(parents.shape)
    for b, row in enumerate(parents):
        for node, parent in enumerate(row):
            found[b, node] = length[b] if parent < 0 else found[b, parent] + 1
    return [Expected("positions", "b t", found, np.zeros(found.shape), judged=parents != tree.PADDING)]


TIES = {"ties": ("none", "some")}
FURTHER = cases_of(
    "b30,t4,i300/ties=some/normal",
    "b12,t3,i5000/ties=some/normal",
    "b12,t3,i5000/normal",
    "b60,i9/tree=chain,ragged=off,ties=some/normal",
)
"""Ties over one block of a vocabulary and over several."""
ROWS_OF_BATCHES: tuple[Further, ...] = (
    case_of("b4,t4/ties=some/normal"),
    ({"b": 8, "t": 4}, Beside({"ties": "some"}, {"eos": "some", "budget": "any"}), "normal"),
    ({"b": 16, "t": 4}, Beside({"ties": "some"}, {"tree": "star", "ragged": "off", "budget": "any"}), "normal"),
    ({"b": 64, "t": 4}, Beside({}, {"tree": "vine", "eos": "some", "budget": "any"}), "masked"),
)
BUDGETS = case_of("b60,i12/tree=chain,ragged=off,budget=any/normal")
DEAD_NODES = unread(case_of("b12,t6/normal"))
WIDE = cases_of("b65,t3/normal", "b4,t65/tree=vine/normal")
SHARED: dict[str, Any] = {"run": acceptance.run}

SPECIFICATIONS = (
    Specification(
        operation="acceptance.greedy_logits",
        base=acceptance.BASE,
        rows=acceptance.ROWS,
        options={**acceptance.OPTIONS, **TIES},
        families=("normal", "masked"),
        sources={**acceptance.SOURCES, "ties": "bug class GREEDY"},
        draw=draw_logits,
        expect=expect_logits,
        further=FURTHER,
        production=(*ROWS_OF_BATCHES, BUDGETS, *DEAD_NODES),
        rare={"budget": ("some", "any"), **PLAUSIBLE},
        **SHARED,
    ),
    Specification(
        operation="attention.positions",
        base={"b": 6, "t": 9},
        rows=sizes_of("t1", "b1,t33", "b17,t4", "b4,t8", "b64,t2", "b7,t6", "b3"),
        options={"tree": ("branch", "chain", "star", "vine"), "ragged": ("on", "off")},
        families=("normal",),
        sources={"": "STree, section 3", "tree": "bug class TREE-TOPO"},
        draw=draw_positions,
        expect=expect_positions,
        further=WIDE,
        **SHARED,
    ),
)
