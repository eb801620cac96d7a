"""Mamba-3's kernel for trees: the oracle, a chain, planted faults."""

from types import ModuleType

import numpy as np
import pytest
import torch

from ssmspec_kernels.mamba3 import mamba3_scan, mamba3_tree
from ssmspec_ref import error_bounds as eb
from ssmspec_ref import tree
from ssmspec_ref.shapes import Array
from tests.kernels import conv_cases
from tests.kernels.conv_cases import tree_mask
from tests.kernels.mamba3_cases import GAPS, Case, Options, case
from tests.kernels.mutants import caught, mutated
from tests.kernels.tensors import BYTES, Kept, check_within, contract, watch
from tests.kernels.test_mamba3_scan import check_moved, sizes

CASES = [
    Options(t=9),
    Options(t=7, r=2, h=4, g=2, n=4, halves=True, maps=True, z=True, io="bf16", index=torch.int64, seed=1),
    Options(t=1, b=2, r=3, z=True, D=False, state="bf16", io="bf16", seed=2),
    Options(t=19, b=2, h=1, p=2, n=8, f=4, halves=True, seed=3),
]


def branched(o: Options) -> tuple[Case, Array]:
    """A case with a tree for each row, NaN at padding, and a mask that says nothing there."""
    made, parents = case(o), conv_cases.forest(conv_cases.Options(b=o.b, t=o.t, seed=o.seed))
    if o.t > 2:
        parents[0, -1] = tree.PADDING
    for name in GAPS:
        if name in made.tensors:
            made.tensors[name][torch.from_numpy(parents == tree.PADDING)] = float("nan")
    mask = tree_mask(parents)
    made.tensors["ancestors"] = torch.from_numpy(mask)
    return made, mask[made.rows]


def check(module: ModuleType, o: Options) -> None:
    """One call judged in full: outputs, bystanders, the state too."""
    made, mask = branched(o)
    tensors = {name: x for name, x in made.tensors.items() if isinstance(x, torch.Tensor)}
    kept = Kept(**tensors)
    with watch(**tensors) as seen:
        got = module.mamba3_tree(**made.tensors)
    assert got is made.tensors["out"]
    real = np.einsum("btt -> bt", mask).sum(axis=1)
    token = o.h * (o.p * (2 if o.z else 1) + 3) + o.f + 2 * o.r * o.g * o.n
    told = {"state": BYTES[o.state], "io": BYTES[o.io], "z": o.z}
    unread = int((o.t - real).sum()) * token * BYTES[o.io]
    unread += int((o.t**2 - real**2 - (o.t - real)).sum())  # of the mask only the diagonal says that a node is padding
    check_moved(seen, module.traffic_bytes(len(made.rows), o.t, *sizes(o), **told) - unread)
    kept.check(out=torch.from_numpy(made.rows))
    y = eb.mamba3.tree(made.S0, made.window, mask, made.params, contract(o.state, o.io))
    check_within(made.outputs, y)
    assert not made.outputs[~np.einsum("btt -> bt", mask)].any()


@pytest.mark.parametrize("o", CASES, ids=str)
def test_a_tree_equals_the_oracle_and_touches_nothing_else(o: Options) -> None:
    check(mamba3_tree, o)


def test_a_chain_is_a_window() -> None:
    o = Options(t=4, r=2, b=2, padding=False)
    made = case(o)
    window = mamba3_scan.mamba3_scan(**made.without("out"), write_state=False)
    y = mamba3_tree.mamba3_tree(
        **made.without("out"), ancestors=torch.ones(o.t, o.t, dtype=torch.bool).tril().repeat(o.b, 1, 1)
    )
    torch.testing.assert_close(y, window, rtol=1e-4, atol=1e-4)


MUTANTS = [
    ("pair_weights", "+ dot_both(before, of_child", "+ 0.0 * dot_both(before, of_child"),
    ("pair_weights", "n[None, :] < n[:, None]", "n[None, :] <= n[:, None]"),
    ("pair_weights", "tl.exp(ld) * dt_t * (1.0 - share)", "dt_t * (1.0 - share)"),
    ("pair_weights", "(parent < 0)[None, :], before", "(parent < 1)[None, :], before"),
    ("angles_of", "th[None, :] + dot_both", "dot_both"),
    ("angles_of", "dot_both(sees.to(tl.float32), turned", "dot_both(sees.to(tl.float32), 0.5 * turned"),
    ("rotated_rows", "one * cos - two * sin, one * sin", "one * cos + two * sin, one * sin"),
    ("mamba3_tree_kernel", "o = decayed[:, None] * (", "o = ("),
    ("mamba3_tree_kernel", "C_bias + (h * R + r) * N", "C_bias + h * R * N"),
    ("mamba3_tree_kernel", "mapped(x_t, at_up, i[None, :], s, P)", "mapped(x_t, at_up, i[None, :], r, P)"),
    ("mamba3_tree_kernel", "if slot >= 0:", "if slot > 0:"),
    ("mamba3_tree_kernel", "tl.where(real[:, None], y_t, 0.0)", "y_t"),
]  # fmt: skip


@pytest.mark.parametrize(("at", "old", "new"), MUTANTS)
def test_planted_faults_of_trees_are_caught(at: str, old: str, new: str) -> None:
    assert caught(mutated(mamba3_tree, old, new, at=at), check, CASES)
