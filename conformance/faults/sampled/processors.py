"""Logits made into another law than the one that plain decoding samples from, over the form without sorting."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ssmspec_ref.contract import Adapter
from ssmspec_ref.shapes import Array

from ...adapters.reference_parts import processors
from ...adapters.reference_parts.processors import ahead, law, only, rank
from ..single import single

process: Any = processors.process


def mass_before(p: Array) -> Array:
    return np.asarray((ahead(p) * p[:, None]).sum(axis=2))


def one_too_few(logits: Array, prompt: Array, output: Array, T: float, k: int, share: float, *rest: Any) -> Array:
    """The token with which the mass reaches top_p is dropped; the first is always kept."""
    p = process(logits, prompt, output, T, k, 1.0, *rest)
    return only(p, (mass_before(p) + p < share) | (rank(p) == 0)) if share < 1 else p


def one_too_many(logits: Array, prompt: Array, output: Array, T: float, k: int, share: float, *rest: Any) -> Array:
    """If the mass is exactly top_p, one more token is kept."""
    p = process(logits, prompt, output, T, k, 1.0, *rest)
    return only(p, mass_before(p) <= share) if share < 1 else p


def all_that_tie(logits: Array, prompt: Array, output: Array, T: float, k: int, *rest: Any) -> Array:
    """Top-k keeps every token that is as probable as the k-th. huggingface/transformers, TopKLogitsWarper."""
    if not 0 < k < logits.shape[1]:
        return process(logits, prompt, output, T, k, *rest)
    p = process(logits, prompt, output, T, 0, 1.0, *rest[1:])
    p = only(p, p >= np.sort(p, axis=1)[:, -k, None])
    return only(p, mass_before(p) < rest[0]) if rest[0] < 1 else p


def share_before_count(logits: Array, prompt: Array, output: Array, T: float, k: int, share: float, *rest: Any) -> Array:
    """Top-p is taken before top-k, of another mass."""
    p = process(logits, prompt, output, T, 0, share, *rest)
    return only(p, rank(p) < k) if k else p


def temperature_behind(logits: Array, prompt: Array, output: Array, T: float, k: int, share: float, *rest: Any) -> Array:
    """Top-k and top-p are applied at temperature 1, and the temperature after them."""
    p = process(logits, prompt, output, 1.0, k, share, *rest)
    with np.errstate(divide="ignore"):
        return law(np.log(p), T)


def without_sum(logits: Array, prompt: Array, output: Array, T: float, k: int, share: float, *rest: Any) -> Array:
    """The result of top-k is not normalised."""
    p = process(logits, prompt, output, T, 0, 1.0, *rest)
    kept = process(logits, prompt, output, T, k, share, *rest) > 0
    return np.where(kept, p, 0.0)


def divides_always(logits: Array, prompt: Array, output: Array, *rest: Any) -> Array:
    """The repetition penalty divides negative logits too, which makes them more probable."""
    *rules, repetition, presence, frequency, least, eos = rest
    known = [np.isin(np.arange(logits.shape[1]), [*a, *b]) for a, b in zip(prompt, output, strict=True)]
    scaled = np.where(np.array(known), logits / repetition, logits)
    return process(scaled, prompt, output, *rules, 1.0, presence, frequency, least, eos)


def counts_the_prompt(logits: Array, prompt: Array, output: Array, *rest: Any) -> Array:
    """Presence and frequency count the prompt too."""
    *rules, repetition, presence, frequency, least, eos = rest
    times = (prompt[:, :, None] == np.arange(logits.shape[1])).sum(axis=1)
    there = (output[:, :, None] == np.arange(logits.shape[1])).any(axis=1)
    scaled = np.where(logits > 0, logits / repetition, logits * repetition)
    seen = np.where((times > 0) | there, scaled, logits) - frequency * times - presence * ((times > 0) & ~there)
    return process(seen, np.full_like(prompt, -1), output, *rules, 1.0, presence, frequency, least, eos)


def path_is_not_counted(logits: Array, prompt: Array, output: Array, *rest: Any) -> Array:
    """The last token of the output, a draft on the path, is not counted. Bug class P-MISMATCH."""
    shorter = output.copy()
    for row in shorter:
        row[max(int((row >= 0).sum()) - 1, 0) :] = -1
    return process(logits, prompt, shorter, *rest)


def one_token_longer(logits: Array, prompt: Array, output: Array, *rest: Any) -> Array:
    """The end of a sequence is masked for one token more than the minimum."""
    *others, least, eos = rest
    return process(logits, prompt, output, *others, least + 1 if least else 0, eos)


def padding_is_a_token(logits: Array, prompt: Array, output: Array, *rest: Any) -> Array:
    """The padding -1 after a history counts as the last token of the vocabulary."""
    last = logits.shape[1] - 1
    return process(logits, np.where(prompt < 0, last, prompt), np.where(output < 0, last, output), *rest)


def last_maximum(logits: Array, prompt: Array, output: Array, T: float, *rest: Any) -> Array:
    """Greedy takes the last of several maxima."""
    if T:
        return process(logits, prompt, output, T, *rest)
    turned = logits.shape[1] - 1
    mirrored = [np.where(a < 0, -1, turned - a) for a in (prompt, output)]
    *others, eos = rest
    p = process(logits[:, ::-1], *mirrored, T, *others, tuple(turned - end for end in eos))
    return np.asarray(p[:, ::-1].copy())


def settings_are_defaults(logits: Array, prompt: Array, output: Array, T: float, k: int, share: float, *rest: Any) -> Array:
    """The target is sampled at temperature 1, without top-k and top-p, for every request. vllm-project/vllm#10198."""
    return process(logits, prompt, output, 1.0 if T else T, 0, 1.0, *rest)


def always_greedy(logits: Array, prompt: Array, output: Array, T: float, *rest: Any) -> Array:
    """Every request is treated as greedy. sgl-project/sglang#39253."""
    return process(logits, prompt, output, 0.0, *rest)


def tempered_twice(logits: Array, prompt: Array, output: Array, T: float, *rest: Any) -> Array:
    """Logits are divided by the temperature twice. RL-Align/RL-Kernel#81."""
    return process(logits, prompt, output, T * T, *rest)


def penalties_are_ignored(logits: Array, prompt: Array, output: Array, *rest: Any) -> Array:
    """Temperature, top-k and top-p are applied and no penalty. NVIDIA/TensorRT-LLM#17701."""
    *rules, _, _, _, least, eos = rest
    return process(logits, prompt, output, *rules, 1.0, 0.0, 0.0, least, eos)


def last_is_counted_twice(logits: Array, prompt: Array, output: Array, *rest: Any) -> Array:
    """The last token of the output is counted twice. vllm-project/vllm#33251."""
    again = np.zeros_like(logits)
    for row, last in enumerate((output >= 0).sum(axis=1) - 1):
        again[row, output[row, last]] = last >= 0
    return process(logits - rest[5] * again, prompt, output, *rest)


def spoils_the_logits(logits: Array, prompt: Array, output: Array, T: float, *rest: Any) -> Array:
    """The caller's logits are divided by the temperature in place. vllm-project/vllm#30846."""
    p = process(logits, prompt, output, T, *rest)
    logits /= T or 1.0
    return p


FAULTS: tuple[tuple[Callable[..., Any], str], ...] = (
    (one_too_few, "P-MISMATCH"),
    (one_too_many, "P-MISMATCH"),
    (all_that_tie, "P-MISMATCH"),
    (share_before_count, "P-MISMATCH"),
    (temperature_behind, "P-MISMATCH"),
    (without_sum, "P-MISMATCH"),
    (divides_always, "P-MISMATCH"),
    (counts_the_prompt, "P-MISMATCH"),
    (path_is_not_counted, "P-MISMATCH"),
    (settings_are_defaults, "P-MISMATCH"),
    (always_greedy, "P-MISMATCH"),
    (tempered_twice, "P-MISMATCH"),
    (penalties_are_ignored, "P-MISMATCH"),
    (last_is_counted_twice, "P-MISMATCH"),
    (spoils_the_logits, "P-MISMATCH"),
    (padding_is_a_token, "PAD-LEAK"),
    (one_token_longer, "STOP"),
    (last_maximum, "GREEDY"),
)
"""Each with its bug class."""
OPERATION = "acceptance.process"


def adapter() -> Adapter:
    return Adapter("faulty processors", "1", tuple(single(OPERATION, run) for run, _ in FAULTS))
