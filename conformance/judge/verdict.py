"""From outputs to a verdict: shape, dtype, NaN, modified inputs, and the error relative to its bound.

utilisation = |error| / bound, element by element: 1 is the largest that the declared contract allows. NaN and inf fail before
any bound is used. If a bound is not finite, the verdict is unknown. An output is void if zeros would be within the bound
everywhere; a case whose computed outputs are all void is unknown too.

Inputs of cases with a seed above 0 are views into buffers of NaN with a gap after every element. Each array of a record has a
different gap, so that each has different strides. The cases of the last family are run three times. The second time other
inputs, with a seed that is in no table, are written to the same arrays, with the same weights; the third time the first
inputs are in new arrays. This detects results that were cached by address, by shape or from call to call. The outputs of the
second call of a pure operation must be unchanged after the third. They must be so too in the cases that are as large along
an axis as the tables are.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ssmspec_ref.contract import LARGEST_CODE, Capability, NumericContract, StateStorage, Verdict
from ssmspec_ref.errors import SpecError
from ssmspec_ref.shapes import Array

from ..cases import Case
from ..diagnose.picture import drawn
from ..diagnose.pieces import piece_at
from ..errors import OtherWeights
from ..run.calls import Answer, Bench, Foreign, bench_of, fingerprint, foreign, leaves
from ..run.sessions import opened
from ..suite.called import Arguments, weights
from ..suite.expected import Expected
from ..suite.specification import Specification
from . import bitwise, rounding, stricter
from .columns import as_kept
from .draw import stored
from .figures import apart, ratio
from .storage import coded, narrower

SHOWN = 3
HANDED = "right when returned, but later calls changed these outputs ({}), as if a buffer was reused; return copies"
GAPS = "it passes with the same inputs in compact arrays; here NaN lies between the elements, so some strides are ignored"
NEVER_READ = (
    "it passes if entries that must not be read hold 1000 instead of {}: multiplying by zero is a read too; skip them instead"
)
LEFT_OVER = "as if a call began from what an earlier one left behind"
NO_ANSWER = ("timeout", "memory", "unjudged")
"""Failures that are limits of the suite: nothing is known about the values."""
VOID = "void"
"""The kind of an unknown verdict where zeros would pass."""
KEPT = 4096
"""Number of expectations to cache: a few kilobytes each."""
OTHER = 1009
"""The default seed of the randomised second inputs; no case of a table has it."""
WIDER = {"fp64": ("float64",), "fp32": ("float32", "float64"), "fp16": ("float16", "float32", "float64")}
WIDER["bf16"] = WIDER["fp32"]
WIDER |= dict.fromkeys(LARGEST_CODE, WIDER["fp32"])


@dataclass(frozen=True)
class Measured:
    """One output of one case, at the worst element: the one with the largest error relative to its bound.

    `error`, `bound`, `expected` and `got` are all of that element, and `at` is its position; `at` is None in what an older
    report holds, where the two values were of `first`. `first` is the position of the first element beyond its bound, in the
    order token, row, head, channel, or of the worst one if there is none. `void` says that zeros would pass. `picture` shows
    where an output beyond its bound is wrong (`picture.drawn`).
    """

    name: str
    state: bool
    utilisation: float
    error: float
    bound: float
    first: dict[str, int]
    void: bool = False
    expected: float | None = None
    got: float | None = None
    picture: tuple[str, ...] = ()
    at: dict[str, int] | None = None


@dataclass(frozen=True)
class Judgement:
    """The verdict on one case. `kind` names the kind of failure: error, refused, crash, timeout, memory, garbled,
    printed, outputs, shape, dtype, nan, mutated, used, bound, unjudged (the case needs what is not there), stale (only if
    other inputs were in the same arrays before), again (only if the inputs are passed a second time), overwritten (only
    by the call after that), bits, rounding. `seed` is that of the randomised second inputs, if these failed; `place` is
    where the implementation was observed to compute. `stricter` says of a passing case which narrower contracts it would
    pass too, of those with much smaller bounds; `drafts` are those that an engine says it proposed and accepted; `case`
    is the id of the case that was judged if it is a spare of a drawn one."""

    verdict: Verdict
    kind: str = ""
    message: str = ""
    outputs: tuple[Measured, ...] = ()
    seed: int | None = None
    place: str = ""
    stricter: Mapping[str, bool] = field(default_factory=dict)
    drafts: tuple[int, int] | None = None
    case: str = ""

    @property
    def worst(self) -> Measured | None:
        return max(self.outputs, key=lambda m: np.nan_to_num(m.utilisation, nan=np.inf), default=None)


@dataclass(frozen=True)
class _Trial:
    """One case on one capability. Calls with other inputs are made through its methods."""

    specification: Specification
    capability: Capability
    case: Case
    bench: Bench

    def drawn(self, seed: int) -> Arguments:
        return self.specification.draw(replace(self.case, seed=seed), self.capability.contract)

    def judged(
        self, arguments: Arguments, seed: int, gaps: bool = False, again: bool = False, further: bool = False
    ) -> Judgement:
        """Make one call and compare it; meanwhile compute the expected output, if it is independent of the call. `further`
        compares what passes with stricter contracts too."""
        answer = self.bench.start(self.specification, self.capability, arguments, gaps, again)
        case, contract = replace(self.case, seed=seed), self.capability.contract
        early = None
        if not case.operation.startswith("layer."):
            early = _attempted(lambda: self.expected(case, arguments, None))
        got = answer()
        found = self._compared(got, early, case, arguments, contract)
        if further and found.verdict is Verdict.PASS:
            found = replace(found, stricter=self.stricter(got, case, arguments))
        return replace(found, place=got.place, drafts=got.came.drafts)

    def stricter(self, got: Answer, case: Case, arguments: Arguments) -> dict[str, bool]:
        """Which narrower contracts the outputs of a case would pass, of those with much smaller bounds."""
        found: dict[str, bool] = {}
        for said, contract in stricter.candidates(self.capability.contract):
            try:
                pair = [self.under(c, case, arguments, got.came.used) for c in (self.capability.contract, contract)]
            except SpecError:
                continue
            if stricter.matters(*pair):
                found[said] = compare(pair[1], got.came.outputs, contract).verdict is Verdict.PASS
        return found

    def _compared(
        self,
        got: Answer,
        early: list[Expected] | Judgement | None,
        case: Case,
        arguments: Arguments,
        contract: NumericContract,
    ) -> Judgement:
        if got.failed:
            return Judgement(Verdict.UNKNOWN if got.failed in NO_ANSWER else Verdict.FAIL, got.failed, got.said)
        if got.written:
            return Judgement(
                Verdict.FAIL, "mutated", "the implementation wrote into its inputs; copy an input before writing to it"
            )
        if early is None or got.came.used is not None:
            early = _attempted(lambda: self.expected(case, arguments, got.came.used))
        if isinstance(early, Judgement):
            return early
        found = compare(early, got.came.outputs, contract, case.sizes)
        if found.verdict is Verdict.PASS and got.came.changed:
            named = ", ".join(early[number].name for number in got.came.changed[:SHOWN])
            more = " .." * (len(got.came.changed) > SHOWN)
            return replace(found, verdict=Verdict.FAIL, kind="overwritten", message=HANDED.format(named + more))
        return found

    def expected(self, case: Case, arguments: Arguments, used: Any) -> list[Expected]:
        """The expected outputs under the declared contract."""
        return self.under(self.capability.contract, case, arguments, used)

    def other_bits(self) -> str:
        """Which law of bits that the capability declares does not hold; "" if all do."""
        of_several = self.case.options.get("repeat") == "often" or self.case.options.get("graph") == "replayed"
        if not self.capability.bitwise or of_several:
            return ""

        arguments = self.drawn(self.case.seed)
        first, expected = self.called(arguments), self.expected(self.case, arguments, None)
        if first is None:
            return "declared bitwise, but a second run gave no outputs"
        broken = (
            bitwise.broken(law, self.case.operation, self.called, arguments, first, expected)
            for law in self.capability.bitwise
        )
        return next(filter(None, broken), "")

    def other_rounding(self) -> str:
        """Which law of stochastic rounding does not hold; "" if all do, or none is declared."""
        if not rounding.asked(self.specification, self.case, self.capability.contract):
            return ""
        return rounding.broken(self.specification, self.case, self.capability.contract, self.called)

    def why_nan(self, arguments: Arguments) -> str:
        """Where a NaN comes from, if the call passes with the same numbers and without it; "" if not known."""
        if self.case.seed > 0 and self.judged(arguments, self.case.seed).verdict is Verdict.PASS:
            return GAPS
        if self.case.options.get("dead") not in ("nan", "inf"):
            return ""
        plain = replace(self, case=replace(self.case, options={**self.case.options, "dead": "finite"}))
        passes = plain.judged(plain.drawn(self.case.seed), self.case.seed).verdict is Verdict.PASS
        return NEVER_READ.format(self.case.options["dead"]) if passes else ""

    def reused(self, one: Arguments, other: Arguments, seed: int) -> Judgement | None:
        """A failure if a call with other inputs changes the outputs of the call before it; nothing else is compared."""
        self.bench.start(self.specification, self.capability, one, False, True)()
        answer = self.bench.start(self.specification, self.capability, other, False, False)()
        return Judgement(Verdict.FAIL, answer.failed, answer.said, seed=seed) if answer.failed == "overwritten" else None

    def called(self, given: Arguments) -> tuple[Any, ...] | None:
        """The outputs of a further call, None without an answer."""
        answer = self.bench.start(self.specification, self.capability, given, False, False)()
        return None if answer.failed else answer.came.outputs

    def under(self, contract: NumericContract, case: Case, arguments: Arguments, used: Any) -> list[Expected]:
        """The expected outputs under a contract."""
        return expectation(self.specification, case, contract, arguments, used)


def judge(specification: Specification, capability: Capability, case: Case, other: int = OTHER) -> Judgement:
    """Draw the inputs of a case, run the implementation on copies of them, and compare with the reference.

    `other` is the seed of the randomised second inputs.
    """
    trial = _Trial(specification, capability, case, bench_of(capability))
    found = _within_bounds(trial, other)
    if found.verdict is Verdict.PASS and (told := trial.other_bits()):
        return replace(found, verdict=Verdict.FAIL, kind="bits", message=told)
    if found.verdict is Verdict.PASS and (told := trial.other_rounding()):
        return replace(found, verdict=Verdict.FAIL, kind="rounding", message=told)
    return found


def _within_bounds(trial: _Trial, other: int) -> Judgement:
    """Compare the outputs of one call with the reference; for some cases those of a second and a third call too."""
    specification, case = trial.specification, trial.case
    arguments = trial.drawn(case.seed)
    first = trial.judged(arguments, case.seed, gaps=case.seed > 0, further=stricter.asked(specification, case))
    if first.kind == "nan" and (why := trial.why_nan(arguments)):
        first = replace(first, message=f"{first.message}; {why}")
    if first.verdict is not Verdict.PASS or case.seed > 0:
        return first
    last = case.family == specification.families[-1]
    if not last and (opened(case.operation) or not specification.widest(case, trial.capability.limits)):
        return first
    fresh = tuple(old if weights(old) else new for old, new in zip(arguments, trial.drawn(other), strict=True))
    if not last:
        return trial.reused(fresh, arguments, other) or first
    second = replace(trial.judged(fresh, other, again=True), seed=other)
    if _bad(second):
        if second.kind in NO_ANSWER or trial.judged(fresh, other).verdict is Verdict.FAIL:
            if second.kind not in NO_ANSWER and _bad(trial.judged(arguments, case.seed)):
                told = "right in the first call, wrong in every later one, even with the inputs of the first"
                return replace(second, kind="again", message=f"{told}, {LEFT_OVER}: {second.message}")
            return replace(second, message=f"with the inputs of seed {other}: {second.message}")
        told = "right in new arrays, wrong in arrays that held other inputs before, as if something was cached by address"
        return replace(second, kind="stale", message=f"{told}: {second.message}")
    third = trial.judged(arguments, case.seed)
    if third.kind == "overwritten":
        return replace(third, seed=other)
    if _bad(third):
        told = "right at first, wrong when the same inputs were given again in other arrays"
        why = "as if something was cached between calls, or memory was read before it was written"
        return replace(third, kind="again", message=f"{told}, {why}: {third.message}", seed=other)
    return first


def _bad(judgement: Judgement) -> bool:
    """Wrong, or without an answer. A bound that does not exist for other inputs does not count."""
    return judgement.verdict is Verdict.FAIL or judgement.kind in NO_ANSWER


def _attempted(expect: Callable[[], list[Expected]]) -> list[Expected] | Judgement:
    """The expected outputs, or why they cannot be computed."""
    try:
        return expect()
    except OtherWeights as error:
        return Judgement(Verdict.FAIL, "used", str(error))
    except SpecError as error:
        return Judgement(Verdict.UNKNOWN, "bound", f"the suite has no bound here: {error}")


_KEPT: dict[tuple[str, NumericContract, str, str], list[Expected]] = {}


def expectation(
    specification: Specification, case: Case, contract: NumericContract, arguments: Arguments, used: Any
) -> list[Expected]:
    """The expected outputs; cached, because subjects with the same contract share their cases.

    The key holds the inputs themselves: a diagnosis needs a case and contract with the inputs of another contract.

    Raises: OtherWeights, and what the reference raises if no bound exists.
    """
    key = (specification.identify(case), contract, fingerprint(arguments), "" if used is None else fingerprint(used))
    if key not in _KEPT:
        if len(_KEPT) >= KEPT:
            _KEPT.pop(next(iter(_KEPT)))
        _KEPT[key] = specification.expected(arguments, contract, used)
        for leaf in leaves(_KEPT[key]):
            if isinstance(leaf, np.ndarray):
                leaf.flags.writeable = False
    return _KEPT[key]


def compare(
    expected: list[Expected], got: tuple[Any, ...], contract: NumericContract, sizes: Mapping[str, int] | None = None
) -> Judgement:
    """Compare every output. The first one that cannot be compared decides, otherwise the largest utilisation. With the sizes
    of the case, the message names the piece of a state of several."""
    if len(got) != len(expected):
        names = ", ".join(e.name for e in expected)
        one = len(got) == 1 and isinstance(got[0], Foreign)
        came = f"a {got[0].kind}" if one else f"{len(got)} output{'s' * (len(got) != 1)}"
        return Judgement(Verdict.FAIL, "outputs", f"it returned {came}; it must return a tuple of {len(expected)}: {names}")
    expected = as_kept(expected, got)
    for want, came in zip(expected, got, strict=True):
        refusal = _unfit(want, came, contract, sizes or {})
        if refusal is not None:
            return refusal
    measured = tuple(measure(want, came) for want, came in zip(expected, got, strict=True))
    beyond = [m for m in measured if not m.utilisation <= 1]
    if any(not np.isfinite(want.bound[_where(want)]).all() for want in expected):
        return Judgement(Verdict.UNKNOWN, "bound", "the bound is not finite, so this case shows nothing", measured)
    if beyond:
        return Judgement(Verdict.FAIL, "bound", "; ".join(_beyond(m, sizes or {}) for m in beyond), measured)
    if told := _stored_narrower(expected, got, contract):
        return Judgement(Verdict.FAIL, "dtype", told, measured)
    if tells_nothing(expected):
        message = f"the contract declared ({contract}) is so wide that zeros would pass; declare what is really computed"
        return Judgement(Verdict.UNKNOWN, VOID, message, measured)
    return Judgement(Verdict.PASS, outputs=measured)


def measure(want: Expected, came: Array) -> Measured:
    """The worst element of an output, and the position of the first beyond its bound."""
    judged = _where(want)
    error = np.where(judged, np.abs(np.asarray(came, dtype=np.float64) - want.value), 0.0)
    bound = np.where(judged, want.bound, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(error == 0, 0.0, error / bound)
    if ratio.size == 0:
        return Measured(want.name, want.state, 0.0, 0.0, 0.0, {}, at={})
    axes, worst = want.axes.split(), np.unravel_index(np.argmax(ratio), ratio.shape)
    beyond = np.argwhere(~(ratio <= 1))
    order = np.argsort(beyond[:, axes.index("t")], kind="stable") if "t" in axes else np.arange(len(beyond))
    first = beyond[order[0]] if len(beyond) else worst
    return Measured(
        want.name,
        want.state,
        float(ratio[worst]),
        float(error[worst]),
        float(bound[worst]),
        _by_axis(axes, first),
        void(want),
        float(want.value[worst]),
        float(np.asarray(came, dtype=np.float64)[worst]),
        drawn(np.where(judged, ratio, 0.0), want.axes) if len(beyond) else (),
        _by_axis(axes, worst),
    )


def _by_axis(axes: Sequence[str], place: Iterable[Any]) -> dict[str, int]:
    return {axis: int(i) for axis, i in zip(axes, place, strict=True)}


def void(want: Expected) -> bool:
    """Whether zeros would pass although the expected output is not all zero."""
    value = np.abs(want.value[_where(want)])
    return bool(value.any() and np.all(want.bound[_where(want)] >= value))


def tells_nothing(expected: Sequence[Expected]) -> bool:
    """Whether zeros would pass as every output that is computed."""
    computed = [want for want in expected if want.bound.any()]
    return bool(computed) and all(void(want) for want in computed)


def _where(want: Expected) -> Array:
    """The elements that are compared."""
    return np.broadcast_to(np.True_ if want.judged is None else want.judged, want.value.shape)


def _unfit(want: Expected, came: Any, contract: NumericContract, sizes: Mapping[str, int]) -> Judgement | None:
    """Why an output cannot be compared at all, or None."""
    storage: StateStorage = contract.state if want.recurrent else contract.io
    allowed = WIDER[storage]
    came = foreign(came)
    if isinstance(came, Foreign) or str(came.dtype) not in allowed:
        kind, needed = came if isinstance(came, Foreign) else f"ndarray of {came.dtype}", " or ".join(allowed)
        return Judgement(Verdict.FAIL, "dtype", f"{want.name} is {kind}; it must be a NumPy array of {needed}")
    if came.shape != want.value.shape:
        message = f"{want.name} has shape {came.shape}; it must be {want.value.shape}, axes ({want.axes})"
        return Judgement(Verdict.FAIL, "shape", message)
    judged = _where(want)
    bad = np.argwhere(judged & ~np.isfinite(came))
    if not np.isfinite(want.value[judged]).all():
        raise AssertionError(
            f"the oracle gave a value of {want.name} that is not finite: a bug of the suite, not of the implementation"
        )
    if len(bad):
        place = dict(zip(want.axes.split(), (int(i) for i in bad[0]), strict=True))
        message = (
            f"{want.name} holds {came[tuple(bad[0])]} in {len(bad)} of {came.size} places, first at {_place(place, sizes)}"
        )
        return Judgement(Verdict.FAIL, "nan", message)
    if want.recurrent and contract.state_scale is not None:
        if not coded(np.where(judged, came, 0.0), want.axes, contract):
            told = f"{want.name} is declared as {storage}, but its values are not codes times one scale for each block"
            scale = f"of {contract.state_scale} (the largest of it / {LARGEST_CODE[storage]:g})"
            return Judgement(Verdict.FAIL, "dtype", f"{told} {scale}")
        return None
    if not want.whole and not np.array_equal(stored(came[judged], storage), came[judged].astype(np.float64)):
        return Judgement(
            Verdict.FAIL, "dtype", f"{want.name} is declared as {storage}, but its values do not fit that format"
        )
    return None


def _stored_narrower(expected: list[Expected], got: tuple[Any, ...], contract: NumericContract) -> str:
    """What is said of a state declared as fp32 that was kept in a narrower format, "" where none was."""
    for want, came in zip(expected, got, strict=True):
        judged = _where(want)
        if not want.recurrent or contract.state != "fp32":
            continue
        if kept := narrower(want.value[judged], np.asarray(came)[judged]):
            told = f"{want.name} is declared as fp32, but every element is exactly a {kept} number"
            return f"{told}; keep it in fp32, or declare state={kept!r}"
    return ""


def _beyond(m: Measured, sizes: Mapping[str, int]) -> str:
    times = f"{ratio(m.utilisation)} times its bound {m.bound:.3g}" if m.bound > 0 else "where it must be equal"
    first = "" if m.first == m.at else f" (the worst place; the first is {_place(m.first, sizes)})"
    values = "" if m.expected is None or m.got is None else ": expected {}, got {}".format(*apart(m.expected, m.got, 6))
    return f"{m.name} is wrong by {m.error:.3g}, {times}, at {_place(m.at or {}, sizes)}{first}{values}"


def _place(first: Mapping[str, int], sizes: Mapping[str, int]) -> str:
    """b=0, h=1, f=2 of the angles"""
    told = (
        ", ".join(f"{axis}={index}" for axis, index in inside.items()) + (f" of {name}" if name else "")
        for name, inside in (piece_at(axis, index, sizes) for axis, index in first.items())
    )
    return ", ".join(told) or "its only value"
