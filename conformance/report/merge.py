"""Merge the reports of the shards of one run into the report of the run.

All parts must have been run under the same conditions, each shard must occur once, and no case twice. Inapplicable operations
occur in every shard and once in the merged report. Kinds of failure are reported once, with the counts of all shards. Entries
of a known-failure list that met no case can only be found in the merged report.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import ReportError
from ..run.known import Known
from ..run.results import unmet
from ..suite.specification import TIERS
from .activity import not_exercised
from .stream import SCHEMA, Diagnosis, Header, Report, Result

ALIKE = ("tier", "adapters", "device", "versions", "python", "system", "machine", "only")
"""The conditions that all parts must share."""
FEW = 8
"""Shards that a message names."""


@dataclass(frozen=True)
class Merged:
    """The lines of the merged report."""

    header: Header
    results: tuple[Result, ...]
    diagnoses: tuple[Diagnosis, ...]


def merge(reports: Sequence[Report], names: Sequence[str], known: Mapping[str, Known] | None = None) -> Merged:
    """Merge reports. `names` are used in messages; `known` are the adapters' lists of known failures.

    Raises: ReportError for parts of other runs, a missing or repeated shard, or a repeated case.
    """
    if not reports:
        raise ReportError("there is no report; give the reports of all shards")
    first = reports[0].header
    for report, name in zip(reports[1:], names[1:], strict=True):
        for part in ALIKE:
            if getattr(report.header, part) != getattr(first, part):
                came, needed = getattr(report.header, part), getattr(first, part)
                raise ReportError(f"{name} was run with {part} {came}, but {names[0]} with {needed}; merge parts of one run")
    _check_shards([report.header.shard for report in reports])
    results = _once([r for report in reports for r in report.results])
    head = first.model_copy(
        update={
            "schema_version": SCHEMA,
            "shard": "",
            "started": min(report.header.started for report in reports),
            "resumed": sum(report.header.resumed for report in reports),
            "seeds": tuple(dict.fromkeys(seed for report in reports for seed in report.header.seeds)),
        }
    )
    found = (*results, *_unmet(head, results, known or {}), *not_exercised(results))
    return Merged(head, found, _diagnoses(reports, results))


def _unmet(head: Header, results: Sequence[Result], known: Mapping[str, Known]) -> list[Result]:
    """The entries that no case of a complete run at the tiers standard and deep has met."""
    if head.only or head.tier == TIERS[0]:
        return []
    if any(r.verdict == "not-run" for r in results):
        return []
    ran = [r for r in results if r.case and r.operation]
    return [
        unmet(name, entry)
        for name, entries in known.items()
        for entry in entries.entries
        if not any(r.adapter == name and entry == entries.entry(r.subject, r.contract, r.case) for r in ran)
    ]


def _once(results: Sequence[Result]) -> tuple[Result, ...]:
    """Every line once. Lines without a case occur in every shard; a case must not."""
    found: dict[tuple[str, ...], Result] = {}
    for r in results:
        key = (r.adapter, r.subject, r.contract, r.operation, r.case, r.reason if not r.case else "")
        if r.case and r.operation and key in found:
            raise ReportError(f"{r.case} of {r.subject}, {r.contract}, is in more than one report; give each shard once")
        found[key] = r
    return tuple(found.values())


def _check_shards(shards: Sequence[str]) -> None:
    """Check that the shards are all IofN for I from 1 to N, or a single whole report."""
    if not any(shards):
        return
    there, counts = sorted(shards, key=_place), {shard.partition("of")[2] for shard in shards}
    if counts != {str(len(shards))}:
        of = max(counts, key=lambda count: int(count or 0)) or "1"
        raise ReportError(f"the reports are of the shards {listed(there)}; give 1of{of} to {of}of{of}, each once")
    needed = [f"{i}of{len(shards)}" for i in range(1, len(shards) + 1)]
    if there != needed:
        raise ReportError(f"the reports are of the shards {listed(there)}; give {listed(needed)}, each once")


def _place(shard: str) -> tuple[int, ...]:
    """By number: 2of10 comes before 10of10."""
    return tuple(int(number) for number in reversed(shard.split("of")) if number)


def listed(shards: Sequence[str]) -> str:
    """The first and the last of many."""
    return ", ".join(shards) if len(shards) <= FEW else f"{shards[0]} .. {shards[-1]}"


def _diagnoses(reports: Sequence[Report], results: Sequence[Result]) -> tuple[Diagnosis, ...]:
    """Each kind of failure once, with the smallest of its smallest cases."""
    ran = Counter((r.adapter, r.subject, r.contract, r.operation) for r in results if r.case and r.verdict != "not-run")
    found: dict[tuple[str, ...], Diagnosis] = {}
    for d in (d for report in reports for d in report.diagnoses):
        bug = d.facts.get("behaves", "") if "bug" in d.facts else ""
        key = (d.adapter, d.subject, d.contract, d.operation, d.failing, d.verdict, d.reason, bug)
        kept = found.get(key)
        failures = d.failures + (kept.failures if kept else 0)
        best = kept if kept and len(kept.smallest) <= len(d.smallest) else d
        found[key] = best.model_copy(update={"failures": failures, "cases": ran[key[:4]]})
    return tuple(found.values())
