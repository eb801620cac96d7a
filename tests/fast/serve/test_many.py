"""Many requests at once: each is answered whole or refused with 429, and says what it says alone. Planted faults are seen."""

from collections.abc import Iterator, Sequence
from typing import Any

import openai
import pytest

from ssmspec_fast.draft.ngram import PromptLookup
from ssmspec_fast.engine import emitted_windows
from ssmspec_fast.engine.requests import Settings
from ssmspec_fast.engine.sampling import Sampling
from ssmspec_fast.engine.sequences import Sequences
from ssmspec_fast.serve import app
from ssmspec_fast.serve.call import Call
from ssmspec_fast.serve.choice import Choice
from ssmspec_fast.serve.refusal import LATER
from ssmspec_fast.serve.writer import Writer

from .serving import Ask, differences, engine_of, said, serving, together

WORDS = (
    "def ",
    "return ",
    "import os",
    "x = [1, 2, ",
    "class A:\n",
    "for i in ",
    "self.",
    '"""The ',
    "if not ",
    "    y += 1\n",
)


def asks_of(count: int) -> list[Ask]:
    """Half greedy, half sampled, each with a seed of its own; a third with a stop string."""
    return [
        Ask(
            WORDS[n % len(WORDS)] * (1 + n % 3) + str(n),
            3 + n % 3,
            Sampling(0.0) if n % 2 else Sampling(0.7 + 0.1 * (n % 7), 50 * (n % 3), 0.9 + 0.05 * (n % 2)),
            1000 + n,
            ("e", "\n") if n % 3 == 0 else (),
        )
        for n in range(count)
    ]


@pytest.fixture(scope="module")
def few() -> tuple[list[Ask], list[Any]]:
    asks = [ask for ask in asks_of(24) if len(ask.alone()[0]) == ask.count or ask.stop]
    return asks, [ask.alone() for ask in asks]


def test_500_requests_at_once_are_each_what_they_are_alone() -> None:
    """By a client that asks again after 429, as long as Retry-After says: 100 requests, five times each."""
    asks = asks_of(100)
    wanted = [ask.alone() for ask in asks]
    assert len(set(wanted)) > 75
    with serving(16, queue=300, each=300) as running:
        assert differences(running, asks * 5, wanted * 5, max_retries=1000) == []
        refused = running.service.metrics.answers.labels(429)._value.get()
        assert refused > 0
        assert running.service.metrics.answers.labels(200)._value.get() == 500
        assert not running.service.worker.choices


def test_a_full_queue_is_429_with_retry_after_and_the_others_are_answered(few: Any) -> None:
    asks, wanted = few
    with serving(1, queue=4) as running:
        found = together(running, asks)
    refused = [one for one in found if isinstance(one, openai.RateLimitError)]
    whole = [(said(one), right) for one, right in zip(found, wanted, strict=True) if not isinstance(one, BaseException)]
    assert len(refused) + len(whole) == len(asks)
    assert len(whole) >= 4
    assert all(given == right for given, right in whole)
    assert refused
    assert all(one.response.headers["Retry-After"] == LATER["Retry-After"] for one in refused)
    assert all("ask again later" in str(one) for one in refused)


def test_several_choices_are_taken_together_or_not_at_all() -> None:
    with serving(1, queue=4, choices=8) as running, running.client() as client:
        with pytest.raises(openai.RateLimitError):
            client.completions.create(**Ask("x").body | {"n": 5})
        assert not running.service.worker.choices
        with pytest.raises(openai.BadRequestError, match="token 999"):
            client.completions.create(**Ask("x").body | {"prompt": [[1], [999]]})
        assert not running.service.worker.choices
        assert said(client.completions.create(**Ask("x").body)) == Ask("x").alone()


def swapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first two windows of a step go to each other's request."""
    real = emitted_windows.emitted_windows

    def other(*given: Any) -> Iterator[Any]:
        found = list(real(*given))
        if len(found) > 1:
            found[:2] = [found[0]._replace(tokens=found[1].tokens), found[1]._replace(tokens=found[0].tokens)]
        yield from found

    monkeypatch.setattr(emitted_windows, "emitted_windows", other)


def one_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The seed of the first request is everybody's."""
    first = list[Any]()

    def settings(budget: int, ends: Any, stop: Any, sampling: Any, seed: Any, *more: Any) -> Settings:
        first.append(seed)
        return Settings(budget, ends, stop, sampling, first[0], *more)

    monkeypatch.setattr(app, "Settings", settings)


def seed_of_slot_0(monkeypatch: pytest.MonkeyPatch) -> None:
    old = Sequences.seeds
    monkeypatch.setattr(Sequences, "seeds", lambda self, at, default: old(self, at * 0, default))


def stops_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop string of one request ends the text of those after it."""
    real, every = Writer.__init__, list[str]()

    def init(self: Writer, tokenizer: Any, stops: Sequence[str] = (), silent: Any = ()) -> None:
        every.extend(stops)
        real(self, tokenizer, every, silent)

    monkeypatch.setattr(Writer, "__init__", init)


def past_the_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokens of a window that come after the stop string are given too."""
    real = Choice.window

    def window(self: Choice, seen: Any) -> bool:
        hear, self.hear = self.hear, lambda piece: None
        over = real(self, seen)
        self.hear = hear
        text = self.writer.stop and "!"
        hear(app.Piece(self.index, seen.tokens, text, finish="stop" if over else None))
        return over

    monkeypatch.setattr(Choice, "window", window)


def answers_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece is heard by the call that began last."""
    real, last = Call.__init__, list[Call]()

    def init(self: Call, *given: Any) -> None:
        last.append(self)
        real(self, *given)

    def hear(self: Call, piece: Any) -> None:
        if piece.text:
            self = last[-1]
        self.loop.call_soon_threadsafe(self.queue.put_nowait, piece)

    monkeypatch.setattr(Call, "__init__", init)
    monkeypatch.setattr(Call, "hear", hear)


@pytest.mark.parametrize("plant", [None, swapped, one_seed, seed_of_slot_0, stops_kept, past_the_stop, answers_mixed])
def test_a_planted_fault_between_requests_is_caught(plant: Any, few: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asks, wanted = few
    if plant is not None:
        plant(monkeypatch)
    with serving() as running:
        found = differences(running, asks, wanted, timeout=600 if plant is None else 8)
    assert bool(found) == (plant is not None), found


class Blaming(PromptLookup):
    """Fails in a step whose batch has a prompt that begins with the first token of "§"."""

    def propose(self, sequences: Sequences, slots: Any) -> Any:
        if any(int(sequences.tokens[slot, 0]) == BAD for slot in slots if slot >= 0):
            raise KeyError("planted")
        return super().propose(sequences, slots)


BAD = 200


def test_a_request_that_breaks_the_engine_fails_alone(few: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asks, wanted = few
    bad = Ask("x", 5)
    generator = engine_of(4)
    monkeypatch.setattr(generator.engine.last, "inner", Blaming(4))
    generator.engine.last.inner.attach(generator.engine.target)
    monkeypatch.setattr(Ask, "body", property(lambda self: BODY(self) | ({"prompt": [BAD, 1]} if self is bad else {})))
    with serving(generator=generator) as running:
        found = together(running, [*asks[:6], bad, *asks[6:]])
        error = found.pop(6)
        assert isinstance(error, openai.InternalServerError)
        assert "KeyError: 'planted'" in str(error)
        assert [said(one) for one in found] == wanted
        assert not running.service.worker.choices


BODY = Ask.body.fget  # type: ignore[attr-defined]


def test_text_that_cannot_be_written_fails_its_request_alone(few: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asks, wanted = few
    real = Writer.add

    def add(self: Writer, token: int) -> str:
        if "planted" in self.stops:
            raise ValueError("planted")
        return real(self, token)

    monkeypatch.setattr(Writer, "add", add)
    with serving() as running:
        *found, error = together(running, [*asks, Ask("x", stop=("planted",))])
    assert isinstance(error, openai.InternalServerError)
    assert [said(one) for one in found] == wanted
