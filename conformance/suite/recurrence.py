"""What the three recurrences have in common as operations: one token, a run, a run with no-ops, a tree."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from ssmspec_ref import tree, tree_paths
from ssmspec_ref.contract import NumericContract
from ssmspec_ref.records import along, rows
from ssmspec_ref.shapes import Ancestors, Array, Mask

from ..cases import Case
from ..draw import Draw, poisoned
from .specification import Arguments, Further, Specification, expecting, pure, without_tokens, without_tokens_of
from .speculate import ends, paths

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Recurrence:
    """One recurrence: its definition, its bounds, how its window and parameters are drawn, and the axes of what it gives.

    `definition` is a module of the reference with `step` and `scan`, `bounds` one of the error bounds with `scan` and `tree`.
    `output` is the name of the output and its axes over a window; `state` the axes of S.
    """

    name: str
    definition: Any
    bounds: Any
    window: Callable[[Draw], Any]
    params: Callable[[Draw], Any]
    state: str
    output: tuple[str, str]

    def draw_scan(self, case: Case, contract: NumericContract) -> Arguments:
        draw = Draw(case, contract)
        return draw.state("S", self.state), self.window(draw), self.params(draw)

    def draw_step(self, case: Case, contract: NumericContract) -> Arguments:
        draw = Draw(case, contract, t=1)
        return draw.state("S", self.state), self.window(draw).token(0), self.params(draw)

    def draw_masked(self, case: Case, contract: NumericContract) -> Arguments:
        draw = Draw(case, contract)
        live = draw.live()
        return draw.state("S", self.state), poisoned(self.window(draw), live), self.params(draw), live

    def draw_tree(self, case: Case, contract: NumericContract) -> Arguments:
        draw = Draw(case, contract)
        ancestors = tree.ancestors(draw.parents(resting=True))
        seen = poisoned(self.window(draw), tree.live(ancestors))
        return draw.state("S", self.state), seen, ancestors, self.params(draw)

    def along_paths(self, S: Array, window: Any, ancestors: Ancestors, params: Any) -> tuple[Array]:
        """The oracle of a tree: every path by the plain recurrence."""
        return (tree_paths.scan(lambda state, path: self.definition.scan(state, path, params), S, window, ancestors),)

    def bound_scan(self, S: Array, window: Any, params: Any, *rest: Any) -> Any:
        """The bound of `scan`; `rest` is the mask, where there is one, and the contract."""
        return self.bounds.scan(S, window, params, rest[-1], *rest[:-1])

    def bound_step(self, S: Array, token: Any, params: Any, contract: NumericContract) -> Any:
        """The bound of `step`, as of a run of one token."""
        y, S_next = self.bounds.scan(S, self.one_token(token), params, contract)
        return y[:, 0], S_next

    def bound_tree(self, S: Array, window: Any, ancestors: Ancestors, params: Any, contract: NumericContract) -> Any:
        """The bound of the closed form; under a sequential contract also that of every path taken token by token, since a
        product of decays is wrong by the error of each."""
        closed = self.bounds.tree(S, window, ancestors, params, contract)
        if contract.order != "sequential":
            return (closed,)
        nodes = ancestors.shape[1]
        row, path = paths(ancestors, nodes)
        run, live = along(rows(window, row), path), path >= 0
        stepped, _ = self.bounds.scan(S[row], run, params, contract, live)
        return (replace(closed, error=np.maximum(closed.error, ends(stepped.error, live, nodes))),)

    def one_token(self, token: Any) -> Any:
        """A token as a window: the record of that name, each array with an axis of one token."""
        kind = getattr(self.definition, type(token).__name__.replace("Token", "Window"))
        arrays = {f.name: getattr(token, f.name) for f in fields(token)}
        return kind(**{name: None if a is None else a[:, None] for name, a in arrays.items()})

    def judged(self, live: Mask) -> Array:
        """The outputs that count: those at live tokens."""
        return np.expand_dims(live, tuple(range(2, len(self.output[1].split()))))

    def specifications(
        self,
        base: Sizes,
        rows: tuple[Sizes, ...],
        tiles: tuple[Further, ...],
        further: tuple[Further, ...],
        options: Mapping[str, tuple[str, ...]],
        sources: Mapping[str, str],
        ok: Callable[[Sizes], bool] | None = None,
        rare: Mapping[str, tuple[str, ...]] | None = None,
    ) -> tuple[Specification, ...]:
        """The four operations of the recurrence; `further` are the long runs, `tiles` what a tree takes of them."""
        name, axes = self.output
        y, y_step, S = (name, axes, ""), (name, axes.replace(" t", ""), ""), ("S", self.state, "S")

        def made(operation: str, **given: Any) -> Specification:
            shared: dict[str, Any] = {"base": base, "rows": rows, "further": further, "sources": sources, "run": pure}
            shared |= {"families": ("gentle", "normal", "strong", "wide"), "rare": rare or {}}
            shared |= {} if ok is None else {"ok": ok}
            every = {**options, **given.pop("more", {})}
            return Specification(operation=f"{self.name}.{operation}", options=every, **shared | given)

        definition = self.definition
        return (
            made(
                "step",
                base=without_tokens(base),
                rows=tuple(row for row in map(without_tokens, rows) if row),
                further=without_tokens_of(further),
                draw=self.draw_step,
                expect=expecting(definition.step, self.bound_step, (y_step, S)),
            ),
            made("scan", draw=self.draw_scan, expect=expecting(definition.scan, self.bound_scan, (y, S))),
            made(
                "scan_masked",
                more={"live": ("holes", "tail", "head")},
                draw=self.draw_masked,
                expect=expecting(definition.scan, self.bound_scan, (y, S), lambda a: [self.judged(a[3]), None]),
            ),
            made(
                "verify_tree",
                more={"tree": ("branch", "chain", "star", "vine"), "ragged": ("on", "off")},
                further=(*tiles, ({"b": 1, "t": 65}, {"tree": "vine"}, "gentle"), ({"b": 6, "t": 9}, {}, "gentle")),
                draw=self.draw_tree,
                expect=expecting(self.along_paths, self.bound_tree, (y,), lambda a: [self.judged(tree.live(a[2]))]),
            ),
        )
