"""Counter-based noise: one uniform for each (seed, request, position, node, stream), independent of row, batch and device.

    (w_0, .., w_3) = Philox4x32-10(counter = (request, position, node, stream), key = (seed low, seed high))    (1)
    u              = floor(w_0 / 2^8) / 2^24    in [0, 1), a number of fp32                                     (2)

stream   position                                             node                      decides
COIN     tokens of the sequence, its root included             the draft that is tested  whether it is accepted
PICK     tokens before the one that is emitted                 0                         the token that the target emits
DRAW     as COIN                                               the draft that is drawn   which token it is

A window emits at least one token, so its length identifies it and no coin or draw is used twice; a position is emitted once.
Picks depend on the position alone: naive sampling emits the tokens of plain sampled decoding, whatever is drafted.

Only sums and products of integers below 2^49, shifts and masks: the same bits on every device with int64.
Source: Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (SC 2011), section 3.3; its known answers are tests.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ssmspec_ref.errors import ParameterError

COIN, PICK, DRAW = 0, 1, 2
MASK, HALF = 0xFFFFFFFF, 0xFFFF
MULTIPLIERS, BUMPS, ROUNDS = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85), 10

Words = tuple[Tensor, Tensor, Tensor, Tensor]


def check_seed(seed: int) -> None:
    """Raises: ParameterError for a seed that does not fit 64 bits."""
    if not 0 <= seed < 2**64:
        raise ParameterError(f"seed is {seed}; it must be 0 to 2^64 - 1")


def uniforms(seed: int | Tensor, request: Tensor, position: Tensor, node: Tensor | int, stream: int) -> Tensor:
    """(2), broadcast over request, position and node; fp32. A seed for each request has a last axis of two words."""
    nodes = torch.full_like(request, node, dtype=torch.int64) if isinstance(node, int) else node.long()
    zero = torch.zeros_like(request + position + nodes)
    request, position, nodes = request + zero, position + zero, nodes + zero
    key = seed.unbind(-1) if isinstance(seed, Tensor) else (seed & MASK, seed >> 32)
    words = philox((request, position, nodes, zero + stream), key)
    return (words[0] >> 8).float() * 2.0**-24


def philox(counter: Words, key: Sequence[Any]) -> Words:
    """(1): ten rounds over four words of 32 bits, held in int64."""
    a, b, c, d = (x & MASK for x in counter)
    for i in range(ROUNDS):
        k, m = ((word + i * bump) & MASK for word, bump in zip(key, BUMPS, strict=True))
        (high_a, low_a), (high_c, low_c) = (product(n, x) for n, x in zip(MULTIPLIERS, (a, c), strict=True))
        a, b, c, d = high_c ^ b ^ k, low_c, high_a ^ d ^ m, low_a
    return a, b, c, d


def product(n: int, x: Tensor) -> tuple[Tensor, Tensor]:
    """The upper and lower word of n x, from the halves of x."""
    low, high = n * (x & HALF), n * (x >> 16)
    return (high + (low >> 16)) >> 16, (((high & HALF) << 16) + low) & MASK
