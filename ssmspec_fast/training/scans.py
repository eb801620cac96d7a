"""Mixers for training; the PyTorch paths of transformers go token by token or hold (b, t, t, h, n) at once.

Mamba-1, by parallel prefix doubling:

    S_t = a_t S_{t-1} + u_t,   a = exp(dt A),   u = dt x B                     (1)
    (a, u)_t <- (a_t a_{t-d}, u_t + a_t u_{t-d})   for d = 1, 2, 4, ...        (2)

After the doublings of (2), u_t is S_t of (1) from S = 0. Mamba-2, in chunks, with G the running sum of dt A in a chunk:

    y_i = sum_{j<=i} exp(G_i - G_j) (C_i . B_j) dt_j x_j + exp(G_i) C_i . S_0  (3)
    S_0' = exp(G) S_0 + sum_j exp(G - G_j) dt_j x_j B_j^T                      (4)
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

CHUNK = 32


def parallel_scan(a: Tensor, u: Tensor) -> Tensor:
    """All states of (1), along axis 1."""
    distance = 1
    while distance < u.shape[1]:
        earlier_u, earlier_a = u[:, :-distance], a[:, :-distance]
        u = torch.cat([u[:, :distance], u[:, distance:] + a[:, distance:] * earlier_u], 1)
        a = torch.cat([a[:, :distance], a[:, distance:] * earlier_a], 1)
        distance *= 2
    return u


def chunked_scan(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, chunk: int = CHUNK) -> Tensor:
    """The outputs of SSD, (3) and (4): x (b, t, h, p), dt (b, t, h), A (h), B and C (b, t, g, n); t a multiple of `chunk`."""
    b, t, h, p = x.shape
    g, n = B.shape[2:]
    cut = (b, t // chunk, chunk)
    ld = (dt * A).reshape(*cut, h).transpose(2, 3)  # b c h l
    G = ld.cumsum(-1)
    below = torch.ones(chunk, chunk, dtype=torch.bool, device=x.device).tril()
    decay = torch.exp((G[..., :, None] - G[..., None, :]).masked_fill(~below, float("-inf")))
    u = (x * dt[..., None]).to(x.dtype).reshape(*cut, g, h // g, p)
    B, C = (v.reshape(*cut, g, n).permute(0, 1, 3, 2, 4) for v in (B, C))  # b c g l n
    scores = (C @ B.transpose(-1, -2))[:, :, :, None] * _grouped(decay, g)  # b c g e l l
    u = u.permute(0, 1, 3, 4, 2, 5)  # b c g e l p
    y = scores.to(u.dtype) @ u
    rest = _grouped(torch.exp(G[..., -1:] - G), g)[..., None]  # what of token j is left at the end
    new = (u * rest).to(u.dtype).transpose(-1, -2) @ B[:, :, :, None].to(u.dtype)  # b c g e p n
    total = _grouped(torch.exp(G[..., -1]), g)[..., None, None]
    state, starts = torch.zeros_like(new[:, 0], dtype=torch.float32), []
    for c in range(t // chunk):
        starts.append(state)
        state = total[:, c] * state + new[:, c]  # (4)
    S_0 = torch.stack(starts, 1).to(u.dtype)
    y = y + _grouped(torch.exp(G), g)[..., None] * (C[:, :, :, None].to(u.dtype) @ S_0.transpose(-1, -2))  # (3)
    return y.permute(0, 1, 4, 2, 3, 5).reshape(b, t, h, p)


def _grouped(v: Tensor, g: int) -> Tensor:
    """b c h ... to b c g e ..."""
    return v.reshape(*v.shape[:2], g, -1, *v.shape[3:])


def mamba_forward(self: Any, hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
    """The forward of transformers' `MambaMixer`, without a cache."""
    length = hidden_states.shape[1]
    x, z = self.in_proj(hidden_states).transpose(1, 2).chunk(2, 1)
    x = self.act(self.conv1d(x)[..., :length])
    split = [self.time_step_rank, self.ssm_state_size, self.ssm_state_size]
    dt, B, C = self.x_proj(x.transpose(1, 2)).split(split, -1)
    dt = softplus(self.dt_proj(dt).float())
    x_t = x.transpose(1, 2).float()
    a = torch.exp(dt[..., None] * -torch.exp(self.A_log.float()))
    states = parallel_scan(a, (dt * x_t)[..., None] * B.float()[:, :, None])
    y = (states * C.float()[:, :, None]).sum(-1) + self.D.float() * x_t
    return self.out_proj((y * silu(z.transpose(1, 2).float())).to(hidden_states.dtype))


def mamba2_forward(self: Any, hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
    """The forward of transformers' `Mamba2Mixer` and `BambaMixer`, without a cache; lengths are multiples of `CHUNK`."""
    b, t = hidden_states.shape[:2]
    states = self.n_groups * self.ssm_state_size
    split = [self.intermediate_size, self.intermediate_size + 2 * states, self.num_heads]
    z, xBC, dt = self.in_proj(hidden_states).split(split, -1)
    xBC = self.act(self.conv1d(xBC.transpose(1, 2))[..., :t]).transpose(1, 2)
    x, B, C = xBC.split([self.intermediate_size, states, states], -1)
    x = x.reshape(b, t, self.num_heads, -1)
    dt = softplus(dt.float() + self.dt_bias)
    B, C = (v.reshape(b, t, self.n_groups, -1) for v in (B, C))
    y = chunked_scan(x, dt, -torch.exp(self.A_log.float()), B, C) + self.D[:, None] * x
    return self.out_proj(self.norm(y.reshape(b, t, -1).to(hidden_states.dtype), z))
