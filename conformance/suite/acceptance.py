"""Acceptance: which path of a tree of drafts is accepted, and what is emitted, decided by given noise.

Everything is an integer and is compared with ==. Distributions are multiples of 2^-24 that sum to one, so that they are exact
in fp32 and as fractions. A row is compared only if no decision of the exact rule is within 2^-16 of its threshold, because an
implementation may add in any order, and in fp32.

Sizes: b rows, t nodes, i tokens of the vocabulary.
"""

from fractions import Fraction
from typing import Any

import numpy as np

from ssmspec_ref.accept import UniformDice, greedy, stop
from ssmspec_ref.accept.draft_tree import unpadded
from ssmspec_ref.accept.emitted import Emitted
from ssmspec_ref.accept.sampled import sampled
from ssmspec_ref.contract import Capability, NumericContract
from ssmspec_ref.shapes import Array
from ssmspec_ref.tree import PADDING

from ..cases import Case
from ..judge.draw import DEAD, Draw, poisoned
from .called import Arguments, Came
from .expected import Expected
from .graph.replayed import Replayed
from .options.option import with_options
from .specification import Specification
from .tables import Beside, Further, case_of, cases_of, sizes_of, unread

GRID = 2**24
NEAR, BESIDE = Fraction(1, 2**16), 2**11
OUTPUTS = (("tokens", "b t"), ("path", "b t"), ("advanced", "b"), ("ended", "b"))


def draw_rows(draw: Draw) -> tuple[Array, Array, Array, tuple[int, ...]]:
    """Trees of tokens, budgets (every third one ends the run or is spent already), and the end-of-sequence tokens."""
    rng, (b, t, i) = draw.rng("rows"), draw.shape("b t i")
    parents = draw.parents()
    budget = np.where(np.arange(b) % 3 == 1, rng.integers(0, 3, b), t + 1)
    eos = {"none": (), "some": (0, i // 2), "many": tuple(range(1, i, 2)), "turned": (i - 1, 0, i // 2, 1)}[
        draw.options["eos"]
    ]
    tokens = rng.integers(0, i, (b, t))
    return tokens, parents, rng.integers(0, t + 2, b) if draw.options["budget"] == "any" else budget, eos


def draw_greedy(case: Case, contract: NumericContract) -> Arguments:
    """Choices that agree with a child at two of three nodes, and in every fourth row at all nodes. With `ids=far` token ids
    go up to 2^17, and choices that differ from a child are 2^8 or 2^16 above it; with `ids=large` they lie above 2^24, and
    choices that differ are one above or below: equal where they are converted to single precision."""
    draw = Draw(case, contract)
    tokens, parents, budget, eos = draw_rows(draw)
    rng = draw.rng("choice")
    far = draw.rng("far").choice([2**8, 2**16], (2, *tokens.shape))
    if draw.options["ids"] == "large":  # even, where neighbours round to themselves or to it
        tokens, far[1] = LARGE_ID + 4 * tokens, draw.rng("beside").choice([-1, 1], tokens.shape)
    if draw.options["ids"] == "far":
        tokens = tokens + far[0]
    choice = rng.integers(0, draw.sizes["i"], tokens.shape)
    agree = (rng.random(tokens.shape) < 0.67) | (np.arange(len(tokens)) % 4 == 3)[:, None]
    for b, row in enumerate(parents):
        for node, parent in enumerate(row):
            if parent >= 0 and agree[b, node]:
                choice[b, parent] = tokens[b, node]
            elif parent >= 0 and draw.options["ids"] != "near":
                choice[b, parent] = tokens[b, node] + far[1, b, node]
    return tokens, parents, choice, budget, eos


def draw_sampled(case: Case, contract: NumericContract) -> Arguments:
    """Drafts drawn from q, targets near it, and noise on the fp32 grid; of every sixteen rows some have a `Kind`."""
    draw = Draw(case, contract)
    tokens, parents, budget, eos = draw_rows(draw)
    rng, shape = draw.rng("laws"), draw.shape("b t i")
    q = on_grid(rng.gamma(0.7, size=shape) + 1e-3)
    p = on_grid(q * rng.choice([0.1, 0.5, 1.2, 1.5, 3.0], shape) + 1e-3 * rng.random(shape))
    kinds = np.resize(Kind.EACH, len(tokens))
    for x in (p, q):
        x[kinds == Kind.CUT] = cut(x)[kinds == Kind.CUT]
    for b, row in enumerate(parents):
        for node in range(1, shape[1]):
            if row[node] >= 0:
                left = q[b, row[node]].copy()
                if case.options["law"] == "without_replacement":
                    left[tokens[b, 1:node][row[1:node] == row[node]]] *= 0.5 if kinds[b] == Kind.TWINS else 1e-6
                tokens[b, node] = rng.choice(shape[2], p=left / left.sum())
    coins, picks = (rng.integers(0, GRID, tokens.shape) / GRID for _ in range(2))
    if draw.options["noise"] == "ends":
        p = np.where(draw.rng("cut").random((*tokens.shape, 1)) < 0.5, cut(p), p)
        ends = draw.rng("ends").choice([0.0, 1 - 1 / GRID, np.nan], (2, *tokens.shape))
        coins, picks = (np.where(np.isnan(end), u, end) for end, u in zip(ends, (coins, picks), strict=True))
    for b, kind in enumerate(kinds):
        for child, parent in first_children(parents[b]):
            x = tokens[b, child]
            if kind == Kind.SURE:
                p[b, parent] = np.arange(shape[2]) == x
            if kind == Kind.NEAR:
                ratio = p[b, parent, x] / (1.0 if case.options["law"] == "point_mass" else q[b, parent, x])
                beside = np.round(ratio * GRID) + (BESIDE if coins[b, child] < 0.5 else -BESIDE)
                coins[b, child] = np.clip(beside, 0, GRID - 1) / GRID
    if draw.kills:
        live = parents != PADDING
        p, q, coins, picks = (poisoned(x, live, draw.dead) for x in (p, q, coins, picks))
        q = np.full_like(q, draw.dead) if case.options["law"] in WITHOUT_Q else q
    return tokens, parents, p, q, coins, picks, budget, eos, case.options["law"]


class Kind:
    """Special rows: all first children are certain; coins are 2^-13 away from the ratio that they decide; distributions are
    cut to their larger half, as by top-k; siblings without replacement contain duplicates."""

    OTHER, SURE, NEAR, CUT, TWINS = range(5)
    EACH = (OTHER, OTHER, OTHER, SURE, NEAR, CUT, TWINS, OTHER, OTHER, OTHER, TWINS, OTHER, TWINS, OTHER, TWINS, OTHER)
    """The kinds, in turn, of sixteen rows."""


def cut(law: Array) -> Array:
    """The larger half of the tokens of each distribution."""
    half = np.sort(law, axis=2)[..., -(law.shape[2] + 1) // 2, None]
    return on_grid(np.where(law >= half, law, 0.0))


def first_children(parents: Array) -> list[tuple[int, int]]:
    """Every node that is the first child of its parent, with the parent."""
    return [(node, int(p)) for node, p in enumerate(parents) if p >= 0 and not np.any(parents[:node] == p)]


def on_grid(weight: Array) -> Array:
    """Weights over the last axis as distributions: multiples of 2^-24 that sum to one."""
    counts = np.floor(weight / weight.sum(axis=2, keepdims=True) * GRID)
    most = counts.argmax(axis=2)[..., None]
    missing = GRID - counts.sum(axis=2, keepdims=True)
    np.put_along_axis(counts, most, np.take_along_axis(counts, most, axis=2) + missing, axis=2)
    return counts / GRID


class Measuring(UniformDice):
    """Dice that record how near a decision was to its threshold. A token without weight is no threshold: it is never drawn,
    at either end of the noise."""

    nearest = Fraction(1)

    def bern(self, p: Any, node: int) -> bool:
        self.nearest = min(self.nearest, abs(Fraction(p) - Fraction(self.coins[node])) if 0 < p < 1 else Fraction(1))
        return super().bern(p, node)

    def pick(self, weights: Any, node: int) -> int:
        *edges, total = np.cumsum([Fraction(w) for w in weights])
        turns = (edge for edge in edges if 0 < edge < total)
        self.nearest = min([self.nearest, *(abs(edge - Fraction(self.picks[node])) for edge in turns)])
        return super().pick(weights, node)


def expect_greedy(arguments: Arguments, contract: NumericContract, used: Any) -> list[Expected]:
    tokens, parents, choice, budget, eos = arguments
    trees = [unpadded(*row) for row in zip(tokens, parents, strict=True)]
    runs = [greedy.walk(tree, choice[b, : len(tree)].tolist()) for b, tree in enumerate(trees)]
    return emitted(runs, tokens.shape[1], budget, eos, np.ones(len(runs), dtype=bool))


def expect_sampled(arguments: Arguments, contract: NumericContract, used: Any) -> list[Expected]:
    tokens, parents, p, q, coins, picks, budget, eos, law = arguments
    runs, clear = [], []
    for b, row in enumerate(zip(tokens, parents, strict=True)):
        tree = unpadded(*row)
        dice = Measuring(*([Fraction(float(u)) for u in noise[b, : len(tree)]] for noise in (coins, picks)))
        runs.append(sampled(tree, law, fractions(p[b, : len(tree)]), fractions(q[b, : len(tree)]), dice))
        clear.append(dice.nearest > NEAR)
    return emitted(runs, tokens.shape[1], budget, eos, np.array(clear))


def fractions(rows: Array) -> list[list[Fraction]]:
    return [[Fraction(float(x)) for x in row] for row in rows]


def emitted(runs: list[Emitted], nodes: int, budget: Array, eos: tuple[int, ...], clear: Array) -> list[Expected]:
    """The runs after cutting, padded with -1."""
    cuts = [stop.cut(run, (), stop.Stop(frozenset(eos)), int(left)) for run, left in zip(runs, budget, strict=True)]
    values = [np.full((len(runs), nodes), -1.0), np.full((len(runs), nodes), -1.0), np.zeros(len(runs)), np.zeros(len(runs))]
    for b, (run, finish) in enumerate(cuts):
        values[0][b, : len(run.tokens)], values[1][b, : len(run.path)] = run.tokens, run.path
        values[2][b], values[3][b] = len(run.tokens), finish is not None
    masks = [clear[:, None], clear[:, None], clear, clear]
    return [
        Expected(name, axes, value, np.zeros_like(value), judged=np.broadcast_to(mask, value.shape), whole=True)
        for (name, axes), value, mask in zip(OUTPUTS, values, masks, strict=True)
    ]


def run(capability: Capability, arguments: Arguments) -> Came:
    """Integers and flags, compared as numbers."""

    def number(a: Any) -> Any:
        return a.astype(np.float64) if isinstance(a, np.ndarray) and a.dtype.kind in "iub" else a

    came = capability.run(*arguments)
    return Came(tuple(map(number, came if isinstance(came, tuple) else (came,))))


BASE = {"b": 6, "t": 7, "i": 11}
ROWS = sizes_of("t1", "b2,t24,i5", "b1,t33", "b3,i300", "b17,t4")
OPTIONS = {"tree": ("branch", "chain", "star", "vine"), "ragged": ("on", "off"), "eos": ("none", "some")}
SOURCES = {
    "": "SpecInfer (arXiv:2305.09781), section 4.3; arXiv:2211.17192, algorithm 1",
    "tree": "STree, section 5",
    "eos": "bug class STOP",
}


RARE = {"eos": ("many", "turned"), "budget": ("some", "any")}
WITHOUT_Q = ("point_mass", "naive")
"""Rules that do not read the distributions of drafts."""
LAWS = ("without_replacement", "iid", "point_mass", "naive")
SIBLINGS = tuple(
    ({"b": 60, "t": t, "i": i}, {"tree": "star", "ragged": "off", "law": law}, "normal")
    for law in LAWS
    for t, i in ((6, 4), (5, 9), (8, 6))
)
"""Many rejections followed by siblings, over few tokens, so that each rejection changes the rest considerably."""


DEEP = cases_of("b4,t24,i5/tree=chain,ragged=off/normal", "b4,t70,i5/tree=chain,ragged=off/normal")
"""Paths of 24 and 70 nodes that are accepted to their ends."""
BRANCHES = cases_of("b60,t7,i3/ragged=off/normal")
"""Duplicate siblings at every depth, with and without children."""
ENDS = cases_of("b60,t7,i4/tree=chain,ragged=off,eos=some/normal")
"""Half of all tokens end a sequence, often before a budget that the run reaches as well."""
CUTS = cases_of(
    "b60,t12,i3/tree=vine,ragged=off,budget=any/normal", "b60,i12/tree=chain,ragged=off,eos=many,budget=any/normal"
)
"""Budgets of every size; several tokens that end a sequence."""
WIDE = cases_of("b8,t70,i300/tree=star,ragged=off/normal", "b130,t4/normal", "b30,i5/ids=far/normal")
"""Many children; many rows; token ids that are equal when truncated to a narrow integer."""
IDS = case_of("b30,i5/ids=large/normal")
"""Token ids that are equal when rounded to single precision."""
LARGE_ID = 2**25
"""From here on single precision has every fourth integer."""
MANY = cases_of("b12,t40,i6/tree=star,ragged=off,law=point_mass/normal", "b2,t4,i4000/ragged=off/normal", "b130,t4/normal")
"""Many children, a larger vocabulary, many rows."""
EDGES: tuple[Further, ...] = tuple(
    ({"b": 60, "t": t, "i": 5}, {"tree": tree, "ragged": "off", "law": law, "noise": "ends"}, "normal")
    for law in LAWS
    for t, tree in ((6, "star"), (4, "chain"))
)
"""Noise of 0 and of 1 - 2^-24, in rows whose first and last tokens often have no weight."""


TURNED = case_of("b60,i9/tree=chain,ragged=off,eos=turned/normal")
"""Tokens that end a sequence, in no order."""
STOPS: tuple[Further, ...] = (
    case_of("b4,t4/normal"),
    ({"b": 8, "t": 4}, Beside({}, {"eos": "turned", "budget": "any", "law": "point_mass", "noise": "ends"}), "normal"),
    (
        {"b": 16, "t": 4},
        Beside({}, {"tree": "star", "eos": "many", "budget": "any", "law": "iid", "noise": "ends"}),
        "normal",
    ),
    ({"b": 64, "t": 6}, Beside({}, {"tree": "vine", "ragged": "off", "eos": "turned", "budget": "any"}), "normal"),
)
"""Rows of a batch; tokens that end a sequence, and budgets of every size, in trees."""
PRODUCTION: tuple[Further, ...] = (*STOPS, TURNED)
LARGE: tuple[Further, ...] = tuple(
    ({"b": b, "t": 3, "i": i}, {"tree": "chain", "ragged": "off", "law": law, "noise": "ends"}, "normal")
    for law in LAWS
    for b, i in ((30, 300), (6, 4000))
)
"""Noise at its ends over vocabularies of which a sum in single precision may end below it."""


DEAD_NODES = unread(*(({"b": 12, "t": 6}, {"law": law}, "normal") for law in LAWS), **DEAD)
"""The rows of padding are never read, nor the distributions of drafts where the rule does not ask for them."""


def _specification(name: str, draw: Any, expect: Any, **given: Any) -> Specification:
    shared: dict[str, Any] = {
        "base": BASE,
        "rows": ROWS,
        "options": OPTIONS,
        "families": ("normal",),
        "sources": SOURCES,
        "run": run,
    }
    plain = Specification(operation=f"acceptance.{name}", draw=draw, expect=expect, **shared | given)
    trees = tuple(({"b": 5}, {"budget": "any", "tree": tree}, "normal") for tree in ("branch", "chain"))
    return with_options(plain, Replayed(trees))


SPECIFICATIONS = (
    _specification(
        "greedy",
        draw_greedy,
        expect_greedy,
        further=(*BRANCHES, *ENDS, *DEEP, *CUTS, *WIDE),
        production=(*PRODUCTION, IDS),
        rare=RARE | {"ids": ("near", "far", "large")},
    ),
    _specification(
        "sampled",
        draw_sampled,
        expect_sampled,
        options={**OPTIONS, "law": LAWS},
        further=(*SIBLINGS, *DEEP, *ENDS, *CUTS, *MANY, *EDGES),
        production=(*PRODUCTION, *LARGE, *DEAD_NODES),
        rare=RARE | {"noise": ("inside", "ends")} | DEAD,
    ),
)
