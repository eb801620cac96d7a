"""SGLang's layers of the gated delta rule and of KDA, called as its engine calls them.

One token of GDN takes three Triton launches: convolution, `packed_decode`, norm; one of KDA a single launch in CUDA,
`kda_fused_decode`. Windows keep their states in a buffer for the rows of a batch: GDN by convolution,
`fused_sigmoid_gating_delta_rule_update` and norm, KDA by `fused_kda_conv_gating_verify` and norm.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from . import native
from .delta import EPS, WIDTH, Layer, Pools, kept
from .delta_peers import Convolution, Norm, OneToken
from .loading import sglang
from .side import FAST, TRITON, Side, blank

LOG1P = replace(FAST, softplus="log1p")
"""The kernel in CUDA: a softplus is log1p(e^x)."""


def convolution(d: Layer) -> Convolution:
    run, u = sglang().causal_conv1d_update, d.qkv[:, 0]
    return lambda M, index: run(u, M, d.taps, None, "silu", conv_state_indices=index)


def gdn_token(d: Layer) -> OneToken:
    run, a, b, scale = sglang().fused_recurrent_gated_delta_rule_packed_decode, d.a[:, 0], d.b[:, 0], d.sizes[2] ** -0.5
    return lambda c, S, index, out: run(
        c, a, b, d.A_log, d.bias, scale, initial_state=S, out=out, ssm_state_indices=index, use_qk_l2norm_in_kernel=True
    )


def gdn_norm(d: Layer) -> Norm:
    into = normed(d)
    return lambda o: into(o, o)


def normed(d: Layer) -> Callable[[Tensor, Tensor], object]:
    """The norm of one tensor into another."""
    run, width = sglang()._layer_norm_fwd, d.sizes[3]
    z, how = d.z.view(-1, width), {"norm_before_gate": True, "is_rms_norm": True}
    return lambda o, out: run(o.view(-1, width), d.weight, None, EPS, z=z, out=out.view(-1, width), **how)


def layer_cuda(d: Layer) -> Side:
    """KDA in one launch: windows (slot, column, channel), filters (tap, channel) of q, k and v."""
    h, v = d.sizes[1], d.sizes[3]
    run = native.call(f"sglang_kda_h{h}", "sglang_kda", native.KDA)
    pools = Pools.drawn(d, 1, WIDTH - 1, False)
    index = pools.slots[..., 0]
    written, outs = blank(d.like(), len(index))
    taps = dict(zip(("w_q", "w_k", "w_v"), (w.float().T.contiguous() for w in d.taps.split(list(d.pieces))), strict=True))
    given: dict[str, Any] = {
        "qkv": d.qkv,
        "a": d.a,
        "b": d.b,
        "windows": pools.M,
        "bias": torch.zeros(d.width, device=d.device),
    }
    given |= {"A_log": d.A_log, "dt_bias": d.bias, "gate": d.z, "weight": d.weight, "state": pools.S} | taps
    numbers = {"batch": d.batch, "bounded": int(d.rule.bound is not None), "bound": d.rule.bound or 0.0}
    numbers |= {"scale": v**-0.5, "eps": EPS}
    return Side(
        lambda i: run(**numbers, **given, index=index[i], out=outs[i]), written, [pools.S, pools.M],
        lambda: (d.held(pools.S, index[0], True), d.columns(pools.M, index[0])),
        lambda S, M: d.whole(S, M, LOG1P, False, False), lambda: d.read(outs[0]), lambda: d.held(pools.S, index[0], True),
        LOG1P,
    )  # fmt: skip


# --- windows ---

Verify = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Windows, states, slots (b), the buffer of the states that are kept; gives the outputs before the norm."""


@dataclass
class Buffers:
    """Rotating states: for each copy the slots that are read, and the buffer of those that are kept."""

    pools: Pools
    first: list[Tensor]
    kept: list[Tensor]
    places: Tensor
    numbers: Tensor

    @classmethod
    def drawn(cls, d: Layer, dense: bool) -> "Buffers":
        (_, h, k, v), b, t = d.sizes, d.batch, d.tokens
        pools, each = Pools.drawn(d, 1 + t, WIDTH - 1, True, dense=dense), b * (1 + t)
        flat = pools.slots.flatten(1)
        buffers = [pools.S[1 + i * each + b : 1 + (i + 1) * each].view(b, t, h, v, k) for i in range(len(flat))]
        numbers = torch.arange(b, device=d.device, dtype=torch.int32)
        return cls(pools, [one[:b] for one in flat], buffers, flat[0][b:].view(b, t), numbers)

    def side(self, d: Layer, launch: Callable[[int], object], written: dict[str, Tensor], kernels: int) -> Side:
        S, M, first = self.pools.S, self.pools.M, self.first[0]
        return Side(
            launch, written, [S, M], lambda: (d.held(S, first, True), d.columns(M, first)),
            lambda S_, M_: d.whole(S_, M_, TRITON, False, True), lambda: d.read(next(iter(written.values()))),
            lambda: kept(d, S, self.places, True), TRITON, kernels,
        )  # fmt: skip


def window_gdn(d: Layer) -> Side:
    buffers, after = Buffers.drawn(d, dense=False), normed(d)
    verify, (written, outs) = _gdn(d, buffers.numbers), blank(d.like(), len(buffers.first))
    S, M = buffers.pools.S, buffers.pools.M

    def launch(i: int) -> None:
        after(verify(M, S, buffers.first[i], buffers.kept[i]).view(outs[i].shape), outs[i])

    return buffers.side(d, launch, written, 3)


def window_kda(d: Layer) -> Side:
    """The norm writes over what the recurrence gave, which is a new tensor."""
    buffers, run, width = Buffers.drawn(d, dense=True), sglang().layer_norm_gated_fwd, d.sizes[3]
    verify, (written, outs), z = _kda(d, buffers.numbers), blank(d.like(), len(buffers.first)), d.z.view(-1, width)
    names, S, M = [*written], buffers.pools.S, buffers.pools.M

    def launch(i: int) -> None:
        o = verify(M, S, buffers.first[i], buffers.kept[i])
        run(o.view(-1, width), z, d.weight, None, "sigmoid", EPS, is_rms_norm=True)
        written[names[i]] = o.view(outs[i].shape)

    return buffers.side(d, launch, written, 2)


def _gdn(d: Layer, numbers: Tensor) -> Verify:
    b, t = d.batch, d.tokens
    conv, run = sglang().causal_conv1d_update, sglang().fused_sigmoid_gating_delta_rule_update
    windows = torch.empty(b, t, d.width, WIDTH - 1, device=d.device, dtype=torch.bfloat16)
    ends = torch.arange(0, b * t + 1, t, device=d.device, dtype=torch.int32)
    a, beta, u = d.a.flatten(0, 1), d.b.flatten(0, 1), d.qkv.transpose(1, 2)
    kept_in = {"intermediate_conv_window": windows, "intermediate_state_indices": numbers}
    how = {"use_qk_l2norm_in_kernel": True, "disable_state_update": True, "cache_steps": t, "cu_seqlens": ends}

    def verify(M: Tensor, S: Tensor, index: Tensor, buffer: Tensor) -> Tensor:
        c = conv(u, M, d.taps, None, "silu", conv_state_indices=index, **kept_in).transpose(1, 2).reshape(b * t, -1)
        q, k, v = (x[None] for x in d.split(c))
        states = {"initial_state_source": S, "initial_state_indices": index, "intermediate_states_buffer": buffer}
        return run(d.A_log, a, d.bias, 1.0, 20.0, q, k, v, beta, **states, intermediate_state_indices=numbers, **how)

    return verify


def _kda(d: Layer, numbers: Tensor) -> Verify:
    (g, h, k, v), b, t = d.sizes, d.batch, d.tokens
    run = sglang().fused_kda_conv_gating_verify
    windows = torch.empty(b, t, WIDTH - 1, d.width, device=d.device, dtype=torch.bfloat16).transpose(2, 3)
    given: dict[str, Any] = {
        "mixed_qkv": d.qkv.flatten(0, 1),
        "conv_weight": d.taps,
        "conv_bias": None,
        "a": d.a.flatten(0, 1),
    }
    given |= {"b": d.b.flatten(0, 1), "A_log": d.A_log, "dt_bias": d.bias.flatten(), "lower_bound": d.rule.bound}
    given |= {"intermediate_conv_window": windows, "intermediate_state_indices": numbers, "scale": k**-0.5, "T": t}
    given |= {"num_q_heads": g, "num_v_heads": h, "head_k_dim": k, "head_v_dim": v}

    def verify(M: Tensor, S: Tensor, index: Tensor, buffer: Tensor) -> Tensor:
        states = {"conv_state": M, "ssm_states": S, "intermediate_states_buffer": buffer}
        return run(**given, **states, conv_state_indices=index, cache_indices=index)

    return verify
