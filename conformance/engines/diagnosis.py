"""Explain a wrong token: run the float64 model with one deliberate mistake, along the engine's tokens.

A mistake explains an answer if the model with it gives the engine's tokens from the first wrong one on, and the correct model
does not. Those that explain the most tokens are reported; if none does, the report says so.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ssmspec_ref.attention import KVState
from ssmspec_ref.attention.latent import LatentLayer
from ssmspec_ref.layers.layer import DeltaLayer, Mamba1Layer, Mamba2Layer
from ssmspec_ref.layers.mixer import MixerState
from ssmspec_ref.layers.rotary import frequencies
from ssmspec_ref.shapes import Array

from .checkpoint import Attention, Block, Weights
from .laws import Finding
from .oracle import Oracle

TOKENS = 4
"""Tokens to try an explanation on, starting with the first wrong one."""
BACK = 6
"""How many tokens before the first wrong one a state may have been corrupted; before that, only between two chunks."""


def explained(oracle: Oracle, finding: Finding, others: Sequence[tuple[int, ...]], chunk: int | None = None) -> str:
    """The mistakes that give the engine's tokens; `others` are texts of other requests, `chunk` the tokens of a chunk."""
    if isinstance(finding.came, float):
        return probable(oracle, finding, others, chunk)
    if finding.came is None or finding.expected is None or not finding.answer:
        return ""
    said = finding.answer[finding.at : finding.at + TOKENS]
    if any(token >= oracle.weights.vocabulary for token in said):
        return ""
    ids = (*finding.request.ids, *finding.answer[: finding.at])
    best: list[str] = []
    most = agreed(Oracle(oracle.weights).forward((*ids, *said[:-1])).logits[len(ids) - 1 :], said)
    for name, logits in rewritten(oracle, ids, said, others, chunk):
        count = agreed(logits, said)
        if count > most:
            best, most = [name], count
        elif best and count == most and name not in best:
            best.append(name)
    if not best:
        return "no known mistake explains it"
    return f"explained by {' or '.join(best[:3])} ({most} of {len(said)} tokens)"


def probable(oracle: Oracle, finding: Finding, others: Sequence[tuple[int, ...]], chunk: int | None) -> str:
    """The mistakes that give the log-probability that came, within half of the bound of a difference."""
    token, ids = finding.answer[finding.at], (*finding.request.ids, *finding.answer[: finding.at])
    found = dict.fromkeys(
        name
        for name, logits in rewritten(oracle, ids, (token,), others, chunk)
        if abs(logits[0, token] - np.logaddexp.reduce(logits[0]) - finding.came) <= finding.bound / 2
    )
    return f"explained by {' or '.join([*found][:3])}" if found else "no known mistake explains it"


def agreed(logits: Array, said: Sequence[int]) -> int:
    """How many of the first tokens have the highest logit."""
    for n, token in enumerate(said):
        if int(logits[n].argmax()) != token:
            return n
    return len(said)


def rewritten(
    oracle: Oracle, ids: tuple[int, ...], said: Sequence[int], others: Sequence[tuple[int, ...]], chunk: int | None = None
) -> Iterator[tuple[str, Array]]:
    """Name of each mistake, and its logits for the engine's tokens."""
    whole = (*ids, *said[:-1])
    exact = Oracle(oracle.weights)
    forward = exact.forward(whole)
    first = len(ids) - 1
    places = [*range(first, max(-1, first - BACK), -1), *([] if chunk is None else range(chunk, first - BACK + 1, chunk))]
    for name, weights in models(oracle.weights):
        yield name, Oracle(weights).forward(whole).logits[first:]
    for name, change in states(oracle.weights, exact, whole, others):
        for at in places:
            changed = change(exact.states(forward, at), forward, at)
            if changed is not None:
                yield name, exact.forward(whole[at:], changed, at).logits[first - at :]


def models(weights: Weights) -> Iterator[tuple[str, Weights]]:
    """The model with one operation changed."""

    def each(change: Callable[[Any], Any]) -> Weights:
        return replace(weights, blocks=tuple(replace(b, layer=change(b.layer)) for b in weights.blocks))

    kinds = {type(block.layer) for block in weights.blocks}
    if kinds & {Mamba1Layer, Mamba2Layer, DeltaLayer}:
        yield "a decay that was dropped", each(undecayed)
        yield "a convolution without its bias", each(unbiased)
    if DeltaLayer in kinds:
        yield "one decay for all key channels of a head", each(averaged)
    if LatentLayer in kinds:
        yield "latent attention scaled by a head's own channels", each(scaled)
    if Attention in kinds:
        for part in (1.0, 0.5, 0.25, 0.0):
            yield f"rotary positions of {part:g} of a head", each(lambda layer, part=part: turned(layer, part))  # type: ignore[misc]
    coarse = tuple(rounded(block) for block in weights.blocks)
    yield "norms rounded to bf16", replace(weights, blocks=coarse, norm=bf16(weights.norm))


def undecayed(layer: Any) -> Any:
    if isinstance(layer, DeltaLayer):
        return replace(layer, A=np.full_like(layer.A, -1e-9))
    if isinstance(layer, Mamba1Layer | Mamba2Layer):
        mixer: Any = layer.mixer
        params = replace(mixer.params, A=np.full_like(mixer.params.A, -1e-9))
        changed: Any = replace(mixer, params=params)
        return replace(layer, mixer=changed)
    return layer


def averaged(layer: Any) -> Any:
    """Kimi Delta Attention with the mean of its decays' maps and biases over the key channels of a head."""
    if not isinstance(layer, DeltaLayer) or layer.dt_bias.ndim == 1:
        return layer

    def mean(a: Array) -> Array:
        rows = a.reshape(*layer.dt_bias.shape, -1)
        return np.broadcast_to(rows.mean(axis=1, keepdims=True), rows.shape).reshape(a.shape).copy()

    a_proj = replace(layer.a_proj, weight=mean(layer.a_proj.weight))
    return replace(layer, a_proj=a_proj, dt_bias=mean(layer.dt_bias))


def scaled(layer: Any) -> Any:
    if not isinstance(layer, LatentLayer):
        return layer
    own = layer.keys.shape[1]
    return replace(layer, q_proj=replace(layer.q_proj, weight=layer.q_proj.weight * ((own + layer.shared) / own) ** 0.5))


def unbiased(layer: Any) -> Any:
    if hasattr(layer, "mixer") and layer.mixer.conv.bias is not None:
        return replace(layer, mixer=replace(layer.mixer, conv=replace(layer.mixer.conv, bias=None)))
    return layer


def turned(layer: Any, part: float) -> Any:
    if not isinstance(layer, Attention) or layer.params.frequencies is None:
        return layer
    channels = layer.k_proj.outputs // layer.groups
    wide = 2 * int(channels * part / 2)
    return replace(layer, params=replace(layer.params, frequencies=frequencies(wide) if wide else None))


def bf16(norm: Any) -> Any:
    if norm is None:
        return None
    bits = norm.weight.astype(np.float32).view(np.uint32)
    near = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32)
    return replace(norm, weight=near.view(np.float32).astype(np.float64))


def rounded(block: Block) -> Block:
    layer: Any = block.layer
    if isinstance(layer, LatentLayer):
        layer = replace(layer, norm=bf16(layer.norm))
    if isinstance(layer, Attention):
        layer = replace(layer, q_norm=bf16(layer.q_norm), k_norm=bf16(layer.k_norm))
    return replace(block, layer=layer, norm=bf16(block.norm), mlp_norm=bf16(block.mlp_norm))


Change = Callable[[list[Any], Any, int], list[Any] | None]


def states(
    weights: Weights, oracle: Oracle, ids: tuple[int, ...], others: Sequence[tuple[int, ...]]
) -> Iterator[tuple[str, Change]]:
    """The correct model with a wrong state, at a token near the first wrong one."""

    def recurrent(change: Callable[[MixerState, MixerState], MixerState], shift: int) -> Change:
        def found(now: list[Any], forward: Any, at: int) -> list[Any] | None:
            if not 0 <= at + shift < len(ids):
                return None
            there = oracle.states(forward, at + shift)
            return [change(a, b) if isinstance(a, MixerState) else a for a, b in zip(now, there, strict=True)]

        return found

    for k in (1, 2, 3, 4):
        tokens = f"{k} token{'s' * (k > 1)}"
        yield f"a state {tokens} late", recurrent(lambda a, b: MixerState(a.M, b.S), -k)
        yield f"a window of the convolution {tokens} late", recurrent(lambda a, b: MixerState(b.M, a.S), -k)
        yield f"state and window {tokens} late", recurrent(lambda a, b: b, -k)
    yield "a state that was not kept", recurrent(lambda a, b: MixerState(a.M, 0 * a.S), 0)
    yield "a window of the convolution that was not kept", recurrent(lambda a, b: MixerState(0 * a.M, a.S), 0)
    yield "state and window that were not kept", recurrent(lambda a, b: MixerState(0 * a.M, 0 * a.S), 0)

    def again(now: list[Any], forward: Any, at: int) -> list[Any] | None:
        """The recurrence reads the previous token twice."""
        if at < 1:
            return None
        after = oracle.forward(ids[at - 1 : at], now, at)
        twice = oracle.states(after, 1)
        return [b if isinstance(a, MixerState) else a for a, b in zip(now, twice, strict=True)]

    yield "a token that the state has read twice", again
    if any(isinstance(block.layer, Attention | LatentLayer) for block in weights.blocks):

        def forgotten(now: list[Any], forward: Any, at: int) -> list[Any] | None:
            if at < 2:
                return None
            return [
                KVState(a.K[:, :-1], a.V[:, :-1], a.length - 1) if isinstance(a, KVState) and a.K.shape[1] else a for a in now
            ]

        yield "keys and values without the last token", forgotten
    for other in others[:4]:
        read = oracle.forward(other)

        def there(now: list[Any], forward: Any, at: int, read: Any = read, most: int = len(other)) -> list[Any] | None:
            if not 0 < at <= most:
                return None
            return [b if isinstance(a, MixerState) else a for a, b in zip(now, oracle.states(read, at), strict=True)]

        yield "a state that has read as many tokens of another request", there
        for length in {len(other), len(other) - 1}:
            if not length:
                continue
            theirs = oracle.states(read, length)

            def swapped(now: list[Any], forward: Any, at: int, theirs: list[Any] = theirs) -> list[Any]:
                return [b if isinstance(a, MixerState) else a for a, b in zip(now, theirs, strict=True)]

            yield "the state of another request", swapped
