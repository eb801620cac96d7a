"""The commits of both convolutions, against the oracle, their bytes, and planted faults."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from ssmspec_kernels.conv import conv_commit
from ssmspec_kernels.shortconv import shortconv_commit
from ssmspec_ref import error_bounds as eb
from ssmspec_ref.error_bounds.arithmetic import Approx
from ssmspec_ref.shortconv import ShortConvParams, ShortConvWindow
from tests.kernels import plot
from tests.kernels.conv_cases import Options, case
from tests.kernels.laws import (  # noqa: F401
    Subject,
    nothing_accepted,
    of_accepted,
    pytest_generate_tests,
    test_an_axis_beyond_2_to_the_31_elements_is_reached,
    test_bytes_equal_the_formula_and_the_state_is_read_once,
    test_planted_fault_is_caught,
    test_results_lie_within_the_bound_and_nothing_else_is_written,
    test_what_a_launcher_alone_is_held_to,
)
from tests.kernels.mutants import caught, mutated
from tests.kernels.plot import Call, every_row
from tests.kernels.tensors import Kept, check_bytes, doubles, draw, watch

CASES = [
    Options(replay="advanced"),
    Options(replay="path", index=torch.int64, seed=1),
    Options(replay="advanced", c=3, w=2, state="bf16", io="bf16", seed=2),
    Options(replay="path", c=16, w=3, state="fp32", io="bf16", padding=False, seed=3),
    Options(replay="path", c=9, w=8, state="fp16", io="fp16", seed=4),
    Options(replay="advanced", b=3, c=21, w=5, state="bf16", io="fp32", seed=5),
]


@dataclass(frozen=True)
class Commits(plot.Commits):
    """One case of the short convolution's commit."""

    drafts: int = 3
    b: int = 4
    c: int = 11
    w: int = 3


def committed(o: Commits) -> Call:
    rng, lead = np.random.default_rng(o.seed), (o.layers, o.b * o.drafts, o.t, o.c)
    found: dict[str, Any] = {name: draw(rng, *lead, forms=(o.io,)) for name in "Bx"}
    found["S"] = draw(rng, o.layers, o.b, o.c, o.w - 1, forms=(o.state,))
    return plot.committed("shortconv_commit", o, found)


def of_commit(call: Call) -> Iterator[tuple[str, Any, Approx]]:
    """Every layer and row alone; C is not read."""
    o: Any = call.options
    params = ShortConvParams(np.ones((o.c, o.w)))
    for layer in range(o.layers):
        for slot, (row, taken) in zip(call.named.tolist(), plot.accepted(call), strict=True):
            if len(taken):
                B, x = (doubles(call[name][layer, row])[None, taken] for name in "Bx")
                start = doubles(call["S"][layer, slot])[None]
                yield "S", (layer, slot), eb.shortconv.scan(start, ShortConvWindow(B, B, x), params, o.contract())[1][0]


SHORT = [
    Commits(),
    Commits(path=True, t=7, w=8, io="bf16", seed=1),
    Commits(t=3, c=5, w=4, state="bf16", io="bf16", seed=2),
    Commits(path=True, t=6, c=9, w=2, state="fp16", io="fp16", seed=3),
]
COMMIT = Subject(
    "shortconv_commit",
    shortconv_commit,
    committed,
    of_commit,
    cover=SHORT,
    moves=SHORT,
    formula=lambda module, call: of_accepted(module, call, w=call.axes["q"] + 1),
    once=("store S",),
    special=[nothing_accepted(committed, *SHORT)],
)
SPREAD = replace(
    COMMIT,
    name="shortconv_commit, every row",
    draw=every_row(committed),
    special=[],
    cover=[],
    moves=[],
    far=[(Commits(b=3, layers=3, c=5, t=3, state="bf16", io="bf16", spare=2), letter) for letter in "isdmt"],
)
SUBJECTS = [COMMIT, SPREAD]


def check(module: ModuleType, o: Options) -> None:
    """One call judged in full: state, bystanders, bytes."""
    made = case(o)
    accepted = {name: made.tensors.get(name) for name in ("slots", "path", "advanced")}
    kept = Kept(**made.tensors)
    with watch(**made.tensors) as seen:
        module.conv_commit(made.state, made.tensors["previous"], **accepted, block_c=8)
    kept.check(M=made.named)
    assert np.array_equal(doubles(made.state[made.named]), made.M0)
    expected = sum(module.traffic_bytes(1, o.c, o.w, int(a), **o.bytes) for a in made.taken)
    check_bytes(seen, expected, ("M", "previous"), ("slots", "path", "advanced"))


@pytest.mark.parametrize("o", CASES, ids=str)
def test_a_commit_equals_the_oracle_and_touches_nothing_else(o: Options) -> None:
    check(conv_commit, o)


def test_a_state_narrower_than_its_inputs_is_rounded_once() -> None:
    M, u = torch.zeros(1, 5, 4, dtype=torch.bfloat16), torch.randn(1, 6, 5)
    conv_commit.conv_commit(M, u, advanced=torch.tensor([6]))
    assert torch.equal(M[0], u[0, 2:].T.to(torch.bfloat16))


@pytest.mark.parametrize("node", [5, 6, 99])
def test_a_node_outside_the_window_is_read_as_zeros(node: int) -> None:
    """The gaps behind the inputs hold NaN."""
    call = committed(Commits(path=True, b=3, seed=1))
    call.run(shortconv_commit, path=torch.tensor([[node, -1, -1, -1, -1]] * 3))
    assert not call["S"][:, call.named].isnan().any()
    assert not call["S"][:, call.named][..., -1].any()


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
    ("load_columns", "load(u + node * stride_u_t", "load(u + node * stride_M_c"),
    ("load_columns", "mask=inside & has_state & (i < W)", "mask=inside & has_state & (i <= W)"),
    ("load_columns", "tl.where(i < W, old, new)", "tl.where(i <= W, old, new)"),
]
FAULTS = {
    "shortconv_commit": [
        ("layer * stride_S_i", "layer * stride_B_i", "_shortconv_commit_kernel"),
        ("x + layer * stride_x_i + m * stride_x_m", "x + layer * stride_x_i + b * stride_x_m", "_shortconv_commit_kernel"),
        ("        if moves:\n", "        if first > 1:\n", "_shortconv_commit_kernel"),
        ("path + b * stride_path_b", "path", "_shortconv_commit_kernel"),
        ("i = first + k", "i = first + k - 1", "load_columns"),
        ("node * stride_B_t", "node * stride_u_t", "load_columns"),
        ("tl.where(i < W, old, new)", "tl.where(i <= W, old, new)", "load_columns"),
        ("return B_t * tl.load", "return tl.load", "load_product"),
        ("min(accepted, kept)", "accepted", "traffic_bytes"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(("at", "old", "new"), MUTANTS)
def test_planted_faults_of_the_convolution_are_caught(at: str, old: str, new: str) -> None:
    assert caught(mutated(conv_commit, old, new, at=at), check, CASES)
