"""LFM2: what its config says, the judge's reading of its checkpoints, and the columns of a rejected draft, planted."""

from pathlib import Path
from typing import Any

import pytest
import torch

from conformance.engines.checkpoint import read
from conformance.engines.oracle import Oracle
from ssmspec_fast.engine.state import Cache, RecurrentState, new_pools
from ssmspec_fast.families import find
from ssmspec_fast.layers.shortconv import ShortConvConfig
from ssmspec_fast.methods.activation_replay import ActivationReplay
from ssmspec_fast.methods.snapshots import Snapshots
from ssmspec_fast.models.checkpoint import load
from ssmspec_fast.models.config import MLPConfig

from .drafters import NODES, Skilled
from .folders import PROMPTS
from .models import drawn, prompts
from .rollbacks import KeepsRejectedState
from .runs import apart, emitted, engine
from .test_checkpoint import written
from .test_transformers import stepped

OLDER: dict[str, Any] = {
    "model_type": "lfm2", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
    "num_heads": 32, "vocab_size": 65536, "block_dim": 2048, "conv_dim": 2048, "conv_dim_out": 2048, "conv_L_cache": 3,
    "conv_bias": False, "norm_eps": 1e-5, "block_norm_eps": 1e-5, "block_ff_dim": 12288, "block_auto_adjust_ff_dim": True,
    "block_ffn_dim_multiplier": 1.0, "block_multiple_of": 256, "block_use_swiglu": True, "use_pos_enc": True,
    "full_attn_idxs": [2, 5, 8, 10, 12, 14], "tie_embedding": True, "rope_theta": 1000000.0, "eos_token_id": 7,
    "max_position_embeddings": 128000,
}  # fmt: skip
"""The older names of fields, at the sizes of LFM2-1.2B."""


def test_the_older_names_of_fields_are_read() -> None:
    config = find(OLDER)[1]
    conv = [i for i, mixer in enumerate(config.mixers) if mixer == ShortConvConfig(2048, 3)]
    assert conv == [0, 1, 3, 4, 6, 7, 9, 11, 13, 15]
    assert {block.mlp for block in config.blocks} == {MLPConfig(8192)}
    assert config.tied
    assert config.mixers[2].rotary.theta == 1e6  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("fields", "inner"),
    [
        ({"block_auto_adjust_ff_dim": False}, 12288),
        ({"block_ffn_dim_multiplier": 1.3, "block_multiple_of": 512}, 10752),
        ({"block_ffn_dim_multiplier": None, "block_ff_dim": 100}, 66),
        ({"block_ff_dim": 100, "block_multiple_of": 7}, 70),
    ],
)
def test_the_width_of_the_mlp_is_that_of_transformers(fields: dict[str, Any], inner: int) -> None:
    """Two thirds, times the factor, each cut to a whole number, rounded up to the multiple."""
    assert find(OLDER | fields)[1].blocks[0].mlp == MLPConfig(inner)


@pytest.mark.parametrize("name", ["lfm2", "lfm2-biased"])
def test_the_reader_of_the_judge_gives_the_same_logits(tmp_path: Path, name: str) -> None:
    """Two readers and two implementations of one folder, in float64."""
    folder = written(tmp_path / "m", name)
    oracle, model = Oracle(read(folder)), load(folder, torch.float64)
    for prompt in PROMPTS:
        assert apart(stepped(model, prompt), oracle(prompt).logits) <= 1e-12


@pytest.mark.parametrize("method", [Snapshots, ActivationReplay, KeepsRejectedState])
def test_columns_of_a_rejected_draft_that_stay_change_the_text(method: type) -> None:
    model, given = drawn("lfm2"), prompts(5, (3, 8))
    wanted = emitted(engine(model), given, 24)
    found = emitted(engine(model, Skilled(wanted, NODES, 0.5), method()), given, 24)
    assert (found == wanted) is (method is not KeepsRejectedState)


def test_its_state_is_all_that_a_layer_stores() -> None:
    """Two columns of each channel, and a window of no channels."""
    made, other = new_pools(drawn("lfm2"), 3, 8).layers[:2]
    assert isinstance(made, RecurrentState)
    assert made.S.shape == (3, 24, 2)
    assert made.M.numel() == 0
    assert isinstance(other, Cache)
