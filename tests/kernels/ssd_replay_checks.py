"""What activation replay of SSD is held to: windows and trees in a row, the cache, bytes, paths with gaps, halves."""

from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np
import torch

from ssmspec_kernels.shared import double_buffer as halves
from ssmspec_kernels.ssd.replay import ssd_replay_scan
from ssmspec_kernels.ssd.replay.ssd_replay_scan import Cache
from ssmspec_ref import error_bounds as eb
from ssmspec_ref import ssd as oracle
from ssmspec_ref.records import along, each
from ssmspec_ref.shapes import Array
from ssmspec_ref.ssd import SSDWindow
from tests.kernels import plot
from tests.kernels import ssd_plot as ssd
from tests.kernels.laws import Subject, moved
from tests.kernels.plot import Call
from tests.kernels.ssd_plot import Options
from tests.kernels.ssd_rings import window_case
from tests.kernels.tensors import Kept, check_within, doubles

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
    s, sizes = o.b + o.spare, vars(o) | {"s": o.b + o.spare, "l": 2 * window}
    half = torch.from_numpy(np.random.default_rng(o.seed).integers(0, 2, s)).int()
    found: Cache = plot.record("ssd_replay_scan", "cache", o, sizes, half=half)
    return found


def drawn(o: Options, window: int | None = None) -> Call:
    """A call with a cache; each row accepted nothing before."""
    call = ssd.drawn("ssd_replay_scan", o)
    call.given |= {"cache": cache_of(o, window or o.t), "advanced": torch.zeros(o.b, dtype=torch.int32)}
    return call


def draw(first: Call, n: int, tree: bool) -> tuple[Call, Array, Array]:
    """The n-th window, its lengths (0 and shorter in every third), and its mask; what is not real is NaN."""
    o: Any = first.options
    rng, case = np.random.default_rng(o.seed + n), window_case(first, n)
    lengths = rng.integers(0, o.t + 1, o.b) if n % 3 == 2 else np.full(o.b, o.t)
    lengths[0] = 0 if n % 3 == 2 else lengths[0]
    real = np.arange(o.t) < lengths[:, None]
    mask = ssd.forest(replace(o, seed=o.seed + n)) if tree else np.broadcast_to(np.tri(o.t, dtype=bool), (o.b, o.t, o.t))
    mask = mask & real[:, :, None] & real[:, None, :]
    case = replace(case, dead=~np.einsum("btt -> bt", mask))
    for name in ("x", "dt", "B", "C", "z"):
        if name in case.given:
            case[name][torch.from_numpy(case.dead)] = float("nan")
    return case, lengths, mask


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
    rng, first, cache = np.random.default_rng(o.seed), ssd.drawn("ssd_replay_scan", o), cache_of(o, window)
    advanced, path = torch.zeros(o.b, dtype=torch.int32), torch.full((o.b, window), -1)
    last: dict[int, SSDWindow] = {}
    for n in range(windows):
        case, lengths, mask = draw(first, n, tree)
        S, out, tokens = case["S"], case["out"], ssd.window(case)
        said: dict[str, Any] = {"cache": cache, "advanced": advanced, "lengths": torch.from_numpy(lengths)}
        said |= {"ancestors": torch.from_numpy(mask), "path": path} if tree else {}
        states, kept = S.clone(), Kept(**replace(case, given=case.given | said).tensors)
        case.run(module, **said, **tiles)
        kept.check_all_but([("S", case.named), ("out", case.rows), *appended(case, cache, mask, window)])
        for i, row in enumerate(case.rows):
            slot, some = int(case["slots"][row]), bool(lengths[row])
            before, took = doubles(states[slot][None]), int(advanced[row]) if some else 0
            pair, weights = eb.exact(before, o.contract()), ssd.params(case)
            if took:
                _, pair = eb.ssd.scan(before, last[slot], weights, o.contract(state="fp32", order="output_only"))
                _, stored = eb.ssd.scan(before, last[slot], weights, o.contract(order="output_only"))
                check_within(doubles(S[slot][None]), stored)
            else:
                assert torch.equal(states[slot], S[slot])
            own = each(lambda a, i=i: a[i : i + 1], tokens)
            y = eb.ssd.tree(pair.value, own, mask[row : row + 1], weights, o.contract(), inexact={"S": pair.error})
            check_within(doubles(out[row : row + 1]), y)
            for name, places in appended(case, cache, mask, window):
                if places[0] == slot:
                    assert torch.equal(
                        getattr(cache, name[6:])[places], case[name[6:]][row, np.flatnonzero(np.diag(mask[row]))]
                    )
        halves.commit_halves(cache.half, rows=o.b, slots=case["slots"], lengths=said["lengths"])
        new = accepted(rng, mask, tree)
        for i, row in enumerate(case.rows):
            if lengths[row]:
                path[row, : o.t], advanced[row] = torch.from_numpy(new[row]), int((new[row] >= 0).sum())
                if advanced[row]:
                    own = each(lambda a, i=i: a[i : i + 1], tokens)
                    last[int(case["slots"][row])] = along(own, new[row : row + 1, : int(advanced[row])])


def appended(case: Call, cache: Cache, mask: Array, window: int) -> list[tuple[str, Any]]:
    """Where the nodes of each row go: the half that does not hold the last window."""
    found: list[tuple[str, Any]] = []
    for row in case.rows:
        slot, nodes = int(case["slots"][row]), np.flatnonzero(np.diag(mask[row]))
        places = (1 - int(cache.half[slot])) * window + nodes
        found += [(f"cache.{name}", (slot, places)) for name in ("x", "dt", "B") if len(nodes)]
    return found


def check_exact(module: ModuleType) -> None:
    """Tokens of one exact window, two at a time, all accepted: outputs, and the state before the last two, with ==."""
    call = drawn(Options(t=6, p=3, n=5, exact=True, padding=False), 2)
    y, states = oracle.states(call.state(), ssd.window(call), ssd.params(call))
    for start in range(0, 6, 2):
        call.run(module, **call.cut(slice(start, start + 2)))
        halves.commit_halves(call["cache"].half, rows=3, slots=call["slots"])
        call["advanced"].fill_(2)
    assert torch.equal(call["out"], torch.from_numpy(y).to(call["out"].dtype))
    assert np.array_equal(call.state(), states[:, 3])


def check_full(module: ModuleType) -> None:
    """A window with as many tokens as a product has rows, all of them accepted: the state behind the last."""
    call = drawn(Options(b=1, t=16, h=1, g=1, p=5, n=6, io="bf16", padding=False))
    _, wanted = ssd.scanned(call, order="output_only")
    for advanced in (0, 16):
        call.run(module, advanced=torch.tensor([advanced]))
        halves.commit_halves(call["cache"].half, rows=1, slots=call["slots"])
    check_within(call.state(), wanted)


def check_long_history(module: ModuleType, io: str) -> None:
    """A window that a short kernel would take, behind one of more tokens than it has rows, all accepted."""
    call = drawn(Options(b=1, t=20, h=1, g=1, p=5, n=6, io=io, padding=False))
    _, wanted = ssd.scanned(call, order="output_only")
    call.run(module)
    halves.commit_halves(call["cache"].half, rows=1, slots=call["slots"])
    window_case(call, 1, t=4).run(module, cache=call["cache"], advanced=torch.tensor([20]))
    check_within(call.state(), wanted)


def check_path_with_gaps(module: ModuleType, tree: bool, io: str = "fp32") -> None:
    """Of what was accepted only nodes of the window count: -1 and one behind the end neither decay the state nor add."""
    mask = {"ancestors": torch.ones(1, 2, 2, dtype=torch.bool).tril()} if tree else {}
    states = []
    for path, advanced in (([1, -1, 3], 3), ([1, -1, -1], 1)):
        call = drawn(Options(b=1, t=2, io=io, poison=0.5), 3)
        call["cache"].half.fill_(1)
        call.run(module, advanced=torch.tensor([advanced]), path=torch.tensor([path]), **mask)
        states.append(call["S"][call.named])
    assert torch.equal(*states)


def check_last_token(module: ModuleType, tree: bool, io: str = "fp32") -> None:
    """The weight of the last token that counts is its dt, exactly, whatever decays came before and what -1 follow."""
    call = drawn(Options(b=1, t=8, softplus=False, bias=False, io=io, poison=0.0))
    cache, rng, slot = call["cache"], np.random.default_rng(5), call.named
    call["A"].fill_(-400.0)
    cache.half.zero_()
    cache.dt.copy_(torch.from_numpy(rng.uniform(0.02, 1.0, cache.dt.shape)))
    for kept in (cache.x, cache.B):
        kept.copy_(torch.from_numpy(rng.choice([-2.0, -0.5, 1.0, 4.0], kept.shape)))
    cache.x[:, :6] = 0.0
    call["S"][slot] = 0.0
    given: dict[str, Any] = {"ancestors": torch.ones(1, 8, 8, dtype=torch.bool).tril()} if tree else {}
    path = torch.tensor([[0, 1, 2, 3, 4, 5, 6, -1]])
    call.run(module, advanced=torch.tensor([8]), path=path, **given)
    x, dt, B = (doubles(u[slot, 6]) for u in (cache.x, cache.dt, cache.B))
    added = dt[..., None, None] * x[..., None] * np.repeat(B, 2, axis=1)[:, :, None, :]
    assert np.array_equal(call.state(), added)


def check_halves(module: ModuleType) -> None:
    half = torch.tensor([0, 1] * 100)
    slots, lengths = torch.from_numpy(np.random.default_rng(2).permutation(200)[:150]), torch.arange(150) % 3
    slots[7] = -1
    want = half.clone()
    for b, slot in enumerate(slots.tolist()):
        want[slot] = 1 - want[slot] if slot >= 0 and lengths[b] else want[slot]
    module.commit_halves(half, rows=150, slots=slots, lengths=lengths)
    assert torch.equal(half, want)


@dataclass(frozen=True)
class Replayed(Options):
    """Windows of which `advanced` tokens were accepted; `chain`: with a mask."""

    padding: bool = False
    poison: float = 0.25
    advanced: int = 0


def replayed(o: Replayed) -> Call:
    call = drawn(o)
    call["advanced"].fill_(o.advanced)
    if o.chain:
        call["ancestors"] = torch.ones(o.b, o.t, o.t, dtype=torch.bool).tril()
    return call


def replay_bytes(module: Any, call: Call) -> int:
    o: Any = call.options
    return moved(module.traffic_bytes, call, advanced=[o.advanced] * o.b)


def windows(*cases: tuple[Options, int, bool, int, dict[str, int]]) -> list[Any]:
    return [lambda module, case=case: check_windows(module, *case[:4], **case[4]) for case in cases]


HALF = {"block_p": 16}
SHORT = Options(t=4, io="bf16", p=35, gentle=True, seed=1)
CHAIN_SUBJECT = Subject(
    "ssd_replay_scan",
    ssd_replay_scan,
    replayed,
    lambda call: [],
    cover=[],
    moves=[
        *(Replayed(b=1, t=2, advanced=n, how=HALF) for n in (0, 1)),
        *(
            replace(o, advanced=n, how=how)
            for o in (
                Replayed(b=2, h=2, z=True),
                Replayed(b=1, t=4, io="bf16", g=1, p=33, chain=True),
                Replayed(b=1, t=4, h=2, chain=True),
            )
            for n in (0, 2, 3)
            for how in ({}, HALF | {"program_p": 16})
        ),
    ],
    once=("S", "store cache.B"),
    formula=replay_bytes,
    special=windows((replace(CHAINS[1][0], b=2, io="fp16"), 5, False, 4, {})),
)
TREE_SUBJECT = replace(
    CHAIN_SUBJECT,
    name="ssd_replay_scan, trees",
    moves=[Replayed(b=1, t=2, advanced=n, chain=True, how=HALF | {"program_p": 16}) for n in (0, 1)],
    special=windows((replace(TREES[0][0], h=2, t=5), 6, True, 4, {})),
)
SHORT_SUBJECT = replace(
    CHAIN_SUBJECT,
    name="ssd_replay_scan, short",
    moves=[
        Replayed(b=1, t=2, io="bf16", p=35, gentle=True, seed=1, advanced=n, chain=True, how={"program_p": 80})
        for n in (0, 1)
    ],
    special=windows(
        (SHORT, 5, False, 4, {"program_p": 32}),
        (replace(SHORT, t=5, D="channel", z=True, seed=3), 6, True, 4, {"program_p": 96}),
    ),
)
"""Chains and trees in bf16, runs that end within a head, two groups."""
SUBJECTS = [CHAIN_SUBJECT, TREE_SUBJECT, SHORT_SUBJECT]
