"""The gated delta rule by a triangular solve, chunk by chunk (WY or UT transform): an independent derivation of `delta`.

L_ij = exp(sum_{j < m <= i} g_m)  for j <= i, else 0; per key channel if the gate is            (1)
A_ij = beta_i k_i^T diag(L_ij) k_j  for j < i, else 0                                          (2)
(I + A) [U | W] = [beta v | beta (L_i0 k)]                  the state is not needed for these  (3)
U~   = U - W S                                              what each token writes             (4)
o_i  = (L_i0 q_i)^T S + sum_{j <= i} q_i^T diag(L_ij) k_j u~_j                                 (5)
S'   = diag(L_T0) S + sum_j diag(L_Tj) k_j u~_j^T                                              (6)

Column 0 of L is for the state that the chunk starts from; q and k are normalised and q is scaled, as in `delta`. (3) is
solved by forward substitution: if beta exceeds 1, a general solver may exchange rows, and the writes of a token would then
contain rounding errors of later tokens.
"""

import numpy as np
from numpy import einsum

from ..checks import check_groups, checked
from ..decay_matrix import decays, from_start, pieces
from ..errors import ParameterError
from ..records import masked
from ..shapes import Array, DeltaState, DeltaStates, Mask, Values
from . import DeltaParams, DeltaWindow


@checked
def scan(
    S: DeltaState, window: DeltaWindow, params: DeltaParams, live: Mask | None = None, *, chunk: int = 64
) -> tuple[Values, DeltaState]:
    """The outputs and the final state of `delta.scan`, computed in chunks of any size; the last chunk may be shorter.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, ParameterError (chunk < 1; key heads that do not divide the heads).
    Source: arXiv:2412.06464, section 3.3; Kimi Linear, section 3, for the gate per channel.
    """
    o, after = states(S, window, params, live, chunk=chunk)
    return o, after[:, -1]


@checked
def states(
    S: DeltaState, window: DeltaWindow, params: DeltaParams, live: Mask | None = None, *, chunk: int = 64
) -> tuple[Values, DeltaStates]:
    """The outputs, and the state after each chunk; the axis t of the states indexes chunks.

    Raises: as `scan`.
    Source: as `scan`.
    """
    if chunk < 1:
        raise ParameterError(f"chunk is {chunk}; it must be at least 1 token")
    check_groups(window.q.shape[2], window.v.shape[2])
    q, k, v, g, beta = _by_head(window if live is None else masked(window, live), params)
    outputs, after = [], []
    for begin, end in pieces(v.shape[2], chunk):
        cut = slice(begin, end)
        o, S = _chunk(S, q[:, :, cut], k[:, :, cut], v[:, :, cut], g[..., cut], beta[:, :, cut])
        outputs.append(o)
        after.append(S)
    return np.concatenate(outputs, axis=2).transpose(0, 2, 1, 3), np.stack(after, axis=1)


def _by_head(window: DeltaWindow, params: DeltaParams) -> tuple[Array, Array, Array, Array, Array]:
    """q, k (b h t k), v (b h t v), g (b h k t) and beta (b h t): heads before time, one key per value head."""
    rows, tokens, groups, channels = window.q.shape
    each = window.v.shape[2] // groups

    def widen(x: Array) -> Array:
        if params.l2_norm:
            x = x / np.hypot(np.linalg.norm(x, axis=-1, keepdims=True), np.sqrt(params.eps))
        copies = np.broadcast_to(x[:, :, :, None], (rows, tokens, groups, each, channels))
        return copies.reshape(rows, tokens, groups * each, channels).transpose(0, 2, 1, 3)

    scale = 1 / np.sqrt(channels) if params.scale is None else params.scale
    g = window.g if window.g.ndim == 4 else np.broadcast_to(window.g[..., None], (*window.g.shape, channels))
    return (
        scale * widen(window.q),
        widen(window.k),
        window.v.transpose(0, 2, 1, 3),
        g.transpose(0, 2, 3, 1),
        window.beta.transpose(0, 2, 1),
    )


def _chunk(S: Array, q: Array, k: Array, v: Array, g: Array, beta: Array) -> tuple[Array, Array]:
    """One chunk; axes as in `_by_head`."""
    L = decays(from_start(g))  # (1)
    carried, inner, left = L[..., 1:, 0].swapaxes(2, 3), L[..., 1:, 1:], L[..., -1, 1:].swapaxes(2, 3)
    kk = einsum("bhik, bhkij, bhjk -> bhij", k, inner, k)
    A = np.tril(beta[..., None] * kk, -1)  # (2)
    right = np.concatenate([beta[..., None] * v, beta[..., None] * carried * k], axis=-1)
    solved = _solve(A, right)  # (3)
    U = solved[..., : v.shape[-1]] - solved[..., v.shape[-1] :] @ S  # (4)
    o = (carried * q) @ S + einsum("bhik, bhkij, bhjk -> bhij", q, inner, k) @ U  # (5)
    return o, L[..., -1, 0, None] * S + (left * k).swapaxes(2, 3) @ U  # (6)


def _solve(A: Array, right: Array) -> Array:
    """(I + A) X = right, A strictly lower triangular."""
    X = np.zeros_like(right)
    for t in range(A.shape[-1]):
        X[:, :, t] = right[:, :, t] - einsum("bhj, bhjx -> bhx", A[:, :, t, :t], X[:, :, :t])
    return X
