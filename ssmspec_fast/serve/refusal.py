"""Error answers: a status, and one line in OpenAI's format."""

from collections.abc import Sequence
from typing import Any

from ssmspec_ref.errors import SpecError

from ..errors import CheckpointError, MemoryRefused

TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
LATER = {"Retry-After": "1"}
"""Units: seconds."""
PROMPT = "a text, a list of texts, a list of token ids, or a list of such lists"


class Refused(Exception):
    """A refused request: `message` says what is wrong, what is needed and what to do."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code

    @property
    def headers(self) -> dict[str, str]:
        return LATER if self.status in (429, 503) else {}

    @property
    def body(self) -> dict[str, Any]:
        kind = TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        line = " ".join(str(self).split()).encode("utf-8", "backslashreplace").decode()
        return {"error": {"message": line, "type": kind, "param": self.param, "code": self.code}}


def of_engine(error: SpecError) -> Refused:
    """Maps an engine error to an answer: overloaded, a fault of the checkpoint, or a fault of the request."""
    if isinstance(error, MemoryRefused):
        return Refused(429, str(error), code="queue_full")
    return Refused(500 if isinstance(error, CheckpointError) else 400, str(error))


def of_form(errors: Sequence[Any]) -> Refused:
    """The first error in a body, named by its field."""
    first = errors[0]
    place = [str(part) for part in first["loc"] if part != "body"]
    param = place[0] if place else None
    if first["type"] == "json_invalid":
        return Refused(400, f"the body is no JSON: {first['ctx']['error']}")
    if first["type"] == "value_error":
        said = first["msg"].removeprefix("Value error, ")
        return Refused(400, said, param or said.split()[0])
    if first["type"] == "string_unicode":
        return Refused(400, "the name of a field is not valid UTF-8; leave it out")
    if param is None:
        return Refused(400, "the body is no JSON object; send one, with the header Content-Type: application/json")
    if first["type"] == "extra_forbidden":
        return Refused(400, f"{'.'.join(place)} is not known here; leave it out", param, "unknown_parameter")
    if first["type"] == "missing":
        return Refused(400, f"{'.'.join(place)} is missing; give it", param)
    said = first["msg"].removeprefix("Input should be ")
    if param == "prompt":
        said = PROMPT
    given = repr(first.get("input"))
    return Refused(400, f"{param} is {given[:60]}{'..' if len(given) > 60 else ''}; it must be {said}", param)
