"""Prefill kernels, compared with their peers.

One packed sequence of 4096 tokens from an initial state, under both contracts: products as accurate as fp32 (`ours`), and
products of operands rounded to bf16 (`ours in bf16`), which peers use too and are compared with theirs. Our results are
compared with a recurrence in float64, token by token; the peers' results with ours. mamba-ssm stores the states between
chunks in bf16. The launches of a graph have separate prompts, states and outputs, more than fit any cache, and
`perf_gates.gpu.output_guard` checks what each has written.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from perf_gates.gpu.clock import copies_for, graph_us, is_compiling
from perf_gates.gpu.output_guard import numbered, own_outputs
from perf_gates.static.launch_traffic import TOKENS, bytes_of
from perf_gates.static.shapes import ATTENTION, DELTA, SSD
from perf_gates.verdicts.measured import At

from .peers import Peers, compiled_apart, peers, same
from .steps import Timing, bf16, kernel

CHUNK = {"mamba2-2.7b": 256, "nemotron-3-nano-4b": 128}
"""The chunks that the models' configurations name, for mamba-ssm."""
ROUNDING = 2.0**-8
"""The largest difference from float64, relative to the largest number: outputs are stored in bf16."""
CONTRACTS = {"fp32": ("ours", ROUNDING), "bf16": ("ours in bf16", 4 * ROUNDING)}
"""With products in bf16 an output is the result of two products in a row, each with two rounded operands. The conformance
suite tests the allowed error of each element."""

Found = dict[str, float]
Given = tuple[Tensor, ...]
"""What differs between the prompts of different launches: the state, or the values; it comes first."""


def ssd(peers: Peers, model: str, exact: bool) -> Found:
    """The chunked SSD scan, and mamba-ssm's."""
    h, p, n, g = SSD[model]
    t = TOKENS
    A, D, bias = -torch.rand(h, device="cuda") - 0.1, torch.randn(h, device="cuda"), torch.randn(h, device="cuda")
    bounds = torch.tensor([0, t], device="cuda", dtype=torch.int32)
    rest = {"D": D, "dt_bias": bias}

    def prompt() -> Given:
        S, dt = torch.randn(1, h, p, n, device="cuda"), (torch.randn(t, h, device="cuda") - 2).bfloat16()
        return S, bf16(t, h, p), dt, bf16(t, g, n), bf16(t, g, n)

    def ours(products: str, given: Given, out: Tensor) -> None:
        S, x, dt, B, C = given
        kernel("ssd_chunk_scan")(S, x, dt, A, B, C, bounds, out=out, products=products, **rest)

    def theirs(given: Given) -> tuple[Tensor, Tensor]:
        S, x, dt, B, C = given
        scan, options = peers["mamba_ssm"].mamba_chunk_scan_combined, {"dt_softplus": True, "return_final_states": True}
        found: tuple[Tensor, Tensor] = scan(
            x[None], dt[None], A, B[None], C[None], CHUNK[model], initial_states=S, **rest, **options
        )
        return found

    prompts = several(prompt)
    S, x, dt, B, C = prompts[0]
    first, found = _ours(ours, prompts, x, _ssd_float64(S[0], x, dt, A, B, C, D, bias) if exact else None)
    if "mamba_ssm" in peers:
        same("mamba-ssm's output", first, theirs(prompts[0])[0][0])
        found["mamba-ssm"] = _theirs(theirs, prompts)
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
    bounds = torch.tensor([0, t], device="cuda", dtype=torch.int32)

    def prompt() -> Given:
        gates = -0.3 * torch.rand(t, h, device="cuda"), torch.rand(t, h, device="cuda")
        return torch.randn(1, h, k, v, device="cuda"), bf16(t, g, k), bf16(t, g, k), bf16(t, h, v), *gates

    def ours(products: str, given: Given, out: Tensor) -> None:
        kernel("delta_chunk_scan")(*given, bounds, out=out, products=products)

    def theirs(given: Given) -> tuple[Tensor, Tensor]:
        scan, options = peers["fla"].chunk_gated_delta_rule, {"output_final_state": True, "use_qk_l2norm_in_kernel": True}
        with torch.no_grad():
            found: tuple[Tensor, Tensor] = scan(*(u[None] for u in given[1:]), initial_state=given[0], **options)
        return found

    prompts = several(prompt)
    S, *rest = prompts[0]
    first, found = _ours(ours, prompts, rest[2], _delta_float64(S[0], *rest) if exact else None)
    if "fla" in peers:
        same("fla's output", first, theirs(prompts[0])[0][0])
        found["fla"] = _theirs(theirs, prompts)
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
    bounds = torch.tensor([0, t], device="cuda", dtype=torch.int32)
    sdpa: Any = torch.nn.functional.scaled_dot_product_attention

    def prompt() -> Given:
        return bf16(1, t, g, e), bf16(1, t, g, e), bf16(t, h, e)

    def ours(products: str, given: Given, out: Tensor) -> None:
        V, K, q = given
        kernel("causal_attention")(q, K, V, bounds, out=out, products=products)

    def theirs(given: Given) -> tuple[Tensor]:
        V, K, q = given
        heads = q.transpose(0, 1)[None], K.transpose(1, 2), V.transpose(1, 2)
        return (sdpa(*heads, is_causal=True, enable_gqa=True),)

    prompts = several(prompt)
    V, K, q = prompts[0]
    first, found = _ours(ours, prompts, q, (_attention_float64(q, K[0], V[0]), V[0].double()) if exact else None)
    same("torch's output", first, theirs(prompts[0])[0][0].transpose(0, 1))
    return found | {"torch": _theirs(theirs, prompts)}


def _attention_float64(q: Tensor, K: Tensor, V: Tensor) -> Tensor:
    (t, h, e), g = q.shape, K.shape[1]
    seen, y = torch.ones(t, t, device=q.device, dtype=torch.bool).tril(), torch.empty_like(q, dtype=torch.float64)
    for i in range(h):
        s = (q[:, i].double() @ K[:, i * g // h].double().T) * e**-0.5
        y[:, i] = s.masked_fill(~seen, float("-inf")).softmax(-1) @ V[:, i * g // h].double()
    return y


def several(prompt: Callable[[], Given]) -> list[Given]:
    """Prompts of a graph: so many that their own data far exceed the cache, in addition to their outputs."""
    first = prompt()
    return [first, *(prompt() for _ in range(copies_for(sum(u.nbytes for u in first)) - 1))]


def _ours(
    launch: Callable[[str, Given, Tensor], None], prompts: Sequence[Given], like: Tensor, exact: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Found]:
    """The outputs of the first prompt as accurate as fp32, and the times under both contracts; `exact` are its outputs and
    state in float64. The states of the prompts are left as they are."""
    firsts, found = {}, {}
    for products, (name, rounding) in CONTRACTS.items():
        own = [(S.clone(), *rest) for S, *rest in prompts]
        outputs = own_outputs(like, numbered(len(prompts)))
        outs = [*outputs.values()]
        launch(products, own[0], outs[0])
        for ours, wanted in zip((outs[0], own[0][0][0]), exact or (), strict=False):
            _near(ours, wanted, rounding)
        firsts[products] = outs[0].clone()
        each = zip(own, outs, strict=True)
        sequence = [lambda p=products, u=u, y=y: launch(p, u, y) for u, y in each]
        found[name] = graph_us(sequence, outputs, [S for S, *_ in own])
    return firsts["fp32"], found


def _theirs(launch: Callable[[Given], tuple[Tensor, ...]], prompts: Sequence[Given]) -> float:
    """The time of a peer's launch, which returns its outputs and, if it has one, its state."""
    outputs: dict[str, Tensor] = {}
    states: dict[int, Tensor] = {}

    def kept(i: int) -> None:
        outputs[f"prompt {i}"], *state = launch(prompts[i])
        states.update((i, S) for S in state)

    return graph_us([lambda i=i: kept(i) for i in range(len(prompts))], outputs, states.values())  # type: ignore[misc]


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
    return [
        Timing(model, f"{name}, {by}", 1, us, bytes_of_ours(model, f"{name}, {by}"))
        for by, us in timed(peers(), model, not is_compiling()).items()
    ]


def bytes_of_ours(model: str, operation: str) -> int:
    """The bytes of ours; 0 for a peer's, which are unknown."""
    at = At("prefill", model, operation, 1)
    return bytes_of(at) if operation.split(", ")[1].startswith("ours") else 0


def compile_case(name: str, model: str, share: int, shares: int) -> None:
    """Compiles ours, and a share of the peers' autotuned configurations; their results may be wrong."""
    with compiled_apart(share, shares):
        WORK[name][0](peers(), model, False)
