"""A badge of a report: an SVG with two fields, "conformance" and the result."""

import re
from html import escape

from ssmspec_ref.approximation import printed

from ..errors import ReportError
from .grid import Cell, totals
from .stream import READ, SCHEMA, Report

GREEN, YELLOW, RED = "#1c6b3f", "#7a5200", "#a3201d"
WIDTH = 6.4
"""Width of a character, in 11-point sans."""


def badge(report: Report) -> str:
    """The badge: green if nothing failed, yellow if only listed cases failed or if results were kept from an interrupted run,
    red otherwise, also of a run that stopped early; it names the tier, and functions with an absolute error."""
    counts = totals(report.results)
    left, refused = counts["not-run"], Cell(tuple(report.results)).refused
    ran = sum(bool(r.case) for r in report.results) - left
    bad, known = counts["fail"] + counts["unknown"], counts["known-failure"]
    said = f"{counts['pass']} of {ran} pass" + (f", {known} known" if known and not bad else "")
    said += (f", {bad} not" if bad else "") + (f" ({refused} refused)" if refused else "")
    said += f", {left} not run" if left else ""
    said += "".join(f", {one}" for one in dict.fromkeys(one for r in report.results for one in printed(r.contract)))
    resumed = ", resumed" if report.header.resumed else ""
    colour = RED if bad or left or not ran else YELLOW if known or resumed else GREEN
    return _svg(f"conformance, {report.header.tier}{resumed}", said, colour, report.footer.digest)


def read(drawn: str) -> tuple[int, str]:
    """The schema of a badge, and the digest of its report. Raises: ReportError for another or missing schema."""
    schema, digest = (re.search(f' data-{name}="([0-9a-f]+)"', drawn) for name in ("schema", "report"))
    if schema is None:
        raise ReportError("the badge has no schema; `ssmspec conform page` writes it again")
    if not (schema[1].isdecimal() and int(schema[1]) in READ):
        raise ReportError(f"the badge has schema {schema[1]}, but this ssmspec reads {READ[0]} to {READ[-1]}")
    return int(schema[1]), digest[1] if digest else ""


def _svg(left: str, right: str, colour: str, digest: str) -> str:
    one, two = (round(len(text) * WIDTH) + 14 for text in (left, right))
    label = escape(f"{left}: {right}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{one + two}" height="20" role="img" '
        f'data-schema="{SCHEMA}" data-report="{digest}" aria-label="{label}">'
        f'<title>{label}</title><clipPath id="r"><rect width="{one + two}" height="20" rx="3"/></clipPath>'
        f'<g clip-path="url(#r)"><rect width="{one}" height="20" fill="#41474f"/>'
        f'<rect x="{one}" width="{two}" height="20" fill="{colour}"/></g>'
        f'<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle">'
        f'<text x="{one / 2:g}" y="14" textLength="{one - 12}">{escape(left)}</text>'
        f'<text x="{one + two / 2:g}" y="14" textLength="{two - 12}">{escape(right)}</text></g></svg>\n'
    )
