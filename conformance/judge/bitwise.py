"""Laws of bits: a capability that declares one must give the same bits in another call that computes the same numbers.

    rerun   the same inputs again
    rows    each row alone, each packed sequence alone, and every row in a batch twice as large
    slots   each row in the slot of the next one
    split   the first tokens in one call, the others in the next, from the state that the first left

Cases whose states are in a pool have no rows to take out of it: they are run again only. A window of a convolution that comes
without its oldest column cannot begin the second call of a split.

No bound is used: elements are equal if their bytes are. Elements that are not compared with the reference are not compared
here.
"""

from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from typing import Any

import numpy as np

from ssmspec_ref.records import each
from ssmspec_ref.records import rows as rows_of
from ssmspec_ref.shapes import Array
from ssmspec_ref.slots import Pool

from ..suite.called import Arguments, weights
from ..suite.expected import Expected
from .columns import as_kept

Call = Callable[[Arguments], tuple[Any, ...] | None]
"""The outputs of one call, None if it gave none."""
Pair = tuple[str, int, Array, Array]
"""What was done, the number of an output, and the elements that must be equal: those of the other call, and of the first."""
MOST = 4
"""Rows that are run alone."""
SPLIT = (".scan", ".scan_masked")
"""Operations whose tokens may come in two calls."""


def broken(
    law: str, operation: str, call: Call, arguments: Arguments, first: tuple[Any, ...], expected: list[Expected]
) -> str:
    """What differs in the first call that breaks a law; "" if none does."""
    if law != "rerun" and isinstance(arguments[0], Pool):
        return ""
    expected = as_kept(expected, first)
    if law == "split" and "w" in expected[-1].axes and expected[-1].value.shape != arguments[0].shape:
        return ""
    masks = [np.broadcast_to(np.True_ if e.judged is None else e.judged, e.value.shape) for e in expected]
    first = tuple(np.where(mask, came, 0) for mask, came in zip(masks, first, strict=True))
    for said, number, came, held in LAWS[law](operation, call, arguments, first, masks):
        if came.shape != held.shape or came.dtype != held.dtype:
            return f"{said} gives {expected[number].name} as {came.dtype} {came.shape}, not {held.dtype} {held.shape}"
        width = came.dtype.itemsize
        bits = (np.frombuffer(np.ascontiguousarray(x).tobytes(), dtype=np.uint8).reshape(-1, width) for x in (came, held))
        apart = np.flatnonzero(np.not_equal(*bits).any(axis=1))
        if len(apart):
            at = np.unravel_index(apart[0], came.shape)
            pair = f"{came[at]!r} and {held[at]!r}" if came.size else ""
            told = f"declared bitwise ({law}), but {said} gives other bits of {expected[number].name}"
            return f"{told}: {len(apart)} of {came.size} elements, such as {pair}"
    return ""


def rerun(operation: str, call: Call, arguments: Arguments, first: tuple[Array, ...], masks: list[Array]) -> Iterator[Pair]:
    came = call(arguments)
    yield from _pairs("a second run", came, first, masks)


def rows(operation: str, call: Call, arguments: Arguments, first: tuple[Array, ...], masks: list[Array]) -> Iterator[Pair]:
    if operation.endswith("_packed"):
        yield from _sequences(call, arguments, first)
        return
    count = len(first[0])
    for b in range(min(count, MOST)) if count > 1 else ():
        came = call(taken(arguments, np.array([b])))
        yield from _pairs(f"row {b} alone", came, tuple(a[b : b + 1] for a in first), [m[b : b + 1] for m in masks])
    twice = np.arange(2 * count) % count
    came = call(taken(arguments, twice))
    yield from _pairs("a batch of all rows twice", came, tuple(a[twice] for a in first), [m[twice] for m in masks])


def slots(operation: str, call: Call, arguments: Arguments, first: tuple[Array, ...], masks: list[Array]) -> Iterator[Pair]:
    if operation.endswith("_packed"):
        return
    turned = np.roll(np.arange(len(first[0])), 1)
    came = call(taken(arguments, turned))
    yield from _pairs("another order of the rows", came, tuple(a[turned] for a in first), [m[turned] for m in masks])


def split(operation: str, call: Call, arguments: Arguments, first: tuple[Array, ...], masks: list[Array]) -> Iterator[Pair]:
    tokens = first[0].shape[1] if operation.endswith(SPLIT) else 0
    for middle in sorted({1, tokens // 2, tokens - 1} - {0}) if tokens > 1 else ():
        begin = call(_tokens(arguments, slice(None, middle)))
        came = None if begin is None else call((begin[-1].astype(np.float64), *_tokens(arguments, slice(middle, None))[1:]))
        whole = None if begin is None or came is None else (np.concatenate([begin[0], came[0]], axis=1), came[1])
        yield from _pairs(f"a split after {middle} tokens", whole, first, masks)


LAWS = {"rerun": rerun, "rows": rows, "slots": slots, "split": split}


def taken(value: Any, index: Array) -> Any:
    """Arguments with the rows `index`; weights and single numbers are the same for all rows."""
    if isinstance(value, tuple):
        return tuple(taken(part, index) for part in value)
    return value if _shared(value) else rows_of(value, index)


def _shared(value: Any) -> bool:
    return weights(value) or not (isinstance(value, np.ndarray) or is_dataclass(value))


def _tokens(arguments: Arguments, cut: slice) -> Arguments:
    """The state, and the tokens of a slice."""
    state, *others = arguments
    return (state, *(a if _shared(a) else each(lambda x: x[:, cut], a) for a in others))


def _sequences(call: Call, arguments: Arguments, first: tuple[Array, ...]) -> Iterator[Pair]:
    S, run, bounds, fresh, params = arguments
    alone = [b for b in range(len(S)) if bounds[b] < bounds[b + 1]]
    for b in alone[:MOST] if len(S) > 1 else ():
        begin, end = int(bounds[b]), int(bounds[b + 1])
        one = each(lambda a, begin=begin, end=end: a[:, begin:end], run)
        came = call((S[b : b + 1], one, np.array([0, end - begin]), fresh[b : b + 1], params))
        held = first[0][:, begin:end], first[1][b : b + 1]
        yield from _pairs(f"sequence {b} alone", came, held, [np.ones(a.shape, dtype=bool) for a in held])


def _pairs(said: str, came: tuple[Any, ...] | None, first: tuple[Array, ...], masks: list[Array]) -> Iterator[Pair]:
    """Each output of a call beside that of the first; a call without outputs gives empty ones."""
    came = came or tuple(np.empty(0) for _ in first)
    for number, (one, held, mask) in enumerate(zip(came, first, masks, strict=True)):
        yield said, number, np.where(mask, one, 0) if one.shape == held.shape else one, held
