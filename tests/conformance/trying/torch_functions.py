"""Functions in torch with the signatures of mamba-ssm, causal-conv1d and flash-linear-attention; no adapter knows them."""

import torch
from torch.nn.functional import conv1d, silu, softplus


def selective_state_update(state, x, dt, A, B, C, D=None, z=None, dt_bias=None, dt_softplus=False):
    """One token of Mamba-2 as mamba-ssm has it: per channel, and the state is written in place."""
    heads = x.shape[1]
    B, C = (a.repeat_interleave(heads // a.shape[1], dim=1) for a in (B, C))
    dt = dt if dt_bias is None else dt + dt_bias
    dt = softplus(dt) if dt_softplus else dt
    state.copy_(torch.exp(dt[..., None] * A) * state + (dt * x)[..., None] * B[:, :, None])
    y = torch.einsum("bhpn,bhn->bhp", state, C)
    y = y if D is None else y + D * x
    return y if z is None else y * silu(z)


def selective_scan_fn(u, delta, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False, return_last_state=False):
    """Mamba-1 as mamba-ssm has it: (b, d, l), from a state of zeros."""
    delta = delta if delta_bias is None else delta + delta_bias[:, None]
    delta = softplus(delta) if delta_softplus else delta
    state, outputs = u.new_zeros(u.shape[0], *A.shape), []
    for i in range(u.shape[2]):
        state = torch.exp(delta[:, :, i, None] * A) * state + (delta[:, :, i] * u[:, :, i])[..., None] * B[:, None, :, i]
        outputs.append((state * C[:, None, :, i]).sum(-1))
    y = torch.stack(outputs, dim=2)
    y = y if D is None else y + D[:, None] * u
    y = y if z is None else y * silu(z)
    return (y, state) if return_last_state else y


def fused_recurrent_gated_delta_rule(
    q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=False
):
    """Gated DeltaNet as flash-linear-attention has it: (b, t, h, k), value heads that share keys."""
    if use_qk_l2norm_in_kernel:
        q, k = (a * torch.rsqrt((a * a).sum(-1, keepdim=True) + 1e-6) for a in (q, k))
    q, k = (a.repeat_interleave(v.shape[2] // a.shape[2], dim=2) for a in (q, k))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    S = v.new_zeros(v.shape[0], v.shape[2], q.shape[-1], v.shape[-1]) if initial_state is None else initial_state
    outputs = []
    for i in range(q.shape[1]):
        S = S * g[:, i].exp()[..., None, None]
        u = beta[:, i, :, None] * (v[:, i] - torch.einsum("bhkv,bhk->bhv", S, k[:, i]))
        S = S + k[:, i, :, :, None] * u[:, :, None]
        outputs.append(torch.einsum("bhkv,bhk->bhv", S, q[:, i] * scale))
    return torch.stack(outputs, dim=1), S if output_final_state else None


def naive_delta_rule_heads_first(queries, keys, values, log_decay, betas, S):
    """Gated DeltaNet with heads before tokens, a state of (value, key), and no scale; keys are normalised before."""
    outputs = []
    for i in range(queries.shape[2]):
        S = S * log_decay[:, :, i, None, None].exp()
        u = betas[:, :, i, None] * (values[:, :, i] - (S * keys[:, :, i, None]).sum(-1))
        S = S + u[..., None] * keys[:, :, i, None]
        outputs.append((S * queries[:, :, i, None]).sum(-1))
    return S, torch.stack(outputs, dim=2)


def kda_step(q, k, v, alpha, beta, state):
    """One token of Kimi Delta Attention with the decay itself, per key channel."""
    scale = q.shape[-1] ** -0.5
    state = state * alpha[..., None]
    u = beta[..., None] * (v - torch.einsum("bhkv,bhk->bhv", state, k))
    state = state + k[..., None] * u[:, :, None]
    return torch.einsum("bhkv,bhk->bhv", state, q * scale), state


def causal_conv1d_fn(x, weight, bias=None, seq_idx=None, initial_states=None, return_final_states=False, activation=None):
    """causal-conv1d's function: (b, d, l), a window without its oldest column."""
    window = x.new_zeros(*x.shape[:2], weight.shape[1] - 1) if initial_states is None else initial_states
    seen = torch.cat([window, x], dim=2)
    out = conv1d(seen, weight[:, None], bias, groups=x.shape[1])
    out = out if activation is None else silu(out)
    return (out, seen[:, :, -(weight.shape[1] - 1) :]) if return_final_states else out


def causal_conv1d_plain(hidden_states, weight, bias=None, activation=None):
    """The same without a window, as transformers has it."""
    out = conv1d(hidden_states, weight[:, None], bias, padding=weight.shape[1] - 1, groups=weight.shape[0])
    out = out[..., : hidden_states.shape[2]]
    return out if activation is None else silu(out)


def causal_conv1d_update(x, conv_state, weight, bias=None, activation=None):
    """One input of causal-conv1d; the window is written in place."""
    conv_state.copy_(torch.cat([conv_state[:, :, 1:], x[:, :, None]], dim=2))
    out = (conv_state * weight).sum(-1)
    out = out if bias is None else out + bias
    return out if activation is None else silu(out)
