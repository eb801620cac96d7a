"""`ssmspec generate --demo`: its verdict comes from a comparison."""

import re
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor
from typer.testing import Result

from ssmspec_fast.accept import greedy
from ssmspec_fast.cli import demo
from ssmspec_fast.cli import generate as cli
from ssmspec_fast.cli.refusal import REFUSED
from ssmspec_fast.methods.activation_replay import ActivationReplay

from .commands import called


def call(*words: str | Path, colour: bool = False) -> Result:
    return called(cli.app, "--demo", *words, **({"FORCE_COLOR": "1", "TERM": "xterm"} if colour else {}))


@pytest.fixture
def shipped(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ssmspec_fast.cli.shipped.SHIPPED", trained)


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


def lenient(tokens: Tensor, parents: Tensor, choice: Tensor) -> tuple[Tensor, Tensor]:
    """The target's choices moved to what was drafted: every draft stands."""
    moved = choice.clone()
    moved[:, :-1] = tokens[:, 1:]
    return WALK(tokens, parents, moved)


WALK = greedy.walk


@pytest.mark.usefixtures("shipped")
@pytest.mark.parametrize(
    ("owner", "name", "fault"),
    [(ActivationReplay, "commit", lambda *_: None), (greedy, "walk", lenient)],
    ids=["a method that forgets what was accepted", "a rule that accepts one draft too many"],
)
def test_a_planted_fault_is_caught(owner: Any, name: str, fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, name, fault)
    made = call("--max-tokens", "40", "--method", "activation-replay")
    assert made.exit_code == cli.DIFFERS
    assert re.fullmatch(r"identical to plain decoding: no, first difference at token \d+", made.stdout.splitlines()[-1])


@pytest.mark.parametrize("words", [("--demo",), ("--checkpoint", "mamba2", "--prompt", "def")])
def test_models_that_are_not_installed_are_refused_in_one_line_with_the_command_that_installs_them(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ssmspec_fast.cli.shipped.SHIPPED", tmp_path)
    made = called(cli.app, *words)
    assert made.exit_code == REFUSED
    assert made.stderr == (
        "ParameterError: mamba2 does not exist, and the models that ship are not installed; "
        "run pip install ../ssmspec/ssmspec_fast/checkpoints, or give a folder\n"
    )
