"""Mamba-3 as a sum over pairs of tokens, with rotations as phases: an independent derivation of `mamba3`.

w_ts = E_ts (dt_s l_s + [s < t] dt_s+1 (1 - l_s+1))     both halves of the trapezoid, at once            (1)
c_t, b_s                                                pairs of channels as complex numbers             (2)
a_ts = Re sum conj(c_t) b_s exp(i (ph_s - ph_t))        ph the sum of dt pi tanh(angle) since the start  (3)
o_t  = sum_{s <= t} w_ts a_ts v_s  +  E_t0 (S + dt_1 (1 - l_1) v- k-^T) c_t exp(i ph_t)                   (4)
S'   = E_T0 (..) + sum_s w'_Ts v_s b_s exp(i ph_s)      w' as (1), without the half that is still to come (5)

E_ts is the decay from s to t. Unlike `mamba3` it takes no step, keeps no previous input and turns no vector by a matrix: a
token's key meets a query only through the difference of their phases, and its two halves are one weight. The decay of the
second half, exp(ld_s+1), is a part of E_ts.
"""

import numpy as np
from numpy import einsum, exp

from ..checks import checked
from ..decay_matrix import decays, from_start, pieces
from ..functions import sigmoid, silu, softplus
from ..shapes import Array, Heads, Mask, Packed
from . import Mamba3Params, Mamba3Window, Pieces, packed, pieces_of


@checked
def scan(
    S: Packed, window: Mamba3Window, params: Mamba3Params, live: Mask | None = None, *, chunk: int = 64
) -> tuple[Heads, Packed]:
    """As `mamba3.scan`, by chunks of any size; no-ops are left out of the run.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, ParameterError.
    Source: arXiv:2603.15569v1, equation 7 (the mask of both halves) and proposition 2 (pairs as complex numbers).
    """
    every = np.ones(window.x.shape[:2], dtype=bool) if live is None else live
    y, S_next = np.zeros_like(window.x), S.copy()
    for b, row in enumerate(every):
        tokens = np.flatnonzero(row)
        for begin, end in pieces(len(tokens), chunk):
            y[b, tokens[begin:end]], S_next[b] = _chunk(S_next[b], window, b, tokens[begin:end], params)
    return y, S_next


def _chunk(S: Array, window: Mamba3Window, b: int, part: Array, params: Mamba3Params) -> tuple[Array, Array]:
    """The outputs of some tokens of one row (t h p), and its state after them."""
    held = pieces_of(S[None], window.x.shape[3], window.angle.shape[2], params)
    dt, share = softplus(window.dt[b, part] + params.dt_bias), sigmoid(window.trap[b, part])
    rate = softplus(window.A[b, part])
    E = decays(from_start(-(dt * np.where(rate < params.A_floor, params.A_floor, rate)).T))  # (h 1+t 1+t)
    second = np.concatenate([dt * (1 - share), np.zeros_like(dt[:1])]).T  # [h, s] of the token behind s - 1
    own = (dt * share).T
    late = np.tri(len(part), k=-1) * second[:, None, 1:]
    w = E[:, 1:, 1:] * (own[:, None] + late)  # (1)
    phase = np.cumsum(dt[..., None] * (np.pi * np.tanh(window.angle[b, part]))[:, None], axis=0)
    phase = phase + held.angle[0]
    c, k = (
        _complex(_vectors(x[b, part], weight, bias, params), phase.shape[-1], params)
        for x, weight, bias in ((window.C, params.C_norm, params.C_bias), (window.B, params.B_norm, params.B_bias))
    )  # (2)
    x = window.x[b, part]
    up = [np.ones(1) if params.up is None else params.up[:, r] for r in range(params.rank)]
    v, before = (np.stack([each * a for each in up], axis=-2) for a in (x, held.value[0]))
    spin = exp(1j * _widened(phase, c.shape[-1]))[:, :, None]
    scores = einsum("thrz, shqz -> htsrq", (c * spin).conj(), k * spin).real  # (3)
    started = _complex(held.S[0], phase.shape[-1], params)
    started = started + einsum("h, hrp, hrz -> hpz", second[:, 0], before, _complex(held.key[0], phase.shape[-1], params))
    o = einsum("hts, htsrq, shqp -> thrp", w, scores, v)
    o = o + einsum("ht, thrz, hpz -> thrp", E[:, 1:, 0], (c * spin).conj(), started).real  # (4)
    o = o if params.D is None else o + v * params.D[None, :, None, None]
    if window.z is not None:
        z = window.z[b, part]
        gated = [silu(z if params.gate is None else params.gate[:, r] * z) for r in range(params.rank)]
        o = o * np.stack(gated, axis=2)
    y = o.sum(axis=2) if params.down is None else einsum("thrp, hrp -> thp", o, params.down)
    final = E[:, -1, 0, None, None] * started + einsum("hs, shrp, shrz -> hpz", w[:, -1], v, k * spin)  # (5)
    angle = np.angle(exp(1j * phase[-1])) % (2 * np.pi)
    left = Pieces(_real(final, params)[None], angle[None], _real((k * spin)[-1], params)[None], x[-1][None])
    return y, packed(left)[0]


def _vectors(x: Array, weight: Array, bias: Array, params: Mamba3Params) -> Array:
    """Keys or queries (t h r n) before their rotation: of length sqrt(n) but for eps, then weighted and moved."""
    n, heads = x.shape[-1], params.heads
    length = np.linalg.norm(x, axis=-1, keepdims=True) / np.sqrt(n)
    unit = x / np.hypot(length, np.sqrt(params.eps))
    group = np.arange(heads) // (heads // x.shape[-2])
    return unit[:, :, group].transpose(0, 2, 1, 3) * weight + bias


def _complex(x: Array, angles: int, params: Mamba3Params) -> Array:
    """Channels (.. n) as n / 2 complex numbers, a pair each (2)."""
    pair = x.reshape(*x.shape[:-1], -1, 2) if params.pairs == "neighbours" else np.stack(np.split(x, 2, axis=-1), axis=-1)
    return pair[..., 0] + 1j * pair[..., 1]


def _real(z: Array, params: Mamba3Params) -> Array:
    """The channels of n / 2 complex numbers."""
    if params.pairs == "neighbours":
        return np.stack([z.real, z.imag], axis=-1).reshape(*z.shape[:-1], -1)
    return np.concatenate([z.real, z.imag], axis=-1)


def _widened(phase: Array, pairs: int) -> Array:
    """The phases of all pairs: 0 for those that do not turn."""
    return np.concatenate([phase, np.zeros((*phase.shape[:-1], pairs - phase.shape[-1]))], axis=-1)
