"""`ssmspec generate --demo`: its verdict comes from a comparison."""

import re
from pathlib import Path

import pytest
from torch import Tensor
from typer.testing import CliRunner, Result

from ssmspec_fast.cli import demo
from ssmspec_fast.cli import generate as cli
from ssmspec_fast.cli.refusal import REFUSED
from ssmspec_fast.methods.activation_replay import ActivationReplay

from .trained import pair


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pair(tmp_path_factory.mktemp("trained"))


def call(*words: str | Path, colour: bool = False) -> Result:
    env = {"COLUMNS": "400"} | ({"FORCE_COLOR": "1", "TERM": "xterm"} if colour else {})
    return CliRunner().invoke(cli.app, ["--demo", *map(str, words)], env=env)


@pytest.fixture
def shipped(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "SHIPPED", trained)


@pytest.mark.usefixtures("shipped")
def test_the_demo_completes_a_function_and_says_that_it_is_plain_decodings() -> None:
    made = call("--max-tokens", "40")
    assert made.exit_code == 0, made.output
    lines = made.stdout.splitlines()
    assert made.stdout.startswith(demo.PROMPT)
    assert lines[-1] == "identical to plain decoding: yes"
    steps = re.fullmatch(r"tokens per step: ([0-9.]+) \((\d+) calls of the target instead of (\d+)\)", lines[-2])
    assert steps
    assert float(steps[1]) == pytest.approx(int(steps[3]) / int(steps[2]), abs=0.005)
    assert int(steps[2]) < int(steps[3])
    assert "speed" not in made.stdout


@pytest.mark.usefixtures("shipped")
def test_accepted_drafts_are_coloured_and_the_targets_own_tokens_are_not() -> None:
    made = call("--max-tokens", "40", colour=True)
    assert made.exit_code == 0, made.output
    said = re.search(r": (\d+) of (\d+) tokens are accepted drafts", made.stdout)
    assert said
    body = made.stdout[: said.start()].rsplit("green", 1)[0]
    coloured = "".join(re.findall(r"\x1b\[1;32m(.*?)\x1b\[0m", body, re.DOTALL))
    whole = re.sub(r"\x1b\[[0-9;]*m", "", body)
    assert 0 < int(said[1]) < int(said[2])
    assert len(coloured) == int(said[1])
    assert len(whole.removeprefix(demo.PROMPT).removesuffix("\n\n")) == int(said[2])


@pytest.mark.usefixtures("shipped")
@pytest.mark.parametrize("words", [("--mode", "bitwise"), ("--method", "replay-buffer"), ("--drafter", "lookup")])
def test_the_demo_takes_another_way_to_the_same_tokens(words: tuple[str, ...]) -> None:
    made = call("--max-tokens", "40", *words)
    assert made.exit_code == 0, made.output
    assert made.stdout.endswith("identical to plain decoding: yes\n")


@pytest.mark.usefixtures("shipped")
def test_a_planted_method_that_forgets_what_was_accepted_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ActivationReplay, "commit", lambda *_: None)
    made = call("--max-tokens", "40", "--method", "activation-replay")
    assert made.exit_code == cli.DIFFERS
    assert re.fullmatch(r"identical to plain decoding: no, first difference at token \d+", made.stdout.splitlines()[-1])


@pytest.mark.usefixtures("shipped")
def test_a_planted_rule_that_accepts_one_draft_too_many_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target's choices moved to what was drafted: every draft stands."""

    def lenient(tokens: Tensor, parents: Tensor, choice: Tensor) -> tuple[Tensor, Tensor]:
        moved = choice.clone()
        moved[:, :-1] = tokens[:, 1:]
        return walk(tokens, parents, moved)

    from ssmspec_fast.accept import greedy

    walk = greedy.walk
    monkeypatch.setattr(greedy, "walk", lenient)
    made = call("--max-tokens", "40")
    assert made.exit_code == cli.DIFFERS
    assert "identical to plain decoding: no, first difference at token" in made.stdout


def test_models_that_are_not_there_are_named_with_the_command_that_trains_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "SHIPPED", tmp_path)
    made = call()
    assert made.exit_code == REFUSED
    assert made.stderr.startswith("BrokenFile: ")
    assert f"python -m ssmspec_fast.training --out {tmp_path}" in made.stderr
