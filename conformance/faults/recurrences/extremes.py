"""Wrong at the ends of what may come: exponentials without their maximum, noise of 0 and 1, zeros taken for padding or
for what comes later, and sequences that begin or end where a chunk does, or that are empty."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np

from ssmspec_ref import delta
from ssmspec_ref.accept import UniformDice
from ssmspec_ref.contract import FLOAT64, Adapter, NumericContract
from ssmspec_ref.delta import chunked as delta_chunked
from ssmspec_ref.shapes import Ancestors, Array, Lengths, Mask

from ...adapters.reference_parts import acceptance, processors
from ...adapters.reference_parts.acceptance import Runs
from ..single import Wrong, adapter_of
from .arithmetic import rounded
from .packed import right as right_packed

FP32 = NumericContract()
CHUNK = 64
BY_CHUNKS = NumericContract(order="chunked", chunk=CHUNK)


# --- exponentials ---


def shares(score: Array, least: float | None) -> Array:
    """Softmax over the last axis in single precision, less its maximum, or the larger of that and `least`, or nothing."""
    x = score.astype(np.float32)
    most = np.float32(0) if least is None else np.maximum(x.max(axis=-1, keepdims=True), np.float32(least))
    with np.errstate(all="ignore"):
        weight = np.exp(x - most)
        return np.nan_to_num(weight / weight.sum(axis=-1, keepdims=True)).astype(np.float64)


def _attend(
    K: Array, V: Array, length: Lengths, q: Array, k: Array, v: Array, ancestors: Ancestors, scale: Any, least: float | None
) -> Array:
    h, e = q.shape[2:]
    keys, values = (np.repeat(np.concatenate(pair, axis=1), h // k.shape[2], axis=2) for pair in ((K, k), (V, v)))
    live = np.einsum("btt -> bt", ancestors)
    held = (np.arange(K.shape[1]) < length[:, None])[:, None] & live[:, :, None]
    seen = np.concatenate([held, ancestors], axis=2)[:, :, None]
    size = e**-0.5 if scale is None else scale
    score = np.where(seen, size * np.einsum("bthe, blhe -> bthl", q, keys), -np.inf)
    y = np.einsum("bthl, blhe -> bthe", shares(score, least), values)
    return np.where(live[..., None, None], y, 0.0).astype(np.float32)


def scores_as_they_are(
    K: Array, V: Array, length: Lengths, q: Array, k: Array, v: Array, ancestors: Ancestors, scale: Any
) -> Array:
    """The softmax of attention does not subtract the maximum of its scores."""
    return _attend(K, V, length, q, k, v, ancestors, scale, None)


def maximum_from_zero(
    K: Array, V: Array, length: Lengths, q: Array, k: Array, v: Array, ancestors: Ancestors, scale: Any
) -> Array:
    """The running maximum of the scores starts at 0."""
    return _attend(K, V, length, q, k, v, ancestors, scale, 0.0)


def _process(least: float | None, given: tuple[Any, ...]) -> Array:
    right_law = processors.law

    def law(logits: Array, temperature: float) -> Array:
        return shares(logits / temperature, least) if temperature else right_law(logits, temperature)

    with patch.object(processors, "law", law):
        return processors.process(*given).astype(np.float32)


def logits_as_they_are(*given: Any) -> Array:
    """The softmax of logits does not subtract their maximum."""
    return _process(None, given)


def maximum_of_logits_from_zero(*given: Any) -> Array:
    """The running maximum of the logits starts at 0."""
    return _process(0.0, given)


# --- noise ---


def _decided(dice: type[UniformDice], given: tuple[Any, ...]) -> Runs:
    with patch.object(acceptance, "UniformDice", dice):
        return acceptance.accept_sampled(*given)


class Inclusive(UniformDice):
    """A coin is true if it is at most the probability."""

    def bern(self, p: Any, node: int) -> bool:
        return bool(self.coins[node] <= p)


class FromTheLeft(UniformDice):
    """A pick is the first token whose cumulated weight is at least the noise."""

    def pick(self, weights: Any, node: int) -> int:
        return min(int(np.searchsorted(np.cumsum(weights), float(self.picks[node]), side="left")), len(weights) - 1)


class LastOfAll(UniformDice):
    """A sum that rounding leaves below the noise picks the last token of the vocabulary."""

    def pick(self, weights: Any, node: int) -> int:
        total = np.cumsum(weights) * (1 - 2.0**-22)
        return min(int(np.searchsorted(total, float(self.picks[node]), side="right")), len(weights) - 1)


def zero_coin_stands(*given: Any) -> Runs:
    """A coin of 0 accepts a draft of probability 0: coin <= p. sgl-project/sglang#35798."""
    return _decided(Inclusive, given)


def zero_picks_the_first(*given: Any) -> Runs:
    """Noise of 0 picks token 0, though it has no weight: <= instead of <."""
    return _decided(FromTheLeft, given)


def rounding_picks_the_last(*given: Any) -> Runs:
    """Noise just below 1 picks the last token, though it has no weight. sgl-project/sglang#22643."""
    return _decided(LastOfAll, given)


# --- zeros ---


def no_decay_is_padding(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """A token with log decay 0 is treated as padding and not written."""
    whole = window.g == 0 if window.g.ndim == 3 else (window.g == 0).all(axis=-1)
    return rounded(*delta.scan(S, replace(window, beta=np.where(whole, 0.0, window.beta)), params))


def no_write_is_padding(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """A token with beta 0 is treated as padding and does not decay the state."""
    zero = window.beta == 0 if window.g.ndim == 3 else (window.beta == 0)[..., None]
    return rounded(*delta.scan(S, replace(window, g=np.where(zero, 0.0, window.g)), params))


# --- exponents that a guard keeps from exp ---


def _left(log_decay: Array, hidden: Callable[[Array], Array]) -> Array:
    """What is left of one token at a later one, by the difference of running sums; nothing where the difference is `hidden`.
    Of what was there before the first token, and of a token at itself, all is read."""
    sums = by_doubling(log_decay)
    between = sums[..., :, None] - sums[..., None, :]
    later = np.tri(sums.shape[-1], k=-1, dtype=bool)
    seen = later & ~hidden(between)
    seen[..., 0] = later[:, 0]
    return np.where(np.eye(sums.shape[-1], dtype=bool), 1.0, np.exp(np.where(seen, between, -np.inf)))


def by_doubling(a: Array) -> Array:
    """Running sums over the last axis in single precision, as lanes form them: by steps of 1, 2, 4 and so on."""
    sums, step = a.astype(np.float32), 1
    while step < sums.shape[-1]:
        sums[..., step:] = sums[..., step:] + sums[..., :-step]
        step *= 2
    return sums.astype(np.float64)


def _chunked(S: Array, window: Any, params: Any, hidden: Callable[[Array], Array]) -> tuple[Array, Array]:
    with patch.object(delta_chunked, "decays", partial(_left, hidden=hidden)):
        return rounded(*delta_chunked.scan(S, window, params, chunk=CHUNK))


def unguarded(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """Correct."""
    return _chunked(S, window, params, lambda between: np.zeros(between.shape, dtype=bool))


def guard_hides_zero(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """Exponents of 0 or more are masked like those of later tokens: if nothing decays between two tokens, the later one does
    not read the earlier. fla-org/flash-linear-attention#104."""
    return _chunked(S, window, params, lambda between: between >= 0)


def guard_hides_rounding(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """Exponents above 0 are masked, though rounding of running sums produces them where nothing decays."""
    return _chunked(S, window, params, lambda between: between > 0)


# --- sequences in a packed run ---


def _where(mask: Mask, one: Array, other: Array) -> Array:
    return np.where(mask.reshape(-1, *[1] * (one.ndim - 1)), one, other)


def begins_with_a_chunk(S: Array, run: Any, bounds: Array, fresh: Array, params: Any) -> tuple[Array, Array]:
    """A sequence that starts at a boundary of 64-token chunks is treated as new."""
    starts, tokens = bounds[:-1], np.diff(bounds)
    new = (starts > 0) & (starts % CHUNK == 0) & (tokens > 0)
    return right_packed("ssd", S, run, bounds, fresh | new, params)


def ends_with_a_chunk(S: Array, run: Any, bounds: Array, fresh: Array, params: Any) -> tuple[Array, Array]:
    """The state of a sequence is not stored if it ends at a boundary of 64-token chunks of the run, after another
    sequence."""
    y, S_next = right_packed("ssd", S, run, bounds, fresh, params)
    return y, _where((bounds[1:] % CHUNK == 0) & (bounds[:-1] > 0) & (np.diff(bounds) > 0), S, S_next)


def empty_at_the_end(S: Array, run: Any, bounds: Array, fresh: Array, params: Any) -> tuple[Array, Array]:
    """The last sequence, if empty, is located past the end of the run and cleared."""
    y, S_next = right_packed("ssd", S, run, bounds, fresh, params)
    return y, _where(bounds[:-1] == bounds[-1], np.zeros_like(S), S_next)


def empty_at_the_beginning(S: Array, run: Any, bounds: Array, fresh: Array, params: Any) -> tuple[Array, Array]:
    """The first sequence, if empty, gets the state of the sequence that starts at the same token."""
    y, S_next = right_packed("ssd", S, run, bounds, fresh, params)
    first = int(np.argmax(np.diff(bounds) > 0))
    return y, np.concatenate([S_next[first : first + 1], S_next[1:]])


def empty_in_pairs(S: Array, run: Any, bounds: Array, fresh: Array, params: Any) -> tuple[Array, Array]:
    """Of two empty sequences the second gets the state before the first: one boundary is dropped as a duplicate."""
    y, S_next = right_packed("ssd", S, run, bounds, fresh, params)
    empty = np.diff(bounds) == 0
    return y, _where(empty & np.roll(empty, 1) & (np.arange(len(S)) > 0), np.roll(S_next, 1, axis=0), S_next)


def fresh_has_a_neighbour(S: Array, run: Any, bounds: Array, fresh: Array, params: Any) -> tuple[Array, Array]:
    """A new sequence has no row yet and starts from the previous row's state. ml-explore/mlx-lm#1169."""
    return right_packed("ssd", _where(fresh, np.roll(S, 1, axis=0), S), run, bounds, np.zeros_like(fresh), params)


def first_is_never_fresh(S: Array, run: Any, bounds: Array, fresh: Array, params: Any) -> tuple[Array, Array]:
    """The first sequence starts from its slot's previous state."""
    return right_packed("ssd", S, run, bounds, fresh & (np.arange(len(fresh)) > 0), params)


FAULTS: tuple[Wrong, ...] = (
    (scores_as_they_are, "attention.verify_tree", "NUMERIC", FP32),
    (maximum_from_zero, "attention.verify_tree", "NUMERIC", FP32),
    (logits_as_they_are, "acceptance.process", "NUMERIC", FP32),
    (maximum_of_logits_from_zero, "acceptance.process", "NUMERIC", FP32),
    (zero_coin_stands, "acceptance.sampled", "RNG", FLOAT64),
    (zero_picks_the_first, "acceptance.sampled", "RNG", FLOAT64),
    (rounding_picks_the_last, "acceptance.sampled", "RNG", FLOAT64),
    (no_decay_is_padding, "delta.scan", "NUMERIC", FP32),
    (no_write_is_padding, "delta.scan", "NUMERIC", FP32),
    (guard_hides_zero, "delta.scan", "NUMERIC", BY_CHUNKS),
    (guard_hides_rounding, "delta.scan", "NUMERIC", BY_CHUNKS),
    (begins_with_a_chunk, "ssd.scan_packed", "CHUNK", FLOAT64),
    (ends_with_a_chunk, "ssd.scan_packed", "CHUNK", FLOAT64),
    (empty_at_the_end, "ssd.scan_packed", "CHUNK", FLOAT64),
    (empty_at_the_beginning, "ssd.scan_packed", "SLOT-SCOPE", FLOAT64),
    (empty_in_pairs, "ssd.scan_packed", "SLOT-SCOPE", FLOAT64),
    (fresh_has_a_neighbour, "ssd.scan_packed", "SLOT-SCOPE", FLOAT64),
    (first_is_never_fresh, "ssd.scan_packed", "SLOT-REUSE", FLOAT64),
)
"""Each with its operation, its bug class, and what it declares."""


def adapter() -> Adapter:
    return adapter_of("extremes", FAULTS)
