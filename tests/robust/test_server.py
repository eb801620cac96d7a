"""A server in a process of its own under attack: its neighbours wait little longer than without.

Prints what each attack costs: pytest -s -m robust tests/robust/test_server.py
"""

import http.client
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.commands import ROOT

pytestmark = [pytest.mark.robust, pytest.mark.timeout(900)]
MODEL, FILES = "bpe-drafter", 1024
"""The model, and how many files the server may have open, as in a shell."""
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
JSON = HEAD + b"Content-Type: application/json\r\n"
ASK = {"prompt": "def mean(values):\n", "max_tokens": 20, "temperature": 0, "ignore_eos": True}
HEALTH, TIMES, MORE = 5.0, 3.0, 5.0
"""Seconds within which /health answers; and how many times what it takes alone a neighbour may take, and seconds more: the
machine may have other things to do."""


class Server:
    """A process that serves, and its answers."""

    def __init__(self, folder: Path, *words: str) -> None:
        given = ["--checkpoint", MODEL, "--drafter", "lookup", "--slots", "4", "--port", "0", *words]
        command = [sys.executable, "-c", "from ssmspec_fast.cli.serve import app; app()", *given]
        places = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "kernels"))), "OMP_NUM_THREADS": "1"}
        self.log = folder / "log"
        with self.log.open("w") as log:
            line = f"ulimit -Sn {FILES}; exec {shlex.join(command)}"
            self.process = subprocess.Popen(["/bin/sh", "-c", line], stderr=log, env=places)
        begun, found = time.monotonic(), None
        while found is None:
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() - begun < 240
            time.sleep(0.1)
            found = re.search(r"serving .* at http://127\.0\.0\.1:(\d+)", self.log.read_text())
        self.port = int(found[1])

    def asked(self, method: str, path: str, body: Any = None, timeout: float = 120) -> tuple[int, float]:
        """The status, 0 if there is none in time, and the seconds until the whole answer."""
        begun, raw = time.monotonic(), body if isinstance(body, bytes) else json.dumps(body).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, None if body is None else raw, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            return answer.status, time.monotonic() - begun
        except (OSError, http.client.HTTPException):
            return 0, time.monotonic() - begun
        finally:
            connection.close()

    def completion(self, **change: Any) -> tuple[int, float]:
        return self.asked("POST", "/v1/completions", ASK | change)

    def health(self) -> tuple[int, float]:
        return self.asked("GET", "/health", timeout=30)

    def opened(self, sent: bytes) -> socket.socket:
        made = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        made.sendall(sent)
        return made


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    found = Server(tmp_path_factory.mktemp("server"), "--drain", "5")
    try:
        assert found.completion()[0] == 200
        yield found
    finally:
        found.process.kill()


class Neighbour:
    """Asks for a completion after the other, and for /health now and then."""

    def __init__(self, server: Server) -> None:
        self.over, self.completions, self.healths = threading.Event(), list[tuple[int, float]](), list[tuple[int, float]]()
        asks = (lambda: self.completions.append(server.completion())), (lambda: self.healths.append(server.health()))
        self.threads = [threading.Thread(target=self.ask, args=(ask,)) for ask in asks]

    def ask(self, ask: Callable[[], None]) -> None:
        while not self.over.is_set():
            ask()
            time.sleep(0.05)

    def __enter__(self) -> "Neighbour":
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *given: object) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join()


def whole(body: Any, path: str = "/v1/completions") -> Callable[[Server, ExitStack], Any]:
    return lambda server, stack: server.asked("POST", path, body)


def held(*pieces: bytes, count: int = 1500, seconds: float = 5) -> Callable[[Server, ExitStack], Any]:
    """That many connections that send one of the pieces, and no more, for a while."""

    def attack(server: Server, stack: ExitStack) -> Any:
        for n in range(count):
            with suppress(OSError):
                stack.enter_context(server.opened(pieces[n % len(pieces)]))
        time.sleep(seconds)
        return count

    return attack


def in_chunks(server: Server, stack: ExitStack) -> Any:
    client = stack.enter_context(server.opened(JSON + b"Transfer-Encoding: chunked\r\n\r\n"))
    with suppress(OSError):
        client.sendall(b"1\r\n \r\n" * 200_000)
        client.recv(100)


def no_requests(server: Server, stack: ExitStack) -> Any:
    for _ in range(3000):
        with suppress(OSError), server.opened(b"no request\r\n\r\n") as client:
            client.recv(100)


ATTACKS: dict[str, Callable[[Server, ExitStack], Any]] = {
    "none": lambda server, stack: time.sleep(10),
    "a stop of 100,000 letters": whole(ASK | {"stop": "a" * 100_000}),
    "80,000 stops": whole(ASK | {"stop": [f"a{n}" for n in range(80_000)]}),
    "300,000 stop tokens": whole(ASK | {"stop_token_ids": [1] * 300_000}),
    "250,000 objects for a prompt": whole({"prompt": [{}] * 250_000}),
    "150,000 prompts": whole({"prompt": ["a"] * 150_000}),
    "150,000 lists": whole({"prompt": [[1]] * 150_000}),
    "60,000 fields": whole({f"k{n}": 1 for n in range(60_000)}),
    "1,000,000 letters": whole({"prompt": "a b " * 250_000}),
    "metadata": whole(ASK | {"metadata": [[[1]] * 100] * 400}),
    "1,500 half-sent heads": held(HEAD),
    "1,500 half-sent bodies": held(JSON + b"Content-Length: 100\r\n\r\n{"),
    "1,500 connections that say nothing": held(b""),
    "200,000 chunks of a byte": in_chunks,
    "3,000 requests that are none": no_requests,
}


@pytest.mark.parametrize("name", ATTACKS)
def test_a_neighbour_waits_little_longer(server: Server, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    alone = max(server.completion()[1] for _ in range(3))
    before = server.log.stat().st_size
    with ExitStack() as stack, Neighbour(server) as neighbour:
        time.sleep(1)
        begun = time.monotonic()
        ATTACKS[name](server, stack)
        took = time.monotonic() - begun
    completion, health = (max(seconds for _, seconds in found) for found in (neighbour.completions, neighbour.healths))
    with capsys.disabled():
        print(f"\n{name}: {took:.1f} s; a neighbour {completion:.2f} s (alone {alone:.2f}), health {health:.3f} s", end=" ")
    assert {status for status, _ in (*neighbour.completions, *neighbour.healths)} == {200}
    assert health < HEALTH
    assert completion < TIMES * alone + MORE
    assert server.log.stat().st_size - before < 5000


def test_a_server_full_of_half_sent_bodies_ends_at_once_with_zero(server: Server) -> None:
    with ExitStack() as stack:
        held(JSON + b"Content-Length: 100\r\n\r\n{", HEAD, b"", count=600, seconds=0)(server, stack)
        begun = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(30) == 0
        assert time.monotonic() - begun < 5
