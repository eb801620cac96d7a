"""The gated delta rule over a packed tree, from one state and without writing it: a triangular solve among ancestors.

Unrolled over the path of node i, with G = L g the log decay from the root,

    S_i = diag(exp G_i) S0 + sum_j L_ij diag(exp(G_i - G_j)) k^_j u_j^T                            (1)
    u_i = beta_i (v_i - S-_i^T k^_i),    S-_i the same sum over the strict ancestors of i          (2)

The corrections of all nodes therefore solve one triangular system, and the outputs read S0 and U:

    A_ij = beta_i k^_i . (exp(G_i - G_j) k^_j)    for strict ancestors j of i, else 0              (3)
    (I + A) U = beta (V - (exp(G) k^) S0)                                                          (4)
    o_i = (exp(G_i) q^_i) S0 + sum_j L_ij (q^_i . (exp(G_i - G_j) k^_j)) u_j                       (5)

The transition of the delta rule is not diagonal, so STree's A_tree does not exist for it; only its decays accumulate. g is
one per head, or one per head and key channel.
"""

from numpy import broadcast_to, einsum, tril, zeros_like

from .. import tree
from ..checks import checked
from ..records import masked
from ..shapes import Ancestors, Array, DeltaState, Values
from . import DeltaParams, DeltaWindow, keys_and_queries


@checked
def scan(S: DeltaState, window: DeltaWindow, ancestors: Ancestors, params: DeltaParams) -> Values:
    """The output at every node: equations (3) to (5) of the module; 0 at padding, whose values are ignored.

    The ancestor sets of the mask must nest (`tree`).

    Units: as `delta.step`.
    Raises: ShapeMismatch, PrecisionError, EmptyWindow, ParameterError, NotTopological, NotNested.
    Source: arXiv:2412.06464, section 3.3 (the WY form of a chunk), restricted to ancestors; ours.
    """
    tree.check_nested(ancestors)
    window = masked(window, tree.live(ancestors))
    q, k = keys_and_queries(window.q, window.k, window.v.shape[2], params)
    g = window.g if window.g.ndim == 4 else broadcast_to(window.g[..., None], k.shape)
    from_state, between = tree.decays(ancestors, g)
    A = einsum("bth, bthk, btjhk, bjhk -> bthj", window.beta, k, between, k)
    A = tril(A.transpose(0, 2, 1, 3), -1)  # (3), heads before nodes
    read = einsum("bhkv, bthk -> bthv", S, from_state * k)
    U = _solve(A, window.beta[..., None] * (window.v - read))  # (4)
    scores = einsum("bthk, btjhk, bjhk -> btjh", q, between, k)
    return einsum("bhkv, bthk -> bthv", S, from_state * q) + einsum("btjh, bjhv -> bthv", scores, U)  # (5)


def _solve(A: Array, right: Values) -> Values:
    """(I + A) U = right by forward substitution, A strictly lower triangular."""
    U = zeros_like(right)
    for i in range(right.shape[1]):
        U[:, i] = right[:, i] - einsum("bhj, bjhv -> bhv", A[:, :, i], U)
    return U
