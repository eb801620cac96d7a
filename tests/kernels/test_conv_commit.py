"""The commits of both convolutions, against the oracle, their bytes, and planted faults."""

from dataclasses import dataclass
from types import ModuleType

import numpy as np
import pytest
import torch

from ssmspec_kernels.conv import conv_commit
from ssmspec_kernels.shortconv import shortconv_commit
from ssmspec_ref import error_bounds as eb
from ssmspec_ref.error_bounds.arithmetic import Approx
from ssmspec_ref.shapes import Array
from ssmspec_ref.shortconv import ShortConvParams, ShortConvWindow
from tests.kernels import commit_cases as commits
from tests.kernels.conv_cases import Options, case
from tests.kernels.covers import planted
from tests.kernels.mutants import caught, mutated
from tests.kernels.tensors import Kept, check_bytes, contract, doubles, draw, watch

CASES = [
    Options(replay="advanced"),
    Options(replay="path", index=torch.int64, seed=1),
    Options(replay="advanced", c=3, w=2, state="bf16", io="bf16", seed=2),
    Options(replay="path", c=16, w=3, state="fp32", io="bf16", padding=False, seed=3),
    Options(replay="path", c=9, w=8, state="fp16", io="fp16", seed=4),
    Options(replay="advanced", b=3, c=21, w=5, state="bf16", io="fp32", seed=5),
]


@dataclass(frozen=True)
class Short(commits.Options):
    """One case of the short convolution's commit."""

    drafts: int = 3
    c: int = 11
    w: int = 3


SHORT = [
    Short(b=4),
    Short(b=4, path=True, t=7, w=8, io="bf16", seed=1),
    Short(b=4, t=3, c=5, w=4, state="bf16", io="bf16", seed=2),
    Short(b=4, path=True, t=6, c=9, w=2, state="fp16", io="fp16", seed=3),
]


class Case(commits.Case):
    """One call of the short convolution's launcher."""

    def __init__(self, o: Short) -> None:
        rng, shape = np.random.default_rng(o.seed), (o.layers, o.b * o.drafts, o.t, o.c)
        super().__init__(o, (o.c, o.w - 1), {name: draw(rng, *shape, forms=(o.io,)) for name in "Bx"}, {})

    def after(self, layer: int, b: int, start: Array) -> Approx:
        B, x = (doubles(x[layer])[int(self.rows[b]), self.nodes(b)][None] for x in self.inputs.values())
        params, rules = ShortConvParams(np.ones((self.o.c, self.o.w))), contract(self.o.state, self.o.io)
        return eb.shortconv.scan(start, ShortConvWindow(B, B, x), params, rules)[1]


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


def check_short(module: ModuleType, o: Short) -> None:
    commits.check(module.shortconv_commit, Case(o))
    commits.check_bytes(module.shortconv_commit, module.traffic_bytes, Case(o), o.c, o.w, states_once=False)
    commits.check_nothing(module.shortconv_commit, Case(o))


@pytest.mark.parametrize("o", CASES, ids=str)
def test_a_commit_equals_the_oracle_and_touches_nothing_else(o: Options) -> None:
    check(conv_commit, o)


def test_a_state_narrower_than_its_inputs_is_rounded_once() -> None:
    M, u = torch.zeros(1, 5, 4, dtype=torch.bfloat16), torch.randn(1, 6, 5)
    conv_commit.conv_commit(M, u, advanced=torch.tensor([6]))
    assert torch.equal(M[0], u[0, 2:].T.to(torch.bfloat16))


@pytest.mark.parametrize("o", SHORT, ids=str)
def test_a_short_commit_equals_the_oracle_and_touches_nothing_else(o: Short) -> None:
    check_short(shortconv_commit, o)


@pytest.mark.parametrize("axis", sorted("isdmt"))
def test_an_axis_beyond_2_to_the_31_elements_is_reached(axis: str) -> None:
    o = Short(layers=3, c=5, t=3, state="bf16", io="bf16")
    commits.check_far(shortconv_commit.shortconv_commit, Case(o), Case(o), axis)


@pytest.mark.parametrize("node", [5, 6, 99])
def test_a_node_outside_the_window_is_read_as_zeros(node: int) -> None:
    """The gaps behind the inputs hold NaN."""
    made = Case(Short(path=True, seed=1))
    made.call(shortconv_commit.shortconv_commit, path=torch.tensor([[node, -1, -1, -1, -1]] * 3))
    assert not made.S[:, made.named].isnan().any()
    assert not made.S[:, made.named][..., -1].any()


MUTANTS = {
    conv_commit: [
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
    ],
    shortconv_commit: [
        ("_shortconv_commit_kernel", "layer * stride_S_i", "layer * stride_B_i"),
        ("_shortconv_commit_kernel", "x + layer * stride_x_i + m * stride_x_m", "x + layer * stride_x_i + b * stride_x_m"),
        ("_shortconv_commit_kernel", "        if moves:\n", "        if first > 1:\n"),
        ("_shortconv_commit_kernel", "path + b * stride_path_b", "path"),
        ("load_columns", "i = first + k", "i = first + k - 1"),
        ("load_columns", "node * stride_B_t", "node * stride_u_t"),
        ("load_columns", "tl.where(i < W, old, new)", "tl.where(i <= W, old, new)"),
        ("load_product", "return B_t * tl.load", "return tl.load"),
        ("traffic_bytes", "min(accepted, kept)", "accepted"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(("module", "at", "old", "new"), planted(MUTANTS))
def test_planted_faults_are_caught(module: ModuleType, at: str, old: str, new: str) -> None:
    assert caught(mutated(module, old, new, at=at), *(check_short, SHORT) if module is shortconv_commit else (check, CASES))
