"""A target and its drafter, trained for a few steps into a folder: acceptance is neither none nor all."""

import dataclasses
from pathlib import Path

import numpy as np

from ssmspec_fast.training import tokens
from ssmspec_fast.training.loop import train
from ssmspec_fast.training.recipes import RECIPES, mamba2

TEXT = b"def mean(values):\n    return sum(values) / len(values)\n\n\ndef first(values):\n    return values[0]\n\n\n\0"
SIZES = {"mamba2": mamba2(32, 2, 8, head_dim=8, num_heads=8), "mamba2-drafter": mamba2(16, 1, 4, head_dim=8, num_heads=4)}


def pair(folder: Path, steps: int = 20) -> Path:
    """The folder with checkpoints `mamba2` and `mamba2-drafter`."""
    data = np.tile(np.frombuffer(TEXT, np.uint8), 20)
    for recipe in RECIPES:
        if recipe.name in SIZES:
            small = dataclasses.replace(
                recipe, config=SIZES[recipe.name], rows=2, length=64, peak=1e-2, warmup=5, stages=(1.0,)
            )
            train(small, data, data, folder, "cpu", steps)
            tokens.save(tokens.bytes_only(), folder / recipe.name)
    return folder
