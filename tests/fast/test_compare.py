"""`ssmspec generate --compare`: its verdict comes from a comparison, and it says when it means little."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import Result

from ssmspec_fast.accept import greedy
from ssmspec_fast.cli import generate as cli
from ssmspec_fast.cli.shipped import SHIPPED, shipped
from ssmspec_ref.errors import ParameterError

from .commands import called

PROMPTS = ("--prompt", "def mean(", "--prompt", "x")


def compare(trained: Path, *more: str, drafter: str = "mamba2-drafter") -> Result:
    drafter = str(trained / drafter) if (trained / drafter).exists() else drafter
    words = ("--drafter", drafter, "--compare", "--max-tokens", 16, *PROMPTS, *more)
    return called(cli.app, "--checkpoint", trained / "mamba2", *words)


def other_tokens(monkeypatch: pytest.MonkeyPatch, of_one: bool = True) -> None:
    """Plants: with drafts in the window the target's choice is another token, or only where rows are verified together;
    plain decoding is as before."""
    right = greedy.walk

    def walk(tokens: Any, tree: Any, most: torch.Tensor) -> Any:
        same = tokens.shape[1] == 1 or (len(tokens) == 1 and not of_one)
        return right(tokens, tree, most if same else (most + 1) % 64)

    monkeypatch.setattr(greedy, "walk", walk)


@pytest.mark.parametrize("more", [(), ("--mode", "fast"), ("--method", "joint"), ("--tree", "2,1")])
def test_speculation_is_found_identical(trained: Path, more: tuple[str, ...]) -> None:
    done = compare(trained, *more)
    assert done.exit_code == 0, done.output
    assert "identical to plain decoding: 2 of 2 prompts (method " in done.output
    assert done.output.count("tokens per step") == done.output.count("windows that accepted none: ") == 1


@pytest.mark.parametrize("mode", ["bitwise", "fast"])
def test_other_tokens_are_found(trained: Path, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    other_tokens(monkeypatch)
    done = compare(trained, "--mode", mode)
    assert done.exit_code == cli.DIFFERS
    assert "identical to plain decoding: 0 of 2 prompts, 2 DIFFER" in done.output
    assert re.search(r"prompt 1, token \d+ \(both from 1\): expected ", done.output)
    assert ("no near tie: float64 logits " in done.output) == (mode == "fast")


def test_a_difference_that_only_a_batch_has_is_compared_with_the_logits_of_runs_alone(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone both runs agree."""
    other_tokens(monkeypatch, of_one=False)
    done = compare(trained, "--mode", "fast", "--slots", "2")
    assert done.exit_code == cli.DIFFERS
    assert "DIFFER" in done.output
    assert "no near tie: float64 logits " in done.output


def test_identity_without_an_accepted_draft_is_a_warning(trained: Path) -> None:
    done = compare(trained, "--drafts", "1", drafter="lookup")
    assert done.exit_code == 0, done.output
    assert ("warning: no draft was accepted" in done.output) == ("some: 0, all: 0" in done.output)
    if "some: 0, all: 0" in done.output:
        assert "try the checkpoint itself as --drafter" in done.output


@pytest.fixture(scope="module")
def without_tokenizer(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint as `save_pretrained` of a model writes it."""
    folder = tmp_path_factory.mktemp("own") / "own"
    shutil.copytree(trained / "mamba2", folder, ignore=shutil.ignore_patterns("tokenizer*"))
    return folder


def on_ids(folder: Path, prompts: str, *more: str) -> Result:
    (file := folder.parent / "prompts.jsonl").write_text(prompts)
    words = ("--checkpoint", folder, "--drafter", folder, "--compare", "--prompts", file)
    return called(cli.app, *words, "--max-tokens", 12, *more)


IDS = '{"prompt": [9, 8, 7, 9, 8]}'


@pytest.mark.parametrize("mode", ["bitwise", "fast"])
def test_token_ids_need_no_tokenizer(without_tokenizer: Path, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    done = on_ids(without_tokenizer, IDS, "--mode", mode)
    assert done.exit_code == 0, done.output
    assert "identical to plain decoding: 1 of 1 prompts" in done.output
    assert re.search(r"^9 8 7 9 8( \d+){12}$", done.stdout, re.MULTILINE), done.stdout
    other_tokens(monkeypatch)
    done = on_ids(without_tokenizer, IDS, "--mode", mode)
    assert done.exit_code == 1, done.output
    assert ("no near tie" in done.output) == (mode == "fast"), done.output


@pytest.mark.parametrize(
    ("prompts", "more", "said"),
    [
        ("text", (), "tokenizer.json is missing, and a prompt or a stop is text; copy"),
        (IDS, ("--stop", "x"), "tokenizer.json is missing, and a prompt or a stop is text; copy"),
        ('{"prompt": [99999]}', (), "99999"),
        ('{"prompt": [-1]}', (), "-1"),
        ('{"prompt": []}', (), "a prompt is missing or empty"),
    ],
)
def test_prompts_that_a_checkpoint_without_tokenizer_cannot_take_are_refused(
    without_tokenizer: Path, prompts: str, more: tuple[str, ...], said: str
) -> None:
    done = on_ids(without_tokenizer, prompts, *more)
    assert done.exit_code == 2, done.output
    assert said in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("more", [("--acceptance", "multi-step"), ("--temperature", "0.8")])
def test_sampled_tokens_are_not_compared(trained: Path, more: tuple[str, ...]) -> None:
    done = compare(trained, *more)
    assert done.exit_code == 2
    assert "--compare compares greedy tokens" in done.output


def test_without_a_drafter_there_is_nothing_to_compare(trained: Path) -> None:
    done = called(cli.app, "--checkpoint", trained / "mamba2", "--compare", *PROMPTS)
    assert done.exit_code == 2
    assert "--compare was given without a --drafter" in done.output


def test_a_model_that_ships_is_found_by_its_name_and_a_folder_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shipped(Path("mamba2")) == SHIPPED / "mamba2"
    assert shipped(Path("lookup"), cli.WITHOUT_A_MODEL) == Path("lookup")
    with pytest.raises(ParameterError, match=r"mamba3 does not exist \(did you mean 'mamba2'\?\); give a folder"):
        shipped(Path("mamba3"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mamba2").mkdir()
    assert shipped(Path("mamba2")) == Path("mamba2")


def test_method_and_mode_are_named_and_the_json_holds_the_comparison(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = compare(trained, "--json", "--out", str(tmp_path / "same.json"))
    assert "2 of 2 prompts (method activation-replay, mode bitwise)\n" in done.stderr
    found = json.loads(done.stdout)
    assert found == json.loads((tmp_path / "same.json").read_text())
    assert found["comparison"] == {
        "method": "activation-replay", "mode": "bitwise", "prompts": 2, "identical": 2, "near_ties": 0, "differ": 0,
        "differences": [],
    }  # fmt: skip
    other_tokens(monkeypatch)
    done = compare(trained, "--json")
    assert done.exit_code == cli.DIFFERS
    found = json.loads(done.stdout)["comparison"]
    assert (found["identical"], found["differ"], len(found["differences"])) == (0, 2, 2)
    assert found["differences"][0]["expected"] != found["differences"][0]["got"]


def test_of_a_tree_a_branch_is_accepted_and_never_all(trained: Path) -> None:
    assert ", a whole branch: " in compare(trained, "--tree", "2,1").output
