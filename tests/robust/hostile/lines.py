"""Attacks on the line of answers: bytes that are no message, messages that are no answer, answers that are no array."""

import json
import os
import pickle
import struct
import threading
import time
from pathlib import Path
from typing import Any

from tests.robust.hostile.corpus import attack, wrong

PLANTED = "SSMSPEC_PLANTED"
"""Names a file that must never be."""


def line() -> int:
    """The descriptor of answers: the one socket of a worker."""
    return next(n for n in map(int, os.listdir("/proc/self/fd")) if socket(n))


def socket(descriptor: int) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:")
    except OSError:
        return False


def write(data: bytes) -> None:
    while data:
        data = data[os.write(line(), data) :]


def message(head: Any, rest: bytes = b"") -> bytes:
    """A message of the suite, whatever it says."""
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    whole = len(text).to_bytes(4, "little") + text + rest
    return struct.pack("!i", len(whole)) + whole


def said(number: int = 1, **parts: Any) -> Any:
    """An answer, whatever it says."""
    whole = {
        "number": number,
        "outputs": ["t"],
        "used": None,
        "drafts": None,
        "changed": ["t"],
        "written": False,
        "failed": "",
        "said": "",
        "place": "cpu",
        "spent": 0.0,
    }
    return ["d", whole | parts]


class Planted:
    """What is run where it is unpickled."""

    def __reduce__(self) -> Any:
        return Path.touch, (Path(os.environ[PLANTED]),)


@attack("garbled", said="not a message", quick=True)
def writes_text(*given: Any) -> Any:
    """Writes a text to the line of answers."""
    write(b"all cases pass\n")
    return wrong(*given)


@attack("garbled", said="begin with a message")
def writes_nothing(*given: Any) -> Any:
    """Sends an empty message."""
    write(struct.pack("!i", 0))
    return wrong(*given)


@attack("garbled", said="not a message", quick=True)
def announces_gigabytes(*given: Any) -> Any:
    """Announces a message that would fill the memory."""
    write(struct.pack("!i", 0x7FFFFFFF))
    return wrong(*given)


@attack("garbled", said="not a message")
def announces_exabytes(*given: Any) -> Any:
    """Announces a message by the long form of its length."""
    write(struct.pack("!iQ", -1, 1 << 62))
    return wrong(*given)


@attack("garbled", said="begin with a message|not a message")
def announces_a_negative_length(*given: Any) -> Any:
    """Announces a message of less than nothing."""
    write(struct.pack("!i", -7))
    return wrong(*given)


@attack("timeout", said="no answer within")
def sends_half_a_message(*given: Any) -> None:
    """Begins a message, and hangs."""
    write(struct.pack("!i", 1000) + b"half")
    time.sleep(600)


@attack("garbled", said="cannot be read|begin with a message", quick=True)
def sends_a_pickle(*given: Any) -> Any:
    """Sends what plants a file where it is unpickled."""
    data = pickle.dumps(Planted())
    write(struct.pack("!i", len(data)) + data)
    return wrong(*given)


@attack("garbled", "bound", said="another question|wrong by|asked for", quick=True)
def answers_twice(*given: Any) -> Any:
    """Sends the answer of a call before it, and another after it."""
    write(message(said(0, outputs=["t"])))
    return wrong(*given)


@attack("outputs", "garbled", said="returned 0 outputs", quick=True)
def sends_a_verdict(*given: Any) -> Any:
    """Sends an answer that says that it has passed."""
    write(message(said(1, verdict="pass", kind="")))
    return wrong(*given)


@attack("garbled", said="not a number of seconds", quick=True)
def sends_less_than_no_time(*given: Any) -> Any:
    """Says that it worked for less than no time, so that searches for causes never end."""
    write(message(said(1, spent=-1e9)))
    return wrong(*given)


@attack("garbled", said="field of the wrong type")
def sends_a_way_of_failing_of_its_own(*given: Any) -> Any:
    """Sends an answer that says it is inapplicable."""
    write(message(said(1, failed="inapplicable")))
    return wrong(*given)


@attack("garbled", said="cannot be read", quick=True)
def nests(*given: Any) -> Any:
    """Sends JSON that is deeper than a stack."""
    write(message(b"[" * 100000 + b"]" * 100000))
    return wrong(*given)


@attack("garbled", said="bytes but has 0", quick=True)
def sends_a_shape_without_bytes(*given: Any) -> Any:
    """Sends an array of a terabyte that has no bytes."""
    write(message(said(1, outputs=["t", ["a", "<f8", [1 << 37]]])))
    return wrong(*given)


@attack("garbled", said="bytes but has 0|shape")
def sends_a_shape_that_wraps(*given: Any) -> Any:
    """Sends an array whose size is 0 where it wraps around."""
    write(message(said(1, outputs=["t", ["a", "<f8", [1 << 32, 1 << 32]]])))
    return wrong(*given)


@attack("garbled", said="not a type of numbers")
def sends_objects(*given: Any) -> Any:
    """Sends an array of addresses."""
    write(message(said(1, outputs=["t", ["a", "|O", [1]]]), bytes(8)))
    return wrong(*given)


@attack("garbled", said="not a known record")
def sends_a_class(*given: Any) -> Any:
    """Sends the name of a class that runs a command when it is made."""
    write(message(said(1, used=["r", "subprocess:Popen", {"args": "true"}])))
    return wrong(*given)


@attack("garbled", said="not a known record")
def sends_a_specification(*given: Any) -> Any:
    """Sends the name of a class of the suite that is no record."""
    write(message(said(1, used=["r", "conformance.judge.verdict:Judgement", {"verdict": 0}])))
    return wrong(*given)


@attack("garbled", said="belong to no array")
def sends_bytes_too_many(*given: Any) -> Any:
    """Sends an answer with bytes behind it."""
    write(message(said(1), b"more"))
    return wrong(*given)


@attack("bound", "garbled", said="wrong by|message|asked for")
def writes_between_calls(*given: Any) -> Any:
    """Goes on writing to the line when the call is over."""
    threading.Timer(0.05, write, (b"garbage",)).start()
    return wrong(*given)
