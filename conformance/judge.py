"""From what came out to a verdict: shape, type, NaN, unwritten inputs, and the error against its bound.

utilisation = |error| / bound, element by element: 1 is the worst that the declared contract allows. A value that is not a
number fails before any bound is asked; a bound that is not finite decides nothing, and the verdict is unknown.
"""

import dataclasses
import hashlib
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ssmspec_ref.contract import Capability, NumericContract, Verdict
from ssmspec_ref.errors import SpecError
from ssmspec_ref.shapes import Array

from .cases import Case
from .draw import stored
from .errors import OtherWeights
from .suite.specification import Arguments, Expected, Specification

KEPT = 4096
"""Expectations kept at a time: a few kilobytes each."""
WIDER = {"fp64": ("float64",), "fp32": ("float32", "float64"), "fp16": ("float16", "float32", "float64")}
WIDER["bf16"] = WIDER["fp32"]


@dataclass(frozen=True)
class Measured:
    """One output of one case: the largest error relative to its bound, and where it is.

    `first` is the first element that is beyond its bound, by token before row, head and channel; the worst element where none
    is.
    """

    name: str
    state: bool
    utilisation: float
    error: float
    bound: float
    first: dict[str, int]


@dataclass(frozen=True)
class Judgement:
    """The verdict on one case. `kind` names the way of failing: error, outputs, shape, dtype, nan, mutated, bound."""

    verdict: Verdict
    kind: str = ""
    message: str = ""
    outputs: tuple[Measured, ...] = ()

    @property
    def worst(self) -> Measured | None:
        return max(self.outputs, key=lambda m: np.nan_to_num(m.utilisation, nan=np.inf), default=None)


def judge(specification: Specification, capability: Capability, case: Case) -> Judgement:
    """Draw the inputs of a case, run the implementation on copies of them, and compare with the oracle."""
    arguments = specification.draw(case, capability.contract)
    given = specification.draw(case, capability.contract)
    before = fingerprint(given)
    try:
        got = specification.run(capability, given)
    except (Exception, SystemExit) as error:
        return Judgement(Verdict.FAIL, "error", _tail(error))
    if fingerprint(given) != before:
        return Judgement(Verdict.FAIL, "mutated", "the implementation wrote into its inputs; copy what is written")
    try:
        expected = expectation(specification, case, capability.contract, arguments, got.used)
    except OtherWeights as error:
        return Judgement(Verdict.FAIL, "used", str(error))
    except SpecError as error:
        return Judgement(Verdict.UNKNOWN, "bound", f"the suite has no bound here: {error}")
    return compare(expected, got.outputs, capability.contract)


_KEPT: dict[tuple[str, NumericContract, str], list[Expected]] = {}


def expectation(
    specification: Specification, case: Case, contract: NumericContract, arguments: Arguments, used: Any
) -> list[Expected]:
    """What must come out; kept, because subjects of one contract share their cases.

    Raises: OtherWeights, and what the reference raises where no bound exists.
    """
    key = (specification.identify(case), contract, "" if used is None else fingerprint(used))
    if key not in _KEPT:
        if len(_KEPT) >= KEPT:
            _KEPT.pop(next(iter(_KEPT)))
        _KEPT[key] = specification.expect(arguments, contract, used)
        for leaf in leaves(_KEPT[key]):
            if isinstance(leaf, np.ndarray):
                leaf.flags.writeable = False
    return _KEPT[key]


def compare(expected: list[Expected], got: tuple[Any, ...], contract: NumericContract) -> Judgement:
    """Every output against its expectation; the first that is unfit decides, otherwise the worst utilisation."""
    if len(got) != len(expected):
        names = ", ".join(e.name for e in expected)
        return Judgement(Verdict.FAIL, "outputs", f"{len(got)} outputs came, but {len(expected)} are needed: {names}")
    for want, came in zip(expected, got, strict=True):
        refusal = _unfit(want, came, contract)
        if refusal is not None:
            return refusal
    measured = tuple(measure(want, came) for want, came in zip(expected, got, strict=True))
    beyond = [m for m in measured if not m.utilisation <= 1]
    if any(not np.isfinite(want.bound[_where(want)]).all() for want in expected):
        return Judgement(Verdict.UNKNOWN, "bound", "the bound is not finite, so nothing follows from it", measured)
    if beyond:
        return Judgement(Verdict.FAIL, "bound", "; ".join(map(_beyond, beyond)), measured)
    return Judgement(Verdict.PASS, outputs=measured)


def measure(want: Expected, came: Array) -> Measured:
    """The worst element of an output, or the first beyond its bound, and where it is."""
    judged = _where(want)
    error = np.where(judged, np.abs(np.asarray(came, dtype=np.float64) - want.value), 0.0)
    bound = np.where(judged, want.bound, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(error == 0, 0.0, error / bound)
    if ratio.size == 0:
        return Measured(want.name, want.state, 0.0, 0.0, 0.0, {})
    axes, worst = want.axes.split(), int(np.argmax(ratio))
    beyond = np.argwhere(~(ratio <= 1))
    order = np.argsort(beyond[:, axes.index("t")], kind="stable") if "t" in axes else np.arange(len(beyond))
    place = beyond[order[0]] if len(beyond) else np.unravel_index(worst, ratio.shape)
    return Measured(
        want.name,
        want.state,
        float(ratio.flat[worst]),
        float(error.flat[worst]),
        float(bound.flat[worst]),
        {axis: int(i) for axis, i in zip(axes, place, strict=True)},
    )


def _where(want: Expected) -> Array:
    """The elements that count."""
    return np.broadcast_to(np.True_ if want.judged is None else want.judged, want.value.shape)


def _unfit(want: Expected, came: Any, contract: NumericContract) -> Judgement | None:
    """Why an output cannot be compared at all, or None."""
    storage = contract.state if want.recurrent else contract.io
    allowed = WIDER[storage]
    dtype = str(getattr(came, "dtype", type(came).__name__))
    if not isinstance(came, np.ndarray) or dtype not in allowed:
        needed = " or ".join(allowed)
        return Judgement(Verdict.FAIL, "dtype", f"{want.name} came as {dtype}, but a NumPy array of {needed} is needed")
    if came.shape != want.value.shape:
        message = f"{want.name} came with shape {came.shape}, but {want.value.shape} is needed for the axes ({want.axes})"
        return Judgement(Verdict.FAIL, "shape", message)
    judged = _where(want)
    bad = np.argwhere(judged & ~np.isfinite(came))
    if not np.isfinite(want.value[judged]).all():
        raise AssertionError(f"the oracle gave a value of {want.name} that is not finite: a fault of the suite")
    if len(bad):
        place = dict(zip(want.axes.split(), (int(i) for i in bad[0]), strict=True))
        message = f"{want.name} holds {came[tuple(bad[0])]} in {len(bad)} of {came.size} places, first at {_place(place)}"
        return Judgement(Verdict.FAIL, "nan", message)
    if not np.array_equal(stored(came[judged], storage), came[judged].astype(np.float64)):
        return Judgement(
            Verdict.FAIL, "dtype", f"{want.name} is declared as {storage}, but its values do not fit that format"
        )
    return None


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


def _beyond(m: Measured) -> str:
    times = f"{m.utilisation:.3g} times its bound {m.bound:.3g}" if m.bound > 0 else "where it must be equal"
    return f"{m.name} is wrong by {m.error:.3g}, {times}, first at {_place(m.first)}"


def _place(first: dict[str, int]) -> str:
    return ", ".join(f"{axis}={index}" for axis, index in first.items()) or "its only value"


def _tail(error: BaseException) -> str:
    """The error and the last two places that it passed through, without folders."""
    frames = traceback.extract_tb(error.__traceback__)[-2:]
    places = [f"{frame.filename.replace(chr(92), '/').rsplit('/', 1)[-1]}:{frame.lineno} {frame.line}" for frame in frames]
    return f"{type(error).__name__}: {str(error)[:500]} | " + " | ".join(places)
