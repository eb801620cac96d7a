"""An engine behind HTTP: a completion endpoint with token ids as input and output.

form          request                                fields read
openai        POST /v1/completions, prompt as ids,   choices[0].token_ids, logprobs.token_logprobs, finish_reason,
              return_token_ids, logprobs             usage.completion_tokens_details, usage.prompt_tokens_details
sglang        POST /generate, input_ids,             output_ids, meta_info.output_token_logprobs, meta_info.cached_tokens
              sampling_params
llama-server  POST /completion, prompt as ids,       tokens, completion_probabilities, timings.draft_n, .draft_n_accepted,
              return_tokens, n_probs, cache_prompt   .cache_n

vLLM, TensorRT-LLM and our own server have the first form. The form of a server is detected by GET /get_model_info, /props and
/v1/models, in this order. How a server drafts was fixed when it was started, so it has one configuration; its plain output
comes from another server (`--plain`).
"""

import http.client
import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import Any
from urllib.parse import SplitResult, urlsplit

from pydantic import ValidationError

from ..isolation.spent import SPENT
from ..isolation.text import clean
from .errors import EngineDied, EngineFailed, EngineRefused
from .program import ANSWERING, fitting
from .protocol import Answer, Options, Request, Started

MOST = 1 << 24
"""Largest answer, in bytes."""
BUSY = 8
"""How often a request is sent again after status 429."""
MODELS, INFO, PROPS = "/v1/models", "/get_model_info", "/props"


class Server:
    """A running server. Raises: EngineDied for an invalid address."""

    fixed = True
    """Its options were decided when it was started."""

    def __init__(self, address: str, answering: float = ANSWERING) -> None:
        parts = urlsplit(address.removeprefix("http:") if address.startswith("http:http") else address)
        if parts.scheme not in ("http", "https") or not parts.hostname or not _port(parts):
            raise EngineDied(f"{address!r} is not an address; give one such as http:http://127.0.0.1:8000")
        self.parts, self.answering = parts, answering
        self.form, self.name = "", ""

    def start(self, model: str, options: Options) -> Started:
        """Detect the server's form. Raises: EngineDied, EngineFailed; EngineRefused for options that it cannot change."""
        if options != Options(dtype=options.dtype):
            raise EngineRefused("how a server drafts and caches was decided when it was started")
        for path, form in ((INFO, "sglang"), (PROPS, "llama-server"), (MODELS, "openai")):
            with suppress(EngineFailed):
                said = self._json("GET", path, None)
                self.form = form
                break
        if not self.form:
            raise EngineFailed(f"none of {INFO}, {PROPS}, {MODELS} answers, so the kind of server is unknown")
        data = said.get("data")
        first = data[0] if isinstance(data, list) and data and isinstance(data[0], dict) else {}
        self.name = str(first.get("id", model))
        dtype = first.get("dtype") if first.get("dtype") in ("float32", "bfloat16", "float16", "float64") else options.dtype
        note = clean(f"speculation: {first['speculation']}") if first.get("speculation") else ""
        version = clean(str(first.get("owned_by", "?")))
        own = {name: first[name] for name in ("drafts", "drafters") if first.get(name)}
        features = [*(["drafts"] if "drafts" in own else []), *(["drafter"] if "drafters" in own else [])]
        told = {"dtype": dtype, "can": ["batch", "stop", "sample", "logprobs", *features], "note": note, **own}
        try:
            return Started.model_validate_json(json.dumps({"name": clean(f"{self.form} server"), "version": version, **told}))
        except ValidationError as error:
            raise EngineDied(f"{MODELS} describes drafts in another form: {clean(str(error), 300)}") from None

    def generate(self, requests: tuple[Request, ...]) -> tuple[Answer, ...]:
        """Send all requests at once, each on a separate connection. Raises: EngineRefused, EngineFailed, EngineDied."""
        with SPENT.exchange(None), ThreadPoolExecutor(len(requests)) as pool:
            answers = tuple(pool.map(self._one, requests))
        try:
            return fitting(requests, answers)
        except ValueError as error:
            raise EngineDied(str(error)) from None

    def close(self) -> None:
        """Does nothing: the server was started by somebody else."""

    def _one(self, request: Request) -> Answer:
        path, asked, read = FORMS[self.form]
        try:
            return read(self._json("POST", path, asked(request, self.name)), request)
        except (KeyError, IndexError, TypeError, AttributeError, ValidationError, ValueError) as error:
            raise EngineDied(f"the answer to {path} lacks a field: {clean(str(error), 300)}") from None

    def _json(self, method: str, path: str, body: Any) -> Any:
        """Send one request. Raises: EngineRefused (4xx), EngineFailed (5xx or 404), EngineDied (no readable answer)."""
        for _ in range(BUSY):
            status, wait, raw = self._sent(method, path, body)
            if status != 429:
                break
            time.sleep(min(wait, 5.0))
        if status in (400, 413, 422):
            raise EngineRefused(clean(raw.decode(errors="replace"), 500))
        if status != 200:
            raise EngineFailed(f"{path} answered {status}: {clean(raw.decode(errors='replace'), 300)}")
        try:
            return json.loads(raw)
        except (ValueError, RecursionError):
            raise EngineDied(
                f"{path} answered with text that is not JSON: {clean(raw[:200].decode(errors='replace'))}"
            ) from None

    def _sent(self, method: str, path: str, body: Any) -> tuple[int, float, bytes]:
        kind = http.client.HTTPSConnection if self.parts.scheme == "https" else http.client.HTTPConnection
        until = time.monotonic() + self.answering
        try:
            with closing(kind(self.parts.hostname or "", self.parts.port, timeout=self.answering)) as line:
                text = None if body is None else json.dumps(body)
                line.request(method, self.parts.path.rstrip("/") + path, text, {"Content-Type": "application/json"})
                answer = line.getresponse()
                raw = b""
                while piece := answer.read(1 << 16):
                    raw += piece
                    if len(raw) > MOST or time.monotonic() > until:
                        raise EngineDied(f"the answer of {path} was cut off")
                wait = answer.headers.get("Retry-After", "1")
                return answer.status, float(wait) if wait.isdecimal() else 1.0, raw
        except (OSError, http.client.HTTPException) as error:
            raise EngineDied(
                f"{self.parts.netloc} gave no answer to {path}: {clean(str(error) or type(error).__name__)}"
            ) from None


def _port(parts: SplitResult) -> bool:
    """Whether the port of an address is a number, or left out."""
    try:
        return parts.port is None or parts.port > 0
    except ValueError:
        return False


def _openai(request: Request, name: str) -> dict[str, Any]:
    own = {"drafts": request.drafts, "drafter": request.drafter}
    return {name: value for name, value in own.items() if value is not None} | {
        "model": name, "prompt": list(request.ids), "max_tokens": request.most, "temperature": request.temperature,
        "seed": request.seed, "logprobs": 1, "return_token_ids": True, "stop_token_ids": list(request.stop),
        "ignore_eos": True, "stream": False,
    }  # fmt: skip


def _from_openai(said: Any, request: Request) -> Answer:
    choice, usage = said["choices"][0], said.get("usage") or {}
    drafts, prompt = usage.get("completion_tokens_details") or {}, usage.get("prompt_tokens_details") or {}
    accepted, rejected = (drafts.get(f"{name}_prediction_tokens") for name in ("accepted", "rejected"))
    ids = tuple(choice["token_ids"])
    probs = (choice.get("logprobs") or {}).get("token_logprobs")
    return Answer(
        ids=ids,
        logprobs=tuple(probs) if probs is not None and len(probs) == len(ids) else None,
        finish="stop" if choice.get("finish_reason") == "stop" else "length",
        drafted=None if accepted is None or rejected is None else accepted + rejected,
        accepted=None if rejected is None else accepted,
        cached=prompt.get("cached_tokens"),
    )


def _sglang(request: Request, name: str) -> dict[str, Any]:
    sampling = {"max_new_tokens": request.most, "temperature": request.temperature, "stop_token_ids": list(request.stop)}
    return {"input_ids": list(request.ids), "sampling_params": {**sampling, "ignore_eos": True}, "return_logprob": True}


def _from_sglang(said: Any, request: Request) -> Answer:
    meta = said["meta_info"]
    ids = tuple(said.get("output_ids") or [entry[1] for entry in meta["output_token_logprobs"]])
    probs = tuple(entry[0] for entry in meta.get("output_token_logprobs") or ())
    drafted = meta.get("spec_draft_token_num")
    return Answer(
        ids=ids, logprobs=probs if len(probs) == len(ids) else None, cached=meta.get("cached_tokens"),
        finish="stop" if (meta.get("finish_reason") or {}).get("type") == "stop" else "length", drafted=drafted,
        accepted=None if drafted is None else meta.get("spec_accept_token_num"),
    )  # fmt: skip


def _llama(request: Request, name: str) -> dict[str, Any]:
    return {
        "prompt": list(request.ids), "n_predict": request.most, "temperature": request.temperature, "seed": request.seed,
        "return_tokens": True, "n_probs": 1, "ignore_eos": True, "cache_prompt": True, "stream": False,
        "samplers": ["temperature"],
    }  # fmt: skip


def _from_llama(said: Any, request: Request) -> Answer:
    """llama-server cannot stop at a token id: the answer is cut here, as its client would do."""
    ids, timings = tuple(said["tokens"]), said.get("timings") or {}
    probs = tuple(entry.get("logprob") for entry in said.get("completion_probabilities") or ())
    end = next((n + 1 for n, token in enumerate(ids) if token in request.stop), len(ids))
    return Answer(
        ids=ids[:end], logprobs=probs[:end] if len(probs) == len(ids) else None, drafted=timings.get("draft_n"),
        accepted=timings.get("draft_n_accepted"), cached=timings.get("cache_n"),
        finish="stop" if end < len(ids) else "length",
    )  # fmt: skip


FORMS: dict[str, Any] = {
    "openai": ("/v1/completions", _openai, _from_openai),
    "sglang": ("/generate", _sglang, _from_sglang),
    "llama-server": ("/completion", _llama, _from_llama),
}
