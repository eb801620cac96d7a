"""A state that holds several arrays in a row along one axis: which of them an index belongs to, and where in it."""

from collections.abc import Iterator, Mapping
from math import prod

import numpy as np

from ssmspec_ref.shapes import Array

NAMES = {"pn+f+rn+p": ("the state matrix", "the angles", "the last key", "the last value")}
"""The pieces along an axis, which is named by their shapes: those of Mamba-3 (`ssmspec_ref.mamba3.Pieces`)."""


def pieces(axis: str, sizes: Mapping[str, int]) -> Iterator[tuple[str, str, int, int]]:
    """The name of each piece, its own axes, and where it begins and ends; none for an axis of one piece, or without sizes."""
    begin = 0
    for name, own in zip(NAMES.get(axis, ()) if sizes else (), axis.split("+"), strict=False):
        end = begin + prod(sizes[letter] for letter in own)
        yield name, own, begin, end
        begin = end


def piece_at(axis: str, at: int, sizes: Mapping[str, int]) -> tuple[str, dict[str, int]]:
    """The piece that an index belongs to, and its position there; "" and the index itself for an axis of one piece."""
    for name, own, begin, end in pieces(axis, sizes):
        if begin <= at < end:
            inside = np.unravel_index(at - begin, [sizes[letter] for letter in own])
            return name, dict(zip(own, map(int, inside), strict=True))
    return "", {axis: at}


def touched_pieces(axis: str, touched: Array, sizes: Mapping[str, int]) -> str:
    """The pieces that have some of the indices, with how many of theirs."""
    told = []
    for name, _, begin, end in pieces(axis, sizes):
        if count := int(np.sum((touched >= begin) & (touched < end))):
            told.append(name if count == end - begin else f"{name} ({count} of {end - begin} numbers)")
    return ", ".join(told)
