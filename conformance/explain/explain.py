"""A case id in words: the operation, its sizes, options, inputs and seed, what is compared, and why the case is there."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np

from ssmspec_ref.contract import OPERATIONS, Limits, NumericContract

from ..cases import Case
from ..checked import METHODS
from ..run.program import arguments_of
from ..run.sessions import opened
from ..suite import find, of_operation
from ..suite.specification import Specification
from . import words
from .arguments import RETURNED, meaning, received

WIDEST = 6
"""Number of outputs to list one by one; operations over many windows have more, which are counted."""


def explain(identity: str) -> list[tuple[str, str]]:
    """The parts of an id, or the arguments of an operation, each with its meaning. Raises: UnknownCase."""
    if identity in OPERATIONS:
        return [*_arguments(identity)]
    specification, case = find(identity.rpartition("::")[2])  # an id of pytest ends with that of the case
    return [*_parts(specification, case)]


def _arguments(operation: str) -> Iterator[tuple[str, str]]:
    """How an operation is called: every array with its axes, what is returned, and the options that its cases have."""
    specification = of_operation(operation)[0]
    case = next(iter(specification.cases("smoke", Limits())))
    yield operation, _operation(operation)
    given = specification.draw(case, NumericContract())
    for name, value in zip(opened(operation) or arguments_of(operation), given, strict=False):
        yield from _argument(name, value, meaning(operation, name, value))
    expected = specification.expect(given, NumericContract(), None)
    yield "returns", ", ".join(f"{e.name} ({e.axes})" for e in expected[:WIDEST])
    for name, said in RETURNED.get(operation, {}).items():
        yield f"  {name}", said
    yield "options", ", ".join(specification.offered_text) or "none"
    yield "axes", ", ".join(f"{axis} {words.AXES[axis]}" for axis in case.sizes if axis in words.AXES)


def _argument(name: str, value: Any, said: str) -> Iterator[tuple[str, str]]:
    """An argument in words; the fields of a record with their axes; of anything else its type in the first case."""
    if not is_dataclass(value):
        kind = f"{value.dtype}, {value.shape} in the first case" if isinstance(value, np.ndarray) else type(value).__name__
        yield name, "; ".join(part for part in (kind, said) if part)
        return
    yield name, said
    hints = get_type_hints(type(value))
    for field in fields(value):
        if get_origin(hints[field.name]) is tuple:
            yield (
                f"{name}.{field.name}",
                f"({', '.join(getattr(kind, '__name__', '..') for kind in get_args(hints[field.name]))})",
            )
            continue
        kinds = get_args(hints[field.name]) or (hints[field.name],)
        axes = [f"({kind.dim_str})" for kind in kinds if hasattr(kind, "dim_str")]
        named = dict.fromkeys(str(getattr(kind, "__name__", kind)) for kind in kinds if kind not in (type(None), ...))
        told = " or ".join(axes or named)
        yield f"{name}.{field.name}", told + (", may be None" if type(None) in kinds else "")


def _parts(specification: Specification, case: Case) -> Iterator[tuple[str, str]]:
    yield case.operation, _operation(case.operation)
    group = case.operation.partition(".")[0]
    axes = words.AXES | words.AXES_OF.get(group, {}) | words.AXES_OF.get(case.operation, {})
    for axis, size in case.sizes.items():
        yield f"{axis}{size}", f"{size} {axes[axis]}"
    defaults = specification.defaults
    plain = [name for name, value in case.options.items() if value == defaults.get(name)]
    for name, value in case.options.items():
        if name not in plain:
            yield f"{name}={value}", _option(name, value)
    if plain:
        yield (
            "plain" if len(plain) == len(case.options) else "the rest",
            "options at their defaults: " + ", ".join(f"{name}={case.options[name]}" for name in plain),
        )
    yield case.family, (words.FAMILIES | words.FAMILIES_OF.get(group, {}))[case.family]
    yield f"s{case.seed}", _seed(specification, case)
    expected = specification.expected(specification.draw(case, NumericContract()), NumericContract(), None)
    names = [f"{e.name} ({e.axes})" + ("" if e.bound.any() else " bit for bit") for e in expected[:WIDEST]]
    more = f", and {len(expected) - WIDEST} more" if len(expected) > WIDEST else ""
    yield "compared", ", ".join(names) + more
    for name, said in RETURNED.get(case.operation, {}).items():
        yield f"  {name}", said
    yield from received(specification, case)
    yield "source", specification.source(case)


def _operation(operation: str) -> str:
    if not opened(operation):
        return OPERATIONS[operation]
    group = operation.split(".")[0]
    return f"{OPERATIONS[operation]}; the adapter returns {METHODS.get(group, METHODS['windows'])}"


def _option(name: str, value: str) -> str:
    said = words.VALUES.get(f"{name}={value}", "")
    return f"{words.OPTIONS[name]}: {said or value}"


def _seed(specification: Specification, case: Case) -> str:
    if case.seed > 0:
        return f"seed {case.seed} of the inputs; arrays lie with gaps of NaN between their elements"
    if case.family == specification.families[-1]:
        return "seed 0 of the inputs; called three times, with other inputs between (--seed) in the same arrays"
    return "seed 0 of the inputs"
