"""Sizes and histories that engines have, as cases of the tiers standard and deep: rows of a batch, edges of tiles, long runs.

A kernel cuts an axis into tiles whose sizes are powers of two; what goes wrong does so on one side of such a size. Each edge
occurs in at least one case, together with an edge of another axis that is small where it is large (a cover, not a product).
Groups are two where two divide the heads, which is what most models have, and otherwise the largest divisor of them up to 43.
"""

from collections.abc import Iterator, Mapping

from .tables import Further

ROWS = (4, 8, 16, 64)
"""Rows of a batch that the tables lack: multiples of 4."""
EDGES = (8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129)
"""Both sides of each power of two from 16 to 128."""
MORE = (1, 2, 3, 4, 5, 7, 8, 9, *EDGES[1:])
"""And of the smaller ones."""
LENGTHS = (63, 64, 127, 128)
"""Tokens of a run, on the sides of each power of two that the tables lack."""
LONGER = (3, 4, 5, 8, 9, 15, 16, 17, 31, 32, 129, 255, 511, 512, 513, 1023, 1024)
HISTORY: dict[str, int] = {"b": 2, "t": 5, "j": 130}
"""130 windows and 650 tokens of each row: past a count of calls in 7 bits and a cursor of a byte, many turns of any ring."""
SETTLED = {"accept": "all", "read": "last"}


def heads(small: Mapping[str, int], edges: tuple[int, ...] = EDGES) -> Iterator[Further]:
    """Edges of heads, in turn with the rows of a batch; the other axes are small."""
    for number, h in enumerate(edges):
        g = 2 if h % 2 == 0 else max(d for d in range(1, 44) if h % d == 0)
        yield {"b": (1, *ROWS)[number % 5] if h < 64 else 1 + number % 3, "t": 2, **small, "h": h, "g": g}, {}, "gentle"


def tiles(first: str, second: str, small: Mapping[str, int], edges: tuple[int, ...] = EDGES) -> Iterator[Further]:
    """Edges of two axes of the state, the one rising while the other falls."""
    for one, other in zip(edges, reversed(edges), strict=True):
        yield {"b": 1, "t": 2, **small, first: one, second: other}, {}, "gentle"


def rows(
    small: Mapping[str, int], edges: tuple[int, ...] = ROWS, options: Mapping[str, str] | None = None
) -> Iterator[Further]:
    for b in edges:
        yield {**small, "b": b}, options or {}, "gentle"


def lengths(small: Mapping[str, int], edges: tuple[int, ...] = LENGTHS) -> Iterator[Further]:
    for t in edges:
        yield {"b": 1, **small, "t": t}, {}, "gentle"


def every(small: Mapping[str, int], axes: tuple[str, ...], edges: tuple[int, ...] = MORE) -> Iterator[Further]:
    """Of the tier deep: each pair of an edge of one axis and an edge of another, with one of each further axis."""
    count = len(edges)
    for at, first in enumerate(axes):
        for second in axes[at + 1 :]:
            for i, one in enumerate(edges):
                for j in range(i % 3, count, 3):
                    yield {"b": 1, "t": 1 + (i + j) % 3, **small, first: one, second: edges[j]}, {}, "gentle"
