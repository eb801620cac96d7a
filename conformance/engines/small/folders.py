"""Write a small random checkpoint, and the drafter beside it."""

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from ssmspec_ref.shapes import Array

from .configs import CONFIGS
from .shapes import DRAWN, tensors

NOISE = 0.05
"""Noise in the drafter's matrices, relative to their size."""
RECURRENT = {"llama": "mamba2"}
"""Of a target whose state is keys and values alone: a drafter whose state must be put back after a rejection
(`FAMILY-recurrent`). Its own tokens are those of the target six times in ten."""
CYCLE, LOOPING = 4, 0.3
"""The head favours the previous token of a cycle of this many tokens, with this weight added to random weights. Greedy text
therefore enters loops and leaves them, and drafts from its own tokens are accepted often but not always."""


def before(tokens: int) -> Array:
    """The previous token of each token in its cycle."""
    first = np.arange(tokens) // CYCLE * CYCLE
    return np.minimum(first + (np.arange(tokens) - first - 1) % CYCLE, tokens - 1)


def make(family: str, folder: Path, seed: int = 0, noise: float = 0.0, **changed: Any) -> Path:
    """Write one checkpoint; its folder. `changed` are fields of its config: with `dtype` "bfloat16" it is stored in that."""
    config = CONFIGS[family] | changed
    rng, other = np.random.default_rng(seed), np.random.default_rng(seed + 1)
    made: dict[str, Array] = {}
    table = np.zeros(0)
    for name, shape, how in tensors(config):
        values = DRAWN[how](rng, shape)
        table = values if how == "embedding" else table
        if how == "head":
            values = values + LOOPING * table[before(len(table))]
        if noise and how in ("matrix", "head"):
            values = values + noise * np.std(values) * other.normal(0, 1, shape)
        made[name] = values.astype(np.float32)
    folder.mkdir(parents=True, exist_ok=True)
    stored = {name: STORED[config["dtype"]](values) for name, values in made.items()}
    home = import_module("safetensors")
    told = {name: home.TensorSpec(dtype=config["dtype"], shape=x.shape, data_ptr=x.ctypes.data, data_len=x.nbytes)
            for name, x in stored.items()}  # fmt: skip
    home.serialize_file(told, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    return folder


def upper(values: Array) -> Array:
    """bf16: the upper half of an fp32 number, rounded to the nearest, ties to even."""
    whole = np.ascontiguousarray(values, "<f4").view("<u4")
    return ((whole + 0x7FFF + ((whole >> 16) & 1)) >> 16).astype("<u2")


STORED: dict[str, Callable[[Array], Array]] = {
    "float32": lambda values: np.ascontiguousarray(values, "<f4"),
    "bfloat16": upper,
}
"""Numbers as they are stored, by dtype."""


def pair(family: str, folder: Path, seed: int = 0, **changed: Any) -> tuple[Path, Path]:
    """A target and its drafter."""
    target = make(family, folder / family, seed, **changed)
    if family in RECURRENT:
        make(RECURRENT[family], folder / f"{family}-recurrent", seed, **changed)
    return target, make(family, folder / f"{family}-drafter", seed, NOISE, **changed)
