"""The recurrences at the shapes of models: scans, windows, trees, snapshots, prompts, commits, rings, replay."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from perf_gates.static import shapes
from perf_gates.static.rows import row_of, taken, takes
from ssmspec_ref.shapes import Array
from ssmspec_ref.tree import ancestors

from .call import Call, Check, Plan, accepted, launcher, masks, poisoned, trees, within
from .families import BY_CHANNEL, CONV, DELTA, KDA, MAMBA3, SELECTIVE, SHORTCONV, SSD
from .layer import Family, Layer
from .rings import replay, windows
from .ssd_gated import gated, gated_window

LONGEST = 32
"""Most tokens of a window of `delta_chunked`, and nodes of a tree of `mamba3_tree`."""
TINY: dict[str, dict[str, tuple[int, ...]]] = {
    "ssd": {"tiny": (4, 18, 20, 2)},
    "delta": {"tiny": (2, 4, 17, 20)},
    "kda": {"tiny by channel": (2, 4, 17, 20)},
    "selective": {"tiny": (37, 6)},
    "mamba3": {"tiny": (4, 5, 6, 2, 2, 1), "tiny of rank 2": (4, 3, 6, 1, 3, 2)},
    "shortconv": {"tiny": (37, 3)},
    "conv": {"tiny": (37, 4)},
}
MODELS: dict[str, dict[str, tuple[int, ...]]] = {
    "ssd": {**shapes.SSD},
    "delta": {**shapes.DELTA},
    "kda": {**shapes.KDA},
    "selective": {**shapes.SELECTIVE},
    "mamba3": {**shapes.MAMBA3},
    "shortconv": {**shapes.SHORTCONV},
    "conv": {model: (c, 4) for model, c in shapes.CONV.items()},
}
Row = tuple[str, str, Any, dict[str, Any]]
"""A launcher, a variant, how it is checked, and with what."""


def checks(plan: Plan) -> Iterator[Check]:
    for name, rows in ROWS.items():
        for model, sizes in (TINY if plan.tiny else MODELS)[name].items():
            for b in plan.batches:
                for kernel, variant, run, how in rows(plan):
                    given = {"of": FAMILIES[name], "by": kernel} | how
                    yield Check(kernel, model, variant, b, partial(run, sizes=sizes, b=b, **given))


def scans(plan: Plan, kernel: str, order: str = "sequential", longest: int = 999, verify: bool = True) -> Iterator[Row]:
    """A launcher at all windows, and as one that only reads the state."""
    for t in (t for t in plan.windows if t <= longest):
        yield kernel, f"T={t}", scan, {"t": t, "order": order}
        if verify:
            yield kernel, f"T={t} verify", scan, {"t": t, "order": order, "write_state": False}


def at_trees(plan: Plan, kernel: str, longest: int = 999) -> Iterator[Row]:
    yield from ((kernel, f"T={t}", tree, {"t": t}) for t in plan.nodes if t <= longest)


def commits(plan: Plan, kernel: str) -> Iterator[Row]:
    yield from ((kernel, f"T={t}", commit, {"t": t}) for t in plan.windows)
    yield from ((kernel, f"tree of {t}", commit, {"t": t, "branching": True}) for t in plan.nodes)


def prompts(kernel: str, chunk: int, narrow: int | None) -> Iterator[Row]:
    """Packed runs in chunks, and with products in bf16."""
    yield kernel, "packed", packed, {"chunk": chunk}
    if narrow:
        yield kernel, "packed in bf16", packed, {"chunk": narrow, "products": "bf16"}


def rings(plan: Plan, name: str, capacities: tuple[int, ...], **how: Any) -> Iterator[Row]:
    """Windows and single tokens after a ring."""
    u = f" u={how['u']}" if how else ""
    for t, capacity in plan.rings:
        yield f"{name}_buffered", f"T={t} L={capacity}{u}", windows, {"t": t, "capacity": capacity, **how}
    for capacity in capacities:
        for route in (True, False):
            given = {"t": 1, "capacity": capacity, "output_only": route, **how}
            yield f"{name}_buffered_step", f"L={capacity}{u}{'' if route else ' state'}", windows, given


def ssd(plan: Plan) -> Iterator[Row]:
    yield from scans(plan, "ssd_scan", verify=plan.rare)
    yield from scans(plan, "ssd_window", "output_only")
    for t in plan.windows:
        yield "ssd_replay_scan", f"T={t}", replay, {"t": t}
        if plan.rare:
            yield "ssd_replay_scan", f"T={t} in fp16", replay, {"t": t, "io": "fp16"}
        yield "ssd_gated_window", f"T={t}", gated_window, {"t": t}
    for t in plan.nodes:
        yield "ssd_replay_scan", f"tree of {t}", replay, {"t": t, "branching": True}
        yield "ssd_gated_window", f"tree of {t}", gated_window, {"t": t, "branching": True}
    yield "ssd_snapshots", "T=6", snapshots, {"t": 6}
    yield "ssd_gated", "T=1", gated, {}
    yield from at_trees(plan, "ssd_tree_scan")
    yield from commits(plan, "ssd_commit")
    yield from rings(plan, "ssd", (16, 5))
    yield from prompts("ssd_chunk_scan", 64, 64)


def delta(plan: Plan) -> Iterator[Row]:
    yield from scans(plan, "delta_scan")
    yield from scans(plan, "delta_chunked", "output_only", LONGEST)
    yield "delta_snapshots", "T=6", snapshots, {"t": 6}
    for t in plan.nodes:
        yield "delta_tree", f"T={t}", tree, {"t": t}
        if plan.rare:
            yield "delta_tree", f"T={t} without the inverse", tree, {"t": t, "inverse": False}
    for u in ("bf16", "fp32"):
        yield from rings(plan, "delta", (16, 5), u=u)
    yield from prompts("delta_chunk_scan", 32, 64)


def kda(plan: Plan) -> Iterator[Row]:
    """The gates bounded in its own kernels; with a softplus in those of the delta rule."""
    yield from scans(plan, "kda_scan")
    yield "kda_snapshots", "T=6", snapshots, {"t": 6}
    yield from at_trees(plan, "kda_tree")
    yield from commits(plan, "kda_commit")
    shared = (
        scans(plan, "delta_chunked", "output_only", LONGEST),
        rings(plan, "delta", (16,)),
        prompts("delta_chunk_scan", 32, None),
    )
    for kernel, variant, run, how in (row for rows in shared for row in rows):
        if kernel != "delta_chunked" or not how.get("write_state", True):
            yield kernel, variant, run, {**how, "of": BY_CHANNEL}


def mamba3(plan: Plan) -> Iterator[Row]:
    yield from scans(plan, "mamba3_scan")
    yield "mamba3_snapshots", "T=6", snapshots, {"t": 6}
    yield from at_trees(plan, "mamba3_tree", LONGEST)
    yield from commits(plan, "mamba3_commit")
    yield from rings(plan, "mamba3", ())
    yield "mamba3_packed", "packed", packed, {"most": 40}


def selective(plan: Plan) -> Iterator[Row]:
    yield from scans(plan, "selective_scan")
    yield from at_trees(plan, "selective_tree")


def shortconv(plan: Plan) -> Iterator[Row]:
    yield from scans(plan, "shortconv_scan")
    yield "shortconv_snapshots", "T=6", snapshots, {"t": 6}
    yield from at_trees(plan, "shortconv_tree")
    yield from commits(plan, "shortconv_commit")
    yield from rings(plan, "shortconv", ())
    yield "shortconv_packed", "packed", packed, {}


def conv(plan: Plan) -> Iterator[Row]:
    yield "conv_step", "T=1", scan, {"t": 1}
    for t in plan.windows:
        yield "conv_window", f"T={t}", scan, {"t": t}
        yield "conv_window", f"T={t} verify", scan, {"t": t, "keep": "none"}
        yield "conv_window", f"T={t} replay", replayed, {"t": t}
    for t in plan.nodes:
        yield "conv_tree", f"T={t} replay", replayed, {"t": t, "branching": True}
    yield from at_trees(plan, "conv_tree")
    yield from commits(plan, "conv_commit")
    yield "conv_packed", "packed", packed, {}


FAMILIES = {family.name: family for family in (SSD, DELTA, KDA, MAMBA3, SELECTIVE, SHORTCONV, CONV)}
ROWS = {rows.__name__: rows for rows in (ssd, delta, kda, mamba3, selective, shortconv, conv)}


# --- how they are checked ---


def scan(call: Call, of: Family, sizes: Any, b: int, by: str, t: int, order: Any = "sequential", **how: Any) -> float:
    """A window; a launcher of one token takes it without an axis of tokens."""
    layer = Layer(call, of, sizes, b)
    tokens, single = layer.tokens(t), "t" not in row_of(launcher(by))[1].argument.axes
    y, S = layer.bound(by, layer.state(), layer.window(tokens), order=order)
    kept = how.get("write_state", how.get("keep") != "none")
    given = {name: x[:, 0] for name, x in tokens.items()} if single else tokens
    out = layer.run(by, given, {of.state: layer.own} if kept else {}, **how)["out"]
    used = within("y", layer.outputs(out[:, None] if single else out), y)
    return max(used, layer.left(layer.state(), S)) if kept else used


def tree(call: Call, of: Family, sizes: Any, b: int, by: str, t: int, **how: Any) -> float:
    layer, parents = Layer(call, of, sizes, b), trees(call, b, t)
    tokens, mask = layer.tokens(t), ancestors(parents)
    sees = poisoned(call, tokens, mask)
    start = layer.state()
    y = layer.bound(by, start, layer.window(tokens), mask[layer.rows], order="output_only")
    shape: dict[str, Any] = {"ancestors": sees} if "ancestors" in takes(launcher(by)) else {"parents": call.ints(parents)}
    return within("y", layer.outputs(layer.run(by, tokens, {}, **shape, **how)["out"]), y)


def snapshots(call: Call, of: Family, sizes: Any, b: int, by: str, t: int) -> float:
    """A state for every token, in separate slots."""
    layer = Layer(call, of, sizes, b, extra=b * t)
    tokens, free = layer.tokens(t), np.setdiff1d(np.arange(len(layer.S)), layer.slots.cpu().numpy())
    places = call.rng.permutation(free)[: b * t].reshape(b, t)
    window, start = layer.window(tokens), layer.state()
    owned = {of.state: torch.as_tensor(places[: layer.live].ravel(), device=layer.S.device)}
    out = layer.run(by, tokens, owned, places=call.ints(places))["out"]
    y, _ = layer.bound(by, start, window)
    used = within("y", layer.outputs(out), y)
    for step in range(t):
        _, S = layer.bound(by, start, window.prefix(step + 1))
        used = max(used, layer.left(layer.state(places[layer.rows, step]), S, f"S of token {step}"))
    return used


def packed(
    call: Call, of: Family, sizes: Any, b: int, by: str, most: int = 120, chunk: int | None = None, products: str = "fp32"
) -> float:
    """Prompts of many lengths as one run, some from no state."""
    layer, how, order = Layer(call, of, sizes, b), {}, {}
    if chunk:
        most = 3 * chunk if layer.S[0].numel() < 4096 else 200 if b > 4 else 700
        how, order = {"products": products}, {"order": "chunked", "chunk": chunk, "dot": products.replace("fp32", "ieee")}
    lengths = call.rng.integers(1, most, b)
    lengths[0] = 2 * chunk + 1 if chunk else 1
    bounds, fresh = np.concatenate([[0], np.cumsum(lengths)]), call.rng.random(b) < 0.3
    run, start = {name: x[0] for name, x in layer.tokens(int(bounds[-1]), 1).items()}, layer.state()
    named: dict[str, Any] = {"bounds": call.ints(bounds), "fresh": call.ints(fresh, torch.bool)}
    out = layer.run(by, run, {of.state: layer.own}, int(bounds[layer.live]), **named, **how)["out"]
    used, found, only = 0.0, layer.state(), np.array([0])
    for i, row in enumerate(layer.rows):
        cut = slice(int(bounds[row]), int(bounds[row + 1]))
        S = np.zeros_like(start[i : i + 1]) if fresh[row] else start[i : i + 1]
        y, after = layer.bound(by, S, layer.window({name: x[None, cut] for name, x in run.items()}, only), **order)
        used = max(used, within("y", layer.outputs(out[None, cut], only), y), layer.left(found[i : i + 1], after))
    return used


def unread(call: Call, tokens: list[dict[str, torch.Tensor]], path: Array) -> None:
    """NaN in the tokens that are not on a path."""
    t = next(iter(tokens[0].values())).shape[1]
    dead = call.ints(~(path[:, :, None] == np.arange(t)).any(axis=1), torch.bool)
    for x in (x for window in tokens for x in window.values()):
        x[dead] = float("nan")


def commit(call: Call, of: Family, sizes: Any, b: int, by: str, t: int, branching: bool = False) -> float:
    """The accepted tokens of a window or tree enter the states, which the window only read: those of two layers at once, if
    the launcher takes layers."""
    layer, run = Layer(call, of, sizes, b), launcher(by)
    many = row_of(run)[0].argument.axes.startswith("i ")
    path, advanced = accepted(call, masks(call, b, t, branching))
    tokens = [layer.tokens(t) for _ in range(1 + many)]
    unread(call, tokens, path)
    start, S = layer.state(), torch.stack([layer.S] * 2) if many else layer.S
    inputs = {name: torch.stack([window[name] for window in tokens]) if many else x for name, x in tokens[0].items()}
    weights = {name: torch.stack([x] * 2) for name, x in layer.weights.items()}
    taking: dict[str, Any] = {"path": call.ints(path)} if branching else {"advanced": call.ints(advanced)}
    named = taken(run, {of.state: S, "slots": layer.slots}, inputs, weights, layer.options, **taking)
    owned = {of.state: (slice(None), layer.own) if many else layer.own}
    with call.keeping(owned, **{name: x for name, x in named.items() if isinstance(x, torch.Tensor)}):
        run(**named)
    used = 0.0
    for after, window in zip(S if many else [S], tokens, strict=True):
        found, whole = layer.state(S=after), layer.window(window)
        for i, row in enumerate(layer.rows):
            nodes = path[row : row + 1, : advanced[row]]
            if not advanced[row]:
                assert np.array_equal(found[i], start[i]), "a state changed although nothing was accepted"
                continue
            _, moved = layer.bound(by, start[i : i + 1], whole.row(i).along(nodes), order=of.committing)
            used = max(used, layer.left(found[i : i + 1], moved))
    return used


def replayed(call: Call, of: Family, sizes: Any, b: int, by: str, t: int, branching: bool = False) -> float:
    """A window or a tree after the accepted tokens of the previous one, which it enters into the state."""
    layer, before = Layer(call, of, sizes, b), t if branching else max(t, 3)
    previous, path, advanced = layer.tokens(before), *accepted(call, masks(call, b, before, branching))
    unread(call, [previous], path)
    taking: dict[str, Any] = {"path": call.ints(path)} if branching else {"advanced": call.ints(advanced)}
    taking |= {"previous": previous["u"], "keep": "committed"}
    M, past = layer.state(), layer.window(previous)
    for i, row in enumerate(layer.rows):
        if advanced[row]:
            nodes = path[row : row + 1, : advanced[row]]
            M[i] = layer.bound("conv_commit", M[i : i + 1], past.row(i).along(nodes))[1].value[0]
    tokens, parents = layer.tokens(t), trees(call, b, t)
    mask: list[Array] = []
    if branching:
        seen = ancestors(parents)
        poisoned(call, tokens, seen)
        taking, mask = taking | {"parents": call.ints(parents)}, [seen[layer.rows]]
    y = layer.bound(by, M, layer.window(tokens), *mask)
    out = layer.run(by, tokens, {of.state: layer.own}, **taking)["out"]
    assert np.array_equal(layer.state(), M), "M is not the window after the accepted tokens"
    return within("y", layer.outputs(out), y if branching else y[0])
