"""Speculation in a recurrent layer: windows of drafts, verified, partly accepted and committed, one after the other.

Compared are the outputs at every token or node of every window, and the layer's state after each commit, with plain decoding
of the accepted tokens. The oracle does not use windows: it scans the accepted tokens, and then each path of a tree from their
end. Sizes: t tokens of a window including the root, or nodes of a tree; j windows.

With `read=last` the state is read only at the end, so work that reading would complete must be done without it. With
`lengths=varied` every third window holds one token, a step without drafts. With `widened=on` x and B leave the convolution
with fewer heads and groups than the recurrence uses. With `beside=another` a second subject, from another state, gets the
windows in reverse order, in turn with the first. With `between=chains` every other window of a run of trees is a chain. With
`verify=twice` every window is verified twice before its commit, first with other tokens; only the second counts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from ssmspec_ref import error_bounds, tree
from ssmspec_ref.contract import Capability, NumericContract
from ssmspec_ref.layers import mixer
from ssmspec_ref.layers.mixer import Mixer, MixerInputs, MixerState
from ssmspec_ref.records import along, concat, rows
from ssmspec_ref.registry import Rows
from ssmspec_ref.shapes import Ancestors, Array, Lengths, Mask, Parents, Path

from ..cases import Case
from ..judge.draw import DEAD, Draw, poisoned, stored, stored_state
from .called import Arguments, Came, copied, poison
from .expected import Expected, allowed, oracles, orders, unseen
from .kinds.weights import Kind
from .production import HISTORY, SETTLED
from .production import rows as production_rows
from .recurrences import KINDS, RECURRENCES
from .recurrences.paths import LONGEST, back, behind, ends, paths
from .specification import Specification
from .tables import Further, case_of, cases_of, sizes_of, unread


@dataclass(frozen=True)
class Round:
    """One window, the tokens accepted of it, and whether the state is read after it; and a window with other tokens that is
    verified before it and dropped, if there is one."""

    inputs: MixerInputs
    parents: Parents | None
    advanced: Lengths
    path: Path
    read: bool = True
    dropped: MixerInputs | None = None


def draw_case(case: Case, contract: NumericContract) -> Arguments:
    draw = Draw(case, contract)
    kind = KINDS[draw.options["kind"]]
    layer = kind.between(draw, kind.layer(draw).mixer)
    zero = mixer.new_state(layer, draw.sizes["b"])
    M = stored(draw.rng("M").standard_normal(zero.M.shape), contract.io)
    scale = {"gentle": 10.0, "normal": 1.0}[case.family]
    S = scale * draw.rng("S").standard_normal(zero.S.shape)
    state = MixerState(M, stored_state(S, RECURRENCES[layer.kind].state, contract))
    others = tuple(MixerState(scale * state.M, scale * state.S) for scale in OTHERS[draw.options["beside"]])
    return layer, state, tuple(_round(draw, layer, number) for number in range(draw.sizes["j"])), *others


def _round(draw: Draw, layer: Mixer, number: int) -> Round:
    varied = draw.options["lengths"] == "varied" and number % 3 == 1
    draw = Draw(draw.case, draw.contract, t=1) if varied else draw
    count, tokens = draw.shape("b t")
    pre = draw.array(f"pre {number}", (count, tokens, layer.conv.weight.shape[0]))
    trees = "tree" in draw.options and not chain_between(draw, number)
    parents = draw.parents(f"parents {number}", resting=True) if trees else None
    advanced, path = accepted(draw, f"accept {number}", number, parents)
    read = draw.options["read"] == "every" or number == draw.sizes["j"] - 1
    inputs = MixerInputs(pre, KINDS[draw.options["kind"]].gates(draw, number))
    if parents is not None and draw.kills:
        inputs = poisoned(inputs, parents != tree.PADDING, draw.dead)
    dropped = None
    if draw.options["verify"] == "twice":
        other = draw.array(f"dropped {number}", pre.shape)
        dropped = MixerInputs(other, KINDS[draw.options["kind"]].gates(draw, -1 - number))
    return Round(inputs, parents, advanced, path, read, dropped)


def chain_between(draw: Draw, number: int) -> bool:
    """Whether a window is one of the chains between trees."""
    return draw.options.get("between") == "chains" and number % 2 == 1


def accepted(draw: Draw, stream: str, number: int, parents: Parents | None) -> tuple[Lengths, Path]:
    """The accepted tokens of a window: how many of each row, and which. For a tree it is the path to a random node, and
    nothing for a tree that is all padding.

    With `accept=stairs` row r accepts 1 + r mod t tokens of the first window, then all, so that every number of accepted
    tokens occurs in some row after some window. With `accept=rests` a row accepts all and nothing in turn, its neighbour the
    opposite.
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


def run(capability: Capability, arguments: Arguments) -> Came:
    """Outputs of every window, then M and S after every commit; copies, since an engine may reuse its buffers."""
    layer, state, rounds, *others = arguments
    subject, came = capability.run(layer, state), []
    beside = [capability.run(layer, other) for other in others]
    poison(subject)
    for each, turned in zip(rounds, rounds[::-1], strict=True):
        if each.dropped is not None:
            subject.verify(each.dropped, each.parents)
        came.append(copied(subject.verify(each.inputs, each.parents)))
        for other in beside:
            other.verify(turned.inputs, turned.parents)
        subject.commit(each.advanced, each.path)
        for other in beside:
            other.commit(turned.advanced, turned.path)
        poison(subject)
        came += map(copied, subject.state() if each.read else ())
    return Came(tuple(came))


def expect(arguments: Arguments, contract: NumericContract, used: Any) -> list[Expected]:
    """Plain decoding from the first state: of the accepted tokens, and of each path after them."""
    layer, state, rounds, *_ = arguments
    if len(rounds) > LONGEST:
        return _accepted_only(layer, state, rounds, contract)
    seen, counted = rounds[0].inputs, np.zeros((state.M.shape[0], 0), dtype=bool)
    found: list[Expected] = []
    for number, each in enumerate(rounds):
        tokens = each.inputs.pre.shape[1]
        whole = each.inputs if number == 0 else concat(seen, each.inputs)
        ancestors = behind(counted, each.parents, tokens)
        y, error = _outputs(layer, state, whole, ancestors, tokens, contract)
        live = np.einsum("btt -> bt", ancestors)[:, -tokens:]
        axes = RECURRENCES[layer.kind].output[1]
        judged = live.reshape(live.shape + (1,) * (y.ndim - 2))
        found.append(Expected(f"y of window {number}", axes, y, error, judged=judged))
        accepted = np.concatenate([counted, each.path >= 0], axis=1)
        taken = along(each.inputs, each.path)
        seen, counted = (taken if number == 0 else concat(seen, taken)), accepted
        found += _states(layer, state, seen, counted, contract, number) if each.read else []
    return found


def _accepted_only(layer: Mixer, state: MixerState, rounds: tuple[Round, ...], contract: NumericContract) -> list[Expected]:
    """Of a long history: the outputs at the accepted tokens of every window, and the states at the end, from one run."""
    taken = [along(each.inputs, each.path) for each in rounds]
    seen, counted = taken[0], np.concatenate([each.path >= 0 for each in rounds], axis=1)
    for more in taken[1:]:
        seen = concat(seen, more)
    (y, held), ancestors, errors, left = mixer.scan(state, seen, layer, counted), behind(counted, None, 0), [], []
    for c in (*orders(contract), *oracles(contract)):
        stepped, _, after = error_bounds.mixer.scan(state, seen, layer, c, counted)
        sequential = c.order == "sequential"
        errors.append((stepped if sequential else error_bounds.mixer.tree(state, seen, layer, ancestors, c)).error)
        left.append(after.error)
    bound, begin, found = allowed(errors, contract), 0, []
    kind = RECURRENCES[layer.kind]
    for number, each in enumerate(rounds):
        tokens = each.path.shape[1]
        value, reached = back(y[:, begin : begin + tokens], each.path)
        error, _ = back(bound[:, begin : begin + tokens], each.path)
        found.append(Expected(f"y of window {number}", kind.output[1], value, error, judged=kind.judged(reached)))
        begin += tokens
        if each.read and number < len(rounds) - 1:
            found.append(unseen(f"M after window {number}", "b c w", state.M.shape))
            found.append(unseen(f"S after window {number}", kind.state, state.S.shape))
    return [*found, *_held(layer, held, left, contract, len(rounds) - 1)]


def _outputs(
    layer: Mixer, state: MixerState, whole: MixerInputs, ancestors: Ancestors, tokens: int, contract: NumericContract
) -> tuple[Array, Array]:
    """y at the last `tokens` nodes, each at the end of its own path, and its bound.

    The bound is that of the closed form over the whole run and, because a path may also be stepped, that of its steps.
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


def _states(
    layer: Mixer, state: MixerState, seen: MixerInputs, counted: Mask, contract: NumericContract, number: int
) -> list[Expected]:
    _, held = mixer.scan(state, seen, layer, counted)
    pairs = [error_bounds.mixer.scan(state, seen, layer, c, counted) for c in (*orders(contract), *oracles(contract))]
    return _held(layer, held, [pair[2].error for pair in pairs], contract, number)


def _held(layer: Mixer, held: MixerState, errors: list[Array], contract: NumericContract, number: int) -> list[Expected]:
    S = allowed(errors, contract)
    return [
        Expected(f"M after window {number}", "b c w", held.M, np.zeros_like(held.M), state=True),
        Expected(f"S after window {number}", RECURRENCES[layer.kind].state, held.S, S, state=True, recurrent=True),
    ]


ACCEPT = {"accept": ("mixed", "all", "root", "none")}
"""A row accepts all of each window, its root alone, or nothing (no window); mixed: in turn a part, nothing, all, root."""
TREE = {"tree": ("branch", "chain", "star", "vine"), "ragged": ("on", "off")}
RUN = {"lengths": ("same", "varied"), "read": ("every", "last")}
FURTHER = cases_of(
    "b3,j12,t3/lengths=varied,read=last",
    "b1,j5,t8/accept=all",
    "b1,j2,t17/accept=all",
    "b2,j4/accept=all,lengths=varied",
    "b17,j2,t2/accept=all",
)
"""Twelve windows; forty tokens accepted, past rings of 16 and 32; windows past 8 and 16 tokens; drafts, none, drafts; more
than one tile of rows."""
STAIRS = case_of("b4,t4,j17/accept=stairs,read=last")
"""Every number of tokens up to 64, so that every ring of up to 64 entries gets a window that fits exactly, and one that is
one token too large."""
BESIDE = case_of("beside=another,lengths=varied")
"""Two subjects in turn."""
BETWEEN = case_of("j5/between=chains,accept=all")
"""Trees and chains in turn."""
TWICE = cases_of("verify=twice", "j5/verify=twice,accept=all,read=last")
"""Every window is verified with other tokens first, which are dropped."""
DROPPED = {"verify": ("once", "twice")}
OTHERS = {"none": (), "another": (-1.0,), "two": (-1.0, 0.5)}
"""Further subjects that run in turn, by factors of the state from which they start: exact in every format."""
RARE = {"accept": ("stairs",), "beside": tuple(OTHERS)}
THREE = case_of("b2/beside=two,accept=all")
"""Three subjects in turn."""
ALONE = case_of("b1,j2,t6")
"""A batch of one row without a window."""
TALL = case_of("b1,j4,t33/accept=all,tree=vine")
"""Paths past 8 and 16 nodes, and past a ring of 32."""
SOURCES = {
    "": "Snakes and Ladders, section 3.1; ReplaySSM, algorithms 3 and 4",
    "accept": "vllm-project/vllm#50272",
    "widened": "MambaInLlama (repeat of x and B after the convolution)",
    "tree": "STree, section 3",
}


@cache
def _specification(kind: Kind, shape: str) -> Specification:
    sizes: Mapping[str, int] = {**kind.base, "t": 4, "j": 3}
    rows = (*sizes_of("t1", "j1,t7", "b1,j5", "b3,t2"), *kind.narrow, *kind.rows)
    kept = {name: kind.options[name] for name in (*kind.read, "conv_bias", "conv_act")}
    others = {name: values[0] for name, values in kind.options.items() if name not in kept}
    options = ACCEPT | RUN | (TREE if shape == "tree" else {}) | kept | dict(kind.inside)
    own = (TALL, ALONE, BETWEEN) if shape == "tree" else (STAIRS,)
    further = (*FURTHER, *own, BESIDE, *kind.further)
    production: tuple[Further, ...] = (
        *production_rows({"t": 2, "j": 2}, (4, 8, 16), {"accept": "all"}),
        (HISTORY, SETTLED, "gentle"),
        ({"b": 1, "t": 2, "j": 2, **({"h": 128} if "h" in sizes else {"d": 300})}, {"accept": "all"}, "gentle"),
        THREE,
        *TWICE,
    )
    rare = {"between": ("trees", "chains"), "beside": RARE["beside"], **DEAD} if shape == "tree" else RARE
    rare = rare | DROPPED
    production += unread(case_of("b6,t6"), **DEAD) if shape == "tree" else ()
    return Specification(
        operation=f"speculate.{shape}", base=sizes, rows=rows, further=further, options=options,
        families=("gentle", "normal"), sources=SOURCES, draw=drawing(others), expect=expect, run=run, ok=kind.ok,
        fixed={"kind": kind.name}, rare=rare, production=production, deep=((HISTORY, {"read": "last"}, "gentle"),),
    )  # fmt: skip


def drawing(others: Mapping[str, str]) -> Any:
    """Draw a case; options of the layer's projections, which are not read, have their defaults."""

    def draw_with(case: Case, contract: NumericContract) -> Arguments:
        return draw_case(Case(case.operation, case.sizes, {**others, **case.options}, case.family, case.seed), contract)

    return draw_with


SPECIFICATIONS = Rows(lambda: (_specification(kind, shape) for shape in ("chain", "tree") for kind in KINDS.values()))
