"""The most that a body may hold. It is looked at before objects are made of it, and refused with one error."""

import json
from typing import Any

from .refusal import Refused, quoted

DEPTH = 8
"""Levels of lists and objects in each other."""
FIELDS = 64
"""Fields of one object."""
CHARACTERS = 512
"""Characters of the name of a field, and of any other text."""
STOPS, STOP = 16, 256
"""Texts in `stop`, and characters of each."""
ENDS = 256
"""Tokens in `stop_token_ids`."""
BITS = 128
"""Bits of a whole number."""
ITEMS, TEXTS = {"stop": STOPS, "stop_token_ids": ENDS}, {"stop": STOP}
"""Fields with a bound of items, and of the characters of each text; others have the context and CHARACTERS."""
CONTENT = ("prompt", "messages")
"""Fields whose texts and lists are held to the context."""


def read(raw: bytes, context: int) -> Any:
    """What a body says. A list of a prompt or of messages has at most as many items as the context has tokens. Raises:
    Refused."""
    try:
        body = json.loads(raw)
    except RecursionError:
        raise too_deep() from None
    except json.JSONDecodeError as error:
        raise Refused(400, f"the body is no JSON: {error.msg} at character {error.pos}") from error
    except UnicodeDecodeError as error:
        raise Refused(400, f"the body is no JSON: byte {error.start} is not UTF-8; send UTF-8") from error
    except ValueError as error:  # Python reads no number of thousands of digits
        raise Refused(400, "the body holds a number of thousands of digits; give a smaller one") from error
    if isinstance(body, dict):
        check_names(body)
        for name, value in body.items():
            check(name, value, context)
    return body


def check(field: str, value: Any, context: int) -> None:
    """Raises: Refused for a field that holds too much, on any level."""
    layer = [value]
    for _ in range(DEPTH):
        for one in layer:
            check_one(field, one, context)
        nested = [one for one in layer if isinstance(one, dict | list)]
        if not nested:
            return
        layer = [child for one in nested for child in (one.values() if isinstance(one, dict) else one)]
    raise too_deep()


def check_one(field: str, one: Any, context: int) -> None:
    """Raises: Refused for a list, a text or a number that is too long, or an object with too many fields."""
    if isinstance(one, list) and field in CONTENT and len(one) > context:
        said = f"{field} has {len(one)} items in one list, more than the context of {context} tokens"
        raise Refused(400, f"{said}; give fewer, or raise --context", field, "context_length_exceeded")
    if isinstance(one, list) and len(one) > (most := ITEMS.get(field, context)):
        raise too_much(field, f"{len(one)} items in one list", most)
    if isinstance(one, str) and field not in CONTENT and len(one) > (most := TEXTS.get(field, CHARACTERS)):
        raise too_much(field, f"a text of {len(one)} characters", most)
    if isinstance(one, int) and one.bit_length() > BITS:
        raise Refused(400, f"{quoted(field)} is a number of {one.bit_length()} bits; give a smaller one", quoted(field))
    if isinstance(one, dict):
        check_names(one)


def check_names(fields: dict[str, Any]) -> None:
    """Raises: Refused for an object with too many fields, or a name that is too long or no text."""
    if len(fields) > FIELDS:
        raise Refused(400, f"an object has {len(fields)} fields; it must be at most {FIELDS}; leave out the unknown ones")
    try:
        "".join(fields).encode()
    except UnicodeEncodeError:
        raise Refused(400, "the name of a field is not valid UTF-8; leave it out") from None
    name = max(fields, key=len, default="")
    if len(name) > CHARACTERS:
        raise too_much(name, f"a name of {len(name)} characters", CHARACTERS)


def too_much(field: str, what: str, most: int) -> Refused:
    return Refused(400, f"{quoted(field)} has {what}; it must be at most {most}", quoted(field))


def too_deep() -> Refused:
    return Refused(400, f"parsing the body ended at {DEPTH} levels of lists and objects in each other; send fewer")
