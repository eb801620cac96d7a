"""Folders are checked before a tensor is read: config by name and field, tensors by name and shape, memory by bytes."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from ssmspec_fast.engine.state import tensors
from ssmspec_fast.errors import (
    BrokenFile,
    ConfigRefused,
    MemoryRefused,
    MissingTensor,
    TensorMismatch,
    UnknownTensor,
    UnsafeFile,
)
from ssmspec_fast.families import FAMILIES, find
from ssmspec_fast.models.checkpoint import Plan, load, open_checkpoint

from .models import NAMES, Drawn, data, drawn


def written(home: Path, name: str, shards: int = 1) -> Path:
    """A folder of a drawn model, in one file or several."""
    config, extra = data(name)
    family, read = find(config, extra)
    plan, source = Plan(torch.float32), Drawn(torch.float32, 0)
    family.assemble(read, plan)
    held = {key: source.read(key, shape, torch.float32) for key, shape in plan.shapes.items()}
    home.mkdir(exist_ok=True)
    (home / "config.json").write_text(json.dumps(config))
    if extra is not None:
        (home / "mamba_config.json").write_text(json.dumps(extra))
    if shards == 1:
        save_file(held, home / "model.safetensors")
        return home
    files = {key: f"model-{i % shards:05d}.safetensors" for i, key in enumerate(held)}
    for file in set(files.values()):
        save_file({key: held[key] for key in held if files[key] == file}, home / file)
    (home / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    return home


def changed(home: Path, **fields: Any) -> Path:
    config = json.loads((home / "config.json").read_text()) | fields
    (home / "config.json").write_text(json.dumps(config))
    return home


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shards", [1, 3])
def test_a_folder_loads_to_the_tensors_that_it_holds(tmp_path: Path, name: str, shards: int) -> None:
    came, wanted = load(written(tmp_path / "m", name, shards)), drawn(name)
    pairs = list(zip(tensors(came), tensors(wanted), strict=True))
    assert pairs
    assert all(torch.equal(a, b) for a, b in pairs)


def ssm(**more: Any) -> dict[str, Any]:
    """The layers of Mamba-3, changed."""
    return {"ssm_cfg": {"layer": "Mamba3", "headdim": 12} | more}


@pytest.mark.parametrize(
    ("name", "fields", "words"),
    [
        ("mamba2", {"rope_of_hydra": 3}, "rope_of_hydra"),
        ("mamba2", {"hidden_act": "tanh"}, "hidden_act is 'tanh'"),
        ("mamba2", {"num_heads": "six"}, "num_heads is 'six'"),
        ("mamba2", {"num_heads": None}, "num_heads is missing"),
        ("mamba2", {"time_step_limit": [3.0, 1.0]}, "time_step_limit"),
        ("mamba2", {"expand": 3}, "expand"),
        ("llama", {"sliding_window": 64}, "sliding_window"),
        ("llama", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "rope_type is 'yarn'"),
        ("llama3", {"rope_parameters": {"rope_type": "llama3", "factor": 2.0}}, "high_freq_factor"),
        ("nemotron_h", {"layers_block_type": ["mamba", "moe"]}, "mixture of experts"),
        ("qwen3_5", {"layer_types": ["linear_attention", "sliding"]}, "layer_types"),
        ("qwen3_5", {"model_type": "qwen3_5_moe_text", "num_experts": 8}, "field num_experts makes it a mixture of experts"),
        ("kimi_linear", {"mla_use_nope": False}, "mla_use_nope is False; supported: True"),
        ("kimi_linear", {"q_lora_rank": 8}, "q_lora_rank is 8; supported: None"),
        ("kimi_linear", {"num_key_value_heads": 1}, "num_key_value_heads is 1; supported: 3"),
        ("kimi_linear", {"kv_lora_rank": None}, "kv_lora_rank is missing"),
        ("kimi_linear", {"layer_types": ["linear_attention"] * 2}, "layer_types is"),
        ("kimi_linear", {"mlp_layer_types": ["dense", "sparse", "sparse"]}, r"layers \[1, 2\] .* mixtures of experts"),
        ("kimi_linear", {"mlp_layer_types": None, "num_experts": 8, "first_k_dense_replace": 1}, r"layers \[1, 2\]"),
        ("kimi_linear", {"linear_attn_config": {"kda_layers": [1, 2], "full_attn_layers": [3]}}, "layer_types does"),
        ("kimi_linear", {"linear_attn_config": {"kda_layers": [0, 1, 2], "full_attn_layers": []}}, "from 1 on"),
        (
            "kimi_linear",
            {"linear_attn_config": {"gate_lower_bound": 5.0}},
            "gate_lower_bound is 5.0; it must be a number",
        ),
        (
            "kimi_linear",
            {"linear_attn_config": {"gate_rank": 5}},
            "the unknown field gate_rank",
        ),
        ("kimi_linear", {"num_nextn_predict_layers": 1}, "num_nextn_predict_layers"),
        ("kimi_linear", {"hidden_act": "situ"}, "hidden_act is 'situ'"),
        ("lfm2", {"conv_of_hydra": 3}, "unknown field conv_of_hydra"),
        ("lfm2", {"conv_L_cache": 1}, "conv_L_cache is 1; it must be a whole number from 2"),
        ("lfm2", {"layer_types": ["conv", "mamba", "conv", "conv"]}, "layer_types is"),
        ("lfm2", {"full_attn_idxs": [2]}, r"full_attn_idxs is \[2\]; it must be the layers that layer_types calls"),
        ("lfm2", {"conv_dim": 48}, "conv_dim is 48; supported: 24"),
        ("lfm2", {"rope_parameters": None}, "rope_theta is missing"),
        ("lfm2", {"tie_embedding": False, "tie_word_embeddings": True}, "tie_embedding is False; it must be as"),
        ("lfm2", {"block_use_swiglu": False}, "block_use_swiglu is False; supported: True"),
        ("lfm2", {"model_type": "lfm2_moe", "num_experts": 8}, "field num_experts makes it a mixture of experts"),
        ("qwen3_next", {"num_experts": 8}, r"num_experts is 8 and makes layers \[0, 1, 2\]"),
        ("qwen3_next", {"num_experts": None}, r"num_experts is 512 and makes layers"),
        ("qwen3_next", {"num_experts": 8, "decoder_sparse_step": 2, "mlp_only_layers": [0]}, r"makes layers \[1\]"),
        ("qwen3_next", {"experts_of_hydra": 3}, "unknown field experts_of_hydra"),
        ("mamba3", {"ssm_cfg": {"layer": "Mamba2"}}, "model_type is None"),
        ("mamba3", {"d_conv": 4}, "unknown field d_conv"),
        (
            "mamba3",
            ssm(use_rope=True),
            "mamba3_lm: ssm_cfg.*unknown field use_rope",
        ),
        ("mamba3", {"ssm_cfg": {"layer": "Mamba3"}}, "headdim 64 do not divide expand d_model 48"),
        (
            "mamba3",
            ssm(rope_fraction=0.25),
            "rope_fraction is 0.25; supported",
        ),
        ("mamba3", ssm(d_state=7), "d_state is 7; it must be even"),
        ("mamba3", ssm(d_state=2), "d_state is 2; it must be 4 or more"),
        ("mamba3", ssm(expand=1e300), r"expand is 1e\+300; it must be such"),
        (
            "mamba3",
            ssm(is_mimo=True, is_outproj_norm=True),
            "is_outproj_norm is True; it must be false with is_mimo",
        ),
        ("mamba3", {"attn_layer_idx": [1]}, r"attn_layer_idx is \[1\]; supported: None, \[\]"),
        ("mamba3", {"tie_word_embeddings": False}, "tie_word_embeddings is False; supported: True"),
        ("mamba", {"model_type": "rwkv"}, "model_type is 'rwkv'"),
        ("gpt_neox", {"hidden_act": "gelu_fast"}, "hidden_act"),
        ("bamba", {"mamba_d_head": 9}, "mamba_d_head"),
        ("mamba_in_llama", {"num_hidden_layers": 4}, "n_layer"),
        ("mamba2", {"model_type": ["mamba2"]}, "model_type is"),
        ("mamba2", {"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000; it must be a whole number from 1"),
        ("llama", {"rope_parameters": [1]}, "rope_parameters is"),
        ("llama", {"rope_parameters": {"rope_theta": "big"}}, "rope_theta"),
        ("llama", {"rope_parameters": {"partial_rotary_factor": 4.0}}, "a fraction, above 0"),
        ("mamba2", {"time_step_limit": 5}, "time_step_limit is 5"),
        ("mamba2", {"eos_token_id": "x"}, "eos_token_id is 'x'"),
        ("mamba2", {"eos_token_id": 32.9}, "eos_token_id is 32.9"),
        ("mamba2", {"eos_token_id": 10**6}, "a token of the vocabulary"),
        ("mamba2", {"layer_norm_epsilon": -1.0}, "layer_norm_epsilon is -1.0"),
        ("mamba2", {"n_groups": 4}, "n_groups 4 do not divide num_heads 6"),
        ("bamba", {"attn_layer_indices": [77]}, "attn_layer_indices"),
        ("falcon_h1", {"ssm_multipliers": ["a"] * 5}, "ssm_multipliers is 'a'"),
        ("qwen3_5", {"layer_types": [[1]]}, "layer_types is"),
        (
            "qwen3_5",
            {"partial_rotary_factor": 0.25},
            "0.5 in rope_parameters, 0.25 in partial_rotary_factor; these",
        ),
        ("gpt_neox", {"rotary_pct": 0.75}, "these must be equal"),
        ("granite_hybrid", {"num_local_experts": 8}, "num_local_experts is 8; it must be 0: experts are not supported"),
        ("granite_hybrid", {"num_local_experts": None}, "num_local_experts is 8; it must be 0"),
        ("granite_hybrid", {"logits_scaling": 0}, "logits_scaling is 0.0; it must be a number above 0"),
        ("granite_hybrid", {"position_embedding_type": "alibi"}, "position_embedding_type is 'alibi'; supported"),
        ("granite_hybrid", {"layer_types": ["mamba", "moe", "mamba"]}, "layer_types is"),
        ("nemotron_h", {"layers_block_type": 5}, "layers_block_type is 5"),
        ("nemotron_h", {"num_hidden_layers": 77}, "num_hidden_layers is 77, but"),
        ("nemotron_h", {"num_hidden_layers": "4"}, "num_hidden_layers is '4'"),
        ("nemotron_h", {"expand": "two"}, "expand is 'two'"),
        (
            "nemotron_h",
            {"rms_norm_eps": 0.001, "layer_norm_epsilon": 1e-5},
            "they say the same thing, so one of them is wrong",
        ),
        ("nemotron_h", {"rms_norm_eps": [1], "layer_norm_epsilon": 1e-5}, "rms_norm_eps is"),
        ("nemotron_h", {"hybrid_override_pattern": "M"}, "name other blocks; one of them is wrong"),
        ("llama", {"rope_parameters": {"rope_type": ["yarn"], "rope_theta": 1e4}}, "rope_type is"),
        ("llama", {"rope_parameters": {"type": 5, "rope_theta": 1e4}}, "rope_type is 5; it must be a text"),
        ("llama", {"rms_norm_eps": 1e308}, "rms_norm_eps is 1e.308; it must be a number from 0 to 0.1"),
    ],
)
def test_a_config_is_refused_by_name_and_field(name: str, fields: dict[str, Any], words: str) -> None:
    config, extra = data(name)
    with pytest.raises(ConfigRefused, match=words):
        find(config | fields, extra)


def test_the_config_of_a_folder_is_read_first(tmp_path: Path) -> None:
    home = changed(written(tmp_path / "m", "mamba2"), hidden_act="tanh")
    (home / "model.safetensors").unlink()
    with pytest.raises(ConfigRefused, match="hidden_act is 'tanh'"):
        open_checkpoint(home)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("mamba2", {"rope_of_hydra": 3}),
        ("kimi_linear", {"linear_attn_config": {"rope_of_hydra": 5}}),
        ("mamba3", ssm(d_state=8, rope_of_hydra=True)),
        ("mamba_in_llama", {}),
    ],
)
def test_an_unknown_field_is_accepted_by_its_name_alone(tmp_path: Path, name: str, fields: dict[str, Any]) -> None:
    """Wherever it lies; another unknown field beside it is refused, and so is a name that is of no unknown field."""
    home = changed(written(tmp_path / "m", name), **fields)
    if not fields:
        beside = json.loads((home / "mamba_config.json").read_text()) | {"rope_of_hydra": 1}
        (home / "mamba_config.json").write_text(json.dumps(beside))
    with pytest.raises(ConfigRefused, match=r"unknown field rope_of_hydra; .* accept it by name"):
        open_checkpoint(home)
    assert len(load(home, accept=["rope_of_hydra"]).blocks) == len(drawn(name).blocks)
    changed(home, heads_of_hydra=9)
    with pytest.raises(ConfigRefused, match="the unknown field heads_of_hydra; "):
        open_checkpoint(home, ["rope_of_hydra"])
    both = ["rope_of_hydra", "heads_of_hydra"]
    with pytest.raises(ConfigRefused, match="vocab_size cannot be accepted: vocab_size is read"):
        open_checkpoint(home, [*both, "vocab_size"])
    with pytest.raises(ConfigRefused, match="rope_of_hidra cannot be accepted: rope_of_hidra has no effect"):
        open_checkpoint(home, [*both, "rope_of_hidra"])


def test_code_of_a_folder_is_not_run(tmp_path: Path) -> None:
    """auto_map names code; it is neither imported nor an error. A pickle is refused, unread."""
    home = changed(written(tmp_path / "m", "mamba2"), auto_map={"AutoModel": "modeling.Evil"})
    (home / "modeling.py").write_text("raise SystemExit('ran')")
    assert load(home).config.family == "mamba2"
    (home / "model.safetensors").unlink()
    mark = tmp_path / "ran"

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (mark,)

    (home / "pytorch_model.bin").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(UnsafeFile, match=r"pytorch_model\.bin, which can run code"):
        open_checkpoint(home)
    assert not mark.exists()


def test_tensors_are_refused_by_name(tmp_path: Path) -> None:
    home = written(tmp_path / "m", "mamba2")
    from safetensors.torch import load_file

    held = load_file(home / "model.safetensors")
    name = "backbone.layers.1.mixer.D"
    for change, error, words in (
        ({name: None}, MissingTensor, name),
        ({"backbone.layers.9.extra": torch.zeros(2)}, UnknownTensor, r"backbone\.layers\.9\.extra"),
        ({name: torch.zeros(7)}, TensorMismatch, r"D has shape \(7,\), but the config implies \(6,\)"),
        ({name: torch.zeros(6, dtype=torch.int64)}, TensorMismatch, "stored as I64"),
    ):
        save_file({k: v for k, v in (held | change).items() if v is not None}, home / "model.safetensors")
        with pytest.raises(error, match=words):
            open_checkpoint(home)


def test_broken_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BrokenFile, match=r"config\.json is missing"):
        open_checkpoint(tmp_path)
    home = written(tmp_path / "m", "mamba2", shards=2)
    index = json.loads((home / "model.safetensors.index.json").read_text())
    for value, words in (("../other.safetensors", "not in the folder"), ("gone.safetensors", "lacks gone")):
        name = next(iter(index["weight_map"]))
        (home / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index["weight_map"] | {name: value}}))
        with pytest.raises(BrokenFile, match=words):
            open_checkpoint(home)
    home = written(tmp_path / "n", "mamba2")
    whole = (home / "model.safetensors").read_bytes()
    for cut in (whole[:100], whole[:-8], b"", b"\xff" * 64):
        (home / "model.safetensors").write_bytes(cut)
        with pytest.raises(BrokenFile, match="truncated"):
            open_checkpoint(home)
    (home / "config.json").write_text("[1]")
    with pytest.raises(BrokenFile, match="not an object"):
        open_checkpoint(home)


def test_memory_is_counted_before_a_tensor_is_read(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(written(tmp_path / "m", "llama"))
    model = checkpoint.load()
    bytes_held = sum(x.numel() * x.element_size() for x in {id(x): x for x in tensors(model)}.values())
    peak = checkpoint.peak_bytes(torch.float32)
    assert bytes_held <= peak
    assert checkpoint.peak_bytes(torch.bfloat16) < peak
    with pytest.raises(MemoryRefused, match=f"{peak:,} bytes at its peak, but the limit is {peak - 1:,}"):
        checkpoint.load(torch.float32, memory=peak - 1)
    assert checkpoint.load(torch.float32, memory=peak).config == model.config


def test_every_family_is_drawn_here() -> None:
    assert {data(name)[0].get("model_type", "mamba3_lm") for name in NAMES} == set(FAMILIES)
