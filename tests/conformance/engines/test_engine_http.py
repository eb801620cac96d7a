"""Servers of three forms, and ones that are busy, broken or gone."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from conformance.engines.errors import EngineDied, EngineFailed, EngineRefused
from conformance.engines.http import Server
from conformance.engines.protocol import Options, Request

MODELS = {"data": [{"id": "small", "dtype": "float32", "owned_by": "somebody"}]}
USAGE = {"completion_tokens_details": {"accepted_prediction_tokens": 1, "rejected_prediction_tokens": 3}}
OPENAI = {
    "choices": [{"token_ids": [3, 4], "finish_reason": "stop", "logprobs": {"token_logprobs": [-0.5, -1.0]}}],
    "usage": USAGE | {"prompt_tokens_details": {"cached_tokens": 2}},
}  # fmt: skip
SGLANG = {
    "output_ids": [3, 4],
    "meta_info": {"output_token_logprobs": [[-0.5, 3, None], [-1.0, 4, None]], "cached_tokens": 2,
                  "finish_reason": {"type": "stop"}, "spec_draft_token_num": 4, "spec_accept_token_num": 1},
}  # fmt: skip
LLAMA = {
    "tokens": [3, 4, 5], "timings": {"draft_n": 4, "draft_n_accepted": 1, "cache_n": 2},
    "completion_probabilities": [{"logprob": -0.5}, {"logprob": -1.0}, {"logprob": -2.0}],
}  # fmt: skip


@contextmanager
def serving(answers: dict[str, Any], statuses: list[int] | None = None) -> Iterator[tuple[Server, list[Any]]]:
    """A server of fixed answers; POST answers with the next of `statuses` where there is one."""
    asked: list[Any] = []
    left = list(statuses or [])

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(200 if self.path in answers else 404)

        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.answer(left.pop(0) if left else 200)

        def answer(self, status: int) -> None:
            said = answers.get(self.path, {})
            text = said.encode() if isinstance(said, str) else json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Retry-After", "0")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *given: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield Server(f"http:http://127.0.0.1:{server.server_port}", 20.0), asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize(
    ("answers", "prompt"),
    [
        ({"/v1/models": MODELS, "/v1/completions": OPENAI}, "prompt"),
        ({"/get_model_info": {}, "/v1/models": MODELS, "/generate": SGLANG}, "input_ids"),
        ({"/props": {}, "/v1/models": MODELS, "/completion": LLAMA}, "prompt"),
    ],
)
def test_each_form_is_found_asked_and_read(answers: dict[str, Any], prompt: str) -> None:
    with serving(answers) as (server, asked):
        assert server.start("model", Options()).dtype == "float32"
        (answer,) = server.generate((Request(ids=(1, 2), most=3, stop=(4,)),))
    assert asked[0][prompt] == [1, 2]
    assert (answer.ids, answer.logprobs, answer.finish) == ((3, 4), (-0.5, -1.0), "stop")
    assert (answer.drafted, answer.accepted, answer.cached) == (4, 1, 2)


def test_a_busy_server_is_asked_again() -> None:
    with serving({"/v1/models": MODELS, "/v1/completions": OPENAI}, [429, 429]) as (server, asked):
        server.start("model", Options())
        assert server.generate((Request(ids=(1,), most=3),))[0].ids == (3, 4)
    assert len(asked) == 3


@pytest.mark.parametrize(
    ("said", "statuses", "error"),
    [
        (OPENAI, [500], EngineFailed),
        (OPENAI, [400], EngineRefused),
        (OPENAI, [429] * 8, EngineFailed),
        ("no json", [], EngineDied),
        ({"choices": []}, [], EngineDied),
        ({"choices": [{"text": "abc"}]}, [], EngineDied),
        ({"choices": [{"token_ids": [1, 2, 3, 4]}]}, [], EngineDied),
    ],
)
def test_what_is_no_answer_is_never_one(said: Any, statuses: list[int], error: type[Exception]) -> None:
    with serving({"/v1/models": MODELS, "/v1/completions": said}, statuses) as (server, _):
        server.start("model", Options())
        with pytest.raises(error):
            server.generate((Request(ids=(1,), most=3),))


def test_a_server_that_is_gone_has_died() -> None:
    with serving({"/v1/models": MODELS}) as (server, _):
        pass
    with pytest.raises(EngineDied):
        server.start("model", Options())


def test_a_server_is_not_asked_for_what_was_decided_when_it_started() -> None:
    with pytest.raises(EngineRefused, match="when it was started"):
        Server("http://127.0.0.1:1").start("model", Options(speculation="ngram"))
