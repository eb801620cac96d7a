"""Activation replay of SSD beside the oracle: windows and trees in a row, the cache, and no race between them."""

from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from conformance.interpreter.memory import watch
from ssmspec_kernels import halves
from ssmspec_kernels import ssd_replay_scan as kernel
from ssmspec_kernels.ssd_replay_scan import Cache
from ssmspec_ref import error_bounds as eb
from ssmspec_ref import ssd
from ssmspec_ref.errors import ParameterError, PrecisionError, RingOverflow, ShapeMismatch, Unsupported
from ssmspec_ref.records import along, each
from ssmspec_ref.shapes import Array
from ssmspec_ref.ssd import SSDWindow
from tests.kernels import ssd_cases as cases
from tests.kernels import ssd_rings as rings
from tests.kernels.mutants import mutated
from tests.kernels.ssd_cases import Case, Options
from tests.kernels.tensors import far

CHAINS = [
    (Options(z=True, D="channel", poison=7.0), 3),
    (Options(io="bf16", t=4, h=2, g=1, p=35, limit=(0.05, 0.8), gentle=True, seed=1), 5),
    (Options(state="bf16", io="fp16", t=1, g=1, h=3, D="", seed=4, poison=-2.0), 1),
    (Options(b=2, state="fp16", io="bf16", t=17, h=2, p=5, softplus=False, bias=False, seed=5), 17),
    (Options(b=2, io="bf16", h=2, g=1, p=5, n=9, seed=6), 4),  # fewer channels than states
]
TREES = [
    (Options(z=True, t=7, D="channel", poison=7.0), 7),
    (Options(io="bf16", t=13, h=2, g=1, p=9, gentle=True, seed=3), 20),
]


def cache_of(o: Options, window: int) -> Cache:
    """A cache of poison, its halves here and there."""
    s = o.b + o.spare
    shapes = (s, 2 * window, o.h, o.p), (s, 2 * window, o.h), (s, 2 * window, o.g, o.n)
    x, dt, B = (cases.strided(np.full(a, o.poison), cases.DTYPES[o.io], o.poison) for a in shapes)
    return Cache(x, dt, B, torch.from_numpy(np.random.default_rng(o.seed).integers(0, 2, s)).int())


def tensors(cache: Cache) -> dict[str, torch.Tensor]:
    return {"cache.x": cache.x, "cache.dt": cache.dt, "cache.B": cache.B, "half": cache.half}


def draw(first: Case, o: Options, n: int, tree: bool) -> tuple[Case, torch.Tensor, Array]:
    """The n-th window, its lengths (0 and shorter in every third), and its mask; what is not real is NaN."""
    rng = np.random.default_rng(o.seed + n)
    case = rings.window_case(first, o, n)
    lengths = rng.integers(0, o.t + 1, o.b) if n % 3 == 2 else np.full(o.b, o.t)
    lengths[0] = 0 if n % 3 == 2 else lengths[0]
    real = np.arange(o.t) < lengths[:, None]
    mask = cases.forest(replace(o, seed=o.seed + n)) if tree else np.broadcast_to(np.tri(o.t, dtype=bool), (o.b, o.t, o.t))
    mask = mask & real[:, :, None] & real[:, None, :]
    dead = torch.from_numpy(~np.einsum("btt -> bt", mask))
    for x in (case.x, case.dt, case.B, case.C, case.extra.get("z")):
        if x is not None:
            x[dead] = float("nan")
    return case, torch.from_numpy(lengths), mask


def accepted(rng: Any, mask: Array, tree: bool) -> Array:
    """A path of each row, padded with -1: some node and what it sees, or a prefix; now and then nothing, or all."""
    path = np.full(mask.shape[:2], -1)
    for b, row in enumerate(mask):
        nodes = np.flatnonzero(np.diag(row))
        if len(nodes):
            seen = np.flatnonzero(row[rng.choice(nodes)]) if tree else nodes[: rng.integers(0, len(nodes) + 1)]
            path[b, : len(seen)] = seen
    return path


def check_windows(module: ModuleType, o: Options, window: int, tree: bool = False, windows: int = 5, **tiles: int) -> None:
    """Outputs and states beside the oracle, window after window; nothing else is written."""
    rng, first, cache = np.random.default_rng(o.seed), cases.draw(o), cache_of(o, window)
    advanced, path = torch.zeros(o.b, dtype=torch.int32), torch.full((o.b, window), -1)
    last: dict[int, SSDWindow] = {}
    for n in range(windows):
        case, lengths, mask = draw(first, o, n, tree)
        named = {"ancestors": torch.from_numpy(mask), "path": path} if tree else {}
        states, outputs, inputs = case.S.clone(), case.out.clone(), case.before(half=cache.half, advanced=advanced, path=path)
        entries = {name: x.clone() for name, x in tensors(cache).items()}
        case.call(module.ssd_replay_scan, cache=cache, advanced=advanced, lengths=lengths, **named, **tiles)
        del inputs["S"], inputs["out"]
        cases.unchanged(inputs)
        for i, row in enumerate(case.rows):
            slot, some = int(case.slots[row]), bool(lengths[row])
            S, took = cases.doubles(states[slot][None]), int(advanced[row]) if some else 0
            pair = eb.exact(S, o.contract())
            if took:
                _, pair = eb.ssd.scan(S, last[slot], case.params(), o.contract(state="fp32", order="output_only"))
                _, stored = eb.ssd.scan(S, last[slot], case.params(), o.contract(order="output_only"))
                cases.assert_within(f"S {n} {row}", case.S[slot][None], stored)
            else:
                assert cases.untouched(states[slot], case.S[slot])
            ancestors = mask[row : row + 1]
            tokens = each(lambda a, i=i: a[i : i + 1], case.window(np.einsum("btt -> bt", mask[case.rows])))
            inexact = {"S": pair.error}
            y = eb.ssd.tree(pair.value, tokens, ancestors, case.params(), o.contract(), inexact=inexact)
            cases.assert_within(f"y {n} {row}", case.out[row : row + 1], y)
        padding = case.slots < 0
        assert cases.untouched(case.out[padding], outputs[padding])
        check_cache(case, cache, entries, mask, window)
        halves.commit_halves(cache.half, rows=o.b, slots=case.slots, lengths=lengths)
        new = accepted(rng, mask, tree)
        for i, row in enumerate(case.rows):
            if lengths[row]:
                path[row, : o.t], advanced[row] = torch.from_numpy(new[row]), int((new[row] >= 0).sum())
                if advanced[row]:
                    tokens = each(lambda a, i=i: a[i : i + 1], case.window(np.einsum("btt -> bt", mask[case.rows])))
                    last[int(case.slots[row])] = along(tokens, new[row : row + 1, : int(advanced[row])])


def check_cache(case: Case, cache: Cache, before: dict[str, torch.Tensor], mask: Array, window: int) -> None:
    """The new window stands in the other half, and every other entry is as it was."""
    free = torch.ones(cache.x.shape[:2], dtype=torch.bool)
    for row in case.rows:
        nodes = np.flatnonzero(np.diag(mask[row]))
        slot = int(case.slots[row])
        places = (1 - int(cache.half[slot])) * window + nodes
        free[slot, places] = False
        for kept, came in ((cache.x, case.x), (cache.dt, case.dt), (cache.B, case.B)):
            assert torch.equal(kept[slot, places], came[row, nodes])
    for name, x in tensors(cache).items():
        assert cases.untouched(before[name][free] if x.dim() > 1 else before[name], x[free] if x.dim() > 1 else x), name


def check_exact(module: ModuleType) -> None:
    """Tokens of one exact window, two at a time, all accepted: outputs, and the state before the last two, with ==."""
    o = Options(t=6, p=3, n=5)
    case, window, params, S = cases.exact(o)
    y, states = ssd.states(S, window, params)
    cache, advanced = cache_of(o, 2), torch.zeros(o.b, dtype=torch.int32)
    for start in range(0, o.t, 2):
        cut = slice(start, start + 2)
        tokens = {name: getattr(case, name)[:, cut] for name in cases.TOKENS}
        module.ssd_replay_scan(
            S=case.S, cache=cache, advanced=advanced, A=case.A, **tokens, slots=case.slots, out=case.out[:, cut],
            **{**case.extra, "z": case.extra["z"][:, cut]},
        )  # fmt: skip
        halves.commit_halves(cache.half, rows=o.b, slots=case.slots)
        advanced.fill_(2)
    assert torch.equal(case.out, torch.from_numpy(y).to(case.out.dtype))
    assert np.array_equal(cases.doubles(case.S)[case.slots.numpy()], states[:, 3])


def check_bytes(module: ModuleType, o: Options, advanced: int, tree: bool, **tiles: int) -> None:
    case, cache = cases.draw(o, padding=False), cache_of(replace(o, poison=0.25), o.t)
    count = torch.full((o.b,), advanced)
    mask = torch.ones(o.b, o.t, o.t, dtype=torch.bool).tril()
    named = {name: getattr(case, name) for name in ("S", "x", "dt", "B", "C", "out")} | ({"ancestors": mask} if tree else {})
    params = {name: x for name, x in case.extra.items() if name != "z"} | {"A": case.A, "slots": case.slots}
    params |= {"advanced": count}
    gate = {"z": case.extra["z"]} if o.z else {}
    with watch(**named, **params, **gate, **tensors(cache)) as seen:
        case.call(module.ssd_replay_scan, cache=cache, advanced=count, ancestors=mask if tree else None, **tiles)
    left_out = sum(seen.loaded(name).distinct for name in (*params, "half"))
    sizes = {"io": case.x.element_size(), "z": o.z, "tree": tree}
    assert seen.distinct_bytes() - left_out == module.traffic_bytes([advanced] * o.b, o.t, o.h, o.p, o.n, o.g, **sizes)
    states = o.b * o.h * o.p * o.n * 4
    assert seen.loaded("S").requested == states
    assert seen.stored("S").requested == (states if advanced else 0)
    assert seen.stored("cache.B").requested == o.b * o.t * o.g * o.n * sizes["io"]
    assert seen.outside == seen.races == []


@pytest.mark.parametrize(("o", "window"), CHAINS, ids=str)
def test_windows_in_a_row_equal_plain_decoding_within_the_bound(o: Options, window: int) -> None:
    check_windows(kernel, o, window)


@pytest.mark.parametrize(("o", "window"), TREES, ids=str)
def test_trees_in_a_row_equal_plain_decoding_along_their_paths_within_the_bound(o: Options, window: int) -> None:
    check_windows(kernel, o, window, True, 4)


@pytest.mark.interpreter  # where memory that nobody touches takes none
@pytest.mark.parametrize(("io", "tree"), [("bf16", False), ("fp16", False), ("fp16", True)])
def test_tokens_and_entries_beyond_2_to_the_31_elements_are_read_and_cached(io: str, tree: bool) -> None:
    o = Options(b=1, t=3, io=io, g=1, h=1, p=5, n=6)
    (near, cache), (case, other) = ((cases.draw(o, padding=False), cache_of(replace(o, poison=0.5), 3)) for _ in range(2))
    other = replace(other, x=far(other.x, 1), B=far(other.B, 1))
    given: dict[str, Any] = {"ancestors": torch.ones(1, 3, 3, dtype=torch.bool).tril()} if tree else {}
    given |= {"advanced": torch.tensor([2])}
    near.call(kernel.ssd_replay_scan, cache=cache, **given)
    tokens = {name: far(getattr(case, name), 1) for name in cases.TOKENS}
    case.call(kernel.ssd_replay_scan, cache=other, **given, **tokens)
    assert torch.equal(case.out, near.out)
    for x, y in ((near.S, case.S), (cache.x, other.x), (cache.dt, other.dt), (cache.B, other.B)):
        assert cases.untouched(x, y)


@pytest.mark.parametrize("tiles", [(16, 16, 1), (16, 64, 3), (32, 32, 2)], ids=str)
def test_every_split_of_the_channels_lies_within_the_bound(tiles: tuple[int, int, int]) -> None:
    block, program, stages = tiles
    o = Options(b=2, t=3, p=50, h=2, io="bf16", z=True, D="channel")
    check_windows(kernel, o, 4, False, 3, block_p=block, program_p=program, stages=stages)


def test_integers_come_out_exactly() -> None:
    check_exact(kernel)


@pytest.mark.parametrize("advanced", [0, 2, 3])
@pytest.mark.parametrize(
    ("o", "tree"),
    [
        (Options(b=2, h=2, z=True), False),
        (Options(b=1, t=4, io="bf16", g=1, p=33), True),
        (Options(b=1, t=4, h=2), True),
    ],
    ids=str,
)
def test_a_window_moves_the_bytes_of_the_formula_and_no_program_reads_what_another_caches(
    o: Options, tree: bool, advanced: int
) -> None:
    check_bytes(kernel, o, advanced, tree)
    check_bytes(kernel, o, advanced, tree, block_p=16, program_p=16)


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    (
        {"cache": lambda c: replace(c, **{k: getattr(c, k)[:, :5] for k in ("x", "dt", "B")})},
        ParameterError,
        "holds 5 entries",
    ),
    (
        {"cache": lambda c: replace(c, **{k: getattr(c, k)[:, :4] for k in ("x", "dt", "B")})},
        RingOverflow,
        "does not fit the 2",
    ),
    ({"cache": lambda c: replace(c, x=c.x.bfloat16())}, PrecisionError, "cache.x bfloat16"),
    ({"cache": lambda c: replace(c, dt=c.dt.bfloat16())}, PrecisionError, "cache.dt holds torch.bfloat16"),
    ({"cache": lambda c: replace(c, half=c.half[:-1])}, ShapeMismatch, "axis s has size"),
    ({"advanced": torch.zeros(3)}, PrecisionError, "advanced came as"),
    ({"path": torch.zeros(2, 3).int()}, ShapeMismatch, "axis b has size"),
    ({"ancestors": torch.ones(3, 3, 4, dtype=torch.bool)}, ShapeMismatch, "4 columns for 3 nodes"),
    ({"lengths": torch.ones(3)}, PrecisionError, "lengths came as"),
    ({"dt_limit": (1.0, 0.5)}, ParameterError, "0 <= low <= high"),
]


@pytest.mark.parametrize(("changes", "error", "message"), REFUSED)
def test_a_wrong_argument_raises_its_error_and_nothing_is_written(
    changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    case, cache = cases.draw(Options()), cache_of(Options(), 3)
    before = case.before(**tensors(cache))
    changes = {name: change(cache) if callable(change) else change for name, change in changes.items()}
    with pytest.raises(error, match=message):
        case.call(kernel.ssd_replay_scan, **{"cache": cache, "advanced": torch.zeros(3).int(), **changes})
    cases.unchanged(before)


def test_too_many_tokens_and_wrong_halves_are_refused() -> None:
    o = Options(b=1, h=1, g=1, p=1, n=1)
    case, cache = cases.draw(o), cache_of(o, 129)
    with pytest.raises(Unsupported, match="129 tokens"):
        case.call(kernel.ssd_replay_scan, cache=cache, advanced=torch.zeros(1).int())
    half = torch.zeros(4, dtype=torch.int32)
    for wrong in ({"rows": 0}, {"rows": 5}, {"rows": 2, "slots": torch.zeros(3).int()}):
        with pytest.raises(ParameterError):
            halves.commit_halves(half, **wrong)
    assert not half.any()


def test_a_long_window_takes_two_tiles_a_program() -> None:
    o = Options(b=1, t=33, h=1, g=1, p=32, n=4, io="bf16")
    case, cache = cases.draw(o), cache_of(o, 33)
    given = {"cache": cache, "advanced": torch.zeros(1).int()}
    before = cache.x.clone()
    with pytest.raises(Unsupported, match="one tile of 16 channels a program, for 33 tokens"):
        case.call(kernel.ssd_replay_scan, **given, block_p=16, program_p=16)
    assert torch.equal(cache.x.view(torch.int16), before.view(torch.int16))
    case.call(kernel.ssd_replay_scan, **given, block_p=16, program_p=32)
    slot = int(case.slots[0])
    first = 33 * (1 - int(cache.half[slot]))
    assert torch.equal(cache.x[slot, first : first + 33], case.x[0])
    y = case.out.clone()
    assert torch.equal(case.call(kernel.ssd_replay_scan, **given), y)


def check_path_with_gaps(module: ModuleType, tree: bool, io: str = "fp32") -> None:
    """Of what was accepted only nodes of the window count: -1 and one behind the end neither decay the state nor add."""
    mask = {"ancestors": torch.ones(1, 2, 2, dtype=torch.bool).tril()} if tree else {}
    states = []
    for path, advanced in (([1, -1, 3], 3), ([1, -1, -1], 1)):
        o = Options(b=1, t=2, io=io)
        case, cache = cases.draw(o), cache_of(replace(o, poison=0.5), 3)
        cache.half.fill_(1)
        given = {"advanced": torch.tensor([advanced]), "path": torch.tensor([path])}
        case.call(module.ssd_replay_scan, cache=cache, **given, **mask)
        states.append(case.S[case.slots.long()])
    assert torch.equal(*states)


@pytest.mark.parametrize("io", ["fp32", "bf16"])
@pytest.mark.parametrize("tree", [False, True])
def test_a_path_with_gaps_replays_the_nodes_it_names(tree: bool, io: str) -> None:
    check_path_with_gaps(kernel, tree, io)


def check_last_token(module: ModuleType, tree: bool, io: str = "fp32") -> None:
    """The weight of the last token that counts is its dt, exactly, whatever decays came before and what -1 follow."""
    o = Options(b=1, t=8, softplus=False, bias=False, io=io)
    case, cache = cases.draw(o), cache_of(replace(o, poison=0.0), 8)
    case.A.fill_(-400.0)
    rng = np.random.default_rng(5)
    cache.half.zero_()
    cache.dt.copy_(torch.from_numpy(rng.uniform(0.02, 1.0, cache.dt.shape)))
    for kept in (cache.x, cache.B):
        kept.copy_(torch.from_numpy(rng.choice([-2.0, -0.5, 1.0, 4.0], kept.shape)))
    cache.x[:, :6] = 0.0
    slot = case.slots.long()
    case.S[slot] = 0.0
    given: dict[str, Any] = {"ancestors": torch.ones(1, 8, 8, dtype=torch.bool).tril()} if tree else {}
    path = torch.tensor([[0, 1, 2, 3, 4, 5, 6, -1]])
    case.call(module.ssd_replay_scan, cache=cache, advanced=torch.tensor([8]), path=path, **given)
    x, dt, B = (cases.doubles(u[slot, 6]) for u in (cache.x, cache.dt, cache.B))
    added = dt[..., None, None] * x[..., None] * np.repeat(B, 2, axis=1)[:, :, None, :]
    assert np.array_equal(cases.doubles(case.S[slot]), added)


@pytest.mark.parametrize("tree", [False, True])
def test_the_last_accepted_tokens_weight_is_its_dt(tree: bool) -> None:
    check_last_token(kernel, tree)


@pytest.mark.parametrize("total", ["tl.sum((step_k * decay).to(tl.float32), axis=0)", "tl.sum(tl.where(k == 5, G_k, 0.0))"])
def test_planted_total_of_another_sum_is_caught_at_the_last_token(total: str) -> None:
    right = "tl.sum(tl.where(k == tl.max(tl.where(taken, k, -1), axis=0), G_k, 0.0), axis=0)"
    mutant = mutated(kernel, right, total)
    with pytest.raises(AssertionError):
        check_last_token(mutant, True)


def check_halves(module: ModuleType) -> None:
    half = torch.tensor([0, 1] * 100)
    slots, lengths = torch.from_numpy(np.random.default_rng(2).permutation(200)[:150]), torch.arange(150) % 3
    slots[7] = -1
    want = half.clone()
    for b, slot in enumerate(slots.tolist()):
        want[slot] = 1 - want[slot] if slot >= 0 and lengths[b] else want[slot]
    module.commit_halves(half, rows=150, slots=slots, lengths=lengths)
    assert torch.equal(half, want)


def test_the_halves_turn_over_for_the_rows_that_took_part() -> None:
    check_halves(halves)


CHAIN, TREE = "ssd_replay_chain.py", "ssd_replay_scan.py"

FAULTS = [
    ("tl.where(length > 0, tl.minimum(tl.load(advanced + b).to(tl.int32), REPLAYED), 0)",
     "tl.minimum(tl.load(advanced + b).to(tl.int32), REPLAYED)", CHAIN),
    ("taken = k < count", "taken = k < count - 1", CHAIN),
    ("taken = j < count", "taken = j < count - 1", CHAIN),
    ("for j in range(count):", "for j in range(count - 1):", CHAIN),
    ("tl.minimum(j + 1, count - 1)", "j", CHAIN),
    ("tl.minimum(t + 1, T - 1)", "t", CHAIN),
    ("if count > 0:", "if count >= 0:", CHAIN),
    ("if count > 0:", "if count > 1:", CHAIN),
    ("old_x = cache_x + slot * stride_cache_x_s + last", "old_x = cache_x + slot * stride_cache_x_s + (1 - last)", CHAIN),
    ("old_B = cache_B + slot * stride_cache_B_s + last", "old_B = cache_B + slot * stride_cache_B_s + (1 - last)", CHAIN),
    ("new = (1 - last) * ENTRIES + t_i", "new = last * ENTRIES + t_i", CHAIN),
    ("new_x = cache_x + slot * stride_cache_x_s + (1 - last)", "new_x = cache_x + slot * stride_cache_x_s + last", CHAIN),
    ("step_size(raw_k, taken, bias,", "step_size(raw_k, taken, 0.0,", CHAIN),
    ("tl.fma(state, element(decays, k, j),", "tl.fma(state, 1.0,", CHAIN),
    ("if h % HEADS_PER_GROUP == 0:", "if h >= 0:", CHAIN),
    ("if tl.program_id(0) == 0:", "if tl.program_id(0) >= 0:", CHAIN),
    ("raw, mask=real)", "(raw + 1).to(raw.dtype), mask=real)", CHAIN),
    ("x_t, mask=in_p & (t < length))", "x_t, mask=in_p)", CHAIN),
    ("real = t < length", "real = t <= length", CHAIN),
    ("((row_p < P) |", "((row_p < P - 1) |", CHAIN),
    ("(1 - last) * ENTRIES + t", "last * ENTRIES + t", TREE),
    ("at_old, at_new = last * ENTRIES + node", "at_old, at_new = (1 - last) * ENTRIES + node", TREE),
    ("count = tl.where(length > 0, tl.minimum(tl.load(advanced + b).to(tl.int32), REPLAYED), 0)",
     "count = tl.minimum(tl.load(advanced + b).to(tl.int32), REPLAYED)", TREE),
    ("taken = k < count", "taken = k < count - 1", TREE),
    ("path + b * stride_path_b + node", "path + node", TREE),
    ("in_n[None, :] & (count > 0)", "in_n[None, :]", TREE),
    ("step_k = step_size(raw_k, taken, bias,", "step_k = step_size(raw_k, taken, 0.0,", TREE),
    ("to_state = tl.exp(replay - G_k) * step_k", "to_state = tl.exp(replay - G_k)", TREE),
    ("state = tl.exp(replay) * state", "state = state", TREE),
    ("(owns & (h % HEADS_PER_GROUP == 0))", "owns", TREE),
    ("owns = real & (tl.program_id(0) == 0)", "owns = real & (tl.program_id(0) >= 0)", TREE),
    ("raw, mask=owns)", "step.to(raw.dtype), mask=owns)", TREE),
    ("real &= tl.max(", "sees &= tl.max(", TREE),
    ("tl.sum(tl.where(sees, ld[None, :], 0.0), axis=1)", "tl.sum(tl.where(sees, ld[:, None], 0.0), axis=0)", TREE),
    ("dot_left(tl.trans(to_state[:, None] * x_k.to(tl.float32)), B_k)",
     "tl.dot(tl.trans((to_state[:, None] * x_k.to(tl.float32)).to(B_k.dtype)), B_k)", TREE),
]  # fmt: skip


NODES = "            taken &= (node >= 0) & (node < ENTRIES)\n"


@pytest.mark.parametrize("wrong", ["(node >= 0) | (node < ENTRIES)", "node >= 0", "node < ENTRIES"])
@pytest.mark.parametrize(("file", "next_"), [(CHAIN, "        raw_k"), (TREE, "        at_old")])
def test_a_planted_node_outside_the_window_is_caught(file: str, next_: str, wrong: str) -> None:
    mutant = mutated(kernel, NODES + next_, f"            taken &= {wrong}\n{next_}", file=file)
    with pytest.raises(AssertionError):
        check_path_with_gaps(mutant, tree=file == TREE)


def check_chains(module: ModuleType) -> None:
    for advanced in (0, 1):
        check_bytes(module, Options(b=1, t=2, g=2), advanced, False, block_p=16)
    check_windows(module, replace(CHAINS[1][0], b=2, io="fp16"), 5, windows=4)


def check_trees(module: ModuleType) -> None:
    for advanced in (0, 1):
        check_bytes(module, Options(b=1, t=2, g=2), advanced, True, block_p=16, program_p=16)
    check_windows(module, replace(TREES[0][0], h=2, t=5), 6, True, 4)


@pytest.mark.parametrize(("old", "new", "file"), FAULTS, ids=[f"{file} {new}" for _, new, file in FAULTS])
def test_planted_fault_is_caught(old: str, new: str, file: str) -> None:
    mutant = mutated(kernel, old, new, file=file)
    with pytest.raises(AssertionError):
        (check_chains if file == CHAIN else check_trees)(mutant)


SHORT = "ssd_replay_short.py"

SHORT_FAULTS = [
    ("tl.where(length > 0, tl.minimum(tl.load(advanced + b).to(tl.int32), REPLAYED), 0)",
     "tl.minimum(tl.load(advanced + b).to(tl.int32), REPLAYED)"),
    ("taken, node = i < count, row_i", "taken, node = i < count - 1, row_i"),
    ("path + b * stride_path_b + node", "path + node"),
    ("at_old, at_new = last * ENTRIES + node, (1 - last)", "at_old, at_new = (1 - last) * ENTRIES + node, (1 - last)"),
    ("node, (1 - last) * ENTRIES + row_i", "node, last * ENTRIES + row_i"),
    ("tl.where(i == final, G_k, 0.0)", "tl.where(i == 0, G_k, 0.0)"),
    ("real, real_t = i < length, t < length", "real, real_t = i <= length, t < length"),
    ("row_i[:, None] * stride_anc_j + col_t[None, :]", "row_i[:, None] * stride_anc_t + col_t[None, :]"),
    ("(i[:, None] <= t[None, :])", "(i[:, None] < t[None, :])"),
    ("if first == 0:", "if first >= 0:"),
    ("if p_0 == 0:", "if index == first:"),
    ("h_0 = g * HEADS_PER_GROUP +", "h_0 = g +"),
    ("tl.minimum(first + run, HEADS_PER_GROUP * TILES)", "tl.minimum(first + run, HEADS_PER_GROUP * TILES - 1)"),
    ("if (p_0 == 0) | (index == first):", "if p_0 == 0:"),
    ("if (p_0 == 0) | (index == first):", "if index == first:"),
    ("(index // TILES + 1) * TILES < end", "(index // TILES + 2) * TILES < end"),
    ("ahead, more = h + 1,", "ahead, more = h,"),
    ("past = step_size(raw_past, taken, bias,", "past = step_size(raw_past, taken, 0.0,"),
    ("tl.exp(total - G_k) * past", "tl.exp(total - G_k)"),
    ("weights(G_i, G_t, step,", "weights(G_i, G_t, step * step,"),
    ("state = dot_onto(scale * held(left", "state = dot_onto(held(left"),
    ("held(right, HALF_N), weighted, B_right)", "held(right, HALF_N), weighted, B_left)"),
    ("p_0, 0, stride_S_p, count > 0,", "p_0, 0, stride_S_p, count > 1,"),
    ("p_0, HALF_N, stride_S_p, count > 0,", "p_0, HALF_N, stride_S_p, count >= 0,"),
    ("y_t = from_state[None, :] * y_t", "y_t = y_t"),
    ("tl.store(new_x, x_i, mask=real[:, None] &", "tl.store(new_x, x_i, mask=(i < T)[:, None] &"),
    ("raw, mask=real)  # (3)", "step.to(raw.dtype), mask=real)  # (3)"),
]  # fmt: skip


def check_short(module: ModuleType) -> None:
    """Chains and trees in bf16, runs that end within a head, two groups."""
    o = Options(b=3, t=4, h=4, g=2, io="bf16", p=35, gentle=True, seed=1)
    check_windows(module, o, 5, windows=4, program_p=32)
    check_windows(module, replace(o, t=5, D="channel", z=True, seed=3), 6, True, 4, program_p=96)
    for advanced in (0, 1):
        check_bytes(module, replace(o, b=1, t=2), advanced, True, program_p=80)


def test_short_windows_with_runs_that_end_within_a_head_lie_within_the_bound() -> None:
    check_short(kernel)


def test_the_last_accepted_tokens_weight_is_its_dt_in_short_windows() -> None:
    check_last_token(kernel, True, "bf16")


@pytest.mark.parametrize(("old", "new"), SHORT_FAULTS, ids=[new for _, new in SHORT_FAULTS])
def test_planted_fault_of_short_windows_is_caught(old: str, new: str) -> None:
    mutant = mutated(kernel, old, new, file=SHORT)
    with pytest.raises(AssertionError):
        check_short(mutant)


@pytest.mark.parametrize("wrong", ["(node >= 0) | (node < ENTRIES)", "node >= 0", "node < ENTRIES"])
def test_a_planted_node_outside_a_short_window_is_caught(wrong: str) -> None:
    mutant = mutated(kernel, "taken &= (node >= 0) & (node < ENTRIES)", f"taken &= {wrong}", file=SHORT)
    with pytest.raises(AssertionError):
        check_path_with_gaps(mutant, True, "bf16")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("1 - tl.load(half + slot", "0 * tl.load(half + slot"),
        ("took &= slot >= 0", "slot = tl.maximum(slot, 0)"),
        ("took &= tl.load(lengths + b, mask=took, other=0) > 0", "pass"),
        ("b = tl.program_id(0) * BLOCK + ", "b = "),
    ],
)
def test_planted_fault_of_the_halves_is_caught(old: str, new: str) -> None:
    with pytest.raises(AssertionError):
        check_halves(mutated(halves, old, new))
