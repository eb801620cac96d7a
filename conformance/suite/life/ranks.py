"""A layer's states cut apart by tensor-parallel rank, and put together again: indices only, no values are computed.

The channels of the convolution are several parts in a row: x | B | C of Mamba-2, q | k | v of the delta rule. Each part
is a number of heads or groups of the same width, and every rank holds a piece of each part:

    rank r of R holds blocks r n // R .. of the n blocks of a part: n / R of them, or one if R > n        (1)

so a contiguous piece of all channels is wrong, and if there are more ranks than groups, R / n ranks in a row hold the same
group. S is cut by heads, which are never replicated.
"""

import numpy as np

from ssmspec_ref.shapes import Array

Parts = tuple[tuple[int, int], ...]
"""The parts of the channels of a convolution: the number of heads or groups of each, and their width."""
RANKS = {"ranks": ("one", "one_and_few", "one_and_heads", "few_and_heads")}
"""The ranks of the first server and of the second: one, the fewest that the heads and groups allow, or one for each head."""


def of_servers(way: str, parts: Parts, heads: int) -> tuple[int, ...]:
    """The ranks of both servers; none if layers are not cut by rank."""
    few = next((r for r in range(2, heads + 1) if heads % r == 0 and fit(parts, r)), 1)
    number = {"one": 1, "few": few, "heads": heads}
    names = way.split("_and_")
    return tuple(number[name] for name in names) if len(names) == 2 else ()


def fit(parts: Parts, ranks: int) -> bool:
    """Whether every part is divided evenly, or every block of it held by the same number of ranks."""
    return all(count % ranks == 0 or ranks % count == 0 for count, _ in parts)


def channels(parts: Parts, ranks: int) -> Array:
    """Which channels each rank holds, in its order: an array (ranks, channels of a rank), (1)."""
    found: list[Array] = []
    start = 0
    for count, width in parts:
        blocks = np.arange(ranks)[:, None] * count // ranks + np.arange(max(1, count // ranks))
        found.append((start + blocks[..., None] * width + np.arange(width)).reshape(ranks, -1))
        start += count * width
    return np.concatenate(found, axis=1)


def cut(state: tuple[Array, ...], parts: Parts, ranks: int) -> tuple[Array, ...]:
    """M and S of a sequence (1 ..), cut apart: the ranks are the first axis."""
    M, S = state
    return M[0, channels(parts, ranks)], S.reshape(ranks, S.shape[1] // ranks, *S.shape[2:])


def joined(state: tuple[Array, ...], parts: Parts) -> tuple[Array, ...]:
    """M and S of all ranks as those of the sequence (1 ..); of a group that several ranks hold, that of the last."""
    M, S = state
    whole = np.empty((1, sum(count * width for count, width in parts), M.shape[2]), M.dtype)
    for rank, held in enumerate(channels(parts, len(M))):
        whole[0, held] = M[rank]
    return whole, S.reshape(1, -1, *S.shape[2:])
