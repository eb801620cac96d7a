"""Bounds for the selective scan of Mamba-1: token by token, and as a scan in any association.

dt = softplus(dt_raw + dt_bias)                                                                 (1)
a  = exp(dt A)                                                                                  (2)
S' = a S + dt x B^T                                                                             (3)
y  = S' C + D x, then y silu(z)                                                                 (4)
y_t = sum_n C_tn (P_tn S0_n + sum_s L_ts P_tn / P_sn dt_s x_s B_sn) + D x_t                     (5)

In (5) P_t / P_s is the decay from s to t, computed as exp of a difference of running sums, or (in an associative scan) as a
product of up to t - s factors a. The bound is the sum of both errors, so either may be used.
"""

from types import SimpleNamespace

import numpy as np

from ..checks import checked
from ..contract import NumericContract
from ..selective import SelectiveParams, SelectiveWindow
from ..shapes import Ancestors, ChannelState, Mask
from .arithmetic import Approx, relative_error, sum_of_products, unit
from .functions import exp, silu, softplus
from .inputs import Inexact, appended, joined, lift
from .stored_state import stored_state
from .windows import chain, chunks, decays


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
    S_next, outputs = i.S, []
    for cut in chunks(window.x.shape[1], contract):
        part = SimpleNamespace(x=i.x[:, cut], dt=i.dt[:, cut], B=i.B[:, cut], C=i.C[:, cut], A=i.A, D=i.D, S=S_next)
        mask = chain(window.x.shape[0], part.x.value.shape[1])
        outputs.append(_read(part, mask))
        S_next = _advance(part, mask)
        S_next = stored_state(S_next) if contract.stored_every_token else S_next
    S_next = S_next if contract.stored_every_token else stored_state(S_next)
    return _gate(appended(outputs), i, live), S_next


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
    i = _inputs(S, window, params, contract, live, inexact)
    a = exp(i.dt[..., None] * i.A, 0.0)  # (2)
    S_next, outputs, after = i.S, [], []
    for t in range(window.x.shape[1]):
        update = (i.dt[:, t] * i.x[:, t])[..., None] * i.B[:, t, None]
        S_next = a[:, t] * S_next + update  # (3)
        S_next = stored_state(S_next) if contract.stored_every_token else S_next
        skip = [] if i.D is None else [("bd, d -> bd", i.x[:, t], i.D)]
        outputs.append(sum_of_products(("bdn, bn -> bd", S_next, i.C[:, t]), *skip, matmuls=1))  # (4)
        after.append(S_next)
    kept = joined(after)
    return _gate(joined(outputs), i, live), kept if contract.stored_every_token else stored_state(kept)


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
    i = lift(contract, inexact, window, params, S=S)
    keep = np.ones(window.x.shape[:2], bool)[..., None] if live is None else live[..., None]
    i.x, i.dt, i.B, i.C = (p.where(keep) for p in (i.x, i.dt, i.B, i.C))
    if i.dt_bias is not None:
        i.dt = i.dt + i.dt_bias
    i.dt = (softplus(i.dt) if params.dt_softplus else i.dt).where(keep)  # (1)
    return i


def _decays(i: SimpleNamespace, ancestors: Ancestors) -> tuple[Approx, Approx]:
    """The decays from the state and between tokens, as sums or as products of up to the path's length."""
    from_state, between = decays(i.dt[..., None] * i.A, ancestors)
    factors = ancestors.sum(axis=2)[..., None, None] * (relative_error(i.x.contract) + unit(i.x.contract))
    return (
        Approx(from_state.value, from_state.error + np.expm1(factors) * from_state.size, i.x.contract),
        Approx(between.value, between.error + np.expm1(factors)[:, :, None] * between.size, i.x.contract),
    )


def _read(i: SimpleNamespace, ancestors: Ancestors) -> Approx:
    """Equation (5) of the module."""
    from_state, between = _decays(i, ancestors)
    return sum_of_products(
        ("btn, btdn, bdn -> btd", i.C, from_state, i.S),
        ("btn, btjdn, bjd, bjd, bjn -> btd", i.C, between, i.dt, i.x, i.B),
        *([] if i.D is None else [("btd, d -> btd", i.x, i.D)]),
        matmuls=1,
    )


def _advance(i: SimpleNamespace, ancestors: Ancestors) -> Approx:
    from_state, between = _decays(i, ancestors)
    return sum_of_products(
        ("bdn, bdn -> bdn", from_state[:, -1], i.S),
        ("bjdn, bjd, bjd, bjn -> bdn", between[:, -1], i.dt, i.x, i.B),
    )


def _gate(y: Approx, i: SimpleNamespace, live: Mask | None) -> Approx:
    y = y if i.z is None else y * silu(i.z)
    y = y.store(y.contract.io)
    return y if live is None else y.where(live[..., None])
