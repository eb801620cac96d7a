"""The selective scan's kernel, against the oracle, its bytes, what it must leave alone, and planted faults."""

from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from ssmspec_kernels.selective import selective_scan
from ssmspec_ref import error_bounds as eb
from tests.kernels.device import COMPILED
from tests.kernels.mutants import caught, mutated
from tests.kernels.selective_cases import Options, case
from tests.kernels.tensors import BYTES, Kept, check_bytes, check_within, contract, doubles, watch

CASES = [
    Options(t=1),
    Options(gentle=True, seed=1),
    Options(t=5, live=True, io="bf16", index=torch.int64, seed=2),
    Options(t=4, d=5, n=16, state="bf16", io="bf16", D=False, seed=3),
    Options(t=2, d=9, n=3, state="fp16", io="fp16", z=False, gentle=True, seed=4),
    Options(t=6, d=3, n=7, write=False, live=True, bias=False, seed=5),
    Options(t=1, b=1, d=17, n=1, D=False, z=False, bias=False, softplus=False, seed=6),
    Options(t=3, d=8, n=4, state="bf16", io="fp32", softplus=False, padding=False, seed=7),
    Options(t=7, b=3, d=2, n=6, whole=True, z=False, live=True, seed=8),
    Options(t=32, b=2, d=2, n=3, gentle=True, io="fp16", seed=9),
    Options(t=40, b=3, d=2, n=4, live=True, gentle=True, seed=10),
]


def check(module: ModuleType, o: Options) -> None:
    """One call judged in full: outputs, state, bystanders, bytes."""
    made = case(o)
    start = made.tensors["S"][made.named].clone()
    kept = Kept(**made.tensors)
    with watch(**made.tensors) as seen:
        got = module.selective_scan(**made.tensors, **made.settings, write_state=o.write, block_d=4)
    assert got is made.tensors["out"]
    kept.check(out=torch.from_numpy(made.rows), **({"S": made.named} if o.write else {}))
    live = made.live if o.live else None
    y, S = eb.selective.scan(made.S0, made.window, made.params, contract(o.state, o.io), live)
    after = doubles(made.tensors["S"][made.named])
    if o.whole:
        assert np.array_equal(made.outputs, y.value)
        assert np.array_equal(after, S.value)
    check_within(made.outputs, y)
    if o.write:
        check_within(after, S)
    else:
        assert np.array_equal(after, doubles(start))
    dead, io = int((~made.live).sum()), BYTES[o.io]
    sizes = {"state": BYTES[o.state], "io": io, "write_state": o.write, "z": o.z}
    expected = module.traffic_bytes(len(made.rows), o.t, o.d, o.n, **sizes)
    expected -= dead * io * (o.d * (3 if o.z else 2) + 2 * o.n)  # a no-op writes its 0 and reads nothing
    # Every program of a row reads its B and C; they cross the bus once.
    narrow = {name: seen.loaded(name).distinct for name in ("B", "C")}
    assert COMPILED or narrow == dict.fromkeys(("B", "C"), int(made.live.sum()) * o.n * io)
    once, apart = ("S", "x", "dt", "z", "out"), ("A", "B", "C", "D", "dt_bias", "slots", "live")
    check_bytes(seen, expected - sum(narrow.values()), once, apart)
    if not o.write:
        assert seen.stored("S").requested == 0


@pytest.mark.parametrize("o", CASES, ids=str)
def test_a_scan_equals_the_oracle_and_touches_nothing_else(o: Options) -> None:
    check(selective_scan, o)


@pytest.mark.parametrize(("d", "n"), [(11, 5), (8, 16), (70, 16), (3, 67), (40, 32), (20, 128)])
def test_a_window_equals_its_tokens_one_by_one_bit_for_bit(d: int, n: int) -> None:
    o = Options(t=5, d=d, n=n, padding=False, gentle=True, seed=11)
    made, alone, steps = case(o), case(o).tensors["S"], []  # one layout: how a pool lies has a say in the order of sums
    inputs: dict[str, Any] = {name: made.tensors[name] for name in ("x", "dt", "B", "C", "z")}
    fixed: dict[str, Any] = {name: made.tensors[name] for name in ("A", "D", "dt_bias", "slots")}
    for t in range(5):
        token: dict[str, Any] = {name: a[:, t : t + 1] for name, a in inputs.items()}
        steps.append(selective_scan.selective_scan(alone, **token, **fixed))
    y = selective_scan.selective_scan(made.tensors["S"], **inputs, **fixed)
    assert torch.equal(y, torch.cat(steps, dim=1))
    assert torch.equal(alone[made.named], made.tensors["S"][made.named])


def test_one_token_has_a_second_warp_where_each_has_channels_of_its_own() -> None:
    sizes = (5120, 16), (64, 16), (32, 16), (3, 67), (5120, 67)
    assert [selective_scan._tile(d, n, 1)[1] for d, n in sizes] == [2, 2, 1, 1, 1]
    assert all(selective_scan._tile(d, n, 4)[1] == 1 for d, n in sizes)


def test_rows_share_a_state_that_is_not_written() -> None:
    made = case(Options(b=2, padding=False, write=False, seed=12))
    made.tensors["slots"][:] = 0
    for name in ("x", "dt", "B", "C", "z"):
        made.tensors[name][0] = made.tensors[name][1]
    y = selective_scan.selective_scan(**made.tensors, write_state=False)
    assert torch.equal(y[0], y[1])


def test_a_tied_decay_is_read_through_its_strides() -> None:
    """A expanded from one number for each channel, stride 0 over n, as Mamba-2 loads into Mamba-1 kernels."""
    made = case(Options(seed=13))
    made.tensors["A"] = made.tensors["A"][:, :1].expand(-1, 5)
    params = replace(made.params, A=made.tensors["A"].double().numpy())
    y, S = eb.selective.scan(made.S0, made.window, params, contract("fp32", "fp32"), made.live)
    selective_scan.selective_scan(**made.tensors, **made.settings)
    check_within(made.outputs, y)
    check_within(doubles(made.tensors["S"][made.named]), S)


MUTANTS = [
    ("_selective_scan_kernel", "if slot >= 0:", "if slot > 0:"),
    ("_selective_scan_kernel", "        if WRITE_STATE:\n", "        if not WRITE_STATE:\n"),
    ("_token", "step = tl.where(real, step, 0.0)", "step = step + 0.0"),
    ("_token", "tl.exp(step[:, None] * log_decay)", "tl.exp(-step[:, None] * log_decay)"),
    ("_token", "(step * x_t)[:, None]", "x_t[:, None]"),
    ("_token", "tl.where(real, y_t, 0.0)", "y_t + tl.where(real, 0.0, 1.0)"),
    ("_token", "y_t += skip * x_t", "y_t += skip"),
    ("_token", "y_t *= silu(", "y_t += silu("),
    ("_token", "step = softplus(step)", "step = tl.maximum(step, 0.0)"),
    ("_token", "t * stride_B_t", "t * stride_C_t"),
    ("_selective_scan_kernel", "z + b * stride_z_b", "z + slot * stride_z_b"),
    ("_selective_scan_kernel", "d[:, None] * stride_A_d", "d[:, None] * stride_S_d"),
    ("_selective_scan_kernel", "(n < N)[None, :]", "(n <= N)[None, :]"),
    ("_selective_scan_kernel", "for t in range(tokens):", "for t in range(tokens - 1):"),
    ("_token", "B + t * stride_B_t, mask=states & real", "B + t * stride_B_t, mask=states"),
    ("silu", "return x / (1.0 + tl.exp(-x))", "return 1.0 / (1.0 + tl.exp(-x))"),
]  # fmt: skip


@pytest.mark.parametrize(("at", "old", "new"), MUTANTS)
def test_planted_faults_are_caught(at: str, old: str, new: str) -> None:
    assert caught(mutated(selective_scan, old, new, at=at), check, CASES)
