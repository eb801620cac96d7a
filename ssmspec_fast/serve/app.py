"""The endpoints: a request is parsed, checked, and handed to the worker."""

import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from ssmspec_ref.errors import SpecError

from ..api import Generator
from ..engine.requests import Settings
from .answers import Answers, ChatAnswers
from .asked import Asked, Chat, Completion
from .call import Call, Events
from .choice import Choice, Piece
from .guard import Guard
from .metrics import Metrics
from .refusal import Refused, of_engine, of_form
from .template import Template
from .worker import Worker
from .writer import Writer


@dataclass(frozen=True)
class Limits:
    """At most `queue` waiting completions, `choices` in one request, `bytes` in a body; without a `key` anybody is
    answered."""

    queue: int = 256
    choices: int = 16
    bytes: int = 1 << 20
    key: str | None = None


class Service:
    """An engine with a name, and its request limits. `about` is the model's description at /v1/models."""

    def __init__(
        self,
        generator: Generator,
        name: str,
        limits: Limits | None = None,
        template: Template | None = None,
        about: dict[str, Any] | None = None,
    ) -> None:
        self.generator, self.name, self.template = generator, name, template
        self.limits = Limits() if limits is None else limits
        engine = generator.engine
        self.room = engine.cache - engine.target.window + 1
        self.worker = Worker(engine, self.limits.queue)
        scheduler = self.worker.scheduler
        self.metrics = Metrics(lambda: len(scheduler.running), lambda: len(scheduler.waiting))
        names = engine.drafter.names
        own = {"drafters": names, "drafts": engine.drafter.nodes - 1} if names else {}
        sizes = {"max_model_len": self.room, "vocab_size": engine.model.config.vocabulary}
        self.model = {"id": name, "object": "model", "created": 0, "owned_by": "ssmspec"} | sizes | own | (about or {})

    def check(self, asked: Asked, prompts: int) -> None:
        """Checks that need no tokenization. Raises: Refused."""
        if asked.model not in (None, self.name):
            raise Refused(404, f"the model {asked.model!r} is not served; ask for {self.name}", "model", "model_not_found")
        count = prompts * asked.n
        if count > self.limits.choices:
            said = f"one request asks for {count} completions ({prompts} prompts, n {asked.n}); at most {self.limits.choices}"
            raise Refused(400, f"{said} are allowed; ask for fewer, or raise --most-choices", "n")
        if not prompts:
            raise Refused(400, "prompt is an empty list; give at least one", "prompt")
        if asked.stops and self.generator.tokenizer is None:
            raise Refused(400, "stop is text, but the model has no tokenizer; give stop_token_ids", "stop")
        self.worker.refuse(count)

    def choices(self, asked: Asked, prompts: Sequence[list[int]], hear: Callable[[Piece], None]) -> list[Choice]:
        """The choices of one request; the n choices of one prompt share its seed and differ in their keys. Raises:
        ParameterError."""
        found, own = list[Choice](), self.generator.engine.model.config.eos
        for number, prompt in enumerate(prompts):
            room = self.room - len(prompt)
            budget = max(1, room) if asked.budget is None else asked.budget
            if budget > room:
                said = f"a prompt of {len(prompt)} tokens and max_tokens {budget} exceed the context of {self.room} tokens"
                raise Refused(400, f"{said}; ask for fewer, or raise --context", "max_tokens", "context_length_exceeded")
            ends = (*(() if asked.ignore_eos else own), *asked.stop_token_ids)
            seed = secrets.randbits(63) if asked.seed is None else asked.seed
            settings = Settings(budget, ends, (), asked.sampling, seed, asked.drafts, asked.drafter)
            for key in range(asked.n):
                writer = Writer(self.generator.tokenizer, asked.stops, ends)
                found.append(Choice(number * asked.n + key, key, prompt, settings, writer, asked.wanted, own, hear))
        return found

    async def answer(self, request: Request, asked: Asked, answers: type[Answers], prompts: Sequence[list[int]]) -> Response:
        """Raises: Refused, and errors of the engine."""
        call = Call(self.worker, self.metrics, lambda hear: self.choices(asked, prompts, hear))
        self.metrics.prompt.inc(sum(map(len, prompts)))
        form = answers(asked, self.name, self.generator.tokenizer, prompts)
        return Events(call, form) if asked.stream else await call.answer(request, form)


def build(service: Service) -> FastAPI:
    """The app; the worker thread runs for its lifetime."""

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        service.worker.start()
        yield
        service.worker.close()

    app = FastAPI(title="ssmspec", lifespan=life, docs_url=None, redoc_url=None)

    @app.post("/v1/completions", response_model=None)
    async def completions(asked: Completion, request: Request) -> Response:
        service.check(asked, len(asked.prompts))
        prompts = [service.generator.encode(prompt) for prompt in asked.prompts]
        return await service.answer(request, asked, Answers, prompts)

    @app.post("/v1/chat/completions", response_model=None)
    async def chat(asked: Chat, request: Request) -> Response:
        if service.template is None:
            raise Refused(400, f"{service.name} has no chat template; use /v1/completions", code="no_chat_template")
        service.check(asked, 1)
        prompt = service.template.tokens([message.turn for message in asked.messages])
        return await service.answer(request, asked, ChatAnswers, [prompt])

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [service.model]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        if name != service.name:
            raise Refused(404, f"the model {name!r} is not served; ask for {service.name}", "model", "model_not_found")
        return service.model

    @app.get("/health")
    async def health() -> dict[str, str]:
        service.worker.refuse(0)
        return {"status": "ok"}

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")

    def refused(request: Request, error: Exception) -> Response:
        if isinstance(error, RequestValidationError):
            error = of_form(error.errors())
        elif isinstance(error, HTTPException):
            error = Refused(error.status_code, error.detail)
        elif isinstance(error, SpecError):
            error = of_engine(error)
        elif not isinstance(error, Refused):
            error = Refused(500, f"the server failed on this request: {type(error).__name__}")
        return JSONResponse(error.body, error.status, error.headers)

    for kind in (RequestValidationError, HTTPException, SpecError, Refused, Exception):
        app.add_exception_handler(kind, refused)
    app.add_middleware(Guard, key=service.limits.key, most=service.limits.bytes, count=service.metrics.answers)
    return app
