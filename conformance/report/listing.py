"""A list of known failures (`run.known`) made from a report: what failed in it, each entry with its cause as the reason."""

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from glob import escape

from ..errors import KnownListError
from .reading import cause_of
from .stream import Report, Result

LISTED = ("fail", "known-failure")
LONGEST = 300
"""Characters of a reason."""


@dataclass(frozen=True)
class Listing:
    """The list as TOML, the number of its entries, and the cases that no list can hold: drawn by the seed, and unknown."""

    text: str
    entries: int
    drawn: int
    unknown: int


def listing(report: Report, link: str, expires: date) -> Listing:
    """An entry for each operation of which every case failed, else for each failed case. A known failure keeps its reason and
    its link.

    Raises: KnownListError for a report of several adapters, which a list does not tell apart, or one without a failure.
    """
    if len(report.header.adapters) > 1:
        names = ", ".join(report.header.adapters)
        raise KnownListError(f"the report is of {names}, and a list does not tell adapters apart; give that of one")
    cells: dict[tuple[str, str, str], list[Result]] = defaultdict(list)
    for r in report.results:
        if r.case and r.operation:
            cells[r.subject, r.contract, r.operation].append(r)
    causes = {(d.subject, d.contract, d.operation, d.failing, d.reason): cause_of(d) or d.message for d in report.diagnoses}
    made, drawn = [], 0
    for (subject, contract, operation), results in cells.items():
        failed = [r for r in results if r.verdict in LISTED]
        whole = not report.header.only and len(failed) == len(results) and len({r.reason for r in failed}) == 1
        named = [r for r in failed if not r.drawn]
        drawn += 0 if whole else len(failed) - len(named)
        for r in failed[:1] if whole else named:
            reason = r.reason or causes.get((subject, contract, operation, r.failing, r.reason)) or r.message
            case = f"{operation}/*" if whole else escape(r.case)
            made.append("\n".join(_entry(escape(subject), escape(contract), case, reason, r.link or link, expires)))
    if not made and not drawn:
        raise KnownListError("no case of the report failed, so there is nothing to list")
    unknown = sum(r.verdict == "unknown" for r in report.results)
    return Listing("\n\n".join(made) + "\n", len(made), drawn, unknown)


def _entry(subject: str, contract: str, case: str, reason: str, link: str, expires: date) -> Iterator[str]:
    yield "[[known]]"
    texts = {"subject": subject, "contract": contract, "case": case, "reason": reason[:LONGEST], "link": link}
    yield from (f"{name} = {_text(value)}" for name, value in texts.items())
    yield f"expires = {expires.isoformat()}"


def _text(value: str) -> str:
    """A string of TOML: that of JSON, but for a control character that JSON leaves as it is."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
