"""Wrong at the ends of what may come: exponentials without their maximum, noise of 0 and 1, zeros taken for padding or
for what comes later, and sequences that begin or end where a chunk does, or that are empty."""

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np

from ssmspec_ref.accept import UniformDice
from ssmspec_ref.contract import NumericContract
from ssmspec_ref.delta import chunked as delta_chunked
from ssmspec_ref.shapes import Ancestors, Array, Lengths

from ...adapters.reference_parts import acceptance, processors
from ...adapters.reference_parts.acceptance import Runs
from ...mistakes.mistake import after, before, instead
from ...mistakes.operators import of_rows, zero
from ..fault import FP32, planted
from .arithmetic import rounded

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
    least: float | None, K: Array, V: Array, length: Lengths, q: Array, k: Array, v: Array, ancestors: Ancestors, scale: Any
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


def _process(least: float | None, *given: Any) -> Array:
    right_law = processors.law

    def law(logits: Array, temperature: float) -> Array:
        return shares(logits / temperature, least) if temperature else right_law(logits, temperature)

    with patch.object(processors, "law", law):
        return processors.process(*given).astype(np.float32)


# --- noise ---


def _decided(dice: type[UniformDice], *given: Any) -> Runs:
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


# --- zeros ---


def no_decay_is_padding(beta: Array, g: Array) -> Array:
    """A token with log decay 0 is treated as padding and not written."""
    return np.where(g == 0 if g.ndim == 3 else (g == 0).all(axis=-1), 0.0, beta)


def no_write_is_padding(g: Array, beta: Array) -> Array:
    """A token with beta 0 is treated as padding and does not decay the state."""
    return np.where(of_rows(beta == 0, g), 0.0, g)


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


def _chunked(hidden: Callable[[Array], Array], S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    with patch.object(delta_chunked, "decays", partial(_left, hidden=hidden)):
        return rounded(*delta_chunked.scan(S, window, params, chunk=CHUNK))


unguarded = instead("unguarded", "Correct.", partial(_chunked, lambda between: np.zeros(between.shape, dtype=bool)))


# --- sequences in a packed run ---


def begins_with_a_chunk(fresh: Array, bounds: Array) -> Array:
    """A sequence that starts at a boundary of 64-token chunks is treated as new."""
    starts = bounds[:-1]
    return fresh | ((starts > 0) & (starts % CHUNK == 0) & (np.diff(bounds) > 0))


def ends_with_a_chunk(S: Array, S_next: Array, bounds: Array) -> Array:
    """The state of a sequence is not stored if it ends at a boundary of 64-token chunks of the run, after another
    sequence."""
    full = (bounds[1:] % CHUNK == 0) & (bounds[:-1] > 0) & (np.diff(bounds) > 0)
    return np.where(of_rows(full, S), S, S_next)


def empty_at_the_beginning(S_next: Array, bounds: Array) -> Array:
    """The first sequence, if empty, gets the state of the sequence that starts at the same token."""
    first = int(np.argmax(np.diff(bounds) > 0))
    return np.concatenate([S_next[first : first + 1], S_next[1:]])


def empty_in_pairs(S_next: Array, bounds: Array) -> Array:
    """Of two empty sequences the second gets the state before the first: one boundary is dropped as a duplicate."""
    empty = np.diff(bounds) == 0
    second = empty & np.roll(empty, 1) & (np.arange(len(S_next)) > 0)
    return np.where(of_rows(second, S_next), np.roll(S_next, 1, axis=0), S_next)


FAULTS = planted(
    *(
        (instead(name, says, partial(_attend, least)), "attention.verify_tree", "NUMERIC", FP32)
        for name, says, least in (
            ("scores_as_they_are", "The softmax of attention does not subtract the maximum of its scores.", None),
            ("maximum_from_zero", "The running maximum of the scores starts at 0.", 0.0),
        )
    ),
    *(
        (instead(name, says, partial(_process, least)), "acceptance.process", "NUMERIC", FP32)
        for name, says, least in (
            ("logits_as_they_are", "The softmax of logits does not subtract their maximum.", None),
            ("maximum_of_logits_from_zero", "The running maximum of the logits starts at 0.", 0.0),
        )
    ),
    *(
        (instead(name, says, partial(_decided, dice)), "acceptance.sampled", "RNG")
        for name, says, dice in (
            (
                "zero_coin_stands",
                "A coin of 0 accepts a draft of probability 0: coin <= p. sgl-project/sglang#35798.",
                Inclusive,
            ),
            ("zero_picks_the_first", "Noise of 0 picks token 0, though it has no weight: <= instead of <.", FromTheLeft),
            (
                "rounding_picks_the_last",
                "Noise just below 1 picks the last token, though it has no weight. sgl-project/sglang#22643.",
                LastOfAll,
            ),
        )
    ),
    (before(beta=no_decay_is_padding), "delta.scan", "NUMERIC", FP32),
    (before(g=no_write_is_padding), "delta.scan", "NUMERIC", FP32),
    *(
        (instead(name, says, partial(_chunked, hidden)), "delta.scan", "NUMERIC", BY_CHUNKS)
        for name, says, hidden in (
            (
                "guard_hides_zero",
                "Exponents of 0 or more are masked like those of later tokens: if nothing decays between two tokens, the "
                "later one does not read the earlier. fla-org/flash-linear-attention#104.",
                lambda between: between >= 0,
            ),
            (
                "guard_hides_rounding",
                "Exponents above 0 are masked, though rounding of running sums produces them where nothing decays.",
                lambda between: between > 0,
            ),
        )
    ),
    (before(fresh=begins_with_a_chunk), "ssd.scan_packed", "CHUNK"),
    (after(S_next=ends_with_a_chunk), "ssd.scan_packed", "CHUNK"),
    (
        after(
            "empty_at_the_end",
            "The last sequence, if empty, is located past the end of the run and cleared.",
            S_next=lambda S_next, bounds: np.where(of_rows(bounds[:-1] == bounds[-1], S_next), 0.0, S_next),
        ),
        "ssd.scan_packed",
        "CHUNK",
    ),
    (after(S_next=empty_at_the_beginning), "ssd.scan_packed", "SLOT-SCOPE"),
    (after(S_next=empty_in_pairs), "ssd.scan_packed", "SLOT-SCOPE"),
    (
        before(
            "fresh_has_a_neighbour",
            "A new sequence has no row yet and starts from the previous row's state. ml-explore/mlx-lm#1169.",
            S=lambda S, fresh: np.where(of_rows(fresh, S), np.roll(S, 1, axis=0), S),
            fresh=zero,
        ),
        "ssd.scan_packed",
        "SLOT-SCOPE",
    ),
    (
        before(
            "first_is_never_fresh",
            "The first sequence starts from its slot's previous state.",
            fresh=lambda fresh: fresh & (np.arange(len(fresh)) > 0),
        ),
        "ssd.scan_packed",
        "SLOT-REUSE",
    ),
)
