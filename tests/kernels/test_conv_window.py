"""Windows of both convolutions: a token, several, all their states; oracle, bytes, bystanders, bits, planted faults."""

from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from ssmspec_kernels.conv import conv_step, conv_window
from ssmspec_kernels.shortconv import shortconv_scan, shortconv_snapshots
from ssmspec_ref import conv, shortconv
from ssmspec_ref import error_bounds as eb
from tests.kernels.conv_cases import Case, Options, case, short
from tests.kernels.covers import covered, planted
from tests.kernels.mutants import caught, mutated
from tests.kernels.tensors import Kept, check_bytes, check_within, contract, doubles, watch

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
STEPS = [
    Options(t=1),
    Options(t=1, c=5, w=2, state="bf16", io="bf16", bias=False, seed=1),
    Options(t=1, c=16, w=3, state="fp32", io="bf16", activation=False, index=torch.int64, seed=2),
    Options(t=1, c=9, w=8, state="fp16", io="fp16", padding=False, seed=3),
    Options(t=1, c=19, w=5, state="fp32", io="fp16", bias=False, activation=False, seed=4),
    Options(t=1, b=1, c=3, w=4, state="bf16", io="fp32", seed=5),
    Options(t=1, w=7, c=13, whole=True, seed=6),
]
SHORT = [
    short(),
    short(t=1, w=2, state="bf16", io="bf16", seed=1),
    short(t=6, live=True, io="bf16", index=torch.int64, seed=2),
    short(t=4, c=5, w=4, state="fp16", io="fp16", bias=False, seed=3),
    short(t=3, c=9, w=8, keep="none", live=True, seed=4),
    short(t=2, b=1, c=17, w=5, state="bf16", io="fp32", seed=5),
    short(t=9, b=3, c=3, live=True, whole=True, seed=6),
    short(t=40, b=2, c=2, live=True, io="bf16", seed=7),
]
KEEPING = [
    short(t=4, places=20),
    short(t=5, w=4, live=True, state="bf16", io="bf16", places=24, seed=1),
    short(t=34, b=2, c=3, w=2, io="bf16", index=torch.int64, places=70, seed=2),
]
COVERS = {conv_window: CASES, conv_step: STEPS, shortconv_scan: SHORT, shortconv_snapshots: KEEPING}
APART = ("weight", "bias", "slots", "live", "places", "advanced", "path")


def crossing(module: ModuleType, made: Case) -> int:
    """`traffic_bytes`, less what the no-ops of this case save, and the states for which there is no place."""
    o, sizes, live_rows = made.options, made.options.bytes, len(made.rows)
    dead, whole = int((~made.live).sum()), (live_rows, o.t, o.c, o.w)
    if o.places:
        unkept = int((made.places[made.rows] < 0).sum()) * o.c * o.columns
        total: int = module.traffic_bytes(*whole, **sizes) - unkept * sizes["state"]
    elif o.short:
        total = module.traffic_bytes(*whole, **sizes, write_state=o.keep == "final")
    elif "step" in module.__name__:
        total = module.traffic_bytes(live_rows, o.c, o.w, **sizes)
    else:
        taken = [int(a) for a in made.taken] if o.replay else [None] * live_rows
        total = sum(module.traffic_bytes(1, *whole[1:], **sizes, keep=o.keep, advanced=a) for a in taken)
        still = 0 if o.replay or o.keep != "final" else int((~made.live.any(axis=1)).sum())
        total -= still * o.c * o.w * sizes["state"]
    return total - dead * len(o.inputs) * o.c * sizes["io"]


def check(module: ModuleType, o: Options) -> None:
    """One call judged in full: outputs, state, bystanders, bytes."""
    made, step = case(o), "step" in module.__name__
    if step or (o.replay is None and o.keep == "none" and not o.short):
        made.unseen()
    start, changed = doubles(made.state[made.named]), made.named
    given: dict[str, Any] = {} if step else {"write_state": o.keep == "final"} if o.short else {"keep": o.keep}
    if step:
        given = {"u": made.tensors["u"][:, 0], "out": made.tensors["out"][:, 0]}
    if o.places:
        made.places[0, 0] = -1
        given = {"places": torch.from_numpy(made.places).to(o.index)}
        changed = torch.from_numpy(made.places[made.rows][made.places[made.rows] >= 0])
    kept = Kept(**made.tensors)
    with watch(**made.tensors | ({"places": given["places"]} if o.places else {})) as seen:
        got = made.call(module, **given)
    assert got is {**made.tensors, **given}["out"]
    state = {} if o.keep == "none" else {"S" if o.short else "M": changed}
    kept.check(out=torch.from_numpy(made.rows), **state)
    y, M = made.bound()
    made.check_outputs(y)
    assert not made.outputs[~made.live].any()
    if o.places:
        check_places(made)
    elif o.keep == "final":
        check_within(doubles(made.state[made.named]), M)
    else:
        after = start if o.keep == "none" else made.M0
        assert np.array_equal(doubles(made.state[made.named]), after, equal_nan=o.keep == "none")
    check_bytes(seen, crossing(module, made), ("M", "S", *o.inputs, "out", "previous"), APART)


def check_places(made: Case) -> None:
    """Every state in its place."""
    own = made.places[made.rows]
    for t in range(made.options.t):
        _, S = made.bound(t + 1)
        there = own[:, t] >= 0
        found = doubles(made.state[torch.from_numpy(own[there, t])])
        check_within(found, S.map(lambda a, on=there: a[on]))  # type: ignore[misc]


@pytest.mark.parametrize(("module", "o"), covered(COVERS))
def test_a_window_equals_the_oracle_and_touches_nothing_else(module: ModuleType, o: Options) -> None:
    check(module, o)


@pytest.mark.parametrize("o", [Options(t=6, seed=11), *(short(t=t, c=5) for t in (5, 33, 40))], ids=str)
def test_a_window_equals_its_tokens_one_by_one_bit_for_bit(o: Options) -> None:
    """Longer windows of the short convolution are a loop, shorter ones are not."""
    made, alone, steps = case(o), case(o), []
    for t in range(o.t):
        token = {name: alone.tensors[name][:, t : t + 1].clone() for name in (*o.inputs, "out")}
        token = token if o.short else {name: x[:, 0] for name, x in token.items()}
        steps.append(alone.call(shortconv_scan if o.short else conv_step, **token))
    y = made.call(shortconv_scan if o.short else conv_window)
    rows = torch.from_numpy(made.rows)
    assert torch.equal(y[rows], (torch.cat if o.short else torch.stack)(steps, dim=1)[rows])
    assert torch.equal(alone.state[alone.named], made.state[made.named])


@pytest.mark.parametrize("module", [conv_step, conv_window])
def test_without_slots_row_b_has_slot_b_and_the_pool_needs_no_more(module: ModuleType) -> None:
    o = Options(padding=False, t=1 if module is conv_step else 5)
    made, other = case(o), case(o)
    M = other.state[other.named].clone()
    token = {"u": made.tensors["u"][:, 0]} if module is conv_step else {}
    y = other.call(module, M=M, slots=None, out=None, **token)
    assert torch.equal(y, made.call(module, out=None, **token))
    assert torch.equal(M, made.state[made.named])


def test_a_state_narrower_than_its_inputs_is_rounded_once() -> None:
    made = case(Options(t=1, padding=False))
    M, u = made.state.to(torch.bfloat16), made.tensors["u"][:, 0] * 1.001
    made.call(conv_step, M=M, u=u, out=None)
    assert torch.equal(M[made.named, :, -1], u.to(torch.bfloat16))


def test_a_slot_beyond_2_to_the_31_elements_is_reached() -> None:
    """Slots of a pool spread over 6 GB of address space, of which two pages are touched."""
    far, c, w = 2**30, 3, 4
    pool = torch.empty(3 * far + c * w, dtype=torch.bfloat16).as_strided((4, c, w), (far, w, 1))
    pool[3] = 1.0
    slots = torch.tensor([3], dtype=torch.int32)
    y = conv_step.conv_step(pool, torch.ones(1, c), torch.ones(c, w), activation=False, slots=slots)
    assert torch.equal(y, torch.full((1, c), 4.0))


def test_rows_share_a_state_that_is_not_written() -> None:
    made = case(short(b=2, padding=False, seed=12))
    made.tensors["slots"][:] = 0
    for name in "BCx":
        made.tensors[name][0] = made.tensors[name][1]
    y = made.call(shortconv_scan, write_state=False)
    assert torch.equal(y[0], y[1])


def test_the_state_of_the_reference_is_that_of_the_kernels() -> None:
    """Products, oldest first: what the oracle hands over is taken as it is."""
    made = case(short(padding=False))
    made.call(shortconv_scan)
    _, S = shortconv.scan(made.M0, made.inputs, made.params)  # type: ignore[arg-type]
    assert np.allclose(doubles(made.state[made.named]), S, rtol=1e-6, atol=0)


def test_replay_in_the_launch_equals_never_having_speculated() -> None:
    """Verify, accept, verify again: the second window reads what plain decoding reads, for every count accepted."""
    for accepted in range(6):
        made = case(Options(t=5, b=1, padding=False, seed=12))
        made.call(conv_window, keep="none")
        advanced = torch.tensor([accepted])
        y = made.call(conv_window, previous=made.tensors["u"], advanced=advanced, keep="committed")
        plain = conv.commit(made.M0, made.inputs, np.array([accepted]))
        assert np.array_equal(doubles(made.state[made.named]), plain)
        pair, _ = eb.conv.scan(plain, made.inputs, made.params, contract("fp32", "fp32"))  # type: ignore[arg-type]
        check_within(doubles(y), pair)


@pytest.mark.parametrize(("advanced", "meant"), [(-3, 0), (99, 7), (8, 7)])
def test_a_count_outside_the_window_is_taken_as_its_end(advanced: int, meant: int) -> None:
    results = []
    for given in (advanced, meant):
        made = case(Options(replay="advanced", keep="committed", padding=False, seed=13))
        made.tensors["previous"][:] = 1.0
        made.tensors["advanced"][:] = given
        results.append((made.call(conv_window, keep="committed"), made.state[made.named]))
    assert not results[0][0].isnan().any()
    assert all(map(torch.equal, *results))


@pytest.mark.parametrize("node", [7, 8, 99])
def test_a_node_outside_the_window_is_read_as_zeros(node: int) -> None:
    """The gaps behind the inputs hold NaN."""
    made = case(Options(replay="path", keep="committed", padding=False, seed=14))
    made.tensors["previous"][:] = 1.0
    made.tensors["path"][:] = -1
    made.tensors["path"][:, 0] = node
    y = made.call(conv_window, keep="committed")
    assert not y.isnan().any()
    assert not made.state[made.named][:, :, -1].any()


def test_the_cases_use_slot_0_and_padding() -> None:
    slots = [case(o).tensors["slots"] for o in STEPS]
    assert all((named == 0).any() for named in slots)
    assert any((named < 0).any() for named in slots)


MUTANTS: dict[ModuleType, list[tuple[str, str, str]]] = {
    conv_window: [
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
        ("load_columns", "load(u + node * stride_u_t", "load(u + (node + 1) * stride_u_t"),
    ],
    conv_step: [
        ("_conv_step_kernel", "if slot >= 0:", "if slot > 0:"),
        ("_conv_step_kernel", "if slot >= 0:", "if slot >= -1:"),
        ("_conv_step_kernel", "window = window[1:]", "window = window[:-1]"),
        ("_conv_step_kernel", "b * stride_u_b", "slot * stride_u_b"),
        ("_conv_step_kernel", "b * stride_y_b", "slot * stride_y_b"),
        ("_conv_step_kernel", "slot * stride_M_s", "b * stride_M_s"),
        ("_conv_step_kernel", "inside = c < C", "inside = c <= C"),
        ("_conv_step_kernel", "        store_columns(state, window, c, inside, stride_M_c, W, BLOCK_C, BLOCK_W)\n", ""),
        ("_conv_step_kernel", "stride_M_c, 0, 0, W, 1)", "stride_M_c, 0, 0, W, 0)"),
        ("filtered", "window[k] * taps[k]", "window[k] * taps[W - 1 - k]"),
        ("filtered", "y = shift", "y = -shift"),
        ("filtered", "if ACTIVATION:", "if not ACTIVATION:"),
        ("store_columns", "(w < W)[None, :]", "(w < W - 1)[None, :]"),
        ("store_columns", "w[None, :] == k", "w[None, :] == W - 1 - k"),
    ],
    shortconv_scan: [
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
    ],
    shortconv_snapshots: [
        ("_token", "if place >= 0:", "if place > 99:"),
        ("_token", "if place >= 0:", "if place != -2:"),
        ("_token", "places + t * stride_places_t", "places"),
        ("_token", "S + place * stride_S_s", "S + (place + 1) * stride_S_s"),
        ("shortconv_scan_kernel", "places + b * stride_places_b", "places"),
        ("shortconv_snapshots", "WRITE_STATE=False", "WRITE_STATE=True"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(("module", "at", "old", "new"), planted(MUTANTS))
def test_planted_faults_are_caught(module: ModuleType, at: str, old: str, new: str) -> None:
    assert caught(mutated(module, old, new, at=at), check, COVERS[module])
