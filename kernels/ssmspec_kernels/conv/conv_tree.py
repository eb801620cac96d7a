"""Causal convolution over a packed tree: each node reads the last w inputs on its own path.

    ext = [M | v_0 .. v_{J-1}],  M_0 = ext[advanced : advanced + w]   v the inputs of the previous window        (1)
    q_0 = i,  q_{k+1} = parent(q_k), and q_k - 1 after a root         node q, or column w + q of M_0 where q < 0 (2)
    y_i = act(bias + sum_k weight_{w-1-k} input(q_k))                 oldest first; 0 at padding                 (3)

parent(root) = -1, so that (2) continues from the tree into the state; a node of depth d reads w - d - 1 columns. A program
owns a tile of channels and all nodes of one row: each input and each column is read once, and the nodes exchange them on the
chip. The state is unchanged, or becomes M_0. The short convolution's trees are the same kernel. Layout: M (s, c, w), oldest
first, a pool that rows index through `slots`; a row with a negative slot is padding and is skipped.
Bound by the bytes of the inputs.
"""

from typing import Annotated, Any, Literal, get_args

import torch
import triton
import triton.language as tl
import triton.language.extra.cuda  # griddepcontrol
from torch import Tensor

from ssmspec_ref.errors import ParameterError, Unsupported

from ..launch import AS_WRITTEN, check_pool, overlapped, strides
from ..row import Axes, Slots, launcher, points, reads
from ..shared.functions import silu
from ..shared.strides import TokenStrides
from ..shared.tuning import H200
from . import conv_taps as conv
from .conv_taps import accepted_count, check_replay, check_width, load_columns, load_filters, load_product, store_columns

MOST = 128
Write = Literal["committed", "none"]


def traffic_bytes(
    b: int, nodes: int, c: int, w: int, *, state: int = 4, io: int = 2, keep: Write = "none", advanced: int | None = None
) -> int:
    """Bytes that must cross the memory bus for b rows and `nodes` nodes in all (outputs at padding are zeros, not counted).

    `advanced` inputs of a previous window were accepted in each row (None: there was none). Parameters are left out.

    Units: bytes; `state` and `io` are the bytes of an element.
    """
    columns = w if keep == "committed" else w - 1
    replayed = min(advanced or 0, columns)
    written = w if keep == "committed" else 0
    return b * c * ((columns - replayed + written) * state + replayed * io) + 2 * nodes * c * io


@launcher
def conv_tree(
    axes: Axes,
    M: conv.Window,
    u: conv.Inputs,
    parents: Annotated[Tensor, points("b t")] | None,
    weight: conv.Taps,
    *,
    bias: conv.Bias | None = None,
    activation: bool = True,
    slots: Slots | None = None,
    previous: Annotated[Tensor, reads("b j c")] | None = None,
    advanced: conv.Advanced | None = None,
    path: conv.Path | None = None,
    keep: Write = "none",
    out: conv.Outputs | None = None,
    block_c: int | None = None,
    num_warps: int | None = None,
) -> Tensor:
    """The outputs (b, t, c) at every node of a tree with inputs u (b, t, c), equations (1) to (3).

    `parents` (b, t) gives each row its own tree: -1 at a root, -2 at padding; a parent comes before its children, which the
    kernel cannot check (a later one is read as the previous node, so that nothing out of bounds is read). None is a chain,
    whose tokens are computed in parallel. Padding is not read; its output is 0. `previous` (b, j, c) are the inputs of the
    window before, of which the first `advanced` (b), or the nodes `path` (b, l) padded with -1, were accepted; with `keep` =
    "committed" the window after them is stored in M[slots]. `slots` (b) gives the window of each row (None: row b has slot
    b). The output of a padding row is not written.

    Raises: ShapeMismatch, PrecisionError, ParameterError, Unsupported (more than 128 nodes), before anything is written.
    """
    check_width(axes["w"])
    check_pool(axes["s"], axes["b"], slots)
    check_replay(previous, advanced, path)
    if keep not in get_args(Write):
        raise ParameterError(f"keep is {keep!r}; give 'committed' or 'none' (a tree has no one window at its end)")
    if keep == "committed" and previous is None:
        raise ParameterError("keep is 'committed' without previous inputs; give previous, or keep 'none'")
    y = torch.empty_like(u) if out is None else out
    launch_tree(
        axes, M, None, None, u, parents, weight, bias, slots, previous, advanced, path, y, block_c, num_warps, KEPT=axes["w"],
        ACTIVATION=activation, COMMIT=keep == "committed", **overlapped(u.device),
    )  # fmt: skip
    return y


def launch_tree(
    axes: Axes,
    M: Tensor,
    B: Tensor | None,
    C: Tensor | None,
    u: Tensor,
    parents: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    slots: Tensor | None,
    previous: Tensor | None,
    advanced: Tensor | None,
    path: Tensor | None,
    y: Tensor,
    block_c: int | None,
    num_warps: int | None,
    **options: Any,
) -> None:
    """(1) to (3) of checked arguments, those of `conv_tree`; with B and C of products B u, and y times C.

    Raises: Unsupported (more than 128 nodes).
    """
    (b, t, c), w, longest = u.shape, axes["w"], axes.get("l", 1)
    if t > MOST:
        raise Unsupported(f"the tree holds {t} nodes, and this kernel takes at most {MOST}; split it")
    block_t = triton.next_power_of_2(t)
    block, warps = tile(b, c, block_t, w)
    block, warps = block_c or block, num_warps or warps
    of_B, of_C = (None if x is None else TokenStrides(*strides(x, 2)) for x in (B, C))
    of_previous, of_path = (strides(x, 2) if B is None else (None, None) for x in (previous, path))
    _conv_tree_kernel[(triton.cdiv(c, block), b)](
        M, B, C, u, parents, weight, bias, slots, previous, advanced, path, y,
        *strides(M, 2), of_B, of_C, TokenStrides(*strides(u, 2)), *strides(parents, 2), *strides(weight, 2), *of_previous,
        *of_path, *strides(y, 2),
        T=t, CHANNELS=c, W=w, PREVIOUS=axes.get("j", 0), LONGEST=longest, BLOCK_T=block_t, BLOCK_C=block,
        BLOCK_W=triton.next_power_of_2(w), BLOCK_L=triton.next_power_of_2(longest), num_warps=warps, **AS_WRITTEN, **options,
    )  # fmt: skip


def tile(b: int, c: int, block_t: int, w: int) -> tuple[int, int]:
    """Channels and warps of a program, chosen by the size of the tree on an H200 for one row to 32: few rows need more, and
    smaller, programs.
    """
    row = H200["conv_tree"]
    if block_t <= row["small_nodes"]:
        block, warps = row["small_channels"], row["small_warps"]
    elif block_t > row["large_nodes"]:
        block, warps = row["large_channels"], row["large_warps"]
    else:
        block, warps = row["few_channels" if b <= row["few_rows"] else "channels"], row["warps"]
    return min(triton.next_power_of_2(c), block), warps if w <= 4 else 2 * warps


@triton.jit
def _along_paths(inputs, window, parent, taps, shift, W: tl.constexpr, KEPT: tl.constexpr):
    """The sums of (3) over the nodes (2) and the last columns of the window, oldest first, in the order of a chain: the same
    bits."""
    q, path_back = parent, ()
    for _ in tl.static_range(1, W):
        path_back += (q,)  # type: ignore[assignment]
        at = tl.maximum(q, 0)
        q = tl.where(q >= 0, tl.gather(parent, at, 0), q - 1)  # (2)
    acc = tl.broadcast_to(shift[None, :], inputs.shape)
    for k in tl.static_range(W - 1):
        q = path_back[W - 2 - k]
        value = tl.gather(inputs, tl.broadcast_to(tl.maximum(q, 0)[:, None], inputs.shape), 0)
        for m in tl.static_range(1, W - k):
            value = tl.where((q == -m)[:, None], window[KEPT - m][None, :], value)
        acc += value * taps[k][None, :]  # (3)
    return acc + inputs * taps[W - 1][None, :]


@triton.jit
def _conv_tree_kernel(
    M, B, C, u, parents, weight, bias, slots, previous, advanced, path, y,
    stride_M_s, stride_M_c, stride_B, stride_C, stride_u, stride_parents_b, stride_parents_t, stride_weight_c,
    stride_weight_w, stride_previous_b, stride_previous_t, stride_path_b, stride_path_l, stride_y_b, stride_y_t,
    T: tl.constexpr, CHANNELS: tl.constexpr, W: tl.constexpr, KEPT: tl.constexpr, PREVIOUS: tl.constexpr,
    LONGEST: tl.constexpr, ACTIVATION: tl.constexpr, COMMIT: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr,
    BLOCK_W: tl.constexpr, BLOCK_L: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """KEPT: the columns of the state."""
    if OVERLAP:  # the next launch may start once the last of these programs runs
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    b = tl.program_id(1).to(tl.int64)
    slot = b
    if slots is not None:
        slot = tl.load(slots + b).to(tl.int64)
    if slot >= 0:
        c = tl.program_id(0).to(tl.int64) * BLOCK_C + tl.arange(0, BLOCK_C)
        inside = c < CHANNELS
        state = M + slot * stride_M_s
        if previous is None:
            window = load_columns(state, None, None, 0, 0, True, c, inside, stride_M_c, 0, 0, KEPT, KEPT - W + 1)
        else:
            nodes = None if path is None else path + b * stride_path_b
            first = accepted_count(advanced, nodes, b, PREVIOUS, stride_path_l, LONGEST, BLOCK_L)
            window = load_columns(
                state, previous + b * stride_previous_b, nodes, first, PREVIOUS, True, c, inside,
                stride_M_c, stride_previous_t, stride_path_l, W, 0 if COMMIT else 1,
            )  # (1)  # fmt: skip
        if COMMIT:
            store_columns(state, window, c, inside, stride_M_c, W, BLOCK_C, BLOCK_W)
        taps, shift = load_filters(weight, bias, c, inside, stride_weight_c, stride_weight_w, W)
        i = tl.arange(0, BLOCK_T)
        t = i.to(tl.int64)
        if parents is not None:
            given = tl.load(parents + b * stride_parents_b + t * stride_parents_t, mask=i < T, other=-2).to(tl.int32)
            real, parent = given >= -1, tl.minimum(given, i - 1)
        else:
            real, parent = i < T, i - 1
        whole, C_i = real[:, None] & inside[None, :], 1.0
        if B is None:
            u_at = u + b * stride_u.b + t[:, None] * stride_u.t + c[None, :]
            inputs = tl.load(u_at, mask=whole, other=0.0).to(tl.float32)
        else:
            B_at, u_at = B + b * stride_B.b + t[:, None] * stride_B.t, u + b * stride_u.b + t[:, None] * stride_u.t
            inputs = load_product(B_at + c[None, :], u_at + c[None, :], whole)
            C_at = C + b * stride_C.b + t[:, None] * stride_C.t + c[None, :]
            C_i = tl.load(C_at, mask=whole, other=0.0).to(tl.float32)
        acc = _along_paths(inputs, window, parent, taps, shift, W, KEPT)
        if ACTIVATION:
            acc = silu(acc)
        if C is not None:
            acc = C_i * acc
        acc = tl.where(real[:, None], acc, 0.0)
        y_at = y + b * stride_y_b + t[:, None] * stride_y_t + c[None, :]
        tl.store(y_at, acc.to(y.dtype.element_ty), mask=(i < T)[:, None] & inside[None, :])
