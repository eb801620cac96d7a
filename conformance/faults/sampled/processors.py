"""Logits made into another law than the one that plain decoding samples from, over the form without sorting."""

from typing import Any

import numpy as np

from ssmspec_ref.shapes import Array

from ...adapters.reference_parts import processors
from ...adapters.reference_parts.processors import ahead, law, only, rank
from ...mistakes.mistake import after, before
from ..fault import planted

process: Any = processors.process


def mass_before(p: Array) -> Array:
    return np.asarray((ahead(p) * p[:, None]).sum(axis=2))


def one_too_few(y: Array, top_p: float) -> Array:
    """The token with which the mass reaches top_p is dropped; the first is always kept."""
    return only(y, (mass_before(y) + y < top_p) | (rank(y) == 0)) if top_p < 1 else y


def asks(top_k: int, logits: Array) -> bool:
    return 0 < top_k < logits.shape[1]


def all_that_tie(y: Array, logits: Array, top_k: int, top_p: float) -> Array:
    """Top-k keeps every token that is as probable as the k-th. huggingface/transformers, TopKLogitsWarper."""
    if not asks(top_k, logits):
        return y
    p = only(y, y >= np.sort(y, axis=1)[:, -top_k, None])
    return only(p, mass_before(p) < top_p) if top_p < 1 else p


def without_sum(logits: Array, prompt: Array, output: Array, T: float, k: int, share: float, *rest: Any) -> Array:
    """The result of top-k is not normalised."""
    p = process(logits, prompt, output, T, 0, 1.0, *rest)
    kept = process(logits, prompt, output, T, k, share, *rest) > 0
    return np.where(kept, p, 0.0)


def times(text: Array, logits: Array) -> Array:
    """How often a text has each token of the vocabulary."""
    return (text[:, :, None] == np.arange(logits.shape[1])).sum(axis=1)


def divides_always(logits: Array, prompt: Array, output: Array, repetition: float) -> Array:
    """The repetition penalty divides negative logits too, which makes them more probable."""
    return np.where(times(prompt, logits) + times(output, logits) > 0, logits / repetition, logits)


def penalised(logits: Array, prompt: Array, output: Array, repetition: float) -> Array:
    """Logits after the repetition penalty."""
    seen = times(prompt, logits) + times(output, logits) > 0
    return np.where(seen, np.where(logits > 0, logits / repetition, logits * repetition), logits)


def counts_the_prompt(
    logits: Array, prompt: Array, output: Array, repetition: float, presence: float, frequency: float
) -> Array:
    """Presence and frequency count the prompt too."""
    before, new = times(prompt, logits), (times(prompt, logits) > 0) & (times(output, logits) == 0)
    return penalised(logits, prompt, output, repetition) - frequency * before - presence * new


def path_is_not_counted(output: Array) -> Array:
    """The last token of the output, a draft on the path, is not counted. Bug class P-MISMATCH."""
    shorter = output.copy()
    for row in shorter:
        row[max(int((row >= 0).sum()) - 1, 0) :] = -1
    return shorter


def without_padding(own: Array, logits: Array) -> Array:
    return np.where(own < 0, logits.shape[1] - 1, own)


def absent(own: Array) -> Array:
    return np.full_like(own, -1)


def last_maximum(logits: Array, prompt: Array, output: Array, T: float, *rest: Any) -> Array:
    """Greedy takes the last of several maxima."""
    if T:
        return process(logits, prompt, output, T, *rest)
    turned = logits.shape[1] - 1
    mirrored = [np.where(a < 0, -1, turned - a) for a in (prompt, output)]
    *others, eos = rest
    p = process(logits[:, ::-1], *mirrored, T, *others, tuple(turned - end for end in eos))
    return np.asarray(p[:, ::-1].copy())


def last_is_counted_twice(logits: Array, output: Array, frequency: float) -> Array:
    """The last token of the output is counted twice. vllm-project/vllm#33251."""
    again = np.zeros_like(logits)
    for row, last in enumerate((output >= 0).sum(axis=1) - 1):
        again[row, output[row, last]] = last >= 0
    return logits - frequency * again


def spoils_the_logits(y: Array, logits: Array, temperature: float) -> Array:
    """The caller's logits are divided by the temperature in place. vllm-project/vllm#30846."""
    logits /= temperature or 1.0
    return y


FAULTS = planted(
    *(
        (run, "acceptance.process", bug_class)
        for run, bug_class in (
            (before(top_p=1.0).after(y=one_too_few), "P-MISMATCH"),
            (
                before("one_too_many", "If the mass is exactly top_p, one more token is kept.", top_p=1.0).after(
                    y=lambda y, top_p: only(y, mass_before(y) <= top_p) if top_p < 1 else y
                ),
                "P-MISMATCH",
            ),
            (
                before(
                    top_k=lambda top_k, logits: 0 if asks(top_k, logits) else top_k,
                    top_p=lambda top_p, top_k, logits: 1.0 if asks(top_k, logits) else top_p,
                ).after(y=all_that_tie),
                "P-MISMATCH",
            ),
            (
                before("share_before_count", "Top-p is taken before top-k, of another mass.", top_k=0).after(
                    y=lambda y, top_k: only(y, rank(y) < top_k) if top_k else y
                ),
                "P-MISMATCH",
            ),
            (
                before(
                    "temperature_behind",
                    "Top-k and top-p are applied at temperature 1, and the temperature after them.",
                    temperature=1.0,
                ).after(y=lambda y, temperature: law(np.log(y), temperature)),
                "P-MISMATCH",
            ),
            (without_sum, "P-MISMATCH"),
            (before(logits=divides_always, repetition=1.0), "P-MISMATCH"),
            (before(logits=counts_the_prompt, prompt=absent, repetition=1.0), "P-MISMATCH"),
            (before(output=path_is_not_counted), "P-MISMATCH"),
            (
                before(
                    "settings_are_defaults",
                    "The target is sampled at temperature 1, without top-k and top-p, for every request. "
                    "vllm-project/vllm#10198.",
                    temperature=lambda temperature: 1.0 if temperature else temperature,
                    top_k=0,
                    top_p=1.0,
                ),
                "P-MISMATCH",
            ),
            (
                before("always_greedy", "Every request is treated as greedy. sgl-project/sglang#39253.", temperature=0.0),
                "P-MISMATCH",
            ),
            (
                before(
                    "tempered_twice",
                    "Logits are divided by the temperature twice. RL-Align/RL-Kernel#81.",
                    temperature=lambda temperature: temperature * temperature,
                ),
                "P-MISMATCH",
            ),
            (
                before(
                    "penalties_are_ignored",
                    "Temperature, top-k and top-p are applied and no penalty. NVIDIA/TensorRT-LLM#17701.",
                    repetition=1.0,
                    presence=0.0,
                    frequency=0.0,
                ),
                "P-MISMATCH",
            ),
            (before(logits=last_is_counted_twice), "P-MISMATCH"),
            (after(y=spoils_the_logits), "P-MISMATCH"),
            (
                before(
                    "padding_is_a_token",
                    "The padding -1 after a history counts as the last token of the vocabulary.",
                    prompt=without_padding,
                    output=without_padding,
                ),
                "PAD-LEAK",
            ),
            (
                before(
                    "one_token_longer",
                    "The end of a sequence is masked for one token more than the minimum.",
                    min_tokens=lambda min_tokens: min_tokens + 1 if min_tokens else 0,
                ),
                "STOP",
            ),
            (last_maximum, "GREEDY"),
        )
    )
)
