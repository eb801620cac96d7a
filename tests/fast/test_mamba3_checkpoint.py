"""Checkpoints of Mamba-3 in mamba-ssm's form: the engine's model is that of the oracle, which reads them on its own."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from conformance.engines.checkpoint import NoOracle, read
from conformance.engines.oracle import Oracle
from ssmspec_fast.layers.mamba3 import Mamba3Config, Mamba3Layer
from ssmspec_fast.models.checkpoint import load, open_checkpoint
from ssmspec_fast.models.config import GatedNormConfig
from ssmspec_fast.models.model import Model

from .folders import PROMPTS, VOCABULARY
from .models import Drawn
from .runs import apart
from .test_checkpoint import changed, written
from .test_transformers import RELATIVE, stepped, with_mixer, with_params

NAMES = ("mamba3", "mamba3-normed", "mamba3-mimo")


@pytest.fixture
def home(tmp_path: Path, name: str) -> Path:
    """A folder with norms that the oracle has, its tensors as they are but for the biases of a LayerNorm."""
    folder = changed(written(tmp_path / name, name), rms_norm=True)
    held = load_file(folder / "model.safetensors")
    kept = {key: x for key, x in held.items() if not key.endswith(("norm.bias", "norm_f.bias"))}
    save_file(kept, folder / "model.safetensors")
    return folder


def distance(model: Model, folder: Path) -> float:
    """How far logits of the engine are from those of the oracle, of the largest of them."""
    oracle = Oracle(read(folder))
    return max(apart(stepped(model, prompt), oracle(prompt).logits) for prompt in PROMPTS)


@pytest.mark.parametrize("name", NAMES)
def test_the_engine_reads_the_model_that_the_oracle_reads(home: Path, name: str) -> None:
    model = load(home, torch.float64)
    assert model.config.vocabulary == VOCABULARY
    assert distance(model, home) <= RELATIVE


def mlp_exchanged(model: Model) -> Model:
    mlp: Any = model.blocks[0].mlp
    block = replace(model.blocks[0], mlp=replace(mlp, up=mlp.gate, gate=mlp.up))
    return replace(model, blocks=(block, *model.blocks[1:]))


PLANTED = {
    "halves": ("mamba3", lambda m: with_params(m, halves=True)),
    "no floor": ("mamba3-normed", lambda m: with_params(m, A_floor=1e-4)),
    "one norm": ("mamba3-normed", lambda m: with_mixer(m, lambda c: replace(c, norm=replace(c.norm, groups=1)))),
    "neighbours": ("mamba3-mimo", lambda m: with_params(m, halves=False)),
    "maps exchanged": ("mamba3-mimo", lambda m: with_params(m, up=m.mixers[0].params.down, down=m.mixers[0].params.up)),
    "gate and up exchanged": ("mamba3-mimo", mlp_exchanged),
}


@pytest.mark.parametrize(("name", "plant"), PLANTED.values(), ids=PLANTED)
def test_a_reader_with_another_convention_is_caught(home: Path, name: str, plant: Any) -> None:
    assert distance(plant(load(home, torch.float64)), home) > 100 * RELATIVE


@pytest.mark.parametrize("name", ["mamba3"])
def test_a_config_with_a_model_type_is_the_same(home: Path, name: str) -> None:
    without = open_checkpoint(home).config
    assert open_checkpoint(changed(home, model_type="mamba3_lm")).config == without


@pytest.mark.parametrize("name", ["mamba3-mimo"])
@pytest.mark.parametrize("change", [{"attn_layer_idx": [1]}, {"rms_norm": False}, {"ssm_cfg": {"is_outproj_norm": True}}])
def test_the_oracle_refuses_what_it_does_not_have(home: Path, name: str, change: dict[str, Any]) -> None:
    config = json.loads((home / "config.json").read_text())
    if "ssm_cfg" in change:
        change = {"ssm_cfg": config["ssm_cfg"] | change["ssm_cfg"]}
    with pytest.raises(NoOracle, match="mamba3: the oracle has"):
        read(changed(home, **change))


def test_a_checkpoint_of_mamba_ssm_has_these_names_and_sizes() -> None:
    """`d_in_proj` of the published module: 2 d_inner + 2 n g r + 3 h + f."""
    sizes = Mamba3Config(4, 3, 8, 2, 2, rank=3, halves=True, maps=True, norm=GatedNormConfig(4, 1e-5, True))
    layer = Mamba3Layer.stored(Drawn(torch.float32, 0), "mixer", 7, sizes)
    assert layer.in_proj.weight.shape == (2 * 12 + 2 * 8 * 2 * 3 + 3 * 4 + 2, 7)
    named = zip(layer.params._fields, layer.params, strict=True)
    assert {name: tuple(x.shape) for name, x in named if torch.is_tensor(x)} == {
        "B_norm": (8,), "C_norm": (8,), "B_bias": (4, 3, 8), "C_bias": (4, 3, 8), "dt_bias": (4,), "D": (4,),
        "up": (4, 3, 3), "gate": (4, 3, 3), "down": (4, 3, 3),
    }  # fmt: skip
    assert layer.out_proj.weight.shape == (7, 12)
    assert sizes.state_shape == (4, 3 * 8 + 2 + 3 * 8 + 3)
