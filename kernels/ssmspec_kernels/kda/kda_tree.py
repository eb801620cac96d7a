"""Kimi Delta Attention over a packed tree, from one state, without writing any: a triangular solve among ancestors.

    G_i  = sum of g over the path from the root to i, itself included                                     (1)
    C_ij = r_i k_i^T diag(exp(G_i - G_j)) r_j k_j,   P_ij with q_i in place of k_i      i sees j, else 0   (2)
    A    = beta C below the diagonal,   N = P (I + A)^-1 diag(beta)                                       (3)
    o    = r q exp(G) S + N (V - r k exp(G) S)                                                            (4)

r is the scale and norm of a query or key, one number per node. Two launches: (2) without r for all pairs of nodes
(`kda_pairs`), then the rest, here. (3) does not depend on v; it is computed by substitution for up to 16 nodes, in blocks for
more (`delta.delta_inverse`). Each row of the batch has its own tree; a node that does not see itself is padding, whatever its
mask contains, and its output is 0.

A program owns v channels of one value head of one row, and walks over k in parts of 32. Keys and queries are the rows of one
matrix, so that a part of the state is cut once. Layout: S (s, h, k, v), as in `kda_scan`. Bound by the bytes of the state for
small trees, by the products among the nodes for large ones. A node that is not finite makes its tree NaN in its head.
Source: `ssmspec_ref.delta.tree`; (3) and (4) as in `delta.delta_tree`.
"""

from typing import Annotated

import torch
import triton
import triton.language as tl
from torch import Tensor

from ssmspec_ref.errors import ParameterError, ShapeMismatch, Unsupported

from ..delta import delta_inputs as delta
from ..delta.delta_inputs import gates, load_gate_params, slot_of, window_strides
from ..delta.delta_inverse import inverted
from ..delta.delta_window import check_one_type, norms, substituted
from ..launch import strides
from ..row import FP32, Ancestors, Axes, Slots, launcher, moved, updates
from ..shared.dots import dot_both
from ..shared.functions import sigmoid
from ..shared.strides import MaskStrides
from ..shared.tree_nodes import real_nodes, seen_nodes
from ..shared.tuning import H200
from ..ssd.ssd_inputs import load_rows
from .kda_inputs import KeyBias, KeyGates, check_kda
from .kda_pairs import launch_pairs, scratch

LARGEST = 128
"""Most nodes of a tree."""

LEAST_V = 64
"""Fewest channels of a tile for more than 32 nodes; a smaller state is padded. With bf16 activations, 65 and 128 nodes and
tiles of 16 or 32 channels, what Triton 3.6 compiled for an H200 gave wrong outputs from node 16 on, the same in every run, or
read outside memory (`ssd_window` knows more such tiles)."""


def traffic_bytes(b: int, t: int, g: int, h: int, k: int, v: int, *, state: int = 4, io: int = 2, gate: int = 4) -> int:
    """Bytes that must cross the memory bus for b live rows of t nodes: the state, the nodes, the outputs, and the mask. Not
    (2), which crosses it twice between the launches if no cache holds it (`kda_pairs.traffic_bytes`).

    Units: bytes; `state`, `io` and `gate` are the bytes of an element; `gate` is that of g and beta.
    """
    axes = {"s": b, "b": b, "t": t, "j": t, "g": g, "h": h, "k": k, "v": v}
    return moved(kda_tree, axes, {"state": state, "io": io, "gate": gate}, without=("pairs",))


@launcher
def kda_tree(
    axes: Axes,
    S: delta.Start,
    q: delta.Keys,
    k: delta.Keys,
    v: delta.Values,
    g: KeyGates,
    beta: delta.Strengths,
    ancestors: Ancestors,
    *,
    A: delta.Decay | None = None,
    dt_bias: KeyBias | None = None,
    lower_bound: float | None = None,
    l2_norm: bool = True,
    scale: float | None = None,
    eps: float = 1e-6,
    slots: Slots | None = None,
    out: delta.Outputs | None = None,
    pairs: Annotated[Tensor, updates("b h pair nodes nodes", FP32, "fp32", "whole")] | None = None,
    block_v: int | None = None,
) -> Tensor:
    """The outputs (b, t, h, v) at the nodes of each row's tree over S[slots], which is only read: (1) to (4).

    `ancestors` (b, t, j): node t sees node j; ancestors precede, and their sets nest (`ssmspec_ref.tree`), which a launch
    cannot check. The other arguments are those of `kda_scan`; several rows may share a state. The output of a padding row is
    not written. `pairs` is the memory of `kda_pairs.scratch` (None: allocated here), `block_v` the channels v of a program
    (None: those of `tile`).

    Raises: ShapeMismatch, PrecisionError, ParameterError (more than 128 nodes), Unsupported (tiles of fewer than 64 channels
    for more than 32 nodes), before anything is written.
    """
    scale = check_kda(axes, A, dt_bias, lower_bound, slots, scale, eps)
    check_one_type(q, k, v)
    b, t, h = axes["b"], axes["t"], axes["h"]
    if axes["j"] != t:
        raise ShapeMismatch(f"the mask has {t} rows and {axes['j']} columns; give one of each for every node")
    if t > LARGEST:
        raise ParameterError(f"the tree holds {t} nodes; a launch takes up to {LARGEST}: prune it")
    o = torch.empty_like(v) if out is None else out
    nodes = max(16, triton.next_power_of_2(t))
    block, warps = tile(b * h, axes["v"], nodes)
    block = block_v or block
    if nodes > 32 and block < LEAST_V:
        raise Unsupported(
            f"tiles of {block} channels are refused for {t} nodes: Triton 3.6 compiled them to wrong code for an H200; "
            f"give {LEAST_V} or more, or None"
        )
    whole = max(16, triton.next_power_of_2(axes["k"]))
    split = q.dtype == torch.bfloat16
    stages = {} if split or nodes <= 64 else {"num_stages": 1}  # fp32 tiles loaded ahead would not fit shared memory
    pairs = scratch(b, h, t, q.device) if pairs is None else pairs
    launch_pairs(q, k, g, A, dt_bias, lower_bound, slots, ancestors, pairs)
    kda_tree_kernel[(triton.cdiv(axes["v"], block), h, b)](
        S, q, k, v, g, beta, A, dt_bias, slots, ancestors, pairs, o,
        window_strides(S, q, k, v, g, beta, o), MaskStrides(*strides(ancestors, 3)), *strides(dt_bias, 1), scale, eps,
        lower_bound or 0.0,
        T=t, K=axes["k"], V=axes["v"], HEADS_PER_KEY=h // axes["g"], BOUNDED=lower_bound is not None, L2_NORM=l2_norm,
        SPLIT=split, BLOCK_T=nodes, BLOCK_K=whole, WIDTH=min(H200["kda_tree"]["part"], whole),
        BLOCK_V=block, num_warps=warps, **stages,
    )  # fmt: skip
    return o


def tile(heads: int, v: int, nodes: int) -> tuple[int, int]:
    """Channels v of a program, and its warps; `heads` counts heads of rows. Few heads make more programs; many compute (3)
    once each, if their nodes leave enough registers."""
    row = H200["kda_tree"]
    most = row["few_block_v" if heads <= row["few_heads"] or nodes > row["many_nodes"] else "block_v"]
    few = nodes <= row["few_nodes"]
    return max(16 if few else LEAST_V, min(triton.next_power_of_2(v), most)), row["warps" if few else "more_warps"]


@triton.jit
def decayed_rows(
    at_x, g, A, dt_bias, h, low, sees, real, real_x, t, i, in_k, stride_g_t, stride_bias_h, BOUNDED: tl.constexpr
):  # fmt: skip
    """exp(G) times the keys and then the queries of all nodes, without r, at some channels."""
    decay, bias = load_gate_params(A, dt_bias, h, i, stride_bias_h, in_k, True)
    x = tl.load(at_x[:, None] + i[None, :], mask=real_x[:, None] & in_k[None, :], other=0.0).to(tl.float32)
    g_t = load_rows(g, t * stride_g_t, i, real, in_k).to(tl.float32)
    g_t, _ = gates(g_t, 0.0, decay, bias, A, low, BOUNDED)
    # Not in bf16 parts: from 64 nodes on Triton 3.6 compiles a product of 32 columns to wrong values (`ssd_window`).
    G = tl.dot(sees.to(tl.float32), g_t, input_precision="ieee")  # (1)
    both = tl.broadcast_to(tl.exp(G)[None, :, :], (2, G.shape[0], G.shape[1]))
    return x * tl.reshape(both, x.shape)


@triton.jit
def kda_tree_kernel(
    S, q, k, v, g, beta, A, dt_bias, slots, ancestors, pairs, o, stride, stride_anc, stride_bias_h, scale, eps, low,
    T: tl.constexpr, K: tl.constexpr, V: tl.constexpr, HEADS_PER_KEY: tl.constexpr, BOUNDED: tl.constexpr,
    L2_NORM: tl.constexpr, SPLIT: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_V: tl.constexpr,
):  # fmt: skip
    b, h = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    slot = slot_of(slots, b)
    if slot >= 0:
        n, t = tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_T).to(tl.int64)
        at_anc = ancestors + b * stride_anc.b
        real = real_nodes(at_anc, t, n < T, stride_anc)
        sees = seen_nodes(at_anc, t, t, real, real, stride_anc)
        at_q = q + b * stride.q.b + h // HEADS_PER_KEY * stride.q.g
        at_k = k + b * stride.k.b + h // HEADS_PER_KEY * stride.k.g
        at_g = g + b * stride.g.b + h * stride.g.h
        whole = tl.arange(0, BLOCK_K).to(tl.int64)
        r_q = norms(load_rows(at_q, t * stride.q.t, whole, real, whole < K), scale, eps, L2_NORM)
        r_k = norms(load_rows(at_k, t * stride.k.t, whole, real, whole < K), 1.0, eps, L2_NORM)
        at_pairs = pairs + (b * tl.num_programs(1) + h) * (2 * BLOCK_T * BLOCK_T) + t[:, None] * BLOCK_T + t[None, :]
        to_query = tl.load(at_pairs, mask=sees, other=0.0)  # (2)
        to_key = tl.load(at_pairs + BLOCK_T * BLOCK_T, mask=sees, other=0.0)
        at_beta = beta + b * stride.beta.b + h * stride.beta.h
        beta_t = tl.load(at_beta + t * stride.beta.t, mask=real, other=0.0).to(tl.float32)
        if A is not None:
            beta_t = sigmoid(beta_t)
        coupling = tl.where(n[:, None] > n[None, :], beta_t[:, None] * r_k[:, None] * to_key * r_k[None, :], 0.0)
        if BLOCK_T == 16:
            solve = substituted(coupling, tl.where(n[:, None] == n[None, :], 1.0, 0.0), T)
        else:
            solve = inverted(coupling, SPLIT)
        solve = dot_both(r_q[:, None] * to_query * r_k[None, :], solve * beta_t[None, :], SPLIT)  # (3)
        m = tl.arange(0, 2 * BLOCK_T)
        node, is_key = (m % BLOCK_T).to(tl.int64), m < BLOCK_T
        at_x = tl.where(is_key, at_k + node * stride.k.t, at_q + node * stride.q.t)
        real_x = real_nodes(at_anc, node, node < T, stride_anc)
        j = tl.program_id(0).to(tl.int64) * BLOCK_V + tl.arange(0, BLOCK_V)
        in_v = j < V
        read = tl.zeros([2 * BLOCK_T, BLOCK_V], tl.float32)
        for part in range(BLOCK_K // WIDTH):
            i = part * WIDTH + tl.arange(0, WIDTH).to(tl.int64)
            at_S = S + slot * stride.S.s + h * stride.S.h + i[:, None] * stride.S.k + j[None, :]
            state = tl.load(at_S, mask=(i < K)[:, None] & in_v[None, :], other=0.0).to(tl.float32)
            x = decayed_rows(
                at_x, at_g, A, dt_bias, h, low, sees, real, real_x, t, i, i < K, stride.g.t, stride_bias_h, BOUNDED
            )  # fmt: skip
            read += dot_both(x, state, SPLIT)
        read = tl.reshape(read, (2, BLOCK_T, BLOCK_V))
        first = (tl.arange(0, 2) == 0)[:, None, None]
        from_key, from_query = tl.sum(tl.where(first, read, 0.0), axis=0), tl.sum(tl.where(first, 0.0, read), axis=0)
        at_v = v + b * stride.v.b + h * stride.v.h + t[:, None] * stride.v.t + j[None, :]
        v_t = tl.load(at_v, mask=real[:, None] & in_v[None, :], other=0.0).to(tl.float32)
        o_t = r_q[:, None] * from_query + dot_both(solve, v_t - r_k[:, None] * from_key, SPLIT)  # (4)
        at_o = o + b * stride.o.b + h * stride.o.h + t[:, None] * stride.o.t + j[None, :]
        tl.store(at_o, o_t.to(o.dtype.element_ty), mask=(n < T)[:, None] & in_v[None, :])
