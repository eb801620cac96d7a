"""Drafts that continue past the end of a text or miss an occurrence, and counts that take the prompt for output."""

from typing import Any

import numpy as np

from ssmspec_ref.shapes import Array

from ...adapters.reference_parts import drafts
from ...mistakes.mistake import after, before
from ..fault import planted
from ..sampled.processors import absent, penalised, process, times

OTHER = {"last": "first", "first": "last"}
PLACE = {"last": -1, "first": 0}


def overlap_is_not_found(history: Array, tokens: int, longest: int, choice: str) -> Array:
    """An occurrence that overlaps the suffix is not found."""
    found = np.full((len(history), tokens), -1)
    for b, row in enumerate(history):
        text = row[row >= 0]
        for length in range(min(longest, len(text) // 2), 0, -1):
            suffix, before = text[len(text) - length :], text[: len(text) - length]
            every = np.lib.stride_tricks.sliding_window_view(before, length)
            places = np.flatnonzero((every == suffix).all(axis=1)) + length
            if places.size:
                after = text[places[PLACE[choice]] :][:tokens]
                found[b, : len(after)] = after
                break
    return found


def goes_round(history: Array, tokens: int, longest: int, choice: str) -> Array:
    """A draft that reaches the end of the history continues with its own first token, and so repeats itself."""
    whole = drafts.lookup(history, history.shape[1], longest, choice)
    period = np.maximum((whole >= 0).sum(axis=1), 1)
    return np.take_along_axis(whole, np.arange(tokens) % period[:, None], axis=1)


def repeats_the_last(y: Array, history: Array) -> Array:
    """A draft that reaches the end of the history continues with the last token of the history."""
    last = np.take_along_axis(history, (history >= 0).sum(axis=1)[:, None] - 1, axis=1)
    return np.where((y < 0) & (y[:, :1] >= 0), last, y)


def presence_of_the_prompt(logits: Array, prompt: Array, output: Array, repetition: float, presence: float) -> Array:
    """The presence penalty counts the tokens of the prompt too; the frequency penalty does not."""
    new = (times(prompt, logits) > 0) & (times(output, logits) == 0)
    return penalised(logits, prompt, output, repetition) - presence * new


def frequency_of_the_prompt(logits: Array, prompt: Array, output: Array, repetition: float, frequency: float) -> Array:
    """The frequency penalty counts the tokens of the prompt too; the presence penalty does not."""
    return penalised(logits, prompt, output, repetition) - frequency * times(prompt, logits)


def minimum_counts_the_prompt(logits: Array, prompt: Array, output: Array, *rest: Any) -> Array:
    """The minimum of tokens before an end counts those of the prompt too."""
    *others, least, eos = rest
    rows = []
    for b, count in enumerate((prompt >= 0).sum(axis=1)):
        one = slice(b, b + 1)
        rows.append(process(logits[one], prompt[one], output[one], *others, max(least - int(count), 0), eos))
    return np.concatenate(rows)


FAULTS = planted(
    (overlap_is_not_found, "draft.lookup", "INDEX"),
    (
        after(
            "suffix_ends_in_the_padding",
            "The suffix is taken at the end of the longest history, so that a shorter row looks up its padding.",
            y=lambda y, history: np.where(history[:, -1:] < 0, -1, y),
        ),
        "draft.lookup",
        "PAD-LEAK",
    ),
    (goes_round, "draft.lookup", "INDEX"),
    (after(y=repeats_the_last), "draft.lookup", "INDEX"),
    (
        before(
            "takes_the_other_occurrence",
            "The last occurrence is taken where the first is asked for, and the first where the last is.",
            choice=lambda choice: OTHER[choice],
        ),
        "draft.lookup",
        "VARIANT",
    ),
    (before(logits=presence_of_the_prompt, prompt=absent, repetition=1.0), "acceptance.process", "P-MISMATCH"),
    (before(logits=frequency_of_the_prompt, prompt=absent, repetition=1.0), "acceptance.process", "P-MISMATCH"),
    (minimum_counts_the_prompt, "acceptance.process", "STOP"),
)
