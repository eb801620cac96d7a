"""Mamba-1's mixer for training: the recurrence as a parallel scan, where transformers walks it token by token.

    S_t = a_t S_{t-1} + u_t,   a = exp(dt A),   u = dt x B                     (1)
    (a, u)_t <- (a_t a_{t-d}, u_t + a_t u_{t-d})   for d = 1, 2, 4, ...        (2)

After the doublings of (2), u_t is S_t of (1) from S = 0.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus


def parallel_scan(a: Tensor, u: Tensor) -> Tensor:
    """All states of (1), along axis 1."""
    distance = 1
    while distance < u.shape[1]:
        earlier_u, earlier_a = u[:, :-distance], a[:, :-distance]
        u = torch.cat([u[:, :distance], u[:, distance:] + a[:, distance:] * earlier_u], 1)
        a = torch.cat([a[:, :distance], a[:, distance:] * earlier_a], 1)
        distance *= 2
    return u


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
