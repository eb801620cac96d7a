"""Which rows of weights and which channels of the state each program of the one-launch step owns: equal bytes for all.

    quads      4 channels of the state each: their rows of x and z, and their states        (1)
    early      rows of B, C and dt, which every program needs, so that they are formed first   (2)
    out        rows of the output projection                                                  (3)
    head       rows of the output head                                                        (4)

A program with one quad fewer has 8 rows and 2 kB of states fewer, so it takes more of (2) and (3).
"""

from itertools import pairwise
from typing import NamedTuple

D, INNER, HEADS, STATE, VOCABULARY = 2560, 5120, 80, 128, 50288
CONV = INNER + 2 * STATE
OUT = INNER + CONV + HEADS
QUADS, EARLY = INNER // 4, 2 * STATE + HEADS


class Share(NamedTuple):
    """Half-open ranges, in the order in which the kernel reads them."""

    quad0: int
    quad1: int
    early0: int
    early1: int
    out0: int
    out1: int
    head0: int
    head1: int

    @property
    def bytes(self) -> int:
        """Of a layer: what the program reads through its ring."""
        rows = 8 * (self.quad1 - self.quad0) + self.early1 - self.early0
        return 2 * D * rows + 2 * INNER * (self.out1 - self.out0) + 16 * STATE * (self.quad1 - self.quad0)


def dealt(total: int, each: list[int]) -> list[tuple[int, int]]:
    """Consecutive ranges of these lengths. Raises: ValueError unless they cover `total` exactly."""
    ends = [0]
    for length in each:
        ends.append(ends[-1] + length)
    if ends[-1] != total:
        raise ValueError(f"the shares have {ends[-1]} rows of {total}; deal every row exactly once")
    return list(pairwise(ends))


def shares(programs: int = 132) -> list[Share]:
    """The share of each program. Raises: ValueError for a number of programs other than an H200's 132."""
    if programs != 132:
        raise ValueError(f"the shares are dealt for the 132 multiprocessors of an H200; this device has {programs}")
    bounds = [QUADS * c // programs for c in range(programs + 1)]
    few = [c for c in range(programs) if bounds[c + 1] - bounds[c] == 9]
    early = dealt(EARLY, [4 if c in few[:36] else 2 for c in range(programs)])
    out = dealt(D, [21 if c in few[:12] else 20 if c in few else 19 for c in range(programs)])
    head = [(VOCABULARY * c // programs, VOCABULARY * (c + 1) // programs) for c in range(programs)]
    return [Share(bounds[c], bounds[c + 1], *early[c], *out[c], *head[c]) for c in range(programs)]
