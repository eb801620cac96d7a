"""Tiles of an SSD state for windows of up to 16 tokens: how programs share them, and halves of n in registers and memory.

The heads of a group of one row lie one behind the other, in tiles of 16 channels. A program owns a run of them, which may end
within a head: as many as make whole rounds of programs. Short runs leave what programs of one time read and write in one
stretch of memory: on an H200, runs of 4, 8, 20 and 80 tiles took 1.08, 1.12, 1.16 and 1.18 plain steps for 256 rows.

A half of a tile comes as rows of the state, whole lines, through shared memory, and lies in registers as accumulators and
operands of a product hold it: its columns permuted as in `fragments`, where a lane's four of 16 are neighbours.
"""

import triton
import triton.language as tl

from .fragments import memory_rows, permuted, to_memory

MOST_TOKENS = 16
CHANNELS = 16
SMS = 132
"""Multiprocessors of an H200."""
RESIDENT = 8 * SMS
"""Programs that an H200 holds at once: 8 an SM, by their registers."""
LONGEST = 12


def many(b: int, h: int, p: int) -> bool:
    """Whether tiles are so many that how programs end makes no difference; then stores need not leave the caches first."""
    return b * h * triton.cdiv(p, CHANNELS) >= 16 * RESIDENT


def run_of(b: int, h: int, of_group: int, p: int) -> int:
    """Tiles of a program: a head's where there are many rounds, otherwise few whole rounds, of which a start costs a tile."""
    head = triton.cdiv(p, CHANNELS)
    if many(b, h, p):
        return head

    def time(run: int) -> int:
        programs = b * (h // of_group) * triton.cdiv(of_group * head, run)
        return triton.cdiv(programs, RESIDENT) * (run + 1)

    return min(range(1, LONGEST + 1), key=time)


def heads_of(rows: int, of_group: int, each: int, most: int) -> int:
    """Heads of a program, at most `most`: few whole rounds of `each` programs an SM; a start costs two heads. `rows` counts
    heads of rows."""
    divisors = [k for k in range(1, most + 1) if of_group % k == 0]
    return min(divisors, key=lambda k: triton.cdiv(rows // k, each * SMS) * (k + 2))


@triton.jit
def load_half(start, p, n, stride_p: tl.constexpr, in_p, N: tl.constexpr, WHOLE: tl.constexpr = False):
    """Rows (p, n) of the state as they lie in memory; zeros outside. WHOLE: none of any tile is."""
    at = start + (p.to(tl.int64) * stride_p)[:, None] + n[None, :]
    return tl.load(at, mask=in_p[:, None] & (n < N)[None, :] | WHOLE, other=0.0)


@triton.jit
def held(half, HALF_N: tl.constexpr):
    """Such rows in registers, in fp32, as a product holds them."""
    return permuted(half.to(tl.float32), half.shape[0], HALF_N)


@triton.jit
def store_half(
    start, state, p_0, n_0: tl.constexpr, stride_p: tl.constexpr, wanted, P: tl.constexpr, N: tl.constexpr,
    HALF_N: tl.constexpr, EVICT: tl.constexpr, WHOLE: tl.constexpr = False,
):  # fmt: skip
    """What is held, from channel p_0 and column n_0 on, goes back to memory, rounded to its type, straight from its lanes."""
    p, n = memory_rows(state.shape[0], HALF_N)
    inside = (p_0 + p < P)[:, None] & (n_0 + n < N) & wanted | WHOLE
    at = start + ((p_0 + p).to(tl.int64) * stride_p)[:, None] + (n_0 + n)
    tile = to_memory(state, state.shape[0], HALF_N).to(start.dtype.element_ty)
    tl.store(at, tile, mask=inside, eviction_policy="evict_first" if EVICT else "")
