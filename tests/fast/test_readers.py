"""Readers of folders: whatever a config, a header or a tokenizer holds, it loads or is refused by a named error, at once."""

import hashlib
import json
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings

from ssmspec_fast.cli import generate as command
from ssmspec_fast.cli.refusal import REFUSED, shown
from ssmspec_fast.cli.shipped import SHIPPED
from ssmspec_fast.draft.nothing import Nothing
from ssmspec_fast.draft.shapes import branches, chain
from ssmspec_fast.engine.window import Proposal
from ssmspec_fast.errors import BrokenFile, ConfigRefused
from ssmspec_fast.families import fields, find
from ssmspec_fast.models.build import Parts
from ssmspec_fast.models.checkpoint import open_checkpoint, read_json
from ssmspec_fast.models.config import Rotary
from ssmspec_fast.models.tokenizer import Tokenizer
from ssmspec_ref.errors import ParameterError

from .child import output_of
from .commands import called
from .models import data
from .readers.drawing import configs, settled
from .runs import emitted, engine
from .test_checkpoint import changed, written

DEEP: Any = []
for _ in range(50):
    DEEP = [DEEP]


@settings(max_examples=int(os.environ.get("SSMSPEC_READER_EXAMPLES", "250")), deadline=None)
@given(configs())
@example((data("mamba2")[0] | {"model_type": ["mamba2"]}, None))
@example((data("mamba2")[0] | {"num_hidden_layers": 10**9}, None))
@example((data("llama")[0] | {"rope_parameters": DEEP}, None))
@example((data("llama")[0] | {"rms_norm_eps": 10**400}, None))
def test_a_config_is_read_or_refused_by_a_named_error(config: tuple[dict[str, Any], dict[str, Any] | None]) -> None:
    assert settled(*config) in ("read", "ConfigRefused")


def test_a_planted_reader_that_takes_any_value_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fields.Fields, "as_number", lambda self, name, value, least=0: float(value))
    for value in ("x", [], 10**400):
        with pytest.raises((TypeError, ValueError, OverflowError)):
            settled(data("llama")[0] | {"rms_norm_eps": value})


def test_the_sections_of_the_delta_checkpoint_are_its_pairs_and_nothing_else_of_it_moved() -> None:
    """The contradiction of before is refused by name; what was read of it is what is read now, from the same weights."""
    folder = SHIPPED / "delta"
    now = json.loads((folder / "config.json").read_text())
    old = now | {"partial_rotary_factor": 0.25, "rope_parameters": now["rope_parameters"] | {"mrope_section": [4, 2, 2]}}
    with pytest.raises(ConfigRefused, match=r"partial_rotary_factor is 0\.5 in rope_parameters, 0\.25 in"):
        find(old)
    rotary = [m.rotary for m in find(now)[1].mixers if hasattr(m, "rotary")]
    assert rotary == [Rotary(16, 10000.0)] * 2
    assert now["rope_parameters"]["mrope_section"] == [3, 3, 2]
    weights = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert weights == WEIGHTS
    with pytest.raises(ConfigRefused, match="sum to the 8 pairs"):
        find(now | {"rope_parameters": now["rope_parameters"] | {"mrope_section": [3, 3, 3]}})


WEIGHTS = "2464c49d80c65db455618d87181a7c0190cad9649808e8e1e12a158bd32d866a"


def test_files_that_are_no_json_are_refused_by_name(tmp_path: Path) -> None:
    home = written(tmp_path / "m", "mamba2")
    for text in (b"[" * 100_000, b'{"a":' * 50_000, b"\xff\xfe", b"{", b"9" * 5000):
        (home / "config.json").write_bytes(text)
        with pytest.raises(BrokenFile, match=r"config\.json"):
            open_checkpoint(home)
    (home / "config.json").write_bytes(b" " * 10 + b"{}")
    with pytest.raises(BrokenFile, match="bytes; the limit is 5"):
        read_json(home / "config.json", 5)
    (home / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "x" * 300}}))
    changed(home, **data("mamba2")[0])
    with pytest.raises(BrokenFile, match="not in the folder"):
        open_checkpoint(home)


def test_a_tokenizer_that_panics_is_refused_by_name(tmp_path: Path) -> None:
    whole = json.loads((SHIPPED / "bpe-drafter" / "tokenizer.json").read_text())
    for pattern in ("(", "(?:a|a?)+$", "(?=x)(a*)*b"):
        whole["pre_tokenizer"] = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        (tmp_path / "tokenizer.json").write_text(json.dumps(whole))
        with suppress(BrokenFile):  # which of them end well is the library's
            Tokenizer(tmp_path).encode("a" * 40 + "c")
    with pytest.raises(ParameterError, match="not valid UTF-8"):
        Tokenizer(SHIPPED / "mamba2").encode("a\udcff")


def test_parsers_written_in_rust_survive_mutated_files(tmp_path: Path) -> None:
    output_of("readers/mutated.py", tmp_path, 0, 60, seconds=120)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--max-tokens", "999999999999"], "cache is|MemoryRefused"),
        (["--drafter", "ngram", "--drafts", "100000000"], "give fewer: 4096 at most"),
        (["--drafter", "lookup", "--drafts", "100000000"], "give fewer: 4096 at most"),
        (["--drafter", "mamba2-drafter", "--tree", "99,99,99,99"], "windows of 97039600|give fewer: 4096 at most"),
        (["--drafter", "mamba2-drafter", "--tree", "64x6400"], "give fewer: 4096 at most"),
        (["--prompt", "a\udcff"], "not valid UTF-8"),
        (["--out", "/proc/none/x.json"], "cannot be written"),
    ],
)
def test_what_cannot_be_done_is_refused_before_work(more: list[str], said: str) -> None:
    more = [str(SHIPPED / word) if word == "mamba2-drafter" else word for word in more]
    done = called(command.app, "--checkpoint", SHIPPED / "mamba2", "--prompt", "def", *more)
    assert (done.exit_code, done.stdout) == (REFUSED, "")
    assert re.search(said, done.stderr), done.stderr


def test_numbers_and_types_that_mean_nothing_are_refused() -> None:
    for given_, said in (
        ({"dtype": torch.int8}, "dtype is torch.int8"),
        ({"slots": 1.5}, "slots is 1.5"),
        ({"drafts": True}, "drafts is True"),
        ({"tree": "3,2,1"}, "no drafter was given"),
    ):
        with pytest.raises(ParameterError, match=said):
            Parts(SHIPPED / "mamba2", **given_)  # type: ignore[arg-type]
    for made in (lambda: chain(10**9), lambda: branches((99, 99, 99, 99))):
        with pytest.raises(ParameterError, match="4096 at most"):
            made()


@pytest.mark.parametrize("broken", ["weights", "eps"])
def test_the_command_fails_where_a_completion_failed_and_says_why(broken: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    home = shutil.copytree(SHIPPED / "mamba2", tmp_path / "m")
    if broken == "weights":
        held = load_file(home / "model.safetensors")
        held["backbone.norm_f.weight"][:] = float("nan")
        save_file(held, home / "model.safetensors")
    else:
        changed(home, layer_norm_epsilon=-1e9)
    words = ("--checkpoint", home, "--prompt", "def", "--prompt", "class", "--max-tokens", 4)
    done = called(command.app, *words, "--out", tmp_path / "out.json")
    assert done.exit_code == (command.FAILED if broken == "weights" else REFUSED)
    if broken == "weights":
        assert "failed: 2 of 2 completions (prompt 1, 2): the model's logits are not numbers" in done.stderr
        assert {one["finish"] for one in json.loads((tmp_path / "out.json").read_text())["completions"]} == {"failed"}
    else:
        assert "layer_norm_epsilon is" in done.stderr


def moved(window: Any) -> Any:
    """With another root."""
    return window._replace(tokens=(window.tokens + 1) % 61)


def too_long(window: Any) -> Any:
    """Of more tokens than the drafter says."""
    return window._replace(tokens=window.tokens.repeat(1, 3))


@pytest.mark.parametrize(
    ("change", "said"), [(moved, "with the root"), (too_long, "proposed 3 tokens, but declares nodes=1")]
)
def test_a_drafter_that_proposes_what_cannot_be_is_refused(change: Any, said: str) -> None:
    class Wrong(Nothing):
        def propose(self, sequences: Any, slots: Any) -> Proposal:
            return Proposal(change(super().propose(sequences, slots).window))

    with pytest.raises(ParameterError, match=said):
        emitted(engine("mamba2", Wrong()), [[1, 2]], 3)


def test_what_a_terminal_would_obey_is_shown_by_its_escape() -> None:
    assert shown("a\x1b[31m\udcff\u0007") == "a\\x1b[31m\\udcff\\x07"
