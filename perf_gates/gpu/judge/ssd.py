"""SSD at the shapes of models: scans, windows, trees, snapshots, replay, the ring, prefill."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ssmspec_ref import error_bounds as eb
from ssmspec_ref.contract import NumericContract, Storage
from ssmspec_ref.error_bounds.arithmetic import Approx, constant, sum_of_products
from ssmspec_ref.records import along
from ssmspec_ref.shapes import Array
from ssmspec_ref.ssd import SSDParams, SSDWindow

from .call import Call, Check, Plan, accepted, ancestors, chain, declared, finite, launcher, pulled, trees, within
from .rings import Tokens, buffered, row, steps

MODELS = {"mamba2-2.7b": (80, 64, 128, 1), "nemotron-3-nano-4b": (96, 80, 128, 8)}
"""h, p, n, g."""
TINY = {"tiny": (4, 18, 20, 2)}
Sizes = tuple[int, int, int, int]


def checks(plan: Plan) -> Iterator[Check]:
    for model, sizes in (TINY if plan.tiny else MODELS).items():
        for b in plan.batches:
            at = partial(_check, model, sizes, b)
            for t in plan.windows:
                yield at("ssd_scan", f"T={t}", scan, t=t, by="ssd_scan", order="sequential")
                yield at("ssd_window", f"T={t}", scan, t=t, by="ssd_window", order="output_only")
                yield at("ssd_window", f"T={t} verify", scan, t=t, by="ssd_window", order="output_only", write_state=False)
                yield at("ssd_replay_scan", f"T={t}", replay, t=t)
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


@dataclass
class Layer:
    """Parameters, states and slots that several windows share, and the rows and heads that are judged."""

    call: Call
    sizes: Sizes
    b: int
    extra: int = 0
    name: str = "ssd"
    given: dict[str, Any] = field(default_factory=dict)

    @property
    def form(self) -> Storage:
        """Outputs of a batch are stored in fp32, where errors show that a bf16 output hides."""
        return "bf16" if self.b == 1 else "fp32"

    def __post_init__(self) -> None:
        call, (h, p, n, _) = self.call, self.sizes
        self.live = self.b - 1 if self.b > 1 else 1
        self.rows, self.heads = call.rows(self.b), call.heads(h)
        self.slots = call.slots(self.b)
        self.S = call.pool(self.slots, h, p, n, extra=self.extra)
        self.own = self.slots[: self.live].long()
        self.at = self.slots[torch.as_tensor(self.rows, device=call.device)].long()
        A, D, bias = -call.uniform(0.05, 1.0, h), call.normal(h, form="fp32"), call.normal(h, form="fp32", mean=-1.0)
        self.given = {"A": A, "D": D, "dt_bias": bias, "slots": self.slots}
        A_h, D_h, bias_h = (pulled(x, self.heads) for x in (A, D, bias))
        self.params = SSDParams(A_h, D_h, bias_h, dt_softplus=True)

    def window(self, t: int) -> dict[str, Tensor]:
        h, p, n, g = self.sizes
        x, B, C = self.call.beside(self.b, t, (h, p), (g, n), (g, n))
        _, dt = self.call.beside(self.b, t, (8,), (h,))
        return {"x": x, "dt": dt, "B": B, "C": C}

    def blank(self, t: int) -> Tensor:
        return self.call.blank(self.b, t, *self.sizes[:2], form=self.form)

    def same(self, **tensors: Tensor) -> dict[str, Tensor]:
        """What is watched in a call."""
        return {"S": self.S, **{k: v for k, v in self.given.items() if isinstance(v, Tensor)}, **tensors}

    # --- the judged rows and heads, and the oracle ---

    def state(self) -> Array:
        return pulled(self.S, self.at.cpu().numpy(), self.heads, axis=1)

    def outputs(self, out: Tensor) -> Array:
        return pulled(out, self.rows, self.heads)

    def judged(self, tensors: dict[str, Tensor], rows: Array | None = None) -> Tokens:
        """A window, each head with the B and C of its group; what lies in padding is 0."""
        group = self.heads // (self.sizes[0] // self.sizes[3])
        by = {"x": self.heads, "dt": self.heads, "B": group, "C": group}
        rows = self.rows if rows is None else rows
        return SSDWindow(**{name: np.nan_to_num(pulled(tensors[name], rows, by[name])) for name in by}), {}

    def contract(self, **changes: Any) -> NumericContract:
        return declared(io=self.form, **changes)

    def scan(self, S: Array, window: Any, inexact: dict[str, Array], **changes: Any) -> tuple[Approx, Approx]:
        return eb.ssd.scan(S, window, self.params, self.contract(**changes), inexact=inexact)

    def states(self, S: Array, window: Any, inexact: dict[str, Array]) -> tuple[Approx, Approx]:
        return eb.ssd.states(S, window, self.params, self.contract(), inexact=inexact)

    def tree(self, S: Array, window: Any, mask: Array, inexact: dict[str, Array]) -> Approx:
        return eb.ssd.tree(S, window, mask, self.params, self.contract(order="output_only"), inexact=inexact)

    # --- what differs between the families ---

    def ring(self, capacity: int) -> Any:
        """An empty ring, NaN in every entry, each origin somewhere else."""
        (h, p, n, g), call, s = self.sizes, self.call, len(self.S)
        entries = call.blank(s, capacity, h, p), call.blank(s, capacity, h, form="fp32"), call.blank(s, capacity, g, n)
        return launcher("ssd_ring", "Ring")(*entries, call.ints(call.rng.integers(0, capacity, s)), call.ints(np.zeros(s)))

    def flush(self, ring: Any) -> None:
        launcher("ssd_flush")(self.S, ring, self.given["A"], self.b, slots=self.slots)

    def cache(self, t: int) -> Any:
        (h, p, n, g), call, s = self.sizes, self.call, len(self.S)
        kept = call.blank(s, 2 * t, h, p), call.blank(s, 2 * t, h), call.blank(s, 2 * t, g, n)
        return launcher("ssd_replay_scan", "Cache")(*kept, call.ints(call.rng.integers(0, 2, s)))


def scan(call: Call, sizes: Any, b: int, t: int, by: str, order: Any, write_state: bool = True, family: Any = Layer) -> float:
    layer = family(call, sizes, b)
    tokens, out = layer.window(t), layer.blank(t)
    y, S = layer.scan(layer.state(), *layer.judged(tokens), order=order)
    owned = {"out": slice(0, layer.live), **({"S": layer.own} if write_state else {})}
    with call.keeping(owned, out=out, **layer.same(**tokens)):
        launcher(by)(layer.S, **tokens, **layer.given, out=out, write_state=write_state)
    finite("y", out, layer.live)
    used = within("y", layer.outputs(out), y)
    return max(used, within("S", layer.state(), S)) if write_state else used


def gated(call: Call, sizes: Any, b: int) -> float:
    """A token with its gate and the norm's weight; the squares of the judged heads, tile by tile."""
    layer, (h, p, _, _), parts = Layer(call, sizes, b), sizes, launcher("ssd_gated", "parts")
    z, weight, squares = call.normal(b, 1, h, p), call.normal(h, p), call.blank(b, 1, parts(h, p), form="fp32")
    tokens, out = layer.window(1), layer.blank(1)
    window, errors = layer.judged(tokens)
    window = replace(window, z=pulled(z, layer.rows, layer.heads))
    g, S = eb.ssd.scan(layer.state(), window, layer.params, declared(io="fp32"), inexact=errors)
    owned = {"out": slice(0, layer.live), "squares": slice(0, layer.live), "S": layer.own}
    with call.keeping(owned, out=out, squares=squares, z=z, weight=weight, **layer.same(**tokens)):
        launcher("ssd_gated")(layer.S, **tokens, **layer.given, z=z, weight=weight, out=out, squares=squares)
    finite("v", out, layer.live)
    scale = constant(weight.double().cpu().numpy()[layer.heads], g.contract)
    used = within("v", layer.outputs(out), (g * scale).store(layer.form))
    tiles = parts(h, p) // h
    size = 1 << (-(-p // tiles) - 1).bit_length()
    pieces = g.map(lambda a: np.pad(a, [(0, 0)] * 3 + [(0, tiles * size - p)]).reshape(*a.shape[:3], tiles, size))
    found = pulled(squares.view(b, 1, h, tiles), layer.rows, layer.heads)
    used = max(used, within("squares", found, sum_of_products(("...i, ...i -> ...", pieces, pieces))))
    return max(used, within("S", layer.state(), S))


def gated_window(call: Call, sizes: Any, b: int, t: int, branching: bool = False) -> float:
    """A window or tree with its gate and the norm's weight; the squares of the judged heads, all tiles of one together."""
    layer, (h, p, _, _) = Layer(call, sizes, b), sizes
    z, weight, tokens, out = call.normal(b, t, h, p), call.normal(h, p), layer.window(t), layer.blank(t)
    mask = ancestors(trees(call, b, t)) if branching else np.broadcast_to(chain(t), (b, t, t))
    sees = poisoned(call, tokens | {"z": z}, mask)
    window, errors = layer.judged(tokens)
    window = replace(window, z=np.nan_to_num(pulled(z, layer.rows, layer.heads)))
    g = eb.ssd.tree(
        layer.state(), window, mask[layer.rows], layer.params, declared(io="fp32", order="output_only"), inexact=errors
    )
    more = {"ancestors": sees} if branching else {}
    with call.keeping({"out": slice(0, layer.live)}, out=out, z=z, weight=weight, **layer.same(**tokens)):
        _, squares = launcher("ssd_gated_window")(layer.S, **tokens, **layer.given, z=z, weight=weight, out=out, **more)
    finite("v", out, layer.live)
    scale = constant(weight.double().cpu().numpy()[layer.heads], g.contract)
    used = within("v", layer.outputs(out), (g * scale).store(layer.form))
    found = pulled(squares.view(b, t, h, -1), layer.rows, layer.heads).sum(-1)
    return max(used, within("squares", found, sum_of_products(("...i, ...i -> ...", g, g))))


def poisoned(call: Call, tokens: dict[str, Tensor], mask: Array) -> Tensor:
    """NaN in the tokens that no node is; the mask on the device."""
    dead = call.ints(~np.einsum("btt -> bt", mask), torch.bool)
    for x in tokens.values():
        x[dead] = float("nan")
    return call.ints(mask, torch.bool)


def tree(call: Call, sizes: Any, b: int, t: int, by: str = "ssd_tree_scan", family: Any = Layer) -> float:
    layer = family(call, sizes, b)
    tokens, out, mask = layer.window(t), layer.blank(t), ancestors(trees(call, b, t))
    sees = poisoned(call, tokens, mask)
    with call.keeping({"out": slice(0, layer.live)}, out=out, sees=sees, **layer.same(**tokens)):
        launcher(by)(layer.S, **tokens, ancestors=sees, **layer.given, out=out)
    finite("y", out, layer.live)
    window, errors = layer.judged(tokens)
    return within("y", layer.outputs(out), layer.tree(layer.state(), window, mask[layer.rows], errors))


def snapshots(call: Call, sizes: Any, b: int, t: int, family: Any = Layer) -> float:
    """A state for every token, in slots of their own."""
    layer = family(call, sizes, b, extra=b * t)
    tokens, out = layer.window(t), layer.blank(t)
    free = np.setdiff1d(np.arange(len(layer.S)), layer.slots.cpu().numpy())
    places = call.ints(call.rng.permutation(free)[: b * t].reshape(b, t))
    y, states = layer.states(layer.state(), *layer.judged(tokens))
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
        tokens = layer.judged({name: x[None, cut] for name, x in run.items()}, only)
        S = np.zeros_like(start[i : i + 1]) if fresh[sequence] else start[i : i + 1]
        y, S_next = layer.scan(S, *tokens, order="chunked", chunk=chunk, dot=dot)
        used = max(used, within("y", pulled(out[None, cut], only, layer.heads), y))
        used = max(used, within("S", layer.state()[i : i + 1], S_next))
    return used


def commit(call: Call, sizes: Sizes, b: int, t: int, branching: bool = False) -> float:
    """What was accepted of a window or tree into the states of two layers, which the window only read."""
    layer, used = Layer(call, sizes, b), 0.0
    windows, S, start = [layer.window(t) for _ in range(2)], torch.stack([layer.S] * 2), layer.state()
    mask = ancestors(trees(call, b, t)) if branching else np.broadcast_to(chain(t), (b, t, t))
    path, advanced = accepted(call, mask)
    for tokens in windows:
        poisoned(call, tokens, mask)
    inputs = {name: torch.stack([tokens[name] for tokens in windows]) for name in ("x", "dt", "B")}
    given = {name: torch.stack([layer.given[name]] * 2) for name in ("A", "dt_bias")} | {"slots": layer.slots}
    how = {"path": call.ints(path)} if branching else {"advanced": call.ints(advanced)}
    with call.keeping({"S": (slice(None), layer.own)}, S=S, **inputs, **given, **how):
        launcher("ssd_commit")(S, **inputs, **given, **how)
    for moved, tokens in zip(S, windows, strict=True):
        found, window = pulled(moved, layer.at.cpu().numpy(), layer.heads, axis=1), layer.judged(tokens)
        for i, b_i in enumerate(layer.rows):
            if not advanced[b_i]:
                assert np.array_equal(found[i], start[i]), "a state moved though nothing was accepted"
                continue
            took = along(row(window, i)[0], path[b_i : b_i + 1, : advanced[b_i]])
            _, state = layer.scan(start[i : i + 1], took, {}, order="output_only")
            used = max(used, within("S", found[i : i + 1], state))
    return used


def replay(call: Call, sizes: Sizes, b: int, t: int, branching: bool = False, windows: int = 3) -> float:
    """Windows or trees in a row, each after the replay of what was accepted of the one before."""
    layer = Layer(call, sizes, b)
    cache, path, advanced = layer.cache(t), np.full((b, t), -1), np.zeros(b, dtype=int)
    last: Tokens | None = None
    used = 0.0
    for _ in range(windows):
        tokens, out, start = layer.window(t), layer.blank(t), layer.state()
        mask = ancestors(trees(call, b, t)) if branching else np.broadcast_to(chain(t), (b, t, t))
        sees = poisoned(call, tokens, mask)
        more = {"path": call.ints(path), "ancestors": sees} if branching else {}
        owned = {"out": slice(0, layer.live), "S": layer.own}
        with call.keeping(owned, out=out, half=cache.half, **layer.same(**tokens)):
            launcher("ssd_replay_scan")(layer.S, cache, call.ints(advanced), **tokens, **more, **layer.given, out=out)
        finite("y", out, layer.live)
        found, window = layer.state(), layer.judged(tokens)
        for i, b_i in enumerate(layer.rows):
            S = eb.exact(start[i : i + 1], layer.contract())
            if advanced[b_i] and last is not None:
                took = along(row(last, i)[0], path[b_i : b_i + 1, : advanced[b_i]])
                _, S = layer.scan(S.value, took, {}, order="output_only")
                used = max(used, within("S", found[i : i + 1], S))
            else:
                assert np.array_equal(found[i], start[i]), "a state moved though nothing was accepted"
            y = layer.tree(S.value, row(window, i)[0], mask[b_i : b_i + 1], {"S": S.error})
            used = max(used, within("y", layer.outputs(out)[i : i + 1], y))
        launcher("halves", "commit_halves")(cache.half, rows=b, slots=layer.slots)
        last, (path, advanced) = window, accepted(call, mask)
    return used
