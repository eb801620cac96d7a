"""Implementations in low precision, written as kernels are: what an error bound must let pass, and what it must reject.

`Machine` computes in float32 as a numeric contract says, with a choice of the order of sums. A machine whose contract is not
the declared one is a fault. What the machine may not do differently (rounding to nearest even, one rounding for each
operation) NumPy's float32 does.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ssmspec_ref.contract import NumericContract
from ssmspec_ref.error_bounds import Approx, compare
from ssmspec_ref.layers.layer import DeltaLayer, Mamba1Layer
from ssmspec_ref.layers.mixer import DeltaGates, SSDGates
from ssmspec_ref.records import each
from ssmspec_ref.selective import SelectiveWindow

F32 = np.float32
FP32 = NumericContract(function_ulp=3)
"""Everything in float32, with NumPy's exp."""
SUMS = ("pairwise", "forward", "backward")


def rounded(x: Any, form: str) -> Any:
    """Round float32 to a narrower format, to nearest, ties to even; still float32."""
    if form in ("fp32", "ieee", "tf32x3"):
        return x
    if form == "fp16":
        return x.astype(np.float16).astype(F32)
    drop = {"bf16": 16, "tf32": 13}[form]
    bits = np.ascontiguousarray(x, F32).view(np.uint32)
    half = (1 << (drop - 1)) - 1 + ((bits >> drop) & 1)
    return ((bits + half.astype(np.uint32)) & np.uint32(0xFFFFFFFF << drop & 0xFFFFFFFF)).view(F32).reshape(np.shape(x))


def stored(record: Any, form: str = "fp32") -> Any:
    """A record of float64 arrays whose values are exact in a format."""
    return each(lambda a: rounded(a.astype(F32), form).astype(np.float64), record)


def low(record: Any) -> Any:
    """The float32 array of an array; None stays."""
    return None if record is None else record.astype(F32)


@dataclass(frozen=True)
class Machine:
    """A float32 implementation: `sums` is the order of additions, `variant` picks an association, `fault` plants one."""

    contract: NumericContract
    sums: str = "pairwise"
    variant: int = 0
    fault: str = ""

    def sum(self, terms: Any) -> Any:
        """Over the last axis."""
        if self.fault == "bf16 accumulator":
            return self._loop(terms, "bf16")
        if self.sums == "pairwise":
            return np.sum(np.ascontiguousarray(terms), axis=-1, dtype=F32)
        return self._loop(terms if self.sums == "forward" else terms[..., ::-1], "fp32")

    def _loop(self, terms: Any, form: str) -> Any:
        total = np.zeros(terms.shape[:-1], F32)
        for n in range(terms.shape[-1]):
            total = rounded(total + terms[..., n], form)
        return total

    def dot(self, x: Any, y: Any, plus: Any = None) -> Any:
        """A matrix product over the last axis, its operands rounded as the contract says; `plus` is added first or last."""
        x, y = rounded(x, self.contract.dot), rounded(y, self.contract.dot)
        terms = x * y
        if plus is None:
            return self.sum(terms)
        if self.variant == 0:
            return self.sum(terms) + plus
        return self.sum(np.concatenate([np.broadcast_to(plus[..., None], (*terms.shape[:-1], 1)), terms], axis=-1))

    def exp(self, x: Any) -> Any:
        if self.fault == "exp2 with 1.44":
            return np.exp2(x * F32(1.44))
        return np.exp2(x * F32(np.log2(np.e))) if self.contract.exp == "ex2" else np.exp(x)

    def softplus(self, x: Any) -> Any:
        e = self.exp(np.minimum(x, F32(20)))
        return np.where(x > 20, x, np.log(1 + e) if self.contract.softplus == "log" else np.log1p(e))

    def sigmoid(self, x: Any) -> Any:
        with np.errstate(over="ignore"):
            return 1 / (1 + self.exp(-x))

    def silu(self, x: Any) -> Any:
        with np.errstate(over="ignore"):
            return x * self.sigmoid(x) if self.variant else x / (1 + self.exp(-x))

    def out(self, y: Any) -> Any:
        return rounded(y, self.contract.io)

    def state(self, S: Any) -> Any:
        return rounded(S, self.contract.state)

    def between(self, S: Any) -> Any:
        """The state between two tokens or chunks."""
        return self.state(S) if self.contract.stored_every_token else S

    def decay(self, a: Any) -> Any:
        """The decays (b t ..) of a window; one fault skips the first."""
        if self.fault == "decay skipped once":
            a = a.copy()
            a[:, 0] = 1
        return a

    def cuts(self, tokens: int) -> list[slice]:
        whole = self.contract.order == "output_only" or not self.contract.chunk
        size = tokens if whole else self.contract.chunk
        return [slice(s, min(s + size, tokens)) for s in range(0, tokens, size)]

    # ------------------------------------------------------------------------------------------------------ conv

    def conv(self, M: Any, u: Any, params: Any) -> tuple[Any, Any]:
        M, u, weight, bias = low(M), low(u), low(params.weight), low(params.bias)
        outputs = []
        for t in range(u.shape[1]):
            M = np.concatenate([M[:, :, 1:], u[:, t, :, None]], axis=2)
            y = self.dot(M, weight, bias)
            outputs.append(self.out(self.silu(y) if params.activation else y))
        return np.stack(outputs, axis=1), M

    def shortconv(self, S: Any, window: Any, params: Any) -> tuple[Any, Any]:
        S, B, C, x, weight, bias = (low(a) for a in (S, window.B, window.C, window.x, params.weight, params.bias))
        outputs = []
        for t in range(x.shape[1]):
            M = np.concatenate([S, self.state(B[:, t] * x[:, t])[:, :, None]], axis=2)
            outputs.append(self.out(C[:, t] * self.out(self.dot(M, weight, bias))))
            S = M[:, :, 1:]
        return np.stack(outputs, axis=1), S

    # ------------------------------------------------------------------------------------------------------- ssd

    def ssd(self, S: Any, window: Any, params: Any) -> tuple[Any, Any]:
        S, x, A, D = low(S), low(window.x), low(params.A), low(params.D)
        each_group = x.shape[2] // window.B.shape[2]
        B, C = (np.repeat(low(a), each_group, axis=2) for a in (window.B, window.C))
        dt = np.clip(self.step_size(window, params), *(F32(v) for v in params.dt_limit))
        skip = np.zeros_like(x) if D is None else (D[:, None] if D.ndim == 1 else D) * x
        if self.contract.order in ("sequential", "associative"):
            a, wide_dt, inputs = self.decay(self.exp(dt * A))[..., None, None], dt[..., None, None], x[..., None]
            U = (wide_dt * inputs) * B[:, :, :, None] if self.variant else wide_dt * (inputs * B[:, :, :, None])
            run = self._steps if self.contract.order == "sequential" else self._scanned
            return self._finish(*run(S, a, U, C[:, :, :, None], skip), window)
        return self._finish(*self._ssd_chunks(S, x, dt, A, B, C, skip), window)

    def step_size(self, window: Any, params: Any) -> Any:
        dt = low(window.dt) if params.dt_bias is None else low(window.dt) + low(params.dt_bias)
        return self.softplus(dt) if params.dt_softplus else dt

    def _steps(self, S: Any, a: Any, U: Any, C: Any, skip: Any) -> tuple[Any, Any]:
        outputs = []
        for t in range(a.shape[1]):
            S = self.between(a[:, t] * S + U[:, t])
            outputs.append(self.dot(S, C[:, t], skip[:, t]))
        return np.stack(outputs, axis=1), S

    def _finish(self, y: Any, S: Any, window: Any) -> tuple[Any, Any]:
        return self.out(y if window.z is None else y * self.silu(low(window.z))), self.state(S)

    def _ssd_chunks(self, S: Any, x: Any, dt: Any, A: Any, B: Any, C: Any, skip: Any) -> tuple[Any, Any]:
        outputs = []
        for c in self.cuts(x.shape[1]):
            P, L = self._decays(dt[:, c] * A)
            scores = self.dot(C[:, c, None], B[:, None, c]) * L * dt[:, None, c]  # (b t j h)
            y = self.dot(scores.transpose(0, 1, 3, 2)[:, :, :, None], x[:, None, c].transpose(0, 1, 3, 4, 2))
            if self.variant:
                y = y + self.dot((P[..., None] * C[:, c])[:, :, :, None], S[:, None])
            else:
                y = y + P[..., None] * self.dot(C[:, c, :, None], S[:, None])
            outputs.append(y + skip[:, c])
            fed = (L[:, -1] * dt[:, c])[..., None] * B[:, c]  # (b j h n)
            S = P[:, -1, :, None, None] * S + self.dot(
                x[:, c].transpose(0, 2, 3, 1)[:, :, :, None], fed.transpose(0, 2, 3, 1)[:, :, None]
            )
            S = self.between(S)
        return np.concatenate(outputs, axis=1), S

    def _decays(self, z: Any) -> tuple[Any, Any]:
        """exp(cs_t) and exp(cs_t - cs_j), the mask before exp; one variant has its sums in powers of two."""
        scaled = self.contract.exp == "ex2" and self.variant == 1
        exp = np.exp2 if scaled else self.exp
        cs = np.cumsum(z, axis=1, dtype=F32) * (F32(np.log2(np.e)) if scaled else F32(1))
        seen = np.tri(z.shape[1], dtype=bool).reshape(1, z.shape[1], z.shape[1], *[1] * (z.ndim - 2))
        L = np.where(seen, exp(np.where(seen, cs[:, :, None] - cs[:, None], 0)), F32(0))
        if self.fault == "decay skipped once":
            cs = cs - z[:, :1] * (F32(np.log2(np.e)) if scaled else F32(1))
        return exp(cs), L

    # ------------------------------------------------------------------------------------------------- selective

    def selective(self, S: Any, window: Any, params: Any) -> tuple[Any, Any]:
        S, x, B, C, dt = low(S), low(window.x), low(window.B), low(window.C), self.step_size(window, params)
        a = self.decay(self.exp(dt[..., None] * low(params.A)))
        U = (dt * x)[..., None] * B[:, :, None]
        skip = np.zeros_like(x) if params.D is None else low(params.D) * x
        run = self._steps if self.contract.order == "sequential" else self._scanned
        return self._finish(*run(S, a, U, C[:, :, None], skip), window)

    def _scanned(self, S: Any, a: Any, U: Any, C: Any, skip: Any) -> tuple[Any, Any]:
        outputs = []
        for c in self.cuts(a.shape[1]):
            P, V = self._associative(a[:, c], U[:, c])
            after = P * S[:, None] + V
            outputs.append(self.dot(after, C[:, c], skip[:, c]))
            S = self.between(after[:, -1])
        return np.concatenate(outputs, axis=1), S

    def _associative(self, a: Any, U: Any) -> tuple[Any, Any]:
        """Hillis and Steele's scan of S -> a S + U: products of decays, no running sums."""
        a = np.broadcast_to(a, U.shape)
        step, t = 1, a.shape[1]
        while step < t:
            a_before = np.concatenate([np.ones_like(a[:, :step]), a[:, :-step]], axis=1)
            U_before = np.concatenate([np.zeros_like(U[:, :step]), U[:, :-step]], axis=1)
            U, a, step = a * U_before + U, a * a_before, 2 * step
        return a, U

    # ----------------------------------------------------------------------------------------------------- delta

    def delta(self, S: Any, window: Any, params: Any) -> tuple[Any, Any]:
        S, q, k, v, g, beta = (low(a) for a in (S, window.q, window.k, window.v, window.g, window.beta))
        if params.l2_norm:
            q, k = (a * (1 / np.sqrt(self.sum(a * a) + F32(params.eps)))[..., None] for a in (q, k))
        q = q * F32(q.shape[-1] ** -0.5 if params.scale is None else params.scale)
        q, k = (np.repeat(a, v.shape[2] // k.shape[2], axis=2) for a in (q, k))
        g = g if g.ndim == 4 else g[..., None]
        run = self._delta_steps if self.contract.order == "sequential" else self._delta_chunks
        o, S = run(S, q, k, v, g, beta)
        return self.out(o), self.state(S)

    def _delta_steps(self, S: Any, q: Any, k: Any, v: Any, g: Any, beta: Any) -> tuple[Any, Any]:
        a, outputs = self.decay(self.exp(g)), []
        for t in range(v.shape[1]):
            S = a[:, t, :, :, None] * S
            r = v[:, t] - self.dot(S.swapaxes(-1, -2), k[:, t, :, None])
            u = beta[:, t, :, None] * r
            S = self.between(S + k[:, t, ..., None] * u[:, :, None])
            outputs.append(self.dot(S.swapaxes(-1, -2), q[:, t, :, None]))
        return np.stack(outputs, axis=1), S

    def _delta_chunks(self, S: Any, q: Any, k: Any, v: Any, g: Any, beta: Any) -> tuple[Any, Any]:
        """Heads first from here on: (b h t ..)."""
        q, k, v, g, beta = (a.swapaxes(1, 2) for a in (q, k, v, g, beta))
        outputs, ring = [], self.contract.ring or "fp32"
        k = rounded(k, ring)
        for c in self.cuts(v.shape[2]):
            qc, kc, vc, bc = q[:, :, c], k[:, :, c], v[:, :, c], beta[:, :, c]
            P, L = self._heads(g[:, :, c])
            t = vc.shape[2]
            A = bc[..., None] * self.dot(kc[:, :, :, None] * L, kc[:, :, None]) * np.tri(t, k=-1, dtype=F32)
            U = rounded(self._corrections(A, bc, kc * P, vc, S), ring)
            scores = self.dot(qc[:, :, :, None] * L, kc[:, :, None]) * np.tri(t, dtype=F32)
            o = self.dot((qc * P)[:, :, :, None], S.swapaxes(-1, -2)[:, :, None])
            outputs.append(o + self.dot(scores[:, :, :, None], U.swapaxes(-1, -2)[:, :, None]))
            fed = kc * L[:, :, -1]
            S = P[:, :, -1, :, None] * S + self.dot(fed.swapaxes(-1, -2)[:, :, :, None], U.swapaxes(-1, -2)[:, :, None])
            S = self.between(S)
        return np.concatenate(outputs, axis=2).swapaxes(1, 2), S

    def _heads(self, g: Any) -> tuple[Any, Any]:
        P, L = self._decays(g.swapaxes(1, 2))  # (b t h k), (b t j h k)
        return P.swapaxes(1, 2), L.transpose(0, 3, 1, 2, 4)

    def _corrections(self, A: Any, beta: Any, kP: Any, v: Any, S: Any) -> Any:
        """(I + A) U = beta (V - kP S): by forward substitution, or by the explicit inverse and the WY form."""
        if self.variant:
            T = self._solve(A, np.broadcast_to(np.eye(A.shape[-1], dtype=F32), A.shape))
            W = self.dot(T[:, :, :, None], (beta[..., None] * kP).swapaxes(-1, -2)[:, :, None])
            U = self.dot(T[:, :, :, None], (beta[..., None] * v).swapaxes(-1, -2)[:, :, None])
            return U - self.dot(W[:, :, :, None], S.swapaxes(-1, -2)[:, :, None])
        read = self.dot(kP[:, :, :, None], S.swapaxes(-1, -2)[:, :, None])
        windows_of_one = self.sums == "backward"
        return self._solve(A, beta[..., None] * (v - read), self.contract.ring or "fp32" if windows_of_one else "fp32")

    def _solve(self, A: Any, right: Any, held: str = "fp32") -> Any:
        """Forward substitution; `held` is the format in which a token finds what those before it wrote."""
        U = np.zeros(right.shape, F32)
        for t in range(A.shape[-1]):
            past = rounded(U[:, :, :t], held)
            U[:, :, t] = right[:, :, t] - self.sum(A[:, :, t, None, :t] * past.swapaxes(-1, -2))
        return U

    # ---------------------------------------------------------------------------------------------------- layers

    def linear(self, x: Any, layer: Any) -> Any:
        if layer.down is not None:
            x = self.out(self.dot(x[..., None, :], low(layer.down)))
        bias = None if layer.bias is None else np.broadcast_to(low(layer.bias), (*x.shape[:-1], layer.outputs))
        return self.out(self.dot(x[..., None, :], low(layer.weight), bias))

    def rms(self, x: Any, weight: Any, eps: float, groups: int = 1) -> Any:
        parts = x.reshape(*x.shape[:-1], groups, -1)
        mean = self.sum(parts * parts) / F32(parts.shape[-1])
        normed = parts * (1 / np.sqrt(mean + F32(eps)))[..., None]
        return self.out(normed.reshape(x.shape)) * low(weight)

    def gated(self, y: Any, z: Any, norm: Any) -> Any:
        act = self.silu(z) if norm.gate == "silu" else self.sigmoid(z)
        if norm.norm_first:
            return self.rms(y, norm.weight, norm.eps, norm.groups) * act
        return self.rms(y * act, norm.weight, norm.eps, norm.groups)

    def layer(self, state: Any, u: Any, layer: Any) -> tuple[Any, Any, Any]:
        """`ssmspec_ref.layers.layer.scan`, every stage in float32 and stored as outputs are."""
        pre, gates, z = getattr(self, f"_{type(layer).__name__.lower()}")(low(u), layer)
        c, M = self.conv(state.M, wide(pre), layer.mixer.conv)
        if isinstance(layer, Mamba1Layer):
            y, S = self.selective(state.S, self._mamba1_window(c, layer.mixer), layer.mixer.params)
        else:
            window = layer.mixer.project(wide(c), gates)
            y, S = (self.delta if isinstance(layer, DeltaLayer) else self.ssd)(state.S, window, layer.mixer.params)
        norm = getattr(layer, "norm", None)
        inner = y.reshape(z.shape)
        inner = inner * self.silu(z) if norm is None else self.gated(inner, z, norm)
        return self.linear(self.out(inner).reshape(*u.shape[:2], -1), layer.out_proj), M, S

    def _mamba2layer(self, u: Any, layer: Any) -> tuple[Any, Any, Any]:
        inner, channels = layer.mixer.params.A.shape[0] * layer.mixer.channels, layer.mixer.conv.weight.shape[0]
        projected = self.linear(F32(layer.input_multiplier) * u, layer.in_proj)
        if layer.multipliers is not None:
            projected = self.out(projected * low(layer.multipliers))
        z, pre, dt = np.split(projected, [inner, inner + channels], axis=2)
        return pre, SSDGates(wide(dt)), z

    def _mamba1layer(self, u: Any, layer: Any) -> tuple[Any, Any, Any]:
        pre, z = np.split(self.linear(u, layer.in_proj), 2, axis=2)
        return pre, None, z

    def _mamba1_window(self, c: Any, mixer: Any) -> SelectiveWindow:
        rank, n = mixer.dt_proj.shape[1], mixer.params.A.shape[1]
        parts = np.split(self.out(self.dot(c[..., None, :], low(mixer.x_proj))), [rank, rank + n], axis=2)
        norms = (mixer.dt_norm, mixer.B_norm, mixer.C_norm)
        r, B, C = (p if f is None else self.out(self.rms(p, f.weight, f.eps)) for p, f in zip(parts, norms, strict=True))
        return SelectiveWindow(wide(c), wide(self.out(self.dot(r[..., None, :], low(mixer.dt_proj)))), wide(B), wide(C))

    def _deltalayer(self, u: Any, layer: Any) -> tuple[Any, Any, Any]:
        z = self.linear(u, layer.z_proj).reshape(*u.shape[:2], layer.mixer.value_heads, layer.mixer.value_channels)
        a = self.linear(u, layer.a_proj).reshape(*u.shape[:2], *layer.dt_bias.shape) + low(layer.dt_bias)
        A = low(layer.A if layer.dt_bias.ndim == 1 else layer.A[:, None])
        g = A * self.softplus(a) if layer.lower_bound is None else F32(layer.lower_bound) * self.sigmoid(-A * a)
        beta = F32(layer.beta_scale) * self.sigmoid(self.linear(u, layer.b_proj))
        return self.linear(u, layer.qkv_proj), DeltaGates(wide(g), wide(beta)), z


def wide(a: Any) -> Any:
    """The same values in float64, as the records want them."""
    return a.astype(np.float64)


def used(got: Any, pair: Approx) -> float:
    """The share of a bound that a result uses."""
    return compare(np.asarray(got), pair.value, pair.error).utilisation


def within(got: Any, ref: Any, *pairs: Approx) -> bool:
    """Whether two computations differ by no more than both bounds."""
    return compare(got, ref, sum((p.error for p in pairs), np.zeros(()))).passed
