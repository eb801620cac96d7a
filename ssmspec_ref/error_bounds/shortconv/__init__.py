"""Bounds of the short convolution; those of the projections around it in a layer are in `around`.

u^ = B x, rounded, and once more where it is stored in the state's format                  (1)
c^ = bias + sum_w weight_w M^_w, in any order, perhaps rounded to the output format        (2)
y^ = C c^, rounded to the output format                                                    (3)

Columns are copied, so an error of u reaches exactly the outputs of the next w - 1 tokens and then leaves the state: there is
no growth with the length of a run, and one bound for every order of evaluation.
Source: Higham, section 3.1 (inner products), with the bias as one more term.
"""

from typing import Any

import numpy as np

from ... import shortconv
from ...contract import NumericContract
from ...errors import Unsupported
from ...records import masked
from ...shapes import Ancestors, Array, Mask
from ...shortconv import ShortConvParams, ShortConvWindow
from ..arithmetic import Approx
from ..inputs import Inexact, paired
from ..pairs import sequential
from ..pairs.sequential import output
from ..stored_state import stored_state


def _refuse_scales(contract: NumericContract) -> None:
    """Raises: Unsupported for a state that is stored as codes with scales."""
    if contract.state_scale is not None:
        raise Unsupported(
            "a short convolution has no bound for a state stored with scales: a new column changes the scale of the columns "
            "that are only copied, so each is rounded again at every token; store the columns in a float format"
        )


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
    _refuse_scales(contract)
    y, after = sequential.run(shortconv, S, window, params, contract, live, inexact)
    return y, after[:, -1]


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
    _refuse_scales(contract)
    S_0, seen, given = paired(contract, inexact, window, params, S=S)
    seen = masked(seen, np.einsum("btt -> bt", ancestors))
    u = stored_state(seen.B * seen.x)  # (1)
    columns: Any = Approx(_paths(S, u.value, ancestors), _paths(S_0.error, u.error, ancestors), contract)
    y: Any = shortconv.read(columns, seen.C.map(lambda a: a.reshape(columns.shape[:2])), given)  # (2) (3)
    return output(y.map(lambda a: a.reshape(window.x.shape)), None)


def _paths(S: Array, u: Array, ancestors: Ancestors) -> Array:
    """The w columns that every node reads along its path, row after row: (b t) d w; those of padding are its state's."""
    width, ext = S.shape[2] + 1, np.concatenate([S, u.transpose(0, 2, 1)], axis=2)
    at = [[np.concatenate([np.arange(width - 1), width - 1 + np.flatnonzero(seen)]) for seen in row] for row in ancestors]
    columns = np.array([[np.concatenate([[0], way])[-width:] for way in row] for row in at])
    found = np.take_along_axis(ext[:, None], columns[:, :, None, :], axis=3)
    return found.reshape(u.shape[0] * u.shape[1], u.shape[2], width)
