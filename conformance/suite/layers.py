"""Whole recurrent layers, called as an engine calls them: outputs and state, from the layer's own cache.

A script is a list of windows that are fed to the layer one after the other, with the mask of real tokens and the number of
tokens to undo before each window. The oracle runs the real tokens in one call. The layer's state is compared after the first
window (except in `continue`, because reading it may complete pending work) and at the end. With `beside=another` a second
layer with the same weights is fed other tokens in turn with the first. Sizes: t tokens in the prompt, j after it (for
rollback: twice j, of which all and then half are rejected, then two more).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from ssmspec_ref import error_bounds
from ssmspec_ref.contract import Capability, NumericContract
from ssmspec_ref.layers import layer, mixer
from ssmspec_ref.layers.layer import RecurrentLayer
from ssmspec_ref.registry import Rows
from ssmspec_ref.shapes import Array, Residual

from ..cases import Case
from ..judge.draw import Draw
from .called import Arguments, Came, copied
from .expected import Expected, allowed, oracles, orders
from .kinds.weights import SOURCES, WINDOWS, Kind
from .production import rows as production_rows
from .recurrences import KINDS, RECURRENCES
from .specification import Specification
from .tables import Further, cases_of, of_axes
from .weights_used import check_used


@dataclass(frozen=True)
class Window:
    """One call of the layer: tokens `begin` to `end` of the script, after undoing the last `undo` tokens."""

    begin: int
    end: int
    undo: int = 0


@dataclass(frozen=True)
class Script:
    """The tokens of all windows; which of them are real; which of them the oracle reads; whether the state is read after the
    prompt as well as at the end; whether a second layer runs in turn."""

    windows: tuple[Window, ...]
    u: Residual
    live: Array
    counted: Array
    looks: bool = True
    beside: bool = False


def one_by_one(begin: int, end: int) -> tuple[Window, ...]:
    return tuple(Window(t, t + 1) for t in range(begin, end))


def prefill(draw: Draw) -> Script:
    t = draw.sizes["t"]
    return _script(draw, (Window(0, t),), t)


def step(draw: Draw) -> Script:
    t, j = draw.sizes["t"], draw.sizes["j"]
    return _script(draw, (Window(0, t), *one_by_one(t, t + j)), t + j)


def resume(draw: Draw) -> Script:
    """With `calls=three` the tokens after the prompt come in two parts."""
    t, j = draw.sizes["t"], draw.sizes["j"]
    middle = t + j // 2
    behind = (Window(t, middle), Window(middle, t + j)) if draw.options["calls"] == "three" else (Window(t, t + j),)
    return replace(_script(draw, (Window(0, t), *behind), t + j), looks=False)


def left_pad(draw: Draw) -> Script:
    """Rows lose none, one, five, six .. of their first tokens to padding: less and more than the window of the convolution.
    With `pads=many` the first row has one token, the last all, those between in between. With `prompt=parts` the
    padded prompt comes in two calls, so that a row may have no token in one of them."""
    return _padded(draw, lambda real, t: np.arange(t) >= t - real[:, None])


def right_pad(draw: Draw) -> Script:
    """Rows lose none, one, five, six .. of their last tokens to padding, and continue after it."""
    return _padded(draw, lambda real, t: np.arange(t) < real[:, None])


def rollback(draw: Draw) -> Script:
    """j tokens after the prompt, all undone; j others and a single one, undone except for the first half of the j; then two
    single tokens."""
    t, j = draw.sizes["t"], draw.sizes["j"]
    first, second, undo = t + j, t + 2 * j + 1, j - j // 2 + 1
    drafts = (Window(t, first), Window(first, second - 1, undo=j), Window(second - 1, second))
    script = _script(
        draw, (Window(0, t), *drafts, Window(second, second + 1, undo=undo), Window(second + 1, second + 2)), second + 2
    )
    script.counted[:, t:first] = False
    script.counted[:, second - undo : second] = False
    return script


def _padded(draw: Draw, real: Callable[[Array, int], Array]) -> Script:
    t, j = draw.sizes["t"], draw.sizes["j"]
    middle = t // 2 if draw.options["prompt"] == "parts" else 0
    parts = (Window(0, middle), Window(middle, t)) if middle else (Window(0, t),)
    script = _script(draw, (*parts, *one_by_one(t, t + j)), t + j)
    row = np.arange(draw.sizes["b"])
    few, many = t - row - 3 * (row > 1) - (len(row) == 1), 1 + (t - 1) * row // max(len(row) - 1, 1)
    lengths = np.maximum(1, many if draw.options["pads"] == "many" else few)
    for mask in (script.live, script.counted):
        mask[:, :t] = real(lengths, t)
    return replace(script, u=draw.unread(script.u, script.live))


def _script(draw: Draw, windows: tuple[Window, ...], tokens: int) -> Script:
    rows, width = draw.sizes["b"], KINDS[draw.options["kind"]].residual(draw.sizes)
    u, beside = draw.array("u", (rows, tokens, width)), draw.options.get("beside") == "another"
    return Script(windows, u, np.ones((rows, tokens), dtype=bool), np.ones((rows, tokens), dtype=bool), beside=beside)


def drawing(script: Callable[[Draw], Script]) -> Callable[[Case, NumericContract], Arguments]:
    def draw_case(case: Case, contract: NumericContract) -> Arguments:
        draw = Draw(case, contract)
        return KINDS[draw.options["kind"]].layer(draw), script(draw)

    return draw_case


def run(capability: Capability, arguments: Arguments) -> Came:
    """Run a new layer through a script: its outputs at all tokens, M and S after the prompt, M and S at the end."""
    record, script = arguments
    subject = capability.run(record, script.u.shape[0])
    another = capability.run(record, script.u.shape[0]) if script.beside else None
    outputs, kept = [], []
    for window in script.windows:
        if window.undo:
            subject.rollback(window.undo)
        live = script.live[:, window.begin : window.end]
        cut = script.u[:, window.begin : window.end]
        outputs.append(np.array(subject.forward(cut, None if live.all() else live)))
        if another is not None:
            another.forward(-cut)
        looks = window is script.windows[-1] or (script.looks and window is script.windows[0])
        kept.append(tuple(map(copied, subject.state())) if looks else ())
    states = (*kept[0], *kept[-1]) if len(kept) > 1 else kept[0]
    return Came((np.concatenate(outputs, axis=1), *states), getattr(subject, "used", None))


def expect(arguments: Arguments, contract: NumericContract, used: Any) -> list[Expected]:
    """The oracle over the real tokens in one call, with the contract's bound plus the oracle's own.

    Raises: OtherWeights if the weights that the layer reports are not those given.
    """
    record, script = arguments
    if used is not None:
        check_used(record, used, contract)
        record = used
    out, M, S = _bounded(record, script.u, script.counted, contract, len(script.windows) > 1)
    prompt = script.windows[0].end
    expected = [replace(out, judged=script.counted[:, :, None])]
    if len(script.windows) > 1 and script.looks:
        _, M_prompt, S_prompt = _bounded(record, script.u[:, :prompt], script.counted[:, :prompt], contract, False)
        expected += [replace(M_prompt, name="M after the prompt"), replace(S_prompt, name="S after the prompt")]
    return [*expected, M, S]


def _bounded(
    record: RecurrentLayer, u: Residual, live: Array, contract: NumericContract, mixed: bool
) -> tuple[Expected, Expected, Expected]:
    """Output, M and S of a run from an empty state, each with its bound.

    `mixed` says that the run took several calls (`orders`).
    """
    zero = mixer.new_state(record.mixer, u.shape[0])
    value, state = layer.scan(zero, u, record, live)
    ways = orders(contract) if mixed else (contract,)
    bounds = [error_bounds.layer.scan(zero, u, record, c, live) for c in (*ways, *oracles(contract))]
    errors = [allowed([pair.error for pair in pairs], contract) for pairs in zip(*bounds, strict=True)]
    return (
        Expected("out", "b t e", value, errors[0]),
        Expected("M", "b c w", state.M, errors[1], state=True),
        Expected("S", RECURRENCES[record.mixer.kind].state, state.S, errors[2], state=True, recurrent=True),
    )


SCRIPTS: dict[str, tuple[Callable[[Draw], Script], bool, str]] = {
    "prefill": (prefill, False, "Snakes and Ladders, algorithm 1"),
    "step": (step, True, "state-spaces/mamba#887"),
    "continue": (resume, True, "huggingface/transformers#45513"),
    "left_pad": (left_pad, True, "huggingface/transformers#32677"),
    "right_pad": (right_pad, True, "huggingface/transformers#48256"),
    "rollback": (rollback, True, "huggingface/transformers#49036"),
}


FURTHER = cases_of("b1,t70")
"""A prompt longer than one chunk of 64 tokens."""
PROMPTS: tuple[Further, ...] = tuple(({"b": 1, "t": t}, {}, "gentle") for t in (2, 4, 5, 7, 8))
"""Together with the table, prompts of every length up to 9; a prompt must not be mistaken for a window of drafts."""

EVEN: tuple[Further, ...] = tuple(({"j": j}, {}, "gentle") for j in (2, 4))
"""An even number of tokens from the cache, and as many as the window has columns."""
ON = cases_of("b1,j70", "j6/calls=three", "beside=another")
"""More than a chunk of 64 tokens from the cache; a cache that is continued twice; two layers in turn."""
MANY = cases_of("b1,j40", "beside=another")
"""Forty single tokens; two layers in turn."""
LONG: dict[str, tuple[Further, ...]] = {"step": cases_of("b1,t2,j270")}
"""Past a cursor of a byte."""
PADS = cases_of("b3,t17/pads=many", "b3,t12/prompt=parts", "b3,t17/pads=many,prompt=parts", "b3,t12/dead=plausible")
PADDED: dict[str, tuple[str, ...]] = {
    "pads": ("few", "many"),
    "prompt": ("whole", "parts"),
    "dead": ("finite", "plausible"),
}
BESIDE: dict[str, tuple[str, ...]] = {"beside": ("none", "another")}
BEHIND: dict[str, tuple[tuple[Further, ...], dict[str, tuple[str, ...]]]] = {
    "step": ((*PROMPTS, *MANY), BESIDE),
    "continue": ((*EVEN, *ON), {"calls": ("two", "three"), **BESIDE}),
    "left_pad": (PADS, PADDED),
    "right_pad": (PADS, PADDED),
}
"""Cases after a script's table, and the options that only these have."""


@cache
def specification(name: str, kind: Kind) -> Specification:
    """The specification of a script with a kind of layer."""
    script, goes_on, source = SCRIPTS[name]
    base = kind.base if goes_on else {axis: size for axis, size in kind.base.items() if axis != "j"}
    rows = tuple(cut for row in (*WINDOWS, *kind.rows) if (cut := of_axes(base, row)))
    more, rare = BEHIND.get(name, ((), {}))
    return Specification(
        operation=f"layer.{name}", base=base, rows=rows, further=(*FURTHER, *more), options=kind.options,
        families=("gentle", "normal"), sources=SOURCES | {"": source}, draw=drawing(script),
        expect=expect, run=run, ok=kind.ok, fixed={"kind": kind.name}, rare=rare,
        production=(*production_rows({"t": 3}, (4, 8, 16)), *LONG.get(name, ())),
        deep=cases_of("b1,t127", "b1,t128", "b64,t3"),
    )  # fmt: skip


SPECIFICATIONS = Rows(lambda: (specification(name, kind) for name in SCRIPTS for kind in KINDS.values()))
