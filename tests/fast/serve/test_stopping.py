"""A server that is told to stop ends in time, whatever its threads and its clients do, and says by its exit code how."""

import re
import signal
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx2
import pytest

from ssmspec_fast.cli.refusal import REFUSED
from ssmspec_fast.serve.server import CUT
from tests.commands import ROOT

from .serving import started

HANGS = """
import os, re, sys, threading, time
from ssmspec_fast.cli.serve import app
from ssmspec_fast.engine.scheduler import Scheduler
from ssmspec_fast.serve.app import Service
from ssmspec_fast.serve.server import Server

def sleeps(*given):
    time.sleep(1000)

def runs(*given):
    while True:
        pass

def locks(*given):
    while not stopping:
        time.sleep(0.01)
    re.fullmatch("(a|aa)+b", "a" * 100)  # never ends, and holds Python's lock

stopping, handle = [], Server.handle_exit
Server.handle_exit = lambda self, *given: (handle(self, *given), stopping.append(1))
hang, turn = {"sleeps": sleeps, "runs": runs, "locks": locks}.get(sys.argv[1]), Scheduler.turn
if hang:
    Scheduler.turn = lambda self: hang() if self.waiting or self.running else turn(self)
if sys.argv[1] == "loop":
    Service.unknown = sleeps  # called in the event loop at /v1/models/NAME
if sys.argv[1] == "slow":
    Scheduler.turn = lambda self: (time.sleep(0.1), turn(self))[1]
del sys.argv[1]
app()
"""
"""A server whose engine hangs in its first step, or whose event loop does."""
LONG = {"prompt": "x = ", "max_tokens": 400, "temperature": 0, "ignore_eos": True, "stream": True}
HALF = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
DRAIN = 2
DRAINS = ("--drain", DRAIN)
SLOW = 6.0
"""Seconds beyond the drain, for a machine with much to do."""


def streamed(url: str) -> str:
    """What a stream brings until it ends or is cut."""
    found = ""
    try:
        with httpx2.stream("POST", f"{url}/v1/completions", json=LONG, timeout=60) as answer:
            for part in answer.iter_text():
                found += part
    except httpx2.TransportError:
        pass
    return found


def half_sent(url: str, count: int, stack: ExitStack) -> list[socket.socket]:
    found = []
    for n in range(count):
        made = stack.enter_context(socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=60))
        made.sendall((HALF, HALF[:30], b"")[n % 3])
        found.append(made)
    return found


def stopped(process: "subprocess.Popen[str]", within: float, sig: int = signal.SIGTERM) -> tuple[int, str]:
    """The exit code and what was said, once it has ended."""
    begun = time.monotonic()
    process.send_signal(sig)
    code = process.wait(within + SLOW)
    assert time.monotonic() - begun < within + SLOW
    assert process.stderr is not None
    return code, process.stderr.read()


def test_an_idle_server_ends_at_once_with_zero_whatever_is_half_sent() -> None:
    with ExitStack() as stack, started(HANGS, "", "--drain", 60) as (process, url):
        held = half_sent(url, 9, stack)
        httpx2.get(f"{url}/health")
        assert stopped(process, 0, signal.SIGINT) == (0, "")
        found = [one.recv(1 << 12) for one in held]
        assert [one.startswith(b"HTTP/1.1 503 Service Unavailable") for one in found] == [True, True, False] * 3
        assert found[2::3] == [b""] * 3


@pytest.mark.parametrize("how", ["sleeps", pytest.param("runs", marks=pytest.mark.robust), "locks"])
def test_an_engine_that_hangs_does_not_keep_the_process(how: str) -> None:
    with ExitStack() as stack, started(HANGS, how, *DRAINS) as (process, url), ThreadPoolExecutor() as pool:
        half_sent(url, 3, stack)
        work = pool.submit(streamed, url)
        time.sleep(1)
        code, said = stopped(process, DRAIN)
        assert code == CUT
        if how == "locks":  # nobody can write a line, but the interpreter shows where it hangs
            assert "fullmatch" in said
        else:
            assert "shutting_down" in work.result()
            assert "ssmspec serve: the engine did not end its step in time; it is left behind" in said
            assert "Traceback" not in said


def test_an_event_loop_that_hangs_does_not_keep_the_process() -> None:
    with started(HANGS, "loop", *DRAINS) as (process, url), ThreadPoolExecutor() as pool:
        work = pool.submit(httpx2.get, f"{url}/v1/models/x", timeout=60)
        time.sleep(1)
        code, said = stopped(process, DRAIN)
        assert (code, "in sleeps" in said) == (CUT, True)
        assert isinstance(work.exception(), httpx2.TransportError)


def test_what_is_left_after_the_drain_is_refused_and_told_by_the_exit_code() -> None:
    with started(HANGS, "slow", *DRAINS) as (process, url), ThreadPoolExecutor() as pool:
        work = [pool.submit(streamed, url) for _ in range(3)]
        time.sleep(1)
        code, said = stopped(process, DRAIN)
        assert (code, said) == (CUT, "ssmspec serve: 3 completions were refused when --drain had passed\n")
        assert all("shutting_down" in one.result() for one in work)
        assert all(one.result().endswith("data: [DONE]\n\n") for one in work)


def test_a_second_signal_ends_it_at_once() -> None:
    with started(HANGS, "sleeps", "--drain", 600) as (process, url), ThreadPoolExecutor() as pool:
        work = pool.submit(streamed, url)
        time.sleep(1)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert process.poll() is None
        said = "ssmspec serve: a second signal came, SIGINT; requests may be cut\n"
        assert stopped(process, 0, signal.SIGINT) == (CUT, said)
        assert work.result() == ""


def test_the_page_has_the_exit_codes() -> None:
    page = (ROOT / "docs" / "how-to" / "serve.md").read_text()
    rows = dict(re.findall(r"^\| (\d) \| (.*) \|$", page, re.M))
    assert list(rows) == ["0", str(CUT), str(REFUSED)]
    assert "answered whole" in rows["0"]
    assert "refused or cut" in rows[str(CUT)]
