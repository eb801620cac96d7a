"""The convolution's kernel for trees, against the oracle, its bytes, and planted faults."""

from types import ModuleType

import numpy as np
import pytest
import torch

from ssmspec_kernels.conv import conv_tree, conv_window
from ssmspec_ref import error_bounds as eb
from ssmspec_ref import tree
from tests.kernels.conv_cases import Options, case, forest, tree_mask
from tests.kernels.mutants import caught, mutated
from tests.kernels.tensors import BYTES, Kept, check_bytes, check_within, contract, doubles, watch

CASES = [
    Options(t=9, keep="none"),
    Options(t=13, c=5, w=2, state="bf16", io="bf16", keep="none", bias=False, seed=1),
    Options(t=7, c=9, w=3, replay="path", keep="committed", io="bf16", index=torch.int64, seed=2),
    Options(t=12, c=8, w=8, replay="advanced", keep="committed", state="fp16", io="fp16", seed=3),
    Options(t=16, c=3, w=5, replay="path", keep="none", activation=False, padding=False, seed=4),
    Options(t=1, b=2, c=7, w=4, keep="none", state="bf16", io="fp32", seed=5),
    Options(t=21, b=3, c=4, w=6, keep="none", whole=True, seed=6),
    Options(t=128, b=2, c=2, w=4, keep="none", io="bf16", seed=7),
]


def check(module: ModuleType, o: Options) -> None:
    """One call judged in full: outputs, state, bystanders, bytes."""
    made, parents = case(o), forest(o)
    if o.replay is None:
        made.M[:, :, 0] = float("nan")  # no output sees it
        made.M0[:, :, 0] = 0.0
    made.u[torch.from_numpy(parents == tree.PADDING)] = float("nan")
    made.extra["parents"] = torch.from_numpy(parents).to(o.index)
    start = made.M[made.named].clone()
    kept = Kept(**made.tensors)
    with watch(**made.tensors) as seen:
        got = module.conv_tree(made.M, made.u, weight=made.weight, **made.settings, keep=o.keep, block_c=8)
    assert got is made.out
    kept.check(out=torch.from_numpy(made.rows), **({} if o.keep == "none" else {"M": made.named}))
    after = made.M0 if o.keep == "committed" else doubles(start)
    assert np.array_equal(doubles(made.M[made.named]), after, equal_nan=o.keep == "none")
    seen_by = tree_mask(parents[made.rows])
    y = eb.conv.tree(made.M0, made.inputs, seen_by, made.params, contract(o.state, o.io))
    outputs = doubles(made.out)[made.rows]
    if o.whole:
        assert np.array_equal(outputs, y.value)
    check_within(outputs, y)
    state, io, nodes = BYTES[o.state], BYTES[o.io], int((parents[made.rows] != tree.PADDING).sum())
    taken = [int(a) for a in made.taken] if o.replay else [None] * len(made.rows)
    expected = sum(module.traffic_bytes(1, 0, o.c, o.w, state=state, io=io, keep=o.keep, advanced=a) for a in taken)
    expected += module.traffic_bytes(0, nodes, o.c, o.w, io=io) + (outputs.size - nodes * o.c) * io  # zeros at padding
    once = ("M", "u", "out", "previous")
    check_bytes(seen, expected, once, ("weight", "bias", "slots", "parents", "advanced", "path"))


@pytest.mark.parametrize("o", CASES, ids=str)
def test_a_tree_equals_the_oracle_and_touches_nothing_else(o: Options) -> None:
    check(conv_tree, o)


def test_a_chain_is_the_tree_with_one_path_bit_for_bit() -> None:
    made = case(Options(t=6, keep="none", state="fp32", io="fp32"))
    window = conv_window.conv_window(made.M, made.u, made.weight, **made.settings, keep="none")
    for parents in (torch.arange(-1, 5).expand(4, 6), None):
        y = conv_tree.conv_tree(made.M, made.u, parents, made.weight, **{**made.settings, "out": None})
        assert torch.equal(y[torch.from_numpy(made.rows)], window[torch.from_numpy(made.rows)])


def test_siblings_may_change_places() -> None:
    made = case(Options(t=5, keep="none", padding=False))
    parents, other = torch.tensor([[-1, 0, 0, 1, 2]] * 4), torch.tensor([[-1, 0, 0, 2, 1]] * 4)
    order = [0, 2, 1, 3, 4]  # the children 1 and 2 change places; so do their parents' names
    y = conv_tree.conv_tree(made.M, made.u, parents, made.weight, slots=made.slots)
    swapped = conv_tree.conv_tree(made.M, made.u[:, order].contiguous(), other, made.weight, slots=made.slots)
    assert torch.equal(y[:, order], swapped)


@pytest.mark.parametrize("bad", [[-1, 2, 0, 7], [3, 3, 3, 3], [-1, 0, 127, 1]])
def test_parents_out_of_order_read_nothing_outside(bad: list[int]) -> None:
    made = case(Options(t=4, keep="none"))
    made.extra["parents"] = torch.tensor([bad] * 4)
    with watch(**made.tensors) as seen:
        conv_tree.conv_tree(made.M, made.u, weight=made.weight, **made.settings)
    assert seen.outside == []


PARENTS = torch.arange(-1, 4).repeat(4, 1)


MUTANTS = [
    ("_conv_tree_kernel", "if slot >= 0:", "if slot > 0:"),
    ("_conv_tree_kernel", "real, parent = given >= -1", "real, parent = given >= 0"),
    ("_conv_tree_kernel", "real, parent = given >= -1", "real, parent = given >= -2"),
    ("_conv_tree_kernel", "real, parent = i < T, i - 1", "real, parent = i < T, i - 2"),
    ("_conv_tree_kernel", "tl.gather(parent, at, 0), q - 1)", "tl.gather(parent, at, 0), q)"),
    ("_conv_tree_kernel", "path_back = parent, ()", "path_back = i - 1, ()"),
    ("_conv_tree_kernel", "path_back[W - 2 - k]", "path_back[k]"),
    ("_conv_tree_kernel", "window[W - m][None, :]", "window[W - 1][None, :]"),
    ("_conv_tree_kernel", "tl.static_range(1, W - k)", "tl.static_range(1, W - 1 - k)"),
    ("_conv_tree_kernel", "value * taps[k]", "value * taps[W - 1 - k]"),
    ("_conv_tree_kernel", "mask=real[:, None] & inside[None, :]", "mask=inside[None, :]"),
    ("_conv_tree_kernel", "tl.where(real[:, None], acc, 0.0)", "acc"),
    ("_conv_tree_kernel", "b * stride_parents_b", "slot * stride_parents_b"),
    ("_conv_tree_kernel", "W, 0 if COMMIT else 1,", "W, 0,"),
    ("_conv_tree_kernel", "        if COMMIT:\n", "        if COMMIT and False:\n"),
    ("_conv_tree_kernel", "t[:, None] * stride_u_t", "t[:, None] * stride_y_t"),
]


@pytest.mark.parametrize(("at", "old", "new"), MUTANTS)
def test_planted_faults_are_caught(at: str, old: str, new: str) -> None:
    assert caught(mutated(conv_tree, old, new, at=at), check, CASES)
