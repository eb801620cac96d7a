"""Bounds for Mamba-3: token by token, in chunks, and from a checkpoint; those of its projections are in `around`.

angle   th^ = th + sum dl: what is carried, the error of each dl, and 3 u R a token (the sum, and 2 pi floor(th / 2 pi)); R is
        2 pi + |th| + |dl|, or with running sums all of them in the chunk, and then K u R more for K tokens        (1)
stored  an angle within its error of 0 or 2 pi may be stored at either end: 2 pi                                   (2)
k, q    norm, bias, then a rotation by a computed cosine and sine, rounded to the output format                    (3)
S'      = a S + sum_r (a dt (1 - l)) v-_r k-_r^T + sum_r (dt l) v_r k_r^T: one sum, in any order and association   (4)
o       in chunks, from a checkpoint and by an associative scan as SSD, with two writes for a token, in any order  (5)

The error of an angle enters through |cos a - cos b| <= |a - b| alone, so that turns, which (2) adds, never reach a key. A
state is one array in one format: where a contract stores it in bf16, the angles are in bf16, too, and the bound says how
little that leaves of them.
Source: equations of `mamba3` in the arithmetic of `arithmetic`; Higham, section 3.1.
"""

from functools import partial
from types import SimpleNamespace

import numpy as np

from ...contract import NumericContract
from ...errors import Unsupported
from ...mamba3 import TURN, Mamba3Params, Mamba3Window, per_head, pieces_of
from ...shapes import Ancestors, Array, Mask
from ..arithmetic import Approx, constant, sum_of_products, unit
from ..functions import clip, cos, exp, sigmoid, silu, sin, softplus, tanh
from ..inputs import Inexact, appended, joined, lift
from ..norms import rms
from ..stored_state import stored_state
from ..windows import chain, chunks, decays, scalings


def scan(
    S: Array,
    window: Mamba3Window,
    params: Mamba3Params,
    contract: NumericContract,
    live: Mask | None = None,
    inexact: Inexact = None,
) -> tuple[Approx, Approx]:
    """Outputs and final state of `mamba3.scan` with their bounds, in the contract's order of evaluation.

    Raises: ParameterError, ShapeMismatch, Unsupported for a state that is stored with scales.
    """
    tokens = window.x.shape[1]
    keep = np.ones(window.x.shape[:2], bool) if live is None else live
    i = _inputs(S, window, params, contract, keep, inexact)
    order = chain(len(keep), tokens) & keep[:, None] & keep[:, :, None]
    _turned(i, order, params, contract.order == "sequential")
    run = _stepped(i, keep) if contract.order == "sequential" else _chunked(i, keep)
    o, S_next = run
    return _finish(o, i).where(keep[:, :, None, None]), _left(i, stored_state(S_next), keep)


def tree(
    S: Array,
    window: Mamba3Window,
    ancestors: Ancestors,
    params: Mamba3Params,
    contract: NumericContract,
    inexact: Inexact = None,
) -> Approx:
    """The output at every node of `mamba3.tree.scan` with its bound (5); at padding both are 0.

    Raises: as `scan`.
    """
    keep = np.einsum("btt -> bt", ancestors)
    i = _inputs(S, window, params, contract, keep, inexact)
    _turned(i, ancestors, params, False)
    return _finish(_read(i, i.S, slice(None), ancestors), i).where(keep[:, :, None, None])


def _inputs(
    S: Array, window: Mamba3Window, params: Mamba3Params, contract: NumericContract, keep: Mask, wrong: Inexact
) -> SimpleNamespace:
    """The inputs as pairs, up to the rotation; weights, increments and decays of tokens that are not live are exactly 0."""
    if contract.state_scale is not None:
        raise Unsupported(
            "Mamba-3 has no bound for a state stored with scales: angles, keys and values would share the scales of S; "
            "store the state in a float format"
        )
    i = lift(contract, wrong, window, params, S=S)
    held, wrong_by = (pieces_of(a, window.x.shape[3], window.angle.shape[2], params) for a in (i.S.value, i.S.error))
    for name, piece in (("S", "S"), ("th", "angle"), ("key", "key"), ("value", "value")):
        setattr(i, name, Approx(getattr(held, piece), getattr(wrong_by, piece), contract))
    over, heads = keep[:, :, None], window.x.shape[2]
    dt = softplus(i.dt.where(over) + i.dt_bias)
    rate = clip(softplus(i.A.where(over)), params.A_floor, np.inf)
    i.ld, share = (-(dt * rate)).where(over), sigmoid(i.trap.where(over))
    i.own, i.before = (dt * share).where(over), (dt * (1 - share)).where(over)
    i.dl = ((tanh(i.angle.where(over)) * constant(np.pi, contract))[:, :, None] * dt[..., None]).where(over[..., None])
    for name in ("B", "C"):
        vectors, scale = getattr(i, name).where(keep[:, :, None, None, None]), getattr(params, f"{name}_norm")
        unit_length = rms(vectors, scale, params.eps).store(contract.io)
        setattr(i, name, unit_length.map(partial(per_head, heads=heads)) + getattr(i, f"{name}_bias"))
    i.x = i.x.where(keep[:, :, None, None])
    i.v, i.v_before = (_values(a, i) for a in (i.x, i.value))
    return i


def _values(x: Approx, i: SimpleNamespace) -> Approx:
    wide = x.map(lambda a: np.repeat(a[..., None, :], i.B.value.shape[-2], axis=-2))
    return wide if i.up is None else wide * i.up


def _turned(i: SimpleNamespace, order: Ancestors, params: Mamba3Params, stepped: bool) -> None:
    """Angles (1), keys and queries (3), and what every token reads of the one before it on its path."""
    u, along = unit(i.dl.contract), order.astype(float)
    size = TURN + np.abs(i.th.value)[:, None] + i.dl.size
    if not stepped:  # every sum may contain all tokens of the path
        size = TURN + np.abs(i.th.value)[:, None] + np.einsum("btj, bjhf -> bthf", along, i.dl.size)
        own = along.sum(axis=2)[:, :, None, None] * u * size
    else:
        own = np.zeros(1)
    value = i.th.value[:, None] + np.einsum("btj, bjhf -> bthf", along, i.dl.value)
    error = i.th.error[:, None] + np.einsum("btj, bjhf -> bthf", along, i.dl.error + 3 * u * size) + own
    if stepped and i.dl.contract.stored_every_token:
        stored = stored_state(Approx(np.full_like(value, TURN), np.zeros_like(value), i.dl.contract)).error
        error = error + np.einsum("btj, bjhf -> bthf", along, stored)
    i.angle = Approx(value, error, i.dl.contract)
    i.k, i.q = (_rotated(a, i.angle, params).store(a.contract.io) for a in (i.B, i.C))
    i.parents = np.where(np.tril(order, -1), np.arange(order.shape[1]), -1).max(axis=2)
    kept = stored_state(i.k) if stepped and i.k.contract.stored_every_token else i.k
    i.k_par, i.v_par = _behind(kept, i.key, i.parents), _behind(i.v, i.v_before, i.parents)


def _rotated(x: Approx, angle: Approx, params: Mamba3Params) -> Approx:
    """`mamba3.turn` of pairs (.. h r n) by angles (.. h f)."""
    wide = angle[..., None, :]
    c, s = cos(wide), sin(wide)
    first, second = params.partners(angle.value.shape[-1])
    a, b = x[..., first], x[..., second]
    value, error = x.value.copy(), x.error.copy()
    for place, turned in ((first, a * c - b * s), (second, a * s + b * c)):
        value[..., place], error[..., place] = turned.value, turned.error
    return Approx(value, error, x.contract)


def _behind(nodes: Approx, state: Approx, parents: Array) -> Approx:
    """What every token finds of the one before it: an earlier token's, or the state's."""
    at = np.maximum(parents, 0).reshape(parents.shape + (1,) * (nodes.value.ndim - 2))
    root = (parents < 0).reshape(at.shape)

    def taken(a: Array, b: Array) -> Array:
        return np.where(root, b[:, None], np.take_along_axis(a, at, axis=1))

    return Approx(taken(nodes.value, state.value), taken(nodes.error, state.error), nodes.contract)


def _stepped(i: SimpleNamespace, keep: Mask) -> tuple[Approx, Approx]:
    """o and the last S, token by token (4)."""
    a, S, outputs = exp(i.ld, 0.0), i.S, []
    for t in range(keep.shape[1]):
        after = sum_of_products(
            ("bh, bhpn -> bhpn", a[:, t], S),
            ("bh, bh, bhrp, bhrn -> bhpn", a[:, t], i.before[:, t], i.v_par[:, t], i.k_par[:, t]),
            ("bh, bhrp, bhrn -> bhpn", i.own[:, t], i.v[:, t], i.k[:, t]),
        )
        after = stored_state(after) if S.contract.stored_every_token else after
        on = keep[:, t, None, None, None]
        S = Approx(np.where(on, after.value, S.value), np.where(on, after.error, S.error), S.contract)
        outputs.append(sum_of_products(("bhpn, bhrn -> bhrp", S, i.q[:, t]), *_skip("bhrp", i, i.v[:, t]), matmuls=1))
    return joined(outputs), S


def _chunked(i: SimpleNamespace, keep: Mask) -> tuple[Approx, Approx]:
    """o and the last S, chunk by chunk (5)."""
    S, outputs = i.S, []
    for cut in chunks(keep.shape[1], i.ld.contract):
        order = chain(len(keep), keep[:, cut].shape[1])
        outputs.append(_read(i, S, cut, order))
        from_state, between = (pair[:, -1] for pair in decays(i.ld[:, cut], order))
        a = exp(i.ld[:, cut], 0.0)
        S = sum_of_products(
            ("bh, bhpn -> bhpn", from_state, S),
            ("bjh, bjh, bjh, bjhrp, bjhrn -> bhpn", between, a, i.before[:, cut], i.v_par[:, cut], i.k_par[:, cut]),
            ("bjh, bjh, bjhrp, bjhrn -> bhpn", between, i.own[:, cut], i.v[:, cut], i.k[:, cut]),
            matmuls=1,
            scaled=scalings(i.ld[:, cut]),
        )
        S = stored_state(S) if S.contract.stored_every_token else S
    return appended(outputs), S


def _read(i: SimpleNamespace, S: Approx, cut: slice, order: Ancestors) -> Approx:
    """o of some tokens from the state before them (5), with scores and values as two consecutive matrix products."""
    from_state, between = decays(i.ld[:, cut], order)
    q, k, v, a = i.q[:, cut], i.k[:, cut], i.v[:, cut], exp(i.ld[:, cut], 0.0)
    k_par, v_par, before, own = i.k_par[:, cut], i.v_par[:, cut], i.before[:, cut], i.own[:, cut]
    return sum_of_products(
        ("bth, bthrn, bhpn -> bthrp", from_state, q, S),
        ("btjh, bthrn, bjhsn, bjh, bjh, bjhsp -> bthrp", between, q, k_par, a, before, v_par),
        ("btjh, bthrn, bjhsn, bjh, bjhsp -> bthrp", between, q, k, own, v),
        *_skip("bthrp", i, v),
        matmuls=2,
        scaled=scalings(i.ld[:, cut]),
    )


def _skip(axes: str, i: SimpleNamespace, v: Approx) -> list[tuple[str, Approx, Approx]]:
    return [] if i.D is None else [(f"{axes}, h -> {axes}", v, i.D)]


def _finish(o: Approx, i: SimpleNamespace) -> Approx:
    """The gate and the sum over the ranks."""
    if i.z is not None:
        z = i.z.map(lambda a: np.repeat(a[..., None, :], o.value.shape[-2], axis=-2))
        o = o * silu(z if i.gate is None else z * i.gate)
    one = ("bthrp -> bthp", o) if i.down is None else ("bthrp, hrp -> bthp", o, i.down)
    return sum_of_products(one).store(o.contract.io)


def _left(i: SimpleNamespace, S: Approx, keep: Mask) -> Approx:
    """The four pieces after the last live token, packed; of a row without one those that it had."""
    last: Array = np.where(keep, np.arange(keep.shape[1]), -1).max(axis=1)[:, None]
    angle, key, value = (_behind(run, state, last)[:, 0] for run, state in ((i.angle, i.th), (i.k, i.key), (i.x, i.value)))
    within = np.mod(angle.value, TURN)
    off = stored_state(Approx(within, angle.error, angle.contract)).error
    off = np.where((within - off < 0) | (within + off >= TURN), TURN + off, off)  # (2)
    on = last[:, :, None] >= 0
    th = Approx(np.where(on, within, angle.value), np.where(on, off, angle.error), angle.contract)
    key, value = (
        Approx(a.value, np.where(on.reshape((-1,) + (1,) * (a.value.ndim - 1)), stored_state(a).error, a.error), a.contract)
        for a in (key, value)
    )
    flat = [p.map(lambda a: a.reshape(*a.shape[:2], -1)) for p in (S, th, key, value)]
    whole, wrong_by = (np.concatenate([getattr(p, side) for p in flat], axis=2) for side in ("value", "error"))
    return Approx(whole, wrong_by, S.contract)
