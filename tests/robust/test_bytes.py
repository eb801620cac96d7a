"""Values as bytes: what goes over comes back, what is no message is refused before memory is taken, text is made safe."""

import json
import tracemalloc
from typing import Any

import numpy as np
import pytest

from conformance.errors import Garbled
from conformance.isolation.encoding import HEAD, decode, encode
from conformance.isolation.text import clean, told
from conformance.run.calls import fingerprint
from conformance.suite import SPECIFICATIONS
from ssmspec_ref.contract import Limits, NumericContract

VALUES = [
    None, True, 7, -1.5, float("inf"), "a\ud800\x1b", (), (1, (2, [3, None])), {"a": 1, "b": (2,)},
    np.float32(1.5), np.int64(-1), np.True_, np.array(2.0), np.zeros((0, 3)), np.ones((2, 3), dtype=np.complex64),
    np.arange(6, dtype=">f4").reshape(2, 3)[:, ::2], np.array([True, False]), np.asfortranarray(np.eye(3)),
]  # fmt: skip


def message(head: Any, rest: bytes = b"") -> bytes:
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    return len(text).to_bytes(4, "little") + text + rest


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_a_value_comes_back_as_it_went(value: Any) -> None:
    came = decode(encode(value))
    assert type(came) is type(value)
    assert fingerprint(came) == fingerprint(value)
    if isinstance(value, np.ndarray):
        assert (came.dtype, came.shape) == (value.dtype, value.shape)
        assert came.flags.writeable


@pytest.mark.parametrize("specification", SPECIFICATIONS, ids=lambda s: f"{s.operation}-{'-'.join(s.fixed.values())}")
def test_the_inputs_of_every_operation_come_back_bit_for_bit(specification: Any) -> None:
    case = next(iter(specification.cases("smoke", Limits())))
    arguments = specification.draw(case, NumericContract())
    assert fingerprint(decode(encode(arguments))) == fingerprint(arguments)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (b"", "begin with a message"),
        (b"\xff\xff\xff\xff", "begin with a message"),
        (message(b"{"), "cannot be read"),
        (message(b"[" * 100_000), "cannot be read"),
        (message({"a": 1}), "of an unknown kind"),
        (message(["z", 1]), "of an unknown kind"),
        (message(["a", "|O", [1]], bytes(8)), "not a type of numbers"),
        (message(["a", "<U9", [1]], bytes(36)), "not a type of numbers"),
        (message(["a", "<f8", [1 << 39]], bytes(8)), "bytes but has 8"),
        (message(["a", "<f8", [1 << 62]]), "impossible shape"),
        (message(["a", "<f8", [-1]]), "impossible shape"),
        (message(["a", "<f8", [True]]), "impossible shape"),
        (message(["a", "<f8", [1.0]]), "impossible shape"),
        (message(["a", "<f8", [1] * 33], bytes(8)), "impossible shape"),
        (message(["a", "<f8", [1]], bytes(9)), "belong to no array"),
        (message(["r", "os:system", {}]), "not a known record"),
        (message(["r", "ssmspec_ref.ssd:np", {}]), "not a known record"),
        (message(["r", "ssmspec_ref.ssd:SSDParams", {"no": 1}]), "cannot be read"),
    ],
)
def test_what_is_no_message_is_refused_before_memory_is_taken(given: bytes, said: str) -> None:
    tracemalloc.start()
    with pytest.raises(Garbled, match=said):
        decode(given)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * HEAD


@pytest.mark.parametrize(
    "value",
    [object(), print, np.array([object()]), np.array(["a"]), {1, 2}, b"bytes"],
    ids=["object", "function", "objects", "words", "set", "bytes"],
)
def test_what_has_no_form_is_not_sent(value: Any) -> None:
    with pytest.raises(TypeError):
        encode(value)


def test_the_type_of_an_array_carries_nothing_along() -> None:
    came = decode(encode(np.zeros(2, dtype=np.dtype(np.float32, metadata={"planted": object}))))
    assert came.dtype.metadata is None


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("plain [x] ünï — 漢 🙂", "plain [x] ünï — 漢 🙂"),
        ("\x1b[2J\x9b1m\x07", r"\x1b[2J\x9b1m\x07"),
        ("a\nb\r\tc\x00\x7f", r"a\nb\r\tc\x00\x7f"),
        ("\ud800\udfff", r"\ud800\udfff"),
        ("\u202e\u2066\u200b\u2028\ufeff", r"\u202e\u2066\u200b\u2028\ufeff"),
        (r"\x1b", r"\x1b"),
        (7, "<int>"),
    ],
)
def test_a_text_is_made_safe_once_and_stays_as_it_is(text: object, safe: str) -> None:
    assert clean(text) == safe
    assert clean(clean(text)) == safe
    clean(text).encode("utf-8")


def test_a_text_is_cut() -> None:
    assert len(clean("\x1b" * 10**6)) == 2000
    assert clean("x" * 2000) == "x" * 2000


def test_an_error_that_has_no_text_is_told_by_what_it_raised() -> None:
    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise ValueError

    assert told(Unspeakable()) == "<its text raised ValueError>"
