"""The causal convolution: one input, several inputs, inputs with no-ops, a tree, the commit of accepted inputs."""

from typing import Any

import numpy as np

from ssmspec_ref import conv, error_bounds, tree
from ssmspec_ref.contract import NumericContract
from ssmspec_ref.conv import ConvParams
from ssmspec_ref.shapes import Array, Channels, ConvState, Parents
from ssmspec_ref.tree import paths as tree_paths

from ..cases import Case
from ..judge.draw import DEAD, PLAUSIBLE, Draw, stored
from .called import Arguments, pure
from .expected import Expected, expecting
from .options.on_states import on_states
from .options.option import with_options
from .production import LONGER, lengths, rows, tiles
from .specification import Specification
from .tables import Further, case_of, cases_of, sizes_of, unread, without_tokens, without_tokens_of

BASE = {"b": 2, "t": 7, "c": 6, "w": 4}
ROWS = sizes_of("t1", "w2", "w3,c1", "b1,t33", "b5,t2,w5", "c65")
TILES = cases_of("c130,t2/normal", "c260,t2/normal", "b17,t2/normal", "b65,t2,c2/normal")
"""More than one tile of channels and rows, the largest too."""
SHORT: tuple[Further, ...] = tuple(({"t": t}, {}, "normal") for t in (3, 4, 5))
"""One token fewer than the window has columns, the same number, and one more."""
NARROW = cases_of("b5,w2,t1/normal", "b5,w3,t1/normal", "b5,w3,t2/normal")
"""Runs shorter than a narrower window; kernels have a branch for each width."""
RUNS: tuple[Further, ...] = tuple(({"b": 1, **sizes}, {}, "normal") for sizes in sizes_of("t130", "t256", "t520,c2"))
FURTHER = (*TILES, *SHORT, *NARROW, *RUNS)
"""Sizes with more tokens too; full tiles of tokens."""
PRODUCTION: tuple[Further, ...] = tuple(
    (sizes, {}, "normal")
    for sizes, _, _ in (
        *rows({"t": 2, "c": 3}),
        *tiles("c", "c", {}),
        *lengths({"c": 2}),
    )
)
DEEP_SIZES: tuple[Further, ...] = tuple((sizes, {}, "normal") for sizes, _, _ in lengths({"c": 2}, LONGER))
ALONE = cases_of("b1,t6/normal")
"""A batch whose only row has no window."""
UNREAD = case_of("b6/normal")
"""What is never read: no-ops, padding, what is rejected, and the oldest column of a window that moves."""
OPTIONS = {"bias": ("on", "off"), "act": ("on", "off")}
SIZE = {"normal": 1.0, "wide": 40.0}
"""The scale of inputs: beyond 88 exp overflows in single precision, and the activation reaches its limits."""
SOURCES = {
    "": "arXiv:2312.00752, section 3.4; tile-ai/tilelang-ascend#926",
    "live": "Snakes and Ladders, section 3.1",
    "tree": "STree, section 3",
    "advanced": "Snakes and Ladders, algorithm 2, line 2",
}


def params(draw: Draw) -> ConvParams:
    return ConvParams(
        weight=draw.normal("weight", "c w", draw.sizes["w"] ** -0.5),
        bias=draw.normal("bias", "c") if draw.on("bias") else None,
        activation=draw.on("act"),
    )


def history(draw: Draw, moves: bool = False) -> ConvState:
    """The window after an earlier call: inputs, in the input format. If at least one input `moves` it, its oldest column is
    never read; a pool is compared whole, with slots whose windows do not move."""
    M = draw.normal("M", "b c w", SIZE[draw.case.family])
    dead = moves and draw.kills and draw.options.get("slots", "rows") == "rows"
    return np.where(np.arange(M.shape[2]) == 0, draw.dead, M) if dead else M


def inputs(draw: Draw, axes: str = "b t c") -> Array:
    return draw.normal("u", axes, SIZE[draw.case.family])


def draw_scan(case: Case, contract: NumericContract) -> Arguments:
    draw = Draw(case, contract)
    return history(draw, moves=True), inputs(draw), params(draw)


def draw_step(case: Case, contract: NumericContract) -> Arguments:
    draw = Draw(case, contract)
    return history(draw, moves=True), inputs(draw, "b c"), params(draw)


def draw_masked(case: Case, contract: NumericContract) -> Arguments:
    draw = Draw(case, contract)
    live = draw.live()
    return history(draw), draw.unread(inputs(draw), live), live, params(draw)


def draw_tree(case: Case, contract: NumericContract) -> Arguments:
    draw = Draw(case, contract)
    parents = draw.parents(resting=True)
    u = draw.unread(inputs(draw), parents != tree.PADDING)
    return history(draw, moves=True), u, parents, params(draw)


def draw_commit(case: Case, contract: NumericContract) -> Arguments:
    """Rows that accept everything, only the root, nothing, or something between."""
    draw = Draw(case, contract)
    rows, tokens = draw.shape("b t")
    some = draw.rng("advanced").integers(0, tokens + 1, rows)
    chosen = {"some": some, "all": np.full(rows, tokens), "root": np.ones(rows, dtype=np.int64), "none": np.zeros_like(some)}
    advanced = chosen[draw.options["advanced"]]
    return history(draw), draw.unread(inputs(draw), np.arange(tokens) < advanced[:, None]), advanced


def draw_commit_path(case: Case, contract: NumericContract) -> Arguments:
    """The path to one node of a tree, root first, or none for a row without a window; all other nodes hold large values."""
    draw = Draw(case, contract)
    parents = draw.parents()
    rows, nodes = parents.shape
    path = np.full((rows, nodes), -1, dtype=np.int64)
    live = np.zeros((rows, nodes), dtype=bool)
    for b, ancestors in enumerate(tree.ancestors(parents)):
        last = int(draw.rng(f"last {b}").integers(0, (parents[b] != tree.PADDING).sum()))
        taken = np.flatnonzero(ancestors[last] & ~draw.rests(rows, nodes)[b])
        path[b, : len(taken)], live[b, taken] = taken, True
    return history(draw), draw.unread(inputs(draw), live), path


def along_paths(M: ConvState, u: Channels, parents: Parents, weights: ConvParams) -> tuple[Channels]:
    """The oracle of a tree: the plain convolution along every path."""
    return (tree_paths.scan(lambda state, path: conv.scan(state, path, weights), M, u, tree.ancestors(parents)),)


def bound_scan(M: ConvState, u: Channels, weights: ConvParams, contract: NumericContract) -> Any:
    return error_bounds.conv.scan(M, u, weights, contract)


def bound_step(M: ConvState, u: Array, weights: ConvParams, contract: NumericContract) -> Any:
    """The bound of `step`: that of a scan over one input."""
    y, M_next = error_bounds.conv.scan(M, u[:, None], weights, contract)
    return y[:, 0], M_next


def bound_masked(M: ConvState, u: Channels, live: Array, weights: ConvParams, contract: NumericContract) -> Any:
    return error_bounds.conv.scan(M, u, weights, contract, live)


def bound_tree(M: ConvState, u: Channels, parents: Parents, weights: ConvParams, contract: NumericContract) -> Any:
    return (error_bounds.conv.tree(M, u, tree.ancestors(parents), weights, contract),)


def exactly(oracle: Any) -> Any:
    """The expected output if nothing is computed: the oracle's bits. Inputs that were drawn for another contract, to which a
    fault is compared, may be finer than this one's format."""

    def expect(arguments: Arguments, contract: NumericContract, used: Any) -> list[Expected]:
        value = oracle(*arguments)
        fits = [np.array_equal(stored(a, contract.io), a) for a in (*arguments[:2], value)]
        assert fits[2] or not all(fits[:2])
        return [Expected("M", "b c w", value, np.zeros_like(value), state=True)]

    return expect


def judged_tokens(arguments: Arguments) -> list[Array | None]:
    """y is compared at live inputs, M everywhere."""
    return [arguments[2][:, :, None], None]


def judged_nodes(arguments: Arguments) -> list[Array | None]:
    return [(arguments[2] != tree.PADDING)[:, :, None]]


Y, Y_STEP, M_AFTER = ("y", "b t c", ""), ("y", "b c", ""), ("M", "b c w", "M")
TREE = {"tree": ("branch", "chain", "star", "vine"), "ragged": ("on", "off")}
DEEP = (*TILES, *SHORT, *NARROW, *cases_of("b1,t70/tree=vine/normal", "b6,t9,c2/normal"))
"""Long paths, and more than four rows with different trees."""
WIDE: tuple[Further, ...] = tuple(
    ({"b": 5, "t": 14, "c": 2, "w": w}, {"tree": tree}, "normal") for w, tree in ((5, "vine"), (6, "branch"), (9, "vine"))
)
"""Paths longer than a filter of more than four taps."""


def _specification(name: str, **fields: Any) -> Specification:
    options, dead = fields.pop("options", OPTIONS), fields.pop("dead", PLAUSIBLE)
    plain = Specification(
        operation=f"conv.{name}", base=fields.pop("base", BASE), rows=fields.pop("rows", ROWS), options=options,
        further=fields.pop("further", FURTHER), production=(*fields.pop("production", PRODUCTION), *unread(UNREAD, **dead)),
        deep=fields.pop("deep", DEEP_SIZES), sources=SOURCES, families=("normal", "wide"), run=pure, rare=dead,
        ok=lambda sizes: sizes["w"] >= 2, **fields,
    )  # fmt: skip
    return with_options(plain, *on_states(None, {"c": 2}))


SPECIFICATIONS = (
    _specification(
        "step",
        dead=DEAD,
        base=without_tokens(BASE),
        rows=tuple(row for row in map(without_tokens, ROWS) if row),
        further=without_tokens_of((*TILES, *RUNS)),
        production=without_tokens_of(PRODUCTION),
        deep=without_tokens_of(DEEP_SIZES),
        draw=draw_step,
        expect=expecting(conv.step, bound_step, (Y_STEP, M_AFTER)),
    ),
    _specification("scan", dead=DEAD, draw=draw_scan, expect=expecting(conv.scan, bound_scan, (Y, M_AFTER))),
    _specification(
        "scan_masked",
        options=OPTIONS | {"live": ("holes", "tail", "head")},
        draw=draw_masked,
        expect=expecting(conv.scan_masked, bound_masked, (Y, M_AFTER), judged_tokens),
    ),
    _specification(
        "verify_tree",
        options=OPTIONS | TREE,
        further=DEEP,
        production=(*PRODUCTION, *WIDE),
        draw=draw_tree,
        expect=expecting(along_paths, bound_tree, (Y,), judged_nodes),
    ),
    _specification(
        "commit", options={"advanced": ("some", "all", "root", "none")}, draw=draw_commit, expect=exactly(conv.commit)
    ),
    _specification(
        "commit_path", options=TREE, further=(*DEEP, *ALONE), draw=draw_commit_path, expect=exactly(conv.commit_path)
    ),
)
