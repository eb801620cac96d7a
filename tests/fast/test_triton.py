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


RUNS = (
    ("--methods=", "mamba2", "qwen3_5", "kimi_linear", "lfm2", "mamba3", "mamba3-mimo"),
    ("--methods=tree", "--budget=3", "llama"),
    ("--settled", "--methods=activation replay,replay buffer of two windows", "mamba2"),
    ("--settled", "--methods=activation replay,tree", "kimi_linear"),
    ("--settled", "--methods=snapshots,joint,activation replay,tree,replay buffer of two windows", "lfm2", "mamba3"),
    ("--methods=", "--plant=D", "mamba"),
    ("--settled", "--methods=joint", "--plant=gates", "kimi_linear"),
)


def printed(*arguments: str) -> list[dict[str, Any]]:
    """The lines of the script."""
    script = Path(__file__).with_name("on_kernels.py")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, str(script), *arguments], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """What the script prints for all runs, by family and kind, from one process: the planted fault is its last run."""
    lines = printed(*[argument for run in RUNS for argument in ("+", *run)][1:])
    return {f"{line['name']}, {line.get('method', 'logits')}": line for line in lines}


@pytest.mark.parametrize("name", ["mamba2", "qwen3_5", "kimi_linear", "lfm2", "mamba3", "mamba3-mimo"])
def test_logits_over_the_kernels_equal_those_of_float64(found: dict[str, Any], name: str) -> None:
    fast, bitwise = found[f"{name}, logits"]["float64"]
    assert fast <= RELATIVE
    assert bitwise <= RELATIVE


def test_trees_over_the_kernels_of_attention_emit_plain_tokens(found: dict[str, Any]) -> None:
    line = found["llama, logits"]
    assert line["methods"] == line["fast"] == {"tree": True}


@pytest.mark.parametrize("method", ["activation replay", "replay buffer of two windows"])
def test_states_behind_fused_windows_are_those_of_plain_decoding(found: dict[str, Any], method: str) -> None:
    assert found[f"mamba2, {method}"]["settled"] <= RELATIVE


@pytest.mark.parametrize("method", ["activation replay", "tree"])
def test_states_that_one_launch_commits_are_those_of_plain_decoding(found: dict[str, Any], method: str) -> None:
    assert found[f"kimi_linear, {method}"]["settled"] <= RELATIVE


@pytest.mark.parametrize("method", ["snapshots", "joint", "activation replay", "tree", "replay buffer of two windows"])
@pytest.mark.parametrize("name", ["lfm2", "mamba3"])
def test_states_by_every_method_are_those_of_plain_decoding(found: dict[str, Any], name: str, method: str) -> None:
    """The products that a short convolution keeps, and the four pieces of Mamba-3's state. Their layers have a convolution of
    no channels in front, which launches nothing."""
    assert found[f"{name}, {method}"]["settled"] <= RELATIVE


def test_planted_gates_of_another_token_are_caught(found: dict[str, Any]) -> None:
    assert found["kimi_linear, joint"]["settled"] > 100 * RELATIVE


def test_a_planted_forgotten_argument_is_caught(found: dict[str, Any]) -> None:
    assert min(found["mamba, logits"]["float64"]) > 100 * RELATIVE


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["kimi_linear", "lfm2", "mamba3"])
def test_many_windows_by_every_method_emit_plain_tokens(name: str) -> None:
    """24 tokens, bit for bit in the bitwise mode; greedy choices that are no near ties in the fast one."""
    (line,) = printed("--budget=24", name)
    assert set(line["methods"].values()) == set(line["fast"].values()) == {True}
