"""A kind of failure in reading order: why, what differs first, the smallest case; the rest is folded."""

from collections.abc import Iterator
from dataclasses import dataclass

from ..judge.raised import RAISED
from .failure_groups import FailureGroup
from .stream import Diagnosis

Line = tuple[str, str]
"""The name of a line, and what it says."""
CAUSES = ("behaves", "equation")
"""Facts that explain a failure, the more certain first; then a planted fault with the same outputs."""
ON_TOP = ("order", "bug", "takes", "replay", "search")
"""Facts that are read before the smallest case is run again."""
RIGHT = "; right: "


@dataclass(frozen=True)
class Reading:
    """The lines of a failure: `first`, in order; the `rest`, which a reader opens; the commands that run it `again`."""

    first: tuple[Line, ...]
    rest: tuple[Line, ...]
    again: tuple[str, ...]


def reading(group: FailureGroup) -> Reading:
    """The lines of the diagnoses that share a smallest case."""
    d = group.first
    cause = next(_causes(d), None)
    differs = difference(d)
    first = [
        ("cause", cause[1] if cause else ""),
        ("known", f"{d.reason} {d.link}".strip()),
        ("differs", differs),
        *((name, d.facts.get(name, "")) for name in ON_TOP),
        ("smallest", d.smallest),
    ]
    rest = [
        ("worst", d.message) if differs != d.message else ("diverges", d.diverges),
        *((name, said) for name, said in d.facts.items() if name not in ("values", *ON_TOP)),
        ("looks", d.looks_like),
        ("tests", d.source),
    ]
    rest = [line for line in rest if line != cause]
    same = group.diagnoses[:1] if d.failing in RAISED else group.diagnoses
    again = tuple(dict.fromkeys(one.rerun for one in same))
    return Reading(tuple(line for line in first if line[1]), tuple(line for line in rest if line[1]), again)


def cause_of(d: Diagnosis) -> str:
    """What explains a failure best; "" if nothing does."""
    return next(_causes(d), ("", ""))[1]


def _causes(d: Diagnosis) -> Iterator[Line]:
    yield from ((name, d.facts[name]) for name in CAUSES if d.facts.get(name))
    if d.looks_like:
        yield "looks", d.looks_like


def difference(d: Diagnosis) -> str:
    """The first difference with its own two values, and what is right beside it; without values, the message."""
    if not (values := d.facts.get("values")):
        return d.message
    right = d.diverges.partition(RIGHT)[2]
    return f"{values}{RIGHT}{right}" if right else values
