"""Where an output is wrong: its first wrong element with both values, and the wrong positions along each axis."""

from collections.abc import Mapping

import numpy as np

from ssmspec_ref.shapes import Array

from .leaves import WORDS
from .observe import Observation, judged
from .pieces import NAMES, piece_at, touched_pieces

SHOWN = 6
"""Positions to list one by one."""


def ordinal(number: int) -> str:
    """2nd, 3rd, 4th; 11th, 21st"""
    last = 0 if number // 10 % 10 == 1 else number % 10
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(last, 'th') }"


def place(axes: str, index: tuple[int, ...], sizes: Mapping[str, int] | None = None) -> str:
    """row 1, token 3, head 0, channel 2; with the sizes of the case, an axis of several pieces as the angles (angle 1)"""
    return (
        ", ".join(_along(letter, at, sizes or {}) for letter, at in zip(axes.split(), index, strict=True)) or "its only value"
    )


def _along(letter: str, at: int, sizes: Mapping[str, int]) -> str:
    name, inside = piece_at(letter, at, sizes)
    told = ", ".join(f"{word(axis)} {index}" for axis, index in inside.items())
    return f"{name} ({told})" if name else told


def word(letter: str, many: bool = False) -> str:
    said = WORDS.get(letter, f"index {letter}" if letter else "index")
    if not many:
        return said
    return "entries" if said == "entry" else f"{said}s"


COUNTED: dict[str, dict[str, tuple[str, str]]] = {
    "j": {"life": ("step", "steps"), "layer": ("later token", "later tokens"), "generate": ("word", "words")}
}
"""What a size counts in one group of operations, by axis; the size j counts windows in all others."""
WINDOW = {"j": ("window", "windows")}


def size_word(operation: str, axis: str, many: bool = False) -> str:
    """What a size of a case counts."""
    told = COUNTED.get(axis, {}).get(operation.partition(".")[0], WINDOW.get(axis))
    return told[many] if told else word(axis, many)


def extent(observation: Observation, number: int) -> str:
    """The wrong positions of an output, by axis; "everywhere" if all are wrong."""
    want, wrong = observation.expected[number], observation.wrong(number)
    counts = judged(want)
    if wrong.sum() == counts.sum():
        return "everywhere"
    told = []
    for axis, letter in enumerate(want.axes.split()):
        others = tuple(other for other in range(wrong.ndim) if other != axis)
        touched, possible = wrong.any(axis=others), counts.any(axis=others)
        if wrong.shape[axis] == 1 or (touched == possible).all():
            continue
        if letter in NAMES:
            told.append(touched_pieces(letter, np.flatnonzero(touched), observation.case.sizes))
            continue
        told.append(_places(letter, np.flatnonzero(touched), np.flatnonzero(possible)))
    share = f"{int(wrong.sum())} of {int(counts.sum())} values"
    return f"{', '.join(told)} ({share})" if told else f"{share}, in no whole row, token, head or channel"


def around(wrong: Array) -> Array:
    """The elements whose index along every axis occurs among the wrong ones."""
    every = range(wrong.ndim)
    touched = [np.flatnonzero(wrong.any(axis=tuple(other for other in every if other != axis))) for axis in every]
    made = np.zeros_like(wrong)
    made[np.ix_(*touched)] = True
    return made


def _places(letter: str, touched: Array, possible: Array) -> str:
    """The wrong indices of one axis in words."""
    one, many, last = word(letter), word(letter, True), int(possible[-1])
    if len(touched) == 1:
        at = int(touched[0])
        which = " (the last)" if at == last else " (the first)" if at == possible[0] else ""
        return f"only {one} {at}{which}"
    steps = np.unique(np.diff(touched))
    if len(steps) == 1 and steps[0] == 1:
        if touched[-1] == last:
            return f"{many} from {touched[0]} on"
        if touched[0] == possible[0]:
            return f"{many} up to {touched[-1]}"
        return f"{many} {touched[0]} to {touched[-1]}"
    if len(steps) == 1 and len(touched) > 2:
        kind = {2: "even" if touched[0] % 2 == 0 else "odd"}.get(int(steps[0]))
        return f"only {kind} {many}" if kind else f"every {ordinal(int(steps[0]))} {one}, from {touched[0]} on"
    runs = np.split(touched, np.flatnonzero(np.diff(touched) > 1) + 1)
    told = [str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs]
    return f"{many} {', '.join(told[:SHOWN])}" + (", .." if len(told) > SHOWN else "")
