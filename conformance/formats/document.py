"""A report as one JSON document, and the JSON schema of the lines of report.jsonl; both follow `report.stream`."""

import json
from typing import Any

from ..report.stream import LINE, Report

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def document(report: Report) -> str:
    """The lines of a report by kind: header, results, diagnoses, footer."""
    told = {"header": _plain(report.header), "results": [*map(_plain, report.results)]}
    told |= {"diagnoses": [*map(_plain, report.diagnoses)], "footer": _plain(report.footer)}
    return json.dumps(told, indent=1) + "\n"


def _plain(line: Any) -> Any:
    return json.loads(line.model_dump_json())  # infinite numbers are strings, as in the lines


def schema() -> dict[str, Any]:
    """The JSON schema of a line of report.jsonl."""
    return {"$schema": DIALECT, "title": "A line of report.jsonl", **LINE.json_schema(mode="serialization")}
