"""Mamba-3: a trapezoid of the last two inputs, keys and queries rotated by a running angle, inputs of rank r.

dt = softplus(dt_raw + dt_bias)                                                       (1)
ld = -dt max(softplus(A_raw), A_floor)                            the log decay       (2)
l  = sigmoid(trap)                                                                    (3)
th' = th + pi dt tanh(angle)   modulo 2 pi, for each head         the running angle   (4)
k  = turn(th', norm(B) + B_bias),  q = turn(th', norm(C) + C_bias)                    (5)
S' = exp(ld) (S + dt (1 - l) sum_r v-_r k-_r^T) + dt l sum_r v_r k_r^T                (6)
o_r = S' q_r + D v_r,   v_r = up_r x                                                  (7)
y  = sum_r down_r o_r silu(gate_r z)                                                  (8)
k-' = k,  x-' = x                                                 the previous input  (9)

A sequence stores four things: S, the angle th, the previous key k- as it was rotated, and the previous value x-. Each of them
must be undone with a rejected token. `turn` is a rotation of pairs of channels: channels 2 i and 2 i + 1 (neighbours), or i
and i + n / 2 (halves, of all n channels however many of them turn); f of the n / 2 pairs turn. Rank 1 without up, down and
gate is SISO. An angle shared by all heads runs differently in each, because dt differs.

The four lie in one array, head by head (`packed`), so that whatever keeps, copies or cuts a state has all of them.
Source: arXiv:2603.15569v1: (6) without ranks is its equations 5 and 6, with alpha = exp(ld), beta = alpha dt (1 - l) and
gamma = dt l; the rotations of (5) and the previous key of (9) are proposition 4 (section 3.2.2); the ranks of (6) and (7) are
its equations 12 to 14, and up, gate and down are its "MIMO instantiation" (section 3.3); norms and biases of B and C are of
section 3.4. The floor of (2) and pi tanh of (4) are of the code alone: mamba_ssm/modules/mamba3.py and ops/triton/mamba3 of
state-spaces/mamba. It pairs neighbours in SISO and halves in MIMO, f = n / 4 or n / 2, and turns by +th where proposition 4
turns by -th, which is another sign of the projected angle. Its prompt and its SISO step in Triton take th modulo 2 pi; the
rotation of its layer's step does not, which changes no output.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy import cos, einsum, exp, repeat, sin, tanh

from ..checks import check_groups, checked
from ..errors import ParameterError, ShapeMismatch
from ..functions import sigmoid, silu, softplus
from ..records import Record, masked
from ..shapes import (
    Angle,
    Angles,
    Array,
    Head,
    HeadAngle,
    HeadKey,
    HeadParam,
    HeadRankChannelParam,
    HeadRankParam,
    Heads,
    Mask,
    Packed,
    PackedStates,
    PerHead,
    PerHeads,
    RankProj,
    RankProjs,
    State,
    StateParam,
)

TURN = 2 * np.pi


@dataclass(frozen=True)
class Mamba3Params(Record):
    """Parameters of one layer: norms and biases of B and C, the floor of the decay, skip, and the maps of x, z and y.

    Raises: ParameterError for an odd number of states, a floor below 0, a negative eps, or another pairing.
    """

    B_norm: StateParam
    C_norm: StateParam
    B_bias: HeadRankParam
    C_bias: HeadRankParam
    dt_bias: HeadParam
    D: HeadParam | None = None
    up: HeadRankChannelParam | None = None
    gate: HeadRankChannelParam | None = None
    down: HeadRankChannelParam | None = None
    A_floor: float = 1e-4
    eps: float = 1e-5
    pairs: Literal["neighbours", "halves"] = "neighbours"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.states % 2:
            raise ParameterError(f"a key of {self.states} channels has no pairs to rotate; give an even number of states")
        if not self.A_floor >= 0 or not self.eps >= 0:
            raise ParameterError(f"A_floor and eps are {self.A_floor} and {self.eps}; give numbers of at least 0")
        if self.pairs not in ("neighbours", "halves"):
            raise ParameterError(f"pairs is {self.pairs!r}; it must be 'neighbours' (SISO) or 'halves' (MIMO)")

    @property
    def heads(self) -> int:
        return int(self.B_bias.shape[0])

    @property
    def rank(self) -> int:
        return int(self.B_bias.shape[1])

    @property
    def states(self) -> int:
        return int(self.B_bias.shape[2])

    def partners(self, angles: int) -> tuple[Array, Array]:
        """The channels of the pairs that turn: the first of each, and the second."""
        first = np.arange(angles)
        return (2 * first, 2 * first + 1) if self.pairs == "neighbours" else (first, first + self.states // 2)


@dataclass(frozen=True)
class Mamba3Token(Record):
    """One token: x, its gate z if the recurrence gates, and dt, A, trap, angle, B and C as projected."""

    x: Head
    dt: PerHead
    A: PerHead
    trap: PerHead
    angle: Angle
    B: RankProj
    C: RankProj
    z: Head | None = None


@dataclass(frozen=True)
class Mamba3Window(Record):
    """The tokens of a window, as in `Mamba3Token`."""

    x: Heads
    dt: PerHeads
    A: PerHeads
    trap: PerHeads
    angle: Angles
    B: RankProjs
    C: RankProjs
    z: Heads | None = None

    def token(self, t: int) -> Mamba3Token:
        z = None if self.z is None else self.z[:, t]
        heads = (self.x[:, t], self.dt[:, t], self.A[:, t], self.trap[:, t])
        return Mamba3Token(*heads, self.angle[:, t], self.B[:, t], self.C[:, t], z)


@dataclass(frozen=True)
class Pieces(Record):
    """The four pieces of a state."""

    S: State
    angle: HeadAngle
    key: HeadKey
    value: Head


@checked
def packed(pieces: Pieces) -> Packed:
    """The four pieces in one array. Raises: ShapeMismatch, PrecisionError."""
    rows, heads = pieces.value.shape[:2]
    flat = [a.reshape(rows, heads, -1) for a in (pieces.S, pieces.angle, pieces.key, pieces.value)]
    return np.concatenate(flat, axis=2)


def width(channels: int, states: int, angles: int, rank: int) -> int:
    """The numbers that a head keeps: p n + f + r n + p."""
    return channels * states + angles + rank * states + channels


def pieces_of(S: Array, channels: int, angles: int, params: Mamba3Params) -> Pieces:
    """The four pieces of a packed state.

    Raises: ShapeMismatch for another width than p n + f + r n + p, ParameterError for more angles than pairs of channels.
    """
    p, n, r = channels, params.states, params.rank
    if not 1 <= angles <= n // 2:
        raise ParameterError(f"{angles} angles turn {2 * angles} channels, but a key has {n}; give 1 to {n // 2}")
    if S.shape[2] != width(p, n, angles, r):
        raise ShapeMismatch(
            f"the state keeps {S.shape[2]} numbers a head, but p n + f + r n + p is {width(p, n, angles, r)} for p = {p}, "
            f"n = {n}, f = {angles}, r = {r}; make it with `packed`"
        )
    a, b, c, d = np.split(S, np.cumsum([p * n, angles, r * n]), axis=2)
    shape = S.shape[:2]
    return Pieces(a.reshape(*shape, p, n), b, c.reshape(*shape, r, n), d)


def turn(x: Array, angle: Array, params: Mamba3Params) -> Array:
    """Pairs of channels of x (.. n) rotated by the angles (.. f); the pairs that have none stay as they are."""
    first, second = params.partners(angle.shape[-1])
    turned = x.copy()
    turned[..., first] = cos(angle) * x[..., first] - sin(angle) * x[..., second]
    turned[..., second] = sin(angle) * x[..., first] + cos(angle) * x[..., second]
    return turned


def normed(x: Array, weight: Array, eps: float) -> Array:
    """The RMS norm over the states."""
    return weight * x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)


def per_head(projected: Array, heads: int) -> Array:
    """B or C (.. r g n) as (.. h r n): head h reads group h // (heads / groups).

    Raises: ParameterError if the groups do not divide the heads.
    """
    groups = projected.shape[-2]
    check_groups(groups, heads)
    return np.moveaxis(repeat(projected, heads // groups, axis=-2), -2, -3)


@checked
def step(S: Packed, token: Mamba3Token, params: Mamba3Params) -> tuple[Head, Packed]:
    """One token of every head: equations (1) to (9) of the module.

    Units: dt is the dimensionless step after softplus, angles are radians.
    Raises: ShapeMismatch, PrecisionError, ParameterError.
    Source: arXiv:2603.15569v1, equations 5, 6 and 12 to 14, and proposition 4; as the module.
    """
    return _step(S, token, params)


def _step(S: Array, token: Mamba3Token, params: Mamba3Params) -> tuple[Array, Array]:
    heads, channels = token.x.shape[1:]
    held = pieces_of(S, channels, token.angle.shape[-1], params)
    dt = softplus(token.dt + params.dt_bias)  # (1)
    ld = -dt * np.maximum(softplus(token.A), params.A_floor)  # (2)
    share = sigmoid(token.trap)  # (3)
    angle = np.mod(held.angle + np.pi * dt[:, :, None] * tanh(token.angle)[:, None], TURN)  # (4)
    B, C = (normed(a, w, params.eps) for a, w in ((token.B, params.B_norm), (token.C, params.C_norm)))
    k = turn(per_head(B, heads) + params.B_bias, angle[:, :, None], params)  # (5)
    q = turn(per_head(C, heads) + params.C_bias, angle[:, :, None], params)  # (5)
    before = einsum("bh, bhrp, bhrn -> bhpn", dt * (1 - share), values(held.value, params), held.key)
    v = values(token.x, params)
    written = einsum("bh, bhrp, bhrn -> bhpn", dt * share, v, k)
    S_next = exp(ld)[:, :, None, None] * (held.S + before) + written  # (6)
    o = einsum("bhpn, bhrn -> bhrp", S_next, q) + skip(v, params)  # (7)
    return finish(o, token.z, params), packed(Pieces(S_next, angle, k, token.x))  # (8) (9)


def values(x: Array, params: Mamba3Params) -> Array:
    """v_r = up_r x (7), of a token or a window: (.. h p) as (.. h r p)."""
    up = np.ones((params.heads, params.rank, 1)) if params.up is None else params.up
    return up * x[..., None, :]


def skip(v: Array, params: Mamba3Params) -> Array:
    """D v_r; 0 without D."""
    return np.zeros_like(v) if params.D is None else params.D[:, None, None] * v


def finish(o: Array, z: Array | None, params: Mamba3Params) -> Array:
    """The gate, and the sum over the ranks (8), of a token or a window."""
    if z is not None:
        o = o * silu(z[..., None, :] if params.gate is None else params.gate * z[..., None, :])
    return (o if params.down is None else params.down * o).sum(axis=-2)


@checked
def states(S: Packed, window: Mamba3Window, params: Mamba3Params, live: Mask | None = None) -> tuple[Heads, PackedStates]:
    """The output at every token, and the state after it; a no-op leaves all four pieces, and its output is 0.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, ParameterError.
    Source: as `step`; Snakes and Ladders, section 3.1 (no-op tokens).
    """
    window, outputs, after = window if live is None else masked(window, live), [], []
    for t in range(window.x.shape[1]):
        y, S_next = _step(S, window.token(t), params)
        S = S_next if live is None else np.where(live[:, t, None, None], S_next, S)
        outputs.append(y if live is None else np.where(live[:, t, None, None], y, 0.0))
        after.append(S)
    return np.stack(outputs, axis=1), np.stack(after, axis=1)


@checked
def scan(S: Packed, window: Mamba3Window, params: Mamba3Params, live: Mask | None = None) -> tuple[Heads, Packed]:
    """Advance by every live token: `step` repeated.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, ParameterError.
    Source: as `step`.
    """
    y, after = states(S, window, params, live)
    return y, after[:, -1]
