"""The decayed products of queries and keys with the keys that they see: the part of a tree of KDA that needs no state.

    G_i  = sum of g over the path from the root to i, itself included                                     (1)
    Q_ij = sum over channels of q_i exp(G_i - G_j) k_j,   C_ij with k_i in place of q_i     i sees j      (2)

without the norms of queries and keys. The decay of a pair is one number per channel, so that (2) is no product of matrices:
there is an exp for each pair and channel. Nothing is divided by a decay, as exp(-G_j) would overflow after a few strong ones.
The exponent of a pair that is not seen may be large and positive; its sum overflows alone, and is not stored.

A program owns 16 nodes i and 16 nodes j of one value head of one row, and walks over the channels: pairs lie along the
lanes, so that a lane sums its channels alone. Blocks without a pair are skipped. Layout: `pairs` (b, h, 2, t, j) in fp32, Q
before C, t and j padded to a power of two; only pairs that are seen are written. Bound by the instructions: six for a pair
and channel, one of them an exp.
Source: `ssmspec_ref.delta.tree`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..delta.delta_inputs import gates, load_gate_params, slot_of
from ..launch import strides
from ..shared.dots import dot_right
from ..shared.strides import GroupStrides, HeadStrides, MaskStrides
from ..shared.tree_nodes import real_nodes, seen_nodes
from ..shared.tuning import H200
from ..ssd.ssd_inputs import load_rows

NODES: tl.constexpr = tl.constexpr(16)
"""Nodes of a block: the fewest rows of a product."""


def scratch(b: int, h: int, t: int, device: torch.device) -> Tensor:
    """Memory for `pairs` of b rows of h heads and trees of t nodes."""
    nodes = max(16, triton.next_power_of_2(t))
    return torch.empty(b, h, 2, nodes, nodes, dtype=torch.float32, device=device)


def traffic_bytes(pairs: int, h: int) -> int:
    """Bytes of (2) that this launch writes and the next one reads, for a number of pairs that are seen, of all rows.

    Units: bytes.
    """
    return 2 * 2 * 4 * pairs * h


def launch_pairs(
    q: Tensor,
    k: Tensor,
    g: Tensor,
    A: Tensor | None,
    dt_bias: Tensor | None,
    lower_bound: float | None,
    slots: Tensor | None,
    ancestors: Tensor,
    pairs: Tensor,
) -> None:
    """(2) from checked arguments, those of `kda_tree`; nothing is written for padding rows."""
    (b, t, groups, width), h = q.shape, g.shape[2]
    blocks, row = triton.cdiv(t, 16), H200["kda_pairs"]
    kda_pairs_kernel[(blocks * (blocks + 1) // 2, h, b)](
        q, k, g, A, dt_bias, slots, ancestors, pairs,
        GroupStrides(*strides(q, 3)), GroupStrides(*strides(k, 3)), HeadStrides(*strides(g, 3)),
        MaskStrides(*strides(ancestors, 3)), *strides(dt_bias, 1), lower_bound or 0.0,
        T=t, K=width, HEADS_PER_KEY=h // groups, BOUNDED=lower_bound is not None, BLOCKS=blocks, ALL=pairs.shape[-1],
        PART=row["part"], PARTS=triton.cdiv(width, row["part"]), num_warps=row["warps"],
    )  # fmt: skip


@triton.jit
def load_part(q, k, g, stride_q, stride_k, stride_g, i, j, every, real_i, real_j, real, c, K: tl.constexpr):
    """Queries and keys of the nodes i, keys of the nodes j, and gates of all nodes, at the channels c."""
    q_i, k_i = load_rows(q, i * stride_q.t, c, real_i, c < K), load_rows(k, i * stride_k.t, c, real_i, c < K)
    return q_i, k_i, load_rows(k, j * stride_k.t, c, real_j, c < K), load_rows(g, every * stride_g.t, c, real, c < K)


@triton.jit
def kda_pairs_kernel(
    q, k, g, A, dt_bias, slots, ancestors, pairs, stride_q, stride_k, stride_g, stride_anc, stride_bias_h, low,
    T: tl.constexpr, K: tl.constexpr, HEADS_PER_KEY: tl.constexpr, BOUNDED: tl.constexpr, BLOCKS: tl.constexpr,
    ALL: tl.constexpr, PART: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    b, h = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    pair = tl.program_id(0)
    block = pair * 0
    for n in tl.static_range(1, BLOCKS):
        block += (pair >= n * (n + 1) // 2).to(tl.int32)
    n, every = tl.arange(0, NODES), tl.arange(0, ALL).to(tl.int64)
    i, j = (block * NODES + n).to(tl.int64), ((pair - block * (block + 1) // 2) * NODES + n).to(tl.int64)
    at_anc = ancestors + b * stride_anc.b
    real = real_nodes(at_anc, every, every < T, stride_anc)
    real_i, real_j = real_nodes(at_anc, i, i < T, stride_anc), real_nodes(at_anc, j, j < T, stride_anc)
    seen = seen_nodes(at_anc, i, j, real_i, real_j, stride_anc)
    if (slot_of(slots, b) >= 0) & (tl.max(tl.max(seen.to(tl.int32), axis=1), axis=0) > 0):
        sees_i = seen_nodes(at_anc, i, every, real_i, real, stride_anc)
        sees_j = seen_nodes(at_anc, j, every, real_j, real, stride_anc)
        at_q = q + b * stride_q.b + h // HEADS_PER_KEY * stride_q.g
        at_k = k + b * stride_k.b + h // HEADS_PER_KEY * stride_k.g
        at_g = g + b * stride_g.b + h * stride_g.h
        c = tl.arange(0, PART).to(tl.int64)
        of_part = load_part(at_q, at_k, at_g, stride_q, stride_k, stride_g, i, j, every, real_i, real_j, real, c, K)
        to_query, to_key = tl.zeros([NODES, NODES], tl.float32), tl.zeros([NODES, NODES], tl.float32)
        for _ in range(PARTS):
            decay, bias = load_gate_params(A, dt_bias, h, c, stride_bias_h, c < K, True)
            q_i, k_i, k_j, g_c = of_part
            c += PART  # the next part is loaded while this one is computed; after the last it is empty
            of_part = load_part(at_q, at_k, at_g, stride_q, stride_k, stride_g, i, j, every, real_i, real_j, real, c, K)
            g_c, _ = gates(g_c.to(tl.float32), 0.0, decay, bias, A, low, BOUNDED)
            G_i = dot_right(sees_i.to(tl.bfloat16), g_c)  # (1)
            G_j = G_i if BLOCKS == 1 else dot_right(sees_j.to(tl.bfloat16), g_c)
            between = tl.trans(G_i)[:, :, None] - tl.trans(G_j)[:, None, :]
            weight = tl.trans(k_j).to(tl.float32)[:, None, :] * tl.exp(between)
            to_query += tl.sum(tl.trans(q_i).to(tl.float32)[:, :, None] * weight, axis=0)  # (2)
            to_key += tl.sum(tl.trans(k_i).to(tl.float32)[:, :, None] * weight, axis=0)
        at = pairs + (b * tl.num_programs(1) + h) * (2 * ALL * ALL) + i[:, None] * ALL + j[None, :]
        tl.store(at, to_query, mask=seen)
        tl.store(at + ALL * ALL, to_key, mask=seen)
