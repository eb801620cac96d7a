"""Dead tokens that reach the state, or the taps of a convolution."""

import numpy as np

from ...mistakes.operators import live_only, one
from .named import Made, Named, Of

READ = ("beta", "x", "B", "C", "q", "k")
"""What a token reads and adds."""


def masks(named: Named, of: Of) -> Made:
    """Each such mistake that the inputs allow."""
    if {"u", "live", "M"} <= named.keys():
        yield "inputs of dead tokens were 0 among the taps, and not left out", of(u=live_only, live=one)
    if {"live"} <= named.keys():
        says = "the first tokens of a row were live, as many as live marks, whatever their places"
        yield says, of(live=lambda live: np.arange(live.shape[1]) < live.sum(axis=1)[:, None])
    if {"live", "g", "beta"} <= named.keys() or {"live", "x", "B"} <= named.keys():
        says = "dead tokens decayed the state, and added nothing to it"
        yield says, of(live=one, **dict.fromkeys(READ, live_only))
    if {"live", "g", "beta"} <= named.keys():
        yield "dead tokens were added to the state, and did not decay it", of(live=one, g=live_only)
