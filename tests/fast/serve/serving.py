"""A server in a thread of this process, and what each request gives without it."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import openai

from ssmspec_fast.accept.processors import Sampling
from ssmspec_fast.api import Generator
from ssmspec_fast.cli.generate import SHIPPED
from ssmspec_fast.engine.requests import Settings
from ssmspec_fast.models.build import Parts
from ssmspec_fast.serve.app import Limits, Service
from ssmspec_fast.serve.chat.template import template_of
from ssmspec_fast.serve.logits import Logged
from ssmspec_fast.serve.server import Server

MODEL = "bpe-drafter"
CONTEXT = 256


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

    def client(self, **given: Any) -> openai.OpenAI:
        return openai.OpenAI(**{"base_url": f"{self.url}/v1", "api_key": "k", "max_retries": 0, "timeout": 120} | given)

    def parallel(self, **given: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(**{"base_url": f"{self.url}/v1", "api_key": "k", "max_retries": 0, "timeout": 600} | given)


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
