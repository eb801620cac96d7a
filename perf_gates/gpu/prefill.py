"""The kernels of prompts beside their peers.

One packed sequence of 4096 tokens from an initial state, under both contracts: products as accurate as fp32 (`ours`), and
products of operands rounded to bf16 (`ours in bf16`), which are the peers' and are compared with theirs. What we compute is
set against a recurrence in float64, token by token; what peers compute against ours. mamba-ssm keeps the states between
chunks in bf16.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from perf_gates.clock import graph_us, is_compiling
from perf_gates.shapes import DELTA, SSD

from .peers import Peers, compiled_apart, peers, same
from .steps import Timing, bf16, kernel

TOKENS = 4096
CHUNK = {"mamba2-2.7b": 256, "nemotron-3-nano-4b": 128}
"""The chunks that the models' configurations name, for mamba-ssm."""
ATTENTION = {"nemotron-3-nano-4b": (40, 8, 128)}  # query heads, key heads, channels
ROUNDING = 2.0**-8
"""The largest difference from float64, in parts of the largest number: outputs are stored in bf16."""
CONTRACTS = {"fp32": ("ours", ROUNDING), "bf16": ("ours in bf16", 4 * ROUNDING)}
"""With products in bf16 an output comes of two products in a row, each of two operands rounded by as much. What any element
may be off by is the conformance suite's."""

Found = dict[str, float]


def ssd(peers: Peers, model: str, exact: bool) -> Found:
    """The chunked SSD scan, and mamba-ssm's."""
    h, p, n, g = SSD[model]
    t = TOKENS
    x, dt, B, C = bf16(t, h, p), (torch.randn(t, h, device="cuda") - 2).bfloat16(), bf16(t, g, n), bf16(t, g, n)
    A, D, bias = -torch.rand(h, device="cuda") - 0.1, torch.randn(h, device="cuda"), torch.randn(h, device="cuda")
    S = torch.randn(1, h, p, n, device="cuda")
    bounds = torch.tensor([0, t], device="cuda", dtype=torch.int32)
    rest = {"D": D, "dt_bias": bias}

    def ours(products: str, pool: Tensor, out: Tensor) -> None:
        kernel("ssd_chunk_scan")(pool, x, dt, A, B, C, bounds, out=out, products=products, **rest)

    first, found = _ours(ours, S, x, _ssd_float64(S[0], x, dt, A, B, C, D, bias) if exact else None)
    if "mamba_ssm" in peers:
        scan, options = peers["mamba_ssm"].mamba_chunk_scan_combined, {"dt_softplus": True, "return_final_states": True}
        given = x[None], dt[None], A, B[None], C[None], CHUNK[model]
        theirs = lambda: scan(*given, D=D, dt_bias=bias, initial_states=S, **options)  # noqa: E731
        same("mamba-ssm's output", first, theirs()[0][0])
        found["mamba-ssm"] = graph_us([theirs] * 2)
    return found


def _ssd_float64(
    S: Tensor, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    step = torch.nn.functional.softplus(dt.double() + bias.double(), threshold=100)
    decay, brought = (step * A.double()).exp(), step[..., None] * x.double()
    B, C = (u.double().repeat_interleave(x.shape[1] // u.shape[1], 1) for u in (B, C))
    S, y = S.double(), torch.empty(x.shape, device=x.device, dtype=torch.float64)
    for t in range(len(x)):
        S = torch.baddbmm(decay[t, :, None, None] * S, brought[t, :, :, None], B[t, :, None, :])
        y[t] = torch.bmm(S, C[t, :, :, None])[..., 0]
    return y + D.double()[:, None] * x.double(), S


def delta(peers: Peers, model: str, exact: bool) -> Found:
    """The chunked gated delta rule, and fla's."""
    g, h, k, v = DELTA[model]
    t = TOKENS
    S, q, key, value = torch.randn(1, h, k, v, device="cuda"), bf16(t, g, k), bf16(t, g, k), bf16(t, h, v)
    gate, beta = -0.3 * torch.rand(t, h, device="cuda"), torch.rand(t, h, device="cuda")
    bounds = torch.tensor([0, t], device="cuda", dtype=torch.int32)

    def ours(products: str, pool: Tensor, out: Tensor) -> None:
        kernel("delta_chunk_scan")(pool, q, key, value, gate, beta, bounds, out=out, products=products)

    first, found = _ours(ours, S, value, _delta_float64(S[0], q, key, value, gate, beta) if exact else None)
    if "fla" in peers:
        scan, options = peers["fla"].chunk_gated_delta_rule, {"output_final_state": True, "use_qk_l2norm_in_kernel": True}
        given = [u[None] for u in (q, key, value, gate, beta)]
        theirs = lambda: scan(*given, initial_state=S, **options)  # noqa: E731
        with torch.no_grad():
            same("fla's output", first, theirs()[0][0])
            found["fla"] = graph_us([theirs] * 2)
    return found


def _delta_float64(S: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    q, k = (u.double().repeat_interleave(v.shape[1] // u.shape[1], 1) for u in (q, k))
    q, k = (u * (u.square().sum(-1, keepdim=True) + 1e-6).rsqrt() for u in (q, k))
    q, v, decay, beta = q * q.shape[-1] ** -0.5, v.double(), g.double().exp(), beta.double()
    S, o = S.double(), torch.empty(v.shape, device=v.device, dtype=torch.float64)
    for t in range(len(q)):
        S = decay[t, :, None, None] * S
        u = beta[t, :, None] * (v[t] - torch.bmm(k[t, :, None, :], S)[:, 0])
        S = torch.baddbmm(S, k[t, :, :, None], u[:, None, :])
        o[t] = torch.bmm(q[t, :, None, :], S)[:, 0]
    return o, S


def attention(peers: Peers, model: str, exact: bool) -> Found:
    """Causal attention of a prompt over its own keys, and torch's."""
    h, g, e = ATTENTION[model]
    t = TOKENS
    q, K, V = bf16(t, h, e), bf16(1, t, g, e), bf16(1, t, g, e)
    bounds = torch.tensor([0, t], device="cuda", dtype=torch.int32)

    def ours(products: str, pool: Tensor, out: Tensor) -> None:
        kernel("causal_attention")(q, K, V, bounds, out=out, products=products)

    first, found = _ours(ours, V, q, (_attention_float64(q, K[0], V[0]), V[0].double()) if exact else None)
    heads = q.transpose(0, 1)[None], K.transpose(1, 2), V.transpose(1, 2)
    sdpa: Any = torch.nn.functional.scaled_dot_product_attention
    theirs = lambda: sdpa(*heads, is_causal=True, enable_gqa=True)  # noqa: E731
    same("torch's output", first, theirs()[0].transpose(0, 1))
    return found | {"torch": graph_us([theirs] * 4)}


def _attention_float64(q: Tensor, K: Tensor, V: Tensor) -> Tensor:
    (t, h, e), g = q.shape, K.shape[1]
    seen, y = torch.ones(t, t, device=q.device, dtype=torch.bool).tril(), torch.empty_like(q, dtype=torch.float64)
    for i in range(h):
        s = (q[:, i].double() @ K[:, i * g // h].double().T) * e**-0.5
        y[:, i] = s.masked_fill(~seen, float("-inf")).softmax(-1) @ V[:, i * g // h].double()
    return y


def _ours(
    launch: Callable[[str, Tensor, Tensor], None], S: Tensor, like: Tensor, exact: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Found]:
    """The outputs as accurate as fp32, and the times under both contracts; `exact` are outputs and state in float64."""
    outputs, found = {}, {}
    for products, (name, rounding) in CONTRACTS.items():
        pool, out = S.clone(), torch.full_like(like, float("nan"))
        launch(products, pool, out)
        for ours, wanted in zip((out, pool[0]), exact or (), strict=False):
            _near(ours, wanted, rounding)
        outputs[products] = out.clone()
        found[name] = graph_us([lambda p=products, s=pool, y=out: launch(p, s, y)] * 4)  # type: ignore[misc]
    return outputs["fp32"], found


def _near(ours: Tensor, exact: Tensor, rounding: float) -> None:
    """Raises: RuntimeError for a result that is not that of the recurrence; nothing is timed then."""
    if is_compiling():
        return
    apart = float((ours.double() - exact).abs().max() / exact.abs().max())
    if not apart <= rounding:
        raise RuntimeError(f"a result of ours differs from float64 by {apart:.2g} of the largest")


WORK: dict[str, tuple[Callable[[Peers, str, bool], Found], tuple[str, ...]]] = {
    "ssd_chunk_scan": (ssd, tuple(SSD)),
    "delta_chunk_scan": (delta, tuple(DELTA)),
    "causal_attention": (attention, tuple(ATTENTION)),
}


def cases() -> Iterator[tuple[str, str]]:
    """Kernels and models."""
    yield from ((name, model) for name, (_, models) in WORK.items() for model in models)


def timings(name: str, model: str) -> list[Timing]:
    """Ours, which must be the recurrence in float64, and the peers'."""
    timed, _ = WORK[name]
    return [Timing(model, f"{name}, {by}", 1, us) for by, us in timed(peers(), model, True).items()]


def compile_case(name: str, model: str, share: int, shares: int) -> None:
    """Compile ours, and a share of the peers' autotuned configurations: what comes out of those may be wrong."""
    with compiled_apart(share, shares):
        WORK[name][0](peers(), model, False)
