"""Error answers: a status, and one line in OpenAI's format."""

import reprlib
from collections.abc import Sequence
from typing import Any

from ssmspec_ref.errors import SpecError

from ..errors import CheckpointError, MemoryRefused

TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
LATER = {"Retry-After": "1"}
"""Units: seconds."""
SAID = {
    "prompt": "a text, a list of texts, a list of token ids, or a list of such lists",
    "stop": "a text or a list of texts",
    "stop_token_ids": "a list of token ids",
}
"""What a field must be, where it may be one of several things."""
QUOTED, LONGEST = 200, 400
"""Characters that a message repeats of the client's text, and that a message has."""
SHORT = reprlib.Repr()
SHORT.maxstring = SHORT.maxlong = SHORT.maxother = 60


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
        if len(line) > LONGEST:  # it repeats what the client sent; its beginning says what is wrong, its end what to do
            line = f"{line[: QUOTED // 2]} .. {line[-(QUOTED // 2) :]}"
        return {"error": {"message": line, "type": kind, "param": self.param, "code": self.code}}


def quoted(text: str) -> str:
    """The beginning of a text of the client's, for a message."""
    whole = text.encode("utf-8", "backslashreplace").decode()
    return whole if len(whole) <= QUOTED else f"{whole[:QUOTED]}.."


def of_engine(error: SpecError) -> Refused:
    """Maps an engine error to an answer: overloaded, a fault of the checkpoint, or a fault of the request."""
    if isinstance(error, MemoryRefused):
        return Refused(429, str(error), code="queue_full")
    return Refused(500 if isinstance(error, CheckpointError) else 400, str(error))


def of_form(errors: Sequence[Any]) -> Refused:
    """The first error in a body, named by its field."""
    first = errors[0]
    place = [str(part) for part in first["loc"]]
    if first["type"] == "unknown":
        place.append(first["ctx"]["name"])
        return Refused(400, f"{'.'.join(place)} is not known here; leave it out", place[0], "unknown_parameter")
    param = place[0] if place else None
    if first["type"] == "value_error":
        said = first["msg"].removeprefix("Value error, ")
        return Refused(400, said, param or said.split()[0])
    if param is None:
        return Refused(400, "the body is no JSON object; send one, with the header Content-Type: application/json")
    if first["type"] == "missing":
        return Refused(400, f"{'.'.join(place)} is missing; give it", param)
    said = SAID.get(param, first["msg"].removeprefix("Input should be "))
    return Refused(400, f"{param} is {SHORT.repr(first.get('input'))}; it must be {said}", param)
