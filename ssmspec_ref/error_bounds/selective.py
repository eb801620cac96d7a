"""Bounds for the selective scan of Mamba-1: token by token, and as a scan in any association.

dt = softplus(dt_raw + dt_bias)                                                                 (1)
a  = exp(dt A)                                                                                  (2)
S' = a S + dt x B^T                                                                             (3)
y  = S' C + D x, then y silu(z)                                                                 (4)
y_t = sum_n C_tn (P_tn S0_n + sum_s L_ts P_tn / P_sn dt_s x_s B_sn) + D x_t                     (5)

In (5) P_t / P_s is the decay from s to t, computed as exp of a difference of running sums, or (in an associative scan) as a
product of up to t - s factors a. The order `associative` has the errors of the products. Those of `chunked` and `output_only`
are the sum of both, so either may be used; where exp has an absolute error, they include that of every factor.
"""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from .. import selective
from ..checks import checked
from ..contract import NumericContract
from ..records import masked
from ..selective import SelectiveParams, SelectiveWindow
from ..shapes import Ancestors, ChannelState, Mask
from .arithmetic import Approx, relative_error, sum_of_products, unit
from .functions import approximated, silu
from .inputs import Inexact, paired
from .pairs import sequential
from .pairs.sequential import output
from .windows import decays, in_chunks, products, scalings


@checked
def scan(
    S: ChannelState,
    window: SelectiveWindow,
    params: SelectiveParams,
    contract: NumericContract,
    live: Mask | None = None,
    inexact: Inexact = None,
) -> tuple[Approx, Approx]:
    """Outputs and final state of `selective.scan` with their bounds, in the contract's order of evaluation.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, ParameterError.
    """
    if contract.order == "sequential":
        y, after = states(S, window, params, contract, live, inexact)
        return y, after[:, -1]
    i = _inputs(S, window, params, contract, live, inexact)
    y, S_next = in_chunks(i, ("x", "dt", "B", "C"), lambda part, order: (_read(part, order), _advance(part, order)))
    return _gate(y, i, live), S_next


@checked
def states(
    S: ChannelState,
    window: SelectiveWindow,
    params: SelectiveParams,
    contract: NumericContract,
    live: Mask | None = None,
    inexact: Inexact = None,
) -> tuple[Approx, Approx]:
    """Outputs and the state after every token of `selective.states`, token by token: (1) to (4).

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, ParameterError.
    """
    return sequential.states(selective, S, window, params, contract, live, inexact)


@checked
def tree(
    S: ChannelState,
    window: SelectiveWindow,
    ancestors: Ancestors,
    params: SelectiveParams,
    contract: NumericContract,
    inexact: Inexact = None,
) -> Approx:
    """The output at every node of `selective_tree.scan` with its bound (5), in any order; at padding both are 0.

    It does not cover states that are stored after every token; use `scan` along the paths for that.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, ParameterError.
    """
    live = np.einsum("btt -> bt", ancestors)
    i = _inputs(S, window, params, contract, live, inexact)
    return _gate(_read(i, ancestors), i, live)


def _inputs(
    S: ChannelState,
    window: SelectiveWindow,
    params: SelectiveParams,
    contract: NumericContract,
    live: Mask | None,
    inexact: Inexact,
) -> SimpleNamespace:
    """The inputs as pairs, dt after (1); tokens that are not live are exactly 0."""
    S_0, seen, given = paired(contract, inexact, window, params, S=S)
    seen = seen if live is None else masked(seen, live)
    dt = selective.step_size(seen.dt, given)  # (1)
    dt = dt if live is None else masked(dt, live)
    return SimpleNamespace(S=S_0, x=seen.x, dt=dt, B=seen.B, C=seen.C, z=seen.z, A=given.A, D=given.D)


def _decays(i: SimpleNamespace, ancestors: Ancestors) -> tuple[Approx, Approx]:
    """The decays from the state and between tokens, as sums or as products of up to the path's length."""
    log, contract = i.dt[..., None] * i.A, i.x.contract
    from_state, between = decays(log, ancestors)
    if contract.order == "associative":
        return from_state, between
    if approximated(contract, "exp"):
        start, since = products(log, ancestors)
        return replace(from_state, error=from_state.error + start.error), replace(between, error=between.error + since.error)
    factors = ancestors.sum(axis=2)[..., None, None] * (relative_error(contract) + unit(contract))
    return (
        replace(from_state, error=from_state.error + np.expm1(factors) * from_state.size),
        replace(between, error=between.error + np.expm1(factors)[:, :, None] * between.size),
    )


def _read(i: SimpleNamespace, ancestors: Ancestors) -> Approx:
    """Equation (5) of the module."""
    from_state, between = _decays(i, ancestors)
    return sum_of_products(
        ("btn, btdn, bdn -> btd", i.C, from_state, i.S),
        ("btn, btjdn, bjd, bjd, bjn -> btd", i.C, between, i.dt, i.x, i.B),
        *([] if i.D is None else [("btd, d -> btd", i.x, i.D)]),
        matmuls=1,
        scaled=scalings(i.x),
    )


def _advance(i: SimpleNamespace, ancestors: Ancestors) -> Approx:
    from_state, between = _decays(i, ancestors)
    return sum_of_products(
        ("bdn, bdn -> bdn", from_state[:, -1], i.S),
        ("bjdn, bjd, bjd, bjn -> bdn", between[:, -1], i.dt, i.x, i.B),
        scaled=scalings(i.x),
    )


def _gate(y: Approx, i: SimpleNamespace, live: Mask | None) -> Approx:
    return output(y if i.z is None else y * silu(i.z), live)
