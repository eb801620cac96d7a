"""The tree scan of SSD: every node against the oracle within its bound, and no byte of state written."""

from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from conformance.interpreter.memory import watch
from ssmspec_kernels.ssd import ssd_tree_scan as kernel
from ssmspec_kernels.ssd.ssd_window import ssd_window
from ssmspec_ref import error_bounds as eb
from ssmspec_ref import tree
from ssmspec_ref.shapes import Array
from ssmspec_ref.ssd import tree as ssd_tree
from tests.kernels import ssd_cases as cases
from tests.kernels.mutants import mutated
from tests.kernels.ssd_cases import Case, Options

COVER = [
    Options(t=13, D="channel", z=True, poison=7.0),
    Options(t=15, io="bf16", gentle=True, g=1, p=35, n=33, h=2, limit=(0.05, 0.8), z=True, seed=1),
    Options(t=7, io="fp16", state="fp16", D="", seed=2),
    Options(b=2, t=63, io="bf16", state="bf16", h=2, g=1, p=5, n=16, softplus=False, bias=False, seed=3),
    Options(b=1, t=128, h=1, g=1, p=3, n=17, gentle=True, io="bf16", seed=4),
    Options(b=1, t=1, io="bf16", seed=5),
]


def draw(o: Options, padding: bool = True) -> tuple[Case, torch.Tensor]:
    """A case, and the mask of a tree for each row; what stands at a padding node is NaN."""
    case = cases.draw(o, padding)
    mask = cases.forest(o)
    dead = torch.from_numpy(~np.einsum("btt -> bt", mask))
    for x in (case.x, case.dt, case.B, case.C, case.extra.get("z")):
        if x is not None:
            x[dead] = float("nan")
    return case, torch.from_numpy(mask)


def oracle(case: Case, mask: torch.Tensor, **changes: Any) -> tuple[Any, Array]:
    ancestors = mask.numpy()[case.rows]
    window = case.window(np.einsum("btt -> bt", ancestors))
    return eb.ssd.tree(case.state(), window, ancestors, case.params(), case.options.contract(**changes)), ancestors


def check_bound(module: ModuleType, o: Options, **tiles: int) -> None:
    (case, mask), (fresh, _) = draw(o), draw(o)
    pair, ancestors = oracle(case, mask)
    expected = ssd_tree.scan(case.state(), case.window(np.einsum("btt -> bt", ancestors)), ancestors, case.params())
    assert np.max(np.abs(expected - pair.value)) <= 1e-10 * np.max(np.abs(expected))
    before = case.before(mask=mask)
    assert case.call(module.ssd_tree_scan, ancestors=mask, **tiles) is case.out
    cases.assert_within("y", case.out, pair, case.rows)
    case.out[case.rows] = fresh.out[case.rows]
    cases.unchanged(before)


def check_bytes(module: ModuleType, o: Options, **tiles: int) -> None:
    case, _ = draw(o, padding=False)
    mask = torch.ones(o.b, o.t, o.t, dtype=torch.bool).tril()
    for x in (case.x, case.dt, case.B, case.C):
        x.nan_to_num_(1.0)
    named = {name: getattr(case, name) for name in ("S", "x", "dt", "B", "C", "out")}
    params = {name: x for name, x in case.extra.items() if name != "z"} | {"A": case.A, "slots": case.slots}
    gate = {"z": case.extra["z"]} if o.z else {}
    with watch(**named, **params, **gate, mask=mask) as seen:
        case.call(module.ssd_tree_scan, ancestors=mask, **tiles)
    left_out = sum(seen.loaded(name).distinct for name in params)
    sizes = {"state": case.S.element_size(), "io": case.x.element_size()}
    assert seen.distinct_bytes() - left_out == module.traffic_bytes(o.b, o.t, o.h, o.p, o.n, o.g, **sizes, z=o.z)
    assert seen.loaded("S").requested == o.b * o.h * o.p * o.n * sizes["state"]
    assert seen.stored("S").requested == 0
    assert seen.loaded("x").requested == o.b * o.t * o.h * o.p * sizes["io"]
    assert seen.outside == seen.races == []


@pytest.mark.parametrize("o", COVER, ids=str)
def test_every_node_lies_within_the_bound_and_nothing_else_is_written(o: Options) -> None:
    check_bound(kernel, o)


def test_every_split_of_the_channels_lies_within_the_bound() -> None:
    for t, block, program, heads in ((9, 16, 16, 1), (9, 16, 64, 2), (18, 16, 16, 1), (18, 32, 64, 2)):
        check_bound(kernel, Options(t=t, p=50, io="bf16", z=True), block_p=block, program_p=program, heads=heads)


@pytest.mark.parametrize("o", [Options(t=9, p=3, n=5), Options(t=6, p=6, n=9, io="bf16", g=1, seed=1)], ids=str)
def test_integers_come_out_exactly(o: Options) -> None:
    case, window, params, S = cases.exact(o)
    mask = cases.forest(o)
    y = ssd_tree.scan(S, window, mask, params)
    case.call(kernel.ssd_tree_scan, ancestors=torch.from_numpy(mask))
    assert torch.equal(case.out, torch.from_numpy(y).to(case.out.dtype))


def test_a_tree_with_one_path_is_a_window_bit_for_bit() -> None:
    o = Options(t=6, io="bf16", z=True)
    case, other = cases.draw(o), cases.draw(o)
    mask = torch.ones(o.b, o.t, o.t, dtype=torch.bool).tril()
    case.call(kernel.ssd_tree_scan, ancestors=mask)
    other.call(ssd_window, write_state=False)
    pair, _ = oracle(other, mask)
    cases.assert_within("y", case.out, pair, case.rows)
    assert torch.equal(case.out[case.rows], other.out[case.rows])


def test_a_node_does_not_see_its_siblings() -> None:
    """Whatever finite values stand in a branch, the other branches have the same bits."""
    o = Options(b=1, t=7, h=2)
    case, other = cases.draw(o, padding=False), cases.draw(o, padding=False)
    mask = torch.from_numpy(tree.ancestors(np.array([[-1, 0, 0, 1, 2, 2, 3]])))
    for x in (other.x, other.dt, other.B, other.C):
        x[:, [2, 4, 5]] = 3.0
    rest = [0, 1, 3, 6]
    assert torch.equal(
        case.call(kernel.ssd_tree_scan, ancestors=mask)[:, rest].clone(),
        other.call(kernel.ssd_tree_scan, ancestors=mask)[:, rest],
    )


@pytest.mark.parametrize("o", [Options(b=2, t=13, p=19, z=True), Options(b=2, t=17, io="bf16", state="bf16", g=1)], ids=str)
def test_bytes_equal_the_formula_and_the_state_and_every_node_are_read_once(o: Options) -> None:
    check_bytes(kernel, o)
    check_bytes(kernel, o, block_p=16, program_p=32)


def check_all(module: ModuleType) -> None:
    for o in (COVER[0], COVER[2], replace(COVER[1], b=2)):
        check_bound(module, o)
    check_bound(module, Options(b=2, t=17, h=2, g=1, n=40, io="bf16"), heads=2)
    check_bytes(module, Options(b=1, h=2, t=5))


def test_the_formula_counts_a_gate_where_there_is_one() -> None:
    sizes: dict[str, Any] = {"b": 2, "t": 5, "h": 4, "p": 8, "n": 16, "g": 2}
    assert kernel.traffic_bytes(**sizes, z=True) - kernel.traffic_bytes(**sizes) == 2 * 2 * 5 * 4 * 8


FAULTS = [
    ("given, None, ancestors, False, out", "given, None, ancestors, True, out", None),
    ("real &= real_nodes(at_anc,", "in_t &= real_nodes(at_anc,", "_load_seen"),
    ("stride.t + stride.j", "stride.t", "real_nodes"),
    ("at_anc + t[:, None] * stride_anc.t + t[None, :]", "at_anc + t[None, :] * stride_anc.t + t[:, None]",
     "_load_seen"),
    ("at_anc = ancestors + b * stride_anc.b", "at_anc = ancestors", "_load_seen"),
    ("dot_right(before.to(tl.bfloat16), lds)", "dot_right(tl.trans(before.to(tl.bfloat16)), lds)", "ssd_window_kernel"),
    ("dot_right(before.to(tl.bfloat16), lds)", "tl.cumsum(lds, axis=0)", "ssd_window_kernel"),
    ("G[:, None] - G[None, :]", "G[:, None] - G[:, None]", "_weights_of_head"),
    ("tl.exp(G)[:, None] * dot", "tl.exp(-G)[:, None] * dot", "_read_tile"),
    ("tl.exp(G)[None, :] * from", "tl.exp(-G)[None, :] * from", "_read_tile"),
    ("dot_onto(from_state, right", "dot_onto(from_state, left", "_read_tile"),
    ("tl.where(k[None, :] == head, Gs", "tl.where(k[None, :] == 0, Gs", "_weights_of_head"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "at"), FAULTS, ids=[new for _, new, _ in FAULTS])
def test_planted_fault_is_caught(old: str, new: str, at: str | None) -> None:
    mutant = mutated(kernel, old, new, at=at)
    with pytest.raises(AssertionError):
        check_all(mutant)
