"""Times that no H200 can take: below the bytes at the data sheet's bandwidth, or the products at its peak.

    us >= max(bytes / 4.8 TB/s, products / 989 TFLOP/s)        (1)

A time below (1) is a measurement error, never a fast kernel.
"""

from collections.abc import Iterator

from ..static.launch_traffic import bytes_of, products_of
from ..verdicts.gates import Limits
from ..verdicts.measured import At, Missing, Results


def least_us(results: Results, at: At, limits: Limits) -> float:
    """(1). 0 if the traffic is unknown. Raises: Missing."""
    timing = results.timing(at)
    counted = timing.get("bytes", 0)
    if not counted:
        try:
            counted = bytes_of(at)
        except Missing:
            counted = 0
    products = timing.get("products", 0) or products_of(at)
    return max(float(counted) / (limits.bandwidth_tb_s * 1e6), float(products) / (limits.tflops * 1e6))


def impossible(results: Results, at: At, limits: Limits) -> Iterator[str]:
    """Why a time is impossible. NaN is impossible."""
    us, least = results.us(at), least_us(results, at, limits)
    if not us >= least or not us > 0:
        yield (
            f"{at.operation} of {at.shape} at {at.batch} took {us:.2f} us in {at.part}, where its bytes and products take "
            f"{least:.2f} at the least"
        )


def every(results: Results, limits: Limits) -> Iterator[str]:
    """Impossible times among all that a run timed; results that are only compared hold no time."""
    for at in results.timings:
        if at.part != "equality":
            yield from impossible(results, at, limits)
