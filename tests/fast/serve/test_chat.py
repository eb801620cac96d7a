"""Chats: turns through the template of a checkpoint, in a sandbox, then a completion as any other."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from ssmspec_fast.cli.shipped import SHIPPED
from ssmspec_fast.engine.sampling import Sampling
from ssmspec_fast.serve.chat.template import template_of

from ..stored import STORED, store
from .serving import MODEL, Ask, Running, engine_of, serving

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.role == 'planted' %}{{ raise_exception('no such role') }}{% endif %}"
    "{{ message.role }}: {{ message.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
ATTACK = "{{ messages.__class__.__mro__[1].__subclasses__() }}"
TURNS: list[Any] = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": [{"type": "text", "text": "x = "}]},
]
WANTED = "<s>system: be brief\nuser: x = \nassistant:"


def folder_of(home: Path, **config: Any) -> Path:
    folder = home / MODEL
    shutil.copytree(SHIPPED / MODEL, folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": {"content": "<s>"}} | config))
    return folder


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = folder_of(tmp_path_factory.mktemp("chat"), chat_template=[{"name": "default", "template": TEMPLATE}])
    with serving(folder=folder, generator=engine_of(4)) as found:
        yield found


def test_a_chat_is_the_completion_of_its_template(client: openai.OpenAI) -> None:
    given: dict[str, Any] = {
        "model": MODEL,
        "messages": TURNS,
        "temperature": 0.8,
        "seed": 4,
        "logprobs": True,
        "top_logprobs": 2,
    }
    wanted = Ask(WANTED, 12, Sampling(0.8), 4).alone()
    found = client.chat.completions.create(**given, max_completion_tokens=12, extra_body={"return_token_ids": True})
    (choice,) = found.choices
    assert (tuple(choice.token_ids), choice.message.content) == wanted  # type: ignore[attr-defined]
    assert (choice.message.role, choice.finish_reason) == ("assistant", "length")
    assert choice.logprobs is not None
    listed = choice.logprobs.content or []
    assert len(listed) == 12
    assert all(len(one.top_logprobs) in (2, 3) or one.logprob == one.top_logprobs[0].logprob for one in listed)
    parts = list(client.chat.completions.create(**given, max_tokens=12, stream=True))
    assert "".join(part.choices[0].delta.content or "" for part in parts) == wanted[1]
    assert [part.choices[0].delta.role for part in parts if part.choices[0].delta.role] == ["assistant"]
    streamed = [one for part in parts if part.choices[0].logprobs for one in part.choices[0].logprobs.content or []]
    assert streamed == listed


def test_without_a_limit_a_chat_may_fill_the_room(client: openai.OpenAI, running: Running) -> None:
    found = client.chat.completions.create(model=MODEL, messages=TURNS, temperature=0, extra_body={"ignore_eos": True})
    assert found.usage is not None
    assert found.usage.total_tokens == running.service.room


def test_what_the_template_refuses_is_told(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="the chat template does not take these messages: no such role"):
        client.chat.completions.create(model=MODEL, messages=[{"role": "planted", "content": "x"}])  # type: ignore[misc, list-item]
    with pytest.raises(openai.BadRequestError, match="messages"):
        client.chat.completions.create(model=MODEL, messages=[])
    with pytest.raises(openai.BadRequestError, match="is not known here"):
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x", "tool_calls": []}])  # type: ignore[misc, list-item]


def test_a_template_that_reaches_for_python_is_held_by_the_sandbox(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, chat_template=ATTACK)
    refused = pytest.raises(openai.BadRequestError, match="unsafe")
    with serving(folder=folder, generator=engine_of(2)) as running, running.client() as client, refused:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x"}])


def test_a_template_is_found_in_its_own_file_first(tmp_path: Path) -> None:
    folder, tokenizer = folder_of(tmp_path, chat_template="in the config"), engine_of(4).tokenizer
    assert tokenizer is not None
    (folder / "chat_template.jinja").write_text("in a file")
    found = template_of(folder, tokenizer)
    assert found is not None
    assert tokenizer.decode(found.tokens([{"role": "user", "content": "x"}])) == "in a file"
    assert template_of(SHIPPED / MODEL, tokenizer) is None
    assert template_of(folder, None) is None


@pytest.mark.parametrize("stored", ["a truncation", "a padding"])
def test_a_chat_has_the_tokens_of_the_same_completion_in_any_order(stored: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, chat_template=TEMPLATE)
    store(folder, **STORED[stored])
    extra = {"return_token_ids": True}
    with serving(folder=folder) as running, running.client() as client:

        def chat() -> Any:
            turns = [{"role": "user", "content": "x = "}]
            return client.chat.completions.create(model=MODEL, messages=turns, temperature=0, max_tokens=4, extra_body=extra)  # type: ignore[arg-type]

        found = [chat()]
        text = "<s>user: x = \nassistant:"
        whole = client.completions.create(model=MODEL, prompt=text, temperature=0, max_tokens=4, extra_body=extra)
        found.append(chat())
        wanted = engine_of(1, None).encode(text)
        assert whole.choices[0].prompt_token_ids == wanted  # type: ignore[attr-defined]
        for one in found:
            assert one.choices[0].prompt_token_ids == wanted
            assert one.choices[0].token_ids == whole.choices[0].token_ids  # type: ignore[attr-defined]
