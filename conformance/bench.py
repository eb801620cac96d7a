"""Where an implementation is called: in this process, or by a worker in its own (`process`). What came back is plain data.

A call hands over copies of the inputs, either in new arrays or in those of the call before, and notes whether they were
written. Before it, memory of the sizes of the inputs is filled with NaN and freed, so that an output which is allocated and
not written holds no earlier result.
"""

import copy
import dataclasses
import hashlib
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Protocol

import numpy as np

from ssmspec_ref.contract import Capability
from ssmspec_ref.records import each
from ssmspec_ref.shapes import Array

from .errors import ConformanceError
from .suite.specification import Arguments, Came, Specification

PLAIN = "biufc"
"""Kinds of NumPy arrays that are numbers."""
GAPS = 10
"""Widths of gaps between elements: as many as a call has arrays, so that no two have the same strides. Only calls of several
windows have more arrays; those of one window still differ."""


@dataclass(frozen=True)
class Foreign:
    """Something that is no NumPy array of numbers, told by its type, what it holds and where it lies."""

    kind: str
    dtype: str = ""
    device: str = ""

    def __str__(self) -> str:
        return self.kind + (f" of {self.dtype}" if self.dtype else "") + (f" on {self.device}" if self.device else "")


NOTHING = Came(())


@dataclass(frozen=True)
class Answer:
    """What one call gave: outputs and weights used, or a way of failing that is no output. `written`: an input was changed.

    `failed` is "", or error (an exception), crash (the process ended), timeout, printed; `said` tells it.
    """

    came: Came = NOTHING
    written: bool = False
    failed: str = ""
    said: str = ""


class Bench(Protocol):
    """Where a capability is called."""

    def start(
        self, specification: Specification, capability: Capability, arguments: Arguments, gaps: bool, again: bool
    ) -> Callable[[], Answer]:
        """Begin a call; the function that is returned waits for its answer.

        `gaps` lays the inputs into buffers of NaN, with a gap after every element (`spaced`). `again` writes them into the
        arrays of the call before, beside the same weights.
        """
        ...


class Here:
    """In this process."""

    def __init__(self) -> None:
        self.given: Arguments = ()

    def start(
        self, specification: Specification, capability: Capability, arguments: Arguments, gaps: bool, again: bool
    ) -> Callable[[], Answer]:
        self.given = refilled(self.given, arguments) if again else placed(arguments, gaps)
        before = fingerprint(self.given)
        stir(self.given)
        try:
            came = specification.run(capability, self.given)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a panic of Rust is no Exception, and an implementation may exit
            answer = Answer(failed="error", said=tail(error))
            return lambda: answer
        used = came.used if came.used is None or type(came.used).__module__.startswith("ssmspec_ref") else foreign(came.used)
        answer = Answer(Came(tuple(map(foreign, came.outputs)), used), fingerprint(self.given) != before)
        return lambda: answer


HERE = Here()


def bench_of(capability: Capability) -> Bench:
    """Where a capability is called: a run that stands for one elsewhere says so."""
    bench: Bench = getattr(capability.run, "bench", HERE)
    return bench


def foreign(came: Any) -> Any:
    """A NumPy array of numbers as it is; anything else by what it is."""
    if isinstance(came, Foreign) or (type(came) is np.ndarray and came.dtype.kind in PLAIN):
        return came
    named = [str(getattr(came, name)) if hasattr(came, name) else "" for name in ("dtype", "device")]
    return Foreign(type(came).__name__, *named)


def placed(arguments: Arguments, gaps: bool) -> Arguments:
    """The inputs in arrays of their own."""
    fresh: Arguments = copy.deepcopy(arguments)
    return spaced(fresh) if gaps else fresh


def refilled(given: Arguments, arguments: Arguments) -> Arguments:
    """The inputs of another case in the arrays that hold those of an earlier one; the weights stay."""
    for old, new in zip(leaves(given), leaves(arguments), strict=True):
        if isinstance(old, np.ndarray):
            old[...] = new
    return given


def stir(given: Arguments) -> None:
    """Leave NaN in freed memory of the sizes that outputs are likely to have."""
    held = []
    for a in leaves(given):
        if isinstance(a, np.ndarray):
            held += [np.full(a.shape, np.nan, dtype=dtype) for dtype in (np.float32, np.float32, np.float64, np.float64)]
    del held


def spaced(value: Any, widths: Iterator[int] | None = None) -> Any:
    """The same values as views, NaN between them, the gaps of each array as wide as no other's: what reads an array as if it
    were compact, or by the strides of another one, reads NaN."""
    widths = cycle(range(1, GAPS + 1)) if widths is None else widths
    if isinstance(value, tuple):
        return tuple(spaced(part, widths) for part in value)
    return each(lambda a: _gap(a, next(widths)), value)


def _gap(a: Array, width: int) -> Array:
    wide = np.full((*a.shape, 1 + width), np.nan if a.dtype.kind == "f" else 0).astype(a.dtype)
    wide[..., 0] = a
    return wide[..., 0]


def fingerprint(value: Any) -> str:
    """A hash of everything under a value: of arrays the type, shape and bytes."""
    digest = hashlib.sha256()
    for leaf in leaves(value):
        if isinstance(leaf, np.ndarray):
            digest.update(f"{leaf.dtype} {leaf.shape}".encode())
            digest.update(np.ascontiguousarray(leaf).tobytes())
        else:
            digest.update(repr(leaf).encode())
    return digest.hexdigest()


def leaves(value: Any) -> Iterator[Any]:
    """Every array and every number under tuples, lists and records."""
    if isinstance(value, tuple | list):
        for part in value:
            yield from leaves(part)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from leaves(getattr(value, field.name))
    else:
        yield value


def tail(error: BaseException) -> str:
    """The error and the last two places that it passed through, without folders; of an error of the suite's, its words."""
    if isinstance(error, ConformanceError):
        return str(error)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename][-2:]
    places = [f"{frame.filename.replace(chr(92), '/').rsplit('/', 1)[-1]}:{frame.lineno} {frame.line}" for frame in frames]
    return f"{type(error).__name__}: {str(error)[:500]} | " + " | ".join(places)
