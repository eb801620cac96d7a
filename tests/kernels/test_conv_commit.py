"""The commit of the convolution's window, against the oracle, its bytes, and planted faults."""

from types import ModuleType

import numpy as np
import pytest
import torch

from ssmspec_kernels.conv import conv_commit
from tests.kernels.conv_cases import Options, case
from tests.kernels.mutants import caught, mutated
from tests.kernels.tensors import BYTES, Kept, check_bytes, doubles, watch

CASES = [
    Options(replay="advanced"),
    Options(replay="path", index=torch.int64, seed=1),
    Options(replay="advanced", c=3, w=2, state="bf16", io="bf16", seed=2),
    Options(replay="path", c=16, w=3, state="fp32", io="bf16", padding=False, seed=3),
    Options(replay="path", c=9, w=8, state="fp16", io="fp16", seed=4),
    Options(replay="advanced", b=3, c=21, w=5, state="bf16", io="fp32", seed=5),
]


def check(module: ModuleType, o: Options) -> None:
    """One call judged in full: state, bystanders, bytes."""
    made = case(o)
    accepted = {"path": made.extra.get("path"), "advanced": made.extra.get("advanced")}
    u = made.extra["previous"]
    kept = Kept(**made.tensors)
    with watch(**made.tensors) as seen:
        module.conv_commit(made.M, u, **accepted, slots=made.slots, block_c=8)
    kept.check(M=made.named)
    assert np.array_equal(doubles(made.M[made.named]), made.M0)
    expected = sum(module.traffic_bytes(1, o.c, o.w, int(a), state=BYTES[o.state], io=BYTES[o.io]) for a in made.taken)
    check_bytes(seen, expected, ("M", "previous"), ("slots", "path", "advanced"))


@pytest.mark.parametrize("o", CASES, ids=str)
def test_a_commit_equals_the_oracle_and_touches_nothing_else(o: Options) -> None:
    check(conv_commit, o)


def test_a_state_narrower_than_its_inputs_is_rounded_once() -> None:
    M, u = torch.zeros(1, 5, 4, dtype=torch.bfloat16), torch.randn(1, 6, 5)
    conv_commit.conv_commit(M, u, advanced=torch.tensor([6]))
    assert torch.equal(M[0], u[0, 2:].T.to(torch.bfloat16))


MUTANTS = [
    ("conv_commit_kernel", "if slot >= 0:", "if slot > 0:"),
    ("conv_commit_kernel", "b * stride_u_b", "slot * stride_u_b"),
    ("conv_commit_kernel", "b * stride_path_b", "slot * stride_path_b"),
    ("conv_commit_kernel", "slot * stride_M_s", "b * stride_M_s"),
    ("conv_commit_kernel", "            end = tokens\n", "            end = tokens - 1\n"),
    ("conv_commit_kernel", "inside = c < C", "inside = c <= C"),
    ("conv_commit_kernel", "        store_columns(state, window, c, inside, stride_M_c, W, BLOCK_C, BLOCK_W)\n", ""),
    ("load_columns", "i = first + k", "i = first + k + 1"),
    ("load_columns", "node = i - W", "node = i - W + 1"),
    ("load_columns", "node * stride_u_t", "node * stride_M_c"),
    ("load_columns", "mask=inside & has_state & (i < W)", "mask=inside & has_state & (i <= W)"),
    ("load_columns", "tl.where(i < W, old, new)", "tl.where(i <= W, old, new)"),
]


@pytest.mark.parametrize(("at", "old", "new"), MUTANTS)
def test_planted_faults_are_caught(at: str, old: str, new: str) -> None:
    assert caught(mutated(conv_commit, old, new, at=at), check, CASES)
