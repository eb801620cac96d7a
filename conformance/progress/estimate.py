"""An estimate of the remaining time of a run."""

import time

FEW = 3
"""Parts to finish before the remaining time is estimated."""


def left(began: float, done: int, count: int, few: int = FEW) -> str:
    """What to print when `done` of `count` parts have ended since `began`; "" until there are `few`, and at the end."""
    if done < few or done == count:
        return ""
    seconds = (time.monotonic() - began) / done * (count - done)
    return f"  about {seconds / 60:.0f} min left" if seconds > 90 else f"  about {seconds:.0f} s left"
