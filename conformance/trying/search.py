"""Calls of a function in every layout, compared with the float64 reference."""

import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from ssmspec_ref.contract import Capability, Limits, NumericContract, Verdict
from ssmspec_ref.shapes import Array

from ..cases import Case
from ..judge.verdict import compare, expectation
from ..suite import of_operation
from ..suite.called import Arguments
from ..suite.expected import Expected
from ..suite.specification import Specification
from .arrange import laid
from .layouts import Guess, own_options
from .reading import Function, raised
from .source import Outputs, source
from .spellings import FAMILIES

CASES = 3
"""Drawn cases: other sizes and other values of the options in each."""
RAISED, REFUSED, NO_OUTPUT, NO_STATE, COMPARED = range(5)
"""How far a guess comes: it raised as for wrong shapes, or for another reason; nothing that it returned has the shape of the
output; nothing is the state; it was compared."""
OF_SHAPES = (TypeError, IndexError, ValueError, RuntimeError)
"""What a function raises whose inputs have other shapes than it takes."""


@dataclass(frozen=True)
class Tried:
    """A guess and the result of its calls: in how many cases it fits, how far it is off in the worst (the norm of the error
    by that of the expected values; infinite if it was not compared), the largest share of the allowed error, why not, and how
    far it came."""

    guess: Guess
    outputs: Outputs | None = None
    fits: int = 0
    off: float = float("inf")
    share: float = 0.0
    said: str = ""
    reached: int = 0

    @property
    def right(self) -> bool:
        return self.fits == CASES


def tried(of: Function, guesses: Iterator[Guess], dtype: str) -> list[Tried]:
    """Every guess with its result. Of guesses that differ in numbers only, the others are left out where shapes fail."""
    found, hopeless = list[Tried](), set[tuple[object, ...]]()
    with warnings.catch_warnings(), np.errstate(all="ignore"), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        for guess in guesses:
            if guess.arranged in hopeless:
                continue
            one = attempt(of, guess, dtype)
            found.append(one)
            if one.reached not in (REFUSED, COMPARED):
                hopeless.add(guess.arranged)
    return found


def attempt(of: Function, guess: Guess, dtype: str) -> Tried:
    """Call a guess on the drawn cases, and compare."""
    raw = _capability(source(of, guess, dtype, None), guess)
    case = drawn(guess, raw.limits, 0)
    (specification,) = of_operation(guess.operation)
    arguments, _ = _expected(case, raw.contract)
    try:
        returned, state = raw.run(*_given(arguments))
    except Exception as error:
        return Tried(guess, said=raised(error), reached=RAISED if isinstance(error, OF_SHAPES) else REFUSED)
    before = dict(case.sizes) | ({"t": case.sizes["t"] + case.sizes["w"] - 1} if state is None and "w" in case.sizes else {})
    outputs = _outputs(guess, returned, state, arguments[0], before)
    if isinstance(outputs, str):
        return Tried(guess, said=outputs, reached=NO_STATE if "state" in outputs else NO_OUTPUT)
    capability = _capability(source(of, guess, dtype, outputs), guess)
    results = [_case(specification, capability, drawn(guess, raw.limits, turn)) for turn in range(CASES)]
    said = next((said for fits, _, _, said in results if not fits), "")
    fits, off, share = sum(r[0] for r in results), max(r[1] for r in results), max(r[2] for r in results)
    return Tried(guess, outputs, fits, off, share, said, COMPARED)


def _capability(text: str, guess: Guess) -> Capability:
    """The capability of an adapter's source."""
    scope: dict[str, Any] = {"__name__": "tried", "__file__": "adapter.py"}
    exec(compile(text, "<adapter>", "exec"), scope)
    found: Capability = scope["adapter"]().subjects[0].capabilities[guess.operation]
    return found


def drawn(guess: Guess, limits: Limits, turn: int) -> Case:
    """A drawn case within the limits: every value of each option is in one of them, as far as three cases have room."""
    (specification,) = of_operation(guess.operation)
    sizes = dict(FAMILIES[guess.matching.family].sizes[turn // 2]) | {axis: low for axis, (low, _) in guess.sizes.items()}
    chosen = {}
    for place, (name, values) in enumerate(own_options(guess.matching.family).items()):
        taken = [v for v in values if v in limits.options.get(name, values)] or [values[0]]
        chosen[name] = taken[(turn if turn < 2 else turn + place) % len(taken)]
    own = {axis: size for axis, size in sizes.items() if axis in specification.base}
    return specification.case(own, specification.first(limits) | chosen, "normal", turn)


@cache
def _kept(key: tuple[Any, ...], contract: NumericContract) -> tuple[Arguments, list[Expected]]:
    operation, sizes, options, family, seed = key
    case = Case(operation, dict(sizes), dict(options), family, seed)
    (specification,) = of_operation(operation)
    arguments = specification.draw(case, contract)
    return arguments, expectation(specification, case, contract, arguments, None)


def _expected(case: Case, contract: NumericContract) -> tuple[Arguments, list[Expected]]:
    """The arguments of a case, and what the reference expects."""
    key = (case.operation, tuple(case.sizes.items()), tuple(case.options.items()), case.family, case.seed)
    return _kept(key, contract)


def _given(arguments: Arguments) -> Arguments:
    """The arguments as an adapter gets them: no states where all rows start from zeros."""
    first, *rest = arguments
    return (first if isinstance(first, np.ndarray) else None, *rest)


def _case(specification: Specification, capability: Capability, case: Case) -> tuple[bool, float, float, str]:
    """Whether a case fits, how far it is off, its share of the allowed error, and what is wrong."""
    arguments, expected = _expected(case, capability.contract)
    try:
        came = specification.run(capability, arguments)
        if came.used is not None:
            expected = expectation(specification, case, capability.contract, arguments, came.used)
    except Exception as error:
        return False, float("inf"), float("inf"), raised(error)
    found = compare(expected, came.outputs, capability.contract, case.sizes)
    share = max((m.utilisation for m in found.outputs), default=float("inf"))
    return found.verdict is Verdict.PASS, _off(expected, came.outputs), share, found.message


def _off(expected: Sequence[Expected], got: Sequence[Array]) -> float:
    """The largest of the outputs' errors, each as a norm by that of the expected values."""
    if any(want.value.shape != returned.shape for want, returned in zip(expected, got, strict=True)):
        return float("inf")
    ratios = [
        float(np.linalg.norm((returned - want.value).ravel()) / np.linalg.norm(want.value.ravel()))
        for want, returned in zip(expected, got, strict=True)
    ]
    return max((r if np.isfinite(r) else float("inf") for r in ratios), default=float("inf"))


def _outputs(guess: Guess, returned: Any, state: Any, S: Any, sizes: Mapping[str, int]) -> Outputs | str:
    """Which of the returned arrays is the output, and which is the state, by their shapes: sizes differ on every axis."""
    y_axes = guess.output_axes.split()
    if isinstance(returned, dict):
        parts = {f'returned["{name}"]': part for name, part in returned.items()}
    else:
        several = isinstance(returned, tuple | list)
        parts = {f"returned[{n}]": part for n, part in enumerate(returned)} if several else {"returned": returned}
    shapes = {at: tuple(part.shape) for at, part in parts.items() if hasattr(part, "shape")}
    y = {at: axes for at, shape in shapes.items() if (axes := axes_of(shape, y_axes, sizes)) is not None}
    if not y:
        listed = ", ".join(map(str, shapes.values())) or type(returned).__name__
        return f"it returned {listed}, and none of it has the shape of the output ({' '.join(y_axes)})"
    at = next(iter(y))
    found = _state(guess, {where: shape for where, shape in shapes.items() if where != at}, state, S, sizes)
    return found if isinstance(found, str) else Outputs(at, y[at], *found)


def _state(
    guess: Guess, shapes: Mapping[str, tuple[int, ...]], state: Any, S: Any, sizes: Mapping[str, int]
) -> tuple[str | None, str] | str:
    """Where the state is, and its axes; or why it is nowhere."""
    table = guess.matching.of
    axes = table.roles[table.state].axes.split()
    known = dict(sizes)
    known |= {"q": known["w"] - 1} if "w" in known else {}
    both = (axes, ["q" if axis == "w" else axis for axis in axes])
    for where, shape in shapes.items():
        for one in both:
            if (found := axes_of(shape, one, known)) is not None:
                return where, found
    if state is None:
        return (None, "") if guess.matching.family == "conv" else "it returns no state; the suite compares it: return it too"
    given = _laid_again(guess, S)
    after = np.asarray(state.detach().cpu().double().numpy() if hasattr(state, "detach") else state)
    if given is not None and given.shape == after.shape and not np.allclose(after, given, rtol=1e-6, atol=0):
        return "", guess.layouts[table.state]
    return "it returns no state and writes none in place; the suite compares it: return it too"


def _laid_again(guess: Guess, S: Array) -> Array | None:
    return laid(S, f"{guess.source_axes(guess.matching.of.state)} -> {guess.layouts[guess.matching.of.state]}")


def axes_of(shape: tuple[int, ...], axes: Sequence[str], sizes: Mapping[str, int]) -> str | None:
    """The axes of a shape, in its order: each of the axes once, those of size 1 perhaps dropped, `1` for further ones."""
    left, found = list(axes), list[str]()
    for size in shape:
        fitting = next((axis for axis in left if sizes[axis] == size), None)
        if fitting is not None:
            left.remove(fitting)
        elif size != 1:
            return None
        found.append(fitting or "1")
    return " ".join(found) if all(sizes[axis] == 1 for axis in left) else None


def best(results: Sequence[Tried]) -> list[Tried]:
    """The guesses that fit, without those that a more general one that fits covers.

    One is more general if it leaves out less; or, of two that take the same options, if it holds fewer axes at size 1: a
    function without rows that takes heads also takes rows instead of heads.
    """
    right = [one for one in results if one.right]
    return [one for one in right if not any(_more_general(other.guess, one.guess) for other in right)]


def _more_general(one: Guess, other: Guess) -> bool:
    alike = (one.operation, one.framework, one.ways, one.options) == (
        other.operation, other.framework, other.ways, other.options,
    )  # fmt: skip
    return one.narrow < other.narrow or (alike and len(one.sizes) < len(other.sizes))


def nearest(results: Sequence[Tried]) -> Tried:
    """The guess that comes nearest: most cases, then the smallest error (more by axes held at 1), then the likeliest."""
    return min(results, key=lambda one: (-one.fits, one.off * (1 + len(one.guess.sizes)), -one.reached))


def doubtful(chosen: Tried, results: Sequence[Tried]) -> Tried | None:
    """A more general layout that can be called and is wrong, where a narrower one fits; None if there is none.

    A function that takes groups of heads and reads the wrong one is right for one group.
    """
    wider = [
        one
        for one in results
        if one.reached == COMPARED and not one.right and one.guess.narrow < chosen.guess.narrow
        and one.guess.ways == chosen.guess.ways and one.guess.options == chosen.guess.options
    ]  # fmt: skip
    return min(wider, key=lambda one: one.off, default=None)
