"""Counter-based noise: one uniform for each (seed, request, position, node, stream), independent of row, batch and device.

    (w_0, .., w_3) = Philox4x32-10(counter = (request, position, node, stream), key = (seed low, seed high))    (1)
    u              = floor(w_0 / 2^8) / 2^24    in [0, 1), a number of fp32                                     (2)

stream   position                                             node                      decides
COIN     tokens of the sequence, its root included             the draft that is tested  whether it is accepted
PICK     tokens before the one that is emitted                 0                         the token that the target emits
DRAW     as COIN                                               the draft that is drawn   which token it is

A window emits at least one token, so its length identifies it and no coin or draw is used twice; a position is emitted once.
Picks depend on the position alone: naive sampling emits the tokens of plain sampled decoding, whatever is drafted.

Only integers of 64 bits, whose products are taken modulo 2^64: the same bits on every device. With (a, b, c, d) the words
before a round, M its multipliers and k its keys,

    a' = high(M_1 c) ^ b ^ k_0,   b' = low(M_1 c),   c' = high(M_0 a) ^ d ^ k_1,   d' = low(M_0 a)              (3)

so a round takes a, c, a, c, .. and b, d, b, d, .. to one row less of the same: five operations for all words.
Source: Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (SC 2011), section 3.3; its known answers are tests.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ssmspec_ref.errors import ParameterError

COIN, PICK, DRAW = 0, 1, 2
MASK = 0xFFFFFFFF
MULTIPLIERS, BUMPS, ROUNDS = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85), 10

Words = tuple[Tensor, Tensor, Tensor, Tensor]


def check_seed(seed: int) -> None:
    """Raises: ParameterError for a seed that does not fit 64 bits."""
    if not 0 <= seed < 2**64:
        raise ParameterError(f"seed is {seed}; it must be 0 to 2^64 - 1")


def uniforms(seed: int | Tensor, request: Tensor, position: Tensor, node: Tensor | int, stream: int) -> Tensor:
    """(2), broadcast over request, position and node; fp32. A seed for each request has a last axis of two words."""
    key = seed.unbind(-1) if isinstance(seed, Tensor) else (seed & MASK, seed >> 32)
    words = philox((request, position, number(node, request), number(stream, position)), key)
    return (words[0] >> 8).float() * 2.0**-24


def number(n: Tensor | int, like: Tensor) -> Tensor:
    """A tensor of integers, or a number in a tensor of one element."""
    return n.long() if isinstance(n, Tensor) else constant((n,), like.device).view((1,) * like.dim())


@cache
def constant(numbers: Sequence[int], device: torch.device) -> Tensor:
    """Kept for good, because a graph cannot copy from the host, and reads it wherever it was recorded."""
    return torch.tensor(numbers, dtype=torch.int64).to(device)


def philox(counter: Words, key: Sequence[Any]) -> Words:
    """(1): ten rounds (3) over four words of 32 bits, held in int64."""
    a, b, c, d = torch.broadcast_tensors(*counter)  # type: ignore[no-untyped-call]
    rows, ones, device = ROUNDS + 2, (1,) * a.dim(), a.device
    left, right = (alternating(pair, rows) & MASK for pair in ((a, c), (b, d)))
    keys, many = keys_of(key, left), constant(MULTIPLIERS[::-1] * (rows // 2), device).view(rows, *ones)
    for i in range(ROUNDS):
        rows -= 1
        products = left[1:] * many[:rows]
        left, right = ((products >> 32) ^ right[:rows] ^ keys[i, :rows]) & MASK, products
    right = right & MASK
    return left[0], right[0], left[1], right[1]


def keys_of(key: Sequence[Any], like: Tensor) -> Tensor:
    """The keys k_0, k_1, k_0, .. of every round, for all its rows."""
    ones = (1,) * (like.dim() - 1)
    if isinstance(key[0], Tensor):
        words = torch.broadcast_tensors(*key, like[0])[:2]  # type: ignore[no-untyped-call]
        bumps = tuple(i * BUMPS[n % 2] for i in range(ROUNDS) for n in range(len(like)))
        return (alternating(words, len(like)) + constant(bumps, like.device).view(ROUNDS, len(like), *ones)) & MASK
    numbers = tuple((key[n % 2] + i * BUMPS[n % 2]) & MASK for i in range(ROUNDS) for n in range(len(like)))
    return constant(numbers, like.device).view(ROUNDS, len(like), *ones)


def alternating(pair: Sequence[Tensor], rows: int) -> Tensor:
    """The two in turn, as the rows of one tensor."""
    return torch.stack([pair[n % 2].long() for n in range(rows)])
