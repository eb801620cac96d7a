"""The cases of a recurrence, from its axes and their roles."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from ..production import EDGES, LONGER, every, heads, lengths, rows, tiles
from ..tables import Further, case_of, of_axes

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Table:
    """The axes of a recurrence, and what of its cases does not follow from them.

    b are rows, t tokens, h heads and g their groups, where a recurrence has them; `state` are two axes of the state whose
    sizes need not fit each other. From these follow more rows and tokens than a tile, runs on both sides of chunks, edges of
    heads and of the state, each with the other axes small.

    `base` are the sizes of the plain case, `rows` sizes that differ from it in one thing, `beyond` such as exceed one tile of
    heads or channels, `some` further cases of states, and `longer` of many tokens. `model` are sizes of published models,
    `deepest` cases of the tier deep. `least` are small sizes of axes whose roles do not say them. `heads` are the edges of
    heads, `chunks` the lengths of runs of full chunks, and `narrow` the rows that windows and packed runs have, by default
    those that leave rows and tokens as they are.
    """

    base: Sizes
    rows: tuple[Sizes, ...]
    state: tuple[str, str] | tuple[()] = ()
    beyond: tuple[Further, ...] = ()
    some: tuple[Further, ...] = ()
    longer: tuple[Further, ...] = ()
    model: tuple[Further, ...] = ()
    deepest: tuple[Further, ...] = ()
    least: Sizes = field(default_factory=dict)
    heads: tuple[int, ...] = EDGES
    chunks: tuple[int, ...] = (257, 256)
    narrow: tuple[Sizes, ...] | None = None

    @cached_property
    def tiny(self) -> dict[str, int]:
        """A small state, for long histories."""
        return of_axes(self.base, {"g": 1, "h": 1, **dict(zip(self.state, (2, 3), strict=False)), **self.least})

    @cached_property
    def square(self) -> dict[str, int]:
        """The same with as many states as channels."""
        return self.tiny | dict.fromkeys(self.state, 2)

    @property
    def grouped(self) -> tuple[Sizes, ...]:
        return tuple(row for row in self.rows if not row.keys() & {"b", "t"}) if self.narrow is None else self.narrow

    @property
    def largest(self) -> tuple[Further, ...]:
        """More than one tile of channels, of heads, of rows."""
        small = {"b": 1, "t": 2, **self.square}
        beyond = ((small | dict(sizes), options, family) for sizes, options, family in self.beyond)
        return self._own((*beyond, ({"b": 65, "t": 2, **self.square}, {}, "gentle")))

    @property
    def tiles(self) -> tuple[Further, ...]:
        return (*self.some, case_of("b17,t2"), *self.largest)

    @property
    def further(self) -> tuple[Further, ...]:
        past_a_chunk = lengths({}, self.chunks)
        far_past = lengths(self.square, (520,)) if self.state else ()
        return (*self.tiles, *past_a_chunk, *far_past, *self.longer)

    @property
    def production(self) -> tuple[Further, ...]:
        """Sizes that engines have, apart from lengths."""
        batches = heads(self.tiny, self.heads) if "h" in self.base else rows({**self.tiny, "t": 2})
        edges = tiles(*self.state, {"g": 1, "h": 2}) if self.state else ()
        return self._own((*batches, *edges, *self.model))

    @property
    def runs(self) -> tuple[Further, ...]:
        """Lengths that engines have."""
        return tuple(lengths(self.tiny))

    @property
    def deep(self) -> tuple[Further, ...]:
        """Of the tier deep."""
        edges = every({"g": 1}, tuple(of_axes(self.base, dict.fromkeys(("h", *self.state), 0)))) if self.state else ()
        return self._own((*lengths(self.tiny, LONGER), *edges, *self.deepest))

    def _own(self, cases: Iterable[Further]) -> tuple[Further, ...]:
        """The cases, with the axes that the recurrence has."""
        return tuple((of_axes(self.base, sizes), options, family) for sizes, options, family in cases)
