"""Trees of both convolutions, against the oracle, their bytes, and planted faults."""

from types import ModuleType

import numpy as np
import pytest
import torch

from ssmspec_kernels.conv import conv_tree, conv_window
from ssmspec_kernels.shortconv import shortconv_scan, shortconv_tree
from ssmspec_ref import tree
from ssmspec_ref.shapes import Parents
from tests.kernels.conv_cases import Case, Options, case, short
from tests.kernels.covers import covered, planted
from tests.kernels.mutants import caught, mutated
from tests.kernels.tensors import Kept, check_bytes, contract, doubles, watch
from tests.trees import forest, tree_mask

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
SHORT = [
    short(t=9),
    short(t=13, c=5, w=2, state="bf16", io="bf16", bias=False, seed=1),
    short(t=12, c=8, w=8, state="fp16", io="fp16", index=torch.int64, seed=2),
    short(t=1, b=2, c=7, w=4, io="bf16", seed=3),
    short(t=21, b=3, c=4, w=6, whole=True, padding=False, seed=4),
    short(t=128, b=2, c=2, io="bf16", seed=5),
]
COVERS = {conv_tree: CASES, shortconv_tree: SHORT}
APART = ("weight", "bias", "slots", "parents", "advanced", "path")


def crossing(module: ModuleType, made: Case, parents: Parents) -> int:
    """`traffic_bytes`, and the zeros at padding."""
    o, sizes, nodes = made.options, made.options.bytes, int((parents != tree.PADDING).sum())
    zeros = (made.outputs.size - nodes * o.c) * sizes["io"]
    if o.short:
        whole: int = module.traffic_bytes(
            len(made.rows), nodes, o.c, o.w, **sizes
        )  # no plain integer: the table of kernels sees it
        return whole + zeros
    taken = [int(a) for a in made.taken] if o.replay else [None] * len(made.rows)
    states: int = sum(module.traffic_bytes(1, 0, o.c, o.w, **sizes, keep=o.keep, advanced=a) for a in taken)
    inputs: int = module.traffic_bytes(0, nodes, o.c, o.w, io=sizes["io"])
    return states + inputs + zeros


def check(module: ModuleType, o: Options) -> None:
    """One call judged in full: outputs, state, bystanders, bytes."""
    made, parents = case(o), forest(o)
    if o.replay is None and not o.short:
        made.unseen()
    for name in o.inputs:
        made.tensors[name][torch.from_numpy(parents == tree.PADDING)] = float("nan")
    made.tensors["parents"] = torch.from_numpy(parents).to(o.index)
    start, parents = doubles(made.state[made.named]), parents[made.rows]
    kept, commits = Kept(**made.tensors), o.keep == "committed"
    with watch(**made.tensors) as seen:
        got = made.call(module, **({} if o.short else {"keep": o.keep}))
    assert got is made.tensors["out"]
    kept.check(out=torch.from_numpy(made.rows), **({"M": made.named} if commits else {}))
    assert np.array_equal(doubles(made.state[made.named]), made.M0 if commits else start, equal_nan=not commits)
    made.check_outputs(o.law.tree(made.M0, made.inputs, tree_mask(parents), made.params, contract(o.state, o.io)))
    check_bytes(seen, crossing(module, made, parents), ("M", "S", *o.inputs, "out", "previous"), APART)


@pytest.mark.parametrize(("module", "o"), covered(COVERS))
def test_a_tree_equals_the_oracle_and_touches_nothing_else(module: ModuleType, o: Options) -> None:
    check(module, o)


def test_a_chain_is_the_tree_with_one_path_bit_for_bit() -> None:
    made, short_one = case(Options(t=6, keep="none")), case(short(t=6))
    chain = torch.arange(-1, 5).repeat(4, 1)
    window = made.call(conv_window, keep="none", out=None)
    short_window = short_one.call(shortconv_scan, write_state=False, out=None)
    pairs = [(window, made.call(conv_tree, parents=parents, out=None), made) for parents in (chain, None)]
    pairs += [(short_window, short_one.call(shortconv_tree, parents=chain, out=None), short_one)]
    for scanned, found, of in pairs:
        assert torch.equal(found[torch.from_numpy(of.rows)], scanned[torch.from_numpy(of.rows)])


def test_siblings_may_change_places() -> None:
    made = case(Options(t=5, keep="none", padding=False))
    parents, other = torch.tensor([[-1, 0, 0, 1, 2]] * 4), torch.tensor([[-1, 0, 0, 2, 1]] * 4)
    order = [0, 2, 1, 3, 4]  # the children 1 and 2 change places; so do their parents' names
    y = made.call(conv_tree, parents=parents, out=None)
    swapped = made.call(conv_tree, u=made.tensors["u"][:, order].contiguous(), parents=other, out=None)
    assert torch.equal(y[:, order], swapped)


@pytest.mark.parametrize("bad", [[-1, 2, 0, 7], [3, 3, 3, 3], [-1, 0, 127, 1]])
@pytest.mark.parametrize("module", COVERS)
def test_parents_out_of_order_read_nothing_outside(module: ModuleType, bad: list[int]) -> None:
    made = case((short if module is shortconv_tree else Options)(t=4))
    made.tensors["parents"] = torch.tensor([bad] * 4)
    with watch(**made.tensors) as seen:
        made.call(module)
    assert seen.outside == []


MUTANTS: dict[ModuleType, list[tuple[str, str, str]]] = {
    conv_tree: [
        ("_conv_tree_kernel", "if slot >= 0:", "if slot > 0:"),
        ("_conv_tree_kernel", "real, parent = given >= -1", "real, parent = given >= 0"),
        ("_conv_tree_kernel", "real, parent = given >= -1", "real, parent = given >= -2"),
        ("_conv_tree_kernel", "tl.minimum(given, i - 1)", "tl.minimum(given, i - 2)"),
        ("_along_paths", "tl.gather(parent, at, 0), q - 1)", "tl.gather(parent, at, 0), q)"),
        ("_along_paths", "path_back = parent, ()", "path_back = tl.arange(0, inputs.shape[0]) - 1, ()"),
        ("_along_paths", "path_back[W - 2 - k]", "path_back[k]"),
        ("_along_paths", "window[KEPT - m][None, :]", "window[KEPT - 1][None, :]"),
        ("_along_paths", "tl.static_range(1, W - k)", "tl.static_range(1, W - 1 - k)"),
        ("_along_paths", "value * taps[k]", "value * taps[W - 1 - k]"),
        ("_conv_tree_kernel", "C_i = real[:, None] &", "C_i = (i >= 0)[:, None] &"),
        ("_conv_tree_kernel", "tl.where(real[:, None], acc, 0.0)", "acc"),
        ("_conv_tree_kernel", "b * stride_parents_b", "slot * stride_parents_b"),
        ("_conv_tree_kernel", "W, 0 if COMMIT else 1,", "W, 0,"),
        ("_conv_tree_kernel", "        if COMMIT:\n", "        if COMMIT and False:\n"),
        ("_conv_tree_kernel", "* stride_u.t + c[None, :]", "* stride_y_t + c[None, :]"),
    ],
    shortconv_tree: [
        ("_conv_tree_kernel", "if slot >= 0:", "if slot > 0:"),
        ("_along_paths", "tl.gather(parent, at, 0), q - 1", "tl.gather(parent, at, 0), q"),
        ("_along_paths", "window[KEPT - m]", "window[KEPT - 1 - m]"),
        ("_conv_tree_kernel", "given >= -1", "given >= 0"),
        ("_conv_tree_kernel", "acc = C_i * acc", "pass"),
        ("_along_paths", "taps[W - 1][None, :]", "taps[0][None, :]"),
        ("_along_paths", "q = path_back[W - 2 - k]", "q = tl.arange(0, inputs.shape[0]) - (W - 1 - k)"),
        ("_conv_tree_kernel", "tl.load(C_at, mask=whole", "tl.load(C_at, mask=inside[None, :]"),
        ("_conv_tree_kernel", "parents + b * stride_parents_b", "parents"),
        ("load_product", "return B_t * tl.load", "return tl.load"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(("module", "at", "old", "new"), planted(MUTANTS))
def test_planted_faults_are_caught(module: ModuleType, at: str, old: str, new: str) -> None:
    assert caught(mutated(module, old, new, at=at), check, COVERS[module])
