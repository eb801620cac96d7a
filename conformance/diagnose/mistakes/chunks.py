"""States and tokens at the borders of chunks and sequences: decayed too often or never, left out, started again."""

from collections.abc import Callable
from functools import partial

import numpy as np

from ssmspec_ref.errors import ParameterError
from ssmspec_ref.shapes import Array

from ...mistakes.operators import of_rows, put, state_of_the_nonempty
from ...suite.called import Arguments
from ..leaves import changed
from .named import Made, Named, Of
from .step_sizes import step_taken

NEVER = -1e9
"""A dt whose softplus is 0."""
STARTS = (1, 2, 3, 4, 8, 16, 32, 64, 128)
"""Tokens after which a window may start again: the usual lengths of chunks."""
BLOCKS = (8, 16, 32, 64)
"""Usual lengths of chunks whose first or last token may be lost."""
STATES = ("S", "states")
"""The states of rows, and those of slots."""


def borders(named: Named, of: Of) -> Made:
    """Each such mistake of the state that comes in, and of sequences, that the inputs allow."""
    held = any(name in named and isinstance(named[name].value, np.ndarray) for name in STATES)
    for log, name in ((_gate_of_one, "g"), (_rate_times_step, "dt")):
        if held and {name} <= named.keys():
            yield "the state passed in were not decayed by the first token", of(partial(_first_undecayed, log, name))
        for block in (None, *BLOCKS) if held and {name, "bounds"} <= named.keys() else ():
            since = "all tokens before it in the run" if block is None else f"the tokens since the last multiple of {block}"
            yield f"the state passed in were decayed by {since} too", of(partial(_decayed_before, log, block))
    if {"bounds", "S"} <= named.keys() and {"b"} <= set(named["S"].axes):
        yield (
            "a sequence began from S[c], where c counts the sequences before it that are not empty",
            of(S=state_of_the_nonempty),
        )
    if {"bounds", "fresh"} <= named.keys():
        yield "a sequence of one token were never fresh", of(fresh=lambda fresh, bounds: fresh & (np.diff(bounds) != 1))


def chunks(named: Named, of: Of) -> Made:
    """Each such mistake of tokens inside a window."""
    window = next((named[name] for name in ("dt", "g") if name in named), None)
    if window is None or window.axes[:2] != ("b", "t"):
        return
    tokens = window.value.shape[1]
    for start in (start for start in STARTS if start < tokens):
        yield f"tokens from {start} on started from the state passed in", of(**_no_ops(slice(start)))
    for block in (block for block in BLOCKS if block < tokens):
        if {"g"} <= named.keys():
            yield f"the decay of tokens {block}, {2 * block}, .. were 1", of(g=put(slice(block, None, block), 0.0))
        yield f"token {block - 1} of every {block} were left out", of(**_no_ops(slice(block - 1, None, block)))
        yield f"the first of every {block} tokens were left out", of(**_no_ops(slice(0, None, block)))


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


def _decayed_before(log: Callable[[Named], Array], block: int | None, arguments: Arguments, named: Named) -> Arguments:
    """The tokens of earlier sequences in the same chunk of the run decay a sequence's state too."""
    each = log(named).reshape(-1, *log(named).shape[2:])  # a packed run has one row, or none
    starts = named["bounds"].value[:-1]
    decays = [np.exp(each[0 if block is None else start // block * block : start].sum(axis=0)) for start in starts]
    decay = np.stack(decays)
    some = np.diff(named["bounds"].value) > 0
    decay = np.where(of_rows(some, decay), decay, 1.0)
    return _scaled_states(arguments, named, decay)


def _scaled_states(arguments: Arguments, named: Named, by: Array) -> Arguments:
    """The state of each row times a factor, whose axes are the first ones of the state; in a pool, of its slot."""

    def rows(a: Array) -> Array:
        return a * of_rows(by, a)

    def slots(a: Array) -> Array:
        made, read = a.copy(), named["read"].value
        if len(np.unique(read[read >= 0])) < (read >= 0).sum():
            raise ParameterError("rows read one slot; its state cannot be scaled for each")
        made[read[read >= 0]] = rows(a[read])[read >= 0]
        return made

    name = next(name for name in STATES if name in named)
    return changed(arguments, (named[name], slots if {"read"} <= named.keys() else rows))


def _no_ops(at: slice) -> dict[str, Callable[..., Array]]:
    """Some tokens leave the state as it is. With a lower limit of dt none does."""
    return {
        "dt": lambda dt, dt_softplus: put(at, NEVER if dt_softplus else 0.0)(dt),
        "g": put(at, 0.0),
        "beta": put(at, 0.0),
    }
