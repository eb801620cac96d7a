"""A badge of a report: an SVG of two fields, "conformance" and what came of it."""

from html import escape

from .grid import totals
from .report import Report

GREEN, YELLOW, RED = "#1c6b3f", "#7a5200", "#a3201d"
WIDTH = 6.4
"""Units of one character, of 11-point sans."""


def badge(report: Report) -> str:
    """The badge: green where nothing failed, yellow where only listed cases did, red otherwise; the tier is named."""
    counts = totals(report.results)
    ran = sum(bool(r.case) for r in report.results)
    bad, known = counts["fail"] + counts["unknown"], counts["known-failure"]
    said = f"{counts['pass']} of {ran} pass" + (f", {known} known" if known and not bad else "")
    said += f", {bad} not" if bad else ""
    return _svg(f"conformance, {report.header.tier}", said, RED if bad else YELLOW if known else GREEN)


def _svg(left: str, right: str, colour: str) -> str:
    one, two = (round(len(text) * WIDTH) + 14 for text in (left, right))
    label = escape(f"{left}: {right}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{one + two}" height="20" role="img" aria-label="{label}">'
        f'<title>{label}</title><clipPath id="r"><rect width="{one + two}" height="20" rx="3"/></clipPath>'
        f'<g clip-path="url(#r)"><rect width="{one}" height="20" fill="#41474f"/>'
        f'<rect x="{one}" width="{two}" height="20" fill="{colour}"/></g>'
        f'<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle">'
        f'<text x="{one / 2:g}" y="14" textLength="{one - 12}">{escape(left)}</text>'
        f'<text x="{one + two / 2:g}" y="14" textLength="{two - 12}">{escape(right)}</text></g></svg>\n'
    )
