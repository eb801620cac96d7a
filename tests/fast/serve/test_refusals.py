"""What is refused: a status, one line that names the field, and no harm to anybody else."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from ssmspec_fast.serve.app import Service

from .serving import KEY, MODEL, Ask, Running, said, sent, serving

BYTES = 4000
PLAIN = {"model": MODEL, "prompt": "x", "max_tokens": 2, "temperature": 0}
LETTER = chr(0xD800)


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with serving(key=KEY, bytes=BYTES, choices=4) as found:
        yield found


@pytest.mark.parametrize(
    ("change", "param", "text"),
    [
        ({"max_tokens": "5"}, "max_tokens", "max_tokens is '5'; it must be a valid integer"),
        ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
        ({"max_tokens": True}, "max_tokens", "max_tokens is True"),
        ({"max_tokens": 2.5}, "max_tokens", "max_tokens is 2.5"),
        ({"max_tokens": 10**6}, "max_tokens", "the context of 256 tokens"),
        ({"prompt": 5}, "prompt", "a text, a list of texts, a list of token ids"),
        ({"prompt": ["a", 1]}, "prompt", "a text, a list of texts, a list of token ids"),
        ({"prompt": []}, "prompt", "empty list"),
        ({"prompt": ""}, None, "is empty"),
        ({"prompt": [1, 768]}, None, "token 768, but the vocabulary is 0 to 767"),
        ({"prompt": [-1]}, None, "token -1"),
        ({"prompt": "a" * 300}, "max_tokens", "the context of 256 tokens"),
        ({"n": 5}, "n", "one request asks for 5 completions"),
        ({"n": 3, "prompt": ["a", "b"]}, "n", "one request asks for 6 completions (2 prompts, n 3); at most 4"),
        ({"temperature": -1}, None, "temperature is -1"),
        ({"temperature": "hot"}, "temperature", "temperature is 'hot'"),
        ({"top_p": 0}, None, "top_p is 0"),
        ({"top_k": -2}, "top_k", "top_k is -2"),
        ({"seed": -1}, None, "seed is -1; it must be 0 to 2^64 - 1"),
        ({"seed": 2**64}, None, "seed is"),
        ({"stop": ""}, "stop", "stop holds an empty text"),
        ({"stop": [1]}, "stop", "stop is"),
        ({"stop_token_ids": [768]}, None, "token 768"),
        ({"logprobs": 21}, "logprobs", "less than or equal to 20"),
        ({"echo": True}, "echo", "echo is not supported; leave it out"),
        ({"logit_bias": {"5": 1}}, "logit_bias", "logit_bias is not supported"),
        ({"best_of": 2}, "best_of", "best_of is not supported"),
        ({"speculation": {"drafts": 2}}, "speculation", "speculation is not supported"),
        ({"tempersture": 1}, "tempersture", "tempersture is not known here; leave it out"),
        ({"stream_options": {"foo": 1}}, "stream_options", "stream_options.foo is not known here"),
        ({"model": "gpt"}, "model", f"the model 'gpt' is not served; ask for {MODEL}"),
        ({"prompt": LETTER}, None, "not valid UTF-8 at character 0; give text"),
        ({"model": LETTER}, "model", "is not served"),
        ({LETTER: 1}, None, "the name of a field is not valid UTF-8"),
    ],
)
def test_a_field_that_is_wrong_is_named_in_one_line(running: Running, change: Any, param: str | None, text: str) -> None:
    status, _, found = sent(running, PLAIN | change)
    assert status == (404 if "model" in change else 400)
    error = found["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert text in error["message"]
    assert "\n" not in error["message"]
    assert error["param"] == param
    assert sent(running, PLAIN)[0] == 200


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ("{", 400, "the body is no JSON"),
        ("", 400, "the body is no JSON object"),
        ("[1]", 400, "the body is no JSON object"),
        ('{"prompt": "x", "temperature": NaN}', 400, "temperature is nan"),
        ("[" * 3000, 400, "parsing the body"),
        (b"\xff\xfe", 400, "the body is no JSON"),
        ('{"prompt": "x", "max_tokens": ' + "1" * 3900 + "}", 400, "max_tokens is"),
        ("{}", 400, "prompt is missing"),
        ('{"prompt": "' + "x" * BYTES + '"}', 413, f"larger than {BYTES} bytes"),
    ],
)
def test_a_body_that_is_none_is_refused(running: Running, body: bytes | str, status: int, text: str) -> None:
    found = sent(running, body)
    assert found[0] == status
    assert text in found[2]["error"]["message"]


def test_a_body_without_a_length_is_held_to_the_limit(running: Running) -> None:
    """Parts of unknown size are sent as chunks."""
    status, _, found = sent(running, (json.dumps(PLAIN | {"prompt": "x" * size}).encode() for size in (2 * BYTES,)))
    assert (status, found["error"]["type"]) == (413, "invalid_request_error")


def test_a_form_of_a_web_page_is_refused(running: Running) -> None:
    """A page elsewhere may send text/plain without asking first."""
    assert sent(running, PLAIN, Content_Type="text/plain")[0] == 400


def test_the_client_gets_errors_by_their_classes(running: Running) -> None:
    with running.client(api_key="wrong") as client, pytest.raises(openai.AuthenticationError):
        client.completions.create(**Ask("x").body)
    with running.client(api_key=KEY) as client:
        with pytest.raises(openai.BadRequestError, match="echo is not supported"):
            client.completions.create(**Ask("x").body, echo=True)
        with pytest.raises(openai.NotFoundError, match="is not served"):
            client.completions.create(**Ask("x").body | {"model": "gpt"})
        with pytest.raises(openai.BadRequestError, match="has no chat template"):
            client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x"}])
        assert said(client.completions.create(**Ask("x").body, user="me", suffix=None)) == Ask("x").alone()


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/v2", 404), ("GET", "/v1/completions", 405)])
def test_another_path_is_told_in_the_same_form(running: Running, method: str, path: str, status: int) -> None:
    found = sent(running, "", method, path)
    assert found[0] == status
    assert set(found[2]["error"]) == {"message", "type", "param", "code"}


def test_an_error_of_ours_is_an_answer_too(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(self: Service, *given: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(Service, "check", breaks)
    status, _, found = sent(running, PLAIN)
    assert (status, found["error"]["type"]) == (500, "server_error")
    monkeypatch.undo()
    assert sent(running, PLAIN)[0] == 200
