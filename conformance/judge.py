"""From what came out to a verdict: shape, type, NaN, unwritten inputs, and the error against its bound.

utilisation = |error| / bound, element by element: 1 is the worst that the declared contract allows. A value that is not a
number fails before any bound is asked; a bound that is not finite decides nothing, and the verdict is unknown. An output is
void where zeros would be within the bound everywhere; a case of which every computed output is void decides nothing either.

Inputs of cases with a seed above 0 are views into buffers of NaN with a gap after every element. The cases of the last
family are run twice: the second time other inputs lie in the same arrays, beside the same weights.
"""

import copy
import dataclasses
import hashlib
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ssmspec_ref.contract import Capability, NumericContract, Verdict
from ssmspec_ref.errors import SpecError
from ssmspec_ref.records import each
from ssmspec_ref.shapes import Array

from .cases import Case
from .draw import stored
from .errors import OtherWeights
from .suite.specification import Arguments, Expected, Specification

KEPT = 4096
"""Expectations kept at a time: a few kilobytes each."""
OTHER = 1009
"""The seed of the inputs that come second; no case of a table has it."""
WIDER = {"fp64": ("float64",), "fp32": ("float32", "float64"), "fp16": ("float16", "float32", "float64")}
WIDER["bf16"] = WIDER["fp32"]


@dataclass(frozen=True)
class Measured:
    """One output of one case: the largest error relative to its bound, and where it is.

    `first` is the first element that is beyond its bound, by token before row, head and channel; the worst element where none
    is. `void` says that zeros would pass.
    """

    name: str
    state: bool
    utilisation: float
    error: float
    bound: float
    first: dict[str, int]
    void: bool = False


@dataclass(frozen=True)
class Judgement:
    """The verdict on one case. `kind` names the way of failing: error, outputs, shape, dtype, nan, mutated, used, bound,
    stale (only where other inputs lay in the same arrays before)."""

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
    given = tuple(map(spaced, given)) if case.seed > 0 else given
    first = _judged(specification, capability, case, arguments, given)
    if first.verdict is not Verdict.PASS or case.seed > 0 or case.family != specification.families[-1]:
        return first
    fresh = specification.draw(replace(case, seed=OTHER), capability.contract)
    other = tuple(old if weights(old) else new for old, new in zip(arguments, fresh, strict=True))
    refill(given, other)
    again = replace(case, seed=OTHER)
    second = _judged(specification, capability, again, other, given)
    if second.verdict is not Verdict.FAIL:
        return first
    if _judged(specification, capability, again, other, copy.deepcopy(other)).verdict is Verdict.FAIL:
        return replace(second, message=f"with the inputs of seed {OTHER}: {second.message}")
    told = "right in arrays of its own, wrong where other inputs lay before, as if something was kept by address"
    return replace(second, kind="stale", message=f"{told}: {second.message}")


def _judged(
    specification: Specification, capability: Capability, case: Case, arguments: Arguments, given: Arguments
) -> Judgement:
    """One call on `given`, which holds what `arguments` holds."""
    before = fingerprint(given)
    try:
        got = specification.run(capability, given)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a panic of Rust is no Exception, and an implementation may exit
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


def spaced(value: Any) -> Any:
    """The same values as views, NaN between them: what reads an array as if it were compact reads NaN."""
    if isinstance(value, tuple):
        return tuple(map(spaced, value))
    return each(_spaced, value)


def _spaced(a: Array) -> Array:
    wide = np.full((*a.shape, 2), np.nan if a.dtype.kind == "f" else 0).astype(a.dtype)
    wide[..., 0] = a
    return wide[..., 0]


def weights(argument: Any) -> bool:
    """Whether an argument is the weights of a layer, which do not change under it."""
    return type(argument).__name__.endswith(("Params", "Mixer", "Layer"))


def refill(into: Arguments, other: Arguments) -> None:
    """Write the inputs of another case into the arrays of this one."""
    for old, new in zip(leaves(into), leaves(other), strict=True):
        if isinstance(old, np.ndarray):
            old[...] = new


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
    computed = [m for m, want in zip(measured, expected, strict=True) if want.bound.any()]
    if computed and all(m.void for m in computed):
        message = f"the contract declared ({contract}) is so wide that zeros would pass; declare what is really computed"
        return Judgement(Verdict.UNKNOWN, "void", message, measured)
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
        void(want),
    )


def void(want: Expected) -> bool:
    """Whether zeros would pass, though zeros are not all that must come out."""
    value = np.abs(want.value[_where(want)])
    return bool(value.any() and np.all(want.bound[_where(want)] >= value))


def _where(want: Expected) -> Array:
    """The elements that count."""
    return np.broadcast_to(np.True_ if want.judged is None else want.judged, want.value.shape)


def _unfit(want: Expected, came: Any, contract: NumericContract) -> Judgement | None:
    """Why an output cannot be compared at all, or None."""
    storage = contract.state if want.recurrent else contract.io
    allowed = WIDER[storage]
    dtype = str(getattr(came, "dtype", type(came).__name__))
    if type(came) is not np.ndarray or dtype not in allowed:
        needed = " or ".join(allowed)
        kind = f"{type(came).__name__} of {dtype}" if hasattr(came, "dtype") else dtype
        return Judgement(Verdict.FAIL, "dtype", f"{want.name} came as {kind}, but a NumPy array of {needed} is needed")
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
    name = f"{m.name} after the last token" if m.state and " after " not in m.name else m.name
    return f"{name} is wrong by {m.error:.3g}, {times}, first at {_place(m.first)}"


def _place(first: dict[str, int]) -> str:
    return ", ".join(f"{axis}={index}" for axis, index in first.items()) or "its only value"


def _tail(error: BaseException) -> str:
    """The error and the last two places that it passed through, without folders."""
    frames = traceback.extract_tb(error.__traceback__)[-2:]
    places = [f"{frame.filename.replace(chr(92), '/').rsplit('/', 1)[-1]}:{frame.lineno} {frame.line}" for frame in frames]
    return f"{type(error).__name__}: {str(error)[:500]} | " + " | ".join(places)
