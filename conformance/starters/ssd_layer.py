"""An adapter of a whole layer, residual stream in and out: projection, convolution, recurrence, gate and norm. Here in NumPy.

ssmspec conform check --adapter MODULE:adapter      is the adapter itself right?
ssmspec conform run --adapter MODULE:adapter        is the layer?
"""

import numpy as np

from ssmspec_ref.contract import Adapter, Capability, Limits, NumericContract, Subject


def f32(a):
    return np.asarray(a, dtype=np.float32)


def silu(x):
    return x / (1 + np.exp(-x))


class Layer:
    """Mamba-2 with its cache. Yours may load these weights into a module of PyTorch, and keep the cache of that module."""

    def __init__(self, layer, rows):
        """The weights, a `ssmspec_ref.layers.layer.Mamba2Layer`, and an empty cache for some rows."""
        mixer, params = layer.mixer, layer.mixer.params
        self.into, self.out = f32(layer.in_proj.weight), f32(layer.out_proj.weight)
        self.taps, self.bias = f32(mixer.conv.weight), f32(mixer.conv.bias)
        self.A, self.D, self.dt_bias = f32(params.A), f32(params.D), f32(params.dt_bias)
        self.norm, self.eps, self.norm_groups = f32(layer.norm.weight), np.float32(layer.norm.eps), layer.norm.groups
        self.heads, self.channels, self.groups, self.states = len(self.A), mixer.channels, mixer.groups, mixer.state
        self.M = np.zeros((rows, *self.taps.shape), dtype=np.float32)  # the last inputs of the convolution
        self.S = np.zeros((rows, self.heads, self.channels, self.states), dtype=np.float32)
        self.before = []  # the cache before each token, to undo it

    def forward(self, u, live=None):
        """The outputs (b t e) of some tokens u (b t e). live (b t) marks real tokens; padding must not reach the cache."""
        u = f32(u)
        live = np.ones(u.shape[:2], dtype=bool) if live is None else live
        return np.stack([self.token(u[:, t], live[:, t]) for t in range(u.shape[1])], axis=1)

    def token(self, u, live):
        inner, kept = self.heads * self.channels, self.groups * self.states
        z, xBC, dt = np.split(u @ self.into.T, [inner, 2 * inner + 2 * kept], axis=1)
        M = np.concatenate([self.M[:, :, 1:], xBC[:, :, None]], axis=2)
        x, B, C = np.split(silu(np.einsum("bcw, cw -> bc", M, self.taps) + self.bias), [inner, inner + kept], axis=1)
        x = x.reshape(-1, self.heads, self.channels)
        B, C = (np.repeat(a.reshape(-1, self.groups, self.states), self.heads // self.groups, axis=1) for a in (B, C))
        dt = np.logaddexp(np.float32(0), dt + self.dt_bias)
        S = np.exp(dt * self.A)[..., None, None] * self.S + (dt[..., None] * x)[..., None] * B[:, :, None]
        y = np.einsum("bhpn, bhn -> bhp", S, C) + self.D[:, None] * x
        gated = (y.reshape(z.shape) * silu(z)).reshape(len(z), self.norm_groups, -1)
        gated = gated / np.sqrt(np.mean(gated * gated, axis=2, keepdims=True) + self.eps)

        self.before.append((self.M, self.S))
        self.M, self.S = np.where(live[:, None, None], M, self.M), np.where(live[:, None, None, None], S, self.S)
        return (self.norm * gated.reshape(z.shape)) @ self.out.T

    def state(self):
        """The window of the convolution, M (b c w) or its last w - 1 columns, and the recurrent state S (b h p n)."""
        return self.M, self.S

    def rollback(self, tokens):
        """Undo the last tokens of every row. Without this method, say so in the limits of `layer.rollback`."""
        self.M, self.S = self.before[-tokens]
        del self.before[-tokens:]


CONTRACT = NumericContract(function_ulp=3)  # float32 throughout; NumPy's exp needs 3 ulp

# The values of each option that the layer takes; of an option that is not named it takes all values. Other cases are left
# out, and the report shows the reason. The other kinds are mamba1, mamba3, delta, kda and shortconv.
TAKES = {"kind": ("mamba2",), "norm": ("gate_first",), "D": ("head",), "dt_limit": ("off",), "multipliers": ("off",)}
TAKES |= {"conv_bias": ("on",), "conv_act": ("on",), "proj_bias": ("off",)}
LIMITS = Limits(TAKES, reason="the layer has no such option")
OPERATIONS = ("prefill", "step", "continue", "left_pad", "right_pad", "rollback")


def adapter():
    """Named on the command line."""
    layer = Capability(Layer, CONTRACT, LIMITS)
    return Adapter("my layer", "0.1", (Subject("mamba2", {f"layer.{name}": layer for name in OPERATIONS}),))
