"""Runs that do not end at an end of sequence, and windows that keep the first inputs instead of the last."""

from typing import Any

import numpy as np

from ssmspec_ref import conv
from ssmspec_ref.contract import Adapter
from ssmspec_ref.shapes import Array

from ...adapters.reference_parts.acceptance import Runs, accept_greedy, accept_sampled
from ..single import Wrong, adapter_of


def only_the_last_can_end(tokens: Array, parents: Array, choice: Array, budget: Array, eos: tuple[int, ...]) -> Runs:
    """Only the last emitted token is compared with the end of sequence: one inside the run does not end it."""
    return ended_by_the_last(accept_greedy(tokens, parents, choice, budget, ()), eos)


def only_the_last_drawn_can_end(tokens: Array, parents: Array, p: Array, q: Array, *rest: Any) -> Runs:
    """Only the last emitted token is compared with the end of sequence: one inside the sampled run does not end it."""
    coins, picks, budget, eos, law = rest
    return ended_by_the_last(accept_sampled(tokens, parents, p, q, coins, picks, budget, (), law), eos)


def ended_by_the_last(runs: Runs, eos: tuple[int, ...]) -> Runs:
    emitted, path, advanced, ended = runs
    last = emitted[np.arange(len(emitted)), np.maximum(advanced - 1, 0)]
    return emitted, path, advanced, ended | ((advanced > 0) & np.isin(last, eos))


def first_inputs_are_kept(M: Array, u: Array, advanced: Array) -> Array:
    """If more inputs are accepted than the window has columns, it keeps the first of them and not the last."""
    return conv.commit(M, u, np.minimum(advanced, M.shape[2]))


FAULTS: tuple[Wrong, ...] = (
    (only_the_last_can_end, "acceptance.greedy", "STOP"),
    (only_the_last_drawn_can_end, "acceptance.sampled", "STOP"),
    (first_inputs_are_kept, "conv.commit", "CONV"),
)
"""Each with its operation and its bug class."""


def adapter() -> Adapter:
    return adapter_of("ends of runs", FAULTS)
