"""The gated delta rule over a packed tree, from one state, without writing any: a triangular solve among ancestors.

    G_i  = sum of g over the path from the root to i, itself included                                     (1)
    A_ij = beta_i scores(k)_ij       for strict ancestors j of i, else 0   (`delta_window`)                (2)
    (I + A) U = beta (V - decayed(k) S)                                                                   (3)
    o    = decayed(q) S + scores(q) U         scores over ancestors and the node itself                   (4)

Nodes are in topological order, so that A is strictly lower triangular. Up to 32 of them are a window whose tokens see their
ancestors instead of all earlier tokens: the kernel of `delta_chunked`. More of them, in bf16 with a gate per head, are
multiplied with the inverse: `delta_tree_products`, except on GPUs of compute capability 10 and more, for which Triton 3.7.1
compiles it to a trap. The rest (those GPUs, other activations, a gate per key channel, keys of more than 128 channels) is
solved here in blocks of 16: for rows of block a, the right side of (3) less A_a U of the earlier blocks, one product, then a
forward substitution of 16 rows. Each row of the batch has its own tree; a node that does not see itself is padding, whatever
its mask contains, and its output is 0.

A program owns v channels of one value head of one row, with all of k; it reads its tile of the state and each node once, and
keeps G and U of all nodes in registers. Layout: S (s, h, k, v), as in `delta_scan`. Bound by the bytes of the state for small
trees, by the products among the nodes for large ones.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ssmspec_ref.errors import ParameterError, ShapeMismatch

from ..launch import strides
from ..row import Ancestors, Axes, Slots, launcher, moved
from ..shared.dots import dot_both
from ..shared.strides import MaskStrides
from ..shared.tree_nodes import real_nodes, seen_nodes
from ..shared.tuning import H200
from . import delta_inputs as delta
from .delta_chunked import LONGEST, launch_window
from .delta_inputs import check_inputs, load_gate_params, window_strides
from .delta_solve import Solved
from .delta_tree_products import launch_products
from .delta_window import check_one_type, from_state, load_window, norms, scores, substituted

LARGEST = 128


def traffic_bytes(
    b: int, t: int, g: int, h: int, k: int, v: int, *, state: int = 4, io: int = 2, gate: int = 4, channel: bool = False
) -> int:
    """Bytes that must cross the memory bus for b live rows of t nodes: the state, the nodes, the outputs, and the mask.

    Units: bytes; `state`, `io` and `gate` are the bytes of an element; `gate` is that of g and beta.
    """
    axes = {"s": b, "b": b, "t": t, "j": t, "g": g, "h": h, "k": k, "v": v}
    left_out = "solved.parts", "solved.factors"
    return moved(delta_tree, axes, {"state": state, "io": io, "gate": gate}, without=left_out, form=int(channel))


@launcher
def delta_tree(
    axes: Axes,
    S: delta.Start,
    q: delta.Keys,
    k: delta.Keys,
    v: delta.Values,
    g: delta.Gates,
    beta: delta.Strengths,
    ancestors: Ancestors,
    *,
    A: delta.Decay | None = None,
    dt_bias: delta.GateBias | None = None,
    l2_norm: bool = True,
    scale: float | None = None,
    eps: float = 1e-6,
    slots: Slots | None = None,
    out: delta.Outputs | None = None,
    inverse: bool | None = None,
    two_launches: bool | None = None,
    solved: Solved | None = None,
    tiles: tuple[int, int, int] | None = None,
    block_v: int | None = None,
    num_warps: int | None = None,
) -> Tensor:
    """The outputs (b, t, h, v) at the nodes of each row's tree over S[slots], which is only read: (1) to (4).

    `ancestors` (b, t, j): node t sees node j; ancestors precede, and their sets nest (`ssmspec_ref.tree`), which a launch
    cannot check. The other arguments are those of `delta_scan`; several rows may share a state. The output of a padding row
    is not written. `inverse` allows or forbids the inverse for large trees (None: decided by the device).
    `two_launches` and `solved`: see `delta_chunked`.

    Raises: ShapeMismatch, PrecisionError, ParameterError (more than 128 nodes, or two launches for unsupported arguments),
    before anything is written.
    """
    scale = check_inputs(axes, A, dt_bias, slots, scale, eps)
    check_one_type(q, k, v)
    b, t, groups, h = (axes[a] for a in "btgh")
    if axes["j"] != t:
        raise ShapeMismatch(f"the mask has {t} rows and {axes['j']} columns; give one of each for every node")
    if t > LARGEST:
        raise ParameterError(f"the tree holds {t} nodes; a launch takes up to {LARGEST}: prune it")
    o = torch.empty_like(v) if out is None else out
    if t <= LONGEST or two_launches:
        launch_window(
            S, q, k, v, g, beta, A, dt_bias, slots, None, ancestors, o, l2_norm, scale, eps, False, two_launches, solved,
            tiles,
        )  # fmt: skip
        return o
    may = not is_trap(S.device) if inverse is None else inverse
    if may and q.dtype == torch.bfloat16 and g.dim() == 3 and axes["k"] <= 128:
        launch_products(S, q, k, v, g, beta, A, dt_bias, slots, ancestors, o, l2_norm, scale, eps, block_v)
        return o
    nodes = max(16, triton.next_power_of_2(t))
    block, warps = tile(axes["v"], nodes)
    block, warps = block_v or block, num_warps or warps
    _delta_tree_kernel[(triton.cdiv(axes["v"], block), h, b)](
        S, q, k, v, g, beta, A, dt_bias, slots, ancestors, o,
        window_strides(S, q, k, v, g, beta, o), MaskStrides(*strides(ancestors, 3)), *strides(dt_bias, 1), scale, eps,
        T=t, K=axes["k"], V=axes["v"], HEADS_PER_KEY=h // groups, CHANNEL=g.dim() == 4, L2_NORM=l2_norm,
        SPLIT=q.dtype == torch.bfloat16, BLOCKS=triton.cdiv(t, 16), ALL=nodes,
        BLOCK_K=max(16, triton.next_power_of_2(axes["k"])), BLOCK_V=block, num_warps=warps,
    )  # fmt: skip
    return o


def is_trap(device: torch.device) -> bool:
    """Whether `delta_tree_products` compiles to a trap for a device; compiled kernels run on GPUs only."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 10


def tile(v: int, nodes: int) -> tuple[int, int]:
    """Value channels and warps of a program."""
    row = H200["delta_tree"]
    return max(16, min(triton.next_power_of_2(v), row["block_v"])), row["warps"]


@triton.jit
def _with_block(whole, part, block):
    """`whole` (nodes ..) with its block of 16 nodes replaced by `part` (16 ..)."""
    blocks: tl.constexpr = whole.shape[0] // 16
    is_block = tl.arange(0, blocks) == block
    if len(whole.shape) == 1:
        new = tl.where(is_block[:, None], part[None, :], tl.reshape(whole, (blocks, 16)))
    else:
        new = tl.where(is_block[:, None, None], part[None, :, :], tl.reshape(whole, (blocks, 16, whole.shape[1])))
    return tl.reshape(new, whole.shape)


@triton.jit
def _delta_tree_kernel(
    S, q, k, v, g, beta, A, dt_bias, slots, ancestors, o,
    stride, stride_anc, stride_bias_h, scale, eps,
    T: tl.constexpr, K: tl.constexpr, V: tl.constexpr, HEADS_PER_KEY: tl.constexpr, CHANNEL: tl.constexpr,
    L2_NORM: tl.constexpr, SPLIT: tl.constexpr, BLOCKS: tl.constexpr, ALL: tl.constexpr, BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(2).to(tl.int64)
    h = tl.program_id(1).to(tl.int64)
    slot = b
    if slots is not None:
        slot = tl.load(slots + b).to(tl.int64)
    if slot >= 0:
        group = h // HEADS_PER_KEY
        i = tl.arange(0, BLOCK_K).to(tl.int64)
        j = tl.program_id(0).to(tl.int64) * BLOCK_V + tl.arange(0, BLOCK_V)
        in_k, in_v = i < K, j < V
        inside = in_k[:, None] & in_v[None, :]
        at_S = S + slot * stride.S.s + h * stride.S.h + i[:, None] * stride.S.k + j[None, :]
        state = tl.load(at_S, mask=inside, other=0.0).to(tl.float32)
        decay, bias = load_gate_params(A, dt_bias, h, i, stride_bias_h, in_k, CHANNEL)
        every = tl.arange(0, ALL).to(tl.int64)
        at_mask = ancestors + b * stride_anc.b
        live = real_nodes(at_mask, every, every < T, stride_anc)
        at_q, at_k = q + b * stride.q.b + group * stride.q.g, k + b * stride.k.b + group * stride.k.g
        at_v, at_g = v + b * stride.v.b + h * stride.v.h, g + b * stride.g.b + h * stride.g.h
        at_beta = beta + b * stride.beta.b + h * stride.beta.h
        k_all = tl.load(at_k + every[:, None] * stride.k.t + i[None, :], mask=live[:, None] & in_k[None, :], other=0.0)
        r_all = norms(k_all, 1.0, eps, L2_NORM)
        G_all = tl.zeros([ALL, BLOCK_K], tl.float32) if CHANNEL else tl.zeros([ALL], tl.float32)
        g_all = G_all
        U = tl.zeros([ALL, BLOCK_V], tl.float32)
        for block in range(BLOCKS):
            t = block * 16 + tl.arange(0, 16).to(tl.int64)
            real = real_nodes(at_mask, t, t < T, stride_anc)
            sees = seen_nodes(at_mask, t, every, real, every < T, stride_anc)
            q_t, k_t, v_t, g_t, beta_t = load_window(
                at_q, at_k, at_v, at_g, at_beta, A, decay, bias, real, t, stride.q.t, stride.k.t, stride.v.t, stride.g.t,
                stride.beta.t, i, j, in_k, in_v, CHANNEL,
            )  # fmt: skip
            r_q, r_k = norms(q_t, scale, eps, L2_NORM), norms(k_t, 1.0, eps, L2_NORM)
            g_all = _with_block(g_all, g_t, block)
            if CHANNEL:
                G = tl.dot(sees.to(tl.float32), g_all, input_precision="ieee")  # (1)
            else:
                G = tl.sum(tl.where(sees, g_all[None, :], 0.0), axis=1)  # (1)
            G_all = _with_block(G_all, G, block)
            coupling = beta_t[:, None] * scores(k_t, r_k, G, k_all, r_all, G_all, sees, T, CHANNEL)  # (2)
            R = beta_t[:, None] * (v_t - from_state(k_t, r_k, G, state, CHANNEL, SPLIT))
            R -= dot_both(coupling, U, SPLIT)  # U of this block and of later ones is still 0
            near = seen_nodes(at_mask, t, t, real, t < T, stride_anc)
            near &= t[:, None] != t[None, :]
            own = beta_t[:, None] * scores(k_t, r_k, G, k_t, r_k, G, near, 16, CHANNEL)
            U = _with_block(U, substituted(own, R, 16), block)  # (3)
            o_t = from_state(q_t, r_q, G, state, CHANNEL, SPLIT)
            o_t += dot_both(scores(q_t, r_q, G, k_all, r_all, G_all, sees, T, CHANNEL), U, SPLIT)  # (4)
            at_o = o + b * stride.o.b + t[:, None] * stride.o.t + h * stride.o.h + j[None, :]
            tl.store(at_o, o_t.to(o.dtype.element_ty), mask=(t < T)[:, None] & in_v[None, :])
