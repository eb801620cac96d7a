"""Other tokens of a window taken for the accepted ones: by the whole layer, or by its convolution or its recurrence alone."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ssmspec_ref.layers import mixer
from ssmspec_ref.layers.mixer import MixerState
from ssmspec_ref.records import along, rows
from ssmspec_ref.shapes import Array, Path

from ...mistakes.operators import at_least, without_the_root
from ...suite.called import Arguments
from ...suite.expected import Expected
from ...suite.recurrences.paths import behind, ends, paths
from .named import EACH, Made, Named, Of

ACCEPTED: dict[str, Callable[[int, int], int]] = {
    "one token fewer were accepted": lambda advanced, tokens: max(advanced - 1, 0),
    "one token more were accepted": lambda advanced, tokens: min(advanced + 1, tokens) if advanced else 0,
    "one token more were accepted, in rows with advanced = 0 too": lambda advanced, tokens: min(advanced + 1, tokens),
    "a window that is accepted whole counted one token fewer": lambda advanced, tokens: advanced - (advanced == tokens > 0),
    "a window that is accepted whole counted nothing": lambda advanced, tokens: advanced * (advanced < tokens),
    "a window that is accepted in part counted one token fewer": lambda advanced, tokens: max(
        advanced - (advanced < tokens), 0
    ),
    "every token of a window were accepted": lambda advanced, tokens: tokens if advanced else 0,
    "every token of a window were accepted, in rows with advanced = 0 too": lambda advanced, tokens: tokens,
    "only the root were accepted": lambda advanced, tokens: min(advanced, 1),
    "nothing were accepted": lambda advanced, tokens: 0,
    "a row with advanced = 0 accepted its root": lambda advanced, tokens: max(advanced, 1),
    "a row with advanced = 0 accepted every token": lambda advanced, tokens: advanced or tokens,
}
"""Other counts of accepted tokens; for a chain, whose path is its tokens in order."""
PARTS = {"M": "the window of the convolution", "S": "the recurrent state"}


def accepted(named: Named, of: Of) -> Made:
    """Each such mistake that the inputs allow."""
    if {"path"} <= named.keys():
        yield "entries of the path that are 0, the root, were taken for padding", of(path=without_the_root)
    if {"u", "advanced"} <= named.keys() and not {"M", "states"}.isdisjoint(named):
        says = "the first w of the accepted tokens counted, where more are accepted than the window has columns"
        yield says, of(advanced=lambda advanced, M, states: np.minimum(advanced, (states if M is None else M).shape[-1]))
        yield "a row with advanced = 0 accepted its root", of(advanced=at_least(1))
    if not {"path", "advanced"} <= named.keys() or EACH not in named["path"].path:
        return
    for says, take in WAYS.items():
        yield says, of(path=take)
    if {"pre", "M", "S"} <= named.keys():
        for part, words in PARTS.items():
            for says, take in WAYS.items():
                yield f"{says}, for {words} alone", Commits(part, take)


def _counted(take: Callable[[int, int], int], path: Path) -> Path:
    """The first tokens of each path, or the next ones of the window, as many as `take` says."""
    made = np.full_like(path, -1)
    for b, row in enumerate(path):
        own = row[row >= 0]
        length = take(len(own), len(row))
        more = [n for n in range(len(row)) if n not in own]
        made[b, :length] = [*own, *more][:length]
    return made


def _first_ones(path: Path) -> Path:
    return np.where(path >= 0, np.arange(path.shape[1]), path)


def _reversed(path: Path) -> Path:
    return np.stack([[*row[row >= 0][::-1], *row[row < 0]] for row in path])


WAYS: dict[str, Callable[[Path], Path]] = {
    **{says: partial(_counted, take) for says, take in ACCEPTED.items()},
    "the first tokens of the window were accepted, whatever the path": _first_ones,
    "accepted tokens were replayed from the last to the first": _reversed,
}
"""The tokens that are taken for the accepted ones."""


@dataclass(frozen=True)
class Commits:
    """Windows of a layer after which M, or S, takes other tokens for the accepted ones than the other does: the inputs stay,
    and the outputs are those of such a layer, window by window."""

    part: str
    take: Callable[[Path], Path]

    def __call__(self, arguments: Arguments) -> Arguments:
        return arguments

    def added(self, arguments: Arguments, made: list[Expected]) -> list[Expected]:
        """The outputs of such a layer, with the bounds of the right one."""
        layer, state, rounds, *_ = arguments
        values: dict[str, Array] = {}
        for number, each in enumerate(rounds):
            values[f"y of window {number}"] = _outputs(layer, state, each)
            taken = {part: self.take(each.path) if part == self.part else each.path for part in PARTS}
            after = {part: mixer.scan(state, along(each.inputs, path), layer, path >= 0)[1] for part, path in taken.items()}
            state = MixerState(after["M"].M, after["S"].S)
            values |= {f"{part} after window {number}": getattr(state, part) for part in PARTS}
        return [replace(want, value=values[want.name]) for want in made]


def _outputs(layer: Any, state: MixerState, window: Any) -> Array:
    """y at every node of a window, each at the end of its own path."""
    count, tokens = window.path.shape
    ancestors = behind(np.zeros((count, 0), dtype=bool), window.parents, tokens)
    row, path = paths(ancestors, tokens)
    live = path >= 0
    return ends(mixer.scan(rows(state, row), along(rows(window.inputs, row), path), layer, live)[0], live, tokens)
