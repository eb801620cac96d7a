"""How many launches a step makes, counted without a device; what waits for a value or follows its shape cannot be counted."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

LAYER = {
    "plain": [6, 0],  # norm, projection, convolution, recurrence, gated norm, projection
    "snapshots": [6, 0],
    "joint": [6, 0],
    "joint, 2 drafts": [5, 2],  # the row that advances the state is scanned by itself; 26 rows are cuBLAS's
    "replay": [6, 0],
    "buffer": [6, 0],
    "tree": [6, 0],
    "tree of 63": [5, 17],  # too wide for one launch: what was accepted is gathered, scanned, and the window cached; cuBLAS
    "replay, 2 drafts": [7, 15],
}
"""Kernels and operations of PyTorch in a layer of Mamba-2, in the fast mode."""
STEP = {
    "plain": [4, 23],  # norm, logits, acceptance, tokens
    "snapshots": [5, 68],
    "joint": [5, 60],
    "joint, 2 drafts": [5, 71],
    "replay": [6, 38],
    "buffer": [6, 28],
    "tree": [7, 46],
    "tree of 63": [7, 62],
    "replay, 2 drafts": [6, 79],
}
"""The same beside the layers, whatever their number: at most."""
DRAFTING = {"n-gram": 81, "lookup": 76, "model, chain of 4": 170, "model, tree A": 216}
"""All launches of a proposal, the model one layer of Mamba-2: at most."""


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    script = Path(__file__).with_name("fast_launches.py")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("method", LAYER)
def test_a_layer_makes_these_launches_and_no_other(method: str, found: dict[str, Any]) -> None:
    assert found[method]["layer"] == LAYER[method]


@pytest.mark.parametrize("method", STEP)
def test_beside_the_layers_a_step_makes_at_most_so_many(method: str, found: dict[str, Any]) -> None:
    kernels, operations = found[method]["step"]
    assert (kernels <= STEP[method][0], operations <= STEP[method][1]) == (True, True), found[method]["step"]


@pytest.mark.parametrize("drafter", DRAFTING)
def test_drafting_makes_at_most_so_many(drafter: str, found: dict[str, Any]) -> None:
    assert found[drafter] <= DRAFTING[drafter]
