"""SSD (Mamba-2): one token, a run, a run with no-ops, a tree."""

from dataclasses import fields
from typing import Any

from ssmspec_ref import error_bounds, ssd, tree, tree_paths
from ssmspec_ref.contract import NumericContract
from ssmspec_ref.shapes import Ancestors, Array, Heads, State
from ssmspec_ref.ssd import SSDParams, SSDWindow

from ..cases import Case
from ..draw import Draw, poisoned
from .specification import Arguments, Further, Specification, divides, expecting, pure, without_tokens, without_tokens_of

BASE = {"b": 2, "t": 7, "g": 2, "h": 6, "p": 5, "n": 4}
ROWS = (
    {"t": 1},
    {"g": 1, "h": 3},
    {"g": 4, "h": 4, "n": 7},
    {"b": 1, "t": 65, "g": 3},
    {"b": 3, "t": 33, "p": 1, "n": 16},
    {"b": 5, "t": 2, "n": 1},
    {"p": 17, "n": 33},
)
TILES: tuple[Further, ...] = (
    ({"b": 1, "t": 3, "g": 1, "h": 2, "p": 64, "n": 128}, {}, "gentle"),
    ({"b": 1, "t": 2, "g": 1, "h": 2, "p": 72, "n": 100}, {}, "gentle"),
    ({"b": 17, "t": 2}, {}, "gentle"),
    ({"g": 3, "h": 18, "p": 8, "n": 8}, {}, "gentle"),
)
"""More than one tile of channels, states, rows and heads; and a square state, whose transpose has its shape."""
FURTHER = (*TILES, ({"b": 1, "t": 257}, {}, "gentle"))
"""And of tokens."""
OPTIONS = {
    "D": ("head", "channel", "off"),
    "z": ("off", "on"),
    "dt_bias": ("on", "off"),
    "softplus": ("on", "off"),
    "dt_limit": ("off", "floor", "finite"),
}
SOURCES = {
    "": "arXiv:2405.21060, section 3",
    "D": "state-spaces/mamba#887",
    "z": "state-spaces/mamba#66",
    "dt_bias": "huggingface/transformers#35943",
    "dt_limit": "huggingface/transformers#48989",
    "live": "Snakes and Ladders, section 3.1",
    "tree": "STree, section 3",
}


def params(draw: Draw) -> SSDParams:
    D = {"head": "h", "channel": "h p", "off": ""}[draw.options["D"]]
    return SSDParams(
        A=draw.rate("A", "h"),
        D=draw.normal("D", D) if D else None,
        dt_bias=draw.step_bias("dt_bias", "h") if draw.on("dt_bias") else None,
        dt_softplus=draw.on("softplus"),
        dt_limit=draw.dt_limit,
    )


def window(draw: Draw) -> SSDWindow:
    return SSDWindow(
        x=draw.normal("x", "b t h p"),
        dt=draw.step("dt", "b t h"),
        B=draw.normal("B", "b t g n"),
        C=draw.normal("C", "b t g n"),
        z=draw.normal("z", "b t h p") if draw.on("z") else None,
    )


def draw_scan(case: Case, contract: NumericContract) -> Arguments:
    draw = Draw(case, contract)
    return draw.state("S", "b h p n"), window(draw), params(draw)


def draw_step(case: Case, contract: NumericContract) -> Arguments:
    draw = Draw(case, contract, t=1)
    return draw.state("S", "b h p n"), window(draw).token(0), params(draw)


def draw_masked(case: Case, contract: NumericContract) -> Arguments:
    draw = Draw(case, contract)
    live = draw.live()
    return draw.state("S", "b h p n"), poisoned(window(draw), live), params(draw), live


def draw_tree(case: Case, contract: NumericContract) -> Arguments:
    draw = Draw(case, contract)
    ancestors = tree.ancestors(draw.parents())
    return draw.state("S", "b h p n"), poisoned(window(draw), tree.live(ancestors)), ancestors, params(draw)


def one_token(token: Any) -> SSDWindow:
    """A token as a window."""
    arrays = {f.name: getattr(token, f.name) for f in fields(token)}
    widened: dict[str, Any] = {name: None if a is None else a[:, None] for name, a in arrays.items()}
    return SSDWindow(**widened)


def along_paths(S: State, window: SSDWindow, ancestors: Ancestors, params: SSDParams) -> tuple[Heads]:
    """The oracle of a tree: every path by the plain recurrence."""
    return (tree_paths.scan(lambda state, path: ssd.scan(state, path, params), S, window, ancestors),)


def bound_scan(S: Array, window: Any, params: Any, *rest: Any) -> Any:
    """The bound of `scan`; `rest` is the mask, where there is one, and the contract."""
    return error_bounds.ssd.scan(S, window, params, rest[-1], *rest[:-1])


def bound_step(S: Array, token: Any, params: Any, contract: NumericContract) -> Any:
    """The bound of `step`, as of a run of one token."""
    y, S_next = error_bounds.ssd.scan(S, one_token(token), params, contract)
    return y[:, 0], S_next


def bound_tree(S: Array, window: Any, ancestors: Ancestors, params: Any, contract: NumericContract) -> Any:
    return (error_bounds.ssd.tree(S, window, ancestors, params, contract),)


def judged_tokens(arguments: Arguments) -> list[Array | None]:
    """y counts at live tokens, S everywhere."""
    return [arguments[3][:, :, None, None], None]


def judged_nodes(arguments: Arguments) -> list[Array | None]:
    return [tree.live(arguments[2])[:, :, None, None]]


Y, Y_STEP, S_AFTER = ("y", "b t h p", ""), ("y", "b h p", ""), ("S", "b h p n", "S")


def _specification(name: str, **fields: Any) -> Specification:
    options = OPTIONS | fields.pop("more", {})
    return Specification(
        operation=f"ssd.{name}", base=fields.pop("base", BASE), rows=fields.pop("rows", ROWS), options=options,
        further=fields.pop("further", FURTHER), sources=SOURCES, families=("gentle", "normal", "strong", "wide"),
        run=pure, ok=divides("h", "g"), **fields,
    )  # fmt: skip


SPECIFICATIONS = (
    _specification(
        "step",
        base=without_tokens(BASE),
        rows=tuple(row for row in map(without_tokens, ROWS) if row),
        further=without_tokens_of(FURTHER),
        draw=draw_step,
        expect=expecting(ssd.step, bound_step, (Y_STEP, S_AFTER)),
    ),
    _specification("scan", draw=draw_scan, expect=expecting(ssd.scan, bound_scan, (Y, S_AFTER))),
    _specification(
        "scan_masked",
        more={"live": ("holes", "tail", "head")},
        draw=draw_masked,
        expect=expecting(ssd.scan, bound_scan, (Y, S_AFTER), judged_tokens),
    ),
    _specification(
        "verify_tree",
        more={"tree": ("branch", "chain", "star", "vine"), "ragged": ("on", "off")},
        further=(*TILES, ({"b": 1, "t": 65}, {"tree": "vine"}, "gentle")),
        draw=draw_tree,
        expect=expecting(along_paths, bound_tree, (Y,), judged_nodes),
    ),
)
