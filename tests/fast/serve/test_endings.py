"""Requests whose client disconnects, and requests of a server that ends. None is lost."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from ssmspec_fast.cli.refusal import REFUSED
from ssmspec_fast.cli.serve import app
from ssmspec_fast.engine.emitted_windows import StreamingEngine
from ssmspec_fast.engine.sampling import Sampling
from ssmspec_fast.serve.worker import Worker

from ..commands import called
from .serving import MODEL, Ask, Running, said, serving, started, until

LONG = 200
SERVE = "from ssmspec_fast.cli.serve import app; app()"
HELD = """
import sys, time
from pathlib import Path
from ssmspec_fast.cli.serve import app
from ssmspec_fast.engine.scheduler import Scheduler

held, turns, real = Path(sys.argv.pop(1)), 0, Scheduler.turn

def turn(self):
    global turns
    turns += 1
    while turns == 3 and len(self.running) + len(self.waiting) < 6 or len(self.running) == 2 and held.exists():
        time.sleep(0.01)
    return real(self)

Scheduler.turn = turn
app()
"""
"""A server whose third step waits until six requests run or wait; while the file exists, no two requests take a step."""


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of every step; a step takes 10 ms or more."""
    found, real = list[int](), StreamingEngine.step

    def step(self: StreamingEngine, running: Any, sequences: Any) -> None:
        found.append(len(running))
        time.sleep(0.01)
        real(self, running, sequences)

    monkeypatch.setattr(StreamingEngine, "step", step)
    return found


def long(stream: bool) -> dict[str, Any]:
    body = Ask("x = ", LONG).body
    body["extra_body"]["ignore_eos"] = True
    return body | {"stream": stream}


def leave_stream(running: Running) -> None:
    """Reads a piece, and closes the connection."""
    with running.client() as client, client.completions.create(**long(True)) as stream:
        assert next(iter(stream)).choices[0].token_ids


def leave_answer(running: Running) -> None:
    """Waits for a moment, and closes the connection."""
    with running.client(timeout=httpx2.Timeout(60, read=0.2)) as client, pytest.raises(openai.APITimeoutError):
        client.completions.create(**long(False))


def steps_after(leave: Callable[[Running], None], steps: list[int]) -> int:
    """The steps that a completion takes whose client goes away; after that another one is answered."""
    with serving(1, None) as running:
        leave(running)
        assert until(lambda: not running.service.worker.choices)
        taken = len(steps)
        with running.client() as client:
            assert said(client.completions.create(**Ask("import ", 3).body)) == Ask("import ", 3).alone()
        return taken


@pytest.mark.parametrize("leave", [leave_stream, leave_answer])
def test_a_client_that_goes_away_frees_its_slot(leave: Callable[[Running], None], steps: list[int]) -> None:
    """Its completion would take LONG steps; half of them are a second, in which the server hears of it."""
    assert steps_after(leave, steps) < LONG / 2


def test_a_planted_slot_that_is_not_freed_is_caught(steps: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Worker, "cancel", lambda self, number: None)
    assert steps_after(leave_stream, steps) >= LONG / 2


def test_a_client_that_goes_away_while_it_waits_leaves_the_queue(steps: list[int]) -> None:
    with serving(1, None, queue=2, choices=2) as running:
        worker = running.service.worker
        with running.client() as client, client.completions.create(**long(True)) as stream:
            next(iter(stream))
            leave_answer(running)
            assert until(lambda: not worker.scheduler.waiting)
            assert len(worker.scheduler.running) == 1
        assert until(lambda: not worker.choices)


def test_one_of_several_choices_that_has_ended_does_not_end_the_others(steps: list[int]) -> None:
    with serving(2, None) as running, running.client() as client:
        body = Ask("x = ", 30, Sampling(1.5), 3).body | {"n": 4}
        found = client.completions.create(**body)
        texts = [choice.text for choice in found.choices]
        stop = next(letter for letter in texts[0] if any(letter not in text for text in texts))
        stopped = client.completions.create(**body, stop=[stop])
        assert [choice.text for choice in stopped.choices] == [text.split(stop)[0] for text in texts]
        assert {choice.finish_reason for choice in stopped.choices} == {"stop", "length"}


def test_a_drain_that_takes_too_long_refuses_what_is_left(steps: list[int]) -> None:
    with serving(1, None) as running, ThreadPoolExecutor() as pool, running.client() as client:
        work: list[Future[Any]] = [pool.submit(client.completions.create, **long(False)) for _ in range(3)]
        assert until(lambda: len(running.service.worker.choices) == 3)
        running.service.worker.drain(0)
        for one in work:
            with pytest.raises(openai.InternalServerError, match="shutting down") as error:
                one.result()
            assert (error.value.status_code, error.value.response.headers["Retry-After"]) == (503, "1")
        with pytest.raises(openai.InternalServerError, match="shutting down"):
            client.completions.create(**Ask("x").body)
        assert client._client.get(f"{running.url}/health").status_code == 503


def test_an_engine_that_stops_is_told_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as running, running.client() as client:
        monkeypatch.setattr(running.service.worker.scheduler, "turn", lambda: 1 / 0)
        for _ in range(2):
            with pytest.raises(openai.InternalServerError, match="ZeroDivisionError"):
                client.completions.create(**Ask("x").body)
        assert client._client.get(f"{running.url}/health").status_code == 500
        running.service.worker.scheduler.close()


@pytest.fixture
def process(tmp_path: Path) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    (tmp_path / "held").touch()
    with started(HELD, tmp_path / "held", "--api-key", "k", "--drain", 200) as found:
        yield found


def test_sigterm_lets_what_runs_and_waits_end_and_takes_no_more(
    tmp_path: Path, process: tuple[subprocess.Popen[str], str]
) -> None:
    """Two run and four wait when the signal comes: all six are answered whole. A new connection is refused."""
    started, url = process
    asks = [Ask("x = ", 40, Sampling(1.0), seed) for seed in range(6)]
    with openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0, timeout=300) as client, ThreadPoolExecutor() as pool:
        first = client.completions.create(**asks[0].body, stream=True)
        pieces = [next(iter(first))]
        work = [pool.submit(client.completions.create, **ask.body) for ask in asks[1:]]

        def taken() -> bool:
            figures = client._client.get(f"{url}/metrics", headers={"Authorization": "Bearer k"}).text
            return all(
                f"ssmspec_{state}_completions {count}" in figures for state, count in (("running", 2.0), ("waiting", 4.0))
            )

        assert until(taken)
        started.send_signal(signal.SIGTERM)
        (tmp_path / "held").unlink()
        pieces += first
        assert "".join(piece.choices[0].text for piece in pieces) == asks[0].alone()[1]
        assert [said(one.result()) for one in work] == [ask.alone() for ask in asks[1:]]
        with pytest.raises(openai.APIConnectionError):
            client.completions.create(**Ask("x").body)
    assert started.wait(60) == 0
    assert started.stderr is not None
    assert started.stderr.read() == ""


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "no checkpoint was given; give --checkpoint FOLDER"),
        (["--checkpoint", "nowhere"], "nowhere"),
        (["--checkpoint", MODEL, "--queue", "3"], "--queue is 3; it must be 16 or more"),
        (["--checkpoint", MODEL, "--per-client", "3"], "--per-client is 3; it must be 16 or more"),
        (["--checkpoint", MODEL, "--prefill-chunk", "65"], "pieces of prompts have 65 tokens; give a multiple of 64"),
        (["--checkpoint", MODEL, "--proxy", "*"], "--proxy is '*'; give an address, or a network"),
        (["--checkpoint", MODEL, "--known-host", "a.example:80"], "--known-host is 'a.example:80'; give a name"),
        (["--checkpoint", MODEL, "--api-key", ""], "the API key is empty"),
        (
            ["--checkpoint", MODEL, "--queue", "1000000000"],
            "connections need 1000000584 open files, but this",
        ),
    ],
)
def test_a_server_that_cannot_start_says_why_in_a_line(words: list[str], text: str) -> None:
    found = called(app, *words)
    assert found.exit_code == REFUSED
    assert text in found.stderr
    assert len(found.stderr.splitlines()) == 1


def test_without_the_extra_the_command_says_what_brings_it() -> None:
    """In a process of its own, where the library cannot be imported."""
    code = "import sys; sys.modules['fastapi'] = None; " + SERVE
    done = subprocess.run([sys.executable, "-c", code, "--checkpoint", MODEL], capture_output=True, text=True)
    assert done.returncode == REFUSED
    assert "pip install '../ssmspec[serve]'" in done.stderr


def test_threads_end_with_the_server() -> None:
    with serving():
        pass
    assert not [one for one in threading.enumerate() if one.name == "ssmspec engine"]
