"""Mamba-3 over a packed tree, from one state and without writing it.

dl_j  = pi dt_j tanh(angle_j),   th_i = th_S + sum over anc(i) of dl                                      (1)
At    = L ld                                                                                              (2)
k_j, q_i rotated by the angles of their own nodes; k_par, x_par those of the parent, or of the state      (3)
o_i   = exp(At_i) S q_i + sum_j L_ij exp(At_i - At_j) [g_j v_j (k_j q_i) + b_j v_par(j) (k_par(j) q_i)]   (4)
g_j   = dt_j l_j,   b_j = exp(ld_j) dt_j (1 - l_j)

A node writes twice: its own input, and once more that of its parent, with a weight that only the node knows. So a token with
two children has two second halves of its trapezoid, and neither child reads the other's. With these two writes for a node
the closed form is that of SSD with twice as many inputs, for exactly the masks that nest (`tree`).
Source: STree, section 3, equations 5 and 6, for the sum of (4); the second write of a node is ours.
"""

from dataclasses import dataclass

import numpy as np
from numpy import einsum, exp, tanh

from .. import tree
from ..checks import checked
from ..functions import sigmoid, softplus
from ..records import Record, masked
from ..shapes import Ancestors, Array, Heads, Packed, RingAngles, RingHeadKeys, RingHeads, RingPerHeads
from . import TURN, Mamba3Params, Mamba3Window, Pieces, finish, normed, per_head, pieces_of, skip, turn, values


@dataclass(frozen=True)
class Inputs(Record):
    """What a run of tokens writes, before any state is known: x, the key before its rotation, the increment of the angle,
    the log decay, and the weights of both halves of the trapezoid."""

    x: RingHeads
    key: RingHeadKeys
    turned: RingAngles
    log_decay: RingPerHeads
    own: RingPerHeads  # dt l
    before: RingPerHeads  # dt (1 - l)


def inputs(window: Mamba3Window, params: Mamba3Params) -> Inputs:
    """The inputs of a window's tokens; they depend on no state, so a ring may store them before acceptance."""
    dt, half = softplus(window.dt + params.dt_bias), sigmoid(window.trap)
    B = per_head(normed(window.B, params.B_norm, params.eps), window.x.shape[2]) + params.B_bias
    turned = np.pi * dt[..., None] * tanh(window.angle)[:, :, None]  # (1)
    log_decay = -dt * np.maximum(softplus(window.A), params.A_floor)
    return Inputs(window.x, B, turned, log_decay, dt * half, dt * (1 - half))


@checked
def scan(S: Packed, window: Mamba3Window, ancestors: Ancestors, params: Mamba3Params) -> Heads:
    """The output at every node, equations (1) to (4) of the module; 0 at padding. No state is written.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, ParameterError, NotTopological, NotNested.
    Source: as the module.
    """
    tree.check_nested(ancestors)
    real = tree.live(ancestors)
    window = masked(window, real)
    run = masked(inputs(window, params), real)
    held = pieces_of(S, window.x.shape[3], window.angle.shape[2], params)
    return np.where(real[:, :, None, None], read(held, run, window, ancestors, params), 0.0)


def read(held: Pieces, run: Inputs, window: Mamba3Window, ancestors: Ancestors, params: Mamba3Params) -> Array:
    """(4) at the last nodes of a run, those of the window; of the run's nodes the ancestors are given."""
    tokens = window.x.shape[1]
    angle, keys, parents = rotated(held, run, ancestors, params)
    C = per_head(normed(window.C, params.C_norm, params.eps), window.x.shape[2]) + params.C_bias
    q = turn(C, angle[:, -tokens:, :, None], params)  # (3)
    from_state, between = tree.decays(ancestors, run.log_decay)  # (2)
    from_state, between = from_state[:, -tokens:], between[:, -tokens:]
    v, v_par = values(run.x, params), values(behind(run.x, held.value, parents), params)
    k_par, b = behind(keys, held.key, parents), exp(run.log_decay) * run.before
    o = einsum("bth, bhpn, bthrn -> bthrp", from_state, held.S, q)
    o = o + einsum("btjh, bjh, bjhsp, bjhsn, bthrn -> bthrp", between, run.own, v, keys, q, optimize=True)
    o = o + einsum("btjh, bjh, bjhsp, bjhsn, bthrn -> bthrp", between, b, v_par, k_par, q, optimize=True)  # (4)
    return finish(o + skip(v[:, -tokens:], params), window.z, params)


def rotated(held: Pieces, run: Inputs, ancestors: Ancestors, params: Mamba3Params) -> tuple[Array, Array, Array]:
    """The angle of every node (1), its key (3), and its parent: -1 for the state."""
    angle = np.mod(held.angle[:, None] + einsum("btj, bjhf -> bthf", ancestors, run.turned), TURN)
    parents = np.where(np.tril(ancestors, -1), np.arange(ancestors.shape[1]), -1).max(axis=2)
    return angle, turn(run.key, angle[:, :, :, None], params), parents


def behind(nodes: Array, state: Array, parents: Array) -> Array:
    """What each node finds of its parent: an array of the nodes (b t ..), and what the state holds for a root."""
    at = np.maximum(parents, 0).reshape(parents.shape + (1,) * (nodes.ndim - 2))
    root = (parents < 0).reshape(at.shape)
    return np.where(root, state[:, None], np.take_along_axis(nodes, at, axis=1))
