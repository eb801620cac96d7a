"""Dead tokens that reach the state, or the taps of a convolution."""

from functools import partial

import numpy as np

from ssmspec_ref.shapes import Array

from ...suite.specification import Arguments
from ..leaves import changed
from .named import Made, Named, Of


def masks(named: Named, of: Of) -> Made:
    """Each such mistake that the inputs allow."""
    if {"u", "live", "M"} <= named.keys():
        yield "inputs of dead tokens were 0 among the taps, and not left out", of(_zeros_among_taps)
    if {"live"} <= named.keys():
        yield "the first tokens of a row were live, as many as live marks, whatever their places", of(_first_ones_live)
    if {"live", "g", "beta"} <= named.keys() or {"live", "x", "B"} <= named.keys():
        yield "dead tokens decayed the state, and added nothing to it", of(_dead_decay)
    if {"live", "g", "beta"} <= named.keys():
        yield "dead tokens were added to the state, and did not decay it", of(_dead_added)


def _zeros_among_taps(arguments: Arguments, named: Named) -> Arguments:
    live = named["live"].value[..., None]
    return changed(arguments, (named["u"], lambda a: np.where(live, a, 0.0)), (named["live"], np.ones_like))


def _first_ones_live(arguments: Arguments, named: Named) -> Arguments:
    return changed(arguments, (named["live"], lambda a: np.arange(a.shape[1]) < a.sum(axis=1)[:, None]))


def _dead_decay(arguments: Arguments, named: Named) -> Arguments:
    """Every token is live; those that were dead read nothing and add nothing."""
    live = named["live"].value
    none = [(named[name], partial(_only_at, live)) for name in ("beta", "x", "B", "C", "q", "k") if name in named]
    return changed(arguments, (named["live"], np.ones_like), *none)


def _dead_added(arguments: Arguments, named: Named) -> Arguments:
    live = named["live"].value
    return changed(arguments, (named["live"], np.ones_like), (named["g"], partial(_only_at, live)))


def _only_at(live: Array, a: Array) -> Array:
    return np.where(live.reshape(*live.shape, *(1,) * (a.ndim - 2)), a, 0.0)
