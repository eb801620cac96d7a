"""Prompts, outputs and logits that are counted or divided otherwise."""

from functools import partial

import numpy as np

from ssmspec_ref.shapes import Array

from ...suite.specification import Arguments
from ..leaves import changed
from .named import Made, Named, Of

TEXTS = {"history", "prompt", "output"}
"""Tokens of each row, after which -1 begins."""


def texts(named: Named, of: Of) -> Made:
    """Each such mistake that the inputs allow."""
    if {"logits", "temperature"} <= named.keys() and np.all(np.asarray(named["temperature"].value) > 0):
        yield "the logits were divided by the temperature before the penalties, and not after them", of(_cooled_first)
    for name in sorted(TEXTS & named.keys()):
        if isinstance(text := named[name].value, np.ndarray) and text.ndim == 2 and len(text) > 1:
            yield f"the length of row 0 of {name} counted for every row", of(partial(_as_long_as_row_0, name))
    if {"prompt", "output"} <= named.keys():
        yield "the prompt were part of the output", of(_prompt_put_out)


def _as_long_as_row_0(name: str, arguments: Arguments, named: Named) -> Arguments:
    """A longer row is cut; a shorter one has no more tokens than before."""

    def cut(a: Array) -> Array:
        return np.where(np.arange(a.shape[1]) < (a[0] >= 0).sum(), a, -1)

    return changed(arguments, (named[name], cut))


def _cooled_first(arguments: Arguments, named: Named) -> Arguments:
    T = np.asarray(named["temperature"].value)
    by = T if T.ndim == 0 else T.reshape(-1, *(1,) * (named["logits"].value.ndim - 1))
    return changed(arguments, (named["logits"], lambda a: a / by), (named["temperature"], lambda v: v / v))


def _prompt_put_out(arguments: Arguments, named: Named) -> Arguments:
    prompt = named["prompt"].value
    return changed(arguments, (named["output"], lambda a: np.concatenate([prompt, a], axis=1)))
