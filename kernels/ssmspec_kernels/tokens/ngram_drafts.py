"""Drafts from a sequence's own tokens: the windows that most often followed its last token, then rows of a table.

    S   = {s : x_s = x_{T-1}, s + k < T},  w_s = x_{s+1} .. x_{s+k}                          (1)
    c_s = the number of s' in S with w_s' = w_s                                              (2)
    drafts: w_s of the greatest (c_s, s); the last s of equal windows represents them        (3)
    then rows of the table of x_{T-1} that are not among them                               (4)

A program owns a row. It writes the places S consecutively to its own scratch, so that (2) compares only
those, and ranks them by c_s (l + 1) + s, which is unique. A missing draft has length 1, its root.
Layout: sequences (s, l) and length (s) by slot, table (v, n, k), y (b, m, 1 + k) and lengths (b, m), root first. A padding
row, whose slot is negative, is zeros of length 1. Bound by latency.
Source: Snakes and Ladders, section 5.2, for PNG; the table, which it does not describe, is that of arXiv:2411.03786.
"""

from functools import partial
from typing import Annotated

import torch
import triton
import triton.language as tl
from torch import Tensor

from ssmspec_ref.errors import ParameterError, ShapeMismatch

from ..launch import INDICES, check_pool, strides
from ..row import Axes, launcher, reads, updates, writes
from ..shared.strides import DraftLengthStrides, DraftStrides, HistoryStrides, PlaceStrides, TableStrides
from ..shared.tuning import H200


def traffic_bytes(
    held: int, found: int, b: int, m: int, k: int, *, table: int = 0, index: int = 8, slots: bool = True
) -> int:
    """Bytes that must cross the memory bus: the `held` tokens of all histories, their ends, rows of the table, drafts; places
    and ranks of the windows `found`, written and read. A token at the end that is in no window need not be read. Units:
    bytes; `index` those of a token.
    """
    return index * (held + b * (1 + slots + table * k + m * (2 + k))) + 32 * found


@launcher
def ngram_drafts(
    axes: Axes,
    sequences: Annotated[Tensor, reads("s l", INDICES)],
    length: Annotated[Tensor, reads("s", INDICES)],
    tokens: int,
    drafts: int,
    *,
    table: Annotated[Tensor, reads("v n k", INDICES)] | None = None,
    slots: Annotated[Tensor, reads("b", INDICES)] | None = None,
    y: Annotated[Tensor, writes("b m i", INDICES)] | None = None,
    lengths: Annotated[Tensor, writes("b m", INDICES)] | None = None,
    places: Annotated[Tensor, updates("b a l", (torch.int64,), "place")] | None = None,
    block_s: int = H200["ngram_drafts"]["block_s"],
    block_i: int = H200["ngram_drafts"]["block_i"],
    num_warps: int = H200["ngram_drafts"]["warps"],
) -> tuple[Tensor, Tensor]:
    """Windows (b, drafts, 1 + tokens) and the length of each: 1 + tokens, or 1 if there is none.

    Raises: ShapeMismatch, PrecisionError, ParameterError (tokens or drafts below 1, rows without slots in a pool with fewer
    sequences), before anything is written.
    """
    if tokens < 1 or drafts < 1:
        raise ParameterError(f"{drafts} drafts of {tokens} tokens were asked for; ask for at least 1 of each")
    rows, l = axes.get("b", axes["s"]), axes["l"]
    if axes.get("k", tokens) != tokens:
        raise ParameterError(f"{tokens} tokens were asked for, but the table has {axes['k']} to a row; ask for as many")
    for axis, size, what in (
        ("m", drafts, "drafts"),
        ("i", 1 + tokens, "tokens and their root"),
        ("a", 2, "kinds of places"),
    ):
        if axes.get(axis, size) != size:
            raise ShapeMismatch(f"{size} {what} were asked for, but there is room for {axes[axis]}; give room for as many")
    check_pool(axes["s"], rows, slots)
    empty = partial(torch.empty, device=sequences.device)
    y = empty(rows, drafts, 1 + tokens, dtype=sequences.dtype) if y is None else y
    lengths = empty(rows, drafts, dtype=sequences.dtype) if lengths is None else lengths
    places = empty(rows, 2, l, dtype=torch.int64) if places is None else places
    _ngram_drafts_kernel[(rows,)](
        sequences, length, slots, table, places, y, lengths,
        HistoryStrides(*sequences.stride()), length.stride(0), *strides(slots, 1), TableStrides(*strides(table, 3)),
        PlaceStrides(*places.stride()), DraftStrides(*y.stride()), DraftLengthStrides(*lengths.stride()), l,
        K=tokens, DRAFTS=drafts, ROWS=axes.get("n", 0), BLOCK_S=block_s, BLOCK_I=block_i,
        BLOCK_M=triton.next_power_of_2(drafts), BLOCK_K=triton.next_power_of_2(1 + tokens), num_warps=num_warps,
    )  # fmt: skip
    return y, lengths


@triton.jit
def _rank(x, at, scores, found, stride_seq_l, stride_pla_l, L, K: tl.constexpr, BLOCK_I: tl.constexpr):
    """Stores the rank of each window, c_s (l + 1) + s, or 0 if an equal window is later."""
    for begin in range(0, found, BLOCK_I):
        i = begin + tl.arange(0, BLOCK_I).to(tl.int64)
        s = tl.load(at + i * stride_pla_l, mask=i < found, other=0)
        count, later = tl.zeros((BLOCK_I,), tl.int64), tl.zeros((BLOCK_I,), tl.int64)
        for other in range(0, found, BLOCK_I):
            j = other + tl.arange(0, BLOCK_I).to(tl.int64)
            r = tl.load(at + j * stride_pla_l, mask=j < found, other=0)
            same = (i < found)[:, None] & (j < found)[None, :]
            for t in tl.static_range(1, K + 1):
                w_s = tl.load(x + (s + t) * stride_seq_l, mask=i < found, other=0)
                w_r = tl.load(x + (r + t) * stride_seq_l, mask=j < found, other=0)
                same &= w_s[:, None] == w_r[None, :]
            count += tl.sum(same.to(tl.int64), axis=1)  # (2)
            later += tl.sum((same & (i[:, None] < j[None, :])).to(tl.int64), axis=1)
        tl.store(scores + i * stride_pla_l, tl.where(later == 0, count * (L + 1) + s, 0), mask=i < found)


@triton.jit
def _ngram_drafts_kernel(
    sequences, length, slots, table, places, y, lengths,
    stride_seq, stride_len, stride_slots, stride_tab, stride_pla, stride_y, stride_lengths, L,
    K: tl.constexpr, DRAFTS: tl.constexpr, ROWS: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_I: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    slot = b if slots is None else tl.load(slots + b * stride_slots).to(tl.int64)
    live = slot >= 0
    T = tl.load(length + slot * stride_len, mask=live, other=0).to(tl.int64)
    x = sequences + slot * stride_seq.s
    root = tl.load(x + (T - 1) * stride_seq.l, mask=T > 0, other=0).to(tl.int64)
    at, scores = places + b * stride_pla.b, places + b * stride_pla.b + stride_pla.a
    found = tl.zeros((), tl.int64)
    for begin in range(0, T, BLOCK_S):
        s = begin + tl.arange(0, BLOCK_S).to(tl.int64)
        here = s < T - K
        here &= tl.load(x + s * stride_seq.l, mask=here, other=0).to(tl.int64) == root  # (1)
        count = here.to(tl.int64)
        tl.store(at + (found + tl.cumsum(count, axis=0) - 1) * stride_pla.l, s, mask=here)
        found += tl.sum(count, axis=0)
    tl.debug_barrier()
    _rank(x, at, scores, found, stride_seq.l, stride_pla.l, L, K, BLOCK_I)
    tl.debug_barrier()
    m, k = tl.arange(0, BLOCK_M).to(tl.int64), tl.arange(0, BLOCK_K).to(tl.int64)
    in_k = (k >= 1) & (k <= K)
    rows = tl.zeros((BLOCK_M, BLOCK_K), tl.int64)
    there, best = tl.zeros((), tl.int64), tl.zeros((), tl.int64) + (1 << 62)
    for _ in range(DRAFTS):
        below, best = best, tl.zeros((), tl.int64)
        for begin in range(0, found, BLOCK_S):
            i = begin + tl.arange(0, BLOCK_S).to(tl.int64)
            score = tl.load(scores + i * stride_pla.l, mask=i < found, other=0)
            best = tl.maximum(best, tl.max(tl.where(score < below, score, 0), axis=0))  # (3)
        more = best > 0
        w = tl.load(x + (best % (L + 1) + k) * stride_seq.l, mask=in_k & more, other=0).to(tl.int64)
        rows = tl.where((m == there)[:, None] & more, w[None, :], rows)
        there += more.to(tl.int64)
    if table is not None:
        for n in range(ROWS):
            at_w = table + root * stride_tab.v + tl.cast(n, tl.int64) * stride_tab.n + (k - 1) * stride_tab.k
            w = tl.load(at_w, mask=in_k & live, other=0).to(tl.int64)
            known = (tl.sum((rows != w[None, :]).to(tl.int32), axis=1) == 0) & (m < there)
            new = live & (there < DRAFTS) & (tl.max(known.to(tl.int32), axis=0) == 0)  # (4)
            rows = tl.where((m == there)[:, None] & new, w[None, :], rows)
            there += new.to(tl.int64)
    rows = tl.where(k[None, :] == 0, root, rows)
    at_y = y + b * stride_y.b + m[:, None] * stride_y.m + k[None, :] * stride_y.i
    tl.store(at_y, rows.to(y.dtype.element_ty), mask=(m < DRAFTS)[:, None] & (k <= K)[None, :])
    tl.store(
        lengths + b * stride_lengths.b + m * stride_lengths.m,
        tl.where(m < there, 1 + K, 1).to(lengths.dtype.element_ty),
        mask=m < DRAFTS,
    )
