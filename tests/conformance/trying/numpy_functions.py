"""Functions in NumPy as people write them for themselves; no adapter knows them."""

import numpy as np


def softplus(x):
    return np.logaddexp(x.dtype.type(0), x)


def ssd_step(x, dt, A_log, B, C, D, state):
    """One token of Mamba-2: log A, one group, softplus inside."""
    dt = softplus(dt)
    state = np.exp(-dt * np.exp(A_log))[..., None, None] * state + (dt[..., None] * x)[..., None] * B[:, None, None]
    return np.einsum("bhpn,bn->bhp", state, C) + D[:, None] * x, state


def mamba2_scan(h, xs, dts, A, B, C):
    """Mamba-2 over tokens of one sequence, without a batch; the state is (h, n, p)."""
    ys = []
    heads = xs.shape[1]
    for x, dt, b, c in zip(xs, softplus(dts), B, C, strict=True):
        b, c = (np.repeat(a, heads // a.shape[0], axis=0) for a in (b, c))
        h = np.exp(dt * A)[:, None, None] * h + b[:, :, None] * (dt[:, None] * x)[:, None]
        ys.append(np.einsum("hnp,hn->hp", h, c))
    return {"y": np.stack(ys), "state": h}


def mamba_scan(x, delta, A, B, C, D, h0):
    """Mamba-1 as mambapy has it: (b, l, d), and a step that is positive."""
    ys, h = [], h0
    for i in range(x.shape[1]):
        h = np.exp(delta[:, i, :, None] * A) * h + (delta[:, i] * x[:, i])[..., None] * B[:, i, None]
        ys.append((h * C[:, i, None]).sum(-1) + D * x[:, i])
    return np.stack(ys, axis=1), h


def shortconv_step(B, C, x, conv_state, conv_weight):
    """One token of LFM2's short convolution."""
    seen = np.concatenate([conv_state, (B * x)[:, :, None]], axis=2)
    return C * np.einsum("bdw,dw->bd", seen, conv_weight), seen[:, :, 1:]


def conv_with_state(input, weight, bias, past_state):
    """ONNX's CausalConvWithState: (b, c, l), taps of (c, 1, w), and a window without its oldest column."""
    seen = np.concatenate([past_state, input], axis=2)
    w = weight.shape[2]
    windows = np.stack([seen[:, :, i : i + w] for i in range(input.shape[2])], axis=2)
    return np.einsum("bctw,cw->bct", windows, weight[:, 0]) + bias[:, None], seen[:, :, -(w - 1) :]


def either_gate(q, k, v, g, beta, S):
    """A step of the delta rule that takes a gate per head or per channel: two readings fit."""
    S = np.exp(g if g.ndim == 3 else g[..., None])[..., None] * S
    u = beta[..., None] * (v - np.einsum("bhkv,bhk->bhv", S, k))
    S = S + k[..., None] * u[:, :, None]
    return np.einsum("bhkv,bhk->bhv", S, q) * q.dtype.type(q.shape[-1] ** -0.5), S


def oddly_named(state, signal, dt, A, B, C):
    """One token of Mamba-1, with a name that no project has."""
    dt = softplus(dt)
    state = np.exp(dt[..., None] * A) * state + (dt * signal)[..., None] * B[:, None]
    return (state * C[:, None]).sum(-1), state


def attention(q, k, v, mask):
    """None of the recurrences."""
    return q @ k.T @ v * mask


def stateless(x, dt, A, B, C):
    """Mamba-1 that returns no state."""
    h, ys = np.zeros((x.shape[0], *A.shape), x.dtype), []
    for i in range(x.shape[1]):
        h = np.exp(dt[:, i, :, None] * A) * h + (dt[:, i] * x[:, i])[..., None] * B[:, i, None]
        ys.append((h * C[:, i, None]).sum(-1))
    return np.stack(ys, axis=1)


def only_stars(*args):
    """A function whose signature says nothing."""
    return args


NOT_A_FUNCTION = 3
