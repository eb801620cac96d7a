"""Kimi Delta Attention over a packed tree, from one state, without writing any: a triangular solve among ancestors.

    G_i  = sum of g over the path from the root to i, itself included                                     (1)
    C_ij = r_i k_i^T diag(exp(G_i - G_j)) r_j k_j,   P_ij with q_i in place of k_i      i sees j, else 0   (2)
    A    = beta C below the diagonal,   N = P (I + A)^-1 diag(beta)                                       (3)
    o    = r q exp(G) S + N (V - r k exp(G) S)                                                            (4)

r is the scale and norm of a query or key, one number per node. The decay of a pair is one number per channel, so that (2) is
no product of matrices: each key in turn is multiplied with all nodes, and one exp serves queries and keys. The exponent of a
pair that is not seen may be large and positive; the mask is applied before exp. Nothing is divided by a decay: exp(-G_j)
would overflow after a few strong decays. (1) to (3) do not depend on v, and are computed once for all tiles of a program.
Each row of the batch has its own tree; a node that does not see itself is padding, whatever its mask contains, and its output
is 0.

A program owns tiles of v channels of one value head of one row, with all of k in parts of 32. Keys and queries are the rows
of one matrix, so that a part of the state is cut once, and a warp holds the rows of one kind. Trees of more than 32 nodes go
to `delta.delta_tree`, which solves them in blocks; it has no lower bound, so the gates are formed before it. Layout: S (s, h,
k, v), as in `kda_scan`. Bound by the bytes of the state. A node that is not finite makes its tree NaN in its head.
Source: `ssmspec_ref.delta.tree`; (2) to (4) as in `delta.delta_tree`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ssmspec_ref.errors import ShapeMismatch

from ..delta.delta_inputs import load_gate_params, slot_of, window_strides
from ..delta.delta_tree import delta_tree
from ..delta.delta_window import check_one_type, norms, substituted
from ..launch import FLOATS, strides
from ..shared.dots import dot_both
from ..shared.functions import sigmoid
from ..shared.strides import MaskStrides
from ..shared.tree_nodes import real_nodes, seen_nodes
from ..shared.tuning import H200
from ..ssd.ssd_inputs import load_rows
from .kda_inputs import check_kda, formed, kda_gates
from .kda_scan import traffic_bytes as scan_bytes

LARGEST = 32
"""Most nodes of a tree that is solved here."""


def traffic_bytes(b: int, t: int, g: int, h: int, k: int, v: int, *, state: int = 4, io: int = 2, gate: int = 4) -> int:
    """Bytes that must cross the memory bus for b live rows of t nodes: the state, the nodes, the outputs, and the mask.

    Units: bytes; `state`, `io` and `gate` are the bytes of an element; `gate` is that of g and beta.
    """
    return scan_bytes(b, t, g, h, k, v, state=state, io=io, gate=gate, write_state=False) + b * t * t


def kda_tree(
    S: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    ancestors: Tensor,
    *,
    A: Tensor | None = None,
    dt_bias: Tensor | None = None,
    lower_bound: float | None = None,
    l2_norm: bool = True,
    scale: float | None = None,
    eps: float = 1e-6,
    slots: Tensor | None = None,
    out: Tensor | None = None,
    tiles: tuple[int, int] | None = None,
) -> Tensor:
    """The outputs (b, t, h, v) at the nodes of each row's tree over S[slots], which is only read: (1) to (4).

    `ancestors` (b, t, j): node t sees node j; ancestors precede, and their sets nest (`ssmspec_ref.tree`), which a launch
    cannot check. The other arguments are those of `kda_scan`; several rows may share a state. The output of a padding row is
    not written. `tiles`: channels v of a tile and tiles of a program (None: those of `tile`).

    Raises: ShapeMismatch, PrecisionError, ParameterError (more than 128 nodes), before anything is written.
    """
    more = ("ancestors", ancestors, "b t j", (torch.bool,)), ("out", out, "b t h v", FLOATS)
    axes, scale = check_kda(S, q, k, v, g, beta, A, dt_bias, lower_bound, slots, scale, eps, *more)
    check_one_type(q, k, v)
    b, t, h = axes["b"], axes["t"], axes["h"]
    if axes["j"] != t:
        raise ShapeMismatch(f"the mask has {t} rows and {axes['j']} columns; give one of each for every node")
    if t > LARGEST:
        if lower_bound is not None:
            (g, beta), A, dt_bias = formed(g, beta, A, dt_bias, lower_bound), None, None
        given = {"A": A, "dt_bias": dt_bias, "l2_norm": l2_norm, "scale": scale, "eps": eps, "slots": slots, "out": out}
        return delta_tree(S, q, k, v, g, beta, ancestors, **given)  # type: ignore[arg-type]
    o = torch.empty_like(v) if out is None else out
    row = H200["kda_tree"]
    block, each = tiles or tile(b * h, axes["v"])
    whole = max(16, triton.next_power_of_2(axes["k"]))
    kda_tree_kernel[(triton.cdiv(axes["v"], block * each), h, b)](
        S, q, k, v, g, beta, A, dt_bias, slots, ancestors, o,
        window_strides(S, q, k, v, g, beta, o), MaskStrides(*strides(ancestors, 3)), *strides(dt_bias, 1), scale, eps,
        lower_bound or 0.0,
        T=t, K=axes["k"], V=axes["v"], HEADS_PER_KEY=h // axes["g"], BOUNDED=lower_bound is not None, L2_NORM=l2_norm,
        SPLIT=q.dtype == torch.bfloat16, BLOCK_T=max(16, triton.next_power_of_2(t)), BLOCK_K=whole,
        WIDTH=min(row["part"], whole), BLOCK_V=block, TILES=each, num_warps=row["warps"],
    )  # fmt: skip
    return o


def tile(heads: int, v: int) -> tuple[int, int]:
    """Channels v of a tile, and tiles of a program; `heads` counts heads of rows. Chosen so that few heads make many
    programs, and many heads compute (1) to (3) once each."""
    row = H200["kda_tree"]
    block = max(16, min(triton.next_power_of_2(v), row["few_block_v" if heads <= row["few_heads"] else "block_v"]))
    return block, 1 if heads <= row["split_heads"] else triton.cdiv(v, block)


@triton.jit
def path_sums(g, A, decay, bias, low, sees, real, t, i, in_k, stride_g_t, BOUNDED: tl.constexpr):
    """G (1) of the rows of `sees` at some channels; the pointer is that of the head. Padding is seen by no node, and beyond k
    queries and keys are 0."""
    g_t = load_rows(g, t * stride_g_t, i, real, in_k).to(tl.float32)
    g_t, _ = kda_gates(g_t, 0.0, decay, bias, low, A, BOUNDED)
    return tl.dot(sees.to(tl.float32), g_t, input_precision="ieee")


@triton.jit
def pair_scores(q, k, G, sees, T: tl.constexpr):
    """(2) without the factors r: of the queries, and of the keys."""
    n = tl.arange(0, k.shape[0])
    to_query, to_key = tl.zeros(sees.shape, tl.float32), tl.zeros(sees.shape, tl.float32)
    for j in range(T):
        is_j = (n == j)[:, None]
        key, at_key = tl.sum(tl.where(is_j, k, 0.0), axis=0), tl.sum(tl.where(is_j, G, 0.0), axis=0)
        seen = tl.sum(tl.where((n == j)[None, :] & sees, 1, 0), axis=1) != 0
        weight = key[None, :] * tl.exp(tl.where(seen[:, None], G - at_key[None, :], float("-inf")))
        to_query = tl.where((n == j)[None, :], tl.sum(q * weight, axis=1)[:, None], to_query)
        to_key = tl.where((n == j)[None, :], tl.sum(k * weight, axis=1)[:, None], to_key)
    return to_query, to_key


@triton.jit
def kda_tree_kernel(
    S, q, k, v, g, beta, A, dt_bias, slots, ancestors, o, stride, stride_anc, stride_bias_h, scale, eps, low,
    T: tl.constexpr, K: tl.constexpr, V: tl.constexpr, HEADS_PER_KEY: tl.constexpr, BOUNDED: tl.constexpr,
    L2_NORM: tl.constexpr, SPLIT: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_V: tl.constexpr, TILES: tl.constexpr,
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
        i = tl.arange(0, BLOCK_K).to(tl.int64)
        decay, bias = load_gate_params(A, dt_bias, h, i, stride_bias_h, i < K, True)
        q_t, k_t = load_rows(at_q, t * stride.q.t, i, real, i < K), load_rows(at_k, t * stride.k.t, i, real, i < K)
        G = path_sums(at_g, A, decay, bias, low, sees, real, t, i, i < K, stride.g.t, BOUNDED)
        r_q, r_k = norms(q_t, scale, eps, L2_NORM), norms(k_t, 1.0, eps, L2_NORM)
        to_query, to_key = pair_scores(q_t.to(tl.float32), k_t.to(tl.float32), G, sees, T)
        at_beta = beta + b * stride.beta.b + h * stride.beta.h
        beta_t = tl.load(at_beta + t * stride.beta.t, mask=real, other=0.0).to(tl.float32)
        if A is not None:
            beta_t = sigmoid(beta_t)
        coupling = tl.where(n[:, None] > n[None, :], beta_t[:, None] * r_k[:, None] * to_key * r_k[None, :], 0.0)
        solve = substituted(coupling, tl.where(n[:, None] == n[None, :], 1.0, 0.0), T) * beta_t[None, :]
        solve = dot_both(r_q[:, None] * to_query * r_k[None, :], solve, SPLIT)  # (3)
        m = tl.arange(0, 2 * BLOCK_T)
        node, is_key = (m % BLOCK_T).to(tl.int64), m < BLOCK_T
        at_x = tl.where(is_key, at_k + node * stride.k.t, at_q + node * stride.q.t)
        real_x = real_nodes(at_anc, node, node < T, stride_anc)
        sees_x = seen_nodes(at_anc, node, t, real_x, real, stride_anc)
        xs = ()
        for part in tl.static_range(BLOCK_K // WIDTH):
            i = part * WIDTH + tl.arange(0, WIDTH).to(tl.int64)
            decay, bias = load_gate_params(A, dt_bias, h, i, stride_bias_h, i < K, True)
            x = tl.load(at_x[:, None] + i[None, :], mask=real_x[:, None] & (i < K)[None, :], other=0.0).to(tl.float32)
            G = path_sums(at_g, A, decay, bias, low, sees_x, real, t, i, i < K, stride.g.t, BOUNDED)
            xs += (x * tl.exp(G),)  # type: ignore[assignment]
        for tile_v in range(TILES):
            j = (tl.program_id(0).to(tl.int64) * TILES + tile_v) * BLOCK_V + tl.arange(0, BLOCK_V)
            in_v = j < V
            read = tl.zeros([2 * BLOCK_T, BLOCK_V], tl.float32)
            for part in tl.static_range(BLOCK_K // WIDTH):
                i = part * WIDTH + tl.arange(0, WIDTH).to(tl.int64)
                at_S = S + slot * stride.S.s + h * stride.S.h + i[:, None] * stride.S.k + j[None, :]
                state = tl.load(at_S, mask=(i < K)[:, None] & in_v[None, :], other=0.0).to(tl.float32)
                read += dot_both(xs[part], state, SPLIT)
            read = tl.reshape(read, (2, BLOCK_T, BLOCK_V))
            first = (tl.arange(0, 2) == 0)[:, None, None]
            from_key, from_query = tl.sum(tl.where(first, read, 0.0), axis=0), tl.sum(tl.where(first, 0.0, read), axis=0)
            at_v = v + b * stride.v.b + h * stride.v.h + t[:, None] * stride.v.t + j[None, :]
            v_t = tl.load(at_v, mask=real[:, None] & in_v[None, :], other=0.0).to(tl.float32)
            o_t = r_q[:, None] * from_query + dot_both(solve, v_t - r_k[:, None] * from_key, SPLIT)  # (4)
            at_o = o + b * stride.o.b + h * stride.o.h + t[:, None] * stride.o.t + j[None, :]
            tl.store(at_o, o_t.to(o.dtype.element_ty), mask=(n < T)[:, None] & in_v[None, :])
