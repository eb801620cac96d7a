"""Both convolutions' launchers as subjects of the laws: the values of their calls, what the oracle says of them, their bytes.

The causal convolution has inputs u and a window M of w columns. The short convolution has products B x as inputs, its outputs
are multiplied by C, and its state S is the last w - 1 products.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch

from ssmspec_kernels.row import takes
from ssmspec_ref import conv, tree
from ssmspec_ref import error_bounds as eb
from ssmspec_ref.conv import ConvParams
from ssmspec_ref.error_bounds.arithmetic import Approx
from ssmspec_ref.shapes import Array
from ssmspec_ref.shortconv import ShortConvParams, ShortConvWindow
from tests.kernels import plot
from tests.kernels.calls import LAUNCHERS
from tests.kernels.laws import moved
from tests.kernels.plot import Call, accepted
from tests.kernels.tensors import DTYPES, doubles, draw, integers
from tests.trees import forest, tree_mask

Results = Iterator[tuple[str, Any, Approx]]
INPUTS = ("u", "B", "C", "x")


@dataclass(frozen=True)
class Options(plot.Options):
    b: int = 4
    t: int = 5
    c: int = 11
    w: int = 4
    bias: bool = True
    activation: bool = True
    replay: str = ""
    """Of a window before this one some inputs were accepted: "advanced" counts them, a "path" names them."""
    keep: str = "final"
    """Which window the causal convolution stores."""
    lengths: tuple[int, ...] = ()
    """Of the sequences of a packed run."""
    fresh: bool = False
    """Every other sequence starts anew."""
    behind: int = 2
    """Tokens of a run that are nobody's."""


def short(**changes: Any) -> Options:
    """A case of the short convolution."""
    return Options(**{"w": 3, **changes})


def drawn(launcher: str, o: Options, **more: Any) -> Call:
    """A call of a window, a token, a tree or a packed run: what the launcher takes, of values that all its types hold."""
    rng, known = np.random.default_rng(o.seed), takes(vars(LAUNCHERS[launcher])[launcher])
    forms, columns = (o.state, o.io), o.w - ("S" in known)

    def number(*shape: int) -> Array:
        return integers(rng, *shape) if o.exact else draw(rng, *shape, forms=forms)

    lead = (o.b,) if launcher == "conv_step" else (o.b, o.t)
    if o.lengths:
        lead = (sum(o.lengths) + o.behind,)
    state, weight = number(o.b, o.c, columns), number(o.c, o.w)
    found: dict[str, Any] = {name: number(*lead, o.c) for name in INPUTS}
    found |= {"M": state, "S": state, "weight": torch.from_numpy(weight).to(DTYPES[o.io])}
    found |= {"bias": number(o.c) if o.bias else None}
    dead = None
    if "parents" in known:
        found["parents"] = forest(o)
        dead = found["parents"] == tree.PADDING
    if o.replay:
        found |= replayed(rng, o, number(o.b, o.w + 3, o.c))
    elif "M" in known and not (o.live or o.lengths):
        state[..., 0] = o.poison  # no output sees it, and every window moves on
    if o.lengths:
        found |= run(o, found)
    settings: dict[str, Any] = {"keep": o.keep, "activation": o.activation and not o.exact, "write_state": o.write}
    settings |= {"block_c": 8, "block_d": 8, "block_t": 8, **more}
    settings = {name: x for name, x in settings.items() if name in known}
    return plot.drawn(launcher, o, {name: x for name, x in found.items() if name in known}, dead=dead, **settings)


def replayed(rng: np.random.Generator, o: Options, previous: Array) -> dict[str, Array]:
    """A window before this one, poison in what was not accepted; the first row accepted all, the third one nothing."""
    tokens = previous.shape[1]
    taken, path = rng.integers(0, tokens, o.b), np.full((o.b, tokens), -1)
    taken[0], taken[2] = tokens, 0
    for row, count in zip(path, taken, strict=True):
        row[:count] = np.sort(rng.choice(tokens, count, replace=False)) if o.replay == "path" else np.arange(count)
    seen = (path[:, :, None] == np.arange(tokens)).any(axis=1)
    return {"previous": np.where(seen[:, :, None], previous, o.poison), o.replay: path if o.replay == "path" else taken}


def run(o: Options, found: dict[str, Any]) -> dict[str, Array]:
    """Sequences in one run, poison in tokens that are nobody's and in the states of those that start anew."""
    anew = (np.arange(o.b) % 2 == 0) & o.fresh
    for name in INPUTS:
        found[name][sum(o.lengths) :] = o.poison
    found["M"][anew] = o.poison
    return {"bounds": np.cumsum([0, *o.lengths])} | ({"fresh": anew} if o.fresh else {})


def columns(call: Call) -> Array:
    """The window of each row from which this one goes on, after the replay; a column that is not read is 0."""
    o: Any = call.options
    found = doubles(call[call.pool][call.named])
    if "previous" not in call.given:
        if "M" in call.given and not (o.live or o.lengths):
            found[..., 0] = 0.0
        return found
    previous = doubles(call["previous"])[call.rows]
    if o.replay == "path":
        path = call["path"].long().numpy()
    else:
        path = np.arange(previous.shape[1])
        path = np.where(path < call["advanced"].numpy()[:, None], path, -1)
    return conv.commit_path(found, previous, path[call.rows])


def window(call: Call, at: Any = None) -> Any:
    """The oracle's inputs of the rows, or of some tokens of a run as one row."""
    if at is not None:
        found: dict[str, Any] = {name: doubles(call[name])[None, at] for name in INPUTS if name in call.given}
    elif call.launcher == "conv_step":
        found = {"u": doubles(call["u"])[call.rows][:, None]}
    else:
        found = call.tokens(*(name for name in INPUTS if name in call.given))
    return found["u"] if "u" in found else ShortConvWindow(**found)


def params(call: Call) -> Any:
    found: Any = call.weights("weight", "bias")
    found = {"bias": None, **found}
    return ShortConvParams(**found) if "S" in call.given else ConvParams(**found, activation=call["activation"])


def law(call: Call) -> Any:
    return eb.shortconv if "S" in call.given else eb.conv


def of_window(call: Call) -> Results:
    o: Any = call.options
    first, live = columns(call), call.live
    y, after = law(call).scan(first, window(call), params(call), o.contract(), live)
    yield "out", call.rows, y[:, 0] if call.launcher == "conv_step" else y
    if o.write and o.keep != "none":
        yield call.pool, call.named, after if o.keep == "final" else eb.exact(first, o.contract())


def of_states(call: Call) -> Results:
    o: Any = call.options
    tokens = call.tokens(*INPUTS[1:])
    for t in range(o.t):
        part = ShortConvWindow(**{name: x[:, : t + 1] for name, x in tokens.items()})  # type: ignore[index]
        live = None if call.live is None else call.live[:, : t + 1]
        y, S = eb.shortconv.scan(columns(call), part, params(call), o.contract(), live)
        yield plot.kept(call, S, t)
    yield "out", call.rows, y


def of_nodes(call: Call) -> Results:
    o: Any = call.options
    first, mask = columns(call), tree_mask(call["parents"].numpy()[call.rows])
    yield "out", call.rows, law(call).tree(first, window(call), mask, params(call), o.contract())
    if o.keep == "committed":
        yield call.pool, call.named, eb.exact(first, o.contract())


def of_run(call: Call) -> Results:
    """Every sequence alone; an empty one that starts anew leaves zeros."""
    o: Any = call.options
    bounds, before = call["bounds"].tolist(), columns(call)
    for i, row in enumerate(call.rows):
        cut = slice(*bounds[row : row + 2])
        first = np.zeros_like(before[[i]]) if o.fresh and row % 2 == 0 else before[[i]]
        after = eb.exact(first, o.contract())
        if o.lengths[row]:
            y, after = law(call).scan(first, window(call, cut), params(call), o.contract())
            yield "out", cut, y[0]
        if o.write:
            yield call.pool, call.named[i], after[0]


# --- the bytes of a call ---


def bytes_of_window(module: ModuleType, call: Call) -> int:
    """The formula of every row, which accepted its own number; a row of no-ops stores nothing. So with a tree."""
    o: Any = call.options
    tokens = call["path"].ge(0).sum(1) if o.replay == "path" else call.given.get("advanced")
    taken = [None] * len(call.rows) if tokens is None else [int(n) for n in tokens[torch.from_numpy(call.rows)]]

    def count(t: int, c: int, w: int, state: int, io: int) -> int:
        rows: int = sum(module.traffic_bytes(1, t, c, w, state=state, io=io, keep=o.keep, advanced=n) for n in taken)
        return rows

    still = int((~call.live.any(axis=1)).sum()) if call.live is not None and not o.replay and o.keep == "final" else 0
    return moved(count, call) - still * o.c * o.w * call["M"].element_size()


def bytes_of_nodes(module: ModuleType, call: Call) -> int:
    """All nodes, of which those of padding are not read."""
    return moved(module.traffic_bytes, call, nodes=len(call.rows) * call.options.t)


def bytes_of_run(module: ModuleType, call: Call) -> int:
    """The formula of every sequence. One that starts anew reads no column; an empty one moves what its commit moves."""
    o: Any = call.options
    apart = 0
    for row in call.rows:
        anew, empty = o.fresh and row % 2 == 0, not o.lengths[row]
        commits = o.write and not (empty and "S" in call.given)
        read = 0 if anew else call[call.pool].shape[2] if empty and commits else (o.w - 1) * (not empty)
        apart += read - (o.w - 1) - (o.w - 1) * (empty and not anew and "S" in call.given)
    tokens = sum(o.lengths[row] for row in call.rows)
    known = moved(module.traffic_bytes, call, tokens=tokens, sequences=len(call.rows))
    return known + apart * o.c * call[call.pool].element_size()


# --- the commit of what was accepted ---


@dataclass(frozen=True)
class Commits(plot.Commits):
    b: int = 4
    c: int = 11
    w: int = 3
    drafts: int = 3


def committed(launcher: str) -> Callable[[Commits], Call]:
    """Of all layers of the short convolution; of one window of the causal one."""

    def drawn_commit(o: Commits) -> Call:
        rng, forms = np.random.default_rng(o.seed), (o.state, o.io)
        if launcher == "conv_commit":
            found = {"u": draw(rng, o.b, o.t, o.c, forms=forms), "M": draw(rng, o.b, o.c, o.w, forms=forms)}
        else:
            found = {name: draw(rng, o.layers, o.b * o.drafts, o.t, o.c, forms=(o.io,)) for name in "Bx"}
            found["S"] = draw(rng, o.layers, o.b, o.c, o.w - 1, forms=(o.state,))
        return plot.committed(launcher, o, found)

    return drawn_commit


def of_commit(call: Call) -> Results:
    """Every layer and row alone; C is not read."""
    o: Any = call.options
    only = ShortConvParams(np.ones((o.c, o.w)))
    for layer in range(o.layers):
        for slot, (row, taken) in zip(call.named.tolist(), accepted(call), strict=True):
            if len(taken):
                B, x = (doubles(call[name][layer, row])[None, taken] for name in "Bx")
                start = doubles(call["S"][layer, slot])[None]
                yield "S", (layer, slot), eb.shortconv.scan(start, ShortConvWindow(B, B, x), only, o.contract())[1][0]


def of_inputs(call: Call) -> Results:
    """A window that moves on copies inputs; what is rounded is what the state is stored in."""
    for slot, (row, taken) in zip(call.named.tolist(), accepted(call), strict=True):
        M, u = doubles(call["M"])[[slot]], doubles(call["u"])[[row]]
        path = np.pad(taken.astype(np.int64), (0, u.shape[1] - len(taken)), constant_values=-1)
        yield "M", slot, eb.exact(conv.commit_path(M, u, path[None]), call.options.contract())[0]


def bytes_of_inputs(module: ModuleType, call: Call) -> int:
    def count(c: int, w: int, state: int, io: int) -> int:
        rows: int = sum(module.traffic_bytes(1, c, w, len(taken), state=state, io=io) for _, taken in accepted(call))
        return rows

    return moved(count, call)
