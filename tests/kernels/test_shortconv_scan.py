"""The short convolution's kernels for windows, states after every token, and trees: oracle, bytes, bits, planted faults."""

from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from ssmspec_kernels.shortconv import shortconv_scan, shortconv_snapshots, shortconv_tree
from ssmspec_ref import error_bounds as eb
from ssmspec_ref import shortconv, tree
from tests.kernels import conv_cases
from tests.kernels.conv_cases import tree_mask
from tests.kernels.mutants import caught, mutated
from tests.kernels.shortconv_cases import Case, Options, case
from tests.kernels.tensors import BYTES, Kept, check_bytes, check_within, contract, doubles, watch

CASES = [
    Options(),
    Options(t=1, w=2, state="bf16", io="bf16", seed=1),
    Options(t=6, live=True, io="bf16", index=torch.int64, seed=2),
    Options(t=4, d=5, w=4, state="fp16", io="fp16", bias=False, seed=3),
    Options(t=3, d=9, w=8, write=False, live=True, seed=4),
    Options(t=2, b=1, d=17, w=5, state="bf16", io="fp32", seed=5),
    Options(t=9, b=3, d=3, live=True, whole=True, seed=6),
    Options(t=40, b=2, d=2, live=True, io="bf16", seed=7),
]
APART = ("weight", "bias", "slots", "live", "places", "parents")


def check(module: ModuleType, o: Options) -> None:
    """One call judged in full: outputs, state, bystanders, bytes."""
    made = case(o)
    kept, start = Kept(**made.tensors), doubles(made.tensors["S"][made.named])
    with watch(**made.tensors) as seen:
        got = module.shortconv_scan(**made.tensors, write_state=o.write, block_d=4)
    assert got is made.tensors["out"]
    kept.check(out=torch.from_numpy(made.rows), **({"S": made.named} if o.write else {}))
    y, S = eb.shortconv.scan(made.S0, made.window, made.params, contract(o.state, o.io), made.live)
    after = doubles(made.tensors["S"][made.named])
    if o.whole:
        assert np.array_equal(made.outputs, y.value)
    check_within(made.outputs, y)
    if o.write:
        check_within(after, S)
    else:
        assert np.array_equal(after, start)
    assert not made.outputs[~made.live].any()
    sizes = {"state": BYTES[o.state], "io": BYTES[o.io], "write_state": o.write}
    expected = module.traffic_bytes(len(made.rows), o.t, o.d, o.w, **sizes) - int((~made.live).sum()) * 3 * o.d * BYTES[o.io]
    check_bytes(seen, expected, ("S", "B", "C", "x", "out"), APART)


@pytest.mark.parametrize("o", CASES, ids=str)
def test_a_window_equals_the_oracle_and_touches_nothing_else(o: Options) -> None:
    check(shortconv_scan, o)


@pytest.mark.parametrize("t", [5, 33, 40])
def test_a_window_equals_its_tokens_one_by_one_bit_for_bit(t: int) -> None:
    """Longer windows are a loop, shorter ones are not."""
    made, alone, steps = case(Options(t=t, d=5, padding=False)), case(Options(t=t, d=5, padding=False)).tensors["S"], []
    fixed = {name: made.tensors[name] for name in ("weight", "bias", "slots")}
    for i in range(t):
        token = (made.tensors[name][:, i : i + 1] for name in "BCx")
        steps.append(shortconv_scan.shortconv_scan(alone, *token, **fixed))
    y = shortconv_scan.shortconv_scan(**made.without("out"))
    assert torch.equal(y, torch.cat(steps, dim=1))
    assert torch.equal(alone[made.named], made.tensors["S"][made.named])


def test_rows_share_a_state_that_is_not_written() -> None:
    made = case(Options(b=2, padding=False, write=False, seed=12))
    made.tensors["slots"][:] = 0
    for name in "BCx":
        made.tensors[name][0] = made.tensors[name][1]
    y = shortconv_scan.shortconv_scan(**made.tensors, write_state=False)
    assert torch.equal(y[0], y[1])


# --- a state for every token ---

KEEPING = [
    Options(t=4, places=20),
    Options(t=5, w=4, live=True, state="bf16", io="bf16", places=24, seed=1),
    Options(t=34, b=2, d=3, w=2, io="bf16", index=torch.int64, places=70, seed=2),
]


def check_states(module: ModuleType, o: Options) -> None:
    """Outputs and every state within the bound, each in its place; nothing for a negative place; bytes."""
    made = case(o)
    made.places[0, 0] = -1
    made.tensors["places"] = torch.from_numpy(made.places).to(o.index)
    own = made.places[made.rows]
    kept = Kept(**made.tensors)
    with watch(**made.tensors) as seen:
        module.shortconv_snapshots(**made.tensors, block_d=4)
    kept.check(out=torch.from_numpy(made.rows), S=torch.from_numpy(own[own >= 0]))
    rules = contract(o.state, o.io)
    for t in range(o.t):
        first = replace(made.window, **{name: getattr(made.window, name)[:, : t + 1] for name in "BCx"})
        y, S = eb.shortconv.scan(made.S0, first, made.params, rules, made.live[:, : t + 1])
        there = own[:, t] >= 0
        check_within(doubles(made.tensors["S"][torch.from_numpy(own[there, t])]), S.map(lambda a, on=there: a[on]))  # type: ignore[misc]
    check_within(made.outputs, y)
    state, io = BYTES[o.state], BYTES[o.io]
    expected = module.traffic_bytes(len(made.rows), o.t, o.d, o.w, state=state, io=io)
    expected -= int((~made.live).sum()) * 3 * o.d * io + int((own < 0).sum()) * o.d * (o.w - 1) * state
    check_bytes(seen, expected, ("S", "B", "C", "x", "out"), APART)


@pytest.mark.parametrize("o", KEEPING, ids=str)
def test_every_state_equals_the_oracle_and_nothing_else_is_written(o: Options) -> None:
    check_states(shortconv_snapshots, o)


# --- trees ---

TREES = [
    Options(t=9),
    Options(t=13, d=5, w=2, state="bf16", io="bf16", bias=False, seed=1),
    Options(t=12, d=8, w=8, state="fp16", io="fp16", index=torch.int64, seed=2),
    Options(t=1, b=2, d=7, w=4, io="bf16", seed=3),
    Options(t=21, b=3, d=4, w=6, whole=True, padding=False, seed=4),
    Options(t=128, b=2, d=2, io="bf16", seed=5),
]


def branched(o: Options) -> tuple[Case, Any]:
    """A case with a tree for each row, NaN at padding."""
    made, parents = case(o), conv_cases.forest(conv_cases.Options(b=o.b, t=o.t, seed=o.seed))
    for name in "BCx":
        made.tensors[name][torch.from_numpy(parents == tree.PADDING)] = float("nan")
    made.tensors["parents"] = torch.from_numpy(parents).to(o.index)
    return made, parents[made.rows]


def check_tree(module: ModuleType, o: Options) -> None:
    """One call judged in full: outputs, bystanders, the state too, bytes."""
    made, parents = branched(o)
    kept = Kept(**made.tensors)
    with watch(**made.tensors) as seen:
        got = module.shortconv_tree(**made.tensors, block_d=8)
    assert got is made.tensors["out"]
    kept.check(out=torch.from_numpy(made.rows))
    y = eb.shortconv.tree(made.S0, made.window, tree_mask(parents), made.params, contract(o.state, o.io))
    if o.whole:
        assert np.array_equal(made.outputs, y.value)
    check_within(made.outputs, y)
    nodes, io = int((parents != tree.PADDING).sum()), BYTES[o.io]
    expected = module.traffic_bytes(len(made.rows), nodes, o.d, o.w, state=BYTES[o.state], io=io)
    check_bytes(seen, expected + (made.outputs.size - nodes * o.d) * io, ("S", "B", "C", "x", "out"), APART)


@pytest.mark.parametrize("o", TREES, ids=str)
def test_a_tree_equals_the_oracle_and_touches_nothing_else(o: Options) -> None:
    check_tree(shortconv_tree, o)


def test_a_chain_is_the_tree_with_one_path_bit_for_bit() -> None:
    made = case(Options(t=6, padding=False))
    window = shortconv_scan.shortconv_scan(**made.without("out"), write_state=False)
    y = shortconv_tree.shortconv_tree(**made.without("out"), parents=torch.arange(-1, 5).repeat(4, 1))
    assert torch.equal(y, window)


@pytest.mark.parametrize("bad", [[-1, 2, 0, 7], [3, 3, 3, 3], [-1, 0, 127, 1]])
def test_parents_out_of_order_read_nothing_outside(bad: list[int]) -> None:
    made = case(Options(t=4))
    made.tensors["parents"] = torch.tensor([bad] * 4)
    with watch(**made.tensors) as seen:
        shortconv_tree.shortconv_tree(**made.tensors)
    assert seen.outside == []


MUTANTS = [
    ("shortconv_scan_kernel", "if slot >= 0:", "if slot > 0:"),
    ("shortconv_scan_kernel", "        if WRITE_STATE:\n", "        if not WRITE_STATE:\n"),
    ("shortconv_scan_kernel", "for t in range(tokens):", "for t in range(tokens - 1):"),
    ("shortconv_scan_kernel", "C + b * stride_C_b", "C + slot * stride_C_b"),
    ("_token", "t * stride_C_t", "t * stride_B_t"),
    ("_token", "live + t * stride_live_t", "live"),
    ("read_token", "y_t = C_t * filtered(", "y_t = filtered("),
    ("read_token", "C_t = tl.load(C, mask=there", "C_t = tl.load(C, mask=inside"),
    ("read_token", "tl.where(real, columns[k + 1], columns[k])", "columns[k + 1]"),
    ("read_token", "tl.where(real, y_t, 0.0)", "tl.where(real, y_t, 1.0)"),
    ("load_product", "return B_t * tl.load(x, mask=there, other=0.0)", "return B_t + tl.load(x, mask=there, other=0.0)"),
    ("load_product", "return B_t * tl.load", "return tl.load"),
    ("filtered", "y = shift", "y = tl.zeros_like(shift)"),
]  # fmt: skip


@pytest.mark.parametrize(("at", "old", "new"), MUTANTS)
def test_planted_faults_of_windows_are_caught(at: str, old: str, new: str) -> None:
    assert caught(mutated(shortconv_scan, old, new, at=at), check, CASES)


KEPT = [
    ("_token", "if place >= 0:", "if place > 99:"),
    ("_token", "if place >= 0:", "if place != -2:"),
    ("_token", "places + t * stride_places_t", "places"),
    ("_token", "S + place * stride_S_s", "S + (place + 1) * stride_S_s"),
    ("shortconv_scan_kernel", "places + b * stride_places_b", "places"),
    ("shortconv_snapshots", "WRITE_STATE=False", "WRITE_STATE=True"),
]


@pytest.mark.parametrize(("at", "old", "new"), KEPT)
def test_planted_faults_of_kept_states_are_caught(at: str, old: str, new: str) -> None:
    assert caught(mutated(shortconv_snapshots, old, new, at=at), check_states, KEEPING)


BRANCHES = [
    ("_shortconv_tree_kernel", "if slot >= 0:", "if slot > 0:"),
    ("_shortconv_tree_kernel", "tl.gather(parent, at, 0), q - 1", "tl.gather(parent, at, 0), q"),
    ("_shortconv_tree_kernel", "window[W - 1 - m]", "window[W - 2 - m]"),
    ("_shortconv_tree_kernel", "given >= -1", "given >= 0"),
    ("_shortconv_tree_kernel", "tl.where(real[:, None], C_i * acc, 0.0)", "acc"),
    ("_shortconv_tree_kernel", "taps[W - 1][None, :]", "taps[0][None, :]"),
    ("_shortconv_tree_kernel", "q = path_back[W - 2 - k]", "q = i - (W - 1 - k)"),
    ("_shortconv_tree_kernel", "tl.load(C_at, mask=whole", "tl.load(C_at, mask=inside[None, :]"),
    ("_shortconv_tree_kernel", "parents + b * stride_parents_b", "parents"),
    ("load_product", "return B_t * tl.load", "return tl.load"),
]


@pytest.mark.parametrize(("at", "old", "new"), BRANCHES)
def test_planted_faults_of_trees_are_caught(at: str, old: str, new: str) -> None:
    assert caught(mutated(shortconv_tree, old, new, at=at), check_tree, TREES)


def test_the_state_of_the_reference_is_that_of_the_kernels() -> None:
    """Products, oldest first: what the oracle hands over is taken as it is."""
    made = case(Options(io="fp32", padding=False))
    shortconv_scan.shortconv_scan(**made.tensors)
    _, S = shortconv.scan(made.S0, made.window, made.params)
    assert np.allclose(doubles(made.tensors["S"][made.named]), S, rtol=1e-6, atol=0)
