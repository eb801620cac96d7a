"""Ids of cases in pytest: `ssmspec::ADAPTER::SUBJECT::CONTRACT::CASE`. A printed id can be pasted into a shell.

    pytest ssmspec::mine::window::fp32/sequential::conv.commit/b2,t7,c6,w4/plain/normal/s0

An id may be shortened: `ssmspec::mine::window` selects every case of one subject, `ssmspec::` every case.
"""

import re
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ssmspec_ref.options.words import nearest

from ..errors import UnknownCase
from ..suite import find

if TYPE_CHECKING:
    from ssmspec_ref.contract import Adapter

    from ..report.stream import Result
    from ..run.plan import Job, Selection

ROOT = "ssmspec"
BEGIN = f"{ROOT}::"
UNSAFE = re.compile(r"[^\w./,=+@%:-]+", re.ASCII)
"""Characters with a special meaning to a shell or to pytest."""


def identify(job: "Job") -> str:
    """The id of one case of one subject."""
    return BEGIN + "::".join(_part(part) for part in (*job.group[:3], job.identity))


def identify_empty(result: "Result") -> str:
    """The id of a declared operation that has no case."""
    return BEGIN + "::".join(_part(part) for part in (result.adapter, result.subject, result.contract, result.operation))


def _part(said: str) -> str:
    return UNSAFE.sub("-", said).strip("-").replace("::", "-") or "-"


def numbered(jobs: Iterable["Job"]) -> list[tuple[str, "Job"]]:
    """Every case with its id; if two ids are equal, the second gets the suffix "~2"."""
    seen: Counter[str] = Counter()
    found = []
    for job in jobs:
        name = identify(job)
        seen[name] += 1
        found.append((name if seen[name] == 1 else f"{name}~{seen[name]}", job))
    return found


def names(given: str, identity: str) -> bool:
    """Whether an id given on the command line selects a case."""
    return given == BEGIN or identity == given.rstrip(":") or identity.startswith(given.rstrip(":") + "::")


def case_of(given: str) -> str:
    """The case at the end of an id; "" if the id is shorter."""
    parts = given.split("::")
    return parts[4] if len(parts) == 5 else ""


def mistake(given: str, adapters: Iterable["Adapter"], selection: "Selection") -> str:
    """Which part of an id is wrong, and what it may be; or why a right id has no case."""
    parts = given.rstrip(":").split("::")[1:]
    known = [
        (adapter.name, subject.name, str(capability.contract), operation)
        for adapter in adapters
        for subject in adapter.subjects
        for operation, capability in subject.capabilities.items()
    ]
    for index, (what, part) in enumerate(zip(("adapter", "subject", "contract"), parts, strict=False)):
        choices = list(dict.fromkeys(_part(one[index]) for one in known))
        known = [one for one in known if _part(one[index]) == part]
        if not known:
            return f"{given}: there is no {what} {part!r}{nearest(part, choices)}; give one of {', '.join(choices)}"
    if len(parts) > 4:
        return f"{given}: an id has at most five parts, ssmspec::ADAPTER::SUBJECT::CONTRACT::CASE"
    if len(parts) == 4:
        try:
            operation = find(parts[3])[1].operation
        except UnknownCase as error:
            return f"{given}: {error}"
        had = [one[3] for one in known]
        if operation not in had:
            return f"{given}: {parts[1]} has no operation {operation}{nearest(operation, had)}; it has {', '.join(had)}"
        return f"{given}: the case lies outside the limits that {parts[1]} declares for {operation}"
    only = f" and the selection {selection.only}" if selection.only else ""
    return f"{given} has no case in tier {selection.tier}{only}"
