"""Sampled acceptance on the device: the walk of every row's tree by random coins, a last token from the residual, and the
cut.

At node n, with p the target after it, q the draft distribution after it, and children x_1, x_2, .. in the order of their
draw:

    p_1 = p;  accept x_m iff u < p_m(x_m) / q_m(x_m)                                              (1)
    rejected: p_{m+1} = norm((p_m - q_m)+);  if that is zero everywhere, p_m stays               (2)
    none accepted: emit the first token i with u' < p_m(0) + .. + p_m(i)                          (3)

law                    q_m
iid                    q: children drawn independently; on a chain this is rejection sampling
without_replacement    q without x_1 .. x_{m-1}, renormalised
point_mass             the point mass at x_m: deterministic children
naive                  no coins: (3) with p at every node; go to the first child with the token

A child with probability 0 under q_m is skipped. Neither p_m nor q_m is stored: with

    l_1 = 0, S_1 = W_1 = 1,   r_m = (p - l_m q)+                                                  (4)
    p_m = r_m / S_m,   q_m = q / W_m except on drawn tokens                                      (5)
    l_{m+1} = l_m + S_m / W_m,   S_{m+1} = sum r_{m+1},   W_{m+1} = sum of q off the drawn tokens (6)

three numbers replace them. On a drawn token that was rejected r is already 0, since p_m(x) < q_m(x) there, and stays 0. For
point masses r is p except on the drawn tokens. Every row is a distribution; (3) divides by the sum of its row.

Comparisons of fp32 numbers are made in float64: u q is exact there, so that the coin of a first child (on a chain, every
coin) decides as in exact arithmetic, ties included. Later coins, and (3), contain rounding errors of sums over V tokens: they
may decide differently if the two sides of a comparison agree to within a few V 2^-53 of the larger. In fp32 it would be V
2^-24.

Layout: p, q (b, t, i) fp32, coins and picks (b, t) fp32 in [0, 1), by node; the rest as in `accept_greedy`. A program owns a
row and loops over the vocabulary in blocks, in one order; it reads one row of p and, after a rejection, one of q; of every
other node only what a coin needs. Bound by latency, and by the bytes per second that one program can load.
"""

from typing import Annotated, Literal, get_args

import triton
import triton.language as tl
from torch import Tensor

from ssmspec_ref.errors import ParameterError

from ..attention.tree_mask import check_nodes
from ..launch import check_pool, strides
from ..row import FP32, Axes, Slots, launcher, reads
from ..shared.strides import DistributionStrides, PathStrides, TokenStrides
from ..shared.tuning import H200
from .accept_greedy import Budget, Emitted, Ended, EndTokens, Nodes, ends, new_emitted, takes_part

Law = Literal["iid", "without_replacement", "point_mass", "naive"]
Laws = Annotated[Tensor, reads("b t i", FP32)]
Noise = Annotated[Tensor, reads("b t", FP32)]


def traffic_bytes(b: int, t: int, i: int, residuals: int, passed: int, *, index: int = 8) -> int:
    """Bytes that must cross the memory bus under a law with q: rows to draw from, q after a rejection, trees, noise.

    Units: bytes; `index` those of every token, node, and budget. `residuals` rows rejected a child at their last node, and
    `passed` coins were tested at nodes before it, each for a different token.
    """
    return 4 * (i * (b + residuals) + 2 * passed + b * t + b) + index * (4 * b * t + 2 * b) + b


@launcher
def accept_sampled(
    axes: Axes,
    tokens: Nodes,
    parents: Nodes,
    p: Laws,
    picks: Noise,
    budget: Budget,
    *,
    law: Law,
    q: Laws | None = None,
    coins: Noise | None = None,
    eos: EndTokens | None = None,
    ended: Ended | None = None,
    slots: Slots | None = None,
    out: Emitted | None = None,
    block_i: int = H200["accept_sampled"]["block_i"],
    num_warps: int = H200["accept_sampled"]["warps"],
) -> Emitted:
    """The runs of a batch of trees of up to 128 nodes: equations (1) to (3) of the module, cut as in `accept_greedy`.

    `p[b, n]` and `q[b, n]` are the distributions after node n; q is read only at nodes with children. `coins[b, n]` decides
    on node n, `picks[b, n]` the token after node n.

    Raises: ShapeMismatch, PrecisionError, ParameterError (an unknown law, or missing q or coins), Unsupported (more
    nodes), before anything is written.
    """
    if law not in get_args(Law):
        raise ParameterError(f"law is {law!r}; give one of {', '.join(get_args(Law))}")
    needed = {"coins": law != "naive", "q": law in ("iid", "without_replacement")}
    for name, given in (("coins", coins), ("q", q)):
        if needed[name] != (given is not None):
            verb = "needs" if needed[name] else "takes no"
            raise ParameterError(f"the law {law} {verb} {name}; the module lists what each law reads")
    b, t, i = axes["b"], axes["t"], axes["i"]
    check_nodes(t)
    check_pool(axes["s"], b, slots)
    run = new_emitted(tokens, parents) if out is None else out
    _accept_sampled_kernel[(b,)](
        tokens, parents, p, q, coins, picks, budget, ended, eos, slots, *run,
        TokenStrides(*tokens.stride()), TokenStrides(*parents.stride()), DistributionStrides(*strides(p, 2)),
        DistributionStrides(*strides(q, 2)), TokenStrides(*strides(coins, 2)), TokenStrides(*picks.stride()),
        TokenStrides(*run.tokens.stride()), PathStrides(*run.path.stride()),
        T=t, V=i, POINT=law == "point_mass", SHRINKING=law == "without_replacement", EOS=axes.get("o", 1),
        BLOCK_T=triton.next_power_of_2(t), BLOCK_EOS=triton.next_power_of_2(axes.get("o", 1)),
        BLOCK_I=min(block_i, triton.next_power_of_2(i)), num_warps=num_warps,
    )  # fmt: skip
    return run


@triton.jit
def _undrawn(w, i, first, drawn, token, BLOCK_I: tl.constexpr):
    """The weights of a block of the vocabulary, 0 on the drawn tokens."""
    here = drawn & (token >= first) & (token < first + BLOCK_I)
    while tl.max(here.to(tl.int32), axis=0) == 1:
        x = tl.max(tl.where(here, token, -1), axis=0)
        w = tl.where(i == x, 0.0, w)
        here = here & (token != x)
    return w


@triton.jit
def _residual(p_n, q_n, first, l, drawn, token, V: tl.constexpr, POINT: tl.constexpr, BLOCK_I: tl.constexpr):
    """r (4) on the block of the vocabulary that begins at `first`."""
    i = first + tl.arange(0, BLOCK_I)
    r = tl.load(p_n + i, mask=i < V, other=0.0).to(tl.float64)
    if POINT:
        r = _undrawn(r, i, first, drawn, token, BLOCK_I)
    else:
        at = q_n + i
        if l > 0:
            r = tl.maximum(r - l * tl.load(at, mask=i < V, other=0.0).to(tl.float64), 0.0)
    return r


@triton.jit
def _sums(p_n, q_n, l, drawn, token, V: tl.constexpr, POINT: tl.constexpr, SHRINKING: tl.constexpr, BLOCK_I: tl.constexpr):
    """S and, without replacement and after a rejection, W (6)."""
    S = tl.full((), 0.0, tl.float64)
    W = tl.full((), 0.0, tl.float64)
    for first in range(0, V, BLOCK_I):
        S += tl.sum(_residual(p_n, q_n, first, l, drawn, token, V, POINT, BLOCK_I), axis=0)
        if SHRINKING:
            i = first + tl.arange(0, BLOCK_I)
            if l > 0:
                q_i = tl.load(q_n + i, mask=i < V, other=0.0).to(tl.float64)
                W += tl.sum(_undrawn(q_i, i, first, drawn, token, BLOCK_I), axis=0)
    return S, W


@triton.jit
def _pick(p_n, q_n, l, drawn, token, u, S, V: tl.constexpr, POINT: tl.constexpr, BLOCK_I: tl.constexpr):
    """The first token at which the running sum exceeds u S (3); the last with weight if there is none, -1 without any."""
    before = tl.full((), 0.0, tl.float64)
    found = tl.full((), V, tl.int32)
    last = tl.full((), -1, tl.int32)
    first = tl.full((), 0, tl.int32)
    while (first < V) & (found == V):
        i = first + tl.arange(0, BLOCK_I)
        r = _residual(p_n, q_n, first, l, drawn, token, V, POINT, BLOCK_I)
        passed = (before + tl.cumsum(r, axis=0) > u * S) & (r > 0)
        found = tl.min(tl.where(passed, i, V), axis=0)
        last = tl.maximum(last, tl.max(tl.where(r > 0, i, -1), axis=0))
        before += tl.sum(r, axis=0)
        first += BLOCK_I
    return tl.where(found < V, found, last).to(tl.int64)


@triton.jit
def _walk_tokens(
    p, picks, eos, b, i, token, parent, going, left, over, emitted, path, stride_p, stride_pick,
    V: tl.constexpr, EOS: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_EOS: tl.constexpr, BLOCK_I: tl.constexpr,
):  # fmt: skip
    """The walk of the law naive: the tokens that (3) emits, the path to them, their count, and whether the run is over."""
    count = tl.full((), 0, tl.int64)
    node = tl.full((), 0, tl.int64)
    while going:
        u = tl.load(picks + b * stride_pick.b + node * stride_pick.t).to(tl.float64)
        p_n = p + b * stride_p.b + node * stride_p.t
        S, _ = _sums(p_n, p_n, 0.0, i < 0, token, V, False, False, BLOCK_I)
        x = _pick(p_n, p_n, 0.0, i < 0, token, u, S, V, False, BLOCK_I)
        emitted = tl.where(i == count, x, emitted)
        count += 1
        node = tl.min(tl.where((parent == node) & (token == x) & (i > node), i, BLOCK_T), axis=0)
        over = ends(x, eos, EOS, BLOCK_EOS) | (count >= left)
        going = (node < BLOCK_T) & (over == 0)
        path = tl.where((i == count) & going, node, path)
    return emitted, path, count, over


@triton.jit
def _coin_decides(
    p_n, q_n, l, S, W, x, u, i, child, node, drawn_from, token, parent, V: tl.constexpr, POINT: tl.constexpr,
    SHRINKING: tl.constexpr,
):  # fmt: skip
    """Whether a child x is accepted by its coin u, and whether the coin was needed."""
    known = (x >= 0) & (x < V)
    r_x = tl.load(p_n + x, mask=known, other=0.0).to(tl.float64)
    before = (parent == node) & (i > node) & (i < child)
    if POINT:
        twin = tl.max((before & (i < drawn_from) & (token == x)).to(tl.int32), axis=0) == 1
        accepted = (u * S < r_x) & (twin == 0)
        tested = accepted | (accepted == 0)
    else:
        q_x = tl.load(q_n + x, mask=known, other=0.0).to(tl.float64)
        r_x = tl.maximum(r_x - l * q_x, 0.0)
        tested = q_x > 0
        if SHRINKING:
            tested = tested & (tl.max((before & (token == x)).to(tl.int32), axis=0) == 0)
        accepted = tested & (u * q_x * S < r_x * W)  # (1) (5)
    return accepted, tested


@triton.jit
def _walk_coins(
    p, q, coins, picks, eos, b, i, token, parent, going, left, over, emitted, path, stride_p, stride_q, stride_coin,
    stride_pick, T: tl.constexpr, V: tl.constexpr, POINT: tl.constexpr, SHRINKING: tl.constexpr, EOS: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_EOS: tl.constexpr, BLOCK_I: tl.constexpr,
):  # fmt: skip
    """The walk by coins (1) (2), and the last token from the residual (3): the same results."""
    count = tl.full((), 0, tl.int64)
    node = tl.full((), 0, tl.int64)
    p_n = p + b * stride_p.b
    q_n = p_n if q is None else q + b * stride_q.b
    one = tl.full((), 1.0, tl.float64)
    l, S, W = one - one, one, one
    summed = left < left
    after = tl.full((), 0, tl.int64)
    drawn_from = tl.full((), 0, tl.int64)
    coin = tl.load(coins + b * stride_coin.b + i * stride_coin.t, mask=i < T, other=0.0).to(tl.float64)
    walking = going
    while walking:
        child = tl.min(tl.where((parent == node) & (i > after), i, BLOCK_T), axis=0)
        walking = child < BLOCK_T
        if walking:
            x = tl.sum(tl.where(i == child, token, 0), axis=0)
            u = tl.sum(tl.where(i == child, coin, 0.0), axis=0)
            accepted, tested = _coin_decides(
                p_n, q_n, l, S, W, x, u, i, child, node, drawn_from, token, parent, V, POINT, SHRINKING
            )
            after = child
            if accepted:
                emitted = tl.where(i == count, x, emitted)
                count += 1
                over = ends(x, eos, EOS, BLOCK_EOS) | (count >= left)
                walking = over == 0
                going = walking
                path = tl.where((i == count) & walking, child, path)
                node = child
                p_n = p + b * stride_p.b + node * stride_p.t
                if q is not None:
                    q_n = q + b * stride_q.b + node * stride_q.t
                l, S, W = one - one, one, one
                summed = left < left
                drawn_from = child
            elif tested:
                l_next = l + S / W
                drawn = (parent == node) & (i > node) & (i <= child)
                S_next, W_next = _sums(p_n, q_n, l_next, drawn, token, V, POINT, SHRINKING, BLOCK_I)  # (6)
                W = W_next if SHRINKING else W
                if S_next > 0:  # (2)
                    l, S = l_next, S_next
                    summed = left == left
                    drawn_from = child + 1
    if going:
        drawn = (parent == node) & (i > node) & (i < drawn_from)
        if summed == 0:
            S, W = _sums(p_n, q_n, l, drawn, token, V, POINT, SHRINKING, BLOCK_I)
        u = tl.load(picks + b * stride_pick.b + node * stride_pick.t).to(tl.float64)
        x = _pick(p_n, q_n, l, drawn, token, u, S, V, POINT, BLOCK_I)  # (3)
        emitted = tl.where(i == count, x, emitted)
        count += 1
        over = ends(x, eos, EOS, BLOCK_EOS) | (count >= left)
    return emitted, path, count, over


@triton.jit
def _accept_sampled_kernel(
    tokens, parents, p, q, coins, picks, budget, ended, eos, slots, y_tokens, y_path, y_advanced, y_ended,
    stride_tok, stride_par, stride_p, stride_q, stride_coin, stride_pick, stride_y, stride_path,
    T: tl.constexpr, V: tl.constexpr, POINT: tl.constexpr, SHRINKING: tl.constexpr, EOS: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_EOS: tl.constexpr, BLOCK_I: tl.constexpr,
):  # fmt: skip
    """POINT: a child is drawn from a point mass; SHRINKING: q loses each token drawn. Without coins: the law naive."""
    b = tl.program_id(0).to(tl.int64)
    slot = b
    if slots is not None:
        slot = tl.load(slots + b).to(tl.int64)
    if slot >= 0:
        i = tl.arange(0, BLOCK_T).to(tl.int64)
        token = tl.load(tokens + b * stride_tok.b + i * stride_tok.t, mask=i < T, other=-1).to(tl.int64)
        parent = tl.load(parents + b * stride_par.b + i * stride_par.t, mask=i < T, other=-2).to(tl.int64)
        going, left, over = takes_part(slot, parent, budget, ended)
        emitted = tl.full((BLOCK_T,), -1, tl.int64)
        path = tl.where((i == 0) & going, tl.full((BLOCK_T,), 0, tl.int64), -1)
        if coins is None:
            emitted, path, count, over = _walk_tokens(
                p, picks, eos, b, i, token, parent, going, left, over, emitted, path, stride_p, stride_pick,
                V, EOS, BLOCK_T, BLOCK_EOS, BLOCK_I,
            )  # fmt: skip
        else:
            emitted, path, count, over = _walk_coins(
                p, q, coins, picks, eos, b, i, token, parent, going, left, over, emitted, path, stride_p, stride_q,
                stride_coin, stride_pick, T, V, POINT, SHRINKING, EOS, BLOCK_T, BLOCK_EOS, BLOCK_I,
            )  # fmt: skip
        tl.store(y_tokens + b * stride_y.b + i * stride_y.t, emitted.to(y_tokens.dtype.element_ty), mask=i < T)
        tl.store(y_path + b * stride_path.b + i * stride_path.k, path.to(y_path.dtype.element_ty), mask=i < T)
        tl.store(y_advanced + b, count.to(y_advanced.dtype.element_ty))
        tl.store(y_ended + b, over)
