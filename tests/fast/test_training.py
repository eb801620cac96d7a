"""The recipes of the small checkpoints: what they train on, and that a step of each one learns."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from ssmspec_fast.training import corpus, tokens
from ssmspec_fast.training.loop import build, train
from ssmspec_fast.training.recipes import RECIPES, Recipe
from ssmspec_fast.training.scans import parallel_scan


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for i in range(300):
        (tmp_path / f"m{i}.py").write_bytes(b"x = %d\n" % i * int(rng.integers(1, 9)))
    (tmp_path / "bad.py").write_bytes(b"\xff\xfe")
    (tmp_path / "nul.py").write_bytes(b"x = '\x00'")
    return tmp_path


def test_a_file_is_trained_on_or_held_out_and_never_both(sources: Path) -> None:
    found = corpus.read(sources)
    joined = found.train.tobytes()
    whole = [text for text in joined.split(b"\0") if text]
    assert len(found.held_out) > 0
    assert len(whole) + len(found.held_out) == 300
    assert all(b"\0" + text + b"\0" not in joined for path, text in found.held_out.items())
    assert all(corpus.is_held_out(path) for path in found.held_out)


def test_what_is_held_out_does_not_change_when_a_file_comes(sources: Path) -> None:
    before = corpus.read(sources).held_out
    (sources / "another.py").write_text("y = 1\n")
    after = corpus.read(sources).held_out
    assert {path: after[path] for path in before} == before


def test_a_folder_without_sources_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no Python sources"):
        corpus.read(tmp_path)


def test_token_i_is_byte_i() -> None:
    text = "def f(ä):\n\treturn '\u2026'\r\n"
    tokenizer = tokens.bytes_only()
    assert tokenizer.encode(text).ids == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text


def test_merged_tokens_write_the_same_text_in_fewer_tokens() -> None:
    text = "import os\nimport sys\n\n\ndef main():\n    return os.path.join(sys.prefix)\n" * 20
    tokenizer = tokens.merged([text], merges=40)
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids) == text
    assert len(ids) < len(text) / 2
    assert tokenizer.token_to_id(tokens.END_TEXT) == 0


def test_the_parallel_scan_is_the_recurrence() -> None:
    draw = torch.Generator().manual_seed(0)
    a, u = (
        torch.rand(2, 37, 3, 5, generator=draw, dtype=torch.float64),
        torch.randn(2, 37, 3, 5, generator=draw, dtype=torch.float64),
    )
    state, expected = torch.zeros(2, 3, 5, dtype=torch.float64), []
    for t in range(37):
        state = a[:, t] * state + u[:, t]
        expected.append(state)
    # Products of at most 37 factors below 1 and sums of 37 terms below 6: 74 roundings of what is below 37 * 6.
    assert float((parallel_scan(a, u) - torch.stack(expected, 1)).abs().max()) <= 74 * 2**-53 * 37 * 6


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: r.name)
def test_every_recipe_learns_a_repeated_text(recipe: Recipe, tmp_path: Path) -> None:
    if recipe.teacher is not None:
        teacher = next(r for r in RECIPES if r.name == recipe.teacher)
        run(teacher, tmp_path, 1)
    found = run(recipe, tmp_path, 12)
    assert found["curve"][-1][1] < 0.8 * found["curve"][0][1]
    assert (tmp_path / recipe.name / "model.safetensors").is_file()


def run(recipe: Recipe, folder: Path, steps: int) -> dict[str, list[tuple[int, float]]]:
    small = dataclasses.replace(recipe, rows=2, length=32)
    data = np.tile(np.frombuffer(b"abcdefgh", np.uint8), 40)
    return train(small, data, data, folder, "cpu", steps)


@pytest.mark.parametrize(
    "recipe", [r for r in RECIPES if "amba" in r.architecture and r.name != "bpe-drafter"], ids=lambda r: r.name
)
def test_what_is_trained_is_what_transformers_runs(recipe: Recipe, tmp_path: Path) -> None:
    """The same float64 weights give the same logits, token by token to rounding, with the forward that training puts in."""
    model = build(recipe).double().eval()
    ids = torch.randint(1, 256, (2, 64), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        ours = model(ids, use_cache=False).logits
        for mixer in model.modules():
            mixer.__dict__.pop("forward", None)
        theirs = model(ids, use_cache=False).logits
    scale = float(theirs.abs().max())
    # Both run parts of the recurrence in fp32: some 64 roundings of 2^-24 along a row, through at most ten blocks.
    assert scale > 0.1
    assert float((ours - theirs).abs().max()) <= 640 * 2**-24 * scale
