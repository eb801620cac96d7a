"""The checkpoints that ship: what lies in their folder, and that engine and transformers compute the same from them.

In float64 the bound is that of `tests/fast/test_transformers`: rounding stays below it, a difference of formula above. In
float32 both generate greedily, and a token that differs must be a near tie of their logits in float64.
"""

import json
import re

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from ssmspec_fast.engine.decoder import Decoder
from ssmspec_fast.engine.sequences import new_sequences
from ssmspec_fast.engine.traces import Exact, run
from ssmspec_fast.engine.window import Window
from ssmspec_fast.methods.plain import Plain
from ssmspec_fast.models.checkpoint import load
from ssmspec_fast.models.tokenizer import Tokenizer
from ssmspec_fast.operations.torch_ops import TorchOperations
from ssmspec_fast.training import card, log, prompts
from ssmspec_fast.training.loop import stage_name
from ssmspec_fast.training.recipes import RECIPES
from ssmspec_ref.near_ties import first_difference, near_tie

from .child import output_of
from .runs import apart
from .shipped import BUDGET, NAMES, SHIPPED, TARGETS, TEXT

RELATIVE = 1e-9
MB = 10**6


def weights(name: str) -> int:
    return (SHIPPED / name / "model.safetensors").stat().st_size


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    file = tmp_path_factory.mktemp("shipped") / "expected.safetensors"
    output_of("shipped.py", file)
    return load_file(file)


def logits(name: str, plant: bool = False) -> torch.Tensor:
    """The engine's, in float64, after every token of the text."""
    model, ids = load(SHIPPED / name, torch.float64), Tokenizer(SHIPPED / name).encode(TEXT)
    if plant:
        model.blocks[-1].norm.weight[0] *= 1 + 2**-20
    decoder = Decoder(model, Plain(), TorchOperations(), slots=1, cache=len(ids))
    sequences = new_sequences(1, len(ids) + 1, (), (), "cpu")
    with torch.no_grad():
        feed = decoder.feed(Window(torch.tensor([ids]), torch.tensor([0])), sequences)
        return decoder.verify(feed)[0]


@pytest.mark.parametrize("name", NAMES)
def test_logits_equal_those_of_transformers(name: str, expected: dict[str, np.ndarray]) -> None:
    assert apart(logits(name), expected[f"{name}.float64"]) <= RELATIVE


def test_a_planted_weight_that_is_a_millionth_off_is_seen(expected: dict[str, np.ndarray]) -> None:
    assert apart(logits("mamba2", plant=True), expected["mamba2.float64"]) > RELATIVE


@pytest.mark.parametrize("name", TARGETS)
def test_plain_decoding_is_transformers_generation_or_differs_by_a_near_tie(
    name: str, expected: dict[str, np.ndarray]
) -> None:
    plain = run(SHIPPED / name, [TEXT], BUDGET, dtype="float32")
    ours, theirs = plain.tokens[0], tuple(expected[f"{name}.tokens"].tolist())
    at = first_difference(ours, theirs)
    assert len(ours) == len(theirs) == BUDGET
    if at is not None:
        both = (plain.logits[0], expected[f"{name}.logits"])
        wide = Exact(SHIPPED / name)(TEXT, ours[: at + 1])
        found = near_tie(both[0][: at + 1], both[1][: at + 1], wide, (ours[at], theirs[at]))
        assert found.excused, f"token {at}: {found}"


def test_all_that_is_trained_ships_within_16_mb_and_a_drafter_is_an_eighth_of_its_target() -> None:
    trained = {stage_name(recipe, part): recipe for recipe in RECIPES for part in recipe.stages}
    assert set(trained) == set(NAMES) == {file.parent.name for file in SHIPPED.glob("*/config.json")}
    assert sum(file.stat().st_size for file in SHIPPED.rglob("*") if file.is_file()) <= 16 * MB
    for name, recipe in trained.items():
        assert recipe.teacher is None or weights(name) <= weights(recipe.teacher) / 8
    assert all(json.loads((SHIPPED / name / "config.json").read_text())["num_hidden_layers"] >= 8 for name in TARGETS)


def test_the_card_the_log_and_the_recipes_say_the_same() -> None:
    runs = log.read(SHIPPED)
    assert {name: run["curve"][-1][0] for name, run in runs.items()} == {r.name: r.steps for r in RECIPES}
    assert (SHIPPED / card.FILE).read_text() == card.card(SHIPPED, [r for r in RECIPES if r.name in runs], runs)
    assert len(prompts.read(SHIPPED / prompts.FILE)) == prompts.COUNT == 200


def test_no_file_holds_a_path_of_the_machine_that_made_it() -> None:
    for file in SHIPPED.rglob("*"):
        if file.suffix in (".json", ".md", ".svg"):
            text = file.read_text(encoding="utf-8")
            assert not re.search(r"/(tmp|home|root|usr|work|mnt)/", text), file


@pytest.mark.parametrize("name", ["mamba2", "bpe-drafter"])
def test_every_letter_is_text_also_that_of_byte_0(name: str) -> None:
    """Byte-level tokenizers write byte 0 as U+0100; as a special token it would turn the letter into an end of text."""
    tokenizer = Tokenizer(SHIPPED / name)
    text = "".join(map(chr, range(1, 0x250))) + "…→😀"
    found = tokenizer.encode(text)
    assert tokenizer.decode(found) == text
    assert 0 not in found
    assert tokenizer.encode("a\0")[1:] == [0]
    if name == "mamba2":
        assert found == list(text.encode())
