"""The endpoints: a request is parsed, checked, and handed to the worker. The event loop does none of this itself."""

import gc
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from anyio import CapacityLimiter, to_thread
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from ssmspec_ref.errors import SpecError

from ..engine.requests import Settings
from ..generator import Generator
from .answers import Answers, ChatAnswers
from .asked import Asked, Chat, Completion
from .bounds import read
from .call import GONE, Call, Events
from .chat.template import Template
from .choice import Choice, Piece
from .guard import Guard
from .metrics import Metrics
from .network.address import client_of
from .refusal import Refused, of_engine, of_form, quoted
from .worker import Worker
from .writer import Writer

THREADS = 2
"""Requests that are parsed and tokenized at once; others wait."""
PLACE = "#/components/schemas/"
Form = TypeVar("Form", bound=Asked)


@dataclass(frozen=True)
class Limits:
    """At most `queue` waiting completions, `each` of one client (None: half of them), `choices` in one request, `bytes` in a
    body. Without a `key`, requests are answered whose Host is an IP address, localhost or one of `hosts`."""

    queue: int = 256
    choices: int = 16
    bytes: int = 1 << 20
    key: str | None = None
    each: int | None = None
    hosts: tuple[str, ...] = ()
    proxies: tuple[str, ...] = ()
    """Addresses of proxies, whose X-Forwarded-For names the client."""


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
        pieces = {} if generator.tokenizer is None else generator.tokenizer.pieces()
        self.letters = self.room * max(map(len, pieces), default=0)
        self.threads = CapacityLimiter(THREADS)
        most = self.limits
        self.worker = Worker(engine, most.queue, max(most.choices, most.queue // 2) if most.each is None else most.each)
        scheduler = self.worker.scheduler
        self.metrics = Metrics(lambda: len(scheduler.running), lambda: len(scheduler.waiting), lambda: self.worker.seconds)
        names = engine.drafter.names
        own = {"drafters": names, "drafts": engine.drafter.nodes - 1} if names else {}
        sizes = {"max_model_len": self.room, "vocab_size": engine.model.config.vocabulary}
        self.model = {"id": name, "object": "model", "created": 0, "owned_by": "ssmspec"} | sizes | own | (about or {})

    def check(self, asked: Asked, prompts: int) -> None:
        """Checks that need no tokenization. Raises: Refused."""
        if asked.model not in (None, self.name):
            raise self.unknown(asked.model)
        count = prompts * asked.n
        if count > self.limits.choices:
            said = f"one request asks for {count} completions ({prompts} prompts, n {asked.n}); at most {self.limits.choices}"
            raise Refused(400, f"{said} are allowed; ask for fewer, or raise --most-choices", "n")
        if not prompts:
            raise Refused(400, "prompt is an empty list; give at least one", "prompt")
        if asked.stops and self.generator.tokenizer is None:
            raise Refused(400, "stop is text, but the model has no tokenizer; give stop_token_ids", "stop")
        self.worker.refuse(count)

    def unknown(self, name: str) -> Refused:
        return Refused(404, f"the model '{quoted(name)}' is not served; ask for {self.name}", "model", "model_not_found")

    def fits(self, text: str) -> str:
        """The text, if it is not longer than the context even in the longest tokens. Raises: Refused."""
        if len(text) > self.letters > 0:
            said = f"a prompt of {len(text)} characters exceeds the context of {self.room} tokens, which hold {self.letters}"
            raise Refused(400, f"{said}; ask for fewer, or raise --context", code="context_length_exceeded")
        return text

    def completion(self, raw: bytes) -> tuple[Completion, list[list[int]]]:
        """A completion and the tokens of its prompts. Raises: Refused, ParameterError."""
        asked = form_of(Completion, raw, self.room)
        self.check(asked, len(asked.prompts))
        prompts = [self.fits(prompt) if isinstance(prompt, str) else prompt for prompt in asked.prompts]
        return asked, [self.generator.encode(prompt) for prompt in prompts]

    def chat(self, raw: bytes) -> tuple[Chat, list[list[int]]]:
        """A chat and the tokens of its template. Raises: Refused, ParameterError."""
        if self.template is None:
            raise Refused(400, f"{self.name} has no chat template; use /v1/completions", code="no_chat_template")
        asked = form_of(Chat, raw, self.room)
        self.check(asked, 1)
        return asked, [self.template.tokens([message.turn for message in asked.messages], self.fits)]

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

    async def answer(
        self, request: Request, asking: Callable[[bytes], tuple[Asked, list[list[int]]]], answers: type[Answers]
    ) -> Response:
        """`asking` reads the body. Raises: Refused, and errors of the engine."""
        raw, client = await body_of(request), client_of(request.scope["client"])
        self.worker.refuse(1, client)
        asked, prompts = await to_thread.run_sync(asking, raw, limiter=self.threads)
        call = Call(self.worker, self.metrics, client, lambda hear: self.choices(asked, prompts, hear))
        await to_thread.run_sync(call.begin, limiter=self.threads)
        self.metrics.prompt.inc(sum(map(len, prompts)))
        form = answers(asked, self.name, self.generator.tokenizer, prompts)
        return Events(call, form) if asked.stream else await call.answer(request, form)


def form_of(form: type[Form], raw: bytes, context: int) -> Form:
    """Raises: Refused."""
    body = read(raw, context)
    try:
        return form.model_validate(body)
    except ValidationError as error:
        raise of_form(error.errors(include_url=False)) from error


async def body_of(request: Request) -> bytes:
    """The body, if it is said to be JSON; the page of another site cannot say so. Raises: Refused."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        raw = await request.body()
    except ClientDisconnect:
        raise Refused(GONE, "the client has gone") from None
    said = kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))
    if not raw or not said:
        raise Refused(400, "the body is no JSON object; send one, with the header Content-Type: application/json")
    return raw


def build(service: Service) -> FastAPI:
    """The app; the worker thread runs for its lifetime."""

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        gc.collect()
        gc.freeze()  # a large body is read ten times faster if what was loaded is not searched for garbage meanwhile
        service.worker.start()
        yield
        service.worker.close()
        gc.unfreeze()

    app = FastAPI(title="ssmspec", lifespan=life, docs_url=None, redoc_url=None, redirect_slashes=False)

    @app.post("/v1/completions", response_model=None, openapi_extra=described("Completion"))
    async def completions(request: Request) -> Response:
        return await service.answer(request, service.completion, Answers)

    @app.post("/v1/chat/completions", response_model=None, openapi_extra=described("Chat"))
    async def chat(request: Request) -> Response:
        return await service.answer(request, service.chat, ChatAnswers)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [service.model]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        if name != service.name:
            raise service.unknown(name)
        return service.model

    @app.get("/health")
    async def health() -> dict[str, str]:
        service.worker.refuse(0)
        return {"status": "ok"}

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")

    def refused(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException):
            error = Refused(error.status_code, error.detail)
        elif isinstance(error, SpecError):
            error = of_engine(error)
        elif not isinstance(error, Refused):
            error = Refused(500, f"the server failed on this request: {type(error).__name__}")
        return JSONResponse(error.body, error.status, error.headers)

    for kind in (HTTPException, SpecError, Refused, Exception):
        app.add_exception_handler(kind, refused)
    own: dict[str, Any] = {"key": service.limits.key, "most": service.limits.bytes, "hosts": service.limits.hosts}
    app.add_middleware(Guard, **own, count=service.metrics.answers)
    _, forms = models_json_schema([(Completion, "validation"), (Chat, "validation")], ref_template=PLACE + "{model}")
    app.openapi().setdefault("components", {}).setdefault("schemas", {}).update(forms["$defs"])
    return app


def described(form: str) -> dict[str, Any]:
    """What /openapi.json says about a body that FastAPI does not read."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": {"$ref": PLACE + form}}}}}
