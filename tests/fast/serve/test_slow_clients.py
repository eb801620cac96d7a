"""Clients that send half a request, or do not read: each has only so much time, and all of them shut nobody out."""

import json
import logging
import resource
import socket
import time
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from ssmspec_fast.engine.emitted_windows import StreamingEngine
from ssmspec_fast.serve.app import Limits
from ssmspec_fast.serve.network import connection
from ssmspec_fast.serve.network.connection import Connection, check_descriptors
from ssmspec_fast.serve.network.log import OneASecond
from ssmspec_ref.errors import ParameterError

from .serving import Ask, closed, is_open, opened, rest, said, sent, serving, until

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
WHOLE = HEAD + b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n"
CHUNKED = HEAD + b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
SHORT = 0.5
BODY = b'{"prompt": "x", "max_tokens": 2, "temperature": 0}'


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in connection.SECONDS:
        monkeypatch.setitem(connection.SECONDS, name, SHORT)
    monkeypatch.setattr(connection, "STALLED", SHORT)


@pytest.mark.parametrize(
    ("first", "more", "status", "phase"),
    [
        (b"", b"", b"", "idle"),
        (HEAD, b"", b"408", "head"),
        (HEAD, b"x", b"408", "head"),
        (WHOLE, b"", b"408", "body"),
        (WHOLE + b"{", b" ", b"408", "body"),
        (CHUNKED, b"", b"408", "body"),
        (CHUNKED, b"1\r\n \r\n", b"408", "body"),
        (GET, b"", b"200", "idle"),
        (GET + HEAD, b"x", b"408", "head"),
    ],
)
def test_a_request_that_does_not_arrive_in_time_is_ended(
    short: None, first: bytes, more: bytes, status: bytes, phase: str
) -> None:
    """A byte now and then gains no time."""
    with serving() as running, opened(running, first) as client:
        begun = time.monotonic()
        while more and not closed(running, phase):
            assert time.monotonic() - begun < 20 * SHORT
            try:
                client.sendall(more)
            except OSError:
                break
            time.sleep(SHORT / 5)
        answers = rest(client)
        assert time.monotonic() - begun < 20 * SHORT
        assert status in answers.rpartition(b"HTTP/1.1 ")[2][:4]
        assert closed(running, phase) == 1
        if status == b"408":
            assert f"the {phase} of the request did not arrive within 0.5 s; send it at once".encode() in answers
        assert sent(running, "", "GET", "/health")[0] == 200


def test_a_request_in_pieces_is_answered_and_its_connection_used_again(short: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each wait is shorter than it may be; the completion takes longer than each of them."""
    real = StreamingEngine.step
    monkeypatch.setattr(StreamingEngine, "step", lambda *given: time.sleep(SHORT) or real(*given))
    ask = b'{"prompt": "x", "max_tokens": 4, "temperature": 0, "ignore_eos": true}'
    head = HEAD + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(ask)
    with serving(2, None) as running, opened(running) as client:
        for _ in range(2):
            for piece in (head[:30], head[30:], ask[:5], ask[5:]):
                time.sleep(SHORT / 3)
                client.sendall(piece)
            found = client.recv(1 << 16)
            while not found.endswith(b"}"):
                found += client.recv(1 << 16)
            assert found.startswith(b"HTTP/1.1 200")
            assert b'"finish_reason":"length"' in found


def test_of_many_half_sent_requests_the_oldest_are_closed_and_others_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "WAITING", 8)
    with serving() as running, ExitStack() as stack:
        held = [stack.enter_context(opened(running, (HEAD, WHOLE, b"")[n % 3])) for n in range(60)]
        assert until(lambda: closed(running, "crowded") >= 52, 10)
        with running.client() as client:
            assert said(client.completions.create(**Ask("x").body)) == Ask("x").alone()
        assert sent(running, "", "GET", "/health")[0] == 200
        assert not any(is_open(one) for one in held[:50])
        assert all(is_open(one) for one in held[-6:])


def test_when_all_connections_are_being_answered_a_new_one_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StreamingEngine, "step", lambda *given, real=StreamingEngine.step: time.sleep(0.1) or real(*given))
    with serving(1, None, queue=2, choices=2) as running, running.client() as client:
        body: dict[str, Any] = Ask("x = ", 100).body | {"stream": True}
        streams = [client.completions.create(**body) for _ in range(3)]
        monkeypatch.setattr(connection, "WAITING", 0)
        with opened(running) as more:
            answer = rest(more)
        assert answer.startswith(b"HTTP/1.1 503 Service Unavailable")
        assert b"connections are in use; ask again" in answer
        for stream in streams:
            stream.close()


def test_a_client_that_does_not_read_is_ended(short: None) -> None:
    """It asks for more than the system buffers, and reads nothing."""
    with serving() as running, opened(running) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)
        client.settimeout(0.2)
        begun = time.monotonic()
        while not closed(running, "stalled"):
            assert time.monotonic() - begun < 20
            try:
                client.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100)
            except TimeoutError:
                pass
            except OSError:
                break
        assert until(lambda: closed(running, "stalled") == 1, 5)
        assert until(lambda: not running.server.server_state.connections, 5)


def test_a_body_in_chunks_of_one_byte_is_refused_before_it_costs_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """200,000 of them take the event loop 8 s."""
    with serving() as running, opened(running, CHUNKED) as client:
        begun = time.monotonic()
        with suppress(OSError):
            client.sendall(b"1\r\n \r\n" * 200_000)
        assert rest(client).startswith(b"HTTP/1.1 400 Bad Request") or closed(running, "chunks") == 1
        assert time.monotonic() - begun < 5
        assert closed(running, "chunks") == 1


def test_a_body_in_some_chunks_is_read() -> None:
    chunks = b"".join(b"%x\r\n%s\r\n" % (1, BODY[n : n + 1]) for n in range(len(BODY)))
    with serving() as running, opened(running, CHUNKED + chunks + b"0\r\n\r\n") as client:
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 200")


def test_a_planted_connection_that_waits_for_ever_is_seen(short: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "expire", lambda self: None)
    with serving() as running, opened(running, HEAD) as client:
        time.sleep(3 * SHORT)
        assert is_open(client)


def test_a_process_that_may_not_open_so_many_files_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    held = {"now": (256, 1000)}
    monkeypatch.setattr(resource, "getrlimit", lambda which: held["now"])
    monkeypatch.setattr(resource, "setrlimit", lambda which, now: held.update(now=now))
    check_descriptors(500)
    assert held["now"] == (500 + connection.OTHERS, 1000)
    check_descriptors(100)
    assert held["now"] == (500 + connection.OTHERS, 1000)
    with pytest.raises(ParameterError, match=r"700 connections need 1020 open files, but this process may have 1000"):
        check_descriptors(700)
    held["now"] = (256, resource.RLIM_INFINITY)
    check_descriptors(10**6)
    assert held["now"] == (10**6 + connection.OTHERS, resource.RLIM_INFINITY)


def test_the_connections_of_a_server_fit_into_the_ordinary_limit_of_files() -> None:
    assert connection.WAITING + Limits().queue + 8 + connection.OTHERS <= 1024


def record(message: str, *values: Any, name: str = "asyncio") -> logging.LogRecord:
    return logging.LogRecord(name, logging.ERROR, "", 0, message, values, None)


def test_of_one_kind_of_line_one_a_second_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    rare = OneASecond()
    first = "socket.accept() out of system resource\nsocket: <fd={}>"
    assert [rare.filter(record(first.format(n))) for n in range(1000)] == [True] + [False] * 999
    assert rare.filter(record("Invalid HTTP request received.", name="uvicorn.error"))
    assert rare.filter(record("%s was not retrieved", "a task"))
    assert not rare.filter(record("%s was not retrieved", "another task"))
    now[0] += 1
    again = record(first.format(5))
    assert rare.filter(again)
    assert again.getMessage().endswith("(999 more like this)")
    now[0] += 1
    again = record(first.format(6))
    assert rare.filter(again)
    assert "more like this" not in again.getMessage()
    for n in range(1000):
        rare.filter(record(f"kind {n}"))
    assert len(rare.seen) <= 100


@pytest.mark.parametrize("given", [b"no request\r\n\r\n", b"GET / HTTP/1.1\r\nx: " + b"y" * 20_000, b"GET / HTTP/9\r\n\r\n"])
def test_what_is_no_request_is_refused_in_the_form_of_all_refusals(given: bytes) -> None:
    with serving() as running, opened(running, given) as client:
        head, _, body = rest(client).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request")
    assert "no request of HTTP/1.1, or its head is longer than 16384 bytes" in json.loads(body)["error"]["message"]


def test_a_flood_of_requests_that_are_none_is_told_in_few_lines(capfd: pytest.CaptureFixture[str]) -> None:
    with serving() as running:
        for _ in range(200):
            with opened(running, b"no request\r\n\r\n") as client:
                assert rest(client).startswith(b"HTTP/1.1 400")
    lines = capfd.readouterr().err.splitlines()
    assert 1 <= len(lines) < 20
    assert lines[0] == "WARNING: Invalid HTTP request received."
