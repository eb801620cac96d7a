"""The bound of a state that is stored in a format that loses bits (`state_format`).

v is the exact value, e the bound on what was computed for it, both before the state is stored. With M the largest |v| + e of
the block, r the relative error of a division and u the roundoff of the arithmetic:

eta = max e over the block / m_B + 3 r + 2 u     relative error of the scale, by one division or by two, and of x     (1)
|stored - v| <= e + h s_B d(x) (1 + eta) + eta (|v| + e),   x = (|v| + e) (1 + eta) / s_B                            (2)

d is the distance of two neighbouring numbers of the format; h is 1/2 to the nearest number and 1 at random. What is computed
for x is wrong by eta of it, and so is a product of a code and a scale. Without scales eta is 0. Where m_B is no larger than
its own error, or its scale is below the normal range, no scale is known, and both sides are at most M: 2 M. An exact 0
stays 0. (2) is e plus what rounding adds, and that does not fall as e grows: bounds that propagate e by other means may take
the second part alone (`delta`, equation 9).

With error feedback in steps of k, as a share of the scale (2^-4 for int4, 2^-8 for int8, u / 2 of a float format, whose steps
are no finer than those of its smallest normal number, w),

|read - v| <= e + (k s_B + w) (1 + eta) + eta (|v| + e)                                                              (3)

A value that is stored at random lies within (2) at its two neighbours, and at no other number of the format unless it is
within e of one (`conformance.judge.rounding` holds it to these two).
"""

from dataclasses import replace

import numpy as np

from .. import state_format
from ..contract import LARGEST, LARGEST_CODE, SMALLEST_NORMAL, UNIT_ROUNDOFF, NumericContract
from ..shapes import Array
from .arithmetic import Approx, relative_error, unit


def stored_state(S: Approx, axis: int = -1) -> Approx:
    """The state as it is read after it was stored in the contract's format; `axis` is the axis of the blocks.

    The error is inf if a float format without scales may overflow.
    """
    contract = S.contract
    plain = contract.state not in LARGEST_CODE and contract.state_rounding == "nearest"
    if plain:
        return S.store(contract.state)  # type: ignore[arg-type]  # the formats without codes
    v, e = S.value, S.error
    eta, unknown = scale_error(v, e, contract, axis)
    size, s = np.abs(v) + e, state_format.scales(v, contract, axis)
    if contract.error_feedback is not None:
        share, grid = feedback_step(contract)
        added = share * s + grid  # (3)
    else:
        x = state_format.within(size * (1 + eta) / s, contract.state)
        added = (1.0 if contract.state_rounding == "stochastic" else 0.5) * s * state_format.step(x, contract.state)  # (2)
    error = np.where(size > 0, e + added * (1 + eta) + eta * size, 0.0)
    error = np.where(unknown, 2 * state_format.largest(size, contract, axis), error)
    if contract.state_scale is None:
        error = np.where(np.abs(v) + error > LARGEST[contract.state], np.inf, error)
    return replace(S, error=error)


def scale_error(v: Array, e: Array, contract: NumericContract, axis: int = -1) -> tuple[Array, Array]:
    """eta (1), and where no scale is known although the block is not exactly 0."""
    if contract.state_scale is None:
        return np.zeros(v.shape), np.zeros(v.shape, dtype=bool)
    m, worst = (state_format.largest(a, contract, axis) for a in (np.abs(v), e))
    unknown = (m <= worst) | (m / LARGEST_CODE[contract.state] < SMALLEST_NORMAL["fp32"])
    eta = np.divide(worst, m, out=np.zeros(m.shape), where=~unknown)
    eta = eta + 3 * relative_error(contract) + 2 * max(unit(contract), UNIT_ROUNDOFF["fp32"])
    return eta, unknown & (m + worst > 0)


def feedback_step(contract: NumericContract) -> tuple[float, float]:
    """k and w of (3): the largest error of the residual, as a share of the scale and absolute."""
    form = contract.error_feedback or "int4"
    if form in state_format.FEEDBACK_BITS:
        return 2.0 ** -state_format.FEEDBACK_BITS[form], 0.0
    return UNIT_ROUNDOFF[form] / 2, UNIT_ROUNDOFF[form] * SMALLEST_NORMAL[form]
