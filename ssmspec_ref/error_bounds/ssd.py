"""Bounds for SSD: token by token, in chunks, and from a checkpoint without forming the states.

dt  = clip(softplus(dt_raw + dt_bias), dt_limit)   (1)
a   = exp(dt A)                                    (2)
S'  = a S + dt x B^T                               (3)
y   = S' C + D x, then y silu(z)                   (4)

In chunks and from a checkpoint, with cs the running sum of dt A from the chunk's first token, and L_ts for s on t's path:

y_t = exp(cs_t) C_t S0 + sum_s L_ts exp(cs_t - cs_s) (C_t B_s) dt_s x_s + D x_t                       (5)
S_T = exp(cs_T) S0 + sum_s exp(cs_T - cs_s) dt_s x_s B_s^T                                            (6)

cs is a sum of numbers of one sign with an error of gamma_t sum |dt A|, and the difference of two of them has both errors,
however small it is. In the order `associative` exp(cs_t - cs_s) is a product of decays instead
(`windows.products`). In (5) and (6) every term is a product of up to six factors, and the bound covers any association:
scores first, states first, or decays folded into either operand.
"""

from types import SimpleNamespace

import numpy as np

from .. import ssd
from ..checks import checked
from ..contract import NumericContract
from ..records import masked
from ..shapes import Ancestors, Mask, State
from ..ssd import SSDParams, SSDWindow
from .arithmetic import Approx, sum_of_products
from .functions import silu
from .inputs import Inexact, paired
from .pairs import sequential
from .pairs.sequential import output
from .windows import decays, in_chunks, scalings


@checked
def scan(
    S: State,
    window: SSDWindow,
    params: SSDParams,
    contract: NumericContract,
    live: Mask | None = None,
    inexact: Inexact = None,
) -> tuple[Approx, Approx]:
    """Outputs and final state of `ssd.scan` with their bounds, in the contract's order of evaluation.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, ParameterError.
    Source: equations (1) to (6) in the arithmetic of `arithmetic`.
    """
    if contract.order == "sequential":
        y, after = states(S, window, params, contract, live, inexact)
        return y, after[:, -1]
    i = _inputs(S, window, params, contract, live, inexact)
    y, S_next = in_chunks(i, ("x", "dt", "B", "C"), lambda part, order: (_read(part, order), _advance(part, order)))
    return _gate(y, i, live), S_next


@checked
def states(
    S: State,
    window: SSDWindow,
    params: SSDParams,
    contract: NumericContract,
    live: Mask | None = None,
    inexact: Inexact = None,
) -> tuple[Approx, Approx]:
    """Outputs and the state after every token of `ssd.states`, token by token: (1) to (4).

    If the state is not stored after every token, each state returned includes the rounding of storing it.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, ParameterError.
    """
    return sequential.states(ssd, S, window, params, contract, live, inexact)


@checked
def tree(
    S: State,
    window: SSDWindow,
    ancestors: Ancestors,
    params: SSDParams,
    contract: NumericContract,
    inexact: Inexact = None,
) -> Approx:
    """The output at every node of `ssd_tree.scan` with its bound (5), in any order; at padding both are 0.

    It does not cover an evaluation of paths token by token, whose decays are products, but in the order `associative`; use
    `scan` along them for that.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, ParameterError.
    """
    live = np.einsum("btt -> bt", ancestors)
    i = _inputs(S, window, params, contract, live, inexact)
    return _gate(_read(i, ancestors), i, live)


def _inputs(
    S: State, window: SSDWindow, params: SSDParams, contract: NumericContract, live: Mask | None, inexact: Inexact
) -> SimpleNamespace:
    """The inputs as pairs, dt after (1), B and C repeated for each head; tokens that are not live are exactly 0."""
    S_0, seen, given = paired(contract, inexact, window, params, S=S)
    seen = seen if live is None else masked(seen, live)
    dt = ssd.step_size(seen.dt, given)  # (1)
    dt = dt if live is None else masked(dt, live)
    B, C = (ssd.per_head(x, window.x.shape[2]) for x in (seen.B, seen.C))
    return SimpleNamespace(S=S_0, x=seen.x, dt=dt, B=B, C=C, z=seen.z, A=given.A, D=given.D)


def _skip(axes: str, i: SimpleNamespace, x: Approx) -> list[tuple[str, Approx, Approx]]:
    if i.D is None:
        return []
    return [(f"{axes}, {'h' if i.D.value.ndim == 1 else 'hp'} -> {axes}", x, i.D)]


def _read(i: SimpleNamespace, ancestors: Ancestors) -> Approx:
    """(5), with scores and values as two consecutive matrix products."""
    from_state, between = decays(i.dt * i.A, ancestors)
    return sum_of_products(
        ("bth, bthn, bhpn -> bthp", from_state, i.C, i.S),
        ("btjh, bthn, bjhn, bjh, bjhp -> bthp", between, i.C, i.B, i.dt, i.x),
        *_skip("bthp", i, i.x),
        matmuls=2,
        scaled=scalings(i.x),
    )


def _advance(i: SimpleNamespace, ancestors: Ancestors) -> Approx:
    """(6), a matrix product over the tokens."""
    from_state, between = decays(i.dt * i.A, ancestors)
    return sum_of_products(
        ("bh, bhpn -> bhpn", from_state[:, -1], i.S),
        ("bjh, bjh, bjhp, bjhn -> bhpn", between[:, -1], i.dt, i.x, i.B),
        matmuls=1,
        scaled=scalings(i.x),
    )


def _gate(y: Approx, i: SimpleNamespace, live: Mask | None) -> Approx:
    return output(y if i.z is None else y * silu(i.z), live)
