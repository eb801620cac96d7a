"""The selective scan (Mamba-1): one token, a run, a run with no-ops, a tree."""

from dataclasses import fields
from typing import Any

from ssmspec_ref import error_bounds, selective, tree, tree_paths
from ssmspec_ref.contract import NumericContract
from ssmspec_ref.selective import SelectiveParams, SelectiveWindow
from ssmspec_ref.shapes import Ancestors, Array, ChannelState, Inners

from ..cases import Case
from ..draw import Draw, poisoned
from .specification import Arguments, Further, Specification, expecting, pure, without_tokens, without_tokens_of

BASE = {"b": 2, "t": 7, "d": 6, "n": 4}
ROWS = ({"t": 1}, {"d": 1, "n": 7}, {"b": 1, "t": 65}, {"b": 5, "t": 2, "n": 1}, {"d": 33, "n": 16})
TILES: tuple[Further, ...] = (
    ({"d": 130, "n": 16, "t": 3}, {}, "gentle"),
    ({"b": 17, "t": 2}, {}, "gentle"),
    ({"d": 8, "n": 8}, {}, "gentle"),
    ({"d": 3, "n": 72, "t": 3}, {}, "gentle"),
)
"""More than one tile of channels, states, tokens and rows; and a square state, whose transpose has its shape."""
FURTHER = (*TILES, ({"b": 1, "t": 257}, {}, "gentle"))
"""And of tokens."""
OPTIONS = {"D": ("on", "off"), "z": ("off", "on"), "dt_bias": ("on", "off"), "softplus": ("on", "off")}
SOURCES = {
    "": "arXiv:2312.00752, algorithm 2",
    "D": "state-spaces/mamba#887",
    "dt_bias": "tenstorrent/tt-metal#9910",
    "live": "Snakes and Ladders, section 3.1",
    "tree": "STree, section 3",
}


def params(draw: Draw) -> SelectiveParams:
    return SelectiveParams(
        A=draw.rate("A", "d n"),
        D=draw.normal("D", "d") if draw.on("D") else None,
        dt_bias=draw.step_bias("dt_bias", "d") if draw.on("dt_bias") else None,
        dt_softplus=draw.on("softplus"),
    )


def window(draw: Draw) -> SelectiveWindow:
    return SelectiveWindow(
        x=draw.normal("x", "b t d"),
        dt=draw.step("dt", "b t d"),
        B=draw.normal("B", "b t n"),
        C=draw.normal("C", "b t n"),
        z=draw.normal("z", "b t d") if draw.on("z") else None,
    )


def draw_scan(case: Case, contract: NumericContract) -> Arguments:
    draw = Draw(case, contract)
    return draw.state("S", "b d n"), window(draw), params(draw)


def draw_step(case: Case, contract: NumericContract) -> Arguments:
    draw = Draw(case, contract, t=1)
    return draw.state("S", "b d n"), window(draw).token(0), params(draw)


def draw_masked(case: Case, contract: NumericContract) -> Arguments:
    draw = Draw(case, contract)
    live = draw.live()
    return draw.state("S", "b d n"), poisoned(window(draw), live), params(draw), live


def draw_tree(case: Case, contract: NumericContract) -> Arguments:
    draw = Draw(case, contract)
    ancestors = tree.ancestors(draw.parents())
    return draw.state("S", "b d n"), poisoned(window(draw), tree.live(ancestors)), ancestors, params(draw)


def one_token(token: Any) -> SelectiveWindow:
    """A token as a window."""
    arrays = {f.name: getattr(token, f.name) for f in fields(token)}
    widened: dict[str, Any] = {name: None if a is None else a[:, None] for name, a in arrays.items()}
    return SelectiveWindow(**widened)


def along_paths(S: ChannelState, window: SelectiveWindow, ancestors: Ancestors, params: SelectiveParams) -> tuple[Inners]:
    """The oracle of a tree: every path by the plain recurrence."""
    return (tree_paths.scan(lambda state, path: selective.scan(state, path, params), S, window, ancestors),)


def bound_scan(S: Array, window: Any, params: Any, *rest: Any) -> Any:
    """The bound of `scan`; `rest` is the mask, where there is one, and the contract."""
    return error_bounds.selective.scan(S, window, params, rest[-1], *rest[:-1])


def bound_step(S: Array, token: Any, params: Any, contract: NumericContract) -> Any:
    """The bound of `step`, as of a run of one token."""
    y, S_next = error_bounds.selective.scan(S, one_token(token), params, contract)
    return y[:, 0], S_next


def bound_tree(S: Array, window: Any, ancestors: Ancestors, params: Any, contract: NumericContract) -> Any:
    return (error_bounds.selective.tree(S, window, ancestors, params, contract),)


def judged_tokens(arguments: Arguments) -> list[Array | None]:
    """y counts at live tokens, S everywhere."""
    return [arguments[3][:, :, None], None]


def judged_nodes(arguments: Arguments) -> list[Array | None]:
    return [tree.live(arguments[2])[:, :, None]]


Y, Y_STEP, S_AFTER = ("y", "b t d", ""), ("y", "b d", ""), ("S", "b d n", "S")


def _specification(name: str, **fields: Any) -> Specification:
    options = OPTIONS | fields.pop("more", {})
    return Specification(
        operation=f"selective.{name}", base=fields.pop("base", BASE), rows=fields.pop("rows", ROWS), options=options,
        further=fields.pop("further", FURTHER), sources=SOURCES, families=("gentle", "normal", "strong", "wide"),
        run=pure, **fields,
    )  # fmt: skip


SPECIFICATIONS = (
    _specification(
        "step",
        base=without_tokens(BASE),
        rows=tuple(row for row in map(without_tokens, ROWS) if row),
        further=without_tokens_of(FURTHER),
        draw=draw_step,
        expect=expecting(selective.step, bound_step, (Y_STEP, S_AFTER)),
    ),
    _specification("scan", draw=draw_scan, expect=expecting(selective.scan, bound_scan, (Y, S_AFTER))),
    _specification(
        "scan_masked",
        more={"live": ("holes", "tail", "head")},
        draw=draw_masked,
        expect=expecting(selective.scan, bound_scan, (Y, S_AFTER), judged_tokens),
    ),
    _specification(
        "verify_tree",
        more={"tree": ("branch", "chain", "star", "vine"), "ragged": ("on", "off")},
        further=(*TILES, ({"b": 1, "t": 65}, {"tree": "vine"}, "gentle")),
        draw=draw_tree,
        expect=expecting(along_paths, bound_tree, (Y,), judged_nodes),
    ),
)
