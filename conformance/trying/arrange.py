"""Arrays in another order of axes, for the adapters that `ssmspec conform try` writes."""

import numpy as np

from ssmspec_ref.shapes import Array


def laid(a: Array | None, axes: str, **sizes: int) -> Array | None:
    """The array with its axes as "b t d -> b d t" says. None stays None.

    An axis that only the left side has must be of size 1, and is dropped; one that only the right side has is repeated,
    `sizes` gives how often, and `1` is a new axis of size 1. Heads h for groups g repeat each group for its heads; columns q
    for w are a window of a convolution without its oldest column. On the left, `1` is an axis to drop; where the left side is
    "h | h p", the array has the axes of the alternative with as many.

        laid(window.B, "b t g n -> b h n t", h=6)

    Raises: ValueError if an axis to drop is larger than 1, the left side has another number of axes than the array, or the
    size of a new axis is not given.
    """
    if a is None:
        return None
    left, _, right = axes.partition("->")
    after, before = right.split(), next((one.split() for one in left.split("|") if len(one.split()) == a.ndim), None)
    if before is None:
        raise ValueError(f"{axes!r} has no {a.ndim} axes on the left, and the array has the shape {a.shape}")
    if "w" in before and "q" in after:
        a = np.take(a, range(1, a.shape[before.index("w")]), axis=before.index("w"))
        before[before.index("w")] = "q"
    if "g" in before and "h" in after and "h" not in before and "g" not in after:
        place = before.index("g")
        a = np.repeat(a, _size("h", sizes, axes) // a.shape[place], axis=place)
        before[place] = "h"
    for place in reversed(range(len(before))):
        if before[place] == "1" or before[place] not in after:
            if a.shape[place] != 1:
                raise ValueError(f"{axes!r} drops the axis {before[place]!r}, whose size is {a.shape[place]}; it must be 1")
            a = np.squeeze(a, axis=place)
            del before[place]
    a = a.transpose([before.index(axis) for axis in after if axis in before])
    new = [place for place, axis in enumerate(after) if axis not in before]
    shape = [1 if axis == "1" else _size(axis, sizes, axes) if place in new else 0 for place, axis in enumerate(after)]
    a = np.expand_dims(a, tuple(new))
    return np.broadcast_to(a, [have if n == 0 else n for n, have in zip(shape, a.shape, strict=True)])


def _size(axis: str, sizes: dict[str, int], axes: str) -> int:
    if axis not in sizes:
        raise ValueError(f"{axes!r} repeats along {axis!r}; give its size, {axis}=..")
    return sizes[axis]
