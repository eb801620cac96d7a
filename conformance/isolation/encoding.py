"""Encode values as bytes, for messages between the judge and an adapter's process. Nothing is unpickled or executed.

    message = length of the head (4 bytes) | head (JSON) | the bytes of the arrays, concatenated
    head    = null, a boolean, a number, a text, or a list that begins with its kind:
              ["t", ..] tuple, ["l", ..] list, ["d", {..}] dict, ["a", dtype, shape] array, ["g", dtype] NumPy scalar,
              ["r", "module:Record", {field: ..}] a record of the oracle or of a case

Arrays are numeric only. Before one is created, its type, its shape and the number of bytes left are checked against each
other.
"""

import json
import math
import re
import sys
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from ..errors import Garbled

MESSAGE, HEAD = 1 << 28, 1 << 22
"""Largest message, and largest head, in bytes; cases need kilobytes."""
DTYPE = re.compile(r"[<>|=](b1|[iu][1248]|f(2|4|8|12|16)|c(8|16|24|32))")
AXES, LONGEST = 32, 1 << 40
"""Most axes of an array, and most elements along one."""
RECORDS = ("ssmspec_ref.", "conformance.suite.")
"""The modules with the records of cases and answers."""


def encode(value: Any) -> bytes:
    """Encode a value. Raises: TypeError for a type without an encoding."""
    arrays: list[np.ndarray | np.generic] = []
    head = json.dumps(_plain(value, arrays), separators=(",", ":")).encode("ascii")
    return b"".join([len(head).to_bytes(4, "little"), head, *(a.tobytes() for a in arrays)])


def decode(message: bytes) -> Any:
    """Decode a message. Raises: Garbled."""
    size = int.from_bytes(message[:4], "little")
    if len(message) < 4 or size > min(HEAD, len(message) - 4):
        raise Garbled(f"{len(message)} bytes do not begin with a message")
    left = _Bytes(memoryview(message)[4 + size :])
    try:
        value = _value(json.loads(message[4 : 4 + size]), left)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
        raise Garbled(f"a message cannot be read ({type(error).__name__})") from error
    if left.bytes.nbytes:
        raise Garbled(f"a message has {left.bytes.nbytes} bytes that belong to no array")
    return value


def _plain(value: Any, arrays: list[Any]) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.ndarray | np.generic):
        if not DTYPE.fullmatch(value.dtype.str):
            raise TypeError(f"an array of {value.dtype}")
        arrays.append(value)
        return ["g", value.dtype.str] if isinstance(value, np.generic) else ["a", value.dtype.str, list(value.shape)]
    if isinstance(value, tuple | list):
        return ["t" if isinstance(value, tuple) else "l", *(_plain(part, arrays) for part in value)]
    if isinstance(value, dict):
        return ["d", {str(name): _plain(part, arrays) for name, part in value.items()}]
    if is_dataclass(value) and not isinstance(value, type):
        kind = f"{type(value).__module__}:{type(value).__qualname__}"
        return ["r", kind, {f.name: _plain(getattr(value, f.name), arrays) for f in fields(value) if f.init}]
    raise TypeError(f"a {type(value).__name__}")


class _Bytes:
    """The bytes after the head, consumed from the front."""

    def __init__(self, given: memoryview) -> None:
        self.bytes = given

    def array(self, dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
        if not (isinstance(dtype, str) and DTYPE.fullmatch(dtype)):
            raise Garbled(f"an array has the type {str(dtype)[:50]!r}, which is not a type of numbers")
        if len(shape) > AXES or not all(type(n) is int and 0 <= n <= LONGEST for n in shape):
            raise Garbled("an array has an impossible shape")
        kind = np.dtype(dtype)
        size = math.prod(shape) * kind.itemsize
        if size > self.bytes.nbytes:
            raise Garbled(f"an array needs {size} bytes but has {self.bytes.nbytes}")
        taken, self.bytes = self.bytes[:size], self.bytes[size:]
        if not size:
            return np.zeros(shape, dtype=kind)
        if kind.kind == "b":  # booleans must be 0 or 1
            return (np.frombuffer(taken, dtype=np.uint8) != 0).reshape(shape)
        return np.frombuffer(taken, dtype=kind).reshape(shape).copy()


def _value(head: Any, left: _Bytes) -> Any:
    if not isinstance(head, list):
        if isinstance(head, dict):
            raise Garbled("a message has an object of an unknown kind")
        return head
    match head:
        case ["a", dtype, [*shape]]:
            return left.array(dtype, tuple(shape))
        case ["g", dtype]:
            return left.array(dtype, ())[()]
        case ["t", *parts]:
            return tuple(_value(part, left) for part in parts)
        case ["l", *parts]:
            return [_value(part, left) for part in parts]
        case ["d", dict(parts)]:
            return {name: _value(part, left) for name, part in parts.items()}
        case ["r", str(kind), dict(parts)]:
            return record(kind)(**{name: _value(part, left) for name, part in parts.items()})
    raise Garbled("a message has a list of an unknown kind")


def record(kind: str) -> Any:
    """The class of a record. Raises: Garbled for any other name."""
    module, _, name = kind.partition(":")
    found = getattr(sys.modules.get(module), name, None) if module.startswith(RECORDS) else None
    if not (isinstance(found, type) and is_dataclass(found) and found.__module__ == module):
        raise Garbled(f"the message has a record {kind[:100]!r}, which is not a known record")
    return found
