"""The rules of NumPy's functions, and of the named functions of the reference, on pairs: the reference runs on pairs.

einsum      a product that is summed over nothing is one multiplication after the other; a sum is that of `Sum`       (1)
moves       repeat, stack ..: values and errors alike; an array among pairs is exact                                  (2)
stored      rounded to the format of the state, if the contract stores it after every token; `kept` always            (3)
passed      rounded to the format of outputs                                                                          (4)
product     the sum that the pair was made of, in any order and association, of rounded operands                      (5)

A function without a rule is refused (`Approx.named`).
"""

from collections.abc import Callable, Sequence
from functools import partial, reduce
from operator import mul
from typing import Any

import numpy as np

from ...shapes import Array
from .. import functions, norms
from ..arithmetic import RULES, Approx, constant, product_of
from ..stored_state import stored_state

Moved = Approx | Array | float


def einsum(subscripts: str, *operands: Moved) -> Approx:
    """(1). Raises: ParameterError if there are too many roundings for a bound to exist."""
    pairs = _lifted(operands)
    inputs, _, output = subscripts.replace(" ", "").partition("->")
    if "." not in inputs and set(inputs) - {","} <= set(output):
        return reduce(mul, (_spread(x, of, output) for x, of in zip(pairs, inputs.split(","), strict=True)))
    found = product_of(subscripts, *pairs)
    return found.rounded().as_made(lambda: found)


def _spread(x: Approx, axes: str, output: str) -> Approx:
    """A factor with the axes of a product in their order, those that it lacks of length 1."""
    order = [axes.index(letter) for letter in output if letter in axes]
    return x.map(lambda a: a.transpose(order)[tuple(slice(None) if letter in axes else None for letter in output)])


def _lifted(given: Sequence[Moved]) -> list[Approx]:
    contract = next(x.contract for x in given if isinstance(x, Approx))
    return [x if isinstance(x, Approx) else constant(x, contract) for x in given]


def _joining(function: Callable[..., Array]) -> Callable[..., Approx]:
    """(2) for a function of a list of arrays."""

    def joined(parts: Sequence[Moved], *rest: Any, **more: Any) -> Approx:
        pairs = _lifted(parts)
        value, error = (function([getattr(x, side) for x in pairs], *rest, **more) for side in ("value", "error"))
        return Approx(value, error, pairs[0].contract)

    return joined


def _where(condition: Array, yes: Moved, no: Moved) -> Approx:
    return _joining(lambda pair: np.where(condition, pair[0], pair[1]))([yes, no])


def _stored(S: Approx, axis: int = -1) -> Approx:
    return _plain(stored_state(S, axis) if S.contract.stored_every_token else S)


def _plain(x: Approx) -> Approx:
    """The same pair, not remembering the sum that it was."""
    return x.map(lambda a: a)


RULES |= {
    "add": Approx.__add__,
    "subtract": Approx.__sub__,
    "multiply": Approx.__mul__,
    "clip": functions.clip,
    "decay": partial(functions.exp, most=0.0),
    "einsum": einsum,
    "where": _where,
    "ndim": lambda x: x.ndim,
    "zeros_like": lambda x: x.where(np.zeros(x.shape, dtype=bool)),
    "stored": _stored,
    "kept": lambda x: _plain(stored_state(x)),
    "passed": lambda x: _plain(x.store(x.contract.io)),
    "product": lambda x: x.terms.rounded(matmuls=1),
    "l2_normed": norms.l2_norm,
    **{name: getattr(functions, name) for name in ("softplus", "sigmoid", "silu")},
    "repeat": lambda x, *rest, **more: x.map(lambda a: np.repeat(a, *rest, **more)),
    **{name: _joining(getattr(np, name)) for name in ("stack", "concatenate")},
}
