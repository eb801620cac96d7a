"""The choice of a format for standard output."""

from collections.abc import Callable
from enum import StrEnum

from ..report.stream import Report
from .annotations import annotations
from .document import document
from .finding import findings
from .sarif import sarif


class Format(StrEnum):
    """What is printed on standard output: tables for people, or one of the formats for programs."""

    text = "text"
    json = "json"
    github = "github"
    sarif = "sarif"


HELP = (
    "What to print: text, json (the report as one document), github (annotations) or sarif; tables go to standard error then."
)
MADE: dict[Format, Callable[[Report], str]] = {
    Format.json: document,
    Format.github: lambda report: annotations(findings(report)),
    Format.sarif: lambda report: sarif(findings(report)),
}
