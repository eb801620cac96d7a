"""The engine computes what transformers computes, on the same folder, for every family of checkpoints.

Both compute in float64 throughout (transformers in a process of its own, where float32 means float64). The engine's
operations are the ones that run in fp32; only the type differs. The two evaluate the same formulas in other orders, so what
separates them is rounding: 2^-53 an operation, some hundred operations from token to logit, and sensitivities of these small
models below 1e3, so below 1e-10 relative. A difference of formula (a missing scale, another order of gate and norm, another
eps) moves logits by more than 1e-7; planted ones are below. The bound lies between the two.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from conformance.engines.checkpoint import NoOracle, read
from conformance.engines.oracle import Oracle
from ssmspec_fast.models.checkpoint import load
from ssmspec_fast.models.model import Model
from ssmspec_fast.operations.torch_ops import TorchOperations

from .child import output_of
from .folders import BUDGET, FAMILIES, PROMPTS
from .runs import apart, emitted, engine, logits_after

RELATIVE = 1e-9


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("folders")
    output_of("folders.py", home)
    return home


def expected_of(folder: Path) -> dict[str, np.ndarray]:
    """What transformers makes of a folder."""
    return load_file(folder / "expected.safetensors")


def stepped(model: Model, prompt: tuple[int, ...], operations: TorchOperations | None = None) -> Any:
    """The logits after the tokens of a prompt: the first five at once, the rest token by token."""
    return logits_after(model, (*prompt, 0), operations or TorchOperations(), min(5, len(prompt)))[1]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("bitwise", [False, True], ids=["fast", "bitwise"])
def test_logits_equal_those_of_transformers(folders: Path, name: str, bitwise: bool) -> None:
    model, expected = load(folders / name, torch.float64), expected_of(folders / name)
    for i, prompt in enumerate(PROMPTS):
        assert apart(stepped(model, prompt, TorchOperations(bitwise)), expected[f"logits{i}"]) <= RELATIVE


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_tokens_equal_those_of_transformers(folders: Path, name: str) -> None:
    expected, made = expected_of(folders / name), engine(load(folders / name, torch.float64), operations=TorchOperations())
    assert emitted(made, PROMPTS, BUDGET) == [tuple(expected[f"tokens{i}"].tolist()) for i in range(len(PROMPTS))]


ORACLES = (
    "mamba", "mamba2", "bamba", "falcon_h1", "falcon_h1-norm", "granite_hybrid", "granite_hybrid-turned", "nemotron_h",
    "qwen3_5", "qwen3_next", "qwen3_next-listed", "llama", "kimi_linear",
)  # fmt: skip


@pytest.mark.parametrize("name", ORACLES)
def test_the_oracle_of_whole_engines_is_the_model_of_transformers(folders: Path, name: str) -> None:
    oracle, expected = Oracle(read(folders / name)), expected_of(folders / name)
    for i, prompt in enumerate(PROMPTS):
        assert apart(oracle(prompt).logits, expected[f"logits{i}"]) <= RELATIVE


def test_the_oracle_reads_the_published_config_of_kimi_linear(folders: Path, tmp_path: Path) -> None:
    """Sizes and kinds of layers in `linear_attn_config`, from 1 on, and experts only after the last dense layer."""
    home = shutil.copytree(folders / "kimi_linear", tmp_path / "published")
    config = json.loads((home / "config.json").read_text())
    wanted = Oracle(read(home))(PROMPTS[0]).logits
    heads, size = config.pop("linear_num_heads"), config.pop("linear_head_dim")
    kinds = config.pop("layer_types")
    del config["mlp_layer_types"]
    lists = {f"{name}_layers": [i for i, kind in enumerate(kinds, 1) if kind.startswith(word)]
             for name, word in (("kda", "linear"), ("full_attn", "full"))}  # fmt: skip
    config |= {"linear_attn_config": {"num_heads": heads, "head_dim": size, **lists}, "num_experts": 8}
    for dense in (len(kinds), 1):
        (home / "config.json").write_text(json.dumps(config | {"first_k_dense_replace": dense}))
        if dense == 1:
            with pytest.raises(NoOracle, match="mixtures of experts"):
                read(home)
        else:
            assert np.array_equal(Oracle(read(home))(PROMPTS[0]).logits, wanted)
    bounded = config | {"first_k_dense_replace": 3}
    bounded["linear_attn_config"] = config["linear_attn_config"] | {"gate_lower_bound": -5.0}
    (home / "config.json").write_text(json.dumps(bounded))
    assert not np.allclose(Oracle(read(home))(PROMPTS[0]).logits, wanted, rtol=1e-3)


PLANTED = {
    "mamba": ("residual", lambda m: replace(m, norm=replace(m.norm, eps=2e-5))),
    "mamba2": ("groups of the norm", lambda m: with_mixer(m, lambda c: replace(c, norm=replace(c.norm, groups=1)))),
    "falcon_h1-norm": ("gate first", lambda m: with_mixer(m, lambda c: replace(c, norm=replace(c.norm, norm_first=False)))),
    "falcon_h1": ("multiplier of keys", lambda m: with_mixer(m, lambda c: replace(c, key_multiplier=1.0), place=1)),
    "granite_hybrid": ("divisor of logits", lambda m: replace(m, config=replace(m.config, head_multiplier=1.0))),
    "qwen3_5": ("scale of the delta rule", lambda m: with_params(m, scale=1.0)),
    "qwen3_next": ("b and a exchanged", lambda m: with_first(m, lambda x: replace(x, a_proj=x.b_proj, b_proj=x.a_proj))),
    "kimi_linear": ("lower bound of the decay", lambda m: with_params(m, lower_bound=-5.0)),
    "lfm2": ("taps reversed", lambda m: with_params(m, weight=m.mixers[0].params.weight.flip(-1))),
}


def with_first(model: Model, change: Any, place: int = 0) -> Model:
    """The model with another mixer in its first block."""
    block = model.blocks[0]
    mixers: list[Any] = list(block.mixers)
    mixers[place] = change(mixers[place])
    return replace(model, blocks=(replace(block, mixers=tuple(mixers)), *model.blocks[1:]))


def with_mixer(model: Model, change: Any, place: int = 0) -> Model:
    """The model with another config of one mixer of its first block."""
    return with_first(model, lambda mixer: replace(mixer, config=change(mixer.config)), place)


def with_params(model: Model, **changes: Any) -> Model:
    return with_first(model, lambda mixer: replace(mixer, params=mixer.params._replace(**changes)))


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_difference_of_formula_is_caught(folders: Path, name: str) -> None:
    _, plant = PLANTED[name]
    model = plant(load(folders / name, torch.float64))
    assert apart(stepped(model, PROMPTS[0]), expected_of(folders / name)["logits0"]) > 100 * RELATIVE
