"""The recurrences in PyTorch, token by token: what they share, and the step of each.

A step is elementwise except for one sum, so that with bitwise arithmetic a token has the same bits in any window, row and
batch. The state is carried in fp32 (float64 in a float64 model) and rounded to its storage type once, when it is written.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import DeltaInputs, DeltaParams, KDAParams, Recurrence, SelectiveInputs, SelectiveParams, SSDInputs, SSDParams
from .arithmetic import Arithmetic, exact
from .slots import down_tree, each, expand, put, repack, take, unpack


class Sequential(Recurrence, ABC):
    """A recurrence defined by its step; every operation visits the tokens in some order."""

    def __init__(self, arithmetic: Arithmetic) -> None:
        self.arithmetic = arithmetic

    @abstractmethod
    def prepare(self, inputs: Any, params: Any) -> Any:
        """The inputs of the steps, computed for all tokens at once: each token separately, in fp32 or float64."""

    @abstractmethod
    def step(self, S: Tensor, token: Any) -> tuple[Tensor, Tensor]:
        """One token of every row: the output and the state."""

    @abstractmethod
    def finish(self, y: Tensor, inputs: Any, params: Any) -> Tensor:
        """The rest of the output, for each token, and the rounding to the type of the inputs."""

    def walk(
        self,
        S: Tensor,
        inputs: Any,
        params: Any,
        slots: Tensor,
        live: Tensor | None,
        after_each: Callable[[int, Tensor], None] = lambda t, state: None,
    ) -> tuple[Tensor, Tensor]:
        """Token by token from S[slots]: the outputs, and the last state; `after_each` receives the state after each token."""
        state, tokens, outputs = take(S, slots).to(exact(inputs[0])), self.prepare(inputs, params), []
        for t in range(inputs[0].shape[1]):
            y, after = self.step(state, at(tokens, t))
            state = after if live is None else torch.where(expand(live[:, t], state), after, state)
            after_each(t, state)
            outputs.append(y)
        return self._outputs(outputs, inputs, params, live), state

    def scan(
        self, S: Tensor, inputs: Any, params: Any, *, slots: Tensor, live: Tensor | None = None, write_state: bool = True
    ) -> Tensor:
        y, state = self.walk(S, inputs, params, slots, live)
        if write_state:
            put(S, slots, state)
        return y

    def snapshots(
        self, S: Tensor, inputs: Any, params: Any, places: Tensor, *, slots: Tensor, live: Tensor | None = None
    ) -> Tensor:
        to = torch.where((slots >= 0)[:, None], places, -1)
        return self.walk(S, inputs, params, slots, live, lambda t, state: put(S, to[:, t], state))[0]

    def packed(
        self, S: Tensor, inputs: Any, params: Any, bounds: Tensor, *, slots: Tensor, fresh: Tensor | None = None
    ) -> Tensor:
        clear(S, slots, fresh)
        live = unpack(inputs[0], bounds)[1]
        rows = each(inputs, lambda x: unpack(x, bounds)[0])
        return repack(self.scan(S, rows, params, slots=slots, live=live), live, inputs[0])

    def tree(self, S: Tensor, inputs: Any, params: Any, parents: Tensor, ancestors: Tensor, *, slots: Tensor) -> Tensor:
        """Path by path: each node steps from the state of its parent."""
        tokens, outputs = self.prepare(inputs, params), list[Tensor]()

        def step(before: Tensor, t: int) -> Tensor:
            y, after = self.step(before, at(tokens, t))
            outputs.append(y)
            return after

        down_tree(take(S, slots).to(exact(inputs[0])), parents, step)
        return self._outputs(outputs, inputs, params, parents >= -1)

    def _outputs(self, outputs: list[Tensor], inputs: Any, params: Any, live: Tensor | None) -> Tensor:
        y = self.finish(torch.stack(outputs, dim=1), inputs, params)
        return y if live is None else torch.where(expand(live, y), y, y.new_zeros(()))


class SSDTokens(NamedTuple):
    a: Tensor
    weighted: Tensor
    B: Tensor
    C: Tensor


class SSD(Sequential):
    """Mamba-2: a = exp(dt A), S' = a S + (dt x) B^T, y = S' C + D x, then y silu(z)."""

    def prepare(self, inputs: SSDInputs, params: SSDParams) -> SSDTokens:
        wide = exact(inputs.x)
        dt = inputs.dt.to(wide) if params.dt_bias is None else inputs.dt.to(wide) + params.dt_bias
        dt = (self.arithmetic.softplus(dt) if params.dt_softplus else dt).clamp(*params.dt_limit)
        heads = inputs.x.shape[2] // inputs.B.shape[2]
        B, C = (x.to(wide).repeat_interleave(heads, dim=2) for x in (inputs.B, inputs.C))
        return SSDTokens(self.arithmetic.exp(dt * params.A), dt[..., None] * inputs.x.to(wide), B, C)

    def step(self, S: Tensor, token: SSDTokens) -> tuple[Tensor, Tensor]:
        after = token.a[..., None, None] * S + token.weighted[..., None] * token.B[:, :, None]
        return self.arithmetic.sum(after * token.C[:, :, None]), after

    def finish(self, y: Tensor, inputs: SSDInputs, params: SSDParams) -> Tensor:
        return skipped(self.arithmetic, y, inputs, params.D if params.D is None or params.D.dim() == 2 else params.D[:, None])


class SelectiveTokens(NamedTuple):
    a: Tensor
    U: Tensor
    C: Tensor


class Selective(Sequential):
    """Mamba-1: S' = exp(dt A) S + dt x B^T, y = S' C + D x, then y silu(z)."""

    def prepare(self, inputs: SelectiveInputs, params: SelectiveParams) -> SelectiveTokens:
        wide = exact(inputs.x)
        dt = inputs.dt.to(wide) if params.dt_bias is None else inputs.dt.to(wide) + params.dt_bias
        dt = self.arithmetic.softplus(dt) if params.dt_softplus else dt
        U = (dt * inputs.x.to(wide))[..., None] * inputs.B.to(wide)[:, :, None]
        return SelectiveTokens(self.arithmetic.exp(dt[..., None] * params.A), U, inputs.C.to(wide))

    def step(self, S: Tensor, token: SelectiveTokens) -> tuple[Tensor, Tensor]:
        after = token.a * S + token.U
        return self.arithmetic.sum(after * token.C[:, None]), after

    def finish(self, y: Tensor, inputs: SelectiveInputs, params: SelectiveParams) -> Tensor:
        return skipped(self.arithmetic, y, inputs, params.D)


class DeltaTokens(NamedTuple):
    """`a` (b, t, h, 1), or (b, t, h, k)."""

    a: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    beta: Tensor


class Delta(Sequential):
    """The gated delta rule: S- = exp(g) S, u = beta (v - S-^T k), S' = S- + k u^T, o = S'^T q."""

    def prepare(self, inputs: DeltaInputs, params: DeltaParams) -> DeltaTokens:
        wide, math = exact(inputs.v), self.arithmetic
        q, k, v = (x.to(wide) for x in (inputs.q, inputs.k, inputs.v))
        if params.l2_norm:
            q, k = (x / (math.sum(x * x) + params.eps).sqrt()[..., None] for x in (q, k))
        q = q * (q.shape[-1] ** -0.5 if params.scale is None else params.scale)
        heads = v.shape[2] // k.shape[2]
        q, k = q.repeat_interleave(heads, dim=2), k.repeat_interleave(heads, dim=2)
        g = self.log_decay(inputs.g.to(wide), params)
        return DeltaTokens(math.exp(g), q, k, v, math.sigmoid(inputs.beta.to(wide)))

    def log_decay(self, g: Tensor, params: Any) -> Tensor:
        """g after its gate, (b, t, h, 1) or (b, t, h, k)."""
        return (params.A * self.arithmetic.softplus(g + params.dt_bias))[..., None]

    def step(self, S: Tensor, token: DeltaTokens) -> tuple[Tensor, Tensor]:
        decayed = token.a[..., None] * S
        u = token.beta[..., None] * (token.v - self.arithmetic.sum(decayed * token.k[..., None], dim=-2))
        after = decayed + token.k[..., None] * u[:, :, None]
        return self.arithmetic.sum(after * token.q[..., None], dim=-2), after

    def finish(self, y: Tensor, inputs: DeltaInputs, params: DeltaParams) -> Tensor:
        return y.to(inputs.v.dtype)


class KDA(Delta):
    """Kimi Delta Attention: the delta rule with a decay for each key channel of each value head.

    g = A softplus(a + dt_bias), or lower_bound sigmoid(-A (a + dt_bias)) in [lower_bound, 0], A = -exp(A_log).
    Source: arXiv:2510.26692, section 4; flash-linear-attention, fla/ops/kda/gate.py, for the bounded gate.
    """

    def log_decay(self, g: Tensor, params: KDAParams) -> Tensor:
        rate, biased = params.A[:, None], g + params.dt_bias
        if params.lower_bound is None:
            return rate * self.arithmetic.softplus(biased)
        return params.lower_bound * self.arithmetic.sigmoid(-rate * biased)


def at(tokens: Any, t: int) -> Any:
    """One token of every row."""
    return type(tokens)(*(x[:, t] for x in tokens))


def skipped(arithmetic: Arithmetic, y: Tensor, inputs: Any, D: Tensor | None) -> Tensor:
    """y + D x, then y silu(z), in the type of x."""
    y = y if D is None else y + D * inputs.x.to(y.dtype)
    return (y if inputs.z is None else y * arithmetic.silu(inputs.z.to(y.dtype))).to(inputs.x.dtype)


def clear(pool: Tensor, slots: Tensor, fresh: Tensor | None) -> None:
    """Zeros in the slots of the rows that start from an empty state."""
    if fresh is not None:
        put(pool, torch.where(fresh, slots, -1), pool.new_zeros((len(slots), *pool.shape[1:])))
