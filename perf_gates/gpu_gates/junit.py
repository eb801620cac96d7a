"""A run as JUnit: a suite for its parts, one for its limits, one for each table."""

from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

from ..ratchet.outcome import WORSE, Outcome
from ..verdicts.verdict import Judged, Verdict
from .parts import Took

FAILURE, ERROR, SKIPPED = "failure", "error", "skipped"


def write(file: Path, outcome: Outcome, took: Took) -> None:
    """FAIL is a failure; unknown an error; a cell listed as unmeasured is skipped, with its reason; a known miss passes as
    such."""
    root = ElementTree.Element("testsuites")
    suite(root, "parts", ((name, took.seconds[name], *of_part(took, name)) for name in took.seconds))
    off = [(m.name, 0.0, FAILURE if m.how in WORSE else "", str(m)) for m in outcome.off]
    suite(root, "bars", [*off, *(("impossible", 0.0, ERROR, line) for line in outcome.impossible)])
    for table in dict.fromkeys(j.table.id for j in outcome.judged):
        suite(root, table, ((j.cell.at, 0.0, *of_cell(j)) for j in outcome.judged if j.table.id == table))
    ElementTree.indent(root)
    ElementTree.ElementTree(root).write(file, encoding="utf-8", xml_declaration=True)


def of_part(took: Took, name: str) -> tuple[str, str]:
    said = took.ended.get(name, "")
    return ("" if said == "complete" else ERROR), said


def of_cell(j: Judged) -> tuple[str, str]:
    if j.listed and not j.red:
        return SKIPPED, str(j)
    if not j.red:
        return "", "" if j.verdict is Verdict.PASS else str(j)
    return (FAILURE if j.verdict is Verdict.FAIL else ERROR), str(j)


def suite(root: ElementTree.Element, name: str, cases: Iterable[tuple[str, float, str, str]]) -> None:
    """Cases as name, seconds, kind of result (empty: passed), text."""
    held = list(cases)
    element = ElementTree.SubElement(root, "testsuite", name=name, tests=str(len(held)))
    element.set("time", f"{sum(case[1] for case in held):.1f}")
    for kind, told in ((FAILURE, "failures"), (ERROR, "errors"), (SKIPPED, "skipped")):
        element.set(told, str(sum(case[2] == kind for case in held)))
    for case, took, kind, text in held:
        one = ElementTree.SubElement(element, "testcase", classname=name, name=case, time=f"{took:.1f}")
        if kind:
            ElementTree.SubElement(one, kind, message=text.split("\n")[0])
        elif text:
            ElementTree.SubElement(one, "system-out").text = text
