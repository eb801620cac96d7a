"""The engine computes what transformers computes, on the same folder, for every family of checkpoints.

Both compute in float64 throughout (transformers in a process of its own, where float32 means float64). The engine's
operations are the ones that run in fp32; only the type differs. The two evaluate the same formulas in other orders, so what
separates them is rounding: 2^-53 an operation, some hundred operations from token to logit, and sensitivities of these small
models below 1e3, so below 1e-10 relative. A difference of formula (a missing scale, another order of gate and norm, another
eps) moves logits by more than 1e-7; planted ones are below. The bound lies between the two.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from conformance.engines.checkpoint import NoOracle, read
from conformance.engines.oracle import Oracle
from ssmspec_fast.draft.nothing import Nothing
from ssmspec_fast.engine.decoder import Decoder
from ssmspec_fast.engine.loop import Engine
from ssmspec_fast.engine.requests import Settings
from ssmspec_fast.engine.sequences import new_sequences
from ssmspec_fast.engine.window import Verdict
from ssmspec_fast.methods.plain import Plain
from ssmspec_fast.models.checkpoint import load
from ssmspec_fast.models.model import Model
from ssmspec_fast.operations import Emitted
from ssmspec_fast.operations.torch_ops import TorchOperations

from .folders import BUDGET, FAMILIES, PROMPTS

RELATIVE = 1e-9


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("folders")
    script = Path(__file__).with_name("folders.py")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(script), str(home)], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return home


def stepped(model: Model, prompt: tuple[int, ...], operations: TorchOperations) -> np.ndarray:
    """The logits after every token of a prompt: the first alone, the next three prefilled, the rest token by token."""
    decoder = Decoder(model, Plain(), operations, slots=2, cache=32)
    sequences = new_sequences(2, 33, (), (), "cpu")
    slot, found = torch.tensor([1]), []
    first = prompt[:5]
    decoder.prefill([first], [1])
    sequences.add(1, list(first), 20, 0)
    for token in (*prompt[len(first) :], 0):
        feed = decoder.feed(Nothing().propose(sequences, slot).window, sequences)
        found.append(decoder.verify(feed)[0, 0])
        decoder.commit(feed, forced(token, slot))
        sequences.commit(forced(token, slot))
    return torch.stack(found).double().numpy()


def forced(token: int, slot: torch.Tensor) -> Verdict:
    """A verdict that emits this token, whatever the model says."""
    one = torch.ones(1, dtype=torch.int64)
    run = Emitted(torch.tensor([[token]]), torch.zeros((1, 1), dtype=torch.int64), one, torch.zeros(1, dtype=torch.bool))
    return Verdict(run, torch.zeros(1, dtype=torch.int64), slot)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("bitwise", [False, True], ids=["fast", "bitwise"])
def test_logits_equal_those_of_transformers(folders: Path, name: str, bitwise: bool) -> None:
    model = load(folders / name, torch.float64)
    expected = load_file(folders / name / "expected.safetensors")
    with torch.no_grad():
        for i, prompt in enumerate(PROMPTS):
            came = stepped(model, prompt, TorchOperations(bitwise))
            wanted = expected[f"logits{i}"][-len(came) :]
            error = np.max(np.abs(came - wanted)) / np.max(np.abs(wanted))
            assert error <= RELATIVE, f"{name}: relative error {error:.1e} above {RELATIVE:.0e}"


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_tokens_equal_those_of_transformers(folders: Path, name: str) -> None:
    engine = Engine(load(folders / name, torch.float64), slots=2, cache=32)
    expected = load_file(folders / name / "expected.safetensors")
    results = engine.generate(PROMPTS, Settings(BUDGET))
    assert [result.tokens for result in results] == [tuple(expected[f"tokens{i}"].tolist()) for i in range(len(PROMPTS))]


ORACLES = (
    "mamba", "mamba2", "bamba", "falcon_h1", "falcon_h1-norm", "granite_hybrid", "granite_hybrid-turned", "nemotron_h",
    "qwen3_5", "qwen3_next", "qwen3_next-listed", "llama", "kimi_linear",
)  # fmt: skip


@pytest.mark.parametrize("name", ORACLES)
def test_the_oracle_of_whole_engines_is_the_model_of_transformers(folders: Path, name: str) -> None:
    oracle, expected = Oracle(read(folders / name)), load_file(folders / name / "expected.safetensors")
    for i, prompt in enumerate(PROMPTS):
        wanted = expected[f"logits{i}"]
        assert np.max(np.abs(oracle(prompt).logits - wanted)) <= RELATIVE * np.max(np.abs(wanted))


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
    "qwen3_next": ("b and a exchanged", lambda m: with_rates_exchanged(m)),
    "kimi_linear": ("lower bound of the decay", lambda m: with_params(m, lower_bound=-5.0)),
    "lfm2": ("taps reversed", lambda m: with_params(m, weight=m.mixers[0].params.weight.flip(-1))),
}


def with_mixer(model: Model, change: Any, place: int = 0) -> Model:
    """The model with another config of one mixer of its first block."""
    block = model.blocks[0]
    mixers = list(block.mixers)
    mixers[place] = replace(mixers[place], config=change(mixers[place].config))
    return replace(model, blocks=(replace(block, mixers=tuple(mixers)), *model.blocks[1:]))


def with_params(model: Model, **changes: Any) -> Model:
    block = model.blocks[0]
    mixer: Any = block.mixers[0]
    changed = replace(block, mixers=(replace(mixer, params=mixer.params._replace(**changes)),))
    return replace(model, blocks=(changed, *model.blocks[1:]))


def with_rates_exchanged(model: Model) -> Model:
    """What a reader gives that takes the rows of `in_proj_ba` for a and b."""
    block = model.blocks[0]
    mixer: Any = block.mixers[0]
    changed = replace(block, mixers=(replace(mixer, a_proj=mixer.b_proj, b_proj=mixer.a_proj),))
    return replace(model, blocks=(changed, *model.blocks[1:]))


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_difference_of_formula_is_caught(folders: Path, name: str) -> None:
    _, plant = PLANTED[name]
    model = plant(load(folders / name, torch.float64))
    wanted = load_file(folders / name / "expected.safetensors")["logits0"]
    with torch.no_grad():
        came = stepped(model, PROMPTS[0], TorchOperations())
    assert np.max(np.abs(came - wanted[-len(came) :])) > 100 * RELATIVE * np.max(np.abs(wanted))
