"""A layer's states over their life: what a server does with them between two requests.

A script (`script`) begins prompts over a prefix cache, feeds tokens, forks, ends sequences, evicts, exports a state and
takes it in another slot or server. At its end prompts begin from what copied sequences and their origin have saved, if there
is a cache. Compared are the outputs of all that is fed and the states at the end, with plain decoding of each sequence from
its first token; by bits, without a bound, that a fork and a state that was exported and taken equal the state that was there;
and how many tokens of a prompt were found: at most those of the longest saved prefix. A server that saves fewer states, or
drops some, finds fewer tokens; it is fed the others. What is saved or exported is a copy: it does not follow what is fed
later. Sizes: b slots of a server, t tokens fed at once at most, j steps before the end.
"""

from dataclasses import replace
from functools import cache
from typing import Any
from zlib import crc32

import numpy as np

from ssmspec_ref import error_bounds
from ssmspec_ref.contract import Capability, NumericContract
from ssmspec_ref.layers import mixer
from ssmspec_ref.layers.mixer import Mixer, MixerInputs, MixerState
from ssmspec_ref.records import concat, each
from ssmspec_ref.registry import Rows
from ssmspec_ref.shapes import Array

from ...cases import Case
from ...judge.draw import Draw
from ..called import Arguments, Came, copied, poison
from ..expected import Expected, allowed, oracles, orders
from ..kinds.weights import Kind
from ..recurrences import KINDS, RECURRENCES
from ..specification import Specification
from ..tables import Further, cases_of, sizes_of
from . import ranks, script
from .script import Place, Step

BLOCK = {"four": 4, "one": 1, "seven": 7, "none": 0}
"""Tokens between two boundaries at which a state is saved; 0: the server has no prefix cache."""


def drawing(others: dict[str, str]) -> Any:
    """Draw a case; options of the layer's projections, which are not read, have their defaults."""

    def draw_with(case: Case, contract: NumericContract) -> Arguments:
        draw = Draw(Case(case.operation, case.sizes, {**others, **case.options}, case.family, case.seed), contract)
        kind, block = KINDS[draw.options["kind"]], BLOCK[draw.options["block"]]
        layer = kind.between(draw, kind.layer(draw).mixer)
        (b, t, j), rng = draw.shape("b t j"), np.random.default_rng(of_case(case))
        ranked = "ranks" in draw.options  # only of recurrences whose heads can be cut apart
        numbers = ranks.of_servers(draw.options["ranks"], _parts(layer), layer.state_shape[0]) if ranked else ()
        steps = list(script.drawn(rng, draw.options["script"], j, b, t, block, across=bool(numbers)))
        return layer, b, block, script.with_inputs(steps, words(draw, layer)), numbers

    return draw_with


def words(draw: Draw, layer: Mixer) -> MixerInputs:
    """The inputs of every word of the vocabulary, as one window."""
    draw = Draw(draw.case, draw.contract, b=1, t=script.VOCABULARY)
    pre = draw.array("pre", (1, script.VOCABULARY, layer.conv.weight.shape[0]))
    return MixerInputs(pre, KINDS[draw.options["kind"]].gates(draw, 0))


def of_case(case: Case) -> int:
    """The seed of a script: the same for all inputs of a case, which are written to the same arrays."""
    return crc32(f"{sorted(case.sizes.items())} {sorted(case.options.items())} {case.family}".encode())


def run(capability: Capability, arguments: Arguments) -> Came:
    """What begins, feeds, forks and moves give, in their order; then the states of all sequences that are left."""
    layer, slots, block, steps, split = arguments
    servers = {step.server: None for step in steps}
    running = {server: capability.run(layer, slots, block, *split[server : server + 1]) for server in servers}
    came: list[Any] = []
    hits: list[int] = []
    exports: dict[int, tuple[Any, tuple[Array, ...]]] = {}
    left: dict[Place, None] = {}
    begun: Step | None = None
    for step in steps:
        server = running[step.server]
        if begun is not None:
            step, begun = fed_from(hits[-1], begun, step), None
        match step.do:
            case "begin":
                found = float(server.begin(step.slot, step.tokens))
                came.append(np.array([found]))
                hits.append(hit(step, found))
                left[step.server, step.slot] = None
                begun = step
            case "feed":
                came.append(copied(server.feed(step.slot, step.tokens, step.inputs)))
            case "fork":
                before = _state(server, step.slot)
                server.fork(step.slot, step.to)
                came.append(same(before, _state(server, step.to), _state(server, step.slot)))
                left[step.server, step.to] = None
            case "export":
                exports[step.to] = server.export(step.slot), _state(server, step.slot)
            case "take":
                held, before = exports[step.to]
                server.take(step.slot, held)
                before = recut(layer, before, split[step.server]) if split else before
                came.append(same(before, _state(server, step.slot)))
                left[step.server, step.slot] = None
            case "end":
                server.end(step.slot)
                del left[step.server, step.slot]
            case "evict":
                server.evict()
        poison(server)
    for server, slot in left:
        came += _state(running[server], slot)
    most = [step.found for step in steps if step.do == "begin"]
    return Came(tuple(came), None if hits == most else np.array(hits))


def hit(begun: Step, found: float) -> int:
    """How many tokens of a prompt a server has found, if it may have; otherwise those of the longest saved prefix."""
    return int(found) if 0 <= found < begun.found and found == int(found) else begun.found


def fed_from(found: int, begun: Step, step: Step) -> Step:
    """The step after the one with which a prompt began: it feeds all that a server has not found."""
    if found == begun.found:
        return step
    assert begun.tokens is not None
    assert step.tokens is not None
    assert begun.inputs is not None
    assert step.inputs is not None
    missed = each(lambda a: a[:, found:], begun.inputs)
    tokens = np.concatenate([begun.tokens[found : begun.found], step.tokens])
    return replace(step, tokens=tokens, inputs=concat(missed, step.inputs))


def after_hits(steps: tuple[Step, ...], hits: Any) -> tuple[Step, ...]:
    """The steps as they were for a server that found these numbers of tokens; as they are without them."""
    begun = [number for number, step in enumerate(steps) if step.do == "begin"]
    changed = list(steps)
    for number, found in zip(begun, hits if np.shape(hits) == (len(begun),) else (), strict=False):
        step, found = steps[number], hit(steps[number], float(found))
        inputs = None if not found else each(lambda a, found=found: a[:, :found], step.inputs)
        changed[number] = replace(step, found=found, inputs=inputs)
        changed[number + 1] = fed_from(found, step, steps[number + 1])
    return tuple(changed)


def _state(server: Any, slot: int) -> tuple[Array, ...]:
    return tuple(map(copied, server.state(slot)))


def recut(layer: Mixer, state: tuple[Array, ...], number: int) -> tuple[Array, ...]:
    """The states of some ranks as those of another number of ranks."""
    parts = _parts(layer)
    return ranks.cut(ranks.joined(state, parts), parts, number)


def _parts(layer: Mixer) -> ranks.Parts:
    """The parts of the channels of its convolution."""
    of = RECURRENCES[layer.kind].parts
    assert of is not None
    return of(layer)


def same(first: tuple[Array, ...], *others: tuple[Array, ...]) -> Array:
    """1 if all states have the bits of the first, otherwise 0."""
    equal = all(
        a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        for other in others
        for a, b in zip(first, other, strict=True)
    )
    return np.array([float(equal)])


def expect(arguments: Arguments, contract: NumericContract, used: Any) -> list[Expected]:
    """Plain decoding of every sequence from its first token, in one run. `used` is how many tokens were found of each prompt,
    if they were fewer than they might be."""
    layer, _, _, steps, split = arguments
    steps = after_hits(steps, used)
    found: list[Expected] = []
    sequences: dict[Place, MixerInputs | None] = {}
    exports: dict[int, MixerInputs | None] = {}
    for number, step in enumerate(steps):
        place = step.server, step.slot
        match step.do:
            case "begin":
                sequences[place] = step.inputs
                found.append(_number(f"tokens found by step {number}", step.found))
            case "feed":
                assert step.inputs is not None
                before = sequences[place]
                whole = step.inputs if before is None else concat(before, step.inputs)
                sequences[place] = whole
                found.append(_decoded(layer, whole, contract)[0](number, step))
            case "fork":
                sequences[step.server, step.to] = sequences[place]
                found.append(_number(f"fork {number} equals its origin", 1))
            case "export":
                exports[step.to] = sequences[place]
            case "take":
                sequences[place] = exports[step.to]
                found.append(_number(f"state taken by step {number} equals the exported one", 1))
            case "end":
                del sequences[place]
    for (server, slot), fed in sequences.items():
        assert fed is not None
        states = _decoded(layer, fed, contract)[1](f"of slot {slot}, server {server}")
        found += _by_rank(states, _parts(layer), split[server]) if split else states
    return found


def _decoded(layer: Mixer, whole: MixerInputs, contract: NumericContract) -> Any:
    """The outputs of the last tokens, and the states, of a sequence from its first token."""
    zero: MixerState = mixer.new_state(layer, 1)
    y, held = mixer.scan(zero, whole, layer)
    bounds = [error_bounds.mixer.scan(zero, whole, layer, c) for c in (*orders(contract), *oracles(contract))]
    error, _, left = (allowed([pair.error for pair in pairs], contract) for pairs in zip(*bounds, strict=True))
    kind = RECURRENCES[layer.kind]

    def outputs(number: int, step: Step) -> Expected:
        assert step.tokens is not None
        count = len(step.tokens)
        return Expected(f"y of step {number}", kind.output[1], y[:, -count:], error[:, -count:])

    def states(where: str) -> list[Expected]:
        return [
            Expected(f"M {where}", "b c w", held.M, np.zeros_like(held.M), state=True),
            Expected(f"S {where}", kind.state, held.S, left, state=True, recurrent=True),
        ]

    return outputs, states


def _by_rank(states: list[Expected], parts: ranks.Parts, number: int) -> list[Expected]:
    """M and S of a sequence, cut apart: the ranks in place of its row."""
    values, bounds = (ranks.cut(pair, parts, number) for pair in zip(*((e.value, e.bound) for e in states), strict=True))
    return [replace(e, value=a, bound=error) for e, a, error in zip(states, values, bounds, strict=True)]


def _number(name: str, value: float) -> Expected:
    return Expected(name, "i", np.array([float(value)]), np.zeros(1))


FURTHER = cases_of(
    "j40/script=mixed", "b2,j30/script=prefix,block=one", "b5,j30/script=fork", "b2,j30/script=move", "b1,j20/script=prefix"
)
"""Long scripts; slots that are used again and again; forks of forks; a single slot."""
BY_RANK: tuple[Further, ...] = (
    *(({"j": 30}, {"script": "move", "ranks": way}, "gentle") for way in ranks.RANKS["ranks"][1:]),
    *cases_of(
        "j30,g2,h8/script=mixed,ranks=one_and_heads",
        "j30,g2,h8/script=mixed,ranks=few_and_heads",
        "j40,g4,h4/script=mixed,ranks=one_and_few",
    ),
)
"""States that go to a server of more or fewer ranks; more ranks than groups; a prefix cache on every rank."""
SOURCES = {
    "": "bug classes PREFIX-CKPT, SLOT-REUSE, SLOT-SCOPE",
    "block": "vllm-project/vllm#45238",
    "script": "sgl-project/sglang#23773; ggml-org/llama.cpp#28120",
    "ranks": "vllm-project/vllm#37638",
}


@cache
def _specification(kind: Kind, ranked: bool) -> Specification:
    kept = {name: kind.options[name] for name in (*kind.read, "conv_bias", "conv_act")}
    others = {name: values[0] for name, values in kind.options.items() if name not in kept}
    return Specification(
        operation="life.states",
        base={**kind.base, "b": 3, "t": 4, "j": 9},
        rows=(*sizes_of("t1", "t9", "j16"), *kind.narrow, *sizes_of("b2"), *kind.rows),
        options={"script": tuple(script.WAYS), "block": tuple(BLOCK), **kept, **kind.inside},
        families=("gentle", "normal"),
        sources=SOURCES,
        draw=drawing(others),
        expect=expect,
        run=run,
        ok=kind.ok,
        fixed={"kind": kind.name},
        further=FURTHER,
        rare=ranks.RANKS if ranked else {},
        production=BY_RANK if ranked else (),
        deep=cases_of("j150/script=mixed", "b17,j100/script=mixed"),
    )


SPECIFICATIONS = Rows(
    lambda: (_specification(kind, rule.parts is not None) for rule in RECURRENCES.values() for kind in rule.layers)
)
