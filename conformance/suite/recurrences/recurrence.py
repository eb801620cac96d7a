"""The common operations of all recurrences: one token, several tokens, tokens with no-ops, a tree."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from ssmspec_ref import tree
from ssmspec_ref.contract import NumericContract
from ssmspec_ref.conv import ConvParams
from ssmspec_ref.layers.mixer import Mixer, MixerInputs
from ssmspec_ref.records import along, rows
from ssmspec_ref.shapes import Ancestors, Array, Mask
from ssmspec_ref.tree import paths as tree_paths

from ...cases import Case
from ...judge.draw import PLAUSIBLE, Draw
from ..called import Arguments, pure
from ..expected import expecting
from ..kinds.weights import Kind
from ..options.on_states import on_states
from ..options.option import with_options
from ..specification import Specification
from ..tables import Further, case_of, cases_of, unread, without_tokens, without_tokens_of
from .paths import ends, paths
from .table import Sizes, Table

DEAD_TOKENS = unread(case_of("gentle"), case_of("b3/live=tail"), case_of("b3/live=head"))
DEAD_NODES = unread(case_of("b6,t9"))
"""No-ops between, after and before real tokens; trees of several sizes, and rows without one."""


@dataclass(frozen=True, eq=False)
class Recurrence:
    """One recurrence: its definition, its bounds, how window and parameters are drawn, the axes of its outputs, its table.

    `definition` is a module of the reference with `step` and `scan`, `bounds` one of the error bounds with `scan` and `tree`.
    `output` is the name of the output and its axes over a window; `state` the axes of S; `layers` are the kinds of layers
    with this recurrence. If `alone` is given, packed prompts and windows are tested too. `alone` makes, from a window and
    parameters, a mixer whose convolution passes its inputs through, and these inputs. `parts` gives the parts of a mixer's
    channels of the convolution, if its heads can be cut apart by rank: how many heads or groups each has, and their width.
    """

    name: str
    definition: Any
    bounds: Any
    window: Callable[[Draw], Any]
    params: Callable[[Draw], Any]
    state: str
    output: tuple[str, str]
    table: Table
    options: Mapping[str, tuple[str, ...]]
    sources: Mapping[str, str]
    ok: Callable[[Sizes], bool] = lambda sizes: True
    rare: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    layers: tuple[Kind, ...] = ()
    alone: Callable[[Any, Any], tuple[Mixer, MixerInputs]] | None = None
    parts: Callable[[Any], tuple[tuple[int, int], ...]] | None = None

    def draw_scan(self, case: Case, contract: NumericContract) -> Arguments:
        draw = Draw(case, contract)
        return draw.state("S", self.state), self.window(draw), self.params(draw)

    def draw_step(self, case: Case, contract: NumericContract) -> Arguments:
        draw = Draw(case, contract, t=1)
        return draw.state("S", self.state), self.window(draw).token(0), self.params(draw)

    def draw_masked(self, case: Case, contract: NumericContract) -> Arguments:
        draw = Draw(case, contract)
        live = draw.live()
        return draw.state("S", self.state), draw.unread(self.window(draw), live), self.params(draw), live

    def draw_tree(self, case: Case, contract: NumericContract) -> Arguments:
        draw = Draw(case, contract)
        ancestors = tree.ancestors(draw.parents(resting=True))
        seen = draw.unread(self.window(draw), tree.live(ancestors))
        return draw.state("S", self.state), seen, ancestors, self.params(draw)

    def along_paths(self, S: Array, window: Any, ancestors: Ancestors, params: Any) -> tuple[Array]:
        """The oracle of a tree: the plain recurrence along every path."""
        return (tree_paths.scan(lambda state, path: self.definition.scan(state, path, params), S, window, ancestors),)

    def bound_scan(self, S: Array, window: Any, params: Any, *rest: Any) -> Any:
        """The bound of `scan`; `rest` is the mask, if there is one, and the contract."""
        return self.bounds.scan(S, window, params, rest[-1], *rest[:-1])

    def bound_step(self, S: Array, token: Any, params: Any, contract: NumericContract) -> Any:
        """The bound of `step`: that of a scan over one token."""
        y, S_next = self.bounds.scan(S, self.one_token(token), params, contract)
        return y[:, 0], S_next

    def bound_tree(self, S: Array, window: Any, ancestors: Ancestors, params: Any, contract: NumericContract) -> Any:
        """The bound of the closed form; for a sequential contract the larger of it and that of every path token by token,
        because a product of decays has the error of each."""
        closed = self.bounds.tree(S, window, ancestors, params, contract)
        if contract.order != "sequential":
            return (closed,)
        nodes = ancestors.shape[1]
        row, path = paths(ancestors, nodes)
        run, live = along(rows(window, row), path), path >= 0
        stepped, _ = self.bounds.scan(S[row], run, params, contract, live)
        return (replace(closed, error=np.maximum(closed.error, ends(stepped.error, live, nodes))),)

    def one_token(self, token: Any) -> Any:
        """A token as a window: the record of that name, each array with a token axis of length one."""
        kind = getattr(self.definition, type(token).__name__.replace("Token", "Window"))
        arrays = {f.name: getattr(token, f.name) for f in fields(token)}
        return kind(**{name: None if a is None else a[:, None] for name, a in arrays.items()})

    def judged(self, live: Mask) -> Array:
        """Which outputs are compared: those at live tokens."""
        return np.expand_dims(live, tuple(range(2, len(self.output[1].split()))))

    @cached_property
    def specifications(self) -> tuple[Specification, ...]:
        """The four operations of the recurrence."""
        table = self.table
        name, axes = self.output
        y, y_step, S = (name, axes, ""), (name, axes.replace(" t", ""), ""), ("S", self.state, "S")

        def made(operation: str, **given: Any) -> Specification:
            shared: dict[str, Any] = {
                "base": table.base,
                "rows": table.rows,
                "further": table.further,
                "sources": self.sources,
                "run": pure,
            }
            shared |= {"production": (*table.production, *table.runs), "deep": table.deep}
            shared |= {"families": ("gentle", "normal", "strong", "wide"), "rare": self.rare, "ok": self.ok}
            every = {**self.options, **given.pop("more", {})}
            plain = Specification(operation=f"{self.name}.{operation}", options=every, **shared | given)
            return with_options(plain, *on_states(self.state, table.tiny))

        definition = self.definition
        return (
            made(
                "step",
                base=without_tokens(table.base),
                rows=tuple(row for row in map(without_tokens, table.rows) if row),
                further=without_tokens_of(table.further),
                production=without_tokens_of(table.production),
                deep=without_tokens_of(table.deep),
                draw=self.draw_step,
                expect=expecting(definition.step, self.bound_step, (y_step, S)),
            ),
            made("scan", draw=self.draw_scan, expect=expecting(definition.scan, self.bound_scan, (y, S))),
            made(
                "scan_masked",
                more={"live": ("holes", "tail", "head")},
                production=(*table.production, *table.runs[1:3], *DEAD_TOKENS),
                rare={**self.rare, **PLAUSIBLE},
                draw=self.draw_masked,
                expect=expecting(definition.scan, self.bound_scan, (y, S), lambda a: [self.judged(a[3]), None]),
            ),
            made(
                "verify_tree",
                more={"tree": ("branch", "chain", "star", "vine"), "ragged": ("on", "off")},
                production=(*table.production, *paths_of(table.tiny, (63, 64)), *DEAD_NODES),
                rare={**self.rare, **PLAUSIBLE},
                deep=(*table.production, *paths_of(table.tiny, (127, 128, 129))),
                further=(*table.tiles, *cases_of("b1,t65/tree=vine", "b6,t9")),
                draw=self.draw_tree,
                expect=expecting(self.along_paths, self.bound_tree, (y,), lambda a: [self.judged(tree.live(a[2]))]),
            ),
        )


def paths_of(small: Sizes, nodes: tuple[int, ...]) -> tuple[Further, ...]:
    """Trees of long paths."""
    return tuple(({"b": 1, **small, "t": t}, {"tree": "vine"}, "gentle") for t in nodes)


def beside(*parts: Array) -> Array:
    """Inputs of a convolution, concatenated along the channels."""
    return np.concatenate([a.reshape(*a.shape[:2], -1) for a in parts], axis=2)


def handing_on(pre: Array) -> ConvParams:
    """A convolution that passes its inputs through unchanged: the filter (0, 1)."""
    channels = pre.shape[2]
    return ConvParams(np.stack([np.zeros(channels), np.ones(channels)], axis=1), None, False)
