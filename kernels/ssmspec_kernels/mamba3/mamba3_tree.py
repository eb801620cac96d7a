"""Mamba-3 over a packed tree, from one state, without writing any.

    G_i  = sum of ld over the path from the root to i, itself included,   E_ij = exp(G_i - G_j), i sees j       (1)
    th_i = th_S + sum of pi dt tanh(angle) over the path                                                       (2)
    k_j, q_i in pairs of channels that th_j and th_i rotate, as in `mamba3_inputs` (3)                           (3)
    W_im = E_im dt_m l_m + E_ij b_j,  j the child of m on the path to i,  b_j = exp(ld_j) dt_j (1 - l_j)        (4)
    o_ir = exp(G_i) S q_ir + sum_m W_im sum_s (k_ms q_ir) v_ms + E_ij b_j sum_s (k-_s q_ir) v-_s,  j a root        (5)
    y_i  = sum_r down_r (o_ir + D v_ir) silu(gate_r z_i)                                                       (6)

A token's input is written twice: by itself, and once more by its child with a weight that only the child knows. On the path
to a node both writes are one weight (4); the second write of the state's own input is the last term of (5). Each row of the
batch has its own tree; a node that does not see itself is padding, whatever its mask contains, and its output is 0.

A program owns one head of one row. Products are of two fp32 operands, as keys and queries are rotated: in bf16 parts that
hold all of their bits (`dots`), since products in fp32 alone keep their operands in registers, and 64 nodes spilled 57 KB on
sm_90. Nothing of it was measured on a GPU yet. Layout: S (s, h, e), as in `mamba3_inputs`. Bound by the bytes of the state
for small trees, by the products among the nodes for large ones.
Source: `ssmspec_ref.mamba3.tree`; STree, section 3, for the sum of (5).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ssmspec_ref.errors import ParameterError, ShapeMismatch

from ..delta.delta_inputs import slot_of
from ..launch import AS_WRITTEN, strides
from ..row import Ancestors, Axes, Slots, launcher, moved
from ..shared.dots import dot_both
from ..shared.functions import sigmoid, silu, softplus
from ..shared.strides import MaskStrides
from ..shared.tree_nodes import real_nodes, seen_nodes
from ..shared.tuning import H200
from . import mamba3_inputs as mamba3
from .mamba3_inputs import PI, TURN_HEAD, TURN_REST, check_window, load_pairs, load_tiles, mapped, turned_by, window_strides

LARGEST = 32
"""Most nodes of a tree."""


def traffic_bytes(
    b: int, t: int, g: int, h: int, p: int, n: int, f: int, r: int, *, state: int = 4, io: int = 2, z: bool = False
) -> int:
    """Bytes that must cross the memory bus for b live rows of t nodes: a scan without its write, and the mask.

    Units: bytes; `state` and `io` are the bytes of an element; `z` says that the outputs are gated.
    """
    sizes = {"g": g, "h": h, "p": p, "n": n, "f": f, "r": r, "e": p * n + f + r * n + p}
    axes = {"s": b, "b": b, "t": t, "j": t, **sizes}
    return moved(mamba3_tree, axes, {"state": state, "io": io}, without=() if z else ("z",))


@launcher
def mamba3_tree(
    axes: Axes,
    S: mamba3.Start,
    x: mamba3.Heads,
    dt: mamba3.PerHeads,
    A: mamba3.PerHeads,
    trap: mamba3.PerHeads,
    angle: mamba3.Angles,
    B: mamba3.Projs,
    C: mamba3.Projs,
    B_norm: mamba3.Norm,
    C_norm: mamba3.Norm,
    B_bias: mamba3.RankBias,
    C_bias: mamba3.RankBias,
    dt_bias: mamba3.PerHead,
    ancestors: Ancestors,
    *,
    D: mamba3.PerHead | None = None,
    z: mamba3.Heads | None = None,
    up: mamba3.Map | None = None,
    gate: mamba3.Map | None = None,
    down: mamba3.Map | None = None,
    A_floor: float = 1e-4,
    eps: float = 1e-5,
    halves: bool = False,
    slots: Slots | None = None,
    out: mamba3.Outputs | None = None,
    num_warps: int | None = None,
) -> Tensor:
    """The outputs (b, t, h, p) at the nodes of each row's tree over S[slots], which is only read: (1) to (6).

    `ancestors` (b, t, j): node t sees node j; ancestors precede, and their sets nest (`ssmspec_ref.tree`), which a launch
    cannot check. The other arguments are those of `mamba3_scan`; several rows may share a state. The output of a padding row
    is not written.

    Raises: ShapeMismatch, PrecisionError, ParameterError (more than 32 nodes), before anything is written.
    """
    check_window(axes, A_floor, eps, slots)
    weights = B_norm, C_norm, B_bias, C_bias, dt_bias, D, up, gate, down
    t, h, p, n = axes["t"], axes["h"], axes["p"], axes["n"]
    if axes["j"] != t:
        raise ShapeMismatch(f"the mask has {t} rows and {axes['j']} columns; give one of each for every node")
    if t > LARGEST:
        raise ParameterError(f"the tree holds {t} nodes; a launch takes up to {LARGEST}: prune it")
    y = torch.empty_like(x) if out is None else out
    nodes = max(16, triton.next_power_of_2(t))
    mamba3_tree_kernel[(h, axes["b"])](
        S, x, dt, A, trap, angle, B, C, z, *weights, slots, ancestors, y,
        *window_strides(S, x, dt, A, trap, angle, B, C, z, y), MaskStrides(*strides(ancestors, 3)), A_floor, eps,
        T=t, P=p, N=n, F=axes["f"], R=axes["r"], HEADS=h // axes["g"], HALVES=halves, BLOCK_T=nodes,
        BLOCK_P=max(16, triton.next_power_of_2(p)), BLOCK_J=max(16, triton.next_power_of_2(n // 2)),
        num_warps=num_warps or H200["mamba3_tree"]["warps"], **AS_WRITTEN,
    )  # fmt: skip
    return y


@triton.jit
def rotated_rows(at, weight, bias, cos, sin, j, there, eps, N: tl.constexpr, HALVES: tl.constexpr):
    """Keys or queries of all nodes, of one rank (3); `at` are the rows, `bias` is that of the head and rank."""
    in_pairs = j < N // 2
    one, two = load_pairs(at[:, None], j[None, :], there[:, None] & in_pairs[None, :], N, HALVES)
    scale, rest = load_pairs(weight, j, in_pairs, N, HALVES)
    shift, more = load_pairs(bias, j, in_pairs, N, HALVES)
    norm = tl.rsqrt(tl.sum(one * one + two * two, axis=1) / N + eps)[:, None]
    one, two = one * norm * scale[None, :] + shift[None, :], two * norm * rest[None, :] + more[None, :]
    return one * cos - two * sin, one * sin + two * cos


@triton.jit
def pair_weights(dt_t, A, trap, sees, real, n, floor):
    """exp(G), the weights of (4), and those of the state's own input in (5)."""
    ld = tl.where(real, -dt_t * tl.maximum(softplus(A), floor), 0.0)
    share = sigmoid(trap)
    G = tl.sum(tl.where(sees, ld[None, :], 0.0), axis=1)
    E = tl.exp(tl.where(sees, G[:, None] - G[None, :], float("-inf")))  # (1)
    before = E * tl.where(real, tl.exp(ld) * dt_t * (1.0 - share), 0.0)[None, :]
    parent = tl.max(tl.where(sees & (n[None, :] < n[:, None]), n[None, :], -1), axis=1)
    of_child = tl.where(parent[:, None] == n[None, :], 1.0, 0.0)
    W = E * tl.where(real, dt_t * share, 0.0)[None, :] + dot_both(before, of_child, True)  # (4)
    return tl.exp(G), W, tl.sum(tl.where((parent < 0)[None, :], before, 0.0), axis=1)


@triton.jit
def angles_of(angle, th, dt_t, sees, there):
    """Cosine and sine of the angles of all nodes (2)."""
    raw = tl.load(angle, mask=there, other=0.0).to(tl.float32)
    turned = PI * (2.0 * sigmoid(2.0 * raw) - 1.0) * dt_t[:, None]
    after = th[None, :] + dot_both(sees.to(tl.float32), turned, True)
    turns = tl.floor(after / (TURN_HEAD + TURN_REST))
    return turned_by((after - turns * TURN_HEAD) - turns * TURN_REST)


@triton.jit
def mamba3_tree_kernel(
    S, x, dt, A, trap, angle, B, C, z, B_norm, C_norm, B_bias, C_bias, dt_bias, D, up, gate, down, slots, ancestors, y,
    stride, stride_out, stride_anc, floor, eps,
    T: tl.constexpr, P: tl.constexpr, N: tl.constexpr, F: tl.constexpr, R: tl.constexpr, HEADS: tl.constexpr,
    HALVES: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_J: tl.constexpr,
):  # fmt: skip
    h, b = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    slot = slot_of(slots, b)
    if slot >= 0:
        n, t = tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_T).to(tl.int64)
        i, j, at_anc = tl.arange(0, BLOCK_P), tl.arange(0, BLOCK_J), ancestors + b * stride_anc.b
        real = real_nodes(at_anc, t, n < T, stride_anc)
        sees = seen_nodes(at_anc, t, t, real, real, stride_anc)
        at_dt = dt + b * stride.dt.b + t * stride.dt.t + h * stride.dt.h
        dt_t = softplus(tl.load(at_dt, mask=real, other=0.0).to(tl.float32) + tl.load(dt_bias + h).to(tl.float32))
        dt_t = tl.where(real, dt_t, 0.0)
        A_t = tl.load(A + b * stride.A.b + t * stride.A.t + h * stride.A.h, mask=real, other=0.0).to(tl.float32)
        at_trap = trap + b * stride.trap.b + t * stride.trap.t + h * stride.trap.h
        trap_t = tl.load(at_trap, mask=real, other=0.0).to(tl.float32)
        decayed, W, first = pair_weights(dt_t, A_t, trap_t, sees, real, n, floor)
        at_S = S + slot * stride.S.s + h * stride.S.h
        one, two = load_tiles(at_S, i, j, i < P, N, HALVES)
        th = tl.load(at_S + P * N + j, mask=j < F, other=0.0).to(tl.float32)
        value = tl.load(at_S + P * N + F + R * N + i, mask=i < P, other=0.0).to(tl.float32)
        at_angle = angle + b * stride.angle.b + t[:, None] * stride.angle.t + j[None, :]
        cos, sin = angles_of(at_angle, th, dt_t, sees, real[:, None] & (j < F)[None, :])
        at_B = B + b * stride.B.b + t * stride.B.t + h // HEADS * stride.B.g
        at_C = C + b * stride.C.b + t * stride.C.t + h // HEADS * stride.C.g
        there = real[:, None] & (i < P)[None, :]
        at_x = x + b * stride.x.b + t[:, None] * stride.x.t + h * stride.x.h + i[None, :]
        x_t = tl.load(at_x, mask=there, other=0.0).to(tl.float32)
        at_z = None if z is None else z + b * stride_out.z.b + t[:, None] * stride_out.z.t + h * stride_out.z.h + i[None, :]
        at_up = None if up is None else up + h * R * P
        y_t = tl.zeros([BLOCK_T, BLOCK_P], tl.float32)
        for r in range(R):
            at_bias = C_bias + (h * R + r) * N
            q, q_two = rotated_rows(at_C + r * stride.C.r, C_norm, at_bias, cos, sin, j, real, eps, N, HALVES)
            o = decayed[:, None] * (dot_both(q, tl.trans(one), True) + dot_both(q_two, tl.trans(two), True))
            for s in range(R):
                at_bias = B_bias + (h * R + s) * N
                k, k_two = rotated_rows(at_B + s * stride.B.r, B_norm, at_bias, cos, sin, j, real, eps, N, HALVES)
                score = dot_both(q, tl.trans(k), True) + dot_both(q_two, tl.trans(k_two), True)
                o += dot_both(W * score, mapped(x_t, at_up, i[None, :], s, P), True)
                key, key_two = load_pairs(at_S + P * N + F + s * N, j, j < N // 2, N, HALVES)
                held = tl.sum(q * key[None, :] + q_two * key_two[None, :], axis=1)
                o += (first * held)[:, None] * mapped(value, at_up, i, s, P)[None, :]  # (5)
            if D is not None:
                o += tl.load(D + h).to(tl.float32) * mapped(x_t, at_up, i[None, :], r, P)
            if z is not None:
                z_t = tl.load(at_z, mask=there, other=0.0).to(tl.float32)
                o *= silu(mapped(z_t, None if gate is None else gate + h * R * P, i[None, :], r, P))
            y_t += mapped(o, None if down is None else down + h * R * P, i[None, :], r, P)  # (6)
        at_y = y + b * stride_out.y.b + t[:, None] * stride_out.y.t + h * stride_out.y.h + i[None, :]
        tl.store(at_y, tl.where(real[:, None], y_t, 0.0).to(y.dtype.element_ty), mask=(n < T)[:, None] & (i < P)[None, :])
