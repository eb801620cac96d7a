"""Mamba-3's launchers: the values of their calls, what the oracle says of them, and the cases of every law."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ssmspec_kernels.mamba3 import mamba3_commit, mamba3_packed, mamba3_scan, mamba3_snapshots, mamba3_tree
from ssmspec_ref import error_bounds as eb
from ssmspec_ref import tree
from ssmspec_ref.error_bounds.arithmetic import Approx
from ssmspec_ref.mamba3 import Mamba3Params, Mamba3Window, width
from ssmspec_ref.records import prefix
from ssmspec_ref.shapes import Array
from tests.kernels import plot
from tests.kernels.laws import Subject, moved, of_accepted, of_places
from tests.kernels.plot import Call, accepted
from tests.kernels.tensors import DTYPES, doubles, draw
from tests.trees import forest, tree_mask

TOKENS = ("x", "dt", "A", "trap", "angle", "B", "C", "z")
WEIGHTS = ("B_norm", "C_norm", "B_bias", "C_bias", "dt_bias", "D", "up", "gate", "down")
CONSTANTS: dict[str, Any] = {"A_floor": 0.625, "eps": 2.0**-12}
"""About half of all tokens reach the floor."""


@dataclass(frozen=True)
class Options(plot.Options):
    t: int = 4
    g: int = 1
    h: int = 2
    p: int = 3
    n: int = 6
    f: int = 2
    r: int = 1
    halves: bool = False
    maps: bool = False
    z: bool = False
    D: bool = True
    spare: int = 2


def parameters(rng: np.random.Generator, o: Options, *lead: int) -> dict[str, Any]:
    """The weights of the model, in the type of the activations."""
    shapes: dict[str, tuple[int, ...]] = {"B_norm": (o.n,), "C_norm": (o.n,), "dt_bias": (o.h,)}
    shapes |= {"B_bias": (o.h, o.r, o.n), "C_bias": (o.h, o.r, o.n)} | ({"D": (o.h,)} if o.D else {})
    shapes |= dict.fromkeys(("up", "gate", "down") if o.maps else (), (o.h, o.r, o.p))
    return {name: torch.from_numpy(draw(rng, *lead, *shape)).to(DTYPES[o.io]) for name, shape in shapes.items()}


def states(rng: np.random.Generator, o: Options, *lead: int) -> Array:
    """Angles lie within a turn."""
    S = draw(rng, *lead, o.h, width(o.p, o.n, o.f, o.r), forms=(o.state, o.io))
    S[..., o.p * o.n : o.p * o.n + o.f] = rng.uniform(0, 6.2, (*lead, o.h, o.f))
    return S


def tokens(rng: np.random.Generator, o: Options, *lead: int) -> dict[str, Any]:
    shapes = {"x": (o.h, o.p), "dt": (o.h,), "A": (o.h,), "trap": (o.h,), "angle": (o.f,)}
    shapes |= {"B": (o.r, o.g, o.n), "C": (o.r, o.g, o.n)} | ({"z": (o.h, o.p)} if o.z else {})
    return {name: draw(rng, *lead, *shape) for name, shape in shapes.items()}


def drawn(launcher: str, o: Options, dead: Array | None = None, **more: Any) -> Call:
    rng = np.random.default_rng(o.seed)
    found = parameters(rng, o) | {"S": states(rng, o, o.b)} | tokens(rng, o, o.b, o.t) | more
    return plot.drawn(launcher, o, found, dead=dead, halves=o.halves, **CONSTANTS)


def window(call: Call) -> Mamba3Window:
    return Mamba3Window(**call.tokens(*TOKENS))  # type: ignore[arg-type]


def params(call: Call, layer: int | None = None) -> Mamba3Params:
    """Those of a call, or of one of its layers, which has no outputs."""
    found = call.weights(*WEIGHTS)
    if layer is not None:
        found = {name: x[layer] for name, x in found.items()}
        found |= {"C_norm": found["B_norm"], "C_bias": found["B_bias"]}
    pairs = "halves" if call["halves"] else "neighbours"
    return Mamba3Params(**{**dict.fromkeys(WEIGHTS), **found}, **CONSTANTS, pairs=pairs)  # type: ignore[arg-type]


def of_window(call: Call) -> Iterator[tuple[str, Any, Approx]]:
    y, S = eb.mamba3.scan(call.state(), window(call), params(call), call.options.contract(), call.live)
    yield "out", call.rows, y
    if call.options.write:
        yield "S", call.named, S


# --- a state after every token, trees, commits ---


def of_states(call: Call) -> Iterator[tuple[str, Any, Approx]]:
    for t in range(call.options.t):
        live = None if call.live is None else call.live[:, : t + 1]
        y, S = eb.mamba3.scan(call.state(), prefix(window(call), t + 1), params(call), call.options.contract(), live)
        yield plot.kept(call, S, t)
    yield "out", call.rows, y


def branched(o: Options) -> Call:
    """A tree for each row; padding is seen by the diagonal of its mask."""
    parents = forest(o)
    if o.t > 2:
        parents[0, -1] = tree.PADDING
    return drawn("mamba3_tree", o, parents == tree.PADDING, ancestors=tree_mask(parents))


def of_tree(call: Call) -> Iterator[tuple[str, Any, Approx]]:
    mask = call["ancestors"].numpy()[call.rows]
    yield "out", call.rows, eb.mamba3.tree(call.state(), window(call), mask, params(call), call.options.contract())


def tree_bytes(module: Any, call: Call) -> int:
    """Of the mask of a node that is padding only the diagonal is read."""
    t, real = call.options.t, call.options.t - call.dead[call.rows].sum(axis=1)
    return moved(module.traffic_bytes, call) - int((t**2 - real**2 - (t - real)).sum())


def packed(o: Options) -> Call:
    """Three sequences in one run, of which one is fresh and one is empty and fresh; the last token is nobody's."""
    rng, count = np.random.default_rng(o.seed), o.b * o.t
    run = tokens(rng, o, count)
    for x in run.values():
        x[-1] = o.poison
    found = {"bounds": np.array([0, 2, 2, count - 1]), "fresh": np.array([False, True, True]), "S": states(rng, o, o.b)}
    found["S"][2] = o.poison
    return plot.drawn("mamba3_packed", o, parameters(rng, o) | found | run, halves=o.halves, **CONSTANTS)


def of_run(call: Call) -> Iterator[tuple[str, Any, Approx]]:
    """Every sequence alone; an empty fresh one begins from zeros."""
    contract, bounds, first = call.options.contract(), call["bounds"].tolist(), np.zeros_like(call.state()[:1])
    for row, slot in enumerate(call.named.tolist()):
        cut = slice(*bounds[row : row + 2])
        if cut.start == cut.stop:
            yield "S", slot, eb.exact(first[0], contract)
            continue
        run = {name: doubles(call[name])[None, cut] for name in TOKENS if name in call.given}
        start = first if call["fresh"][row] else call.state()[row : row + 1]
        y, S = eb.mamba3.scan(start, Mamba3Window(**{"z": None, **run}), params(call), contract)  # type: ignore[arg-type]
        yield "out", cut, y[0]
        yield "S", slot, S[0]


def run_bytes(module: Any, call: Call) -> int:
    """States of fresh sequences are written, not read."""
    fresh = int(call["fresh"].sum()) * call.state()[0].size * call["S"].element_size()
    return moved(module.traffic_bytes, call, tokens=int(call["bounds"][-1]), sequences=call.options.b) - fresh


@dataclass(frozen=True)
class Commits(Options, plot.Commits):
    t: int = 3
    drafts: int = 2


def committed(o: Commits) -> Call:
    rng, lead = np.random.default_rng(o.seed), (o.layers, o.b * o.drafts, o.t)
    weights, found = parameters(rng, o, o.layers), tokens(rng, o, *lead)
    found |= {name: weights[name] for name in ("B_norm", "B_bias", "dt_bias", "up") if name in weights}
    found = {name: x for name, x in found.items() if name not in ("C", "z")} | {"S": states(rng, o, o.layers, o.b)}
    return plot.committed("mamba3_commit", o, found, halves=o.halves, **CONSTANTS)


def of_commit(call: Call) -> Iterator[tuple[str, Any, Approx]]:
    """Every layer and row alone; C is not read."""
    o: Any = call.options
    for layer in range(o.layers):
        for slot, (row, taken) in zip(call.named.tolist(), accepted(call), strict=True):
            if len(taken):
                part = {name: doubles(call[name][layer, row])[None, taken] for name in TOKENS[:-2]}
                start = doubles(call["S"][layer, slot])[None]
                tokens = Mamba3Window(**part, C=part["B"])
                _, S = eb.mamba3.scan(start, tokens, params(call, layer), o.contract())
                yield "S", (layer, slot), S[0]


SCANS = [
    Options(),
    Options(t=1, r=2, halves=True, maps=True, z=True, io="bf16", seed=1),
    Options(t=3, n=4, h=4, g=2, f=1, live=True, state="bf16", io="bf16", z=True, D=False, seed=2),
    Options(t=2, b=2, p=5, n=2, f=1, r=3, halves=True, maps=True, live=True, write=False, io="fp16", seed=3),
    Options(t=9, b=1, p=2, n=8, f=4, h=1, io="bf16", seed=4),
]
SCANS = [replace(o, how={"write_state": o.write}) for o in SCANS]
ONCE = ("S", "x", "dt", "A", "trap", "z", "out")
SCAN = Subject(
    "mamba3_scan",
    mamba3_scan,
    lambda o: drawn("mamba3_scan", o),
    of_window,
    cover=SCANS,
    moves=SCANS,
    steps=[Options(t=3, r=2, halves=True, padding=False)],
    small=Options(t=2),
    once=ONCE,
)
KEEPING = [
    Options(t=4, h=5, f=3, spare=14),
    Options(t=3, b=2, r=2, n=4, halves=True, live=True, state="bf16", io="bf16", spare=10, seed=1),
]
SNAPSHOTS = Subject(
    "mamba3_snapshots",
    mamba3_snapshots,
    lambda o: plot.with_places(drawn("mamba3_snapshots", o)),
    of_states,
    cover=KEEPING,
    moves=KEEPING,
    formula=of_places,
)
TREES = [
    Options(t=9),
    Options(t=7, r=2, h=4, g=2, n=4, halves=True, maps=True, z=True, io="bf16", seed=1),
    Options(t=1, b=2, r=3, z=True, D=False, state="bf16", io="bf16", seed=2),
    Options(t=19, b=2, h=1, p=2, n=8, f=4, halves=True, seed=3),
]
TREE = Subject("mamba3_tree", mamba3_tree, branched, of_tree, cover=TREES, moves=TREES, formula=tree_bytes, once=())
COMMITS = [
    Commits(padding=False),
    Commits(path=True),
    Commits(r=3, h=4, g=2, f=1, halves=True, maps=True, io="bf16", seed=5),
    Commits(r=3, h=4, g=2, f=1, halves=True, maps=True, io="bf16", path=True, padding=False, seed=5),
]
COMMIT = Subject("mamba3_commit", mamba3_commit, committed, of_commit, cover=COMMITS, moves=COMMITS, formula=of_accepted)
RUNS = [
    Options(t=2, padding=False),
    Options(t=2, r=3, h=4, g=2, p=5, halves=True, maps=True, z=True, io="bf16", padding=False, seed=1),
]
PACKED = Subject("mamba3_packed", mamba3_packed, packed, of_run, cover=RUNS, moves=RUNS, formula=run_bytes, once=())
SUBJECTS = [SCAN, SNAPSHOTS, TREE, COMMIT, PACKED]
