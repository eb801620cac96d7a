"""SSD at the shapes of models: scans, windows, trees, snapshots, replay, the ring, prefill."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from perf_gates.static.shapes import SSD
from ssmspec_ref import error_bounds as eb
from ssmspec_ref.records import along
from ssmspec_ref.shapes import Array

from .call import Call, Check, Plan, accepted, ancestors, finite, launcher, masks, poisoned, pulled, trees, within
from .rings import Tokens, buffered, row, steps
from .ssd_gated import gated, gated_window
from .ssd_layer import Layer, Sizes

TINY = {"tiny": (4, 18, 20, 2)}


def checks(plan: Plan) -> Iterator[Check]:
    for model, sizes in (TINY if plan.tiny else SSD).items():
        for b in plan.batches:
            at = partial(_check, model, sizes, b)
            for t in plan.windows:
                yield at("ssd_scan", f"T={t}", scan, t=t, by="ssd_scan", order="sequential")
                if plan.rare:
                    yield at("ssd_scan", f"T={t} verify", scan, t=t, by="ssd_scan", order="sequential", write_state=False)
                yield at("ssd_window", f"T={t}", scan, t=t, by="ssd_window", order="output_only")
                yield at("ssd_window", f"T={t} verify", scan, t=t, by="ssd_window", order="output_only", write_state=False)
                yield at("ssd_replay_scan", f"T={t}", replay, t=t)
                if plan.rare:
                    yield at("ssd_replay_scan", f"T={t} in fp16", replay, t=t, io="fp16")
                yield at("ssd_commit", f"T={t}", commit, t=t)
                yield at("ssd_gated_window", f"T={t}", gated_window, t=t)
            yield at("ssd_snapshots", "T=6", snapshots, t=6)
            yield at("ssd_gated", "T=1", gated)
            for t in plan.nodes:
                yield at("ssd_tree_scan", f"T={t}", tree, t=t)
                yield at("ssd_replay_scan", f"tree of {t}", replay, t=t, branching=True)
                yield at("ssd_commit", f"tree of {t}", commit, t=t, branching=True)
                yield at("ssd_gated_window", f"tree of {t}", gated_window, t=t, branching=True)
            for t, capacity in plan.rings:
                yield at("ssd_buffered", f"T={t} L={capacity}", buffered, family=Layer, t=t, capacity=capacity)
            for capacity in (16, 5):
                for route in (True, False):
                    name = f"L={capacity}{'' if route else ' state'}"
                    yield at("ssd_buffered_step", name, steps, family=Layer, capacity=capacity, output_only=route)
            yield at("ssd_chunk_scan", "packed", prefill)
            yield at("ssd_chunk_scan", "packed in bf16", prefill, products="bf16")


def _check(model: str, sizes: Sizes, b: int, kernel: str, variant: str, run: Any, **how: Any) -> Check:
    return Check(kernel, model, variant, b, partial(run, sizes=sizes, b=b, **how))


def scan(call: Call, sizes: Any, b: int, t: int, by: str, order: Any, write_state: bool = True, family: Any = Layer) -> float:
    layer = family(call, sizes, b)
    tokens, out = layer.window(t), layer.blank(t)
    y, S = layer.scan(layer.state(), *layer.sampled(tokens), order=order)
    owned = {"out": slice(0, layer.live), **({"S": layer.own} if write_state else {})}
    with call.keeping(owned, out=out, **layer.same(**tokens)):
        launcher(by)(layer.S, **tokens, **layer.given, out=out, write_state=write_state)
    finite("y", out, layer.live)
    used = within("y", layer.outputs(out), y)
    return max(used, within("S", layer.state(), S)) if write_state else used


def tree(call: Call, sizes: Any, b: int, t: int, by: str = "ssd_tree_scan", family: Any = Layer, **how: Any) -> float:
    layer = family(call, sizes, b)
    tokens, out, mask = layer.window(t), layer.blank(t), ancestors(trees(call, b, t))
    sees = poisoned(call, tokens, mask)
    with call.keeping({"out": slice(0, layer.live)}, out=out, sees=sees, **layer.same(**tokens)):
        launcher(by)(layer.S, **tokens, ancestors=sees, **layer.given, out=out, **how)
    finite("y", out, layer.live)
    window, errors = layer.sampled(tokens)
    return within("y", layer.outputs(out), layer.tree(layer.state(), window, mask[layer.rows], errors))


def snapshots(call: Call, sizes: Any, b: int, t: int, family: Any = Layer) -> float:
    """A state for every token, in separate slots."""
    layer = family(call, sizes, b, extra=b * t)
    tokens, out = layer.window(t), layer.blank(t)
    free = np.setdiff1d(np.arange(len(layer.S)), layer.slots.cpu().numpy())
    places = call.ints(call.rng.permutation(free)[: b * t].reshape(b, t))
    y, states = layer.states(layer.state(), *layer.sampled(tokens))
    owned = {"out": slice(0, layer.live), "S": places[: layer.live].flatten().long()}
    with call.keeping(owned, out=out, places=places, **layer.same(**tokens)):
        launcher(f"{layer.name}_snapshots")(layer.S, **tokens, places=places, **layer.given, out=out)
    finite("y", out, layer.live)
    at = places[torch.as_tensor(layer.rows, device=call.device)].long()
    found = pulled(layer.S, at.flatten().cpu().numpy(), layer.heads, axis=1).reshape(states.value.shape)
    return max(within("y", layer.outputs(out), y), within("states", found, states))


def prefill(call: Call, sizes: Any, b: int, chunk: int = 64, family: Any = Layer, products: str = "fp32") -> float:
    """Prompts of many lengths as one run, some from no state."""
    layer = family(call, sizes, b)
    most = 3 * chunk if layer.S[0].numel() < 4096 else 200 if b > 4 else 700
    lengths = call.rng.integers(1, most, b)
    lengths[0] = 2 * chunk + 1
    bounds, fresh = np.concatenate([[0], np.cumsum(lengths)]), call.rng.random(b) < 0.3
    run = {name: x[0] for name, x in family(call, sizes, 1).window(int(bounds[-1])).items()}
    start, out, live = (
        layer.state(),
        call.blank(int(bounds[-1]), *layer.blank(1).shape[2:], form=layer.form),
        int(bounds[layer.live]),
    )
    named = {"bounds": call.ints(bounds), "fresh": call.ints(fresh, torch.bool)}
    with call.keeping({"out": slice(0, live), "S": layer.own}, out=out, **layer.same(**run, **named)):
        launcher(f"{layer.name}_chunk_scan")(layer.S, **run, **named, **layer.given, out=out, products=products)
    finite("y", out, live)
    used, only, dot = 0.0, np.array([0]), "ieee" if products == "fp32" else products
    for i, sequence in enumerate(layer.rows):
        cut = slice(int(bounds[sequence]), int(bounds[sequence + 1]))
        tokens = layer.sampled({name: x[None, cut] for name, x in run.items()}, only)
        S = np.zeros_like(start[i : i + 1]) if fresh[sequence] else start[i : i + 1]
        y, S_next = layer.scan(S, *tokens, order="chunked", chunk=chunk, dot=dot)
        used = max(used, within("y", pulled(out[None, cut], only, layer.heads), y))
        used = max(used, within("S", layer.state()[i : i + 1], S_next))
    return used


def commit(call: Call, sizes: Any, b: int, t: int, branching: bool = False, family: Any = Layer) -> float:
    """Commits the accepted tokens of a window or tree to the states of two layers, which the window only read."""
    layer, used = family(call, sizes, b), 0.0
    windows, S, start = [layer.window(t) for _ in range(2)], torch.stack([layer.S] * 2), layer.state()
    mask = masks(call, b, t, branching)
    path, advanced = accepted(call, mask)
    for tokens in windows:
        poisoned(call, tokens, mask)
    inputs = {name: torch.stack([tokens[name] for tokens in windows]) for name in layer.entering}
    given = {name: torch.stack([layer.given[name]] * 2) for name in ("A", "dt_bias")} | {"slots": layer.slots}
    given |= {"path": call.ints(path)} if branching else {"advanced": call.ints(advanced)}
    bound = {name: layer.given[name] for name in ("lower_bound",) if name in layer.given}
    with call.keeping({"S": (slice(None), layer.own)}, S=S, **inputs, **given):
        launcher(f"{layer.name}_commit")(S, **inputs, **given, **bound)
    for moved, tokens in zip(S, windows, strict=True):
        found, window = pulled(moved, layer.at.cpu().numpy(), layer.heads, axis=1), layer.sampled(tokens)
        for i, b_i in enumerate(layer.rows):
            if not advanced[b_i]:
                assert np.array_equal(found[i], start[i]), "a state changed although nothing was accepted"
                continue
            took = along_path(row(window, i), path[b_i : b_i + 1, : advanced[b_i]])
            _, state = layer.scan(start[i : i + 1], *took, order=layer.committing)
            used = max(used, within("S", found[i : i + 1], state))
    return used


def along_path(tokens: Tokens, path: Array) -> Tokens:
    """The tokens of a path, and the errors of their fields."""
    window, errors = tokens
    return along(window, path), {
        name: np.take_along_axis(e, path.reshape(path.shape + (1,) * (e.ndim - 2)), 1) for name, e in errors.items()
    }


def replay(call: Call, sizes: Sizes, b: int, t: int, branching: bool = False, windows: int = 3, io: str = "bf16") -> float:
    """Consecutive windows or trees, each after the replay of the accepted tokens of the previous one."""
    layer = Layer(call, sizes, b, io=io)
    cache, path, advanced = layer.cache(t), np.full((b, t), -1), np.zeros(b, dtype=int)
    last: Tokens | None = None
    used = 0.0
    for _ in range(windows):
        tokens, out, start = layer.window(t), layer.blank(t), layer.state()
        mask = masks(call, b, t, branching)
        sees = poisoned(call, tokens, mask)
        more = {"path": call.ints(path), "ancestors": sees} if branching else {}
        owned = {"out": slice(0, layer.live), "S": layer.own}
        with call.keeping(owned, out=out, half=cache.half, **layer.same(**tokens)):
            launcher("ssd_replay_scan")(layer.S, cache, call.ints(advanced), **tokens, **more, **layer.given, out=out)
        finite("y", out, layer.live)
        found, window = layer.state(), layer.sampled(tokens)
        for i, b_i in enumerate(layer.rows):
            S = eb.exact(start[i : i + 1], layer.contract())
            if advanced[b_i] and last is not None:
                took = along(row(last, i)[0], path[b_i : b_i + 1, : advanced[b_i]])
                _, S = layer.scan(S.value, took, {}, order="output_only")
                used = max(used, within("S", found[i : i + 1], S))
            else:
                assert np.array_equal(found[i], start[i]), "a state changed although nothing was accepted"
            y = layer.tree(S.value, row(window, i)[0], mask[b_i : b_i + 1], {"S": S.error})
            used = max(used, within("y", layer.outputs(out)[i : i + 1], y))
        launcher("double_buffer", "commit_halves")(cache.half, rows=b, slots=layer.slots)
        last, (path, advanced) = window, accepted(call, mask)
    return used
