"""Enters the emitted tokens of a batch into their sequences: tokens, lengths, budgets, ends, and the next roots.

    sequence[length + n] = token_n                  n = 0 .. c - 1, c = advanced     (1)
    length' = length + c                                                             (2)
    cursor' = cursor + c                                                             (3)
    budget' = budget - c                                                             (4)
    root'   = token_{c-1}, where c > 0                                               (5)
    ended'  = ended or the run's end                                                 (6)

`length` counts the tokens of a sequence; `cursor` those in its state and caches, all but the root. A row that advanced by 0
keeps everything but (6). A token beyond the end of the buffer is not written; the budget should prevent it.

A program, of one warp, owns a row. Layout: tokens (b, t) and the other outputs of `accept_greedy`; sequences (s, l)
and all others (s), updated in place, which rows index through `slots`; a row with a negative slot is padding and is skipped.
Two rows of one batch must not share a slot. Bound by latency.
"""

from typing import Annotated

import triton
import triton.language as tl
from torch import Tensor

from ..attention.tree_mask import check_nodes
from ..launch import INDICES, check_pool
from ..row import BOOL, Axes, Only, Slots, launcher, updates, writes
from .accept_greedy import Emitted


def traffic_bytes(b: int, t: int, emitted: int, live: int, counters: int, *, index: int = 8) -> int:
    """Bytes that must cross the memory bus: runs, the tokens `emitted`, and the vectors by slot, without `ended`.

    Units: bytes; `index` those of every token and count. `counters` of length, cursor and budget are read and written, and
    the root of the `live` rows, which advanced, is written.
    """
    return index * (b * t + b + emitted + 2 * counters * b + live)


Counter = Annotated[Tensor, updates("s", INDICES, "index")]


@launcher
def commit_tokens(
    axes: Axes,
    run: Annotated[Emitted, Only(("tokens", "advanced", "ended"))],
    sequences: Annotated[Tensor, writes("s l", INDICES)],
    length: Counter,
    *,
    root: Annotated[Tensor, writes("s", INDICES)] | None = None,
    cursor: Counter | None = None,
    budget: Counter | None = None,
    ended: Annotated[Tensor, updates("s", BOOL, "")] | None = None,
    slots: Slots | None = None,
) -> None:
    """Enters a run in place: equations (1) to (6) of the module, each for the tensors that are given.

    Raises: ShapeMismatch, PrecisionError, ParameterError, Unsupported (more than 128 nodes), before anything is written.
    """
    b, t = axes["b"], axes["t"]
    check_nodes(t)
    check_pool(axes["s"], b, slots)
    _commit_tokens_kernel[(b,)](
        run.tokens, run.advanced, run.ended, sequences, length, root, cursor, budget, ended, slots,
        *run.tokens.stride(), *sequences.stride(),
        T=t, L=axes["l"], BLOCK_T=triton.next_power_of_2(t), num_warps=1,
    )  # fmt: skip


@triton.jit
def _add(counts, slot, more):
    """Adds to a count, if it is given."""
    if counts is not None:
        tl.store(counts + slot, (tl.load(counts + slot).to(tl.int64) + more).to(counts.dtype.element_ty))


@triton.jit
def _commit_tokens_kernel(
    tokens, advanced, run_ended, sequences, length, root, cursor, budget, ended, slots,
    stride_tok_b, stride_tok_t, stride_seq_s, stride_seq_l, T: tl.constexpr, L: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    slot = b
    if slots is not None:
        slot = tl.load(slots + b).to(tl.int64)
    if slot >= 0:
        n = tl.arange(0, BLOCK_T).to(tl.int64)
        count = tl.load(advanced + b).to(tl.int64)
        start = tl.load(length + slot).to(tl.int64)
        token = tl.load(tokens + b * stride_tok_b + n * stride_tok_t, mask=n < T, other=-1)
        at = sequences + slot * stride_seq_s + (start + n) * stride_seq_l
        fits = (n < T) & (n < count) & (start + n < L)
        tl.store(at, token.to(sequences.dtype.element_ty), mask=fits)  # (1)
        tl.store(length + slot, (start + count).to(length.dtype.element_ty))  # (2)
        _add(cursor, slot, count)  # (3)
        _add(budget, slot, -count)  # (4)
        if root is not None:
            last = tl.sum(tl.where(n == count - 1, token, 0), axis=0)
            tl.store(root + slot, last.to(root.dtype.element_ty), mask=count > 0)  # (5)
        if ended is not None:
            over = (tl.load(ended + slot) != 0) | (tl.load(run_ended + b) != 0)
            tl.store(ended + slot, over)  # (6)
