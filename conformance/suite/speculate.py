"""Speculation in a recurrent layer: windows of drafts, verified, accepted in part, committed, one after the other.

What is judged: the outputs at every token or node of every window, and what the layer holds after each commit, against plain
decoding of what was accepted. The oracle knows nothing of windows: it scans the accepted tokens, and walks each path of a
tree from their end. Sizes: t tokens of a window, the root included, or nodes of a tree; j windows.

With `read=last` nobody looks at the state before the end: what reading it would settle must be settled without. With
`lengths=varied` every third window holds one token, a step without drafts. With `widened=on` x and B leave the convolution
with fewer heads and groups than the recurrence reads. With `beside=another` a second subject, from another state, takes the
windows in reverse, in turn with the first. With `between=chains` every other window of a run of trees is a chain.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ssmspec_ref import error_bounds, mixer, tree
from ssmspec_ref.contract import Capability, NumericContract
from ssmspec_ref.mixer import DeltaGates, Mixer, MixerInputs, MixerState, SelectiveGates, SSDGates, SSDMixer
from ssmspec_ref.records import along, concat, rows
from ssmspec_ref.shapes import Ancestors, Array, Lengths, Mask, Parents, Path

from ..cases import Case
from ..draw import STEP, Draw, stored
from . import layer_weights
from .specification import Arguments, Came, Expected, Further, Specification, allowed, copied, oracles, orders


@dataclass(frozen=True)
class Round:
    """One window, what is accepted of it, and whether the state is read behind it."""

    inputs: MixerInputs
    parents: Parents | None
    advanced: Lengths
    path: Path
    read: bool = True


def draw_case(case: Case, contract: NumericContract) -> Arguments:
    draw = Draw(case, contract)
    layer = _widened(draw, layer_weights.draw(draw).mixer)
    zero = mixer.new_state(layer, draw.sizes["b"])
    M = stored(draw.rng("M").standard_normal(zero.M.shape), contract.io)
    scale = {"gentle": 10.0, "normal": 1.0}[case.family]
    state = MixerState(M, stored(scale * draw.rng("S").standard_normal(zero.S.shape), contract.state))
    others = (MixerState(-state.M, -state.S),) if draw.options["beside"] == "another" else ()
    return layer, state, tuple(_round(draw, layer, number) for number in range(draw.sizes["j"])), *others


def _widened(draw: Draw, layer: Mixer) -> Mixer:
    """With x of g heads and B of g / 2 groups or one, widened behind the convolution, where the case asks for it."""
    if not isinstance(layer, SSDMixer) or not draw.on("widened"):
        return layer
    B_groups = layer.groups // 2 if layer.groups > 2 and layer.groups % 2 == 0 else 1
    packed = layer.groups * layer.channels + (B_groups + layer.groups) * layer.state
    bias = None if layer.conv.bias is None else layer.conv.bias[:packed]
    conv = replace(layer.conv, weight=layer.conv.weight[:packed], bias=bias)
    return replace(layer, conv=conv, x_groups=layer.groups, B_groups=B_groups)


def _round(draw: Draw, layer: Mixer, number: int) -> Round:
    varied = draw.options["lengths"] == "varied" and number % 3 == 1
    draw = Draw(draw.case, draw.contract, t=1) if varied else draw
    count, tokens = draw.shape("b t")
    pre = draw.array(f"pre {number}", (count, tokens, layer.conv.weight.shape[0]))
    trees = "tree" in draw.options and not chain_between(draw, number)
    parents = draw.parents(f"parents {number}", resting=True) if trees else None
    advanced, path = accepted(draw, f"accept {number}", number, parents)
    read = draw.options["read"] == "every" or number == draw.sizes["j"] - 1
    return Round(MixerInputs(pre, _gates(draw, number)), parents, advanced, path, read)


def chain_between(draw: Draw, number: int) -> bool:
    """Whether a window is one of the chains between trees."""
    return draw.options.get("between") == "chains" and number % 2 == 1


def accepted(draw: Draw, stream: str, number: int, parents: Parents | None) -> tuple[Lengths, Path]:
    """What is accepted of a window: how many tokens of each row, and which; of a tree, the path to a node of a draw, and of
    one that is padding throughout nothing.

    With `accept=stairs` row r accepts 1 + r mod t tokens of the first window, then all: after some window, in some row, any
    number of tokens has been accepted. With `accept=rests` a row accepts all and nothing in turn, its neighbour the other.
    """
    count, tokens = draw.sizes["b"], draw.sizes.get("t", 1) if parents is None else parents.shape[1]
    rng, full = draw.rng(stream), [np.arange(tokens)] * count
    if parents is not None:
        ancestors = tree.ancestors(parents)
        ends = [int(rng.integers(0, max(size, 1))) for size in tree.sizes(parents)]
        full = [np.flatnonzero(ancestors[b, end]) for b, end in enumerate(ends)]
    most = np.array([len(way) for way in full])
    part = np.minimum(rng.integers(1, np.maximum(most, 1) + 1), most)
    ways = {"part": part, "none": np.zeros_like(most), "all": most, "root": np.minimum(most, 1)}
    row = np.arange(count)
    turn = (number + row) % 4 if number < 3 else rng.integers(0, 4, count)
    mixed = np.choose(turn, list(ways.values()))
    ways["stairs"] = 1 + row % tokens if number == 0 else most
    ways["rests"] = np.where((number + row) % 2 == 0, most, 0)
    advanced = ways.get(draw.options.get("accept", "all"), mixed)
    path = np.full((count, tokens), -1, dtype=np.int64)
    for b, length in enumerate(advanced):
        path[b, :length] = full[b][:length]
    return advanced.astype(np.int64), path


def _gates(draw: Draw, number: int) -> SSDGates | DeltaGates | SelectiveGates:
    shape = draw.shape("b t")
    match draw.options["kind"]:
        case "mamba2":
            z = draw.normal(f"z {number}", "b t h p") if draw.on("z") else None
            return SSDGates(draw.array(f"dt {number}", (*shape, draw.sizes["h"]), 0.5), z)
        case "mamba1":
            return SelectiveGates(draw.normal(f"z {number}", "b t d") if draw.on("z") else None)
        case kind:
            gate = (*shape, draw.sizes["h"], draw.sizes["k"]) if kind == "kda" else (*shape, draw.sizes["h"])
            g = -np.logaddexp(0.0, draw.array(f"g {number}", gate, 0.5, STEP[draw.case.family]))
            beta = 1 / (1 + np.exp(-draw.array(f"beta {number}", (*shape, draw.sizes["h"]))))
            return DeltaGates(stored(g, draw.contract.io), stored(beta, draw.contract.io))


def run(capability: Capability, arguments: Arguments) -> Came:
    """Outputs of every window, then M and S after every commit; copies, since an engine may reuse its buffers."""
    layer, state, rounds, *others = arguments
    subject, came = capability.run(layer, state), []
    beside = [capability.run(layer, other) for other in others]
    for each, turned in zip(rounds, rounds[::-1], strict=True):
        came.append(copied(subject.verify(each.inputs, each.parents)))
        for other in beside:
            other.verify(turned.inputs, turned.parents)
        subject.commit(each.advanced, each.path)
        for other in beside:
            other.commit(turned.advanced, turned.path)
        came += map(copied, subject.state() if each.read else ())
    return Came(tuple(came))


def expect(arguments: Arguments, contract: NumericContract, used: Any) -> list[Expected]:
    """Plain decoding from the first state: of the accepted tokens, and of each path behind them."""
    layer, state, rounds, *_ = arguments
    seen, counted = rounds[0].inputs, np.zeros((state.M.shape[0], 0), dtype=bool)
    found: list[Expected] = []
    for number, each in enumerate(rounds):
        tokens = each.inputs.pre.shape[1]
        whole = each.inputs if number == 0 else concat(seen, each.inputs)
        ancestors = behind(counted, each.parents, tokens)
        y, error = _outputs(layer, state, whole, ancestors, tokens, contract)
        live = np.einsum("btt -> bt", ancestors)[:, -tokens:]
        axes = "b t d" if y.ndim == 3 else "b t h v" if hasattr(layer, "key_heads") else "b t h p"
        judged = live.reshape(live.shape + (1,) * (y.ndim - 2))
        found.append(Expected(f"y of window {number}", axes, y, error, judged=judged))
        accepted = np.concatenate([counted, each.path >= 0], axis=1)
        taken = along(each.inputs, each.path)
        seen, counted = (taken if number == 0 else concat(seen, taken)), accepted
        found += _states(layer, state, seen, counted, contract, number) if each.read else []
    return found


def behind(counted: Mask, parents: Parents | None, tokens: int) -> Ancestors:
    """The ancestors in a run of accepted tokens with a window behind it; what was not accepted is padding."""
    count, before = counted.shape
    mask = np.zeros((count, before + tokens, before + tokens), dtype=bool)
    mask[:, :before, :before] = np.tri(before, dtype=bool) & counted[:, None] & counted[:, :, None]
    window = (
        np.broadcast_to(np.tri(tokens, dtype=bool), (count, tokens, tokens)) if parents is None else tree.ancestors(parents)
    )
    mask[:, before:, before:] = window
    mask[:, before:, :before] = counted[:, None] & np.einsum("btt -> bt", window)[:, :, None]
    return mask


def _outputs(
    layer: Mixer, state: MixerState, whole: MixerInputs, ancestors: Ancestors, tokens: int, contract: NumericContract
) -> tuple[Array, Array]:
    """y at the last `tokens` nodes, each at the end of its own path, and its bound.

    The bound is that of the closed form over the whole run and, because a path may be stepped as well, of its steps.
    """
    row, path = paths(ancestors, tokens)
    run, live, begin = along(rows(whole, row), path), path >= 0, rows(state, row)

    errors = []
    for c in (*orders(contract), *oracles(contract)):
        if c.order == "sequential":
            errors.append(ends(error_bounds.mixer.scan(begin, run, layer, c, live)[0].error, live, tokens))
        else:
            errors.append(error_bounds.mixer.tree(state, whole, layer, ancestors, c).error[:, -tokens:])
    return ends(mixer.scan(begin, run, layer, live)[0], live, tokens), allowed(errors, contract)


def ends(y: Array, live: Mask, tokens: int) -> Array:
    """Of each path its last token, as nodes: `tokens` for every sequence; 0 where a path is empty."""
    last = y[np.arange(len(live)), live.sum(axis=1) - 1]
    reached = live.any(axis=1).reshape((-1,) + (1,) * (last.ndim - 1))
    return np.where(reached, last, 0.0).reshape(-1, tokens, *last.shape[1:])


def paths(ancestors: Ancestors, tokens: int) -> tuple[Array, Path]:
    """The path of each of the last `tokens` nodes as a row of its own, and the sequence of that row."""
    nodes = ancestors[:, -tokens:].reshape(-1, ancestors.shape[2])
    path = np.full((len(nodes), max(1, int(nodes.sum(axis=1).max()))), -1, dtype=np.int64)
    for r, seen in enumerate(nodes):
        path[r, : seen.sum()] = np.flatnonzero(seen)
    return np.repeat(np.arange(len(ancestors)), tokens), path


def _states(
    layer: Mixer, state: MixerState, seen: MixerInputs, counted: Mask, contract: NumericContract, number: int
) -> list[Expected]:
    _, held = mixer.scan(state, seen, layer, counted)
    pairs = [error_bounds.mixer.scan(state, seen, layer, c, counted) for c in (*orders(contract), *oracles(contract))]
    S = allowed([pair[2].error for pair in pairs], contract)
    inner = {3: "b d n", 4: "b h k v" if hasattr(layer, "key_heads") else "b h p n"}[held.S.ndim]
    return [
        Expected(f"M after window {number}", "b c w", held.M, np.zeros_like(held.M), state=True),
        Expected(f"S after window {number}", inner, held.S, S, state=True, recurrent=True),
    ]


ACCEPT = {"accept": ("mixed", "all", "root", "none")}
"""Of each window a row accepts all, its root alone, or nothing (takes no part); mixed: in turn a part, nothing, all, root."""
TREE = {"tree": ("branch", "chain", "star", "vine"), "ragged": ("on", "off")}
RUN = {"lengths": ("same", "varied"), "read": ("every", "last")}
READ = {"mamba2": ("D", "dt_limit"), "mamba1": ("D", "inner_norm"), "delta": (), "kda": ()}
"""The options of a layer that act between its projections."""
INSIDE = {"mamba2": {"z": ("off", "on"), "widened": ("off", "on")}, "mamba1": {"z": ("off", "on")}}
"""What a mixer may have and no layer with projections."""
FURTHER: tuple[Further, ...] = (
    ({"b": 3, "j": 12, "t": 3}, {"lengths": "varied", "read": "last"}, "gentle"),
    ({"b": 1, "j": 5, "t": 8}, {"accept": "all"}, "gentle"),
    ({"b": 1, "j": 2, "t": 17}, {"accept": "all"}, "gentle"),
    ({"b": 2, "j": 4}, {"accept": "all", "lengths": "varied"}, "gentle"),
    ({"b": 17, "j": 2, "t": 2}, {"accept": "all"}, "gentle"),
)
"""Twelve windows; forty tokens accepted, past rings of 16 and 32; windows past 8 and 16 tokens; drafts, none, drafts; more
than one tile of rows."""
STAIRS: Further = ({"b": 4, "t": 4, "j": 17}, {"accept": "stairs", "read": "last"}, "gentle")
"""Every number of tokens up to 64, so that every ring of so many is met by a window that fits exactly, and by one that is
larger by one."""
BESIDE: Further = ({}, {"beside": "another", "lengths": "varied"}, "gentle")
"""Two subjects in turn."""
BETWEEN: Further = ({"j": 5}, {"between": "chains", "accept": "all"}, "gentle")
"""Trees and chains in turn."""
RARE = {"accept": ("stairs",), "beside": ("none", "another")}
ALONE: Further = ({"b": 1, "j": 2, "t": 6}, {}, "gentle")
"""A batch of one row that takes no part."""
TALL: Further = ({"b": 1, "j": 4, "t": 33}, {"accept": "all", "tree": "vine"}, "gentle")
"""Paths past 8 and 16 nodes, and past a ring of 32."""
WIDER: Further = ({"g": 4, "h": 8}, {"widened": "on"}, "gentle")
"""Two groups of B widened to four: in which order shows."""
SOURCES = {
    "": "Snakes and Ladders, section 3.1; ReplaySSM, algorithms 3 and 4",
    "accept": "vllm-project/vllm#50272",
    "widened": "MambaInLlama (repeat of x and B after the convolution)",
    "tree": "STree, section 3",
}


def _specification(kind: layer_weights.Kind, shape: str) -> Specification:
    sizes: Mapping[str, int] = {**kind.base, "t": 4, "j": 3}
    rows = ({"t": 1}, {"j": 1, "t": 7}, {"b": 1, "j": 5}, {"b": 3, "t": 2}, {"w": 2}, *kind.rows[5:])
    kept = {name: kind.options[name] for name in (*READ[kind.name], "conv_bias", "conv_act")}
    others = {name: values[0] for name, values in kind.options.items() if name not in kept}
    options = ACCEPT | RUN | (TREE if shape == "tree" else {}) | kept | INSIDE.get(kind.name, {})
    own = (TALL, ALONE, BETWEEN) if shape == "tree" else (STAIRS,)
    further = (*FURTHER, *own, BESIDE, *((WIDER,) if kind.name == "mamba2" else ()))
    rare = {"between": ("trees", "chains"), "beside": RARE["beside"]} if shape == "tree" else RARE
    return Specification(
        operation=f"speculate.{shape}", base=sizes, rows=rows, further=further, options=options,
        families=("gentle", "normal"), sources=SOURCES, draw=drawing(others), expect=expect, run=run, ok=kind.ok,
        fixed={"kind": kind.name}, rare=rare,
    )  # fmt: skip


def drawing(others: Mapping[str, str]) -> Any:
    """The draw of a case; options of the layer's projections, which are not read, stand at their defaults."""

    def draw_with(case: Case, contract: NumericContract) -> Arguments:
        return draw_case(Case(case.operation, case.sizes, {**others, **case.options}, case.family, case.seed), contract)

    return draw_with


SPECIFICATIONS: tuple[Specification, ...] = tuple(
    _specification(kind, shape) for shape in ("chain", "tree") for kind in layer_weights.KINDS
)
