"""Mamba-3 from residual stream to residual stream, with its recurrence in PyTorch.

    z | x | B | C | dt | A | trap | angle = in_proj u                                                     (1)
    th' = th + pi dt tanh(angle),  modulo 2 pi                                                            (2)
    k, q = norm(B) + B_bias, norm(C) + C_bias, rotated by th'                                             (3)
    S'  = exp(ld) (S + dt (1 - l) sum_r v-_r k-_r^T) + dt l sum_r v_r k_r^T                               (4)
    y   = sum_r down_r (S' q_r + D v_r) silu(gate_r z),  v_r = up_r x                                     (5)
    out = out_proj y, or out_proj (rms(y) silu(z)) of rank 1, and no z in (5)                             (6)

S, th, k and x of a slot lie in one row of the pool, head by head: p n + f + r n + p numbers. So each method keeps, moves and
forgets all four at once. There is no convolution: that of the engine's other layers has no channels here.
Source: arXiv:2603.15569v1, section 3, as cited in `ssmspec_ref.mamba3`; mamba_ssm/modules/mamba3.py of state-spaces/mamba.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from ..models.config import ConvSizes, GatedNormConfig, RecurrentConfig
from ..operations import Operations, Rows, Taps
from ..operations.arithmetic import exact
from ..operations.torch_recurrences import Sequential
from .linear import Linear, Product
from .recurrent import Recurrent

if TYPE_CHECKING:
    from ..families.source import Source

TURN = 2 * math.pi


@dataclass(frozen=True)
class Mamba3Config(RecurrentConfig):
    """`angles` of the state's pairs turn, of neighbours or of `halves`; with a norm, (5) has no gate."""

    heads: int
    channels: int
    state: int
    groups: int
    angles: int
    rank: int = 1
    halves: bool = False
    maps: bool = False
    floor: float = 1e-4
    eps: float = 1e-5
    norm: GatedNormConfig | None = None

    @property
    def conv(self) -> ConvSizes:
        return ConvSizes(0, 2, False)

    @property
    def pieces(self) -> tuple[int, int, int, int]:
        """The numbers of a head of S, of its angles, of the previous key and of the previous value."""
        return self.channels * self.state, self.angles, self.rank * self.state, self.channels

    @property
    def projected(self) -> tuple[int, ...]:
        """The channels of each part of (1)."""
        inner, packed = self.heads * self.channels, self.rank * self.groups * self.state
        return inner, inner, packed, packed, self.heads, self.heads, self.heads, self.angles

    @property
    def state_shape(self) -> tuple[int, ...]:
        return self.heads, sum(self.pieces)

    @property
    def output_shape(self) -> tuple[int, ...]:
        return self.heads, self.channels

    @property
    def ring_sizes(self) -> tuple[int, int]:
        return self.heads * (self.channels + 3) + self.angles + self.rank * self.groups * self.state, 0


class Mamba3Inputs(NamedTuple):
    """x, z (b, t, h, p); dt, A, trap (b, t, h); angle (b, t, f); B, C (b, t, r, g, n); all as projected."""

    x: Tensor
    dt: Tensor
    A: Tensor
    trap: Tensor
    angle: Tensor
    B: Tensor
    C: Tensor
    z: Tensor | None = None

    @property
    def outputs(self) -> dict[str, str | None]:
        return {"C": "B", "z": None}


class Mamba3Params(NamedTuple):
    """Norms (n) and biases (h, r, n) of B and C, dt_bias and D (h), the maps of x, z and y (h, r, p)."""

    B_norm: Tensor
    C_norm: Tensor
    B_bias: Tensor
    C_bias: Tensor
    dt_bias: Tensor
    D: Tensor | None = None
    up: Tensor | None = None
    gate: Tensor | None = None
    down: Tensor | None = None
    A_floor: float = 1e-4
    eps: float = 1e-5
    halves: bool = False


class Mamba3Tokens(NamedTuple):
    """What a step reads: x and its map, the pairs (n / 2, 2) of key and query before their rotation, where in the pairs each
    channel lies, the increment of the angle, and the weights of (4)."""

    x: Tensor
    key: Tensor
    query: Tensor
    order: Tensor
    turned: Tensor
    a: Tensor
    own: Tensor
    before: Tensor
    up: Tensor


class Mamba3(Sequential):
    """The recurrence (2) to (5), token by token."""

    def prepare(self, inputs: Mamba3Inputs, params: Mamba3Params) -> Mamba3Tokens:
        wide, math_ = exact(inputs.x), self.arithmetic
        x = inputs.x.to(wide)
        dt = math_.softplus(inputs.dt.to(wide) + params.dt_bias)
        a = math_.exp(-dt * math_.softplus(inputs.A.to(wide)).clamp(min=params.A_floor))
        share = math_.sigmoid(inputs.trap.to(wide))
        turned = (math_.map(torch.tanh, inputs.angle.to(wide)) * math.pi)[:, :, None] * dt[..., None]
        key = paired(self.vectors(inputs.B.to(wide), params.B_norm, params.B_bias, params.eps), params.halves)
        query = paired(self.vectors(inputs.C.to(wide), params.C_norm, params.C_bias, params.eps), params.halves)
        order = torch.arange(inputs.B.shape[-1], device=x.device).view((-1, 2) if params.halves else (1, -1))
        order = order.t().reshape(-1).expand(*x.shape[:2], -1)
        rank = params.B_bias.shape[1]
        up = x.new_ones((x.shape[2], rank, x.shape[3])) if params.up is None else params.up
        up = up.expand(*x.shape[:2], -1, -1, -1)
        return Mamba3Tokens(x, key, query, order, turned, a, dt * share, a * dt * (1 - share), up)

    def vectors(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        """Keys or queries (b, t, h, r, n) before their rotation (3)."""
        mean = self.arithmetic.sum(x * x) / x.shape[-1]
        normed = x / (mean + eps).sqrt()[..., None] * weight
        return normed.repeat_interleave(bias.shape[0] // x.shape[-2], dim=-2).transpose(-3, -2) + bias

    def step(self, S: Tensor, token: Mamba3Tokens) -> tuple[Tensor, Tensor]:
        r, n, f, p = token.key.shape[-3], token.order.shape[-1], token.turned.shape[-1], token.x.shape[-1]
        matrix, angle, key, value = torch.split(S, [p * n, f, r * n, p], dim=-1)
        matrix, key = matrix.reshape(*matrix.shape[:2], p, n), key.reshape(*key.shape[:2], r, n)
        angle = angle + token.turned
        angle = angle - TURN * torch.floor(angle / TURN)
        cos, sin = (each[:, :, None] for each in self.arithmetic.turn(angle))
        order = token.order[:, None, None]
        k, q = (torch.take_along_dim(rotated(x, cos, sin), order, dim=-1) for x in (token.key, token.query))
        after = token.a[..., None, None] * matrix
        for i in range(r):  # in one order, whatever the batch
            up = token.up[..., i, :]
            after = after + (token.before[..., None] * (up * value))[..., None] * key[..., i, None, :]
            after = after + (token.own[..., None] * (up * token.x))[..., None] * k[..., i, None, :]
        y = self.arithmetic.sum(after[:, :, None] * q[..., None, :])
        return y, torch.cat([after.flatten(-2), angle, k.flatten(-2), token.x], dim=-1)

    def finish(self, y: Tensor, inputs: Mamba3Inputs, params: Mamba3Params) -> Tensor:
        x = inputs.x.to(y.dtype)[..., None, :]
        if params.D is not None:
            y = y + params.D[:, None, None] * (x if params.up is None else params.up * x)
        if inputs.z is not None:
            z = inputs.z.to(y.dtype)[..., None, :]
            y = y * self.arithmetic.silu(z if params.gate is None else params.gate * z)
        y = y if params.down is None else params.down * y
        return self.arithmetic.sum(y, dim=-2).to(inputs.x.dtype)


def paired(x: Tensor, halves: bool) -> Tensor:
    """Channels (.. n) as pairs (.. n / 2, 2): of neighbours, or of i and i + n / 2."""
    lead, pairs = x.shape[:-1], x.shape[-1] // 2
    return x.reshape(*lead, 2, pairs).transpose(-2, -1) if halves else x.reshape(*lead, pairs, 2)


def rotated(pairs: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The first f pairs turned, the others as they are, one after the other."""
    f = cos.shape[-1]
    one, two = pairs[..., :f, 0], pairs[..., :f, 1]
    turned = torch.stack([one * cos - two * sin, one * sin + two * cos], dim=-1)
    return torch.cat([turned, pairs[..., f:, :]], dim=-2).flatten(-2)


@dataclass(frozen=True)
class Mamba3Layer(Recurrent):
    config: Mamba3Config
    in_proj: Linear
    params: Mamba3Params
    out_proj: Linear
    norm: Tensor | None = None
    kind: ClassVar[str] = "mamba3"
    home: ClassVar[str] = "mixer"

    @classmethod
    def stored(cls, source: "Source", prefix: str, width: int, c: Mamba3Config) -> Self:
        """As mamba_ssm stores it."""
        ranks, inner = (c.heads, c.rank, c.state), c.heads * c.channels
        up, gate, down = (
            source.exact(f"{prefix}.mimo_{name}", c.heads, c.rank, c.channels) if c.maps else None for name in "xzo"
        )
        params = Mamba3Params(
            source.exact(f"{prefix}.B_norm.weight", c.state),
            source.exact(f"{prefix}.C_norm.weight", c.state),
            source.exact(f"{prefix}.B_bias", *ranks),
            source.exact(f"{prefix}.C_bias", *ranks),
            source.exact(f"{prefix}.dt_bias", c.heads),
            source.exact(f"{prefix}.D", c.heads),
            up,
            gate,
            down,
            c.floor,
            c.eps,
            c.halves,
        )
        return cls(
            c,
            source.linear(f"{prefix}.in_proj", sum(c.projected), width),
            params,
            source.linear(f"{prefix}.out_proj", width, inner),
            source.exact(f"{prefix}.norm.weight", inner) if c.norm else None,
        )

    @property
    def taps(self) -> Taps:  # type: ignore[override]
        """Of the convolution of no channels."""
        return Taps(self.params.B_norm.new_empty((0, 2)), activation=False)

    @property
    def projection(self) -> Linear:
        return self.in_proj

    @property
    def reads(self) -> slice:
        return slice(0, 0)

    def inputs(self, u: Rows, operations: Operations, room: Tensor | None = None) -> tuple[Tensor, Any]:
        whole = self.in_proj(u, operations, room)
        return whole[..., :0], whole

    def project(self, c: Tensor, gates: Any, operations: Operations) -> Mamba3Inputs:
        return self.moving(gates, c)

    def moving(self, projected: Tensor, c: Tensor, *beside: Tensor) -> Mamba3Inputs:
        s = self.config
        z, x, B, C, dt, A, trap, angle = torch.split(projected, list(s.projected), dim=-1)
        x, z = (a.reshape(*a.shape[:-1], s.heads, s.channels) for a in (x, z))
        B, C = (a.reshape(*a.shape[:-1], s.rank, s.groups, s.state) for a in (B, C))
        return Mamba3Inputs(x, dt, A, trap, angle, B, C, z if self.norm is None else None)

    def room(self, new: Callable[..., Tensor]) -> Mamba3Inputs:
        s = self.config
        dt, A, trap = (new(s.heads) for _ in range(3))
        B, C = (new(s.rank, s.groups, s.state) for _ in range(2))
        return Mamba3Inputs(new(s.heads, s.channels), dt, A, trap, new(s.angles), B, C)

    def output(self, y: Any, gates: Any, operations: Operations) -> Product:
        """(6)."""
        y = y.flatten(-2)
        if self.norm is not None and self.config.norm is not None:
            n, z = self.config.norm, gates[..., : y.shape[-1]]
            y = operations.gated_norm(y, z, self.norm, groups=n.groups, eps=n.eps, norm_first=n.norm_first)
        return Product(self.out_proj, y)
