"""The limits that would leave out the cases in which an implementation raises, as a line to paste into its adapter."""

import json
from collections.abc import Sequence

from ssmspec_ref.contract import ASKED, Capability, Limits

from ..cases import Case
from ..suite.specification import Specification

Value = tuple[str, str]
"""An option and one of its values."""


def takes(
    specification: Specification,
    capability: Capability,
    smallest: Case,
    failing: Sequence[Case],
    passing: Sequence[Case],
    as_json: bool = False,
) -> str:
    """What to declare if the implementation does not take what the smallest failing case has and no passing case has: values
    of options, or else sizes; "" if there is nothing of the kind. `as_json` is for a program, which declares JSON."""
    out = _raising(specification, [smallest, *failing], passing)
    options = dict(capability.limits.options)
    for name in dict.fromkeys(name for name, _ in out):
        taken = options.get(name, specification.values[name])
        options[name] = tuple(value for value in taken if (name, value) not in out)
    sizes = dict(capability.limits.sizes)
    too_long = {} if out else _too_long([smallest, *failing], passing)
    for axis, most in too_long.items():
        sizes[axis] = (sizes.get(axis, (1, most))[0], most)
    if not (out or too_long) or not all(options[name] for name, _ in out):
        return ""
    what = [f"{name}={value}" for name, value in sorted(out)] + [f"{axis} above {most}" for axis, most in too_long.items()]
    limits = Limits(options, sizes, capability.limits.reason)
    return f"if it does not take {' or '.join(what)}, declare {as_program(limits) if as_json else as_python(limits)}"


def _raising(specification: Specification, failing: Sequence[Case], passing: Sequence[Case]) -> set[Value]:
    """Values that failing cases have and no passing case has, so few that the failing cases which have such a value have one
    of these; without a passing case, values that are not defaults. Empty if the first case has no such value."""
    right = {item for case in passing for item in case.options.items()} if passing else set(specification.defaults.items())
    suspects = [
        {(name, value) for name, value in case.options.items() if name in specification.values} - right for case in failing
    ]
    out: set[Value] = set()
    if not suspects[0]:
        return out
    for found in sorted(suspects, key=len):
        if not found & out:
            out |= found
    return out


def _too_long(failing: Sequence[Case], passing: Sequence[Case]) -> dict[str, int]:
    """The axes that are longer in every failing case than in any passing one, and the longest that passes."""
    if not failing or not passing:
        return {}
    most = {axis: max(case.sizes[axis] for case in passing) for axis in passing[0].sizes}
    return {axis: size for axis, size in most.items() if min(case.sizes[axis] for case in failing) > size}


def _declared(limits: Limits) -> dict[str, tuple[str, ...]]:
    """The options without those that are not declared: an option that is tested on demand only has its one value."""
    return {name: values for name, values in limits.options.items() if values != (ASKED.get(name),)}


def as_python(limits: Limits) -> str:
    """limits=Limits({"D": ("head", "off")}, sizes={"n": (1, 256)}, reason="no such option")"""
    options = ", ".join(f"{json.dumps(name)}: {_tuple(values)}" for name, values in _declared(limits).items())
    words = [f"{{{options}}}"] if options else []
    sizes = ", ".join(f"{json.dumps(axis)}: ({low}, {high})" for axis, (low, high) in limits.sizes.items())
    words += [f"sizes={{{sizes}}}"] if sizes else []
    words += [f"reason={json.dumps(limits.reason)}"] if limits.reason != Limits.reason else []
    return f"limits=Limits({', '.join(words)})"


def _tuple(values: Sequence[str]) -> str:
    return f"({', '.join(map(json.dumps, values))}{',' * (len(values) == 1)})"


def as_program(limits: Limits) -> str:
    """As a member of a JSON object: "limits": {"options": {"D": ["head", "off"]}, "sizes": {"n": [1, 256]}}"""
    said: dict[str, object] = {"options": _declared(limits)} if _declared(limits) else {}
    said |= {"sizes": limits.sizes} if limits.sizes else {}
    said |= {"reason": limits.reason} if limits.reason != Limits.reason else {}
    return f'"limits": {json.dumps(said)}'
