"""Bounds for the gated delta rule: token by token, and by a triangular solve over a chunk or a tree.

q^ = scale q / |q|, k^ = k / |k|                                                               (1)
S- = diag(exp g) S                                                                             (2)
u  = beta (v - S-^T k^)                                                                        (3)
S' = S- + k^ u^T,   o = S'^T q^                                                                (4)

In chunks and trees, with G_t the sum of g along the path of t:

(I + A) U = R,   A_tj = beta_t sum_k k^_tk exp(G_tk - G_jk) k^_jk for strict ancestors j of t   (5)
                 R_t  = beta_t (v_t - sum_k exp(G_tk) k^_tk S0_k)
o_t = sum_k exp(G_tk) q^_tk S0_k + sum_j (sum_k q^_tk exp(G_tk - G_jk) k^_jk) u_j               (6)
S_T = exp(G_T) S0 + sum_j exp(G_T - G_j) k^_j u_j^T                                             (7)

The solve. Let T = (I + A)^-1, e_A and e_R the errors of A and R, and |R| the sum of the absolute terms of R. The computed U^
solves (I + A + dA) U^ = R + dR, so that U^ - U = T (dR - dA U^) and

e_U <= (I - |T| e_A)^-1 |T| (e_R + e_A |U|) + g |T| |I + A| |T| |R|                            (8)

The first inverse exists, because |T| e_A is strictly triangular. The last term, 1 + g = (1 + u_dot)^4 (1 + gamma_3n), covers
forward substitution (gamma_n |T| |I+A| |U|); an explicit inverse, columnwise or merged from blocks, times R (2 gamma_n); and
the WY form, which applies T to beta v and to beta exp(G) k^ before it subtracts. It does not cover inverses by powers of A.

A ring in a narrower format. The ring stores u_j + d_j, |d_j| half a unit of that format, and later windows read the stored
value. With A = A_w + A_h, the parts read within a window and from the ring, the stored values have an error e with
(I + A) e = (I + A_w) d, so that e = d - T A_h d, and for any division into windows

|e| <= |d| + |T| |A| |d|                                                                       (10)

The state's own error. Propagated through the factors of M_t = (I - beta k^ k^^T) diag(exp g) one by one, in absolute values,
it would grow without bound, although M_t is a contraction. It is therefore propagated through products of the M_t, and the
absolute value is taken last: with eps_s the error that step s adds (roundings, errors of its inputs) to the image of the
state,

e_t <= sum_s |M_t .. M_s+1| eps_s + |M_t .. M_1| e_0                                           (9)

Source: Higham, theorem 8.5 and sections 14.2.1 and 14.2.2; arXiv:2412.06464, section 3.3 (the WY form).
"""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy import einsum

from .. import delta
from ..checks import checked
from ..contract import NumericContract
from ..delta import KEYS, DeltaParams, DeltaWindow
from ..errors import Unsupported
from ..records import masked
from ..shapes import Ancestors, Array, DeltaState, Mask
from .arithmetic import Approx, absolute, gamma, operand_roundoff, sum_of_products
from .inputs import Inexact, joined, paired
from .pairs.sequential import output
from .stored_state import stored_state
from .windows import Carried, decays, in_chunks


@checked
def scan(
    S: DeltaState,
    window: DeltaWindow,
    params: DeltaParams,
    contract: NumericContract,
    live: Mask | None = None,
    inexact: Inexact = None,
) -> tuple[Approx, Approx]:
    """Outputs and final state of `delta.scan` with their bounds, in the contract's order of evaluation.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, ParameterError; Unsupported for the order `associative`.
    """
    if contract.order == "sequential":
        o, after = states(S, window, params, contract, live, inexact)
        return o, after[:, -1]
    i = _inputs(S, window, params, contract, live, inexact)
    o, S_next = in_chunks(i, ("q", "k", "v", "g", "beta"), _window, KEYS)
    return output(o, live), S_next


@checked
def states(
    S: DeltaState,
    window: DeltaWindow,
    params: DeltaParams,
    contract: NumericContract,
    live: Mask | None = None,
    inexact: Inexact = None,
) -> tuple[Approx, Approx]:
    """Outputs and the state after every token of `delta.states`, token by token: (1) to (4) and (9).

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, ParameterError.
    """
    definition: Any = delta
    S_next, seen, _ = paired(contract, inexact, window, params, S=S)
    seen, outputs, after, carried = seen if live is None else masked(seen, live), [], [], Carried(S_next.error)
    queries, keys = definition.keys_and_queries(seen.q, seen.k, window.v.shape[2], params)  # (1)
    for t in range(window.v.shape[1]):
        token, k = seen.token(t), keys[:, t]
        stepped = definition.advance(S_next, token, k)  # (2) to (4)
        M, passed = _transition(token, k, S_next.error)
        S_next = replace(stepped, error=carried.after(M, stepped.error - passed))  # (9)
        outputs.append(definition.read(S_next, queries[:, t]))
        after.append(S_next)
    kept = joined(after)
    return output(joined(outputs), live), kept if contract.stored_every_token else stored_state(kept, KEYS)


@checked
def tree(
    S: DeltaState,
    window: DeltaWindow,
    ancestors: Ancestors,
    params: DeltaParams,
    contract: NumericContract,
    inexact: Inexact = None,
) -> Approx:
    """The output at every node of `delta_tree.scan` with its bound, (5) to (8), in any order; at padding both are 0.

    It does not cover an evaluation of paths token by token; use `scan` along them for that.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, ParameterError; Unsupported for the order `associative`.
    """
    live = einsum("btt -> bt", ancestors)
    o, _ = _window(_inputs(S, window, params, contract, live, inexact), ancestors)
    return output(o, live)


def _inputs(
    S: DeltaState, window: DeltaWindow, params: DeltaParams, contract: NumericContract, live: Mask | None, inexact: Inexact
) -> SimpleNamespace:
    """The inputs as pairs after (1), one key per value head, g with a last axis of k or 1; others are exactly 0."""
    if contract.order == "associative":
        raise Unsupported(
            "the delta rule has no order associative: its step multiplies the state by a matrix, not by a decay; "
            "declare sequential, or chunked for a triangular solve"
        )
    S_0, seen, _ = paired(contract, inexact, window, params, S=S)
    seen = seen if live is None else masked(seen, live)
    q, k = delta.keys_and_queries(seen.q, seen.k, window.v.shape[2], params)
    return SimpleNamespace(S=S_0, q=q, k=k, v=seen.v, g=seen.g if window.g.ndim == 4 else seen.g[..., None], beta=seen.beta)


def _transition(token: Any, key: Approx, error: Array) -> tuple[Array, Array]:
    """M = (I - beta k k^T) diag(a), and the error of S as the step propagated it: the same in absolute values."""
    k, identity = key.value, np.eye(key.shape[-1])
    g = token.g.value if token.g.value.ndim == k.ndim else token.g.value[..., None]
    a = np.broadcast_to(np.exp(g), k.shape)
    outer = einsum("bh, bhi, bhj, bhj -> bhij", token.beta.value, k, k, a)
    return identity * a[:, :, None] - outer, (identity * a[:, :, None] + np.abs(outer)) @ error


def _window(i: SimpleNamespace, ancestors: Ancestors) -> tuple[Approx, Approx]:
    """(5) to (8) and (10) for one window; the state returned is that after the last token of a chain."""
    c, ring = i.v.contract, i.v.contract.ring or i.v.contract.accumulate
    i.k, strict = i.k.store(ring), ancestors & ~np.eye(ancestors.shape[1], dtype=bool)
    i.decay, i.between = decays(i.g.map(lambda a: np.broadcast_to(a, i.k.value.shape)), ancestors)
    seen = i.between.where(strict[..., None, None])
    A = sum_of_products(("bth, bthk, btjhk, bjhk -> bhtj", i.beta, i.k, seen, i.k), matmuls=1)
    terms = ("bth, bthv -> bhtv", i.beta, i.v), ("bth, bthk, bthk, bhkv -> bhtv", i.beta, i.decay, -i.k, i.S)
    R, size = sum_of_products(*terms, matmuls=1), absolute(*terms)  # (5)
    U, solve = _solve(A, R, size, c)  # (8)
    d = U.store(ring).error - U.error
    U = replace(U, error=U.error + d + solve @ (np.abs(A.value) @ d))  # (10)
    read = ("bthk, bthk, bhkv -> bthv", i.decay, i.q, i.S), ("bthk, btjhk, bjhk, bhjv -> bthv", i.q, i.between, i.k, U)
    o = sum_of_products(*read, matmuls=2)  # (6)
    last = ("bhk, bhkv -> bhkv", i.decay[:, -1], i.S), ("bjhk, bjhk, bhjv -> bhkv", i.between[:, -1], i.k, U)
    S = sum_of_products(*last, matmuls=1)  # (7)
    return _through(i, A, solve, o, S) if i.S.error.any() else (o, S)


def _solve(A: Approx, R: Approx, size: Array, c: NumericContract) -> tuple[Approx, Array]:
    """U, and (I - |T| e_A)^-1 |T| (8); A, R and |R| (`size`) have the heads before the tokens."""
    tokens = A.value.shape[-1]
    full = np.eye(tokens) + A.value
    T = _inverse(A.value)
    U, positive = T @ R.value, np.abs(T)
    g = gamma(np.array(3.0 * tokens), c, matmul=True)
    g = g + np.expm1(4 * np.log1p(operand_roundoff(c))) * (1 + g)
    solve = _inverse(-positive @ A.error) @ positive
    carried = solve @ (R.error + A.error @ np.abs(U))
    return Approx(U, carried + g * positive @ (np.abs(full) + A.error) @ positive @ size, c), solve


def _inverse(A: Array) -> Array:
    """T = (I + A)^-1 by forward substitution. A general solver exchanges rows, and exact zeros of T would become nonzero."""
    T = np.broadcast_to(np.eye(A.shape[-1]), A.shape).copy()
    for t in range(1, A.shape[-1]):
        T[..., t, :t] = -(A[..., t, None, :t] @ T[..., :t, :t])[..., 0, :]
    return T


def _through(i: SimpleNamespace, A: Approx, solve: Array, o: Approx, S: Approx) -> tuple[Approx, Approx]:
    """(9) for a window: replaces the error of S0 as propagated to o and S factor by factor in absolute values by the absolute
    value of the whole linear map from S0 to them."""
    k, decay, between, E = i.k.value, i.decay.value, i.between.value, i.S.error
    into_u = einsum("bth, bthk, bthk -> bhtk", i.beta.value, decay, k)
    T, scores = _inverse(A.value), einsum("bthk, btjhk, bjhk -> bhtj", i.q.value, between, k)
    write = einsum("bjhk, bjhk -> bhkj", between[:, -1], k)
    read = einsum("bthk, bthk -> bhtk", decay, i.q.value)
    keep = decay[:, -1, :, :, None] * np.eye(k.shape[-1])
    error_u = solve @ (np.abs(into_u) @ E)
    size = einsum("bthk, btjhk, bjhk -> bhtj", np.abs(i.q.value), between, np.abs(k))
    passed_o, passed_S = np.abs(read) @ E + size @ error_u, keep @ E + np.abs(write) @ error_u
    map_o, map_S = read - scores @ T @ into_u, keep - write @ T @ into_u
    change = (np.abs(map_o) @ E - passed_o).transpose(0, 2, 1, 3)
    return replace(o, error=o.error + change), replace(S, error=S.error + np.abs(map_S) @ E - passed_S)
