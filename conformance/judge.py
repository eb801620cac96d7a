"""From what came out to a verdict: shape, type, NaN, unwritten inputs, and the error against its bound.

utilisation = |error| / bound, element by element: 1 is the worst that the declared contract allows. A value that is not a
number fails before any bound is asked; a bound that is not finite decides nothing, and the verdict is unknown. An output is
void where zeros would be within the bound everywhere; a case of which every computed output is void decides nothing either.

Inputs of cases with a seed above 0 are views into buffers of NaN with a gap after every element, as wide in each array of a
record as in no other of it, so that each has strides of its own. The cases of the last family are run three times: the
second time other inputs, of a seed that no table has, lie in the same arrays beside the same weights; the third time the
first inputs lie in new arrays. What was kept by address, by shape or from call to call shows.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ssmspec_ref.contract import Capability, NumericContract, Verdict
from ssmspec_ref.errors import SpecError
from ssmspec_ref.shapes import Array

from .bench import Bench, Foreign, bench_of, fingerprint, foreign, leaves
from .cases import Case
from .draw import stored
from .errors import OtherWeights
from .suite.specification import Arguments, Expected, Specification

KEPT = 4096
"""Expectations kept at a time: a few kilobytes each."""
OTHER = 1009
"""The seed of the inputs that come second where none is drawn; no case of a table has it."""
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
    """The verdict on one case. `kind` names the way of failing: error, crash, timeout, printed, outputs, shape, dtype, nan,
    mutated, used, bound, stale (only where other inputs lay in the same arrays before), again (only when the inputs come a
    second time). `seed` is that of the inputs that came second, where they count."""

    verdict: Verdict
    kind: str = ""
    message: str = ""
    outputs: tuple[Measured, ...] = ()
    seed: int | None = None

    @property
    def worst(self) -> Measured | None:
        return max(self.outputs, key=lambda m: np.nan_to_num(m.utilisation, nan=np.inf), default=None)


@dataclass(frozen=True)
class _Trial:
    """One case on one capability: how often it is called and with what changes, the rest does not."""

    specification: Specification
    capability: Capability
    case: Case
    bench: Bench

    def drawn(self, seed: int) -> Arguments:
        return self.specification.draw(replace(self.case, seed=seed), self.capability.contract)

    def judged(self, arguments: Arguments, seed: int, gaps: bool = False, again: bool = False) -> Judgement:
        """One call, against what must come out, which is computed meanwhile where the implementation has no say in it."""
        answer = self.bench.start(self.specification, self.capability, arguments, gaps, again)
        case, contract = replace(self.case, seed=seed), self.capability.contract
        early = None
        if not case.operation.startswith("layer."):
            early = _attempted(lambda: self.expected(case, arguments, None))
        got = answer()
        if got.failed:
            return Judgement(Verdict.UNKNOWN if got.failed == "timeout" else Verdict.FAIL, got.failed, got.said)
        if got.written:
            return Judgement(Verdict.FAIL, "mutated", "the implementation wrote into its inputs; copy what is written")
        if early is None or got.came.used is not None:
            early = _attempted(lambda: self.expected(case, arguments, got.came.used))
        return early if isinstance(early, Judgement) else compare(early, got.came.outputs, contract)

    def expected(self, case: Case, arguments: Arguments, used: Any) -> list[Expected]:
        """What must come out of inputs of another seed, beside the weights of this case's own."""
        return expectation(self.specification, case, self.capability.contract, arguments, used, self.case.seed)


def judge(specification: Specification, capability: Capability, case: Case, other: int = OTHER) -> Judgement:
    """Draw the inputs of a case, run the implementation on copies of them, and compare with the oracle.

    `other` is the seed of the inputs that come second.
    """
    trial = _Trial(specification, capability, case, bench_of(capability))
    arguments = trial.drawn(case.seed)
    first = trial.judged(arguments, case.seed, gaps=case.seed > 0)
    if first.verdict is not Verdict.PASS or case.seed > 0 or case.family != specification.families[-1]:
        return first
    fresh = tuple(old if weights(old) else new for old, new in zip(arguments, trial.drawn(other), strict=True))
    second = replace(trial.judged(fresh, other, again=True), seed=other)
    if _bad(second):
        if second.kind == "timeout" or trial.judged(fresh, other).verdict is Verdict.FAIL:
            return replace(second, message=f"with the inputs of seed {other}: {second.message}")
        told = "right in arrays of its own, wrong where other inputs lay before, as if something was kept by address"
        return replace(second, kind="stale", message=f"{told}: {second.message}")
    third = trial.judged(arguments, case.seed)
    if _bad(third):
        told = "right at first, and not when the same inputs came again in other arrays"
        why = "as if something was kept between calls, or read before it was written"
        return replace(third, kind="again", message=f"{told}, {why}: {third.message}", seed=other)
    return first


def _bad(judgement: Judgement) -> bool:
    """Wrong, or without an answer; a bound that does not exist for other inputs says nothing of these."""
    return judgement.verdict is Verdict.FAIL or judgement.kind == "timeout"


def _attempted(expect: Callable[[], list[Expected]]) -> list[Expected] | Judgement:
    """What must come out, or why nothing can be said."""
    try:
        return expect()
    except OtherWeights as error:
        return Judgement(Verdict.FAIL, "used", str(error))
    except SpecError as error:
        return Judgement(Verdict.UNKNOWN, "bound", f"the suite has no bound here: {error}")


def weights(argument: Any) -> bool:
    """Whether an argument is the weights of a layer, which do not change under it."""
    return type(argument).__name__.endswith(("Params", "Mixer", "Layer"))


_KEPT: dict[tuple[str, int, NumericContract, str], list[Expected]] = {}


def expectation(
    specification: Specification,
    case: Case,
    contract: NumericContract,
    arguments: Arguments,
    used: Any,
    weighed: int | None = None,
) -> list[Expected]:
    """What must come out; kept, because subjects of one contract share their cases.

    `weighed` is the seed of the weights where it is not the case's: beside inputs that come second, whose seed a case of a
    table may have too.

    Raises: OtherWeights, and what the reference raises where no bound exists.
    """
    key = (
        specification.identify(case),
        case.seed if weighed is None else weighed,
        contract,
        "" if used is None else fingerprint(used),
    )
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
        told = f"{len(got)} outputs came, but {len(expected)} are needed: {names}"
        one = f"; what came is a {got[0].kind}, return a tuple" if len(got) == 1 and isinstance(got[0], Foreign) else ""
        return Judgement(Verdict.FAIL, "outputs", told + one)
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
    came = foreign(came)
    if isinstance(came, Foreign) or str(came.dtype) not in allowed:
        kind, needed = came if isinstance(came, Foreign) else f"ndarray of {came.dtype}", " or ".join(allowed)
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


def _beyond(m: Measured) -> str:
    times = f"{m.utilisation:.3g} times its bound {m.bound:.3g}" if m.bound > 0 else "where it must be equal"
    name = f"{m.name} after the last token" if m.state and " after " not in m.name else m.name
    return f"{name} is wrong by {m.error:.3g}, {times}, first at {_place(m.first)}"


def _place(first: dict[str, int]) -> str:
    return ", ".join(f"{axis}={index}" for axis, index in first.items()) or "its only value"
