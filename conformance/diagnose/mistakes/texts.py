"""Prompts, outputs and logits that are counted or divided otherwise."""

import numpy as np

from ...suite.specification import Arguments
from ..leaves import changed
from .named import Made, Named, Of


def texts(named: Named, of: Of) -> Made:
    """Each such mistake that the inputs allow."""
    if {"logits", "temperature"} <= named.keys() and np.all(np.asarray(named["temperature"].value) > 0):
        yield "the logits were divided by the temperature before the penalties, and not after them", of(_cooled_first)
    if {"prompt", "output"} <= named.keys():
        yield "the prompt were part of the output", of(_prompt_put_out)


def _cooled_first(arguments: Arguments, named: Named) -> Arguments:
    T = np.asarray(named["temperature"].value)
    by = T if T.ndim == 0 else T.reshape(-1, *(1,) * (named["logits"].value.ndim - 1))
    return changed(arguments, (named["logits"], lambda a: a / by), (named["temperature"], lambda v: v / v))


def _prompt_put_out(arguments: Arguments, named: Named) -> Arguments:
    prompt = named["prompt"].value
    return changed(arguments, (named["output"], lambda a: np.concatenate([prompt, a], axis=1)))
