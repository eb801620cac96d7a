"""Prompts, outputs and logits that are counted or divided otherwise."""

import numpy as np

from ssmspec_ref.shapes import Array

from ...mistakes.operators import of_rows
from .named import Made, Named, Of

TEXTS = {"history", "prompt", "output"}
"""Tokens of each row, after which -1 begins."""


def texts(named: Named, of: Of) -> Made:
    """Each such mistake that the inputs allow."""
    if {"logits", "temperature"} <= named.keys() and np.all(np.asarray(named["temperature"].value) > 0):
        says = "the logits were divided by the temperature before the penalties, and not after them"
        yield says, of(logits=_cooled, temperature=lambda temperature: temperature / temperature)
    for name in sorted(TEXTS & named.keys()):
        if isinstance(text := named[name].value, np.ndarray) and text.ndim == 2 and len(text) > 1:
            yield f"the length of row 0 of {name} counted for every row", of(**{name: _as_long_as_row_0})
    if {"prompt", "output"} <= named.keys():
        says = "the prompt were part of the output"
        yield says, of(output=lambda output, prompt: np.concatenate([prompt, output], axis=1))


def _as_long_as_row_0(own: Array) -> Array:
    """A longer row is cut; a shorter one has no more tokens than before."""
    return np.where(np.arange(own.shape[1]) < (own[0] >= 0).sum(), own, -1)


def _cooled(logits: Array, temperature: float | Array) -> Array:
    T = np.asarray(temperature)
    return logits / (T if T.ndim == 0 else of_rows(T, logits))
