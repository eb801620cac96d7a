"""SSD's launchers as subjects of the laws: the values of their calls, and what the oracle says of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ssmspec_ref import error_bounds as eb
from ssmspec_ref import exact_probes, tree
from ssmspec_ref.error_bounds.arithmetic import Approx, constant, sum_of_products
from ssmspec_ref.shapes import Array
from ssmspec_ref.ssd import SSDParams, SSDWindow
from tests.kernels import plot
from tests.kernels.plot import Call
from tests.kernels.tensors import doubles


@dataclass(frozen=True)
class Options(plot.Options):
    h: int = 4
    g: int = 2
    p: int = 18
    n: int = 21
    D: str = "head"
    z: bool = False
    bias: bool = True
    softplus: bool = True
    limit: tuple[float, float] = (0.0, float("inf"))
    tree: bool = False
    chain: bool = False
    """The tree of one path."""


def values(o: Options) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the tensors of a call hold, and its other arguments."""
    rng = np.random.default_rng(o.seed)
    if o.exact:
        S, window, params = exact_probes.ssd_probe(rng, b=o.b, t=o.t, h=o.h, g=o.g, p=o.p, n=o.n, z=True, form="fp32")
        found = vars(window) | {"S": S, "A": params.A, "D": params.D, "dt_bias": params.dt_bias}
        return found, {}
    x = rng.normal(size=(o.b, o.t, o.h, o.p))
    dt = rng.normal(size=(o.b, o.t, o.h)) if o.softplus else rng.uniform(0.02, 1.0, (o.b, o.t, o.h))
    B, C = rng.normal(size=(2, o.b, o.t, o.g, o.n))
    A = -rng.uniform(0.001, 0.02, o.h) if o.gentle else -rng.uniform(0.1, 2.0, o.h)
    D = torch.from_numpy(rng.normal(size=(o.h,) if o.D == "head" else (o.h, o.p)))
    found = {
        "S": rng.normal(size=(o.b, o.h, o.p, o.n)) * (30.0 if o.gentle else 1.0),
        "x": x,
        "dt": dt,
        "A": A,
        "B": B,
        "C": C,
        "D": (D.float() if o.seed % 2 else D.bfloat16()) if o.D else None,
        "z": rng.normal(size=x.shape) if o.z else None,
        "dt_bias": rng.normal(size=o.h) - 1.0 if o.bias else None,
    }
    return found, {"dt_softplus": o.softplus, "dt_limit": o.limit}


def forest(o: Any) -> Array:
    """Ancestors in a random forest for each row: some have two roots, rows have unequal sizes, the rest is padding."""
    rng = np.random.default_rng(o.seed + 7)
    parents = np.full((o.b, o.t), tree.PADDING)
    for b in range(o.b):
        size = o.t if b == 0 else int(rng.integers(1, o.t + 1))
        parents[b, 0] = -1
        for i in range(1, size):
            parents[b, i] = rng.integers(max(0, i - 4), i)
    mask = tree.ancestors(parents)
    if o.t > 2:
        below = mask[0, :, 2].copy()
        mask[0, below] &= ~mask[0, parents[0, 2]]  # node 2 becomes a root
    return mask


def drawn(launcher: str, o: Options, outputs: tuple[str, ...] = ("out",), **more: Any) -> Call:
    """A call of a window, or of trees."""
    found, settings = values(o)
    dead = None
    if o.tree:
        found["ancestors"] = np.tri(o.t, dtype=bool)[None].repeat(o.b, 0) if o.chain else forest(o)
        dead = ~np.einsum("btt -> bt", found["ancestors"])
    sizes = {name: more.pop(name) for name in ("parts",) if name in more}
    return plot.drawn(launcher, o, found | more, dead=dead, outputs=outputs, **sizes, **settings)


def window(call: Call) -> SSDWindow:
    return SSDWindow(**call.tokens("x", "dt", "B", "C", "z"))  # type: ignore[arg-type]


def params(call: Call) -> SSDParams:
    how: dict[str, Any] = {name: call[name] for name in ("dt_softplus", "dt_limit") if name in call.given}
    found: dict[str, Any] = {**call.weights("A", "D", "dt_bias"), **how}
    return SSDParams(**found)


def scanned(call: Call, **contract: Any) -> tuple[Approx, Approx]:
    """Outputs and states of the rows."""
    live = None if call.live is None else ~call.dead[call.rows]
    return eb.ssd.scan(call.state(), window(call), params(call), call.options.contract(**contract), live=live)


def seen(call: Call) -> Array:
    """What sees what in each row: a tree, or all tokens what is before them."""
    t = call.options.t
    chain = np.broadcast_to(np.tri(t, dtype=bool), (len(call.rows), t, t))
    return call["ancestors"].numpy()[call.rows] if "ancestors" in call.given else chain


def of_tree(call: Call, **contract: Any) -> Approx:
    return eb.ssd.tree(call.state(), window(call), seen(call), params(call), call.options.contract(**contract))


def of_window(call: Call, order: str = "sequential") -> Iterator[tuple[str, Any, Approx]]:
    y, S = scanned(call, order=order)
    yield "out", call.rows, y
    if call.options.write:
        yield "S", call.named, S


def of_nodes(call: Call) -> Iterator[tuple[str, Any, Approx]]:
    yield "out", call.rows, of_tree(call)


# --- a state after every token ---


def of_states(call: Call) -> Iterator[tuple[str, Any, Approx]]:
    y, states = eb.ssd.states(call.state(), window(call), params(call), call.options.contract(), live=call.live)
    yield "out", call.rows, y
    yield plot.kept(call, states)


# --- with the first half of a norm ---


def with_norm(launcher: str, parts: Any) -> Any:
    def draw(o: Options) -> Call:
        weight = np.random.default_rng(o.seed + 50).normal(size=(o.h, o.p))
        return drawn(launcher, o, ("out", "squares"), weight=weight, parts=parts(o))

    return draw


def normed(call: Call, g: Approx, tile: int) -> Iterator[tuple[str, Any, Approx]]:
    """The weighted rows, and the sums of squares of every tile before the weight."""
    o: Any = call.options
    weighted = g * constant(doubles(call["weight"]), g.contract)
    yield "out", call.rows, weighted.store(o.io)
    tiles = g.map(lambda a: np.pad(a, [(0, 0)] * (a.ndim - 1) + [(0, -o.p % tile)]).reshape(*a.shape[:2], -1, tile))
    yield "squares", call.rows, sum_of_products(("...i, ...i -> ...", tiles, tiles))


def tile_of(o: Any) -> int:
    return min(16, 1 << (o.p - 1).bit_length())


def of_gated(call: Call) -> Iterator[tuple[str, Any, Approx]]:
    g, S = scanned(call, io="fp32")
    yield from normed(call, g, tile_of(call.options))
    yield "S", call.named, S


def of_gated_window(call: Call) -> Iterator[tuple[str, Any, Approx]]:
    yield from normed(call, of_tree(call, io="fp32", order="output_only"), tile_of(call.options))


# --- the commit of what was accepted ---


@dataclass(frozen=True)
class Commits(Options, plot.Commits):
    """`e` heads of x."""

    t: int = 5
    e: int = 4


def committed(o: Commits) -> Call:
    rng, i, m = np.random.default_rng(o.seed), o.layers, o.b * o.drafts
    dt = rng.normal(size=(i, m, o.t, o.h)) if o.softplus else rng.uniform(0.02, 1.0, (i, m, o.t, o.h))
    found = {
        "x": rng.normal(size=(i, m, o.t, o.e, o.p)),
        "dt": dt,
        "B": rng.normal(size=(i, m, o.t, o.g, o.n)),
        "S": rng.normal(size=(i, o.b, o.h, o.p, o.n)),
        "A": -rng.uniform(0.1, 2.0, (i, o.h)),
        "dt_bias": rng.normal(size=(i, o.h)) - 1.0 if o.bias else None,
    }
    return plot.committed("ssd_commit", o, found, dt_softplus=o.softplus, dt_limit=o.limit)


def of_commit(call: Call) -> Iterator[tuple[str, Any, Approx]]:
    """Every layer and row alone, every head of x with its own; C is not read."""
    o: Any = call.options
    for layer in range(o.layers):
        bias = doubles(call["dt_bias"][layer]) if "dt_bias" in call.given else None
        of_layer = SSDParams(doubles(call["A"][layer]), dt_bias=bias, dt_softplus=o.softplus, dt_limit=o.limit)
        for slot, (row, taken) in zip(call.named.tolist(), plot.accepted(call), strict=True):
            if not len(taken):
                continue
            x, dt, B = (doubles(call[name][layer, row])[None, taken] for name in ("x", "dt", "B"))
            tokens = SSDWindow(np.repeat(x, o.h // o.e, axis=2), dt, B, B)
            start = doubles(call["S"][layer, slot])[None]
            _, S = eb.ssd.scan(start, tokens, of_layer, o.contract(order="output_only"))
            yield "S", (layer, slot), S[0]
