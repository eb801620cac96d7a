"""Every hostile request: refused, cheap for the engine, and a neighbour waits at most twice as long as without.

The server has a processor of its own; attacker and neighbour have another. Prints what was measured:
pytest -s -m robust tests/robust/test_corpus.py
"""

import http.client
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.commands import ROOT
from tests.fast.serve.serving import Ask
from tests.robust.requests import answer, corpus
from tests.robust.test_server import ASK, Server

pytestmark = [pytest.mark.robust, pytest.mark.timeout(3600)]
ENGINE, RATIO, REPEATS = 0.05, 2.0, 3
TOKENS, EACH = 1000, 20
LONG = {"prompt": "def mean(values):\n    return sum(values)\n" * 20, "max_tokens": 1, "temperature": 0}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    found = Server(tmp_path_factory.mktemp("server"), "--drain", "5")
    own = sorted(os.sched_getaffinity(0))
    for thread in os.listdir(f"/proc/{found.process.pid}/task"):
        os.sched_setaffinity(int(thread), own[:1])
    os.sched_setaffinity(0, own[1:2] or own)
    try:
        assert found.completion()[0] == 200
        yield found
    finally:
        os.sched_setaffinity(0, own)
        found.process.kill()


def seconds(server: Server) -> float:
    """Of the engine's thread so far."""
    text = answer(server.port, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").decode()
    return float(next(line.split()[1] for line in text.splitlines() if line.startswith("ssmspec_engine_seconds ")))


def test_each_is_refused_and_costs_the_engine_at_most_a_twentieth_of_a_second(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    every = corpus()
    assert len(every) >= 300
    dear, wrong = list[tuple[float, str]](), list[str]()
    for name, raw in every.items():
        before, begun = seconds(server), time.monotonic()
        head = answer(server.port, raw).partition(b"\r\n")[0]
        took = seconds(server) - before
        dear.append((took, name))
        if head and not head.split()[1].startswith(b"4"):
            wrong.append(f"{name}: {head!r}")
        if took > ENGINE:
            wrong.append(f"{name}: {took:.3f} s of the engine, {time.monotonic() - begun:.2f} s in all")
    with capsys.disabled():
        print(f"\n{len(every)} requests; seconds of the engine: {', '.join(f'{s:.4f} {n}' for s, n in sorted(dear)[:-4:-1])}")
    assert wrong == []
    assert server.completion()[0] == 200


def p99(server: Server, wanted: tuple[int, ...]) -> float:
    """Of the completions of a neighbour, one after the other, TOKENS tokens in all; each is compared with plain decoding."""
    found = list[float]()
    for _ in range(TOKENS // EACH):
        begun = time.monotonic()
        client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
        body = json.dumps(ASK | {"return_token_ids": True})
        client.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        choice = json.loads(client.getresponse().read())["choices"][0]
        found.append(time.monotonic() - begun)
        client.close()
        assert tuple(choice["token_ids"]) == wanted
    return statistics.quantiles(found, n=100, method="inclusive")[98]


@contextmanager
def attacked(server: Server, how: str) -> Iterator[None]:
    """A process that sends hostile requests, or long prompts, all the while."""
    code = "from tests.robust.requests import main; main(PORT, 9999)"
    if how == "long prompts":
        code = f"raw = sent({json.dumps(LONG).encode()!r})\nwhile True: answer(PORT, raw)"
        code = f"from tests.robust.requests import answer, sent\n{code}"
    process = subprocess.Popen([sys.executable, "-c", code.replace("PORT", str(server.port))], cwd=ROOT)
    try:
        time.sleep(1)
        yield
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("how", ["hostile requests", "long prompts"])
def test_a_neighbour_waits_at_most_twice_as_long(server: Server, how: str, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = Ask(str(ASK["prompt"]), EACH).alone()[0]
    ratios = list[float]()
    for _ in range(REPEATS):
        alone = p99(server, wanted)
        with attacked(server, how):
            beside = p99(server, wanted)
        ratios.append(beside / alone)
        with capsys.disabled():
            print(f"\n{how}: p99 {alone:.3f} s alone, {beside:.3f} s beside it, {ratios[-1]:.2f}", end=" ")
    assert statistics.median(ratios) <= RATIO
