"""Bounds of the short convolution; those of the projections around it in a layer are in `around`.

u^ = B x, rounded, and once more where it is stored in the state's format                  (1)
c^ = bias + sum_w weight_w M^_w, in any order, perhaps rounded to the output format        (2)
y^ = C c^, rounded to the output format                                                    (3)

Columns are copied, so an error of u reaches exactly the outputs of the next w - 1 tokens and then leaves the state: there is
no growth with the length of a run, and one bound for every order of evaluation.
Source: Higham, section 3.1 (inner products), with the bias as one more term.
"""

from types import SimpleNamespace

import numpy as np

from ...contract import NumericContract
from ...errors import Unsupported
from ...shapes import Ancestors, Array, Mask
from ...shortconv import ShortConvParams, ShortConvWindow
from ..arithmetic import Approx, sum_of_products
from ..inputs import Inexact, lift
from ..stored_state import stored_state


def _inputs(
    S: Array, window: ShortConvWindow, params: ShortConvParams, contract: NumericContract, keep: Mask, wrong: Inexact
) -> SimpleNamespace:
    """The inputs as pairs, with the products (1); what is not live is 0 exactly.

    Raises: Unsupported for a state that is stored as codes with scales.
    """
    if contract.state_scale is not None:
        raise Unsupported(
            "a short convolution has no bound for a state stored with scales: a new column changes the scale of the columns "
            "that are only copied, so each is rounded again at every token; store the columns in a float format"
        )
    i = lift(contract, wrong, window, params, S=S)
    i.B, i.C, i.x = (pair.where(keep[..., None]) for pair in (i.B, i.C, i.x))
    i.u = stored_state(i.B * i.x)
    return i


def _read(i: SimpleNamespace, windows: Approx) -> Approx:
    """The outputs (2) (3) for windows (b t d w)."""
    terms = [("btdw, dw -> btd", windows, i.weight)]
    c = sum_of_products(*terms, *([] if i.bias is None else [("d -> d", i.bias)]), matmuls=1)  # (2)
    return (i.C * c.store(c.contract.io)).store(c.contract.io)  # (3)


def scan(
    S: Array,
    window: ShortConvWindow,
    params: ShortConvParams,
    contract: NumericContract,
    live: Mask | None = None,
    inexact: Inexact = None,
) -> tuple[Approx, Approx]:
    """Outputs and final state of `shortconv.scan` with their bounds, in any order of evaluation.

    Raises: ParameterError.
    """
    keep = np.ones(window.x.shape[:2], bool) if live is None else live
    i = _inputs(S, window, params, contract, keep, inexact)
    M = Approx(_windows(i.S.value, i.u.value, keep), _windows(i.S.error, i.u.error, keep), contract)
    return _read(i, M).where(keep[..., None]), _after(i.S, M, keep)


def tree(
    S: Array,
    window: ShortConvWindow,
    ancestors: Ancestors,
    params: ShortConvParams,
    contract: NumericContract,
    inexact: Inexact = None,
) -> Approx:
    """The output at every node of `shortconv.tree.scan` with its bound; at padding both are 0.

    Raises: ParameterError.
    """
    keep = np.einsum("btt -> bt", ancestors)
    i = _inputs(S, window, params, contract, keep, inexact)
    M = Approx(_paths(i.S.value, i.u.value, ancestors), _paths(i.S.error, i.u.error, ancestors), contract)
    return _read(i, M).where(keep[..., None])


def _windows(S: Array, u: Array, keep: Mask) -> Array:
    """The w columns that every token reads, (b t d w)."""
    found = []
    for t in range(u.shape[1]):
        M = np.concatenate([S, u[:, t, :, None]], axis=2)
        S = np.where(keep[:, t, None, None], M[:, :, 1:], S)
        found.append(M)
    return np.stack(found, axis=1)


def _after(S: Approx, M: Approx, keep: Mask) -> Approx:
    """The last w - 1 columns of the last live token; of a row without one those before the window."""
    rows, moved = np.arange(len(keep)), np.any(keep, axis=1)[:, None, None]
    newest = keep.shape[1] - 1 - np.argmax(keep[:, ::-1], axis=1)
    last = M.map(lambda a: a[rows, newest, :, 1:])
    return Approx(np.where(moved, last.value, S.value), np.where(moved, last.error, S.error), S.contract)


def _paths(S: Array, u: Array, ancestors: Ancestors) -> Array:
    """The w columns that every node reads along its path, (b t d w); those of padding are its state's, and not read."""
    width, ext = S.shape[2] + 1, np.concatenate([S, u.transpose(0, 2, 1)], axis=2)
    at = [[np.concatenate([np.arange(width - 1), width - 1 + np.flatnonzero(seen)]) for seen in row] for row in ancestors]
    columns = np.array([[np.concatenate([[0], way])[-width:] for way in row] for row in at])
    return np.take_along_axis(ext[:, None], columns[:, :, None, :], axis=3)
