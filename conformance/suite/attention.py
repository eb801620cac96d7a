"""Attention of a window over a cache: a tree or a chain of nodes after the committed slots, and the move of accepted nodes.

    verify_tree   softmax(scale q K^T) V over the committed slots and a node's ancestors; keys are already rotated
    compact       move the accepted nodes' keys and values to the end of the committed slots: bit for bit

Sizes: b rows, t nodes, l slots of the cache before the window, h query heads, g key heads, e channels.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ssmspec_ref import attention, error_bounds, tree
from ssmspec_ref.attention import AttentionParams, KVState
from ssmspec_ref.contract import NumericContract
from ssmspec_ref.shapes import Ancestors, Array, Lengths

from ..cases import Case
from ..judge.draw import DEAD, PLAUSIBLE, Draw, poisoned, stored
from .called import Arguments, pure
from .expected import Expected, allowed, oracles
from .graph.replayed import Replayed
from .options.option import with_options
from .production import EDGES, heads, rows
from .specification import Specification
from .speculate import accepted
from .tables import Beside, Further, case_of, cases_of, divides, sizes_of, unread

BLOCK = 16
"""Slots of the smallest block in which an online softmax may process the cache."""


def drawn(draw: Draw) -> tuple[Array, Array, Lengths, Array]:
    """A cache with room for the window, large values after the committed slots; one row is empty, one is full."""
    b, t, slots = draw.shape("b t l")
    length = draw.rng("length").integers(0, slots + 1, b)
    length[0], length[-1] = slots, 0 if b > 1 else slots
    room = {**draw.sizes, "l": slots + t}
    K, V = (Draw(draw.case, draw.contract, **room).normal(name, "b l g e") for name in "KV")
    return K, V, length, np.arange(slots + t) >= length[:, None]


def draw_verify(case: Case, contract: NumericContract) -> Arguments:
    draw = Draw(case, contract)
    K, V, length, dead = drawn(draw)
    K, V = (draw.unread(x, ~dead) for x in (K, V))
    ancestors = tree.ancestors(draw.parents(resting=True))
    size = {"gentle": 1.0, "sharp": 4.0}[case.family]
    q, k, v = draw.normal("q", "b t h e", size), draw.normal("k", "b t g e"), draw.normal("v", "b t g e")
    scale = None if draw.options["scale"] == "default" else 0.375
    if draw.options["level"] in LEVELS:
        K[~dead, :, 0] = k[..., 0] = 1.0
        sign = np.where(np.arange(len(q)) % 2, -1.0, 1.0)[:, None, None]
        q[..., 0] = stored(sign * LEVELS[draw.options["level"]] / (scale or q.shape[3] ** -0.5), contract.io)
    q, k, v = (draw.unread(x, tree.live(ancestors)) for x in (q, k, v))
    return K, V, length, q, k, v, ancestors, scale


def verify(K: Array, V: Array, length: Lengths, q: Array, k: Array, v: Array, ancestors: Ancestors, scale: Any) -> Array:
    """The oracle: the window is appended, then read node by node."""
    state = attention.append(KVState(K, V, length), k, v, tree.live(ancestors))
    return attention.read(q, state, ancestors, AttentionParams(scale=scale))


def expect_verify(arguments: Arguments, contract: NumericContract, used: Any) -> list[Expected]:
    K, V, length, q, k, v, ancestors, scale = arguments
    live, slots = tree.live(ancestors), K.shape[1]
    state = attention.append(KVState(K, V, length), k, v, live)
    seen = np.zeros((*ancestors.shape[:2], slots), dtype=bool)
    for b, T in enumerate(length):
        seen[b, :, T : T + ancestors.shape[2]] = ancestors[b]
        seen[b, :, :T] |= live[b, :, None]
    seen[~live, 0] = True  # outputs of nodes with nothing to read are not compared
    blocks = -(-slots // BLOCK) + -(-ancestors.shape[1] // BLOCK) + 2
    size = q.shape[3] ** -0.5 if scale is None else scale
    errors = []
    for c in (contract, *oracles(contract)):
        pairs = error_bounds.exact(q, c), error_bounds.exact(state.K, c), error_bounds.exact(state.V, c)
        errors.append(error_bounds.attention(*pairs, seen, size, blocks).store(c.io).error)
    y = verify(*arguments)
    judged = np.broadcast_to(live[..., None, None], y.shape)
    bound = np.where(judged, allowed(errors, contract), 0.0)
    return [Expected("y", "b t h e", y, bound, judged=judged)]


def draw_compact(case: Case, contract: NumericContract) -> Arguments:
    """A cache with a window after the committed slots, and an accepted path."""
    draw = Draw(case, contract)
    K, V, length, dead = drawn(draw)
    _, path = accepted(draw, f"accept {draw.options['tree']} {draw.options['ragged']}", 0, draw.parents())
    if draw.kills:
        rows, nodes = np.nonzero(path >= 0)
        dead[rows, length[rows] + path[rows, nodes]] = False
        K, V = (poisoned(x, ~dead, draw.dead) for x in (K, V))
    return K, V, length, path


def expect_compact(arguments: Arguments, contract: NumericContract, used: Any) -> list[Expected]:
    K, V, length, path = arguments
    after = attention.compact(KVState(K, V, length), path)
    judged = (np.arange(K.shape[1]) < after.length[:, None])[..., None, None]
    zero = np.zeros_like(after.K)
    return [
        Expected(name, "b l g e", x, zero, judged=np.broadcast_to(judged, x.shape))
        for name, x in (("K", after.K), ("V", after.V))
    ]


BASE = {"b": 3, "t": 7, "l": 20, "h": 4, "g": 2, "e": 6}
ROWS = sizes_of("t1", "b1,l70,e33", "h3,g1,t24", "h3,g3,l1", "b2,t65,e16", "b17,t2")
FURTHER = cases_of(
    "b1,l64,t3",
    "b1,h16,g1,t3",
    "b1,t65/tree=vine",
    "b1,l20,t3,h2,g1,e256",
    "b1,l600,t3,h2,g1,e4",
    "b1,t3,h8,g8",
    "b65,t2,l3,h2,g1,e4",
    "b6,t9",
    "b4/level=far",
)
"""A full block of the cache; more than one tile of query heads per key head, of channels, of slots, key heads and rows; paths
past 16 and 32 nodes; many different trees; scores whose exponential does not exist in single precision."""
PRODUCTION: tuple[Further, ...] = (
    *rows({"t": 2, "l": 5, "h": 2, "g": 1, "e": 4}),
    *heads({"e": 4, "l": 5, "t": 2}),
    *(({"b": 1, "t": 3, "l": l, "h": 2, "g": 1, "e": e}, {}, "gentle") for l, e in zip(EDGES, reversed(EDGES), strict=True)),
)
"""Edges of slots and of channels, the ones rising while the others fall."""
MOVES = cases_of(
    "b4,t65/tree=vine,ragged=off,accept=all",
    "b8,g1,e256/tree=vine,ragged=off,accept=all",
    "b8,l300,g1,e4/tree=vine,ragged=off,accept=all",
    "b65,t3,l3,g1,e2",
    "b8,g8,e2/tree=vine,ragged=off,accept=all",
)
"""Paths past 8 and 16 nodes; more than one tile of channels, slots, rows and key heads."""
GAPS: tuple[Further, ...] = (
    *(
        ({"b": 2, "t": t, "l": 5, "g": 1, "e": 2}, {"tree": "vine", "ragged": "off", "accept": "all"}, "gentle")
        for t in (13, 16, 18, 20, 24, 28)
    ),
    case_of("b40,t28,l3,g1,e2/ragged=off,accept=all"),
)
"""Paths of 5 to 10 nodes with gaps, and forty different ones: what is moved in blocks of four or eight leaves a rest, whose
sources may have been moved over."""
ROWS_OF_BATCHES: tuple[Further, ...] = tuple(
    (sizes, Beside({}, also), family)
    for (sizes, _, family), also in zip(
        rows({"t": 3, "l": 3, "g": 1, "e": 2}),
        (
            {},
            {"tree": "chain", "ragged": "off", "accept": "all"},
            {"tree": "star", "accept": "all"},
            {"tree": "star", "accept": "root"},
        ),
        strict=True,
    )
)
FAR_DRAFTS: tuple[Further, ...] = (
    ({"b": 4}, Beside({"level": "far"}, {"tree": "vine", "ragged": "off", "scale": "given"}), "sharp"),
    case_of("b4/level=farther"),
)
"""Scores of one sign, with longer paths and another scale, and of a size that a mask may have."""
LEVELS = {"far": 128.0, "farther": 2.0**14}
"""How far from zero all scores of a row are, above or below: beyond 104 exp is 0 or infinite in single precision, and below
-10000 a score is less than what a mask may have in place of -infinity."""
TREE = {"tree": ("branch", "chain", "star", "vine"), "ragged": ("on", "off")}
SOURCES = {"": "STree, section 3; arXiv:2205.14135, algorithm 1", "tree": "SpecInfer (arXiv:2305.09781), section 4.2"}


def without_queries(sizes: Mapping[str, int]) -> dict[str, int]:
    return {axis: size for axis, size in sizes.items() if axis != "h"}


_VERIFY, _COMPACT = (
    Specification(
        operation="attention.verify_tree",
        base=BASE,
        rows=ROWS,
        options={**TREE, "scale": ("default", "given")},
        families=("gentle", "sharp"),
        further=FURTHER,
        production=(*PRODUCTION, *FAR_DRAFTS, *unread(case_of("b6,t9"))),
        rare={"level": ("near", *LEVELS), **PLAUSIBLE},
        sources=SOURCES,
        draw=draw_verify,
        expect=expect_verify,
        run=pure,
        ok=divides("h", "g"),
    ),
    Specification(
        operation="attention.compact",
        base=without_queries(BASE),
        rows=tuple(map(without_queries, ROWS)),
        options={**TREE, "accept": ("mixed", "all", "root", "none")},
        families=("gentle",),
        further=MOVES,
        production=(*ROWS_OF_BATCHES, *GAPS, *unread(case_of("b6,t9"), **DEAD)),
        rare=DEAD,
        sources=SOURCES,
        draw=draw_compact,
        expect=expect_compact,
        run=pure,
    ),
)
SPECIFICATIONS = tuple(with_options(of, Replayed(cases_of("b5"))) for of in (_VERIFY, _COMPACT))
