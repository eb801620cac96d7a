"""Completions through a real client: what the engine gives alone, whole and as a stream."""

from typing import Any

import openai
import pytest
import torch

from ssmspec_fast.cli.shipped import SHIPPED
from ssmspec_fast.engine import traces
from ssmspec_fast.engine.requests import Settings
from ssmspec_fast.engine.sampling import Sampling

from .serving import MODEL, Ask, Running, engine_of, said, serving, together

PROMPT = "def mean(values):\n    return values[0] + values[1] + "


@pytest.mark.parametrize(
    "ask", [Ask(PROMPT, 24), Ask(PROMPT, 24, Sampling(1.3, 40, 0.95), 2**63 + 5)], ids=["greedy", "sampled"]
)
def test_a_completion_is_what_the_engine_gives_alone(client: openai.OpenAI, ask: Ask) -> None:
    found = client.completions.create(**ask.body)
    assert said(found) == ask.alone()
    tokens = engine_of(1, None).encode(ask.prompt)
    assert found.choices[0].prompt_token_ids == tokens  # type: ignore[attr-defined]
    assert found.choices[0].finish_reason == "length"
    assert found.usage is not None
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (len(tokens), 24)
    again = client.completions.create(**ask.body | {"prompt": tokens})
    assert said(again) == said(found)


def test_a_prompt_that_is_read_in_pieces_is_completed_as_a_whole_one() -> None:
    asks = [Ask(PROMPT * 8, 12), Ask("x = ", 40), Ask(PROMPT, 6)]
    with serving(generator=engine_of(4, piece=64)) as running:
        most = len(engine_of(1, None, piece=None).encode(asks[0].prompt))
        assert most > 2 * 64
        assert [said(one) for one in together(running, asks)] == [ask.alone() for ask in asks]


def test_accepted_and_rejected_drafts_are_counted(client: openai.OpenAI, running: Running) -> None:
    found = client.completions.create(**Ask(PROMPT, 60).body)
    assert found.usage is not None
    details = found.usage.completion_tokens_details
    assert details is not None
    assert details.accepted_prediction_tokens
    assert details.rejected_prediction_tokens
    wanted = engine_of(2).generate([PROMPT], Settings(60, sampling=Sampling(0.0))).statistics
    assert details.accepted_prediction_tokens == wanted.emitted - wanted.windows
    assert details.accepted_prediction_tokens + details.rejected_prediction_tokens == wanted.drafted


def test_several_choices_differ_and_each_is_named_by_its_place(client: openai.OpenAI) -> None:
    hot = Ask(PROMPT, 8, Sampling(1.5), 7)
    found = client.completions.create(**hot.body | {"n": 3, "prompt": [PROMPT, "import os"]})
    settings = Settings(8, engine_of(1, None).engine.model.config.eos, (), hot.sampling, 7)
    wanted = [
        engine_of(1, None).engine.generate([engine_of(1, None).encode(prompt)], settings, [key])[0].tokens
        for prompt in (PROMPT, "import os")
        for key in range(3)
    ]
    assert [said(found, n)[0] for n in range(6)] == wanted
    assert len(set(wanted)) == 6
    assert said(client.completions.create(**hot.body))[0] == wanted[0]


def test_without_a_seed_two_requests_differ(client: openai.OpenAI) -> None:
    body = Ask(PROMPT, 16, Sampling(2.0)).body
    del body["seed"]
    assert said(client.completions.create(**body)) != said(client.completions.create(**body))


def test_a_stream_joined_is_the_answer(client: openai.OpenAI) -> None:
    body = Ask(PROMPT, 40, Sampling(0.9), 3, stop=("=\n", "qqqq")).body | {"logprobs": 2, "n": 2}
    whole = client.completions.create(**body)
    parts = list(client.completions.create(**body, stream=True, stream_options={"include_usage": True}))
    assert parts[-1].choices == []
    assert parts[-1].usage == whole.usage
    for index, choice in enumerate(whole.choices):
        mine = [part.choices[0] for part in parts[:-1] if part.choices[0].index == index]
        assert len(mine) > 2
        assert "".join(part.text for part in mine) == choice.text
        assert [token for part in mine for token in part.token_ids] == choice.token_ids  # type: ignore[attr-defined]
        assert [part.finish_reason for part in mine if part.finish_reason] == [choice.finish_reason]
        assert choice.logprobs is not None
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            assert [one for part in mine for one in getattr(part.logprobs, name)] == getattr(choice.logprobs, name)


def test_a_stop_string_ends_the_text_before_it(client: openai.OpenAI) -> None:
    """One that lies across tokens, one within a token, two at once."""
    _, text = Ask(PROMPT, 40).alone()
    tokens = [engine_of(1, None).text((token,), Settings(0)) for token in Ask(PROMPT, 40).alone()[0]]
    assert max(len(token or "") for token in tokens) > 2
    for begin, end in ((5, 9), (8, 9), (12, 16)):
        ask = Ask(PROMPT, 40, stop=(text[begin:end], "never so"))
        found = client.completions.create(**ask.body)
        assert said(found) == ask.alone()
        assert found.choices[0].finish_reason == "stop"
        assert found.choices[0].stop_reason == text[begin:end]  # type: ignore[attr-defined]


def test_a_stop_token_is_the_last_and_has_no_text(client: openai.OpenAI) -> None:
    tokens, _ = Ask(PROMPT, 12).alone()
    body = Ask(PROMPT, 12).body
    body["extra_body"]["stop_token_ids"] = [tokens[5]]
    found = client.completions.create(**body)
    first = tokens.index(tokens[5])
    assert said(found) == (tokens[: first + 1], engine_of(1, None).text(tokens[:first], Settings(0)))
    assert found.choices[0].stop_reason == tokens[5]  # type: ignore[attr-defined]


def test_an_end_of_sequence_ends_a_completion_unless_it_is_ignored(client: openai.OpenAI, running: Running) -> None:
    own = running.service.generator.engine.model.config
    tokens = Ask(PROMPT, 12).alone()[0]
    ends, body = own.eos, Ask(PROMPT, 12).body
    object.__setattr__(own, "eos", (tokens[3],))
    try:
        found = client.completions.create(**body)
        assert (said(found)[0], found.choices[0].finish_reason) == (tokens[: tokens.index(tokens[3]) + 1], "stop")
        assert found.choices[0].stop_reason is None  # type: ignore[attr-defined]
        body["extra_body"]["ignore_eos"] = True
        assert said(client.completions.create(**body))[0] == tokens
    finally:
        object.__setattr__(own, "eos", ends)


def test_log_probabilities_are_of_the_logits_that_the_token_was_chosen_from(client: openai.OpenAI) -> None:
    """As `traces` sees them: the same bits, so the same float64 numbers but for the order of a sum of 768."""
    trace = traces.run(SHIPPED / MODEL, [PROMPT], 10)
    laws = torch.log_softmax(torch.tensor(trace.logits[0]).double(), -1)
    body = Ask(PROMPT, 10).body | {"logprobs": 3}
    body["extra_body"]["return_tokens_as_token_ids"] = True
    found = client.completions.create(**body).choices[0].logprobs
    assert found is not None
    assert found.tokens == [f"token_id:{token}" for token in trace.tokens[0]]
    assert found.token_logprobs == pytest.approx(
        [float(law[t]) for law, t in zip(laws, trace.tokens[0], strict=True)], abs=1e-12
    )
    best = laws.topk(3)
    for listed, values, ids in zip(found.top_logprobs or [], best.values.tolist(), best.indices.tolist(), strict=True):
        assert listed == pytest.approx({f"token_id:{t}": p for t, p in zip(ids, values, strict=True)}, abs=1e-12)


def test_a_log_probability_does_not_hear_of_the_temperature(client: openai.OpenAI) -> None:
    asks = [Ask(PROMPT, 1, Sampling(t), 1).body | {"logprobs": 5} for t in (0.0, 3.0)]
    one, other = (client.completions.create(**body).choices[0].logprobs for body in asks)
    assert one is not None
    assert other is not None
    assert set((one.top_logprobs or [{}])[0].items()) <= set((other.top_logprobs or [{}])[0].items())


def test_models_health_and_metrics(client: openai.OpenAI, running: Running) -> None:
    (model,) = client.models.list().data
    assert model.id == MODEL == client.models.retrieve(MODEL).id
    more: Any = model
    assert (more.max_model_len, more.vocab_size) == (256, 768)
    client.completions.create(**Ask(PROMPT, 3).body)
    text = client._client.get(f"{running.url}/metrics").text
    figures = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(figures["ssmspec_completion_tokens_total"]) >= 3
    assert float(figures['ssmspec_answers_total{status="200"}']) >= 1
    assert float(figures["ssmspec_first_token_seconds_count"]) >= 1
    assert float(figures["ssmspec_running_completions"]) == float(figures["ssmspec_waiting_completions"]) == 0
    assert client._client.get(f"{running.url}/health").json() == {"status": "ok"}
