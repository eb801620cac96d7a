"""One case of an operation over the ring: the reference and an implementation, compared by ==.

The sizes, masks, trees and options are those of the case. Every number with a point is replaced by a random element, the
same for both. The reference and code in NumPy get the elements themselves (`arrays`); a kernel of Triton gets their names
(`codes`) through its adapter, and both run unchanged. What is never read holds random elements too, and outputs that a case
does not compare are not compared.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np

from ssmspec_ref import conv
from ssmspec_ref.contract import Capability, Limits, NumericContract, Verdict
from ssmspec_ref.errors import SpecError

from ..cases import Case
from ..errors import NotInRing
from ..suite import conv as conv_suite
from ..suite.recurrences import RECURRENCES
from ..suite.recurrences.packed import sequences
from ..suite.recurrences.recurrence import Recurrence
from ..suite.specification import Specification
from . import arrays
from .codes import Codes

SEED = 12
PLAIN = {"slots": "rows", "far": "none"}
"""Options of which only this value is tested in the ring."""


@dataclass(frozen=True)
class Compared:
    """Whether all outputs are equal, and what differs or why nothing is compared."""

    verdict: Verdict
    said: str = ""


def oracles() -> dict[str, Callable[..., Any]]:
    """The reference of every operation that has a meaning in the ring."""
    found: dict[str, Callable[..., Any]] = {
        "conv.step": conv.step,
        "conv.scan": conv.scan,
        "conv.scan_masked": conv.scan_masked,
        "conv.verify_tree": conv_suite.along_paths,
    }
    for kind in RECURRENCES.values():
        definition = kind.definition
        found |= {f"{kind.name}.step": definition.step, f"{kind.name}.scan": definition.scan}
        found |= {f"{kind.name}.scan_masked": definition.scan, f"{kind.name}.verify_tree": kind.along_paths}
        found |= {f"{kind.name}.scan_packed": packed(kind)}
    return found


def packed(kind: Recurrence) -> Callable[..., Any]:
    """Every sequence of a packed run alone."""

    def scan(S: Any, run: Any, bounds: Any, fresh: Any, params: Any) -> tuple[Any, Any]:
        after = np.where(fresh.reshape(-1, *[1] * (S.ndim - 1)), 0.0, S)
        outputs = []
        for b, window in sequences(run, bounds):
            y, after[b : b + 1] = kind.definition.scan(after[b : b + 1], window, params)
            outputs.append(y)
        return np.concatenate(outputs, axis=1), after

    return scan


def judged(
    specification: Specification, capability: Capability, case: Case, kernels: bool = False, seed: int = SEED
) -> Compared:
    """Compare one case; `kernels` says that the implementation launches kernels of Triton, in its interpreter.

    Unknown, with the reason, if the reference or the implementation uses what has no meaning in the ring.
    """
    oracle = oracles().get(case.operation)
    if oracle is None or any(case.options.get(name, value) != value for name, value in PLAIN.items()):
        return Compared(Verdict.UNKNOWN, f"{case.operation} with such options is not judged in the ring")
    rng, codes = np.random.default_rng(seed), Codes() if kernels else None
    ordinary = specification.draw(case, NumericContract())
    exact = tuple(replaced(value, lambda a: drawn(a, rng)) for value in ordinary)
    try:
        with arrays.opaque():
            expected = oracle(*exact)
            came = capability.run(*exact) if codes is None else launched(capability, exact, codes)
    except Exception as error:
        if (cause := without_rule(error)) is None:
            raise
        return Compared(Verdict.UNKNOWN, str(cause))
    masks = [e.judged for e in specification.expected(ordinary, NumericContract(), None)]
    return compared(_tuple(expected), _tuple(came), masks, codes)


def launched(capability: Capability, exact: tuple[Any, ...], codes: Codes) -> Any:
    """The outputs of an implementation whose kernels run over the ring."""
    from .kernels import interpreted

    def name(a: Any) -> Any:
        return codes.as_numbers(arrays.elements(a)) if isinstance(a, arrays.Ring) else a

    with interpreted(codes):
        return capability.run(*(replaced(value, name) for value in exact))


def drawn(a: Any, rng: np.random.Generator) -> Any:
    """Random elements for numbers; masks and indices as they are."""
    return arrays.ring(rng.integers(0, 1 << 64, a.shape, dtype=np.uint64)) if a.dtype.kind == "f" else a


def replaced(value: Any, function: Callable[[Any], Any]) -> Any:
    """An argument with a function applied to its arrays. Records are not checked again: elements have no sign."""
    if isinstance(value, np.ndarray):
        return function(value)
    if not is_dataclass(value):
        return value
    made: Any = object.__new__(type(value))
    for field in fields(value):
        object.__setattr__(made, field.name, replaced(getattr(value, field.name), function))
    return made


def without_rule(error: BaseException | None) -> BaseException | None:
    """What has no meaning in the ring, if that is why an exception was raised; an argument that is refused counts too."""
    while error is not None and not isinstance(error, NotInRing | SpecError):
        error = error.__cause__ or error.__context__
    return error


def compared(expected: tuple[Any, ...], came: tuple[Any, ...], masks: list[Any], codes: Codes | None) -> Compared:
    """Every output that is compared, element by element."""
    for number, (want, got, mask) in enumerate(zip(expected, came, masks, strict=True)):
        element = arrays.elements(want)
        if np.shape(got) != element.shape:
            return Compared(Verdict.FAIL, f"output {number} has shape {np.shape(got)}, not {element.shape}")
        if codes is None and not isinstance(got, arrays.Ring):
            return Compared(Verdict.UNKNOWN, f"output {number} is no array of the ring: the code casts what it is given")
        found = arrays.elements(got) if codes is None else codes.of_numbers(np.asarray(got))
        wrong = (found != element) & (True if mask is None else np.broadcast_to(mask, element.shape))
        if wrong.any():
            first = tuple(int(i) for i in np.argwhere(wrong)[0])
            told = f"output {number} differs in {int(wrong.sum())} of {wrong.size} elements, first at {first}"
            return Compared(Verdict.FAIL, told)
    return Compared(Verdict.PASS)


def cases(specification: Specification, limits: Limits, tier: str) -> Iterator[Case]:
    """The cases of a tier without pools and inputs that are far apart."""
    for case in specification.cases(tier, limits):
        if all(case.options.get(name, value) == value for name, value in PLAIN.items()):
            yield case


def _tuple(came: Any) -> tuple[Any, ...]:
    return came if isinstance(came, tuple) else (came,)
