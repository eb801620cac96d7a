"""Find the change of the correct outputs that explains a failure: positions exchanged or shifted, axes exchanged, no update,
a double update, other signs and scales, a narrower format."""

from collections.abc import Iterator, Mapping

import numpy as np

from ssmspec_ref.contract import UNIT_ROUNDOFF, NumericContract
from ssmspec_ref.shapes import Array

from ..judge.draw import stored
from ..judge.figures import ratio
from ..suite.expected import Expected
from .extent import word
from .leaves import leaves
from .observe import Observation, judged

MOST = 2
"""Patterns to report for one output."""
MANY = 4
"""Fewest different integers, expected and actual, for a sign, a sum or another layout: fewer may agree by chance."""
LARGEST = 400_000
"""Largest number of values for a comparison of positions."""


def patterns(observation: Observation, number: int, contract: NumericContract) -> list[str]:
    """What an output equals instead of the expected value, in at most two ways."""
    with np.errstate(all="ignore"):  # infinity, and NaN, equal nothing
        return [says for says, _ in zip(_patterns(observation, number, contract), range(MOST), strict=False)]


def _patterns(observation: Observation, number: int, contract: NumericContract) -> Iterator[str]:
    want, wrong = observation.expected[number], observation.wrong(number)
    came, value = observation.came[number].astype(np.float64), want.value
    tolerance = 2 * want.bound + 8 * UNIT_ROUNDOFF[contract.io] * np.abs(value) + 1e-30

    def holds(other: Array) -> bool:
        """Whether every wrong value equals that of `other`, and the match is not by chance."""
        if other.shape != came.shape:
            return False
        close = 2 * want.bound + 8 * UNIT_ROUNDOFF[contract.io] * np.maximum(np.abs(other), np.abs(value)) + 1e-30
        return bool((np.abs(came - other) <= close)[wrong].all() and (np.abs(other - value) > close)[wrong].all())

    name = want.name
    if not want.whole and holds(np.zeros_like(came)):  # 0 is a token like others
        yield f"{name} is 0 where it is wrong: not written, or cleared"
    few = want.whole and len(np.unique([came[wrong], value[wrong]])) < MANY  # a sum or a sign of few integers meets others
    if not few and holds(-value):
        yield f"{name} has the other sign"
    before = _before(observation, number)
    for says, old in before.items():
        if holds(old):
            yield f"{name} is stale: it is {says}"
        elif few:
            continue
        elif holds(value + (value - old)):
            yield f"{name} is updated twice, beginning from {says}"
        elif holds(value - old):
            yield f"{name} lacks what it began from, {says}"
        elif holds(value + old):
            yield f"{name} counts {says} once too often"
    if not want.whole:  # few different integers: rows agree by chance
        yield from _moved(observation, number, tolerance)
    if not few:
        yield from _transposed(observation, number, holds)
    yield from _scaled(name, came[wrong], value[wrong], tolerance[wrong], observation.case.sizes)
    if not want.whole:
        yield from _rounded(want, came, contract)


def _before(observation: Observation, number: int) -> dict[str, Array]:
    """Earlier values that an output may still have: the call's initial state, and that after the previous window."""
    want = observation.expected[number]
    kind = want.name.split()[0]
    found = {}
    for leaf in leaves(observation.case.operation, observation.arguments):
        if leaf.name in (kind, "states") and isinstance(leaf.value, np.ndarray) and leaf.value.shape == want.value.shape:
            found[f"the {kind} passed in"] = leaf.value
    for earlier in observation.expected[:number]:
        if earlier.name.split()[0] == kind and earlier.value.shape == want.value.shape:
            found[f"the right {earlier.name}"] = earlier.value
    return found


def _moved(observation: Observation, number: int, tolerance: Array) -> Iterator[str]:
    """Along one axis, wrong positions hold the values of other positions."""
    want, wrong = observation.expected[number], observation.wrong(number)
    came, value = observation.came[number].astype(np.float64), want.value
    if value.size > LARGEST:
        return
    for axis, letter in enumerate(want.axes.split()):
        size = value.shape[axis]
        if size < 2 or size > 512:
            continue
        others = tuple(other for other in range(value.ndim) if other != axis)
        touched = np.flatnonzero(wrong.any(axis=others))
        source = {}
        for at in touched:
            got, own, bad = (np.take(a, at, axis) for a in (came, value, wrong))
            for other in sorted(range(size), key=lambda j: abs(j - int(at))):
                theirs = np.take(value, other, axis)
                near = 8 * np.take(tolerance, at, axis) + 8 * np.take(tolerance, other, axis)
                if other != at and (np.abs(got - theirs) <= near)[bad].all() and (np.abs(theirs - own) > near)[bad].any():
                    source[int(at)] = int(other)
                    break
        if touched.size and len(source) == len(touched) and bad.sum() > 0:
            if value.size // size < 2 and len(touched) < 2:
                continue  # one number that equals another may be chance
            yield _mapping(want.name, letter, source)


def _mapping(name: str, letter: str, source: dict[int, int]) -> str:
    one, many = word(letter), word(letter, True)
    steps = {other - at for at, other in source.items()}
    if len(steps) == 1 and len(source) > 1:
        step = steps.pop()
        much = f"{abs(step)} {one if abs(step) == 1 else many}"
        return f"{name} is shifted by {much}: {one} i holds what belongs to {one} i {'+' if step > 0 else '-'} {abs(step)}"
    if len(set(source.values())) == 1 and len(source) > 1:
        return f"{many} {_listed(source)} of {name} all hold what belongs to {one} {next(iter(source.values()))}"
    if all(source.get(other) == at for at, other in source.items()):
        pairs = [f"{at} and {other}" for at, other in source.items() if at < other]
        return f"{many} {_listed(pairs)} of {name} are swapped"
    told = [f"{one} {at} holds what belongs to {one} {other}" for at, other in source.items()]
    return f"in {name}, {_listed(told)}"


def _listed(things: object) -> str:
    every = [str(thing) for thing in things]  # type: ignore[attr-defined]
    return ", ".join(every[:4]) + (", .." if len(every) > 4 else "")


def _transposed(observation: Observation, number: int, holds: object) -> Iterator[str]:
    want, wrong = observation.expected[number], observation.wrong(number)
    axes, value = want.axes.split(), want.value
    for i in range(value.ndim):
        for j in range(i + 1, value.ndim):
            if min(value.shape[i], value.shape[j]) < 2:
                continue
            swapped = value.swapaxes(i, j)
            exactly = swapped.shape == value.shape
            laid = swapped if exactly else swapped.reshape(value.shape)
            moved = judged(want) & (laid != value)
            if 2 * wrong.sum() >= moved.sum() and holds(laid):  # type: ignore[operator]
                how = "is transposed in" if exactly else "lies in memory with"
                yield f"{want.name} {how} the axes {axes[i]} and {axes[j]}{'' if exactly else ' exchanged'}"


def _scaled(name: str, came: Array, value: Array, tolerance: Array, sizes: Mapping[str, int]) -> Iterator[str]:
    """All wrong values differ from the expected ones by one factor, or by one difference."""
    large = np.abs(value) > 1e3 * tolerance
    if large.sum() >= 3:
        factors = came[large] / value[large]
        factor = float(np.median(factors))
        spread = np.abs(factors - factor).max()
        if spread <= min(1e-4 * max(abs(factor), 1e-3), 0.1 * abs(factor - 1)) and min(abs(factor), abs(factor + 1)) > 1e-3:
            yield f"every wrong value of {name} is {ratio(factor, 4)} times what it must be{_constant(factor, sizes)}"
    if len(came) >= 3:
        apart = came - value
        if np.abs(apart - apart[0]).max() <= 4 * tolerance.max() and np.abs(apart).min() > 100 * tolerance.max():
            yield f"every wrong value of {name} is off by the same {apart[0]:.4g}"


def _constant(factor: float, sizes: Mapping[str, int]) -> str:
    """A factor as a known constant, or in terms of a size of the case; "" if it is neither."""
    known = {
        "log2(e)": np.log2(np.e),
        "ln(2)": np.log(2),
        "sqrt(2)": 2**0.5,
        "1/sqrt(2)": 2**-0.5,
        "log2(e)^2": np.log2(np.e) ** 2,
    }
    for axis, size in sizes.items():
        if size > 2:
            of = f", with {axis} = {size} {word(axis, True)}"
            known |= {f"1/sqrt({axis}){of}": size**-0.5, f"sqrt({axis}){of}": size**0.5, f"1/{axis}{of}": 1 / size}
            known |= {f"{axis}{of}": float(size)}
    met = [says for says, value in known.items() if abs(abs(factor) - value) <= 2e-4 * value]
    return f" ({'or '.join(met)})" if met else ""


def _rounded(want: Expected, came: Array, contract: NumericContract) -> Iterator[str]:
    """Every value is exactly representable in a narrower format than the contract declares, and the right ones are not; or
    the values were rounded to another format first."""
    declared = contract.state if want.recurrent else contract.io
    finite = came[np.isfinite(came) & (came != 0)]
    for narrow in ("bf16", "fp16", "fp32"):
        if narrow == declared or finite.size < 8 or contract.state_scale is not None:
            continue
        wider = UNIT_ROUNDOFF[narrow] <= UNIT_ROUNDOFF[declared]
        same, right = (np.array_equal(stored(a, narrow), a) for a in (finite, want.value))
        if same and not right and not wider:
            yield f"every value of {want.name} is a {narrow} number, though {declared} is declared"
            return
        if declared != "fp32":
            once, twice = stored(want.value, declared), stored(stored(want.value, narrow), declared)
            if np.array_equal(twice, came) and not np.array_equal(once, came):
                yield f"{want.name} is rounded to {narrow} first, and then to {declared}"
                return
