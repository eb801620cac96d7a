"""What a SARIF 2.1.0 log holds, as a JSON schema of the objects and properties that we write (sections 3.13 to 3.59)."""

from typing import Any


def an_object(required: str = "", **properties: Any) -> dict[str, Any]:
    """An object with these properties and no others."""
    return {"type": "object", "properties": properties, "required": required.split(), "additionalProperties": False}


def many(items: Any, **given: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, **given}


TEXT = {"type": "string", "minLength": 1}
INDEX = {"type": "integer", "minimum": 0}
COUNT = {"type": "integer", "minimum": 1}
URI = {"type": "string", "pattern": r"^[^\s:][^\s]*$"}
LOCATION = an_object(
    physicalLocation=an_object(
        "artifactLocation", artifactLocation=an_object("uri", uri=URI), region=an_object(startLine=COUNT)
    ),
    logicalLocations=many(
        an_object(fullyQualifiedName=TEXT, kind={"enum": ["function", "module", "type"]}), uniqueItems=True
    ),
)
RESULT = an_object(
    "message",
    ruleId=TEXT,
    ruleIndex=INDEX,
    level={"enum": ["none", "note", "warning", "error"]},
    message=an_object("text", text=TEXT),
    locations=many(LOCATION),
    occurrenceCount=COUNT,
    partialFingerprints={"type": "object", "additionalProperties": {"type": "string"}},
    properties={"type": "object"},
    suppressions=many(an_object("kind", kind={"enum": ["inSource", "external"]}), uniqueItems=True),
)
DRIVER = an_object("name", name=TEXT, version=TEXT, rules=many(an_object("id", id=TEXT, name=TEXT), uniqueItems=True))
RUN = an_object(
    "tool",
    tool=an_object("driver", driver=DRIVER),
    columnKind={"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
    results=many(RESULT),
)
LOG = an_object("version runs", version={"const": "2.1.0"}, runs=many(RUN)) | {"$defs": {}}
LOG["properties"]["$schema"] = {"type": "string", "format": "uri"}
