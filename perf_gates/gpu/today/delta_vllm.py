"""vLLM's layers of the gated delta rule and of KDA, called as its engine calls them.

One token takes three Triton launches: convolution, `packed_decode`, norm. A window of GDN takes two, the second
`fused_gdn_decode_post_conv_mtp` in CUDA (in Triton: two more), a window of KDA three. It begins at the slot of the last
accepted token, and keeps a state in the slot of every token; its convolution has eight columns, the drafts behind three.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ssmspec_ref.contract import NumericContract

from . import native
from .delta import EPS, WIDTH, Layer, Pools, kept
from .delta_peers import Convolution, Norm, OneToken
from .loading import vllm
from .side import ADVANCED, FAST, TRITON, Side, blank

LOG1P = replace(FAST, softplus="log1p")
"""The kernel in CUDA: a softplus is log1p(e^x)."""


def convolution(d: Layer) -> Convolution:
    run, u, c = vllm().causal_conv1d_update, d.qkv[:, 0], torch.empty_like(d.qkv[:, 0])
    return lambda M, index: run(u, M, d.taps, None, "silu", conv_state_indices=index, out=c)


def gdn_token(d: Layer) -> OneToken:
    run, a, b, scale = vllm().fused_recurrent_gated_delta_rule_packed_decode, d.a[:, 0], d.b[:, 0], d.sizes[2] ** -0.5
    return lambda c, S, index, out: run(
        c, a, b, d.A_log, d.bias, scale, initial_state=S, out=out, ssm_state_indices=index, use_qk_l2norm_in_kernel=True
    )


def kda_token(d: Layer) -> OneToken:
    run, a, b = vllm().fused_recurrent_kda_packed_decode, d.a[:, 0][None], d.b[:, 0][None]
    given = {"A_log": d.A_log, "dt_bias": d.bias.flatten(), "lower_bound": d.rule.bound, "scale": d.sizes[2] ** -0.5}
    return lambda c, S, index, out: run(c, a, b, **given, initial_state=S, state_indices=index, out=out.transpose(0, 1))


def gdn_norm(d: Layer) -> Norm:
    run, width = vllm().layer_norm_fwd, d.sizes[3]
    z, how = d.z.view(-1, width), {"norm_before_gate": True, "is_rms_norm": True}
    return lambda o: run(o.view(-1, width), d.weight, None, EPS, z=z, out=o.view(-1, width), **how)


def kda_norm(d: Layer) -> Norm:
    run, z = vllm().rms_norm_gated, d.z.flatten(0, 1)
    return lambda o: run(o.view(z.shape), z, d.weight, None, activation="sigmoid", eps=EPS)


# --- windows ---

After = Callable[..., object]
"""What follows the convolution: q | k | v (b t, c), gates, z, states, slots (b, t), ends, accepted, outputs (b t, h, v)."""


def gdn_cuda(d: Layer) -> After:
    run = native.vllm_gdn(d.sizes[1] // d.sizes[0])
    return lambda c, a, b, z, S, at, ends, n, out: run(c, a, b, d.A_log, d.bias, at, ends, n, S, z, d.weight, out, EPS)


def gdn_triton(d: Layer) -> After:
    run, scale = vllm().fused_gdn_decode_post_conv_mtp_triton, d.sizes[2] ** -0.5
    return lambda c, a, b, z, S, at, ends, n, out: run(
        c, a, b, d.A_log, d.bias, at, ends, n, S, z, d.weight, out, scale, EPS, "silu"
    )


def kda_triton(d: Layer) -> After:
    run, after, gates = vllm().fused_recurrent_kda, kda_norm(d), (d.A_log, d.bias.flatten(), d.rule.bound)

    def both(c: Tensor, a: Tensor, b: Tensor, z: Tensor, S: Tensor, at: Tensor, ends: Tensor, n: Tensor, out: Tensor) -> None:
        run(*(x[None] for x in d.split(c)), a[None], b[None], *gates, S, ends, at, n, out=out[None])
        after(out)

    return both


def window(after: Callable[[Layer], After], contract: NumericContract, kernels: int) -> Callable[[Layer], Side]:
    """`kernels`: launches, the convolution among them."""

    def made(d: Layer) -> Side:
        b, t, run, conv = d.batch, d.tokens, after(d), vllm().causal_conv1d_update
        pools = Pools.drawn(d, t, WIDTH - 1 + t - 1, True)
        places, ends = pools.slots, torch.arange(0, b * t + 1, t, device=d.device, dtype=torch.int32)
        taken = torch.full((b,), ADVANCED, device=d.device, dtype=torch.int32)
        begin, seen = places[0][:, ADVANCED - 1], pools.M[..., ADVANCED - 1 : ADVANCED + WIDTH - 2]
        written, outs = blank(d.like(), len(places))
        u, c = d.qkv.flatten(0, 1), torch.empty_like(d.qkv.flatten(0, 1))
        beside = [x.flatten(0, 1) for x in (d.a, d.b, d.z)]
        how: dict[str, Any] = {"num_accepted_tokens": taken, "query_start_loc": ends, "max_query_len": t, "out": c}

        def launch(i: int) -> None:
            conv(u, pools.M, d.taps, None, "silu", conv_state_indices=places[i][:, 0], **how)
            run(c, *beside, pools.S, places[i], ends, taken, outs[i].flatten(0, 1))

        return Side(
            launch, written, [pools.S, pools.M], lambda: (d.held(pools.S, begin, True), d.columns(seen, places[0][:, 0])),
            lambda S, M: d.whole(S, M, contract, False, True), lambda: d.read(outs[0]),
            lambda: kept(d, pools.S, places[0], True), contract, kernels,
        )  # fmt: skip

    return made


window_cuda = window(gdn_cuda, LOG1P, 2)
window_triton = window(gdn_triton, TRITON, 3)
window_kda = window(kda_triton, TRITON, 3)
