"""Bounds of retention, and of what stands around it in a layer."""

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np

from ssmspec_ref.contract import NumericContract
from ssmspec_ref.error_bounds.arithmetic import Approx, sum_of_products
from ssmspec_ref.error_bounds.functions import exp, silu
from ssmspec_ref.error_bounds.inputs import Inexact, appended, joined, lift, values
from ssmspec_ref.error_bounds.norms import linear
from ssmspec_ref.error_bounds.projections import cut
from ssmspec_ref.error_bounds.recurrences import Bounds
from ssmspec_ref.error_bounds.windows import chain, chunks, decays
from ssmspec_ref.shapes import Ancestors, Array, Mask

from .oracle import RetentionParams, RetentionWindow
from .oracle.layer import RetentionGates, RetentionLayer, RetentionMixer


def _inputs(
    S: Array, window: RetentionWindow, params: RetentionParams, contract: NumericContract, live: Mask | None, wrong: Inexact
) -> SimpleNamespace:
    """The inputs as pairs, A at every token; what is not live is 0 exactly."""
    i = lift(contract, wrong, window, params, S=S)
    keep = np.ones(window.v.shape[:2], bool) if live is None else live
    i.A = i.A.map(lambda a: np.broadcast_to(a, window.v.shape[:3])).where(keep[..., None])
    i.q, i.k, i.v = (x.where(keep[..., None, None]) for x in (i.q, i.k, i.v))
    return i


def scan(
    S: Array,
    window: RetentionWindow,
    params: RetentionParams,
    contract: NumericContract,
    live: Mask | None = None,
    inexact: Inexact = None,
) -> tuple[Approx, Approx]:
    """Outputs and final state with their bounds, in the contract's order of evaluation."""
    i, tokens = _inputs(S, window, params, contract, live, inexact), window.v.shape[1]
    S_next, outputs = i.S, []
    if contract.order == "sequential":
        a = exp(i.A, 0.0)
        for t in range(tokens):
            S_next = a[:, t, :, None, None] * S_next + i.k[:, t, :, :, None] * i.v[:, t, :, None]
            S_next = S_next.store(contract.state) if contract.stored_every_token else S_next
            outputs.append(sum_of_products(("bhkv, bhk -> bhv", S_next, i.q[:, t]), matmuls=1))
        return joined(outputs).store(contract.io), S_next.store(contract.state)
    for part in chunks(tokens, contract):
        p = SimpleNamespace(A=i.A[:, part], q=i.q[:, part], k=i.k[:, part], v=i.v[:, part], S=S_next)
        from_state, between = decays(p.A, chain(len(S), p.v.value.shape[1]))
        outputs.append(_read(p, from_state, between))
        S_next = sum_of_products(
            ("bh, bhkv -> bhkv", from_state[:, -1], p.S), ("bjh, bjhk, bjhv -> bhkv", between[:, -1], p.k, p.v), matmuls=1
        )
        S_next = S_next.store(contract.state) if contract.stored_every_token else S_next
    return appended(outputs).store(contract.io), S_next.store(contract.state)


def tree(
    S: Array,
    window: RetentionWindow,
    ancestors: Ancestors,
    params: RetentionParams,
    contract: NumericContract,
    inexact: Inexact = None,
) -> Approx:
    """The output at every node with its bound, in whatever order."""
    i = _inputs(S, window, params, contract, np.einsum("btt -> bt", ancestors), inexact)
    return _read(i, *decays(i.A, ancestors)).store(contract.io)


def _read(i: SimpleNamespace, from_state: Approx, between: Approx) -> Approx:
    return sum_of_products(
        ("bth, bthk, bhkv -> bthv", from_state, i.q, i.S),
        ("btjh, bthk, bjhk, bjhv -> bthv", between, i.q, i.k, i.v),
        matmuls=2,
    )


def project(mixer: RetentionMixer, c: Approx, gates: SimpleNamespace) -> tuple[Any, dict[str, Array]]:
    return values(RetentionWindow, **cut(mixer, c, RetentionGates(), "q", "k", "v"))


def inputs(x: Approx, layer: RetentionLayer) -> tuple[Approx, Any, dict[str, Array], Approx]:
    pre, z = (linear(x, projection).store(x.contract.io) for projection in (layer.qkv_proj, layer.z_proj))
    return pre, RetentionGates(), {}, z


def output(y: Approx, gate: Approx, layer: RetentionLayer) -> Approx:
    inner = y.map(lambda a: a.reshape(gate.value.shape)) * silu(gate)
    return linear(inner.store(y.contract.io), layer.out_proj)


KIND = Bounds("retention", sys.modules[__name__], sys.modules[__name__])  # type: ignore[arg-type]
