"""The gated delta rule: one token, a run, a run with no-ops, a tree; the gate per head, or per key channel."""

from dataclasses import fields
from typing import Any

import numpy as np

from ssmspec_ref import delta, error_bounds, tree, tree_paths
from ssmspec_ref.contract import NumericContract
from ssmspec_ref.delta import DeltaParams, DeltaWindow
from ssmspec_ref.shapes import Ancestors, Array, DeltaState, Values

from ..cases import Case
from ..draw import Draw, poisoned, stored
from .specification import Arguments, Further, Specification, divides, expecting, pure, without_tokens, without_tokens_of

BASE = {"b": 2, "t": 7, "g": 2, "h": 4, "k": 5, "v": 3}
ROWS = (
    {"t": 1},
    {"g": 1, "h": 3},
    {"g": 3, "h": 3, "v": 7},
    {"b": 1, "t": 65},
    {"b": 5, "t": 2, "k": 1},
    {"k": 16, "v": 9, "t": 33},
)
TILES: tuple[Further, ...] = (
    ({"b": 1, "t": 3, "g": 1, "h": 2, "k": 128, "v": 128}, {}, "gentle"),
    ({"b": 1, "t": 2, "g": 1, "h": 2, "k": 72, "v": 100}, {}, "gentle"),
    ({"b": 17, "t": 2}, {}, "gentle"),
    ({"g": 3, "h": 18, "k": 8, "v": 8}, {}, "gentle"),
    ({"k": 16, "v": 9}, {}, "wide"),
)
"""More than one tile of channels, rows and heads; a square state, whose transpose has its shape; and small keys in
more than one channel."""
FURTHER = (*TILES, ({"b": 1, "t": 257}, {}, "gentle"))
"""And of tokens."""
OPTIONS = {"gate": ("head", "channel"), "l2_norm": ("on", "off"), "scale": ("default", "given"), "beta": ("one", "two")}
SOURCES = {
    "": "arXiv:2412.06464, equation 10",
    "gate": "Kimi Linear, section 3",
    "l2_norm": "flash-linear-attention#885",
    "live": "Snakes and Ladders, section 3.1",
    "tree": "STree, section 3",
}
GATE = {"normal": 0.3, "gentle": 0.005, "strong": 20.0, "wide": 0.3}
"""The size of the log decay."""


def params(draw: Draw) -> DeltaParams:
    return DeltaParams(scale=None if draw.options["scale"] == "default" else 0.75, l2_norm=draw.on("l2_norm"))


def window(draw: Draw) -> DeltaWindow:
    """Tokens; keys have norm about 1 where the layer does not normalise them, so that the state stays bounded."""
    size = 1.0 if draw.on("l2_norm") else draw.sizes["k"] ** -0.5
    k = draw.normal("k", "b t g k", size)
    if not draw.on("l2_norm"):
        k = stored(k / np.maximum(1.0, np.linalg.norm(k, axis=-1, keepdims=True)), draw.contract.io)
    gate = draw.normal("gate", "b t h" if draw.options["gate"] == "head" else "b t h k")
    beta = 1 / (1 + np.exp(-draw.normal("beta", "b t h")))
    q = draw.normal("q", "b t g k")
    if draw.case.family == "wide":
        q, k = small(draw, "q", q), small(draw, "k", k)
    return DeltaWindow(
        q=q,
        k=k,
        v=draw.normal("v", "b t h v"),
        g=stored(-GATE[draw.case.family] * np.abs(gate), draw.contract.io),
        beta=stored((2 if draw.options["beta"] == "two" else 1) * beta, draw.contract.io),
    )


def small(draw: Draw, name: str, a: Array) -> Array:
    """Vectors scaled by 1 to 1e-4, those of the last token's first head by 0: eps keeps their direction finite."""
    scale = 10.0 ** draw.rng(f"{name} scale").uniform(-4.0, 0.0, a.shape[:3])
    scale[:, -1, 0] = 0.0
    return stored(a * scale[..., None] + 0.0, draw.contract.io)


def draw_scan(case: Case, contract: NumericContract) -> Arguments:
    draw = Draw(case, contract)
    return draw.state("S", "b h k v"), window(draw), params(draw)


def draw_step(case: Case, contract: NumericContract) -> Arguments:
    draw = Draw(case, contract, t=1)
    return draw.state("S", "b h k v"), window(draw).token(0), params(draw)


def draw_masked(case: Case, contract: NumericContract) -> Arguments:
    draw = Draw(case, contract)
    live = draw.live()
    return draw.state("S", "b h k v"), poisoned(window(draw), live), params(draw), live


def draw_tree(case: Case, contract: NumericContract) -> Arguments:
    draw = Draw(case, contract)
    ancestors = tree.ancestors(draw.parents())
    return draw.state("S", "b h k v"), poisoned(window(draw), tree.live(ancestors)), ancestors, params(draw)


def one_token(token: Any) -> DeltaWindow:
    """A token as a window."""
    arrays = {f.name: getattr(token, f.name) for f in fields(token)}
    widened: dict[str, Any] = {name: None if a is None else a[:, None] for name, a in arrays.items()}
    return DeltaWindow(**widened)


def along_paths(S: DeltaState, window: DeltaWindow, ancestors: Ancestors, params: DeltaParams) -> tuple[Values]:
    """The oracle of a tree: every path by the plain recurrence."""
    return (tree_paths.scan(lambda state, path: delta.scan(state, path, params), S, window, ancestors),)


def bound_scan(S: Array, window: Any, params: Any, *rest: Any) -> Any:
    """The bound of `scan`; `rest` is the mask, where there is one, and the contract."""
    return error_bounds.delta.scan(S, window, params, rest[-1], *rest[:-1])


def bound_step(S: Array, token: Any, params: Any, contract: NumericContract) -> Any:
    """The bound of `step`, as of a run of one token."""
    y, S_next = error_bounds.delta.scan(S, one_token(token), params, contract)
    return y[:, 0], S_next


def bound_tree(S: Array, window: Any, ancestors: Ancestors, params: Any, contract: NumericContract) -> Any:
    return (error_bounds.delta.tree(S, window, ancestors, params, contract),)


def judged_tokens(arguments: Arguments) -> list[Array | None]:
    """o counts at live tokens, S everywhere."""
    return [arguments[3][:, :, None, None], None]


def judged_nodes(arguments: Arguments) -> list[Array | None]:
    return [tree.live(arguments[2])[:, :, None, None]]


O, O_STEP, S_AFTER = ("o", "b t h v", ""), ("o", "b h v", ""), ("S", "b h k v", "S")


def _specification(name: str, **fields: Any) -> Specification:
    options = OPTIONS | fields.pop("more", {})
    return Specification(
        operation=f"delta.{name}", base=fields.pop("base", BASE), rows=fields.pop("rows", ROWS), options=options,
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
        expect=expecting(delta.step, bound_step, (O_STEP, S_AFTER)),
    ),
    _specification("scan", draw=draw_scan, expect=expecting(delta.scan, bound_scan, (O, S_AFTER))),
    _specification(
        "scan_masked",
        more={"live": ("holes", "tail", "head")},
        draw=draw_masked,
        expect=expecting(delta.scan, bound_scan, (O, S_AFTER), judged_tokens),
    ),
    _specification(
        "verify_tree",
        more={"tree": ("branch", "chain", "star", "vine"), "ragged": ("on", "off")},
        further=(*TILES, ({"b": 1, "t": 65}, {"tree": "vine"}, "gentle")),
        draw=draw_tree,
        expect=expecting(along_paths, bound_tree, (O,), judged_nodes),
    ),
)
