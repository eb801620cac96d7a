"""The convolution's kernel for a window, with no-ops and replay, against the oracle, its bytes, and planted faults."""

from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from ssmspec_kernels.conv import conv_step, conv_window
from ssmspec_ref import conv
from ssmspec_ref import error_bounds as eb
from tests.kernels.conv_cases import Case, Options, case
from tests.kernels.mutants import caught, mutated
from tests.kernels.tensors import BYTES, Kept, check_bytes, check_within, contract, doubles, watch

CASES = [
    Options(),
    Options(live=True, seed=1),
    Options(t=4, c=9, w=3, replay="advanced", keep="committed", state="bf16", io="bf16", seed=2),
    Options(t=3, c=13, w=5, replay="path", keep="committed", io="bf16", bias=False, index=torch.int64, seed=3),
    Options(t=6, c=8, w=2, replay="path", keep="final", live=True, state="fp16", io="fp16", activation=False, seed=4),
    Options(t=2, c=11, w=8, replay="advanced", keep="final", bias=False, seed=5),
    Options(t=5, c=7, w=4, replay="advanced", keep="none", padding=False, seed=6),
    Options(t=7, c=3, w=6, keep="none", live=True, state="fp32", io="fp16", seed=7),
    Options(t=1, b=1, c=17, w=7, state="bf16", io="fp32", activation=False, seed=8),
    Options(t=16, b=2, c=2, w=4, live=True, whole=True, seed=9),
    Options(t=3, c=5, w=4, replay="path", keep="none", live=True, whole=True, seed=10),
]


def crossing(module: ModuleType, made: Case) -> int:
    """`traffic_bytes`, less what the no-ops of this case save."""
    o = made.options
    state, io = BYTES[o.state], BYTES[o.io]
    taken = [int(a) for a in made.taken] if o.replay else [None] * len(made.rows)
    total = sum(module.traffic_bytes(1, o.t, o.c, o.w, state=state, io=io, keep=o.keep, advanced=a) for a in taken)
    still = 0 if o.replay or o.keep != "final" else int((~made.live.any(axis=1)).sum())
    return total - int((~made.live).sum()) * o.c * io - still * o.c * o.w * state


def check(module: ModuleType, o: Options) -> None:
    """One call judged in full: outputs, state, bystanders, bytes."""
    made = case(o)
    if o.replay is None and o.keep == "none":
        made.M[:, :, 0] = float("nan")  # no output sees it
        made.M0[:, :, 0] = 0.0
    start = made.M[made.named].clone()
    kept = Kept(**made.tensors)
    with watch(**made.tensors) as seen:
        got = module.conv_window(made.M, made.u, made.weight, **made.settings, keep=o.keep, block_c=8)
    assert got is made.out
    kept.check(out=torch.from_numpy(made.rows), **({} if o.keep == "none" else {"M": made.named}))
    y, M = eb.conv.scan(made.M0, made.inputs, made.params, contract(o.state, o.io), made.live)
    after = {"final": M.value, "committed": made.M0, "none": doubles(start)}[o.keep]
    assert np.array_equal(doubles(made.M[made.named]), after, equal_nan=o.keep == "none")
    outputs = doubles(made.out)[made.rows]
    if o.whole:
        assert np.array_equal(outputs, y.value)
    assert not outputs[~made.live].any()
    check_within(outputs, y)
    check_bytes(
        seen, crossing(module, made), ("M", "u", "out", "previous"), ("weight", "bias", "slots", "live", "advanced", "path")
    )


@pytest.mark.parametrize("o", CASES, ids=str)
def test_a_window_equals_the_oracle_and_touches_nothing_else(o: Options) -> None:
    check(conv_window, o)


def test_a_window_equals_its_tokens_one_by_one_bit_for_bit() -> None:
    made = case(Options(t=6, padding=False, seed=11))
    alone, steps = made.M.clone(), []
    for t in range(6):
        u = made.u[:, t].clone()
        steps.append(conv_step.conv_step(alone, u, made.weight, bias=made.bias, slots=made.slots))
    y = conv_window.conv_window(made.M, made.u, made.weight, bias=made.bias, slots=made.slots)
    assert torch.equal(y, torch.stack(steps, dim=1))
    assert torch.equal(alone[made.named], made.M[made.named])


def test_without_slots_row_b_has_slot_b_and_the_pool_needs_no_more() -> None:
    made, other = case(Options(padding=False)), case(Options(padding=False))
    M = other.M[other.named].clone()
    y = conv_window.conv_window(M, other.u, other.weight, **{**other.settings, "slots": None, "out": None})
    assert torch.equal(y, conv_window.conv_window(made.M, made.u, made.weight, **made.settings))
    assert torch.equal(M, made.M[made.named])


def test_replay_in_the_launch_equals_never_having_speculated() -> None:
    """Verify, accept, verify again: the second window reads what plain decoding reads, for every count accepted."""
    for accepted in range(6):
        made = case(Options(t=5, b=1, padding=False, seed=12))
        plain = made.M0
        conv_window.conv_window(made.M, made.u, made.weight, bias=made.bias, slots=made.slots, keep="none")
        advanced = torch.tensor([accepted])
        replay: dict[str, Any] = {"previous": made.u, "advanced": advanced, "keep": "committed"}
        y = conv_window.conv_window(made.M, made.u, made.weight, bias=made.bias, slots=made.slots, **replay)
        plain = conv.commit(plain, made.inputs, np.array([accepted]))
        assert np.array_equal(doubles(made.M[made.named]), plain)
        pair, _ = eb.conv.scan(plain, made.inputs, made.params, contract("fp32", "fp32"))
        check_within(doubles(y), pair)


@pytest.mark.parametrize(("advanced", "meant"), [(-3, 0), (99, 7), (8, 7)])
def test_a_count_outside_the_window_is_taken_as_its_end(advanced: int, meant: int) -> None:
    results = []
    for given in (advanced, meant):
        made = case(Options(replay="advanced", keep="committed", padding=False, seed=13))
        made.extra["previous"][:] = 1.0
        made.extra["advanced"][:] = given
        y = conv_window.conv_window(made.M, made.u, made.weight, **made.settings, keep="committed")
        results.append((y, made.M[made.named]))
    assert not results[0][0].isnan().any()
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


@pytest.mark.parametrize("node", [7, 8, 99])
def test_a_node_outside_the_window_is_read_as_zeros(node: int) -> None:
    """The gaps behind the inputs hold NaN."""
    made = case(Options(replay="path", keep="committed", padding=False, seed=14))
    made.extra["previous"][:] = 1.0
    made.extra["path"][:] = -1
    made.extra["path"][:, 0] = node
    y = conv_window.conv_window(made.M, made.u, made.weight, **made.settings, keep="committed")
    assert not y.isnan().any()
    assert not made.M[made.named][:, :, -1].any()


MUTANTS = [
    ("_conv_window_kernel", "if slot >= 0:", "if slot > 0:"),
    ("_conv_window_kernel", "if COMMIT:", "if not COMMIT and not FINAL:"),
    ("_conv_window_kernel", "if FINAL:", "if COMMIT or FINAL:"),
    ("_conv_window_kernel", "after += (tl.where(real, window[k + 1], window[k]),)", "after += (window[k + 1],)"),
    ("_conv_window_kernel", "after += (tl.where(real, u_t, window[W - 1]),)", "after += (u_t,)"),
    ("_conv_window_kernel", "ACTIVATION), 0.0)", "ACTIVATION), 1.0)"),
    ("_conv_window_kernel", "mask=inside & real", "mask=inside"),
    ("_conv_window_kernel", "inside & (moved > 0)", "inside"),
    ("_conv_window_kernel", "inside & (moved > 0)", "inside & (moved > 1)"),
    ("_conv_window_kernel", "at * stride_u_t", "at * stride_y_t"),
    ("_conv_window_kernel", "at * stride_live_t", "stride_live_t"),
    ("_conv_window_kernel", "W, 0 if COMMIT or FINAL else 1,", "W, 0,"),
    ("_conv_window_kernel", "if live is None or previous is not None:", "if live is None:"),
    ("_conv_window_kernel", "b * stride_previous_b", "slot * stride_previous_b"),
    ("load_columns", "i = first + k", "i = first + k - 1"),
    ("load_columns", "tl.where(i < W, old, new)", "new"),
    ("load_columns", "mask=inside & has_state & (i < W)", "mask=inside & has_state"),
    ("accepted_count", "mask=i < LONGEST", "mask=i < LONGEST - 1"),
    ("accepted_count", "(nodes >= 0)", "(nodes > 0)"),
    ("accepted_count", "tl.maximum(taken, 0)", "tl.maximum(taken, 1)"),
    ("load_columns", "node * stride_u_t", "(node + 1) * stride_u_t"),
]  # fmt: skip


@pytest.mark.parametrize(("at", "old", "new"), MUTANTS)
def test_planted_faults_are_caught(at: str, old: str, new: str) -> None:
    assert caught(mutated(conv_window, old, new, at=at), check, CASES)
