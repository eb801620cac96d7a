"""The convolution's kernel for one token, against the oracle, its bytes, what it must leave alone, and planted faults."""

from types import ModuleType

import numpy as np
import pytest
import torch

from ssmspec_kernels.conv import conv_step
from ssmspec_ref import conv
from ssmspec_ref import error_bounds as eb
from tests.kernels.conv_cases import Options, case
from tests.kernels.mutants import caught, mutated
from tests.kernels.tensors import BYTES, Kept, check_bytes, check_within, contract, doubles, watch

CASES = [
    Options(t=1),
    Options(t=1, c=5, w=2, state="bf16", io="bf16", bias=False, seed=1),
    Options(t=1, c=16, w=3, state="fp32", io="bf16", activation=False, index=torch.int64, seed=2),
    Options(t=1, c=9, w=8, state="fp16", io="fp16", padding=False, seed=3),
    Options(t=1, c=19, w=5, state="fp32", io="fp16", bias=False, activation=False, seed=4),
    Options(t=1, b=1, c=3, w=4, state="bf16", io="fp32", seed=5),
    Options(t=1, w=7, c=13, whole=True, seed=6),
]


def check(module: ModuleType, o: Options) -> None:
    """One call judged in full: outputs, state, bystanders, bytes."""
    made = case(o)
    made.M[:, :, 0] = float("nan")  # (1) drops it
    u, out = made.u[:, 0], made.out[:, 0]
    kept = Kept(**made.tensors)
    with watch(**made.tensors) as seen:
        settings = {**made.settings, "out": out}
        got = module.conv_step(made.M, u, made.weight, **settings, block_c=8)
    assert got is out
    kept.check(M=made.named, out=torch.from_numpy(made.rows))
    M0 = np.concatenate([np.zeros_like(made.M0[:, :, :1]), made.M0[:, :, 1:]], axis=2)
    y, M = eb.conv.scan(M0, made.inputs, made.params, contract(o.state, o.io))
    assert np.array_equal(doubles(made.M[made.named]), M.value)
    if o.whole:
        assert np.array_equal(doubles(out)[made.rows], y.value[:, 0])
    check_within(doubles(out)[made.rows], y[:, 0])
    expected = module.traffic_bytes(len(made.rows), o.c, o.w, state=BYTES[o.state], io=BYTES[o.io])
    check_bytes(seen, expected, ("M", "u", "out"), ("weight", "bias", "slots"))


@pytest.mark.parametrize("o", CASES, ids=str)
def test_a_step_equals_the_oracle_and_touches_nothing_else(o: Options) -> None:
    check(conv_step, o)


def test_a_state_narrower_than_its_inputs_is_rounded_once() -> None:
    made = case(Options(t=1, padding=False))
    M = made.M.to(torch.bfloat16)
    u = made.u[:, 0] * 1.001
    conv_step.conv_step(M, u, made.weight, slots=made.slots)
    assert torch.equal(M[made.named, :, -1], u.to(torch.bfloat16))


def test_without_slots_row_b_has_slot_b() -> None:
    made = case(Options(t=1, padding=False))
    M = made.M[made.named].clone()
    settings = {**made.settings, "slots": None, "out": None}
    y = conv_step.conv_step(M, made.u[:, 0], made.weight, **settings)
    reference, after = conv.step(made.M0, made.inputs[:, 0], made.params)
    assert np.array_equal(doubles(M), after)
    assert np.max(np.abs(doubles(y) - reference)) <= 1e-5 * np.max(np.abs(reference))  # fp32: the bound is checked above


def test_a_slot_beyond_2_to_the_31_elements_is_reached() -> None:
    """Slots of a pool spread over 6 GB of address space, of which two pages are touched."""
    far, c, w = 2**30, 3, 4
    pool = torch.empty(3 * far + c * w, dtype=torch.bfloat16).as_strided((4, c, w), (far, w, 1))
    pool[3] = 1.0
    slots = torch.tensor([3], dtype=torch.int32)
    y = conv_step.conv_step(pool, torch.ones(1, c), torch.ones(c, w), activation=False, slots=slots)
    assert torch.equal(y, torch.full((1, c), 4.0))


MUTANTS = [
    ("_conv_step_kernel", "if slot >= 0:", "if slot > 0:"),
    ("_conv_step_kernel", "if slot >= 0:", "if slot >= -1:"),
    ("_conv_step_kernel", "window = window[1:]", "window = window[:-1]"),
    ("_conv_step_kernel", "b * stride_u_b", "slot * stride_u_b"),
    ("_conv_step_kernel", "b * stride_y_b", "slot * stride_y_b"),
    ("_conv_step_kernel", "slot * stride_M_s", "b * stride_M_s"),
    ("_conv_step_kernel", "inside = c < C", "inside = c <= C"),
    ("_conv_step_kernel", "        store_columns(state, window, c, inside, stride_M_c, W, BLOCK_C, BLOCK_W)\n", ""),
    ("_conv_step_kernel", "stride_M_c, 0, 0, W, 1)", "stride_M_c, 0, 0, W, 0)"),
    ("filtered", "window[k] * taps[k]", "window[k] * taps[W - 1 - k]"),
    ("filtered", "y = shift", "y = -shift"),
    ("filtered", "if ACTIVATION:", "if not ACTIVATION:"),
    ("store_columns", "(w < W)[None, :]", "(w < W - 1)[None, :]"),
    ("store_columns", "w[None, :] == k", "w[None, :] == W - 1 - k"),
]


@pytest.mark.parametrize(("at", "old", "new"), MUTANTS)
def test_planted_faults_are_caught(at: str, old: str, new: str) -> None:
    assert caught(mutated(conv_step, old, new, at=at), check, CASES)


def test_the_cases_use_slot_0_and_padding() -> None:
    made = [case(o) for o in CASES]
    assert all((m.slots == 0).any() for m in made)
    assert any((m.slots < 0).any() for m in made)
