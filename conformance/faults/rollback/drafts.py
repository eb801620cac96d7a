"""Decoders that let drafts into what they must not change: outputs before them, the next run, greedy decoding."""

import numpy as np

from ssmspec_ref.contract import FLOAT64, Adapter, Decoding, TokenWindow
from ssmspec_ref.shapes import Array

from ..decoding.decoders import Right


class LooksAhead(Right):
    """The output at a token depends on the next token too."""

    def verify(self, window: TokenWindow) -> Array:
        y = super().verify(window)
        y[:, :-1] += 1e-3 * y[:, 1:]
        return y


class TrustsDrafts(Right):
    """A drafted token becomes the most likely one after its parent."""

    def verify(self, window: TokenWindow) -> Array:
        y = super().verify(window)
        for row, words in enumerate(window.tokens):
            for node in range(1, len(words)):
                above = node - 1 if window.parents is None else window.parents[row, node]
                if above >= 0 and (window.lengths is None or node < window.lengths[row]):
                    y[row, above, words[node]] = y[row, above].max() + 1.0
        return y


class CountsItsWindows(Right):
    """The output depends on the number of earlier windows, of any sequence."""

    windows = 0

    def verify(self, window: TokenWindow) -> Array:
        CountsItsWindows.windows += 1
        return super().verify(window) * (1 + 2.0**-40 * CountsItsWindows.windows)


class ChainsAtOnce(Right):
    """All outputs of a chain are those after the whole window; trees are correct. Bug class TREE-TOPO."""

    def verify(self, window: TokenWindow) -> Array:
        y = super().verify(window)
        return y if window.parents is not None else np.broadcast_to(y[:, -1:], y.shape).copy()


FAULTS = (LooksAhead, TrustsDrafts, CountsItsWindows, ChainsAtOnce)


def adapter() -> Adapter:
    return Adapter("faulty drafts", "1", decodings=tuple(Decoding(f.__name__, f, FLOAT64, trees=True) for f in FAULTS))
