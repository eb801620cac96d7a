"""Mamba-3's kernels for windows, states after every token, prompts, and the commit: oracle, bytes, bits, planted faults."""

from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ssmspec_kernels.mamba3 import mamba3_commit, mamba3_packed, mamba3_scan, mamba3_snapshots
from ssmspec_ref import error_bounds as eb
from ssmspec_ref.mamba3 import Mamba3Window
from ssmspec_ref.records import prefix
from ssmspec_ref.records import rows as of_rows
from ssmspec_ref.shapes import Array
from tests.kernels.device import COMPILED
from tests.kernels.mamba3_cases import WEIGHTS, Case, Options, case
from tests.kernels.mutants import caught, mutated
from tests.kernels.tensors import BYTES, Kept, check_bytes, check_within, contract, doubles, watch

CASES = [
    Options(),
    Options(t=1, r=2, halves=True, maps=True, z=True, io="bf16", index=torch.int64, seed=1),
    Options(t=3, n=4, h=4, g=2, f=1, live=True, state="bf16", io="bf16", z=True, D=False, seed=2),
    Options(t=2, b=2, p=5, n=2, f=1, r=3, halves=True, maps=True, live=True, write=False, io="fp16", seed=3),
    Options(t=9, b=1, p=2, n=8, f=4, h=1, io="bf16", seed=4),
]
APART = ("slots", "live", "places", "bounds", "fresh", "path", "advanced", "rows", "lengths", "origin", "held", *WEIGHTS)
READ = ("S", "x", "dt", "A", "trap", "angle", "B", "C", "z", "out")


def tensors(given: dict[str, Any]) -> dict[str, Tensor]:
    return {name: x for name, x in given.items() if isinstance(x, Tensor)}


def sizes(o: Options) -> tuple[int, ...]:
    return o.g, o.h, o.p, o.n, o.f, o.r


def check(module: ModuleType, o: Options) -> None:
    """One call judged in full: outputs, state, bystanders, bytes."""
    made = case(o)
    kept, start = Kept(**tensors(made.tensors)), doubles(made.tensors["S"][made.named])
    with watch(**tensors(made.tensors)) as seen:
        got = module.mamba3_scan(**made.tensors, write_state=o.write)
    assert got is made.tensors["out"]
    kept.check(out=torch.from_numpy(made.rows), **({"S": made.named} if o.write else {}))
    y, S = eb.mamba3.scan(made.S0, made.window, made.params, contract(o.state, o.io), made.live)
    after = doubles(made.tensors["S"][made.named])
    check_within(made.outputs, y)
    if o.write:
        check_within(after, S)
    else:
        assert np.array_equal(after, start)
    assert not made.outputs[~made.live].any()
    dead, io = int((~made.live).sum()), BYTES[o.io]
    token = o.h * (o.p * (2 if o.z else 1) + 3) + o.f + 2 * o.r * o.g * o.n
    told = {"state": BYTES[o.state], "io": io, "z": o.z, "write_state": o.write}
    read_once(seen, module.traffic_bytes(len(made.rows), o.t, *sizes(o), **told) - dead * token * io)


def read_once(seen: Any, expected: int) -> None:
    """The bytes that crossed; the inputs that heads share are asked for by each of them."""
    shared = {name: seen.accesses.pop(("load", name), None) for name in ("angle", "B", "C")}
    again = sum(access.distinct for access in shared.values() if access)
    check_bytes(seen, expected - again, tuple({*READ} - {*shared}), APART)


def check_moved(seen: Any, expected: int) -> None:
    """The bytes that crossed, parameters apart, by the formula; no access outside. On a GPU there is nothing to assert."""
    if not COMPILED:
        assert seen.outside == seen.races == [], [*seen.outside, *seen.races][:3]
        assert sum(access.distinct for (_, name), access in seen.accesses.items() if name not in APART) == expected


@pytest.mark.parametrize("o", CASES, ids=str)
def test_a_window_equals_the_oracle_and_touches_nothing_else(o: Options) -> None:
    check(mamba3_scan, o)


def test_a_window_equals_its_tokens_one_by_one_bit_for_bit() -> None:
    o = Options(t=3, r=2, halves=True, padding=False)
    made, alone, steps = case(o), case(o).tensors["S"], []
    fixed = made.without("S", "out", *(tokens := ("x", "dt", "A", "trap", "angle", "B", "C")))
    for i in range(o.t):
        token = {name: made.tensors[name][:, i : i + 1] for name in tokens}
        steps.append(mamba3_scan.mamba3_scan(alone, **token, **fixed))
    y = mamba3_scan.mamba3_scan(**made.without("out"))
    assert torch.equal(y, torch.cat(steps, dim=1))
    assert torch.equal(alone[made.named], made.tensors["S"][made.named])


def test_rows_share_a_state_that_is_not_written() -> None:
    made = case(Options(b=2, t=2, padding=False, write=False, seed=12))
    made.tensors["slots"][:] = 0
    for name in ("x", "dt", "A", "trap", "angle", "B", "C"):
        made.tensors[name][0] = made.tensors[name][1]
    y = mamba3_scan.mamba3_scan(**made.tensors, write_state=False)
    assert torch.equal(y[0], y[1])


# --- a state for every token ---

KEEPING = [
    Options(t=4, h=5, f=3, places=12),
    Options(t=3, b=2, r=2, n=4, halves=True, live=True, state="bf16", io="bf16", places=8, index=torch.int64, seed=1),
]


def check_states(module: ModuleType, o: Options) -> None:
    """Outputs and every state within the bound, each in its place; nothing for a negative place."""
    made = case(o)
    made.places[0, 0] = -1
    made.tensors["places"] = torch.from_numpy(made.places).to(o.index)
    own = made.places[made.rows]
    kept = Kept(**tensors(made.tensors))
    with watch(**tensors(made.tensors)) as seen:
        module.mamba3_snapshots(**made.tensors)
    kept.check(out=torch.from_numpy(made.rows), S=torch.from_numpy(own[own >= 0]))
    rules = contract(o.state, o.io)
    for t in range(o.t):
        y, S = eb.mamba3.scan(made.S0, prefix(made.window, t + 1), made.params, rules, made.live[:, : t + 1])
        there = own[:, t] >= 0
        check_within(doubles(made.tensors["S"][torch.from_numpy(own[there, t])]), S.map(lambda a, on=there: a[on]))  # type: ignore[misc]
    check_within(made.outputs, y)
    token = o.h * (o.p * (2 if o.z else 1) + 3) + o.f + 2 * o.r * o.g * o.n
    unread, unkept = int((~made.live).sum()) * token * BYTES[o.io], int((own < 0).sum()) * made.S0[0].size * BYTES[o.state]
    told = {"state": BYTES[o.state], "io": BYTES[o.io], "z": o.z}
    check_moved(seen, module.traffic_bytes(len(made.rows), o.t, *sizes(o), **told) - unread - unkept)


@pytest.mark.parametrize("o", KEEPING, ids=str)
def test_every_state_equals_the_oracle_and_nothing_else_is_written(o: Options) -> None:
    check_states(mamba3_snapshots, o)


# --- prompts ---


def check_run(module: ModuleType, o: Options) -> None:
    """Three sequences in one run, of which one is fresh and one is empty; tokens of a padded one are not read."""
    made = case(replace(o, padding=False))
    slots = made.tensors["slots"]
    ends, fresh, count = [0, 2, 2, o.b * o.t - 1], torch.tensor([False, True, True]), o.b * o.t
    given = made.without("out", "slots", "S")
    for name in ("x", "dt", "A", "trap", "angle", "B", "C", "z"):
        if name in given:
            given[name] = given[name].flatten(0, 1).clone()
            given[name][-1] = float("nan")
    pool = made.tensors["S"]
    pool[slots[2].long()] = float("nan")
    out = torch.full((count, o.h, o.p), float("nan"), dtype=given["x"].dtype)
    given |= {"bounds": torch.tensor(ends), "slots": slots[:3], "fresh": fresh, "out": out}
    with watch(S=pool, **tensors(given)) as seen:
        module.mamba3_packed(pool, **given)
    told = {"state": BYTES[o.state], "io": BYTES[o.io], "z": o.z}
    anew = int(fresh.sum()) * made.S0[0].size * BYTES[o.state]  # written, not read
    check_moved(seen, module.traffic_bytes(count - 1, 3, *sizes(o), **told) - anew)
    assert torch.isnan(out[-1]).all()
    assert not pool[slots[1].long()].any(), "an empty fresh sequence begins from zeros"
    for row, start in ((0, made.S0[:1]), (2, np.zeros_like(made.S0[:1]))):
        part = cut(made.window, slice(ends[row], ends[row + 1]))
        y, S = eb.mamba3.scan(start, part, made.params, contract(o.state, o.io))
        check_within(doubles(out[ends[row] : ends[row + 1]])[None], y)
        check_within(doubles(pool[slots[row : row + 1].long()]), S)


def cut(window: Mamba3Window, tokens: slice) -> Mamba3Window:
    """Some tokens of all rows, one row after the other, as one row."""
    given = {n: a.reshape(-1, *a.shape[2:])[None, tokens] for n, a in vars(window).items() if a is not None}
    return replace(window, **given)


RUNS = [
    Options(t=2),
    Options(t=2, r=3, h=4, g=2, p=5, halves=True, maps=True, z=True, io="bf16", index=torch.int64, seed=1),
]


@pytest.mark.parametrize("o", RUNS, ids=str)
def test_a_packed_run_equals_the_oracle_and_touches_nothing_else(o: Options) -> None:
    check_run(mamba3_packed, o)


# --- the commit ---


def committed(o: Options) -> tuple[dict[str, Any], list[Case]]:
    """Two layers of three rows, whose windows are one draft of two."""
    layers = [case(replace(o, seed=o.seed + layer)) for layer in range(2)]
    first = layers[0].tensors
    shared = {name: first[name] for name in ("slots", "A_floor", "eps", "halves")}
    for layer in layers[1:]:  # states lie in the same slots
        layer.tensors["S"][first["slots"].long().clamp_min(0)] = layer.tensors["S"][
            layer.tensors["slots"].long().clamp_min(0)
        ]
    tokens = {name: torch.stack([x.tensors[name] for x in layers]) for name in ("x", "dt", "A", "trap", "angle", "B")}
    other = {name: torch.cat([torch.full_like(x, float("nan")), x], dim=1) for name, x in tokens.items()}
    named = ("B_norm", "B_bias", "dt_bias", *(("up",) if o.maps else ()))
    weights = {name: torch.stack([x.tensors[name] for x in layers]) for name in named}
    rows = (torch.arange(o.b) + o.b).to(o.index)
    S = torch.stack([x.tensors["S"] for x in layers])
    return shared | other | weights | {"S": S, "rows": rows}, layers


def check_commit(module: ModuleType, o: Options) -> None:
    """Counts, and paths; of the last row nothing is accepted, of the first all or a path that skips a node."""
    for path in (None, torch.tensor([[0, 2, -1], [1, -1, -1], [-1, -1, -1]])):
        given, layers = committed(o)
        slots = given["slots"].long()
        count = torch.tensor([o.t, 1, 0]) if path is None else (path >= 0).sum(1)
        given |= {"advanced": count.to(o.index)} if path is None else {"path": path.to(o.index)}
        start = given["S"].clone()
        with watch(**tensors(given)) as seen:
            module.mamba3_commit(**given)
        counts = [int(count[row]) for row in layers[0].rows]
        expected = module.traffic_bytes(counts, len(layers), *sizes(o), state=BYTES[o.state], io=BYTES[o.io])
        check_moved(seen, expected)
        for number, layer in enumerate(layers):
            left = torch.ones(len(start[0]), dtype=torch.bool)
            for at, row in enumerate(layer.rows):
                taken: Array = np.arange(int(count[row])) if path is None else path[row][path[row] >= 0].numpy()
                if not len(taken):
                    continue
                left[slots[row]] = False
                part = of_rows(layer.window, np.array([at]))
                tokens = replace(part, **{n: a[:, taken] for n, a in vars(part).items() if a is not None})
                held = doubles(start[number, slots[row]])[None]
                _, S = eb.mamba3.scan(held, tokens, layer.params, contract(o.state, o.io, order="sequential"))
                check_within(doubles(given["S"][number, slots[row]])[None], S)
            bits = (given["S"][number][left], start[number][left])
            assert torch.equal(*(x.nan_to_num(7.0) for x in bits))


COMMITS = [
    Options(t=3, padding=False),
    Options(t=3, r=3, h=4, g=2, f=1, halves=True, maps=True, io="bf16", index=torch.int64, seed=5),
]


@pytest.mark.parametrize("o", COMMITS, ids=str)
def test_a_commit_equals_the_oracle_and_touches_nothing_else(o: Options) -> None:
    check_commit(mamba3_commit, o)


def test_a_commit_has_the_bits_of_a_scan() -> None:
    o = Options(t=3, r=2, padding=False)
    made = case(o)
    scanned = made.tensors["S"].clone()
    mamba3_scan.mamba3_scan(**made.without("out") | {"S": scanned})
    names = ("S", "x", "dt", "A", "trap", "angle", "B", "B_norm", "B_bias", "dt_bias")
    kept = {name: made.tensors[name] for name in ("slots", "A_floor", "eps", "halves")}
    one = {name: made.tensors[name][None] for name in names}
    mamba3_commit.mamba3_commit(**one, **kept, advanced=torch.full((o.b,), o.t))
    assert torch.equal(one["S"][0][made.named], scanned[made.named])


MUTANTS = [
    ("load_pairs", "first, second = at + j, at + N // 2 + j", "first, second = at + 2 * j, at + 2 * j + 1"),
    ("load_pairs", "first, second = at + 2 * j, at + 2 * j + 1", "first, second = at + j, at + N // 2 + j"),
    ("read", "C_bias + r * N, cos, sin,", "C_bias + r * N, 1.0 + 0.0 * cos, 0.0 * sin,"),
    ("advance", "kept_one, kept_two = tl.where(real, new_keys[r][0], keys[r][0])",
     "kept_one, kept_two = tl.where(real, new_keys[r][0], new_keys[r][0])"),
    ("vector", "one * cos - two * sin, one * sin + two * cos", "one * cos + two * sin, two * cos - one * sin"),
    ("vector", "/ N + eps", "+ eps"),
    ("advance", "B_bias + r * N", "B_bias"),
    ("advance", "B + r * stride_B_r", "B"),
    ("advance", "tl.where(real, x_t, value)", "x_t"),
    ("advance", "after = (after - turns * TURN_HEAD) - turns * TURN_REST", "after = after"),
    ("advance", "after = th + PI", "after = PI"),
    ("advance", "before * mapped(value, up, i, r, P)", "before * value"),
    ("weights", "a * dt_t * (1.0 - share)", "dt_t * (1.0 - share)"),
    ("weights", "tl.maximum(softplus(tl.load(A, mask=real, other=0.0).to(tl.float32)), floor)",
     "softplus(tl.load(A, mask=real, other=0.0).to(tl.float32))"),
    ("turned_by", "(n == 1) | (n == 2)", "(n == 1) | (n == 3)"),
    ("turned_by", "-1 / 5040", "1 / 5040"),
    ("store_pieces", "at + P * N + F + r * N", "at + P * N + F"),
    ("store_pieces", "mask=j < F", "mask=j < F - 1"),
    ("finished", "tl.load(D).to(tl.float32) * mapped(x_t, up, i, r, P)", "tl.load(D).to(tl.float32) * x_t"),
    ("finished", "return mapped(o, down, i, r, P)", "return o"),
    ("finished", "gate, i, r, P)", "None, i, r, P)"),
    ("read", "tl.where(real, y, 0.0)", "y"),
    ("mamba3_scan_kernel", "if slot >= 0:", "if slot > 0:"),
    ("mamba3_scan_kernel", "        if WRITE_STATE:\n", "        if not WRITE_STATE:\n"),
    ("mamba3_scan_kernel", "h // HEADS * stride.B.g", "h * stride.B.g"),
    ("mamba3_scan_kernel", "C_bias + h * R * N", "C_bias"),
]  # fmt: skip


@pytest.mark.parametrize(("at", "old", "new"), MUTANTS)
def test_planted_faults_of_windows_are_caught(at: str, old: str, new: str) -> None:
    assert caught(mutated(mamba3_scan, old, new, at=at), check, CASES)


KEPT = [
    ("mamba3_scan_kernel", "if place >= 0:", "if place > 99:"),
    ("mamba3_scan_kernel", "if place >= 0:", "if place != -2:"),
    ("mamba3_scan_kernel", "b * stride_places.b + t * stride_places.t", "b * stride_places.b"),
]


@pytest.mark.parametrize(("at", "old", "new"), KEPT)
def test_planted_faults_of_kept_states_are_caught(at: str, old: str, new: str) -> None:
    assert caught(mutated(mamba3_snapshots, old, new, at=at), check_states, KEEPING)


PACKED = [
    ("mamba3_scan_kernel", "t = first + m", "t = tl.cast(m, tl.int64)"),
    ("mamba3_scan_kernel", "begins = tl.load(fresh + b) != 0", "begins = tl.load(fresh) != 0"),
    ("window_strides", "(0, *strides(tensor, count - 1))", "(1, *strides(tensor, count - 1))"),
]


@pytest.mark.parametrize(("at", "old", "new"), PACKED)
def test_planted_faults_of_packed_runs_are_caught(at: str, old: str, new: str) -> None:
    assert caught(mutated(mamba3_packed, old, new, at=at), check_run, RUNS)


COMMITTED = [
    ("_mamba3_commit_kernel", "(slot >= 0) & (taken > 0)", "(slot >= 0) & (taken > 1)"),
    ("_mamba3_commit_kernel", "slot_of(taken_rows, b)", "b"),
    ("_mamba3_commit_kernel", "t = tl.load(at_path + t * stride.path.k).to(tl.int64)", "t = tl.cast(k, tl.int64)"),
    ("_mamba3_commit_kernel", "B_norm + layer * N", "B_norm"),
    ("_mamba3_commit_kernel", "own = tl.arange(0, BLOCK_P), tl.arange(0, BLOCK_J), layer * heads + h",
     "own = tl.arange(0, BLOCK_P), tl.arange(0, BLOCK_J), h"),
    ("_mamba3_commit_kernel", "h // HEADS * stride.B.g", "0 * stride.B.g"),
]  # fmt: skip


@pytest.mark.parametrize(("at", "old", "new"), COMMITTED)
def test_planted_faults_of_the_commit_are_caught(at: str, old: str, new: str) -> None:
    assert caught(mutated(mamba3_commit, old, new, at=at), check_commit, COMMITS)
