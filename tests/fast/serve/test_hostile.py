"""A part of the hostile requests of `tests/robust/requests.py`: each is refused shortly, and costs the engine nothing."""

import json
import random

import pytest

from ssmspec_fast.serve.worker import Worker
from tests.robust.requests import PLAIN, answer, corpus, sent

from .serving import Ask, Running

ENGINE = 0.05
"""Most processor seconds that a refused request takes from the engine's thread."""
EVERY, DRAWN = corpus(5), 40


def wrong_with(running: Running, raw: bytes) -> str:
    """What is wrong with the answer to a request that is to be refused; "" if nothing is."""
    worker: Worker = running.service.worker
    before = worker.seconds
    head, _, body = answer(running.port, raw).partition(b"\r\n\r\n")
    if worker.seconds - before > ENGINE:
        return f"the engine took {worker.seconds - before} s"
    if not head:
        return ""  # it was closed while it was sent
    status = int(head.split()[1])
    if not 400 <= status < 500:
        return f"{status}: {body[:200]!r}"
    if b"TRACE /" in raw[:8] or raw.startswith(b"HEAD"):
        return ""
    said = json.loads(body)["error"]["message"]
    return said if len(said) > 400 or "\n" in said else ""


def test_the_corpus_has_every_kind_and_other_values_for_another_seed() -> None:
    assert len(EVERY) >= 300
    assert EVERY.keys() >= {"n 0", "stop: long", "prompt: objects", "chat: deep", "body 3", "path /", "two lengths"}
    other = corpus(6)
    assert sum(EVERY[name] != other.get(name) for name in EVERY) > 50
    assert corpus(5) == EVERY


@pytest.mark.parametrize("name", sorted(random.Random(1).sample(sorted(EVERY), DRAWN)))
def test_a_hostile_request_is_refused_shortly_and_costs_the_engine_nothing(running: Running, name: str) -> None:
    assert wrong_with(running, EVERY[name]) == ""


def test_afterwards_a_completion_is_what_it_was_and_a_request_that_is_taken_is_seen(running: Running) -> None:
    asked = json.dumps(PLAIN | {"return_token_ids": True}).encode()
    body = answer(running.port, sent(asked)).partition(b"\r\n\r\n")[2]
    assert tuple(json.loads(body)["choices"][0]["token_ids"]) == Ask("x", 2).alone()[0]
    assert wrong_with(running, sent(asked)).startswith(("200: ", "the engine took"))
