"""Mistakes that change several inputs at once, or one beyond what a record takes: terms in the wrong order, another
activation, a chunk that starts again."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ssmspec_ref.contract import UNIT_ROUNDOFF
from ssmspec_ref.errors import ParameterError
from ssmspec_ref.shapes import Array

from ..suite.specification import Arguments, Expected
from .equations.step_sizes import Made, Named, Steps, bias, by_name, skip, step_sizes, step_taken
from .equations.tree_mistakes import tree_mistakes
from .leaves import Leaf, changed, leaves, unchecked

NEVER = -1e9
"""A dt whose softplus is 0."""
HALVINGS = 60
STARTS = (1, 2, 3, 4, 8, 16, 32, 64, 128)
"""Tokens after which a window may start again: the usual lengths of chunks."""


@dataclass(frozen=True)
class Late:
    """A term that is added to the first output after its last function, not before it: as a change it leaves the term out,
    and `term` is what is added. `leaf` is the input that makes the term."""

    operation: str
    leaf: str
    term: Callable[[Named], Array]

    def __call__(self, arguments: Arguments) -> Arguments:
        return changed(arguments, (by_name(leaves(self.operation, arguments))[self.leaf], lambda v: None))

    def added(self, arguments: Arguments, made: list[Expected]) -> list[Expected]:
        """The outputs without the term, with the term."""
        term, first = self.term(by_name(leaves(self.operation, arguments))), made[0]
        rounding = 4 * UNIT_ROUNDOFF["fp32"] * np.abs(term)
        return [replace(first, value=first.value + term, bound=first.bound + rounding), *made[1:]]


Finished = Late | Steps


def mistakes(operation: str, every: list[Leaf]) -> Made:
    """Each mistake that the inputs allow, in words and as a function of the arguments, whose own values it reads."""
    named = by_name(every)

    def of(change: Callable[[Arguments, Named], Arguments]) -> Callable[[Arguments], Arguments]:
        return lambda arguments: change(arguments, by_name(leaves(operation, arguments)))

    if "A" in named and "t" not in named["A"].axes and "*" not in named["A"].path:
        yield "the decay had the other sign, exp(-dt A), and the state grew", of(_growing)
    if {"q", "k", "eps"} <= named.keys() and "l2_norm" in named and named["l2_norm"].value:
        yield "k were not normalised, but q were", of(partial(_half_normalised, "q"))
        yield "q were not normalised, but k were", of(partial(_half_normalised, "k"))
    if {"q", "k", "scale"} <= named.keys() and named["scale"].value is None:
        yield "q were scaled twice", of(_scaled_twice)
    if {"beta", "v"} <= named.keys():
        yield "beta scaled v alone, and not the prediction", of(_scaled_v)
        yield "beta scaled the prediction alone, and not v", of(_scaled_prediction)
    held = any(name in named and isinstance(named[name].value, np.ndarray) for name in STATES)
    for log, name in ((_gate_of_one, "g"), (_rate_times_step, "dt")):
        if held and name in named:
            yield "the state passed in were not decayed by the first token", of(partial(_first_undecayed, log, name))
        for block in (None, *BLOCKS) if held and {name, "bounds"} <= named.keys() else ():
            since = "all tokens before it in the run" if block is None else f"the tokens since the last multiple of {block}"
            yield f"the state passed in were decayed by {since} too", of(partial(_decayed_before, log, block))
    if {"dt", "dt_limit", "dt_bias"} <= named.keys() and "dt_softplus" in named and named["dt_softplus"].value:
        yield "dt were clamped to dt_limit before softplus, and not after it", of(_clamped_early)
        yield "dt_bias were added after softplus, and not before it", of(_bias_late)
    if {"x", "dt", "dt_softplus"} <= named.keys() and "*" not in named["dt"].path:
        yield from step_sizes(operation, named)
    if {"z", "D", "x"} <= named.keys() and all(isinstance(named[name].value, np.ndarray) for name in ("z", "D")):
        yield "D x were added after the gate, and not before it", Late(operation, "D", skip)
    if {"u", "bias", "activation"} <= named.keys() and isinstance(named["bias"].value, np.ndarray):
        yield "bias were added after the activation, and not before it", Late(operation, "bias", lambda n: n["bias"].value)
    if "z" in named and isinstance(named["z"].value, np.ndarray):
        yield "the gate were sigmoid(z) instead of z sigmoid(z)", of(_sigmoid)
        yield "the gate were relu(z) instead of z sigmoid(z)", of(_relu)
    if "g" in named and named["g"].axes[:1] == ("b",) and isinstance(named["g"].value, np.ndarray):
        for least in CLAMPS:
            yield f"the log decay were at least {least:g}", of(partial(_clamped, least))
    if "bounds" in named and "S" in named and "b" in named["S"].axes:
        yield "a sequence began from S[c], where c counts the sequences before it that are not empty", of(_counted)
    if {"bounds", "fresh"} <= named.keys():
        yield "a sequence of one token were never fresh", of(_one_token_kept)
    if {"logits", "temperature"} <= named.keys() and np.all(np.asarray(named["temperature"].value) > 0):
        yield "the logits were divided by the temperature before the penalties, and not after them", of(_cooled_first)
    if {"u", "live", "M"} <= named.keys():
        yield "inputs of dead tokens were 0 among the taps, and not left out", of(_zeros_among_taps)
    if {"live", "g", "beta"} <= named.keys() or {"live", "x", "B"} <= named.keys():
        yield "dead tokens decayed the state, and added nothing to it", of(_dead_decay)
    if {"live", "g", "beta"} <= named.keys():
        yield "dead tokens were added to the state, and did not decay it", of(_dead_added)
    if {"path"} <= named.keys():
        yield "entries of the path that are 0, the root, were taken for padding", of(_rootless)
    if {"prompt", "output"} <= named.keys():
        yield "the prompt were part of the output", of(_prompt_put_out)
    yield from tree_mistakes(every, named, of)
    window = next((named[name] for name in ("dt", "g") if name in named), None)
    for start in STARTS:
        if window is not None and window.axes[:2] == ("b", "t") and start < window.value.shape[1]:
            yield f"tokens from {start} on started from the state passed in", of(partial(_started_again, start))
    for block in BLOCKS:
        if window is not None and window.axes[:2] == ("b", "t") and block < window.value.shape[1]:
            if "g" in named:
                yield f"the decay of tokens {block}, {2 * block}, .. were 1", of(partial(_undecayed, block))
            yield f"token {block - 1} of every {block} were left out", of(partial(_left_out, block, block - 1))
            yield f"the first of every {block} tokens were left out", of(partial(_left_out, block, 0))


def _decayed_before(log: Callable[[Named], Array], block: int | None, arguments: Arguments, named: Named) -> Arguments:
    """The tokens of earlier sequences in the same chunk of the run decay a sequence's state too."""
    each = log(named).reshape(-1, *log(named).shape[2:])  # a packed run has one row, or none
    starts = named["bounds"].value[:-1]
    decays = [np.exp(each[0 if block is None else start // block * block : start].sum(axis=0)) for start in starts]
    decay = np.stack(decays)
    some = np.diff(named["bounds"].value) > 0
    decay = np.where(some.reshape(-1, *(1,) * (decay.ndim - 1)), decay, 1.0)
    return _scaled_states(arguments, named, decay)


BLOCKS = (8, 16, 32, 64)
"""Usual lengths of chunks whose first or last token may be lost."""


def _one_token_kept(arguments: Arguments, named: Named) -> Arguments:
    one = np.diff(named["bounds"].value) == 1
    return changed(arguments, (named["fresh"], lambda a: a & ~one))


def _zeros_among_taps(arguments: Arguments, named: Named) -> Arguments:
    live = named["live"].value[..., None]
    return changed(arguments, (named["u"], lambda a: np.where(live, a, 0.0)), (named["live"], np.ones_like))


def _dead_decay(arguments: Arguments, named: Named) -> Arguments:
    """Every token is live, and those that were not read and add nothing."""
    live = named["live"].value
    none = [(named[name], partial(_only_at, live)) for name in ("beta", "x", "B", "C", "q", "k") if name in named]
    return changed(arguments, (named["live"], np.ones_like), *none)


def _dead_added(arguments: Arguments, named: Named) -> Arguments:
    live = named["live"].value
    return changed(arguments, (named["live"], np.ones_like), (named["g"], partial(_only_at, live)))


def _only_at(live: Array, a: Array) -> Array:
    return np.where(live.reshape(*live.shape, *(1,) * (a.ndim - 2)), a, 0.0)


def _rootless(arguments: Arguments, named: Named) -> Arguments:
    def without(path: Array) -> Array:
        made = np.full_like(path, -1)
        for b, row in enumerate(path):
            kept = row[row > 0]
            made[b, : len(kept)] = kept
        return made

    return changed(arguments, (named["path"], without))


def _cooled_first(arguments: Arguments, named: Named) -> Arguments:
    T = np.asarray(named["temperature"].value)
    by = T if T.ndim == 0 else T.reshape(-1, *(1,) * (named["logits"].value.ndim - 1))
    return changed(arguments, (named["logits"], lambda a: a / by), (named["temperature"], lambda v: v / v))


def _prompt_put_out(arguments: Arguments, named: Named) -> Arguments:
    prompt = named["prompt"].value
    return changed(arguments, (named["output"], lambda a: np.concatenate([prompt, a], axis=1)))


def _undecayed(block: int, arguments: Arguments, named: Named) -> Arguments:
    later = np.arange(named["g"].value.shape[1])
    none = (later > 0) & (later % block == 0)
    return changed(arguments, (named["g"], lambda a: np.where(none.reshape(1, -1, *(1,) * (a.ndim - 2)), 0.0, a)))


def _left_out(block: int, place: int, arguments: Arguments, named: Named) -> Arguments:
    """Some tokens are no-ops: they leave the state as it is."""
    softplus = named.get("dt_softplus")
    never = {"dt": NEVER if softplus is not None and softplus.value else 0.0, "g": 0.0, "beta": 0.0}

    def without(a: Array, value: float) -> Array:
        made = a.copy()
        made[:, place::block] = value
        return made

    nothing = [(named[name], value) for name, value in never.items() if name in named]
    return changed(arguments, *((leaf, partial(without, value=value)) for leaf, value in nothing))


CLAMPS = (-5.0, -10.0, -20.0, -50.0)
"""Log decays at which implementations clamp."""


def _clamped(least: float, arguments: Arguments, named: Named) -> Arguments:
    return changed(arguments, (named["g"], lambda a: np.maximum(a, least)))


def _counted(arguments: Arguments, named: Named) -> Arguments:
    """A sequence with tokens begins from the state of place c, where c sequences before it are not empty."""
    some = np.diff(named["bounds"].value) > 0
    place = np.where(some, np.cumsum(some) - some, np.arange(len(some)))
    return changed(arguments, (named["S"], lambda a: a[place]))


def _scaled_v(arguments: Arguments, named: Named) -> Arguments:
    """beta v - S^T k is 1 (v' - S^T k) with v' = beta v."""
    beta = named["beta"].value[..., None]
    return changed(arguments, (named["v"], lambda a: beta * a), (named["beta"], np.ones_like))


def _scaled_prediction(arguments: Arguments, named: Named) -> Arguments:
    """v - beta S^T k is beta (v' - S^T k) with v' = v / beta."""
    beta = named["beta"].value[..., None]
    return changed(arguments, (named["v"], lambda a: a / beta))


def _gate_of_one(named: Named) -> Array:
    return named["g"].value


def _rate_times_step(named: Named) -> Array:
    step, A = step_taken(named), named["A"].value
    made: Array = step[..., None] * A if A.ndim > 1 else step * A
    return made


def _first_undecayed(log: Callable[[Named], Array], of: str, arguments: Arguments, named: Named) -> Arguments:
    """The state is divided by the decay of the first token, e^log, whose axes are the first ones of the state; `of` is an
    input with one entry for each token."""
    decay = np.exp(log(named)[:, 0] if "t" in named[of].axes else log(named))
    return _scaled_states(arguments, named, 1 / decay)


STATES = ("S", "states")
"""The states of rows, and those of slots."""


def _scaled_states(arguments: Arguments, named: Named, by: Array) -> Arguments:
    """The state of each row times a factor, whose axes are the first ones of the state; in a pool, of its slot."""

    def of_rows(a: Array) -> Array:
        made: Array = a * by.reshape(*by.shape, *(1,) * (a.ndim - by.ndim))
        return made

    def of_slots(a: Array) -> Array:
        made, read = a.copy(), named["read"].value
        if len(np.unique(read[read >= 0])) < (read >= 0).sum():
            raise ParameterError("rows read one slot; its state cannot be scaled for each")
        made[read[read >= 0]] = of_rows(a[read])[read >= 0]
        return made

    name = next(name for name in STATES if name in named)
    return changed(arguments, (named[name], of_slots if {"read"} <= named.keys() else of_rows))


def _growing(arguments: Arguments, named: Named) -> Arguments:
    """Parameters refuse a positive A, so it is put in unchecked."""
    return unchecked(arguments, named["A"], np.negative)


def _half_normalised(which: str, arguments: Arguments, named: Named) -> Arguments:
    def normalised(a: Array) -> Array:
        return a / np.sqrt((a**2).sum(axis=-1, keepdims=True) + named["eps"].value)

    return changed(arguments, (named["l2_norm"], lambda v: False), (named[which], normalised))


def _scaled_twice(arguments: Arguments, named: Named) -> Arguments:
    return changed(arguments, (named["scale"], lambda v: 1.0 / named["k"].value.shape[-1]))


def _clamped_early(arguments: Arguments, named: Named) -> Arguments:
    return changed(
        arguments,
        (named["dt"], lambda a: np.clip(a + bias(named), *named["dt_limit"].value)),
        (named["dt_bias"], lambda v: None),
        (named["dt_limit"], lambda v: (0.0, float("inf"))),
    )


def _bias_late(arguments: Arguments, named: Named) -> Arguments:
    return changed(
        arguments,
        (named["dt"], lambda a: np.logaddexp(0.0, a) + bias(named)),
        (named["dt_bias"], lambda v: None),
        (named["dt_softplus"], lambda v: False),
    )


def _sigmoid(arguments: Arguments, named: Named) -> Arguments:
    """z is replaced by a number whose SiLU is sigmoid(z)."""
    return changed(arguments, (named["z"], _to_sigmoid))


def _relu(arguments: Arguments, named: Named) -> Arguments:
    return changed(arguments, (named["z"], _to_relu))


def _started_again(start: int, arguments: Arguments, named: Named) -> Arguments:
    """The tokens before `start` are no-ops. With a lower limit of dt none is."""
    softplus = named.get("dt_softplus")
    never = {"dt": NEVER if softplus is not None and softplus.value else 0.0, "g": 0.0, "beta": 0.0}
    nothing = [(named[name], value) for name, value in never.items() if name in named]
    return changed(arguments, *((leaf, partial(_until, start=start, value=value)) for leaf, value in nothing))


def _to_sigmoid(z: Array) -> Array:
    return _inverse_silu(1 / (1 + np.exp(-z)))


def _to_relu(z: Array) -> Array:
    return _inverse_silu(np.maximum(z, 0.0))


def _inverse_silu(y: Array) -> Array:
    """The positive x with x sigmoid(x) = y, for y of 0 or more: it lies between y and y + 1."""
    low, high = y, y + 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        less = middle / (1 + np.exp(-middle)) < y
        low, high = np.where(less, middle, low), np.where(less, high, middle)
    return np.where(y > 0, high, 0.0)


def _until(a: Array, start: int, value: float) -> Array:
    made = a.copy()
    made[:, :start] = value
    return made
