"""A report as JUnit XML: a suite per adapter, a test per case, as pytest counts them.

Listed failures are skipped, with the reason, and so are the cases that a run left when it stopped early; an unknown verdict
is an error, never a pass. What is inapplicable is no test.
"""

import re
from xml.etree import ElementTree

from .grid import resumed, totals
from .stream import Report, Result

FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot represent."""
OUTCOME = {"fail": "failure", "unknown": "error", "known-failure": "skipped", "not-run": "skipped"}


def junit(report: Report) -> str:
    """The XML of a report."""
    tests = [r for r in report.results if r.verdict != "inapplicable"]
    root = ElementTree.Element("testsuites", {"name": "ssmspec conform", **_counts(totals(tests))})
    for adapter, version in report.header.adapters.items():
        own = [r for r in tests if r.adapter == adapter]
        facts = {"name": clean(adapter), "time": f"{sum(r.seconds for r in own):.3f}", **_counts(totals(own))}
        facts["timestamp"] = report.header.started.isoformat(timespec="seconds")
        suite = ElementTree.SubElement(root, "testsuite", facts)
        properties = ElementTree.SubElement(suite, "properties")
        told = {"version": version, "tier": report.header.tier, "device": report.header.device, **report.header.versions}
        told |= {"resumed": resumed(report.header)} if report.header.resumed else {}
        for name, value in told.items():
            ElementTree.SubElement(properties, "property", name=clean(name), value=clean(value))
        for r in own:
            _test(suite, r)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _test(suite: ElementTree.Element, r: Result) -> None:
    where = ".".join(part for part in (r.adapter, r.subject, r.contract) if part)
    name = r.case or r.operation or "the list of known failures"
    test = ElementTree.SubElement(suite, "testcase", classname=clean(where), name=clean(name), time=f"{r.seconds:.4f}")
    if r.verdict in OUTCOME:
        message = r.reason if OUTCOME[r.verdict] == "skipped" else r.message
        told = ElementTree.SubElement(test, OUTCOME[r.verdict], message=clean(message), type=clean(r.failing or r.verdict))
        told.text = clean("\n".join(part for part in (r.message, r.source, r.link, r.rerun) if part))


def _counts(counts: dict[str, int]) -> dict[str, str]:
    named = {"tests": sum(counts.values()), "failures": counts["fail"], "errors": counts["unknown"]}
    named["skipped"] = counts["known-failure"] + counts["not-run"]
    return {name: str(count) for name, count in named.items()}


def clean(text: str) -> str:
    """Text without characters that XML cannot represent."""
    return FORBIDDEN.sub("\ufffd", text)
