"""Windows of a convolution that have no oldest column.

M holds the last w inputs, but the next input pushes the oldest of them out: engines that keep w - 1 columns (mlx-lm,
llama.cpp) have all that decides what follows. What they return is compared as it is.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..suite.expected import Expected


def as_kept(expected: Sequence[Expected], outputs: Sequence[Any]) -> list[Expected]:
    """The expected outputs, a window of the convolution without its oldest column where the implementation returned one."""
    return [_last(want) if _lacks_one(want, came) else want for want, came in zip(expected, outputs, strict=False)]


def _lacks_one(want: Expected, came: Any) -> bool:
    of_a_window = want.state and not want.recurrent and want.axes.endswith("c w")
    *others, columns = want.value.shape
    return of_a_window and isinstance(came, np.ndarray) and came.shape == (*others, columns - 1)


def _last(want: Expected) -> Expected:
    judged = None if want.judged is None else np.broadcast_to(want.judged, want.value.shape)[..., 1:]
    return replace(want, value=want.value[..., 1:], bound=want.bound[..., 1:], judged=judged)
