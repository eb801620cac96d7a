"""Qwen3-Next in float64: its maps, which lie together by key head, against Qwen3.5 with the same numbers apart."""

import json
from pathlib import Path

import numpy as np
import pytest

from conformance.engines import small
from conformance.engines.checkpoint import NoOracle, read
from conformance.engines.checkpoint.delta import qwen3_5
from conformance.engines.checkpoint.tensors import Tensors
from conformance.engines.oracle import Oracle

IDS = (5, 9, 9, 31, 2, 63, 7)


def test_maps_that_lie_together_are_those_of_qwen3_5_apart(tmp_path: Path) -> None:
    """Row by row: head, then q, k, values and z of its value heads; b, then a."""
    folder = small.make("qwen3_next", tmp_path / "next")
    config, tensors = json.loads((folder / "config.json").read_text()), Tensors(folder)
    heads, values, size, width = (
        config[f"linear_{x}"] for x in ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim")
    )
    of_each = values // heads
    for layer in (0, 2):
        p = f"model.layers.{layer}.linear_attn.in_proj_"
        rows, gates = iter(tensors.found.pop(f"{p}qkvz.weight")), iter(tensors.found.pop(f"{p}ba.weight"))
        apart: dict[str, list[list[object]]] = {name: [[] for _ in range(heads)] for name in ("q", "k", "v", "z", "b", "a")}
        for head in range(heads):
            for name, many in (("q", size), ("k", size), ("v", of_each * width), ("z", of_each * width)):
                apart[name][head] += [next(rows) for _ in range(many)]
            for name in "ba":
                apart[name][head] += [next(gates) for _ in range(of_each)]
        whole = {name: [row for of_head in of_heads for row in of_head] for name, of_heads in apart.items()}
        tensors.found[f"{p}qkv.weight"] = np.array(whole["q"] + whole["k"] + whole["v"])
        tensors.found |= {f"{p}{name}.weight": np.array(whole[name]) for name in ("z", "a", "b")}
    expected = Oracle(qwen3_5(config, tensors))(IDS).logits
    np.testing.assert_array_equal(Oracle(read(folder))(IDS).logits, expected)


def test_experts_have_no_oracle(tmp_path: Path) -> None:
    folder = small.make("qwen3_next", tmp_path / "next", num_experts=4, mlp_only_layers=[0, 1])
    with pytest.raises(NoOracle, match="mixtures of experts"):
        read(folder)
