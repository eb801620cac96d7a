"""What bytes, products and launches allow: a figure of the table with (1) in the place of our times.

    least = max(bytes / copy, products / bf16 peak) + launches x empty launch                                  (1)

Bytes are those that were written down with the time, or follow from the shapes (`moved`). Copy bandwidth and the empty launch
are those of the part that the time is of; the peak is that of the data sheet (`gates.toml`). Only attention's products are
counted. Both sides of a ratio of ours are replaced, so that it can pass its floor where what it divides by is not at the rate
of a copy; a peer's time stays as it was measured.
"""

from dataclasses import dataclass

from . import gates
from .measured import At, Results
from .moved import bytes_of, products_of


def copy_us(results: Results, at: At) -> float:
    """What copy bandwidth makes of the bytes. Raises: Missing."""
    counted = results.timing(at)["bytes"] or bytes_of(at)
    return float(counted / results.parts[at.part]["machine"]["copy_bytes_per_us"])


def least_us(results: Results, at: At, launches: int = 1) -> float:
    """(1). Raises: Missing."""
    products = products_of(at) / (gates.load().limits.tflops * 1e6)
    return max(copy_us(results, at), products) + launches * results.launch_us(at.part)


@dataclass(frozen=True)
class Floor:
    """Of a ratio of times of ours."""

    over: At
    under: At
    launches: int = 1

    def __call__(self, results: Results) -> float:
        return least_us(results, self.over, self.launches) / least_us(results, self.under, self.launches)


@dataclass(frozen=True)
class FloorOfCopy:
    """The most that `OfCopy` can be behind so many launches."""

    at: At
    launches: int = 1

    def __call__(self, results: Results) -> float:
        return copy_us(results, self.at) / least_us(results, self.at, self.launches)


@dataclass(frozen=True)
class FloorOfPeer:
    """Of a time of ours over a peer's, which is as it was measured."""

    ours: At
    theirs: At

    def __call__(self, results: Results) -> float:
        return least_us(results, self.ours) / results.us(self.theirs)
