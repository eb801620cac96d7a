"""A stranger's chat template: it takes only so much time and memory, in its own process, and is read with bounds."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ssmspec_fast.errors import BrokenFile
from ssmspec_fast.serve.chat import rendering, template
from ssmspec_fast.serve.chat.rendering import Rendering
from ssmspec_fast.serve.chat.template import template_of
from ssmspec_fast.serve.refusal import Refused

from .serving import engine_of, sent, serving
from .test_chat import ATTACK, TEMPLATE, folder_of

TURNS = [{"role": "user", "content": "x"}]
LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(9) %}{% endfor %}{% endfor %}{% endfor %}"
GREEDY = {
    "loops": LOOPS,
    "a product": "{{ 'x' * 6000000000 }}",
    "a method": "{{ 'x'.center(5000000000) }}",
    "a filter": "{{ 'x'|center(5000000000) }}",
    "doubling": "{% set n = namespace(s='xx') %}{% for a in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}{{ n.s }}",
    "a power": "{% set n = 9 %}{{ n ** (n ** n) }}",
    "a list": "{{ ([1] * 999999999)|length }}",
    "many characters": "{{ 'x' * 20000000 }}",
    "a long range": "{% for a in range(1000000000) %}{% endfor %}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
}


@pytest.fixture(scope="module")
def good() -> Iterator[Rendering]:
    found = Rendering(TEMPLATE, {"bos_token": "<s>"})
    yield found
    rendering.ended(found.process)


FEW = ("loops", "a product", "doubling")
"""Each starts two processes; `tox run -e robust` tries the others too."""


@pytest.mark.parametrize("name", [name if name in FEW else pytest.param(name, marks=pytest.mark.robust) for name in GREEDY])
def test_a_template_that_takes_too_much_is_ended_and_the_next_chat_is_rendered(name: str) -> None:
    condition = "{% if messages[0].content == 'bad' %}" + GREEDY[name] + "{% else %}fine{% endif %}"
    found = Rendering(condition, {})
    try:
        assert found.text(TURNS) == "fine"
        begun = time.monotonic()
        with pytest.raises(Refused, match="the model's chat template took more than 2 s, 512 MiB") as refused:
            found.text([{"role": "user", "content": "bad"}])
        assert refused.value.status == 500
        assert time.monotonic() - begun < 60
        assert found.text(TURNS) == "fine"
    finally:
        rendering.ended(found.process)


def test_a_process_that_has_ended_is_replaced_and_its_pipes_are_closed() -> None:
    found = Rendering("done", {})
    assert found.text(TURNS) == "done"
    held = len(os.listdir("/proc/self/fd"))
    found.process.kill()
    found.process.wait()
    assert found.text(TURNS) == "done"  # by a new process
    assert len(os.listdir("/proc/self/fd")) == held
    rendering.ended(found.process)


def test_a_module_in_the_working_folder_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder may be a stranger's checkpoint."""
    for name in ("json", "resource", "transformers"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)  # it would hide the fault
    found = Rendering("done", {})
    assert found.text(TURNS) == "done"
    assert not (tmp_path / "ran").exists()
    rendering.ended(found.process)


def test_others_are_answered_while_a_template_does_not_end(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, chat_template=LOOPS)
    with serving(folder=folder, generator=engine_of(4)) as running:
        chat = {"messages": TURNS, "max_tokens": 2}
        answers = list[Any]()
        ask = threading.Thread(target=lambda: answers.append(sent(running, chat, path="/v1/chat/completions")))
        ask.start()
        while ask.is_alive():
            begun = time.monotonic()
            assert sent(running, "", "GET", "/health")[0] == 200
            assert time.monotonic() - begun < 2
            time.sleep(0.1)
        assert answers[0][0] == 500


def test_a_process_that_cannot_begin_is_told_apart_from_one_that_takes_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "__name__", "no_such_module")
    found = Rendering("x", {})
    with pytest.raises(Refused, match="the process of the chat template ended with 1"):
        found.text(TURNS)
    rendering.ended(found.process)


def test_what_a_template_raises_is_told_and_it_reaches_for_nothing(good: Rendering) -> None:
    assert good.text(TURNS) == "<s>user: x\nassistant:"
    with pytest.raises(Refused, match="does not take these messages: no such role") as refused:
        good.text([{"role": "planted", "content": "x"}])
    assert refused.value.status == 400
    attack = Rendering(ATTACK, {})
    with pytest.raises(Refused, match="unsafe"):
        attack.text(TURNS)
    rendering.ended(attack.process)


def test_its_process_ends_with_the_server(tmp_path: Path) -> None:
    found = Rendering(TEMPLATE, {})
    process = found.process
    del found
    assert process.wait(20) is not None


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"chat_template": [1]}, "chat_template in .* is a list; it must be a text, or a list of objects"),
        ({"chat_template": 5}, "chat_template in .* is a int"),
        ({"chat_template": {"default": "x"}}, "chat_template in .* is a dict"),
        ({"chat_template": [{"name": "default"}]}, "chat_template in .* is a int"),
        ({"chat_template": "x" * (template.LIMIT + 1)}, "has 1,048,577 characters, more than 1,048,576"),
        ({"chat_template": "x", "bos_token": {}}, "bos_token in .* is {}; it must be a text, or an object with `content`"),
        ({"chat_template": "x", "eos_token": {"content": 5}}, "eos_token in .* it must be a text"),
        ({"chat_template": "x", "pad_token": [1]}, "pad_token in .* it must be a text"),
    ],
)
def test_a_config_that_is_no_template_is_refused_by_name(config: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(BrokenFile, match=said):
        template_of(folder_of(tmp_path, **config), engine_of(4).tokenizer)


def test_a_file_that_is_no_template_is_refused_by_name_and_not_read_whole(tmp_path: Path) -> None:
    folder, tokenizer = folder_of(tmp_path), engine_of(4).tokenizer
    file = folder / template.FILE
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(BrokenFile, match="is not UTF-8 at byte 0; save it as UTF-8"):
        template_of(folder, tokenizer)
    with file.open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(BrokenFile, match="has more than 1,048,576 bytes, too many for a chat template"):
        template_of(folder, tokenizer)
    file.unlink()
    os.mkfifo(file)
    assert template_of(folder, tokenizer) is None  # it is not opened, and the config has none
