"""What the kernels of Mamba-3 share: their arguments, a state of four pieces in registers, and one token of it.

    dt = softplus(dt + dt_bias),  a = exp(-dt max(softplus(A), A_floor)),  l = sigmoid(trap)              (1)
    th' = th + pi dt tanh(angle)   modulo 2 pi                                                            (2)
    k, q = norm(B) + B_bias, norm(C) + C_bias, in pairs of channels that th' rotates                      (3)
    S' = a S + a dt (1 - l) sum_r v-_r k-_r^T + dt l sum_r v_r k_r^T,   v_r = up_r x                      (4)
    y  = sum_r down_r (S' q_r + D v_r) silu(gate_r z)                                                     (5)

Layout: S (s, h, e), e = p n + f + r n + p: head by head S (p, n), th (f), the previous key (r, n) as it was rotated, and the
previous value (p). Channels 2 j and 2 j + 1 of n are a pair, or with `halves` j and j + n / 2; the first f pairs turn. In
registers each half of the pairs has its own tile, so that a rotation moves nothing between lanes.

A program owns one head of one row with all of its state: the key is read by all of its channels and written once, so that
two programs of a head would race. Parameters are dense. Everything is computed in fp32. The sine and cosine are Taylor sums
within an eighth of a turn, with an error of 2^-23: the hardware's have 2^-20.9 (PTX manual), more than the contract allows.

Source: `ssmspec_ref.mamba3`; arXiv:2603.15569.
"""

from typing import Annotated, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from ssmspec_ref.errors import ParameterError, ShapeMismatch

from ..launch import check_pool, divides, strides
from ..row import Axes, reads, updates, weighs, writes
from ..shared.functions import sigmoid, silu, softplus
from ..shared.strides import HeadStrides, TokenStrides

TURN_HEAD: tl.constexpr = tl.constexpr(6.28125)
TURN_REST: tl.constexpr = tl.constexpr(0.0019353071795864769)
"""2 pi: nine bits, of which a product with a number of turns is exact, and the rest."""
PI: tl.constexpr = tl.constexpr(3.141592653589793)


State = Annotated[Tensor, updates("s h e")]
Start = Annotated[Tensor, reads("s h e", size="state")]
"""A state that is only read."""
Heads = Annotated[Tensor, reads("b t h p")]
PerHeads = Annotated[Tensor, reads("b t h")]
Angles = Annotated[Tensor, reads("b t f")]
Projs = Annotated[Tensor, reads("b t r g n")]
Norm = Annotated[Tensor, weighs("n", layout="whole")]
RankBias = Annotated[Tensor, weighs("h r n", layout="whole")]
PerHead = Annotated[Tensor, weighs("h", layout="whole")]
Map = Annotated[Tensor, weighs("h r p", layout="whole")]
Outputs = Annotated[Tensor, writes("b t h p")]


class PoolStrides(NamedTuple):
    """Strides of packed states (s, h, e)."""

    s: int
    h: int


class RankStrides(NamedTuple):
    """Strides of keys and queries per token, rank and group of heads: (b, t, r, g, n)."""

    b: int
    t: int
    r: int
    g: int


class Mamba3Strides(NamedTuple):
    """Strides of the state and the inputs of a window."""

    S: PoolStrides
    x: HeadStrides
    dt: HeadStrides
    A: HeadStrides
    trap: HeadStrides
    angle: TokenStrides
    B: RankStrides
    C: RankStrides


class OutStrides(NamedTuple):
    """Strides of the outputs, and of the gate they are multiplied by."""

    z: HeadStrides
    y: HeadStrides


def check_window(axes: Axes, floor: float, eps: float, slots: Tensor | None) -> None:
    """Raises: ShapeMismatch, ParameterError."""
    check_sizes(axes, floor, eps)
    check_pool(axes["s"], axes["b"], slots)


def check_sizes(axes: Axes, floor: float, eps: float) -> None:
    """Raises: ParameterError, ShapeMismatch for another width than e = p n + f + r n + p."""
    p, n, f, r = (axes[a] for a in "pnfr")
    divides(axes["g"], axes["h"])
    if n % 2 or 2 * f > n:
        raise ParameterError(f"{f} angles turn pairs of {n} channels; give an even number n, and at most n / 2 angles")
    if axes["e"] != p * n + f + r * n + p:
        raise ShapeMismatch(
            f"a head keeps {axes['e']} numbers, but p n + f + r n + p is {p * n + f + r * n + p} for p = {p}, n = {n}, "
            f"f = {f}, r = {r}; give S, the angles, the previous key and the previous value, one after the other"
        )
    if not floor >= 0 or not eps > 0:
        raise ParameterError(f"A_floor and eps are {floor} and {eps}; give A_floor of at least 0, and eps above 0")


def window_strides(
    S: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    trap: Tensor,
    angle: Tensor,
    B: Tensor,
    C: Tensor,
    z: Tensor | None,
    y: Tensor,
) -> tuple[Mamba3Strides, OutStrides]:
    """The strides of a window and of its outputs; of a packed run (t ..) with 0 between rows."""

    def of(tensor: Tensor | None, count: int) -> tuple[int, ...]:
        return strides(tensor, count) if x.dim() == 4 else (0, *strides(tensor, count - 1))

    per_head = (HeadStrides(*of(a, 3)) for a in (x, dt, A, trap))
    of_B, of_C = (RankStrides(*of(a, 4)) for a in (B, C))
    given = Mamba3Strides(PoolStrides(*strides(S, 2)), *per_head, TokenStrides(*of(angle, 2)), of_B, of_C)  # type: ignore[call-arg, arg-type]
    return given, OutStrides(HeadStrides(*of(z, 3)), HeadStrides(*of(y, 3)))


@triton.jit
def turned_by(angle):
    """Cosine and sine of angles within a turn."""
    quarter = tl.floor(angle * 0.6366197723675814 + 0.5)
    x = (angle - quarter * (TURN_HEAD / 4)) - quarter * (TURN_REST / 4)
    q, n = x * x, quarter.to(tl.int32) & 3
    sine = x + x * q * (-1 / 6 + q * (1 / 120 + q * (-1 / 5040 + q * (1 / 362880))))
    cosine = 1.0 + q * (-0.5 + q * (1 / 24 + q * (-1 / 720 + q * (1 / 40320 + q * (-1 / 3628800)))))
    c, s = tl.where(n & 1 == 1, sine, cosine), tl.where(n & 1 == 1, cosine, sine)
    return tl.where((n == 1) | (n == 2), -c, c), tl.where(n >= 2, -s, s)


@triton.jit
def load_pairs(at, j, there, N: tl.constexpr, HALVES: tl.constexpr):
    """Both channels of some pairs, in fp32; zeros where nothing is there."""
    if HALVES:
        first, second = at + j, at + N // 2 + j
    else:
        first, second = at + 2 * j, at + 2 * j + 1
    return tl.load(first, mask=there, other=0.0).to(tl.float32), tl.load(second, mask=there, other=0.0).to(tl.float32)


@triton.jit
def store_pairs(at, one, two, j, there, N: tl.constexpr, HALVES: tl.constexpr):
    if HALVES:
        first, second = at + j, at + N // 2 + j
    else:
        first, second = at + 2 * j, at + 2 * j + 1
    tl.store(first, one.to(at.dtype.element_ty), mask=there)
    tl.store(second, two.to(at.dtype.element_ty), mask=there)


@triton.jit
def vector(at, weight, bias, cos, sin, j, there, real, eps, N: tl.constexpr, HALVES: tl.constexpr):
    """A key or query of one rank (3); `bias` is that of the head and rank."""
    one, two = load_pairs(at, j, there & real, N, HALVES)
    scale, rest = load_pairs(weight, j, there, N, HALVES)
    shift, more = load_pairs(bias, j, there, N, HALVES)
    norm = tl.rsqrt(tl.sum(one * one + two * two, axis=0) / N + eps)
    one, two = one * norm * scale + shift, two * norm * rest + more
    return one * cos - two * sin, one * sin + two * cos


@triton.jit
def load_tiles(at, i, j, in_p, N: tl.constexpr, HALVES: tl.constexpr):
    """Both channels of the pairs j of rows of S, in fp32. Neighbours are loaded side by side, and then separated."""
    there = in_p[:, None] & (j < N // 2)[None, :]
    if HALVES:
        one, two = load_pairs(at + i[:, None] * N, j[None, :], there, N, True)
    else:
        n = tl.arange(0, 2 * j.shape[0])
        whole = tl.load(at + i[:, None] * N + n[None, :], mask=in_p[:, None] & (n < N)[None, :], other=0.0).to(tl.float32)
        one, two = tl.split(tl.reshape(whole, (i.shape[0], j.shape[0], 2)))
    return one, two


@triton.jit
def store_tiles(at, one, two, i, j, in_p, N: tl.constexpr, HALVES: tl.constexpr):
    if HALVES:
        store_pairs(at + i[:, None] * N, one, two, j[None, :], in_p[:, None] & (j < N // 2)[None, :], N, True)
    else:
        n, whole = tl.arange(0, 2 * j.shape[0]), tl.reshape(tl.join(one, two), (i.shape[0], 2 * j.shape[0]))
        mask = in_p[:, None] & (n < N)[None, :]
        tl.store(at + i[:, None] * N + n[None, :], whole.to(at.dtype.element_ty), mask=mask)


@triton.jit
def load_state(
    at, i, j, held, P: tl.constexpr, N: tl.constexpr, F: tl.constexpr, R: tl.constexpr, HALVES: tl.constexpr,
):  # fmt: skip
    """The four pieces of a head: two tiles of S, the angles, keys, the value; zeros if the state is not `held`."""
    in_p, there = (i < P) & held, (j < N // 2) & held
    one, two = load_tiles(at, i, j, in_p, N, HALVES)
    angle = tl.load(at + P * N + j, mask=(j < F) & held, other=0.0).to(tl.float32)
    keys = ()
    for r in tl.static_range(R):
        keys += (load_pairs(at + P * N + F + r * N, j, there, N, HALVES),)  # type: ignore[assignment]
    return one, two, angle, keys, tl.load(at + P * N + F + R * N + i, mask=in_p, other=0.0).to(tl.float32)


@triton.jit
def store_pieces(
    at, held, i, j, P: tl.constexpr, N: tl.constexpr, F: tl.constexpr, R: tl.constexpr, HALVES: tl.constexpr,
):  # fmt: skip
    one, two, angle, keys, value = held
    in_p, there = i < P, j < N // 2
    store_tiles(at, one, two, i, j, in_p, N, HALVES)
    tl.store(at + P * N + j, angle.to(at.dtype.element_ty), mask=j < F)
    for r in tl.static_range(R):
        store_pairs(at + P * N + F + r * N, keys[r][0], keys[r][1], j, there, N, HALVES)
    tl.store(at + P * N + F + R * N + i, value.to(at.dtype.element_ty), mask=in_p)


@triton.jit
def mapped(value, maps, i, r, P: tl.constexpr):
    """v_r of a value; `maps` is that of the head, or None."""
    if maps is not None:
        value = value * tl.load(maps + r * P + i, mask=i < P, other=0.0).to(tl.float32)
    return value


@triton.jit
def weights(dt, A, trap, dt_bias, real, floor):
    """dt, a, dt l and a dt (1 - l) of a token and head (1)."""
    dt_t = tl.load(dt, mask=real, other=0.0).to(tl.float32) + tl.load(dt_bias).to(tl.float32)
    dt_t = softplus(dt_t)
    a = tl.exp(-dt_t * tl.maximum(softplus(tl.load(A, mask=real, other=0.0).to(tl.float32)), floor))
    share = sigmoid(tl.load(trap, mask=real, other=0.0).to(tl.float32))
    return dt_t, a, dt_t * share, a * dt_t * (1.0 - share)


@triton.jit
def advance(
    held, x, dt, A, trap, angle, B, B_norm, B_bias, dt_bias, up, i, j, real, stride_B_r, floor, eps,
    P: tl.constexpr, N: tl.constexpr, F: tl.constexpr, R: tl.constexpr, HALVES: tl.constexpr, NO_OPS: tl.constexpr,
):  # fmt: skip
    """The state after a token (1) to (4), whose pointers are given, and the cosines and sines of its angles; that of a no-op
    is the state before it."""
    one, two, th, keys, value = held
    dt_t, a, own, before = weights(dt, A, trap, dt_bias, real, floor)
    turn = sigmoid(2.0 * tl.load(angle + j, mask=(j < F) & real, other=0.0).to(tl.float32))
    after = th + PI * (2.0 * turn - 1.0) * dt_t
    turns = tl.floor(after / (TURN_HEAD + TURN_REST))
    after = (after - turns * TURN_HEAD) - turns * TURN_REST  # (2)
    cos, sin = turned_by(after)
    x_t = tl.load(x + i, mask=(i < P) & real, other=0.0).to(tl.float32)
    new_one, new_two, new_keys = a * one, a * two, ()
    for r in tl.static_range(R):
        key = vector(B + r * stride_B_r, B_norm, B_bias + r * N, cos, sin, j, j < N // 2, real, eps, N, HALVES)  # (3)
        old, new = before * mapped(value, up, i, r, P), own * mapped(x_t, up, i, r, P)
        new_one = new_one + old[:, None] * keys[r][0][None, :] + new[:, None] * key[0][None, :]
        new_two = new_two + old[:, None] * keys[r][1][None, :] + new[:, None] * key[1][None, :]  # (4)
        new_keys += (key,)  # type: ignore[assignment]
    if NO_OPS:
        kept_keys = ()
        for r in tl.static_range(R):
            kept_one, kept_two = tl.where(real, new_keys[r][0], keys[r][0]), tl.where(real, new_keys[r][1], keys[r][1])
            kept_keys += ((kept_one, kept_two),)  # type: ignore[assignment]
        new_one, new_two = tl.where(real, new_one, one), tl.where(real, new_two, two)
        return (new_one, new_two, tl.where(real, after, th), kept_keys, tl.where(real, x_t, value)), cos, sin
    return (new_one, new_two, after, new_keys, x_t), cos, sin


@triton.jit
def finished(o, x_t, z, D, up, gate, down, i, r, P: tl.constexpr):
    """What rank r adds to the output of a token, from S' q_r (5), its value and its gate; the maps are those of the head."""
    if D is not None:
        o += tl.load(D).to(tl.float32) * mapped(x_t, up, i, r, P)
    if z is not None:
        o *= silu(mapped(z, gate, i, r, P))
    return mapped(o, down, i, r, P)


@triton.jit
def read(
    held, cos, sin, C, z, C_norm, C_bias, D, up, gate, down, i, j, real, stride_C_r, eps,
    P: tl.constexpr, N: tl.constexpr, R: tl.constexpr, HALVES: tl.constexpr,
):  # fmt: skip
    """The output of the token that made a state (5); 0 of a no-op."""
    one, two, _, _, x_t = held
    y, z_t = tl.zeros_like(x_t), None
    if z is not None:
        z_t = tl.load(z + i, mask=(i < P) & real, other=0.0).to(tl.float32)
    for r in tl.static_range(R):
        query = vector(C + r * stride_C_r, C_norm, C_bias + r * N, cos, sin, j, j < N // 2, real, eps, N, HALVES)
        o = tl.sum(one * query[0][None, :] + two * query[1][None, :], axis=1)
        y += finished(o, x_t, z_t, D, up, gate, down, i, r, P)
    return tl.where(real, y, 0.0)
