"""Drafts that continue past the end of a text or miss an occurrence, and counts that take the prompt for output."""

from typing import Any

import numpy as np

from ssmspec_ref.contract import Adapter
from ssmspec_ref.shapes import Array

from ...adapters.reference_parts import drafts, processors
from ..single import Wrong, adapter_of

process: Any = processors.process
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


def suffix_ends_in_the_padding(history: Array, tokens: int, longest: int, choice: str) -> Array:
    """The suffix is taken at the end of the longest history, so that a shorter row looks up its padding."""
    found = drafts.lookup(history, tokens, longest, choice)
    return np.where(history[:, -1:] < 0, -1, found)


def goes_round(history: Array, tokens: int, longest: int, choice: str) -> Array:
    """A draft that reaches the end of the history continues with its own first token, and so repeats itself."""
    whole = drafts.lookup(history, history.shape[1], longest, choice)
    period = np.maximum((whole >= 0).sum(axis=1), 1)
    return np.take_along_axis(whole, np.arange(tokens) % period[:, None], axis=1)


def repeats_the_last(history: Array, tokens: int, longest: int, choice: str) -> Array:
    """A draft that reaches the end of the history continues with the last token of the history."""
    found = drafts.lookup(history, tokens, longest, choice)
    last = np.take_along_axis(history, (history >= 0).sum(axis=1)[:, None] - 1, axis=1)
    return np.where((found < 0) & (found[:, :1] >= 0), last, found)


def takes_the_other_occurrence(history: Array, tokens: int, longest: int, choice: str) -> Array:
    """The last occurrence is taken where the first is asked for, and the first where the last is."""
    return drafts.lookup(history, tokens, longest, OTHER[choice])


def presence_of_the_prompt(logits: Array, prompt: Array, output: Array, *rest: Any) -> Array:
    """The presence penalty counts the tokens of the prompt too; the frequency penalty does not."""
    *_, presence, _, _, _ = rest
    there, said = (held(text, logits).any(axis=1) for text in (prompt, output))
    return subtracted(logits, prompt, output, presence * (there & ~said), rest)


def frequency_of_the_prompt(logits: Array, prompt: Array, output: Array, *rest: Any) -> Array:
    """The frequency penalty counts the tokens of the prompt too; the presence penalty does not."""
    *_, frequency, _, _ = rest
    return subtracted(logits, prompt, output, frequency * held(prompt, logits).sum(axis=1), rest)


def held(text: Array, logits: Array) -> Array:
    """(b l i): which token of the vocabulary is at which place."""
    return text[:, :, None] == np.arange(logits.shape[1])


def subtracted(logits: Array, prompt: Array, output: Array, more: Array, rest: tuple[Any, ...]) -> Array:
    """Processed with something more subtracted, after the repetition penalty as the other counts."""
    *rules, repetition, presence, frequency, least, eos = rest
    seen = held(prompt, logits).any(axis=1) | held(output, logits).any(axis=1)
    scaled = np.where(seen, np.where(logits > 0, logits / repetition, logits * repetition), logits) - more
    return process(scaled, np.full_like(prompt, -1), output, *rules, 1.0, presence, frequency, least, eos)


def minimum_counts_the_prompt(logits: Array, prompt: Array, output: Array, *rest: Any) -> Array:
    """The minimum of tokens before an end counts those of the prompt too."""
    *others, least, eos = rest
    rows = []
    for b, count in enumerate((prompt >= 0).sum(axis=1)):
        one = slice(b, b + 1)
        rows.append(process(logits[one], prompt[one], output[one], *others, max(least - int(count), 0), eos))
    return np.concatenate(rows)


FAULTS: tuple[Wrong, ...] = (
    (overlap_is_not_found, "draft.lookup", "INDEX"),
    (suffix_ends_in_the_padding, "draft.lookup", "PAD-LEAK"),
    (goes_round, "draft.lookup", "INDEX"),
    (repeats_the_last, "draft.lookup", "INDEX"),
    (takes_the_other_occurrence, "draft.lookup", "VARIANT"),
    (presence_of_the_prompt, "acceptance.process", "P-MISMATCH"),
    (frequency_of_the_prompt, "acceptance.process", "P-MISMATCH"),
    (minimum_counts_the_prompt, "acceptance.process", "STOP"),
)
"""Each with its operation and its bug class."""


def adapter() -> Adapter:
    return adapter_of("texts", FAULTS)
