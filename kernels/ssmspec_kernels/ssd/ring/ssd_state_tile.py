"""Tiles of an SSD state for windows of up to 16 tokens: how programs share them, and halves of n in registers and memory.

The heads of a group of one row are stored one after the other, in tiles of 16 channels. A program owns a run of them, which
may end within a head. Its length is chosen so that the programs fill whole rounds of the device. With short runs, programs
that run at the same time read and write one stretch of memory.

A half of a tile is loaded as rows of the state, whole cache lines, through shared memory, and is kept in registers in
the layout of a product's accumulators and operands: its columns are permuted as in `mma_tile`, where a lane's four of 16 are
adjacent.
"""

import triton
import triton.language as tl

from ...shared.mma_tile import memory_rows, permuted, to_memory
from ...shared.tuning import H200

MOST_TOKENS = 16
CHANNELS = 16
SMS = H200["ssd_state_tile"]["sms"]
"""Multiprocessors of an H200."""
RESIDENT = H200["ssd_state_tile"]["resident"]
"""Programs that an H200 holds at once: 8 an SM, by their registers."""
LONGEST = H200["ssd_state_tile"]["longest"]


def has_many_tiles(b: int, h: int, p: int) -> bool:
    """Whether there are so many tiles that the last round of programs does not matter; then stores need no eviction hint."""
    return b * h * triton.cdiv(p, CHANNELS) >= H200["ssd_state_tile"]["many_rounds"] * RESIDENT


def tiles_per_program(b: int, h: int, of_group: int, p: int) -> int:
    """Tiles of a program: a whole head with many rounds; otherwise few full rounds, where starting a program costs one
    tile."""
    head = triton.cdiv(p, CHANNELS)
    if has_many_tiles(b, h, p):
        return head

    def time(run: int) -> int:
        programs = b * (h // of_group) * triton.cdiv(of_group * head, run)
        return triton.cdiv(programs, RESIDENT) * (run + 1)

    return min(range(1, LONGEST + 1), key=time)


def heads_per_program(rows: int, of_group: int, each: int, most: int) -> int:
    """Heads of a program, at most `most`: few full rounds of `each` programs per SM; a start costs two heads. `rows` counts
    heads of rows."""
    divisors = [k for k in range(1, most + 1) if of_group % k == 0]
    return min(divisors, key=lambda k: triton.cdiv(rows // k, each * SMS) * (k + 2))


@triton.jit
def load_half(start, p, n, stride_p: tl.constexpr, in_p, N: tl.constexpr, WHOLE: tl.constexpr = False):
    """Rows (p, n) of the state in memory order; zeros outside. WHOLE: no tile reaches outside."""
    at = start + (p.to(tl.int64) * stride_p)[:, None] + n[None, :]
    return tl.load(at, mask=in_p[:, None] & (n < N)[None, :] | WHOLE, other=0.0)


@triton.jit
def to_mma(half, HALF_N: tl.constexpr):
    """Such rows in registers, in fp32, in the layout of a product."""
    return permuted(half.to(tl.float32), half.shape[0], HALF_N)


@triton.jit
def store_half(
    start, state, p_0, n_0: tl.constexpr, stride_p: tl.constexpr, wanted, P: tl.constexpr, N: tl.constexpr,
    HALF_N: tl.constexpr, EVICT: tl.constexpr, WHOLE: tl.constexpr = False,
):  # fmt: skip
    """Stores a half of a tile, from channel p_0 and column n_0 on, rounded to the state's type, directly from its lanes."""
    p, n = memory_rows(state.shape[0], HALF_N)
    inside = (p_0 + p < P)[:, None] & (n_0 + n < N) & wanted | WHOLE
    at = start + ((p_0 + p).to(tl.int64) * stride_p)[:, None] + (n_0 + n)
    tile = to_memory(state, state.shape[0], HALF_N).to(start.dtype.element_ty)
    tl.store(at, tile, mask=inside, eviction_policy="evict_first" if EVICT else "")
