"""Findings as SARIF 2.1.0, which code scanning reads: a rule for each operation and kind of failure."""

import hashlib
import json
from importlib.metadata import PackageNotFoundError, version
from typing import Any
from urllib.parse import quote

from .finding import Finding

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
LEVELS = {"fail": "error", "unknown": "warning", "known-failure": "note"}


def sarif(found: list[Finding]) -> str:
    """A log with one run. A known failure is suppressed, with its reason in its text."""
    rules = {one.rule: number for number, one in enumerate({one.rule: one for one in found}.values())}
    driver = {"name": "ssmspec", "version": _version(), "rules": [{"id": rule, "name": rule} for rule in rules]}
    results = [_result(one, rules[one.rule]) for one in found]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def _result(one: Finding, rule: int) -> dict[str, Any]:
    name = "::".join(part for part in (one.adapter, one.subject, one.contract, one.operation) if part)
    location: dict[str, Any] = {"logicalLocations": [{"fullyQualifiedName": name, "kind": "function"}]}
    if one.file:
        region = {"artifactLocation": {"uri": quote(one.file)}, "region": {"startLine": one.line}}
        location["physicalLocation"] = region
    made = {
        "ruleId": one.rule,
        "ruleIndex": rule,
        "level": LEVELS[one.verdict],
        "message": {"text": f"{one.title}\n{one.text}"},
        "locations": [location],
        "occurrenceCount": one.failures,
        "partialFingerprints": {"finding/v1": hashlib.sha256(f"{name}::{one.rule}".encode()).hexdigest()},
        "properties": {"case": one.case},
    }
    return made | ({"suppressions": [{"kind": "external"}]} if one.verdict == "known-failure" else {})


def _version() -> str:
    try:
        return version("ssmspec")
    except PackageNotFoundError:  # a bare checkout
        return "0"
