"""Lower limits from bytes, products and launches: a figure of the table with (1) instead of our times.

    least = max(bytes / copy, products / bf16 peak) + launches x empty launch                                  (1)

Bytes are those recorded with the time, or follow from the shapes (`launch_traffic`). Copy bandwidth and the empty launch are
those of the same part; the peak is from the data sheet (`gates.toml`). Only attention's products are counted. In a ratio of
our own times both sides are replaced, so a measured ratio can pass its floor if its denominator is slower than a copy; a
peer's time stays as it was measured.
"""

from dataclasses import dataclass

from ..static.launch_traffic import bytes_of, products_of
from . import gates
from .measured import At, Results


def copy_us(results: Results, at: At) -> float:
    """The time of the bytes at copy bandwidth. Raises: Missing."""
    counted = results.timing(at)["bytes"] or bytes_of(at)
    return float(counted / results.parts[at.part]["machine"]["copy_bytes_per_us"])


def least_us(results: Results, at: At, launches: int = 1) -> float:
    """(1). Raises: Missing."""
    products = products_of(at) / (gates.load().limits.tflops * 1e6)
    return max(copy_us(results, at), products) + launches * results.launch_us(at.part)


@dataclass(frozen=True)
class Floor:
    """The floor of a ratio of our own times."""

    over: At
    under: At
    launches: int = 1

    def __call__(self, results: Results) -> float:
        return least_us(results, self.over, self.launches) / least_us(results, self.under, self.launches)


@dataclass(frozen=True)
class FloorOfCopy:
    """The most that `OfCopy` can reach with a number of launches."""

    at: At
    launches: int = 1

    def __call__(self, results: Results) -> float:
        return copy_us(results, self.at) / least_us(results, self.at, self.launches)


@dataclass(frozen=True)
class FloorOfPeer:
    """The floor of our time over a peer's, which stays as it was measured."""

    ours: At
    theirs: At

    def __call__(self, results: Results) -> float:
        return least_us(results, self.ours) / results.us(self.theirs)
