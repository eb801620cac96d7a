"""Which differences from plain decoding are rounding: judged at the first differing token of a text, by float64.

With l the float64 logits of the prefix that both runs share, and l' those of a forward in the model's own type:

    greedy    |l_a - l_b| <= 2 max |l' - l|                                            (1)
    sampled   u lies within 2 max |P' - P| of the intervals of a and of b in P         (2)

P is the running sum of the probabilities at temperature T, and u the random number of the position: token i is drawn when u
lies in its interval. The rule `naive` draws like plain decoding, so (2) applies to it. The rules that divide by the draft's
distribution draw other tokens with the same law, which `tests/fast/test_accept_laws.py` holds as fractions: for them nothing
is compared.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .texts import Text
from .ways import SEED, engine

PICK = 1
"""The stream of random numbers of emitted tokens (`ssmspec_fast.accept.noise`)."""


class Judge:
    """Judges differences of texts from their `wanted` outputs, with a folder's weights in `dtype`."""

    def __init__(self, folder: Path, device: str, dtype: torch.dtype, texts: Sequence[Text]) -> None:
        exact = engine("engine.traces", "Exact")
        self.forwards = exact(folder, device), exact(folder, device, dtype=dtype)
        self.texts, self.known = texts, dict[Any, tuple[np.ndarray, np.ndarray]]()

    def logits(self, n: int, wanted: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Of each token of an output, (n, i): in float64, and in the model's type."""
        key = n, tuple(wanted)
        if key not in self.known:
            one, other = (forward(self.texts[n].prompt, wanted) for forward in self.forwards)
            self.known[key] = one, other
        return self.known[key]

    def distance(self, n: int, got: Sequence[int], wanted: Sequence[int], temperature: float) -> tuple[int, float]:
        """Where a text first differs, and how far the two tokens lie apart, in units of (1) or (2): up to 1 it is rounding. A
        text that only ends earlier is not."""
        at = next((i for i, (a, b) in enumerate(zip(got, wanted, strict=False)) if a != b), None)
        if at is None:
            return min(len(got), len(wanted)), np.inf
        exact, rounded = (logits[at] for logits in self.logits(n, wanted))
        if temperature == 0:
            return at, greedy(exact, rounded, got[at], wanted[at])
        position = len(self.texts[n].prompt) + at
        u = engine("accept.noise", "uniforms")(SEED, torch.tensor([n]), torch.tensor([position]), 0, PICK)
        return at, sampled(exact / temperature, rounded / temperature, got[at], wanted[at], float(u))


def greedy(exact: np.ndarray, rounded: np.ndarray, a: int, b: int) -> float:
    """The distance in (1), over its bound."""
    return over(abs(exact[a] - exact[b]), 2 * np.max(np.abs(rounded - exact)))


def sampled(exact: np.ndarray, rounded: np.ndarray, a: int, b: int, u: float) -> float:
    """The larger distance of (2), over its bound."""
    P, other = (np.cumsum(weights / weights.sum()) for weights in (np.exp(x - x.max()) for x in (exact, rounded)))
    near = 2 * np.max(np.abs(other - P))
    low, high = np.concatenate([[0.0], P[:-1]]), P
    return over(max(0.0, *(float(max(low[i] - u, u - high[i])) for i in (a, b))), near)


def over(distance: float, bound: float) -> float:
    """A distance in units of its bound; of a bound that is no number it is infinite."""
    if not bound >= 0:
        return np.inf
    return float(distance / bound) if bound > 0 else (np.inf if distance > 0 else 0.0)
