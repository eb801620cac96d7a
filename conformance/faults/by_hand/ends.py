"""Runs that do not end at an end of sequence, and windows that keep the first inputs instead of the last."""

import numpy as np

from ssmspec_ref.shapes import Array

from ...mistakes.mistake import before
from ..fault import planted


def ended_by_the_last(emitted: Array, advanced: Array, ended: Array, eos: tuple[int, ...]) -> Array:
    last = emitted[np.arange(len(emitted)), np.maximum(advanced - 1, 0)]
    return ended | ((advanced > 0) & np.isin(last, eos))


FAULTS = planted(
    *(
        (before(name, says, eos=()).after(ended=ended_by_the_last), operation, "STOP")
        for name, says, operation in (
            (
                "only_the_last_can_end",
                "Only the last emitted token is compared with the end of sequence: one inside the run does not end it.",
                "acceptance.greedy",
            ),
            (
                "only_the_last_drawn_can_end",
                "Only the last emitted token is compared with the end of sequence: one inside the sampled run does not end "
                "it.",
                "acceptance.sampled",
            ),
        )
    ),
    (
        before(
            "first_inputs_are_kept",
            "If more inputs are accepted than the window has columns, it keeps the first of them and not the last.",
            advanced=lambda advanced, M: np.minimum(advanced, M.shape[2]),
        ),
        "conv.commit",
        "CONV",
    ),
)
