"""A body that holds too much is refused at once with one error, and the event loop and the engine go on meanwhile."""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from ssmspec_fast.models.tokenizer import Tokenizer
from ssmspec_fast.serve import app as module
from ssmspec_fast.serve import bounds
from ssmspec_fast.serve.answers import Answers
from ssmspec_fast.serve.app import Limits, form_of
from ssmspec_fast.serve.asked import Chat, Completion
from ssmspec_fast.serve.network import connection
from ssmspec_fast.serve.refusal import QUOTED, Refused
from tests.commands import ROOT

from .serving import MODEL, Running, engine_of, sent, serving

PLAIN = {"model": MODEL, "prompt": "x", "max_tokens": 2, "temperature": 0}
LARGE = 1 << 20
CONTEXT = 2048
BODIES: dict[str, tuple[Any, str]] = {
    "objects for a prompt": ({"prompt": [{}] * 250_000}, "prompt has 250000 items in one list, more than the context"),
    "many prompts": ({"prompt": ["a"] * 150_000}, "prompt has 150000 items in one list, more than the context"),
    "many lists": ({"prompt": [[1]] * 150_000}, "prompt has 150000 items in one list, more than the context"),
    "a list in a list": ({"prompt": [[0] * 250_000]}, "prompt has 250000 items in one list, more than the context"),
    "many tokens": ({"prompt": [0] * 250_000}, "prompt has 250000 items in one list, more than the context"),
    "many fields": ({f"k{n}": 1 for n in range(60_000)}, "an object has 60004 fields; it must be at most 64"),
    "fields of an object": ({"stream_options": {f"k{n}": 1 for n in range(60_000)}}, "an object has 60000 fields"),
    "a long name": ({"k" * 900_000: 1}, "a name of 900000 characters; it must be at most 512"),
    "a long model": ({"model": "m" * 900_000}, "model has a text of 900000 characters; it must be at most 512"),
    "a long stop": ({"stop": "a" * 1_000_000}, "stop has a text of 1000000 characters; it must be at most 256"),
    "a long stop of several": ({"stop": ["b", "a" * 257]}, "stop has a text of 257 characters; it must be at most 256"),
    "many stops": ({"stop": ["a"] * 100_000}, "stop has 100000 items in one list; it must be at most 16"),
    "many stop tokens": (
        {"stop_token_ids": [1] * 300_000},
        "stop_token_ids has 300000 items in one list; it must",
    ),
    "nested lists": ({"prompt": [[[[[[[[1]]]]]]]]}, "parsing the body ended at 8 levels"),
    "nested in what is ignored": ({"metadata": {"a": [[[[[[[]]]]]]]}}, "parsing the body ended at 8 levels"),
    "a large number": ({"seed": 10**4000}, "seed is a number of 13288 bits"),
    "a large token": ({"prompt": [10**4000]}, "prompt is a number of 13288 bits"),
}
CHATS: dict[str, tuple[Any, str]] = {
    "objects for messages": ({"messages": [{}] * 250_000}, "messages has 250000 items in one list, more than the context"),
    "objects for content": (
        {"messages": [{"role": "u", "content": [{}] * 250_000}]},
        "messages has 250000 items",
    ),
    "fields of messages": ({"messages": [{f"k{n}": 1 for n in range(60)}] * 1000}, "messages.0.k0 is not known here"),
}
RAW: dict[str, tuple[bytes, str]] = {
    "brackets": (b"[" * 900_000, "parsing the body ended at 8 levels"),
    "objects in objects": (b'{"a":' * 150_000, "parsing the body ended at 8 levels"),
    "one number": (b'{"max_tokens":' + b"1" * 900_000 + b"}", "a number of thousands of digits"),
    "no UTF-8": (b'{"prompt": "\xff"}', "byte 12 is not UTF-8"),
}
ALL = [
    *((name, Completion, json.dumps(PLAIN | body).encode(), said) for name, (body, said) in BODIES.items()),
    *((name, Chat, json.dumps(body).encode(), said) for name, (body, said) in CHATS.items()),
    *((name, Completion, body, said) for name, (body, said) in RAW.items()),
]
AT_ONCE = 3.0
"""Seconds: it takes a tenth of one; making an error for each item takes 20."""


@pytest.mark.parametrize(("form", "raw", "said"), [one[1:] for one in ALL], ids=[one[0] for one in ALL])
def test_a_body_that_holds_too_much_is_refused_at_once_with_one_short_error(form: Any, raw: bytes, said: str) -> None:
    begun = time.monotonic()
    with pytest.raises(Refused) as refused:
        form_of(form, raw, CONTEXT)
    assert time.monotonic() - begun < AT_ONCE
    assert said in refused.value.body["error"]["message"]
    assert refused.value.status == 400
    assert len(json.dumps(refused.value.body)) < 1000


@pytest.mark.parametrize(
    ("form", "body"),
    [
        (Completion, {"prompt": [{}] * 200_000}),
        (Completion, {"prompt": [[{}]] * 150_000}),
        (Completion, {"prompt": [*["a"] * 100_000, 1]}),
        (Completion, {"prompt": [*[[1]] * 50_000, [{}] * 100_000]}),
        (Completion, {"prompt": "x", "stop": [1] * 16}),
        (Chat, {"messages": [{}] * 250_000}),
        (Chat, {"messages": [{"role": "u", "content": [{}] * 250_000}]}),
    ],
)
def test_in_a_context_that_has_room_for_all_of_it_the_first_wrong_item_is_the_error(form: Any, body: Any) -> None:
    """Of each of the types that a field may have."""
    with pytest.raises(ValidationError) as found:
        form.model_validate(bounds.read(json.dumps(body).encode(), LARGE))
    assert len(found.value.errors()) < 10
    begun = time.monotonic()
    with pytest.raises(Refused, match=r"it must be|is missing") as refused:
        form_of(form, json.dumps(body).encode(), LARGE)
    assert time.monotonic() - begun < AT_ONCE
    assert len(str(refused.value)) < 300


def test_what_is_at_its_bound_is_taken() -> None:
    body = {"prompt": [0] * CONTEXT, "stop": ["a" * bounds.STOP] * bounds.STOPS, "stop_token_ids": [1] * bounds.ENDS}
    body |= {"user": "u" * bounds.CHARACTERS, "metadata": {f"k{n}": n for n in range(bounds.FIELDS)}, "seed": 2**64 - 1}
    found = form_of(Completion, json.dumps(body).encode(), CONTEXT)
    assert (len(found.prompt), len(found.stops), len(found.stop_token_ids)) == (CONTEXT, bounds.STOPS, bounds.ENDS)


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with serving(choices=4) as found:
        yield found


def post(running: Running, body: Any, path: str = "/v1/completions") -> Any:
    status, _, found = sent(running, body, path=path)
    return status, found


@pytest.mark.parametrize(
    "body",
    [
        {"model": "\\'\"" * 100},
        {"drafter": "d" * 500},
        {"k" * 500: 1},
        {"stream_options": {"k" * 500: 1}},
        {"max_tokens": "m" * 100_000},
        {"prompt": ["a" * 100_000, 1]},
        {"seed": 10**300},
        {"stop_token_ids": [10**18]},
        {"stop": [["s" * 200] * 10]},
    ],
)
def test_an_error_repeats_little_of_what_was_sent(running: Running, body: Any) -> None:
    status, found = post(running, PLAIN | body)
    assert status in (400, 404)
    for text in (found["error"]["message"], str(found["error"]["param"])):
        longest = max((len(run[0]) for run in re.finditer(r"(.)\1*", text)), default=0)
        assert longest <= QUOTED
        assert len(text) <= 400
    status, _, found = sent(running, "", "GET", f"/v1/models/{'m' * 5000}")
    assert (status, found["error"]["message"].count("m") < QUOTED + 20) == (404, True)


def test_a_text_that_cannot_fit_is_not_tokenized(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tokenizer, "encode", lambda *given: pytest.fail("tokenized"))
    for prompt in ("a" * 1_000_000, ["x", "a b " * 200_000]):
        status, found = post(running, PLAIN | {"prompt": prompt})
        assert (status, found["error"]["code"]) == (400, "context_length_exceeded")
        assert re.search("a prompt of (1|8)00+ characters exceeds the context of 256 tokens", found["error"]["message"])


def test_a_text_of_the_longest_tokens_fits(running: Running) -> None:
    tokenizer = engine_of(4).tokenizer
    assert tokenizer is not None
    spaces = max((piece for piece in tokenizer.pieces() if not piece.startswith("<")), key=len)
    text = tokenizer.decode([tokenizer.pieces()[spaces]]) * 200
    assert len(text) > running.service.room
    assert post(running, PLAIN | {"prompt": text})[0] == 200


def test_the_event_loop_and_the_engine_neither_read_nor_tokenize_nor_write(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = dict[str, str]()

    def watched(name: str, real: Callable[..., Any], *given: Any, **named: Any) -> Any:
        seen[name] = threading.current_thread().name
        return real(*given, **named)

    monkeypatch.setattr(module, "form_of", partial(watched, "read", module.form_of))
    encode, whole = Tokenizer.encode, Answers.whole
    monkeypatch.setattr(Tokenizer, "encode", lambda *given: watched("tokenize", encode, *given))
    monkeypatch.setattr(Answers, "whole", lambda *given: watched("write", whole, *given))
    assert post(running, PLAIN)[0] == 200
    assert set(seen) == {"read", "tokenize", "write"}
    assert all(name.startswith("AnyIO worker") for name in seen.values()), seen


def test_other_threads_run_while_a_text_is_tokenized() -> None:
    """A call that holds Python's lock would leave this thread one tick, after it."""
    tokenizer, ticks, over = engine_of(4).tokenizer, list[float](), threading.Event()
    assert tokenizer is not None

    def tick() -> None:
        while not over.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    begun = time.monotonic()
    tokenizer.encode("a b c def " * 20_000)
    ended = time.monotonic()
    over.set()
    thread.join()
    assert sum(begun < moment < ended for moment in ticks) >= 10


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_request_that_leaves_no_first_token_is_refused(running: Running, temperature: float) -> None:
    with serving(folder=Path(str(engine_of(4).tokenizer.folder)).parent / "mamba2") as other:  # type: ignore[union-attr]
        body = {"prompt": "x", "max_tokens": 3, "temperature": temperature, "stop_token_ids": list(range(256))}
        assert post(other, body)[0] == 200
        status, found = post(other, body | {"min_tokens": 2})
        assert (status, found["error"]["type"]) == (400, "invalid_request_error")
        assert "min_tokens is 2, but each of the 256 tokens ends the output" in found["error"]["message"]


@pytest.mark.parametrize("field", ["repetition_penalty", "presence_penalty", "frequency_penalty"])
@pytest.mark.parametrize("value", [1e308, -1e308, 1e-308, 101, 0.009])
def test_a_penalty_beyond_all_logits_is_refused_and_one_within_is_served(running: Running, field: str, value: float) -> None:
    body = PLAIN | {"temperature": 1, "max_tokens": 12, "prompt": "x x x x"}
    status, found = post(running, body | {field: value})
    fits = -100 <= value <= 100 and (field != "repetition_penalty" or value >= 0.01)
    assert status == (200 if fits else 400), found
    for edge in (0.01, 100) if field == "repetition_penalty" else (-100, 100):
        assert post(running, body | {field: edge})[0] == 200


def test_the_page_has_the_bounds_of_the_code() -> None:
    page = (ROOT / "docs" / "how-to" / "serve.md").read_text()
    table = page[page.index("## What a request may hold") :]
    rows = dict(re.findall(r"^\| (.+?) \| (.+?) \|$", table, re.M))
    wanted = {
        "bytes of the body": f"`--most-bytes`: {Limits().bytes:,}",
        "bytes of the head": f"{connection.HEAD:,}",
        "levels of lists and objects in each other": f"{bounds.DEPTH}",
        "fields of an object": f"{bounds.FIELDS}",
        "texts in `stop`, characters of each": f"{bounds.STOPS}, {bounds.STOP}",
        "tokens in `stop_token_ids`": f"{bounds.ENDS}",
        "items of a list in `prompt` or `messages`": "the tokens of `--context`",
        "characters of a prompt or a chat": "those of the longest token, times the tokens of `--context`",
        "characters of a name, or of any other text": f"{bounds.CHARACTERS}",
        "bits of a whole number": f"{bounds.BITS}",
        "completions: prompts times `n`": f"`--most-choices`: {Limits().choices}",
        "completions that wait": f"`--queue`: {Limits().queue}",
        "line ends of a body in chunks": f"{connection.LINES:,}",
        "seconds for the head, then for the body": " and ".join(f"{connection.SECONDS[one]:g}" for one in ("head", "body")),
        "seconds until a request begins": f"{connection.SECONDS['idle']:g}",
        "seconds in which a client reads nothing": f"{connection.STALLED:g}",
        "connections that have not sent a whole request": f"{connection.WAITING}",
        "connections in all": f"{connection.WAITING}, and one for each of `--queue` and `--slots`",
    }
    assert {name: rows.get(name) for name in wanted} == wanted
