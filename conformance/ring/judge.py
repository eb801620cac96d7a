"""One case of an operation over the ring: the reference and an implementation, compared by ==.

The sizes, masks, trees and options are those of the case. Every number with a point is replaced by a random element, the
same for both: the reference gets the elements themselves (`arrays`), an implementation their names (`codes`), so an adapter
and its kernels run unchanged. What is never read holds random elements too, and outputs that a case does not compare are not
compared.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np

from ssmspec_ref import conv
from ssmspec_ref.contract import Capability, NumericContract, Verdict
from ssmspec_ref.errors import SpecError

from ..cases import Case
from ..errors import NotInRing
from ..suite import conv as conv_suite
from ..suite.recurrences import RECURRENCES
from ..suite.specification import Arguments, Specification
from . import arrays
from .codes import Codes

SEED = 12


@dataclass(frozen=True)
class Equal:
    """Whether all outputs are equal, and what differs or why nothing is judged."""

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
    return found


def judged(
    specification: Specification,
    capability: Capability,
    case: Case,
    over: Callable[[Codes], AbstractContextManager[None]] = lambda codes: nullcontext(),
    seed: int = SEED,
) -> Equal:
    """Compare one case. `over` is a context in which the implementation runs: `kernels.interpreted` for kernels of Triton.

    Unknown, with the reason, if either uses what has no meaning in the ring.
    """
    oracle = oracles().get(case.operation)
    if oracle is None:
        return Equal(Verdict.UNKNOWN, f"{case.operation} is not judged in the ring")
    codes, rng = Codes(), np.random.default_rng(seed)
    ordinary = specification.draw(case, NumericContract())
    exact = tuple(drawn(value, rng) for value in ordinary)
    try:
        with ExitStack() as stack:
            stack.enter_context(arrays.opaque())
            expected = oracle(*exact)
        with over(codes):
            came = capability.run(*(named(value, codes) for value in exact))
    except (NotInRing, SpecError) as error:
        return Equal(Verdict.UNKNOWN, f"not judged in the ring: {error}")
    except Exception as error:
        if (cause := without_rule(error)) is None:
            raise
        return Equal(Verdict.UNKNOWN, f"not judged in the ring: {cause}")
    masks = [e.judged for e in specification.expected(ordinary, NumericContract(), None)]
    return compared(expected, came if isinstance(came, tuple) else (came,), masks, codes)


def drawn(value: Any, rng: np.random.Generator) -> Any:
    """An argument with random elements for its numbers; a constant of the weights, such as eps, stays a number."""

    def fresh(a: Any) -> Any:
        if a.dtype.kind != "f":
            return a
        return arrays.ring(rng.integers(0, 1 << 64, a.shape, dtype=np.uint64))

    return replaced(value, fresh)


def named(value: Any, codes: Codes) -> Any:
    """An argument as an implementation gets it."""
    return replaced(value, lambda a: codes.as_numbers(arrays.elements(a)) if isinstance(a, arrays.Ring) else a)


def replaced(value: Any, function: Callable[[Any], Any]) -> Any:
    """An argument with a function applied to its arrays. A record is not checked again: elements have no sign."""
    if isinstance(value, np.ndarray):
        return function(value)
    if not is_dataclass(value):
        return value
    made = object.__new__(type(value))
    for field in fields(value):
        object.__setattr__(made, field.name, replaced(getattr(value, field.name), function))
    return made


def without_rule(error: BaseException) -> NotInRing | None:
    """What has no meaning in the ring, if that is why an exception was raised."""
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, NotInRing):
        seen = seen.__cause__ or seen.__context__
    return seen


def compared(expected: Any, came: tuple[Any, ...], masks: list[Any], codes: Codes) -> Equal:
    """Every output that is compared, element by element."""
    wanted = expected if isinstance(expected, tuple) else (expected,)
    for number, (want, got, mask) in enumerate(zip(wanted, came, masks, strict=True)):
        element = np.asarray(want).view(np.uint64)
        if np.shape(got) != element.shape:
            return Equal(Verdict.FAIL, f"output {number} has shape {np.shape(got)}, not {element.shape}")
        found = codes.of_numbers(np.asarray(got))
        wrong = (found != element) & (True if mask is None else np.broadcast_to(mask, element.shape))
        if wrong.any():
            place = tuple(int(i) for i in np.argwhere(wrong)[0])
            return Equal(Verdict.FAIL, f"output {number} differs in {int(wrong.sum())} of {wrong.size} elements, first at {place}")
    return Equal(Verdict.PASS)


def small(specification: Specification, capability: Capability, tier: str = "smoke") -> Iterator[Case]:
    """The cases of a tier without the option of slots and far inputs."""
    for case in specification.cases(tier, capability.limits):
        if case.options.get("slots", "rows") == "rows" and case.options.get("far", "none") == "none":
            yield case
