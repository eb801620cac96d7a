"""The functions used by the layers of transformers, called like the corresponding functions of the reference.

Every modeling file has a copy of them. The copies have the same text (a test compares them), so each function is tested once.
An installed kernel package would replace them; `guard` hides such packages.
"""

from typing import Any

import numpy as np

from ssmspec_ref.conv import ConvParams
from ssmspec_ref.delta import DeltaParams, DeltaToken, DeltaWindow
from ssmspec_ref.selective import SelectiveParams, SelectiveToken
from ssmspec_ref.shapes import Array
from ssmspec_ref.ssd import SSDParams, SSDToken, SSDWindow

from .families import CHUNK
from .guard import modeling, quiet


def tensor(values: Array | None) -> Any:
    """A float32 tensor with its own memory; after `reroute` a float64 one."""
    import torch

    return None if values is None else torch.tensor(values, dtype=torch.float32)


def arrays(*tensors: Any) -> tuple[Array, ...]:
    return tuple(np.array(t.detach().double().numpy()) for t in tensors)


def conv_step(M: Array, u: Array, params: ConvParams) -> tuple[Array, ...]:
    """`causal_conv1d_update`, which writes the window in place."""
    window = tensor(M)
    with quiet():
        y = modeling("mamba2").causal_conv1d_update(tensor(u)[:, :, None], window, *_conv(params))
    return arrays(y[:, :, 0], window)


def conv_scan(M: Array, u: Array, params: ConvParams) -> tuple[Array, ...]:
    """The cache's concatenation, then `causal_conv1d_fn`, then the last outputs: what every layer does for several tokens."""
    from transformers.cache_utils import LinearAttentionLayer

    inputs, cache = tensor(u).transpose(1, 2), LinearAttentionLayer()
    cache.update_conv_state(tensor(M), conv_kernel_size=M.shape[2])
    with quiet():
        y = modeling("mamba2").causal_conv1d_fn(cache.update_conv_state(inputs), *_conv(params))
    return arrays(y[:, :, -inputs.shape[2] :].transpose(1, 2), cache.conv_states[0])


def _conv(params: ConvParams) -> tuple[Any, Any, str | None]:
    return tensor(params.weight), tensor(params.bias), "silu" if params.activation else None


def ssd_step(S: Array, token: SSDToken, params: SSDParams) -> tuple[Array, ...]:
    """`mamba2_selective_state_update`: dt, A, D and the bias widened to the channels, as the layers do."""
    state = tensor(S)
    _, h, p, n = state.shape
    D = tensor(params.D)
    with quiet():
        y = modeling("mamba2").mamba2_selective_state_update(
            state,
            tensor(token.x),
            tensor(token.dt)[:, :, None].expand(-1, -1, p),
            tensor(params.A)[:, None, None].expand(h, p, n),
            tensor(token.B),
            tensor(token.C),
            D if D is None or D.dim() == 2 else D[:, None].expand(h, p),
            z=tensor(token.z),
            dt_bias=None if params.dt_bias is None else tensor(params.dt_bias)[:, None].expand(h, p),
            dt_softplus=params.dt_softplus,
        )
    return arrays(y, state)


def ssd_scan(S: Array, window: SSDWindow, params: SSDParams) -> tuple[Array, ...]:
    """`mamba2_chunk_scan` from an initial state."""
    with quiet():
        y, state = modeling("mamba2").mamba2_chunk_scan(
            *map(tensor, (window.x, window.dt, params.A, window.B, window.C)),
            chunk_size=CHUNK,
            D=tensor(params.D),
            dt_bias=tensor(params.dt_bias),
            initial_states=tensor(S),
            dt_softplus=params.dt_softplus,
            dt_limit=params.dt_limit,
            return_final_states=True,
        )
    return arrays(y, state)


def selective_step(S: Array, token: SelectiveToken, params: SelectiveParams) -> tuple[Array, ...]:
    """`mamba_selective_state_update`."""
    state = tensor(S)
    with quiet():
        y = modeling("mamba").mamba_selective_state_update(
            state,
            *map(tensor, (token.x, token.dt, params.A, token.B, token.C, params.D)),
            z=tensor(token.z),
            dt_bias=tensor(params.dt_bias),
            dt_softplus=params.dt_softplus,
        )
    return arrays(y, state)


def delta_step(S: Array, token: DeltaToken, params: DeltaParams, dtype: str = "float32") -> tuple[Array, ...]:
    """One token of `torch_recurrent_gated_delta_rule`; with a gate per channel, of `recurrent_kimi_delta_attention`."""
    name = "recurrent_kimi_delta_attention" if token.g.ndim == 3 else "torch_recurrent_gated_delta_rule"
    window = DeltaWindow(*(getattr(token, field)[:, None] for field in ("q", "k", "v", "g", "beta")))
    y, state = _delta(name, S, window, params, dtype)
    return y[:, 0], state


def delta_scan(S: Array, window: DeltaWindow, params: DeltaParams, dtype: str = "float32") -> tuple[Array, ...]:
    """`torch_chunk_gated_delta_rule`; with a gate per channel, `chunk_kimi_delta_attention`."""
    name = "chunk_kimi_delta_attention" if window.g.ndim == 4 else "torch_chunk_gated_delta_rule"
    return _delta(name, S, window, params, dtype, chunk_size=CHUNK)


def _delta(name: str, S: Array, w: DeltaWindow, params: DeltaParams, dtype: str, **options: int) -> tuple[Array, ...]:
    """Kimi's functions need as many key heads as value heads, so keys are repeated. The log decay stays in float32."""
    import torch

    kimi = "kimi" in name
    each = w.v.shape[2] // w.k.shape[2] if kimi else 1
    q, k = (np.repeat(a, each, axis=2) for a in (w.q, w.k))
    q, k, v, beta = (tensor(a).to(getattr(torch, dtype)) for a in (q, k, w.v, w.beta))
    inputs = {"g": tensor(w.g), "beta": beta, "initial_state": tensor(S), "output_final_state": True}
    run = getattr(modeling("kimi_linear" if kimi else "qwen3_next"), name)
    with quiet():
        return arrays(*run(q, k, v, **inputs, use_qk_l2norm_in_kernel=params.l2_norm, **options))
