"""Recurrences of another rule: steps formed otherwise, a correction from another state, packed runs read on another grid."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ssmspec_ref import delta, packed, ssd
from ssmspec_ref.functions import softplus
from ssmspec_ref.records import each
from ssmspec_ref.shapes import Array

from ...mistakes.mistake import after, before
from ...mistakes.operators import at_most, rounded_to
from ..fault import FP32, planted
from ..right import packed_scan
from .arithmetic import right, rounded
from .size_limits import formed, steps

CHUNK, LONG = 4, 64


def bias_behind_softplus(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """softplus(dt) + bias instead of softplus(dt + bias)."""
    if params.dt_bias is None or not params.dt_softplus:
        return right(S, window, params)
    dt = np.clip(softplus(window.dt) + params.dt_bias, *params.dt_limit)
    return right(S, replace(window, dt=dt), replace(params, dt_bias=None, dt_softplus=False))


def overflowing_softplus(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """softplus as log(1 + exp x) in single precision throughout, which overflows from x = 89 on.
    flashinfer-ai/flashinfer#3127."""
    if not params.dt_softplus:
        return right(S, window, params)
    x = (window.dt if params.dt_bias is None else window.dt + params.dt_bias).astype(np.float32)
    with np.errstate(over="ignore"):
        dt = np.log1p(np.exp(x))
    steps_formed = np.clip(np.where(np.isinf(dt), 0.0, dt).astype(np.float64), *params.dt_limit)
    return right(S, replace(window, dt=steps_formed), replace(params, dt_bias=None, dt_softplus=False))


def log_of_one_more(dt: Array) -> Array:
    """log(1 + exp x) in single precision, for the x whose softplus is dt."""
    return np.asarray(np.log(1 + np.expm1(dt).astype(np.float32)), dtype=np.float64)


def decays_from_the_tile(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """If a tile is shorter than the chunk, the carried state decays from the tile's start. vllm-project/vllm#21783."""
    y, S_next = right(S, window, params)
    silent = replace(window, x=np.zeros_like(window.x))
    alone = right(S, each(lambda a: a[:, CHUNK : 2 * CHUNK], silent), params)[0]
    y[:, CHUNK : 2 * CHUNK] += alone - right(S, silent, params)[0][:, CHUNK : 2 * CHUNK]
    return y, S_next


def sums_over_targets(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """States are passed between chunks with a sum over the wrong axis (destination chunks instead of source chunks).
    huggingface/transformers#47513."""
    formed, formed_params = steps(window, params, lambda dt: dt)
    pieces = [each(lambda a, t=t: a[:, t : t + LONG], formed) for t in range(0, window.x.shape[1], LONG)]
    left = [np.exp(piece.dt.sum(axis=1) * params.A)[..., None, None] for piece in pieces]
    states = [S, *(ssd.scan(np.zeros_like(S), piece, formed_params)[1] for piece in pieces)]
    *before, S_next = over_the_wrong_axis(states, left)
    outputs = [ssd.scan(state, piece, formed_params)[0] for state, piece in zip(before, pieces, strict=True)]
    return rounded(np.concatenate(outputs, axis=1), S_next)


def over_the_wrong_axis(states: list[Array], left: list[Array]) -> list[Array]:
    """The state that was given and what each chunk wrote, each times the sum of what is left of it before all chunks behind
    and at the end. `left` is what a chunk leaves. Right is, before each chunk, the sum of what is left of all ahead of it."""
    return [state * (1 + np.cumprod(left[q:], axis=0).sum(axis=0)) for q, state in enumerate(states)]


def error_before_decay(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """The correction is computed from the state before its decay. The converse of flash-linear-attention#885."""
    return before_decay(S, window, params, lambda S, decay, write: decay * S + write)


def decay_after_the_write(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """The decay is applied last: the correction is computed before it, and is decayed too. Bug class RULE."""
    return before_decay(S, window, params, lambda S, decay, write: decay * (S + write))


def before_decay(S: Array, window: Any, params: Any, moved: Callable[[Array, Array, Array], Array]) -> tuple[Array, Array]:
    """The delta rule with its correction computed before the decay; `moved` gives the state after a token."""
    outputs = []
    for t in range(window.v.shape[1]):
        token = window.token(t)
        q, k = delta.keys_and_queries(token.q, token.k, token.v.shape[1], params)
        decay = np.exp(token.g if token.g.ndim == 3 else token.g[..., None])[..., None]
        u = token.beta[..., None] * (token.v - np.einsum("bhkv, bhk -> bhv", S, k))
        S = moved(S, decay, k[..., None] * u[:, :, None])
        outputs.append(np.einsum("bhkv, bhk -> bhv", S, q))
    return rounded(np.stack(outputs, axis=1), S)


def mask_without_decay(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """Within a chunk a token reads earlier ones with a mask of ones instead of decays. NeuraLegion/shainet#170."""
    outputs, first, written = [], S, np.zeros_like(S)
    for t in range(window.v.shape[1]):
        token, one = window.token(t), each(lambda a, t=t: a[:, t : t + 1], window)
        q, _ = delta.keys_and_queries(token.q, token.k, token.v.shape[1], params)
        decay = np.exp(token.g if token.g.ndim == 3 else token.g[..., None])[..., None]
        S_next = delta.scan(S, one, params)[1]
        first, written, S = decay * first, written + S_next - decay * S, S_next
        outputs.append(np.einsum("bhkv, bhk -> bhv", first + written, q))
    return rounded(np.stack(outputs, axis=1), S)


def from_the_chunk(S: Array, run: Any, bounds: Array, fresh: Array, params: Any) -> tuple[Array, Array]:
    """A carried state decays from the start of the chunk, not of its sequence. vllm-project/vllm#23279."""
    formed, formed_params = steps(run, params, lambda dt: dt)
    begin = S.copy()
    for b, start in enumerate(bounds[:-1]):
        before = formed.dt[0, start - start % CHUNK : start]
        begin[b] *= np.exp(before.sum(axis=0) * params.A)[:, None, None]
    return rounded(*packed_scan("ssd", begin, formed, bounds, fresh, formed_params))


def grid_of_each(S: Array, run: Any, bounds: Array, fresh: Array, params: Any) -> tuple[Array, Array]:
    """Final states are taken at chunks counted in each sequence, though the run has one grid. sgl-project/sglang#37836."""
    lengths = np.diff(bounds)
    begin = np.where(fresh.reshape(-1, *[1] * (S.ndim - 1)), 0.0, S)
    y, S_next, marks = packed.scan(ssd, begin, run, lengths, params, packed.every(lengths, 1))
    whole = lengths // CHUNK
    for b, length in enumerate(lengths):
        place = CHUNK * int(whole[: b + 1].sum()) - 1
        if length > 0 and place >= 0:
            S_next[b] = marks[min(place, len(marks) - 1)]
    return rounded(y, S_next)


FAULTS = planted(
    *(
        (run, "ssd.scan", bug_class, FP32)
        for run, bug_class in (
            (
                formed(
                    "ceiling_over_steps",
                    "dt is clipped to at most 0.1, though the reference has a lower limit only. ml-explore/mlx-lm#988.",
                    at_most(0.1),
                ),
                "NUMERIC",
            ),
            (bias_behind_softplus, "VARIANT"),
            (overflowing_softplus, "NUMERIC"),
            (
                formed(
                    "inexact_softplus",
                    "softplus as log(1 + exp x) in single precision, in which small steps are lost beside 1. "
                    "tenstorrent/tt-metal#9910.",
                    lambda dt: np.where(dt < 1, log_of_one_more(np.minimum(dt, 1)), dt),
                    of_softplus=True,
                ),
                "NUMERIC",
            ),
            (
                before(
                    "narrow_rate",
                    "The decay rate is computed from its logarithm in bf16. state-spaces/mamba#923.",
                    A=rounded_to("bf16"),
                ),
                "NUMERIC",
            ),
            (
                before(
                    "skip_of_a_head",
                    "D per channel is read as D per head: its first entry is used for all channels. state-spaces/mamba#887.",
                    D=lambda D: D if D.ndim == 1 else D[:, 0],
                ),
                "VARIANT",
            ),
            (decays_from_the_tile, "CHUNK"),
            (sums_over_targets, "CHUNK"),
            (
                before(
                    "ignores_the_state",
                    "More than one token starts from zeros. huggingface/transformers#46741.",
                    S=lambda S, x: np.zeros_like(S) if x.shape[1] > 1 else S,
                ),
                "INIT-DROP",
            ),
        )
    ),
    (error_before_decay, "delta.scan", "RULE", FP32),
    (decay_after_the_write, "delta.scan", "RULE", FP32),
    (mask_without_decay, "delta.scan", "RULE", FP32),
    (
        after(
            "transposed_delta",
            "The final state is stored value-major; the output is right. gittensor-ai-lab/sparkinfer#615.",
            S_next=lambda S_next: S_next.swapaxes(2, 3).reshape(S_next.shape),
        ),
        "delta.scan",
        "TRANSPOSE",
        FP32,
    ),
    (
        before("beta_twice", "beta weighs the key as well as the correction.", beta=lambda beta: beta**2),
        "delta.scan",
        "RULE",
        FP32,
    ),
    (from_the_chunk, "ssd.scan_packed", "CHUNK", FP32),
    (grid_of_each, "ssd.scan_packed", "CHUNK", FP32),
)
