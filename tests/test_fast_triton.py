"""The engine over the Triton kernels in the repaired interpreter: what reaches a kernel is what it should be.

The kernels themselves are judged elsewhere. Here a prompt is prefilled and continued in fp32, and compared with float64.
Rounding is 2^-24 an operation, some hundred operations deep, with sensitivities of these small models below 10: 1e-4 relative
bounds it with room, and an argument in another's place, or none, moves logits by more than 1e-2, as the planted one does.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")
RELATIVE = 1e-4


def judged(*arguments: str) -> list[dict[str, Any]]:
    script = Path(__file__).with_name("fast_on_kernels.py")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1"}
    command = [sys.executable, str(script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_logits_over_the_kernels_equal_those_of_float64() -> None:
    for found in judged("--methods=", "mamba2", "qwen3_5"):
        fast, bitwise = found["float64"]
        assert fast <= RELATIVE
        assert bitwise <= RELATIVE


def test_trees_over_the_kernels_of_attention_emit_plain_tokens() -> None:
    (found,) = judged("--methods=tree", "--budget=3", "llama")
    assert found["methods"] == found["fast"] == {"tree": True}


def test_a_planted_forgotten_argument_is_caught() -> None:
    (found,) = judged("--methods=", "--plant", "mamba")
    assert min(found["float64"]) > 100 * RELATIVE


def test_states_behind_fused_windows_are_those_of_plain_decoding() -> None:
    for found in judged("--settled", "--methods=activation replay,replay buffer of two windows", "mamba2"):
        assert found["settled"] <= RELATIVE
