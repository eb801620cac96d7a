"""The selective scan's kernel for trees, against the oracle, its bytes, and planted faults."""

from types import ModuleType

import numpy as np
import pytest
import torch

from ssmspec_kernels.selective import selective_tree
from ssmspec_ref import error_bounds as eb
from ssmspec_ref import tree
from tests.kernels.conv_cases import forest, tree_mask
from tests.kernels.device import COMPILED
from tests.kernels.mutants import caught, mutated
from tests.kernels.selective_cases import Case, Options, case
from tests.kernels.tensors import BYTES, Kept, check_bytes, check_within, contract, far, watch

CASES = [
    Options(t=7),
    Options(t=9, gentle=True, seed=1),
    Options(t=5, d=5, n=16, state="bf16", io="bf16", D=False, index=torch.int64, seed=2),
    Options(t=12, d=6, n=3, state="fp16", io="fp16", z=False, gentle=True, seed=3),
    Options(t=16, d=3, n=4, bias=False, padding=False, seed=4),
    Options(t=1, b=2, d=7, n=2, D=False, z=False, bias=False, softplus=False, seed=5),
    Options(t=21, b=3, d=2, n=3, whole=True, z=False, seed=6),
    Options(t=64, b=2, d=2, n=2, io="bf16", gentle=True, seed=7),
]


def grown(o: Options) -> Case:
    """A case with a tree for each row, NaN in its padding."""
    made, parents = case(o), forest(o)
    padding = torch.from_numpy(parents == tree.PADDING)
    for name in ("x", "dt", "B", "C", *(["z"] if o.z else [])):
        made.tensors[name][padding] = float("nan")
    made.tensors["parents"] = torch.from_numpy(parents).to(o.index)
    return made


def check(module: ModuleType, o: Options) -> None:
    """One call judged in full: outputs, bystanders, bytes; the state is read once and never written."""
    made = grown(o)
    kept = Kept(**made.tensors)
    with watch(**made.tensors) as seen:
        got = module.selective_tree(**made.tensors, **made.settings, block_d=4)
    assert got is made.tensors["out"]
    kept.check(out=torch.from_numpy(made.rows))
    parents = made.tensors["parents"].numpy()[made.rows]
    y = eb.selective.tree(made.S0, made.window, tree_mask(parents), made.params, contract(o.state, o.io, order="output_only"))
    if o.whole:
        assert np.array_equal(made.outputs, y.value)
    check_within(made.outputs, y)
    io, nodes = BYTES[o.io], int((parents != tree.PADDING).sum())
    expected = module.traffic_bytes(len(made.rows), nodes, o.d, o.n, state=BYTES[o.state], io=io, z=o.z)
    expected += (made.outputs.size - nodes * o.d) * io  # the zeros at padding
    # Every program of a row reads its B and C; they cross the bus once.
    narrow = {name: seen.loaded(name).distinct for name in ("B", "C")}
    assert COMPILED or narrow == dict.fromkeys(("B", "C"), nodes * o.n * io)
    once, apart = ("S", "x", "dt", "z", "out"), ("A", "B", "C", "D", "dt_bias", "slots", "parents")
    check_bytes(seen, expected - sum(narrow.values()), once, apart)
    assert seen.stored("S").requested == 0


@pytest.mark.parametrize("o", CASES, ids=str)
def test_a_tree_equals_the_oracle_and_touches_nothing_else(o: Options) -> None:
    check(selective_tree, o)


def test_siblings_may_change_places() -> None:
    made = case(Options(t=5, padding=False, seed=8))
    made.tensors["parents"] = torch.tensor([[-1, 0, 0, 1, 2]] * 4)
    y = selective_tree.selective_tree(**made.tensors).clone()
    order = [0, 2, 1, 3, 4]  # the children 1 and 2 change places; so do their parents' names
    for name in ("x", "dt", "B", "C", "z"):
        made.tensors[name] = made.tensors[name][:, order].contiguous()
    made.tensors["parents"] = torch.tensor([[-1, 0, 0, 2, 1]] * 4)
    assert torch.equal(selective_tree.selective_tree(**made.tensors), y[:, order])


def test_what_lies_beside_a_path_does_not_reach_it() -> None:
    made = case(Options(t=4, padding=False, seed=9))
    made.tensors["parents"] = torch.tensor([[-1, 0, 0, 2]] * 4)
    y = selective_tree.selective_tree(**made.tensors).clone()
    made.tensors["x"][:, 1] = float("nan")
    again = selective_tree.selective_tree(**made.tensors)
    assert torch.equal(again[:, [0, 2, 3]], y[:, [0, 2, 3]])
    assert again[:, 1].isnan().all()


@pytest.mark.parametrize("bad", [[-1, 2, 0, 7], [3, 3, 3, 3], [-1, 0, 127, 1]])
def test_parents_out_of_order_end_and_read_nothing_outside(bad: list[int]) -> None:
    made = case(Options(t=4))
    made.tensors["parents"] = torch.tensor([bad] * 4)
    with watch(**made.tensors) as seen:
        selective_tree.selective_tree(**made.tensors)
    assert seen.outside == []


PARENTS = torch.arange(-1, 2).repeat(4, 1)


def test_nodes_beyond_2_to_the_31_elements_are_reached() -> None:
    near = case(Options(b=1, d=3, n=2, io="bf16", padding=False)).tensors | {"parents": PARENTS[:1]}
    y = selective_tree.selective_tree(**near).clone()
    assert torch.equal(selective_tree.selective_tree(**{**near, "x": far(near["x"], 1)}), y)


MUTANTS = [
    ("_selective_tree_kernel", "if slot >= 0:", "if slot > 0:"),
    ("_selective_tree_kernel", "real = parent >= -1", "real = parent >= 0"),
    ("_selective_tree_kernel", "while tl.max(p, axis=0) >= 0:", "while tl.max(p, axis=0) > 0:"),
    ("_selective_tree_kernel", "a * tl.gather(U, rows, 0) + U", "tl.gather(U, rows, 0) + U"),
    ("_selective_tree_kernel", "a = tl.where(reached, a * tl.gather(a, rows, 0), a)", "a = tl.where(reached, a * a, a)"),
    ("_selective_tree_kernel", "p = tl.where(p >= 0, tl.gather(p, at, 0), p)", "p = tl.where(p >= 0, p - 1, p)"),
    ("_selective_tree_kernel", "p = tl.minimum(parent, i - 1)", "p = i - 1"),
    ("_selective_tree_kernel", "(a * state[None, :, :] + U)", "U"),
    ("_selective_tree_kernel", "step = softplus(step)", "step = tl.maximum(step, 0.0)"),
    ("_selective_tree_kernel", "slot * stride_S_s", "b * stride_S_s"),
    ("_selective_tree_kernel", "tl.where(real[:, None], y_t, 0.0)", "tl.where(real[:, None], y_t, 1.0)"),
    ("_selective_tree_kernel", "b * stride_parents_b", "slot * stride_parents_b"),
    ("_selective_tree_kernel", "states = real[:, None] & (n < N)[None, :]", "states = (n < N)[None, :] & (i < T)[:, None]"),
    ("_selective_tree_kernel", "t[:, None] * stride_C_t", "t[:, None] * stride_B_t"),
]


@pytest.mark.parametrize(("at", "old", "new"), MUTANTS)
def test_planted_faults_are_caught(at: str, old: str, new: str) -> None:
    assert caught(mutated(selective_tree, old, new, at=at), check, CASES)
