"""The delta rule's launchers and Kimi Delta Attention's as subjects of the laws: the values of their calls, and what the
oracle says of them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np
import torch

from ssmspec_kernels.delta import delta_solve
from ssmspec_kernels.kda import kda_pairs
from ssmspec_ref import error_bounds as eb
from ssmspec_ref import exact_probes, tree
from ssmspec_ref.delta import DeltaParams, DeltaWindow
from ssmspec_ref.error_bounds.arithmetic import Approx, constant, exact
from ssmspec_ref.shapes import Array, Parents
from tests.kernels import laws, plot
from tests.kernels.laws import Subject
from tests.kernels.plot import Call, accepted
from tests.kernels.tensors import DTYPES, assert_one_product, doubles
from tests.trees import SHAPES, packed, parents_of, tree_mask

TOKENS = ("q", "k", "v", "g", "beta")


@dataclass(frozen=True)
class Options(plot.Options):
    g: int = 2
    h: int = 4
    k: int = 12
    v: int = 20
    channel: bool = False
    """A decay for each key channel."""
    l2_norm: bool = True
    scale: float | None = None
    raw: bool = False
    """Gates are projections, formed with A, and with `bias` with one more."""
    bias: bool = False
    lower: float | None = None
    """The lower bound of raw log decays per channel."""
    strong: bool = False
    """Decays that leave nothing of what came before: exp of each underflows."""
    steep: float | None = None
    """This bias of the gates, by which a token that is real decays weakly, and one that is not, if its 0 were taken for a
    projection, by 16 times as much: the difference of two sums is then beyond the range of exp."""
    tree: str = ""
    """Of every row: a chain, a comb, or one of several, with nodes of padding."""
    two: bool = False
    """In two launches."""

    def params(self) -> DeltaParams:
        return DeltaParams(scale=0.5 if self.exact else self.scale, l2_norm=self.l2_norm and not self.exact)


def kda(**changes: Any) -> Options:
    return Options(**{"channel": True, **changes})


def inputs(rng: np.random.Generator, o: Options, *lead: int) -> dict[str, Any]:
    """Tokens, with gates in fp32, of which strengths that are projections have the type of the activations."""
    q, k = rng.normal(size=(2, *lead, o.g, o.k))
    gate = (*lead, o.h, o.k) if o.channel else (*lead, o.h)
    weakest, strongest = (0.001, 0.02) if o.gentle else (200.0, 900.0) if o.strong else (0.05, 1.5)
    g = -rng.uniform(weakest, strongest, gate)
    if o.raw:
        g = rng.normal(size=gate) * 3 if o.steep is None else rng.normal(size=gate) - (o.steep + 4.0)
    beta = rng.normal(size=(*lead, o.h)) if o.raw else rng.uniform(0.1, 1.0, (*lead, o.h))
    return {
        "q": q,
        "k": k if o.l2_norm else k / np.linalg.norm(k, axis=-1, keepdims=True),
        "v": rng.normal(size=(*lead, o.h, o.v)),
        "g": torch.from_numpy(g).float(),
        "beta": torch.from_numpy(beta).to(DTYPES[o.io] if o.raw and len(lead) == 2 else torch.float32),
    }


def gates(rng: np.random.Generator, o: Options, *lead: int) -> dict[str, Any]:
    """What forms gates, if they are projections."""
    if not o.raw:
        return {}
    shape = (*lead, o.h, o.k) if o.channel else (*lead, o.h)
    bias = rng.normal(size=shape) if o.steep is None else np.full(shape, o.steep)
    A = -rng.uniform(0.1, 2.0, (*lead, o.h)) if o.steep is None else np.full((*lead, o.h), -16.0)
    return {"A": A, "dt_bias": bias if o.bias else None}


def drawn(launcher: str, o: Options, **more: Any) -> Call:
    """A call of a window, or of trees, with gaps of true between the entries of the mask and in the rows of padding."""
    rng = np.random.default_rng(o.seed)
    settings: dict[str, Any] = {"l2_norm": o.params().l2_norm, "scale": o.params().scale}
    if o.exact:
        form = "fp32" if {o.io, o.state} == {"fp32"} else "bf16"
        sizes = {"b": o.b, "t": o.t, "h": o.h, "g": o.g, "k": o.k, "v": o.v}
        S, window, params = exact_probes.delta_probe(rng, **sizes, channel_gate=o.channel, form=form)  # type: ignore[arg-type]
        assert params == o.params()
        found: dict[str, Any] = {"S": S, **vars(window)}
        found |= {name: torch.from_numpy(found[name]).float() for name in ("g", "beta")}
    else:
        found = inputs(rng, o, o.b, o.t) | gates(rng, o)
        found["S"] = rng.normal(size=(o.b, o.h, o.k, o.v)) * (30.0 if o.gentle else 1.0)
    if o.lower is not None:
        settings["lower_bound"] = o.lower
    if o.two:
        sizes = {"b": o.b, "h": o.h, "parts": delta_solve.PARTS, "factors": delta_solve.FACTORS}
        settings |= {"two_launches": True, "solved": plot.record(launcher, "solved", o, sizes)}
    dead = None
    if o.tree:
        parents = several(o) if o.tree == "several" else packed([parents_of(o.tree, o.t)] * o.b, o.t)
        dead, mask = parents == tree.PADDING, tree_mask(parents)
        found["ancestors"] = mask | (dead[:, :, None] & ~np.eye(o.t, dtype=bool))
    if launcher == "kda_tree":
        found["pairs"] = kda_pairs.scratch(o.b, o.h, o.t, torch.empty(0).device).fill_(o.poison)
    call = plot.drawn(launcher, o, found | more, dead=dead, **settings)
    for name in TOKENS if dead is not None else ():
        call[name][torch.from_numpy(dead)] = float("nan")
    return call


def several(o: Options) -> Parents:
    """Another tree for every row, each two nodes shorter than the one before; behind it lie nodes of padding."""
    sizes = [max(1, o.t - 2 * row) for row in range(o.b)]
    shapes = [SHAPES[(row + o.seed) % len(SHAPES)] for row in range(o.b)]
    return packed([parents_of(shape, size, o.seed) for shape, size in zip(shapes, sizes, strict=True)], o.t)


def formed(o: Options, g: Array, beta: Array, A: Array, bias: Array | None) -> tuple[Approx, Approx]:
    """The gates of projections, with what they are wrong by when a kernel forms them."""
    rules = o.contract()
    raw, rate = exact(g, rules), exact(A[:, None] if o.channel else A, rules)
    raw = raw if bias is None else raw + exact(bias, rules)
    decays = rate * eb.softplus(raw) if o.lower is None else constant(o.lower, rules) * eb.sigmoid(-rate * raw)
    return decays, eb.sigmoid(exact(beta, rules))


def window(call: Call) -> tuple[DeltaWindow, dict[str, Array]]:
    """The oracle's window of the rows, and what its gates are wrong by."""
    tokens: dict[str, Any] = call.tokens(*TOKENS)
    if "A" not in call.given:
        return DeltaWindow(**tokens), {}
    weights = call.weights("A", "dt_bias")
    g, beta = formed(call.options, tokens["g"], tokens["beta"], weights["A"], weights.get("dt_bias"))  # type: ignore[arg-type]
    return DeltaWindow(**tokens | {"g": g.value, "beta": beta.value}), {"g": g.error, "beta": beta.error}


def live(call: Call) -> Array | None:
    return ~call.dead[call.rows] if call.dead.any() else None


def scanned(call: Call, **contract: Any) -> tuple[Approx, Approx]:
    """Outputs and states of the rows."""
    o: Any = call.options
    tokens, inexact = window(call)
    return eb.delta.scan(call.state(), tokens, o.params(), o.contract(**contract), live=live(call), inexact=inexact)


def of_window(call: Call, **contract: Any) -> Iterator[tuple[str, Any, Approx | None]]:
    y, S = scanned(call, **contract)
    yield "out", call.rows, y
    if call.options.write:
        yield "S", call.named, S
    yield from between(call)


def of_chunks(call: Call) -> Iterator[tuple[str, Any, Approx | None]]:
    return of_window(call, order="chunked")


def of_states(call: Call) -> Iterator[tuple[str, Any, Approx]]:
    o: Any = call.options
    tokens, inexact = window(call)
    y, states = eb.delta.states(call.state(), tokens, o.params(), o.contract(), live=live(call), inexact=inexact)
    yield "out", call.rows, y
    yield plot.kept(call, states)


def seen(call: Call) -> Array:
    """What sees what in the trees of the rows."""
    mask = call["ancestors"].numpy()[call.rows]
    return mask & np.einsum("btt -> bt", mask)[:, :, None]


def of_nodes(call: Call) -> Iterator[tuple[str, Any, Approx | None]]:
    o: Any = call.options
    tokens, inexact = window(call)
    rules = o.contract(order="chunked")
    yield "out", call.rows, eb.delta.tree(call.state(), tokens, seen(call), o.params(), rules, inexact=inexact)
    yield from between(call)


def between(call: Call) -> Iterator[tuple[str, Any, None]]:
    """What lies between two launches, of rows that are no padding."""
    for name in {"solved.parts", "solved.factors", "pairs"} & call.tensors.keys():
        yield name, call.rows, None


# --- the commit of what was accepted ---


@dataclass(frozen=True)
class Commits(Options, plot.Commits):
    t: int = 5
    v: int = 18
    channel: bool = True
    raw: bool = True
    bias: bool = True


def committed(o: Commits) -> Call:
    rng = np.random.default_rng(o.seed)
    found = inputs(rng, o, o.layers, o.b * o.drafts, o.t) | gates(rng, o, o.layers)
    found |= {"S": rng.normal(size=(o.layers, o.b, o.h, o.k, o.v))}
    del found["q"]
    return plot.committed("kda_commit", o, found, l2_norm=o.l2_norm, lower_bound=o.lower)


def of_commit(call: Call) -> Iterator[tuple[str, Any, Approx]]:
    """Every layer and row alone; q is not read."""
    o: Any = call.options
    for layer in range(o.layers):
        weights = {name: x[layer] for name, x in call.weights("A", "dt_bias").items()}
        for slot, (row, taken) in zip(call.named.tolist(), accepted(call), strict=True):
            if not len(taken):
                continue
            k, v, g, beta = (doubles(call[name][layer, row])[None, taken] for name in TOKENS[1:])
            inexact: dict[str, Array] = {}
            if weights:
                pairs = formed(o, g, beta, weights["A"], weights.get("dt_bias"))
                g, beta = (pair.value for pair in pairs)
                inexact = {name: pair.error for name, pair in zip(("g", "beta"), pairs, strict=True)}
            start = doubles(call["S"][layer, slot])[None]
            _, S = eb.delta.scan(start, DeltaWindow(k, k, v, g, beta), o.params(), o.contract(), inexact=inexact)
            yield "S", (layer, slot), S[0]


# --- what subjects share ---


UNFUSED = {"fused": False}


def one_token(subject: Subject, **changes: Any) -> Subject:
    """A scan of one token, of which every value is asked for once: one head and one tile, so that no other program asks."""
    o = Options(b=1, t=1, g=1, h=1, v=9, padding=False, **changes)
    name, once = f"{subject.name}, one token", ("S", *TOKENS)
    return replace(subject, name=name, cover=[], steps=[], small=None, special=[], once=once, moves=[o])


def moved(module: ModuleType, call: Call) -> int:
    """A formula, of gates in fp32, where strengths that are projections may have the type of the activations."""
    beta = call["beta"]
    narrow = (4 - beta.element_size()) * len(call.rows) * beta.shape[1] * beta.shape[2]
    return laws.moved(module.traffic_bytes, call, channel=call["g"].dim() == 4) - narrow


def of_places(module: ModuleType, call: Call) -> int:
    return laws.of_places(module, call, channel=call["g"].dim() == 4)


def drawn_by(launcher: str) -> Any:
    return lambda o: drawn(launcher, o)


def trees(*cases: Options) -> list[Options]:
    return [replace(o, tree=o.tree or "several") for o in cases]


def combs(*cases: Options) -> list[Options]:
    return [replace(o, tree="comb", padding=False) for o in cases]


def only_the_last(draw: Callable[[Options], Call], *cases: tuple[Options, int]) -> Callable[[ModuleType], None]:
    """A check that under decays that leave nothing the state is what the last token wrote: its weight is 1. Behind it lie so
    many no-ops as a case says."""

    def check_last_token(module: ModuleType) -> None:
        for o, after in cases:
            whole, alone = (draw(replace(o, strong=True)) for _ in range(2))
            if after:
                whole["live"] = torch.arange(o.t).expand(o.b, o.t) < o.t - after
            whole.run(module)
            alone.run(module, **alone.cut(slice(o.t - after - 1, o.t - after)))
            assert_one_product(whole["S"][whole.named], alone["S"][alone.named])

    return check_last_token
