"""Verification of 6 tokens of the gated delta rule from a ring of 32, the convolution left out.

SGLang folds a ring into its checkpoint by one launch for all layers, after the step that fills it; ours in the step itself.
Both are timed over a cycle of flushes, with the cursors at rest, all copies as the layers of that one launch. The ring holds
what was solved for each token (u), its normalised key (ours: the key as it was) and its log decay:

    S_l = e^{G_l} S + sum_j e^{G_l - G_j} k_j u_j^T,   G_j = g_1 + .. + g_j
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from perf_gates.gpu.judge.call import launcher, pulled
from ssmspec_ref import error_bounds as eb
from ssmspec_ref.contract import NumericContract
from ssmspec_ref.error_bounds.arithmetic import Approx
from ssmspec_ref.shapes import Array

from .delta import EPS, Layer
from .loading import sglang
from .side import ADVANCED, TRITON, Pairs, Side, blank, copies_of, flush_cycle, ours, slots_of

CAPACITY = 32


def ring_ours(d: Layer) -> Side:
    """Its last step flushes before it reads, so that the judged window comes after the folded checkpoint."""
    (g, h, k, v), contract = d.sizes, replace(ours(order="output_only"), ring="bf16")
    copies = _copies(d)
    rows = 1 + copies * d.batch
    origin, held = (torch.zeros(rows, device=d.device, dtype=torch.int32) for _ in range(2))
    u, keys, decays = _entries(d, (rows, CAPACITY, h, v), (rows, CAPACITY, g, k), (rows, CAPACITY, h))
    ring = launcher("delta_ring", "Ring")(u, keys, decays, origin, held)
    S, slots = torch.randn(rows, h, k, v, device=d.device), slots_of(copies, d.batch, d.device)[..., 0]
    parts, (written, outs) = dict(zip("qkv", d.split(d.qkv), strict=True)), blank(d.like(), copies)

    def launch(i: int) -> object:
        return launcher("delta_buffered")(S, ring, **parts, **d.raw(), slots=slots[i], out=outs[i])

    def start() -> tuple[Array, ...]:
        last = flush_cycle(d.tokens, CAPACITY)[-1]
        held.fill_(last)
        return d.held(S, slots[0]), *_past(d, slots[0], last, u, keys, decays)

    def expected(S_: Array, u_: Array, k_: Array, g_: Array) -> Pairs:
        key = eb.l2_norm(eb.exact(k_, contract), EPS)
        return _after(d, S_, u_, key, g_, contract, True)

    side = Side(launch, written, [S], start, expected, lambda: d.read(outs[0]), lambda: d.held(S, slots[0]), contract)
    for entries in flush_cycle(d.tokens, CAPACITY):
        side.cycle += [_fill(held, entries), *(lambda i=i: launch(i) for i in range(copies))]
    side.steps = len(flush_cycle(d.tokens, CAPACITY))
    return side


def ring_sglang(d: Layer) -> Side:
    """(layer, slot, ..): one slot more than rows, since slot 0 is nobody's."""
    (g, h, k, v), b, copies = d.sizes, d.batch, _copies(d)
    verify, fold = sglang().gdn_replayssm_spec_decode, sglang().commit_gdn_replayssm_circular
    index, contract = slots_of(1, b, d.device)[0, :, 0], replace(TRITON, order="output_only", dot="tf32", truncates=True)
    contract = replace(contract, ring="bf16")
    shapes = (copies, 1 + b, h, CAPACITY, v), (copies, 1 + b, g, CAPACITY, k), (copies, 1 + b, h, CAPACITY)
    u, keys, decays = _entries(d, *shapes)
    keys = torch.nn.functional.normalize(keys.float(), dim=-1).bfloat16()
    S = torch.randn(copies, 1 + b, h, v, k, device=d.device)
    at, base = (torch.zeros(1 + b, device=d.device, dtype=torch.int32) for _ in range(2))
    flush, ends = torch.zeros(1 + b, device=d.device, dtype=torch.int8), _ends(d)
    q, key, value = (x.flatten(0, 1).contiguous() for x in d.split(d.qkv))
    gates = {"a": d.a.flatten(0, 1), "b": d.b.flatten(0, 1), "A_log": d.A_log, "dt_bias": d.bias}
    cursors, taken = {"write_pos": at, "cache_base": base, "is_flush": flush}, torch.full_like(index, ADVANCED)
    sizes = {"max_cache_len": CAPACITY, "max_spec_len": d.tokens, "scale": k**-0.5, "launch_mode": "verify"}
    none = dict.fromkeys(("rawv_cache", "rawk_cache", "beta_cache"))
    written, outs = blank(d.like(), copies)
    phases = [entries - ADVANCED for entries in flush_cycle(d.tokens, CAPACITY)]

    def launch(i: int) -> object:
        rings = {"checkpoint_state": S[i], "d_cache": u[i], "k_cache": keys[i], "g_cache": decays[i]}
        return verify(
            q, key, value, **gates, **rings, **none, out=outs[i].flatten(0, 1), query_start_loc=ends, ssm_state_indices=index,
            replay_indices=index, **cursors, **sizes,
        )  # fmt: skip

    def folded() -> None:
        flush.fill_(1)
        more = dict.fromkeys(("d_residual_cache", "k_residual_cache"))
        rings = {"checkpoint_state": S, "d_cache": u, "k_cache": keys, "g_cache": decays}
        fold(**rings, **more, **cursors, state_batch_indices=index, replay_indices=index, accept_lens=taken)

    def start() -> tuple[Array, ...]:
        at.fill_(phases[-1]), base.zero_(), flush.zero_()
        views = (x[0].transpose(1, 2) for x in (u, keys, decays))
        return d.held(S[0], index, True), *_past(d, index, phases[-1], *views)

    def expected(S_: Array, u_: Array, k_: Array, g_: Array) -> Pairs:
        return _after(d, S_, u_, eb.exact(k_, contract), g_, contract, False)

    def states() -> Array:
        folded()
        return d.held(S[0], index, True)

    side = Side(launch, written, [S], start, expected, lambda: d.read(outs[0]), states, contract)
    for entries in phases:
        side.cycle += [_fill(at, entries), *(lambda i=i: launch(i) for i in range(copies))]
    side.cycle += [_fill(at, flush_cycle(d.tokens, CAPACITY)[-1]), folded]
    side.steps = len(phases)
    return side


def _copies(d: Layer) -> int:
    _, h, k, v = d.sizes
    states = 4 * d.batch * h * k * v
    return copies_of(states, states)


def _entries(d: Layer, *shapes: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    u, k, g = shapes
    drawn = torch.randn(u, device=d.device).bfloat16(), torch.randn(k, device=d.device).bfloat16()
    return *drawn, -0.1 * torch.rand(g, device=d.device)


def _ends(d: Layer) -> Tensor:
    return torch.arange(0, d.batch * d.tokens + 1, d.tokens, device=d.device, dtype=torch.int32)


def _fill(cursor: Tensor, value: int) -> Callable[[], object]:
    return lambda: cursor.fill_(value)


def _past(d: Layer, slots: Tensor, count: int, *ring: Tensor) -> list[Array]:
    """u, k and g of the judged rows and heads, (rows, entries, heads, ..)."""
    at = slots[torch.as_tensor(d.rows, device=slots.device)].cpu().numpy()
    return [pulled(x[:, :count], at, heads) for x, heads in zip(ring, (d.heads, d.keys, d.heads), strict=True)]


def _after(d: Layer, S: Array, u: Array, k: Approx, g: Array, contract: NumericContract, given: bool) -> Pairs:
    """The outputs of the window after the history, and the checkpoint with the history in it."""
    sums = np.cumsum(g, axis=1)
    far = eb.exact(sums[:, -1:] - sums, contract)
    roundings = replace(far, error=2.0**-24 * len(g[0]) * np.abs(sums[:, -1:]) * np.ones_like(sums))
    decay, whole = eb.exp(roundings), eb.exp(replace(eb.exact(sums[:, -1], contract), error=roundings.error[:, -1]))
    scaled = eb.exact(u, contract) * decay[..., None]
    states = eb.sum_of_products(
        ("bh, bhkv -> bhkv", whole, eb.exact(S, contract)), ("blhk, blhv -> bhkv", k, scaled), matmuls=1
    )
    q_k_v = eb.exact(pulled(d.qkv, d.rows, d.channels()), contract)
    y, _ = d.recurrence(states.value, q_k_v, contract, given, False, {"S": states.error})
    return y, states
