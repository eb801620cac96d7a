"""Greedy acceptance on the device: the walk of every row's tree, cut at the end of sequence and at the budget.

    t_n = choice of the target after node n                                                   (1)
    emit t_n; go to the first child of n with this token                                     (2)
    stop if no child has it, if it ends the sequence, or if the budget is used up             (3)

Every visited node enters the path, so it has as many nodes as there are emitted tokens; the last token is not yet in any
state. Of children with equal tokens the first is taken (2). Nodes after (3) are never visited, so no second
pass is needed. With choices that were sampled from the target, this is naive sampling.

A row without budget, a sequence that has ended, and a padding row are skipped: they advance by 0.

A program, of one warp, owns a row and holds its tree in registers: each step of the walk is two reductions over the nodes.
Layout: tokens, parents, choice (b, t); budget and ended (s), which rows index through `slots`; a row with a negative slot is
padding and is skipped. Bound by latency.
"""

from typing import Annotated, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..attention.tree_mask import check_nodes
from ..launch import INDICES, check_pool
from ..row import BOOL, Axes, Slots, launcher, reads, writes

Nodes = Annotated[Tensor, reads("b t", INDICES)]
Budget = Annotated[Tensor, reads("s", INDICES)]
Ended = Annotated[Tensor, reads("s", BOOL)]
EndTokens = Annotated[Tensor, reads("o", INDICES)]


class Emitted(NamedTuple):
    """What the windows of a batch emit; on the device.

    `tokens` (b, t) and `path` (b, t) are padded with -1. `advanced` (b) counts the entries of both. `ended` (b) marks the
    sequences that have ended: by an end-of-sequence token, by the budget, or already before. The last token tells the first
    two apart.
    """

    tokens: Annotated[Tensor, writes("b t", INDICES)]
    path: Annotated[Tensor, writes("b t", INDICES)]
    advanced: Annotated[Tensor, writes("b", INDICES)]
    ended: Annotated[Tensor, writes("b", BOOL)]


def traffic_bytes(b: int, t: int, *, index: int = 8, eos: int = 0, ended: bool = False) -> int:
    """Bytes that must cross the memory bus: the tree and its choices, what is emitted, the budget and the flags.

    Units: bytes; `index` those of every token, node, and budget; `eos` end-of-sequence tokens.
    """
    return index * (5 * b * t + 2 * b + eos) + b + (b if ended else 0)


def new_emitted(tokens: Tensor, parents: Tensor) -> Emitted:
    """Memory for the outputs."""
    rows = tokens.shape[:1]
    return Emitted(
        torch.empty(tokens.shape, dtype=tokens.dtype, device=tokens.device),
        torch.empty(tokens.shape, dtype=parents.dtype, device=tokens.device),
        torch.empty(rows, dtype=parents.dtype, device=tokens.device),
        torch.empty(rows, dtype=torch.bool, device=tokens.device),
    )


@launcher
def accept_greedy(
    axes: Axes,
    tokens: Nodes,
    parents: Nodes,
    choice: Nodes,
    budget: Budget,
    *,
    eos: EndTokens | None = None,
    ended: Ended | None = None,
    slots: Slots | None = None,
    out: Emitted | None = None,
) -> Emitted:
    """The runs of a batch of trees of up to 128 nodes: equations (1) to (3) of the module.

    `budget[slot]` tokens may still be emitted; `eos` lists the end-of-sequence tokens; `ended[slot]` marks sequences that
    have ended. Neither is written: `commit_tokens` does that.

    Raises: ShapeMismatch, PrecisionError, ParameterError, Unsupported (more nodes), before anything is written.
    """
    b, t = axes["b"], axes["t"]
    check_nodes(t)
    check_pool(axes["s"], b, slots)
    run = new_emitted(tokens, parents) if out is None else out
    _accept_greedy_kernel[(b,)](
        tokens, parents, choice, budget, ended, eos, slots, *run,
        *tokens.stride(), *parents.stride(), *choice.stride(), *run.tokens.stride(), *run.path.stride(),
        T=t, EOS=axes.get("o", 1), BLOCK_T=triton.next_power_of_2(t),
        BLOCK_EOS=triton.next_power_of_2(axes.get("o", 1)), num_warps=1,
    )  # fmt: skip
    return run


@triton.jit
def takes_part(slot, parent, budget, ended):
    """Whether a row takes part, and how many tokens it may emit."""
    left = tl.load(budget + slot).to(tl.int64)
    root = tl.sum(tl.where(tl.arange(0, parent.shape[0]) == 0, parent, 0), axis=0) == -1
    over = left <= 0
    if ended is not None:
        over = over | (tl.load(ended + slot) != 0)
    return root & (over == 0), left, over


@triton.jit
def ends(token, eos, EOS: tl.constexpr, BLOCK_EOS: tl.constexpr):
    """Whether a token ends a sequence."""
    if eos is not None:
        k = tl.arange(0, BLOCK_EOS)
        listed = tl.load(eos + k, mask=k < EOS, other=-1).to(tl.int64)
        return tl.max(((listed == token) & (k < EOS)).to(tl.int32), axis=0) == 1
    return tl.full((), 0, tl.int1)


@triton.jit
def _accept_greedy_kernel(
    tokens, parents, choice, budget, ended, eos, slots, y_tokens, y_path, y_advanced, y_ended,
    stride_tok_b, stride_tok_t, stride_par_b, stride_par_t, stride_cho_b, stride_cho_t,
    stride_y_b, stride_y_t, stride_path_b, stride_path_t,
    T: tl.constexpr, EOS: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_EOS: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    slot = b
    if slots is not None:
        slot = tl.load(slots + b).to(tl.int64)
    if slot >= 0:
        i = tl.arange(0, BLOCK_T).to(tl.int64)
        token = tl.load(tokens + b * stride_tok_b + i * stride_tok_t, mask=i < T, other=-1).to(tl.int64)
        parent = tl.load(parents + b * stride_par_b + i * stride_par_t, mask=i < T, other=-2).to(tl.int64)
        said = tl.load(choice + b * stride_cho_b + i * stride_cho_t, mask=i < T, other=-1).to(tl.int64)
        going, left, over = takes_part(slot, parent, budget, ended)
        emitted = tl.full((BLOCK_T,), -1, tl.int64)
        path = tl.full((BLOCK_T,), -1, tl.int64)
        node = tl.full((), 0, tl.int64)
        count = tl.full((), 0, tl.int64)
        while going:
            t_n = tl.sum(tl.where(i == node, said, 0), axis=0)  # (1)
            path = tl.where(i == count, node, path)
            emitted = tl.where(i == count, t_n, emitted)
            count += 1
            node = tl.min(tl.where((parent == node) & (token == t_n) & (i > node), i, BLOCK_T), axis=0)  # (2)
            over = ends(t_n, eos, EOS, BLOCK_EOS) | (count >= left)  # (3)
            going = (node < BLOCK_T) & (over == 0)
        tl.store(y_tokens + b * stride_y_b + i * stride_y_t, emitted.to(y_tokens.dtype.element_ty), mask=i < T)
        tl.store(y_path + b * stride_path_b + i * stride_path_t, path.to(y_path.dtype.element_ty), mask=i < T)
        tl.store(y_advanced + b, count.to(y_advanced.dtype.element_ty))
        tl.store(y_ended + b, over)
