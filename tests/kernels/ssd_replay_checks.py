"""What activation replay of SSD is held to: windows and trees in a row, the cache, bytes, paths with gaps, halves."""

from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import torch

from conformance.interpreter.memory import watch
from ssmspec_kernels.shared import double_buffer as halves
from ssmspec_kernels.ssd.replay.ssd_replay_scan import Cache
from ssmspec_ref import error_bounds as eb
from ssmspec_ref import ssd
from ssmspec_ref.records import along, each
from ssmspec_ref.shapes import Array
from ssmspec_ref.ssd import SSDWindow
from tests.kernels import ssd_cases as cases
from tests.kernels import ssd_rings as rings
from tests.kernels.ssd_cases import Case, Options

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


def check_full(module: ModuleType) -> None:
    """A window with as many tokens as a product has rows, all of them accepted: the state behind the last."""
    o = Options(b=1, t=16, h=1, g=1, p=5, n=6, io="bf16")
    case, cache = cases.draw(o, padding=False), cache_of(o, 16)
    slot = case.slots.long()
    S = cases.doubles(case.S[slot])
    for advanced in (0, 16):
        case.call(module.ssd_replay_scan, cache=cache, advanced=torch.tensor([advanced]))
        halves.commit_halves(cache.half, rows=1, slots=case.slots)
    _, wanted = eb.ssd.scan(S, case.window(), case.params(), o.contract(order="output_only"))
    cases.assert_within("S", case.S[slot], wanted)


def check_long_history(module: ModuleType, io: str) -> None:
    """A window that a short kernel would take, behind one of more tokens than it has rows, all accepted."""
    o = Options(b=1, t=20, h=1, g=1, p=5, n=6, io=io)
    case, cache = cases.draw(o, padding=False), cache_of(o, o.t)
    slot = case.slots.long()
    S = cases.doubles(case.S[slot])
    case.call(module.ssd_replay_scan, cache=cache, advanced=torch.tensor([0]))
    halves.commit_halves(cache.half, rows=1, slots=case.slots)
    rings.window_case(case, replace(o, t=4), 1).call(module.ssd_replay_scan, cache=cache, advanced=torch.tensor([o.t]))
    _, wanted = eb.ssd.scan(S, case.window(), case.params(), o.contract(order="output_only"))
    cases.assert_within("S", case.S[slot], wanted)


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


def check_halves(module: ModuleType) -> None:
    half = torch.tensor([0, 1] * 100)
    slots, lengths = torch.from_numpy(np.random.default_rng(2).permutation(200)[:150]), torch.arange(150) % 3
    slots[7] = -1
    want = half.clone()
    for b, slot in enumerate(slots.tolist()):
        want[slot] = 1 - want[slot] if slot >= 0 and lengths[b] else want[slot]
    module.commit_halves(half, rows=150, slots=slots, lengths=lengths)
    assert torch.equal(half, want)


def check_chains(module: ModuleType) -> None:
    for advanced in (0, 1):
        check_bytes(module, Options(b=1, t=2, g=2), advanced, False, block_p=16)
    check_windows(module, replace(CHAINS[1][0], b=2, io="fp16"), 5, windows=4)


def check_trees(module: ModuleType) -> None:
    for advanced in (0, 1):
        check_bytes(module, Options(b=1, t=2, g=2), advanced, True, block_p=16, program_p=16)
    check_windows(module, replace(TREES[0][0], h=2, t=5), 6, True, 4)


def check_short(module: ModuleType) -> None:
    """Chains and trees in bf16, runs that end within a head, two groups."""
    o = Options(b=3, t=4, h=4, g=2, io="bf16", p=35, gentle=True, seed=1)
    check_windows(module, o, 5, windows=4, program_p=32)
    check_windows(module, replace(o, t=5, D="channel", z=True, seed=3), 6, True, 4, program_p=96)
    for advanced in (0, 1):
        check_bytes(module, replace(o, b=1, t=2), advanced, True, program_p=80)
