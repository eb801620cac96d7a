"""Call an implementation, in this process or in a worker (`process`). The results are plain data.

A call passes copies of the inputs, in new arrays or in those of the previous call, and records whether they were modified.
Before the call, memory of the inputs' sizes is filled with NaN and freed, so that an output that is allocated but not written
holds no earlier result.
"""

import copy
import dataclasses
import hashlib
import re
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ssmspec_ref.contract import Capability
from ssmspec_ref.errors import NoRoom, Unsupported
from ssmspec_ref.records import each
from ssmspec_ref.shapes import Array
from ssmspec_ref.slots import FarPool, is_far

from ..device.observed import ELSEWHERE, Watch
from ..errors import ConformanceError
from ..isolation.memory import taken
from ..isolation.text import clean, name, told
from ..judge.raised import REFUSED
from ..suite.called import Arguments, Came, unchanged
from ..suite.options.far_inputs import FarInputs, far_along
from ..suite.specification import Specification

PLAIN = "biufc"
"""Kinds of numeric NumPy arrays."""
GAPS = 10
"""Widths of the gaps between elements: one for each array of a call, so that no two have the same strides. Only calls of
several windows have more arrays; those of one window still differ."""


@dataclass(frozen=True)
class Foreign:
    """An object that is not a numeric NumPy array, described by its type, dtype and device."""

    kind: str
    dtype: str = ""
    device: str = ""

    def __str__(self) -> str:
        return self.kind + (f" of {self.dtype}" if self.dtype else "") + (f" on {self.device}" if self.device else "")


MOST_TAKEN = 64 << 20
"""Bytes of memory that a pool with slots far apart may take: its cases have kilobytes."""
NOT_FAR = "slots of the returned pool are not 2^31 elements apart, so large offsets are not tested; return the given pool"
Y_NOT_FAR = (
    "y is not 2^31 elements apart along the axis where the inputs are, so large offsets are not tested; give y such strides"
)
NOTHING = Came(())
REUSED = "this call changed {} of the outputs of the call before it, as if a buffer was reused; return new arrays"


@dataclass(frozen=True)
class Answer:
    """The result of one call: outputs and weights used, or a failure without output. `written`: an input was modified.

    `failed` is "", or error (an exception), refused (`Unsupported`), crash (the process ended), timeout, memory, garbled (the
    answer was invalid), printed, overwritten (this call changed outputs of the call before it), unjudged (the case needs what
    is not there);
    `said` describes it. `place` is where the call was observed to compute, "" without an answer. `spent` are the seconds of
    work of another process, for the limits of searches (`isolation.spent`).
    """

    came: Came = NOTHING
    written: bool = False
    failed: str = ""
    said: str = ""
    place: str = ""
    spent: float = 0.0


class Bench(Protocol):
    """An object that calls a capability."""

    def start(
        self, specification: Specification, capability: Capability, arguments: Arguments, gaps: bool, again: bool
    ) -> Callable[[], Answer]:
        """Begin a call. The returned function waits for the answer.

        `gaps` puts the inputs into buffers of NaN, with a gap after every element (`spaced`). `again` writes them into the
        arrays of the previous call, with the same weights.
        """
        ...


class Here:
    """Calls in this process. The outputs of a call with `again` are kept during the next call, and compared after it."""

    def __init__(self) -> None:
        self.given: Arguments = ()
        self.held: list[tuple[Array, Array]] = []

    def start(
        self, specification: Specification, capability: Capability, arguments: Arguments, gaps: bool, again: bool
    ) -> Callable[[], Answer]:
        try:
            self.given = refilled(self.given, arguments) if again else placed(arguments, gaps)
        except NoRoom as error:
            return unjudged(str(error))
        before = fingerprint(self.given)
        stir(self.given)
        held, self.held = self.held, []
        watch = Watch()
        try:
            with np.errstate(invalid="ignore"):  # what is never read may be NaN; the outputs are tested
                came = specification.run(capability, self.given)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a Rust panic is not an Exception, and an implementation may exit
            failed = REFUSED if isinstance(error, Unsupported) else "error"
            answer = Answer(failed=failed, said=tail(error), place=seen(capability, watch))
            return lambda: answer
        if told := not_far(self.given, came):
            return unjudged(told)
        changed = sum(not unchanged(a, kept) for a, kept in held)
        self.held = [(a, a.copy()) for a in came.outputs if isinstance(a, np.ndarray)] if again else []
        if changed:
            answer = Answer(failed="overwritten", said=REUSED.format(changed), place=seen(capability, watch))
            return lambda: answer
        used = came.used if came.used is None or type(came.used).__module__.startswith("ssmspec_ref") else foreign(came.used)
        answer = Answer(
            Came(tuple(map(foreign, came.outputs)), used, came.drafts, came.changed),
            fingerprint(self.given) != before,
            place=seen(capability, watch),
        )
        return lambda: answer


def seen(capability: Capability, watch: Watch) -> str:
    """Where a call computed; computation in a program's own process is not observed."""
    return ELSEWHERE if getattr(capability.run, "elsewhere", False) else watch.place()


HERE = Here()


def bench_of(capability: Capability) -> Bench:
    """The bench of a capability: the one of its function, if that is a stand-in for another process."""
    bench: Bench = getattr(capability.run, "bench", HERE)
    return bench


def foreign(came: Any) -> Any:
    """A numeric NumPy array unchanged; any other object as `Foreign`."""
    if isinstance(came, Foreign) or (type(came) is np.ndarray and came.dtype.kind in PLAIN):
        return came
    return Foreign(name(type(came).__name__), *(_asked(came, asked) for asked in ("dtype", "device")))


def _asked(came: Any, what: str) -> str:
    """An attribute of an object as text; "" if it is missing or raises."""
    try:
        return name(str(getattr(came, what, "")))
    except Exception:  # foreign code
        return ""


def placed(arguments: Arguments, gaps: bool) -> Arguments:
    """The inputs copied into new arrays."""
    fresh: Arguments = copy.deepcopy(arguments)
    return set_apart(spaced(fresh) if gaps else fresh)


def set_apart(given: Arguments) -> Arguments:
    """The inputs, each pool whose slots are far apart, and all inputs that are, in memory of that kind.

    Raises: NoRoom if the system does not give the addresses, or takes memory for what is not written.
    """
    if not any(isinstance(value, FarPool | FarInputs) for value in given):
        return given
    before = taken()
    made = tuple(map(copied_far, given))
    if (more := taken() - before) > MOST_TAKEN:
        raise NoRoom(f"the system allocated {more >> 20} MiB, although at most {MOST_TAKEN >> 20} MiB are written")
    return made


def copied_far(value: Any) -> Any:
    """A pool, or inputs, over addresses that are far apart; anything else as it is."""
    if isinstance(value, FarPool):
        return replace(value, states=far_along(value.states, 0))
    return value.apart() if isinstance(value, FarInputs) else value


def not_far(given: Arguments, came: Came) -> str:
    """Outputs that should be far apart and are not: the last output, which is the pool, or the first, of far inputs; ""
    if nothing. An output of another form is tested as an output."""
    for value in given:
        pool = isinstance(value, FarPool)
        if not came.outputs or not (pool or isinstance(value, FarInputs)):
            continue
        back = came.outputs[-1 if pool else 0]
        if isinstance(back, np.ndarray) and not is_far(back, 0 if pool else value.output):
            return NOT_FAR if pool else Y_NOT_FAR
    return ""


def unjudged(why: str) -> Callable[[], Answer]:
    answer = Answer(failed="unjudged", said=f"not judged: {why}")
    return lambda: answer


def refilled(given: Arguments, arguments: Arguments) -> Arguments:
    """The inputs of another case, written into the arrays of an earlier one; the weights are kept."""
    for old, new in zip(leaves(given), leaves(arguments), strict=True):
        if isinstance(old, np.ndarray):
            old[...] = new
    return given


def stir(given: Arguments) -> None:
    """Leave NaN in freed memory of the sizes that outputs probably have."""
    held = []
    for a in leaves(given):
        if isinstance(a, np.ndarray):
            held += [np.full(a.shape, np.nan, dtype=dtype) for dtype in (np.float32, np.float32, np.float64, np.float64)]
    del held


def spaced(value: Any, widths: Iterator[int] | None = None) -> Any:
    """The same values as views into NaN, with another gap for each array. Code that reads an array as if it were compact, or
    with the strides of another one, reads NaN."""
    widths = cycle(range(1, GAPS + 1)) if widths is None else widths
    if isinstance(value, tuple):
        return tuple(spaced(part, widths) for part in value)
    return each(lambda a: _gap(a, next(widths)), value)


def _gap(a: Array, width: int) -> Array:
    wide = np.full((*a.shape, 1 + width), np.nan if a.dtype.kind == "f" else 0).astype(a.dtype)
    wide[..., 0] = a
    return wide[..., 0]


def fingerprint(value: Any) -> str:
    """A hash of a value and everything in it: dtype, shape and bytes of arrays."""
    digest = hashlib.sha256()
    for leaf in leaves(value):
        if isinstance(leaf, np.ndarray):
            digest.update(f"{leaf.dtype} {leaf.shape}".encode())
            digest.update(np.ascontiguousarray(leaf).tobytes())
        else:
            digest.update(repr(leaf).encode())
    return digest.hexdigest()


def leaves(value: Any) -> Iterator[Any]:
    """Every array and every number in tuples, lists and records."""
    if isinstance(value, tuple | list):
        for part in value:
            yield from leaves(part)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from leaves(getattr(value, field.name))
    else:
        yield value


ADVICE = re.compile(r"\\n(Search for `cuda|CUDA kernel errors might be)")
"""Where PyTorch's message of an error on a GPU gives advice, after `clean` has joined its lines."""


def tail(error: BaseException, foreign: bool = False) -> str:
    """The error and the last two positions of its traceback, without folders; for an error of the suite, its message.

    `foreign`: without the positions in this folder, if there are others.
    """
    if isinstance(error, ConformanceError):
        return clean(str(error))
    known = [
        f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename and f.filename != "<string>"
    ]
    others = [f for f in known if Path(f.filename).parent != Path(__file__).parent]
    frames = (others if foreign and others else known)[-2:]
    places = [f"{frame.filename.replace(chr(92), '/').rsplit('/', 1)[-1]}:{frame.lineno} {frame.line}" for frame in frames]
    return clean(f"{name(type(error).__name__)}: {ADVICE.split(told(error))[0][:500]} | " + " | ".join(places))
