"""A server in a thread of this process, and what each request gives without it."""

import asyncio
import http.client
import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import openai

from ssmspec_fast.cli.shipped import SHIPPED
from ssmspec_fast.engine.requests import Settings
from ssmspec_fast.engine.sampling import Sampling
from ssmspec_fast.generator import Generator
from ssmspec_fast.models.build import Parts
from ssmspec_fast.serve.app import Limits, Service
from ssmspec_fast.serve.chat.template import template_of
from ssmspec_fast.serve.logits import Logged
from ssmspec_fast.serve.server import Server

MODEL = "bpe-drafter"
CONTEXT = 256
KEY = "a key"


@lru_cache
def engine_of(
    slots: int, drafter: str | None = "lookup", folder: Path = SHIPPED / MODEL, piece: int | None = 256
) -> Generator:
    """Kept for all tests: a server that has ended leaves its engine as it found it."""
    return Parts(folder, drafter, acceptance="naive", slots=slots, cache=CONTEXT, engine=Logged, piece=piece).load()


@dataclass
class Running:
    url: str
    service: Service
    server: Server

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def client(self, **given: Any) -> openai.OpenAI:
        return openai.OpenAI(**self.options | {"timeout": 120} | given)

    def parallel(self, **given: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(**self.options | {"timeout": 600} | given)

    @property
    def options(self) -> dict[str, Any]:
        return {"base_url": f"{self.url}/v1", "api_key": "k", "max_retries": 0}


@contextmanager
def serving(
    slots: int = 4,
    drafter: str | None = "lookup",
    folder: Path = SHIPPED / MODEL,
    generator: Generator | None = None,
    **limits: Any,
) -> Iterator[Running]:
    generator = engine_of(slots, drafter, folder) if generator is None else generator
    service = Service(generator, folder.name, Limits(**limits), template_of(folder, generator.tokenizer))
    listening, address = threading.Event(), list[str]()

    def ready(url: str) -> None:
        address.append(url)
        listening.set()

    server = Server(service, ready, 30)
    bound = socket.create_server(("127.0.0.1", 0), backlog=1024)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    assert listening.wait(60)
    try:
        yield Running(address[0], service, server)
    finally:
        server.should_exit = True
        thread.join()


@dataclass(frozen=True)
class Ask:
    """A request, and what it gives alone."""

    prompt: str
    count: int = 6
    sampling: Sampling = field(default_factory=lambda: Sampling(0.0))
    seed: int = 0
    stop: tuple[str, ...] = ()

    @property
    def body(self) -> dict[str, Any]:
        s = self.sampling
        sampled = {"temperature": s.temperature, "top_p": s.top_p, "seed": self.seed}
        extra = {"top_k": s.top_k, "return_token_ids": True}
        stops = {"stop": list(self.stop)} if self.stop else {}
        return {"model": MODEL, "prompt": self.prompt, "max_tokens": self.count, **sampled, **stops, "extra_body": extra}

    def alone(self) -> tuple[tuple[int, ...], str]:
        """Tokens and text by an engine with one slot that reads the prompt at once and decodes plainly; a stop string is
        looked for in the text."""
        engine = engine_of(1, None, piece=None)
        assert engine.tokenizer is not None
        settings = Settings(self.count, engine.engine.model.config.eos, (), self.sampling, self.seed)
        found = engine.generate([self.prompt], settings).completions[0]
        for n in range(len(found.tokens) + 1):
            text = engine.tokenizer.decode(found.tokens[:n])
            places = [text.index(stop) for stop in self.stop if stop in text]
            if places:
                return found.tokens[:n], text[: min(places)]
        assert found.text is not None
        return found.tokens, found.text


def sent(
    running: Running,
    body: Any = "",
    method: str = "POST",
    path: str = "/v1/completions",
    *,
    port: int = 0,
    own: str | None = None,
    **headers: str,
) -> tuple[int, dict[str, str], Any]:
    """Status, headers and what was said, over a bare connection from one of this machine's addresses; a dict is JSON."""
    given = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    raw = json.dumps(body) if isinstance(body, dict) else body
    connection = http.client.HTTPConnection("127.0.0.1", port or running.port, 60, (own, 0) if own else None)
    try:
        connection.request(method, path, raw.encode() if isinstance(raw, str) else raw, given)
        answer = connection.getresponse()
        text = answer.read().decode()
        is_json = text.startswith(("{", "["))
        return answer.status, dict(answer.headers), json.loads(text) if is_json else text
    finally:
        connection.close()


@contextmanager
def opened(running: Running, given: bytes = b"", own: str = "127.0.0.1") -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", running.port), 20, (own, 0)) as found:
        found.sendall(given)
        yield found


def rest(given: socket.socket) -> bytes:
    """All that the server still sends, until it closes the connection."""
    found = b""
    try:
        while part := given.recv(1 << 16):
            found += part
    except ConnectionResetError:
        pass
    return found


def is_open(given: socket.socket) -> bool:
    given.settimeout(0.01)
    try:
        return given.recv(1, socket.MSG_PEEK) != b""
    except TimeoutError:
        return True
    except ConnectionResetError:
        return False


def closed(running: Running, reason: str) -> float:
    return float(running.service.metrics.closed.labels(reason)._value.get())


@contextmanager
def started(script: str, *words: Any) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """A server of a script in a process of its own, and its address; the first word is the script's own."""
    first, *more = map(str, words)
    options = ["--checkpoint", MODEL, "--port", "0", "--slots", "2", "--context", "512", *more]
    command = [sys.executable, "-c", script, first, *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            found = re.fullmatch(rf"serving {MODEL} at (http://127\.0\.0\.1:\d+)\n", line)
            assert found, line
            yield process, found[1]
        finally:
            process.kill()


def said(answer: Any, index: int = 0) -> tuple[tuple[int, ...], str]:
    choice = answer.choices[index]
    return tuple(choice.token_ids), choice.text


def together(running: Running, asks: Sequence[Ask], **client: Any) -> list[Any]:
    """The answers to requests that are sent all at once; an error where one is raised."""

    async def all_of_them() -> list[Any]:
        async with running.parallel(**client) as parallel:
            return await asyncio.gather(*(parallel.completions.create(**ask.body) for ask in asks), return_exceptions=True)

    return asyncio.run(all_of_them())


def differences(running: Running, asks: Sequence[Ask], wanted: Sequence[Any], **client: Any) -> list[str]:
    """The requests that are not answered, or not with what they give alone."""
    found = list[str]()
    for ask, answer, right in zip(asks, together(running, asks, **client), wanted, strict=True):
        if isinstance(answer, BaseException):
            found.append(f"{ask}: {answer}")
        elif said(answer) != right:
            found.append(f"{ask}: {said(answer)}, alone {right}")
    return found


def until(holds: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Whether it holds in time."""
    end = time.monotonic() + seconds
    while not (held := holds()) and time.monotonic() < end:
        time.sleep(0.01)
    return held
