"""Mamba-3: what is its own; its laws are those of `test_recurrences` and of the tests of trees and paths."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from ssmspec_ref import error_bounds, mamba3
from ssmspec_ref.contract import NumericContract
from ssmspec_ref.errors import ParameterError, ShapeMismatch, Unsupported
from ssmspec_ref.layers import layer, mixer
from ssmspec_ref.layers.norm import GatedNorm
from ssmspec_ref.layers.recurrences import RECURRENCES
from ssmspec_ref.mamba3 import Mamba3Params, Mamba3Window, Pieces, buffered, chunked, packed, pieces_of, turn, width
from ssmspec_ref.records import arrays, each
from ssmspec_ref.shapes import Array
from tests.families import Sizes, mamba3_case
from tests.low_precision import rounded, stored

from .refusals import refused

P, N, F = 3, 8, 2
SIZES = Sizes(b=3, t=8, h=4, g=2, p=P, n=N // 2, k=F, r=1)
CLOSE = {"rtol": 1e-11, "atol": 1e-11}
"""Sums of a few hundred terms of size up to 100."""


def test_a_step_can_be_worked_out_by_hand() -> None:
    """One head, two states: dt = 2, l = 1/2, no decay but exp(-2 log 2) = 1/4, and a turn by 0 or by a quarter."""
    one, none = np.ones((1, 1)), np.zeros((1, 1))
    params = Mamba3Params(np.ones(2), np.ones(2), *np.zeros((2, 1, 1, 2)), np.zeros(1), A_floor=0.0, eps=0.0)
    raw_dt, raw_A = np.log(np.expm1(2.0)), 0.0  # softplus(0) = log 2
    token = mamba3.Mamba3Token(
        np.full((1, 1, 1), 3.0), raw_dt * one, raw_A * one, none, np.arctanh(0.25) * one,
        np.array([[[[2.0, 0.0]]]]), np.array([[[[0.0, 5.0]]]]),
    )  # fmt: skip
    state = Pieces(np.array([[[[4.0, 8.0]]]]), np.zeros((1, 1, 1)), np.array([[[[1.0, 0.0]]]]), np.full((1, 1, 1), 10.0))
    y, S = mamba3.step(packed(state), token, params)
    left = pieces_of(S, 1, 1, params)
    root = np.sqrt(2.0)  # an RMS norm of (2, 0) is (sqrt 2, 0); the angle is pi 2 / 4, a quarter turn
    assert_allclose(left.angle, np.full((1, 1, 1), np.pi / 2))
    assert_allclose(left.key[0, 0, 0], [0.0, root], atol=1e-15)
    assert_allclose(left.value, np.full((1, 1, 1), 3.0))
    assert_allclose(left.S[0, 0, 0], [(4 + 10) / 4, 8 / 4 + 3 * root])
    assert_allclose(y[0, 0, 0], -root * (4 + 10) / 4)  # the query (0, sqrt 2) turned to (- sqrt 2, 0)


def test_neighbours_and_halves_turn_different_channels() -> None:
    x, quarter = np.arange(1.0, 9.0), np.full(2, np.pi / 2)
    for pairs, wanted in (("neighbours", [-2, 1, -4, 3, 5, 6, 7, 8]), ("halves", [-5, -6, 3, 4, 1, 2, 7, 8])):
        assert_allclose(turn(x, quarter, mamba3_case(1, SIZES, "mamba", pairs=pairs)[2]), wanted)


def test_a_constant_angle_of_one_turn_or_none_is_no_rotation() -> None:
    """What is read depends on differences of angles: two starts that differ by any angle for keys and queries alike agree
    from a state of zero on."""
    S, window, params = mamba3_case(5, SIZES, "mamba")
    zero = np.zeros_like(S)
    moved = packed(replace(pieces_of(zero, P, F, params), angle=np.full((3, 4, F), 1.234)))
    assert S.shape[2] == width(P, N, F, 1)
    assert_allclose(mamba3.scan(zero, window, params)[0], mamba3.scan(moved, window, params)[0], **CLOSE)


def test_an_entry_of_a_ring_depends_on_no_state() -> None:
    """Keys are stored unturned: the entries of the second half of a window are those of a window of it alone."""
    _, window, params = mamba3_case(20, SIZES, "mamba")
    late = each(lambda a: a[:, 4:], window)
    for one, other in zip(arrays(buffered.entries(window, params)), arrays(buffered.entries(late, params)), strict=True):
        assert_array_equal(one[:, 4:], other)


@pytest.mark.parametrize(("form", "order"), [("fp32", "sequential"), ("bf16", "sequential"), ("fp32", "associative")])
@pytest.mark.parametrize(("rank", "pairs", "angles"), [(1, "neighbours", 2), (2, "halves", 4)])
def test_bounds_hold_for_a_rewriting_in_single_precision(form: Any, order: Any, rank: int, pairs: str, angles: int) -> None:
    """The same equations in float32, with a state in fp32 or bf16 between two tokens: within the bound everywhere, and not
    within a thousandth of it. Token by token is one association of products of decays."""
    contract = NumericContract(state=form, order=order, stored_every_token=True)
    S, window, params = mamba3_case(22, replace(SIZES, r=rank, k=angles), "mamba", pairs=pairs)
    S, window, params = stored(S, form), stored(window), stored(replace(params, A_floor=0.375))
    held, outputs = S, []
    for t in range(8):
        y, after = rewritten(held, window.token(t), params)
        held = rounded(after, form).astype(np.float64)
        outputs.append(y)
    bound, left = error_bounds.mamba3.scan(S, window, params, contract)
    for came, want in ((np.stack(outputs, axis=1), bound), (held, left)):
        assert 1e-3 < error_bounds.compare(came, want.value, want.error).utilisation <= 1


def rewritten(S: Array, token: Any, params: Mamba3Params) -> tuple[Array, Array]:
    """One token in float32, written apart from the reference: explicit loops over heads and ranks."""
    f = np.float32
    S32, c = S.astype(f), {name: None if a is None else a.astype(f) for name, a in vars(token).items()}
    p = {name: a.astype(f) if isinstance(a, np.ndarray) else a for name, a in vars(params).items()}
    rank, angles, out, new = params.rank, token.angle.shape[-1], np.zeros(token.x.shape, f), np.zeros_like(S32)
    for b, h in np.ndindex(token.dt.shape):
        g, cuts = h // 2, np.cumsum([P * N, angles, rank * N])
        s, th, key, value = np.split(S32[b, h], cuts)
        dt = np.log1p(np.exp(c["dt"][b, h] + p["dt_bias"][h]))
        a = np.exp(-dt * max(np.log1p(np.exp(c["A"][b, h])), f(params.A_floor)))
        share = f(1) / (f(1) + np.exp(-c["trap"][b, h]))
        th = th + f(np.pi) * dt * np.tanh(c["angle"][b])
        th = th - f(2 * np.pi) * np.floor(th / f(2 * np.pi))
        keys, ranks = [], range(rank)
        s = a * s.reshape(P, N)
        for r in ranks:
            v = value * (p["up"][h, r] if rank > 1 else f(1))
            s = s + a * dt * (f(1) - share) * np.outer(v, key.reshape(rank, N)[r])
        for r in ranks:
            keys.append(turned32(unit32(c["B"][b, r, g], p["B_norm"], params.eps) + p["B_bias"][h, r], th, params.pairs))
            s = s + dt * share * np.outer(c["x"][b, h] * (p["up"][h, r] if rank > 1 else f(1)), keys[-1])
        for r in ranks:
            q = turned32(unit32(c["C"][b, r, g], p["C_norm"], params.eps) + p["C_bias"][h, r], th, params.pairs)
            o = s @ q + p["D"][h] * c["x"][b, h] * (p["up"][h, r] if rank > 1 else f(1))
            z = c["z"][b, h] * (p["gate"][h, r] if rank > 1 else f(1))
            out[b, h] += o * z / (f(1) + np.exp(-z)) * (p["down"][h, r] if rank > 1 else f(1))
        new[b, h] = np.concatenate([s.ravel(), th, np.concatenate(keys), c["x"][b, h]])
    return out, new


def unit32(x: Array, weight: Array, eps: float) -> Array:
    return x / np.sqrt(np.mean(x * x) + np.float32(eps)) * weight


def turned32(x: Array, angle: Array, pairs: str) -> Array:
    out = x.copy()
    for i, th in enumerate(angle):
        one, two = (2 * i, 2 * i + 1) if pairs == "neighbours" else (i, i + N // 2)
        out[one], out[two] = x[one] * np.cos(th) - x[two] * np.sin(th), x[one] * np.sin(th) + x[two] * np.cos(th)
    return out


def test_an_angle_near_a_whole_turn_may_be_stored_at_either_end() -> None:
    S, window, params = mamba3_case(29, replace(SIZES, t=1), "mamba")
    start, reached = (pieces_of(s, P, F, params) for s in (S, mamba3.scan(S, window, params)[1]))
    S = packed(replace(start, angle=start.angle - reached.angle + 1e-9))  # a start from which every angle ends at 1e-9
    error = error_bounds.mamba3.scan(S, window, params, NumericContract())[1].error
    angle, key = (getattr(pieces_of(error, P, F, params), name) for name in ("angle", "key"))
    assert np.all(angle > 2 * np.pi)
    assert np.all(key < 1e-4), "a turn never reaches a key"


def test_a_layer_projects_in_the_order_of_the_published_module() -> None:
    made: Any = RECURRENCES["mamba3"].tiny[1](np.random.default_rng(32))
    u = np.random.default_rng(33).normal(size=(2, 6, 10))
    h, r, n = made.mixer.params.B_bias.shape
    cuts = np.cumsum([h * 3, h * 3, r * n, r * n, h, h, h])
    z, x, B_, C, dt, A, trap, angle = np.split(made.in_proj.apply(u), cuts, axis=2)
    x, z = (a.reshape(2, 6, h, 3) for a in (x, z))
    window = Mamba3Window(x, dt, A, trap, angle, B_.reshape(2, 6, r, 1, n), C.reshape(2, 6, r, 1, n), z)
    y, S = mamba3.scan(np.zeros((2, *made.mixer.state_shape)), window, made.mixer.params)
    out, after = layer.scan(mixer.new_state(made.mixer, 2), u, made)
    assert_allclose(out, made.out_proj.apply(y.reshape(2, 6, -1)), **CLOSE)
    assert_array_equal(after.S, S)


def test_wrong_calls_are_refused_by_name() -> None:
    S, window, params = mamba3_case(37, SIZES, "mamba")
    for call in (mamba3.scan, chunked.scan):
        refused(ShapeMismatch, r"p n \+ f \+ r n \+ p is 37", call, S[:, :, :-1].copy(), window, params)
    refused(ParameterError, "give 1 to 4", pieces_of, S, P, 5, params)
    for wrong, said in (
        ({"pairs": "all"}, "neighbours"),
        ({"eps": -1.0}, "at least 0"),
        ({name: getattr(params, name)[..., :7] for name in ("B_norm", "C_norm", "B_bias", "C_bias")}, "even number"),
    ):
        refused(ParameterError, said, replace, params, **wrong)
    three = {name: np.repeat(getattr(window, name), 2, axis=3)[:, :, :, :3] for name in ("B", "C")}
    refused(ParameterError, "3 groups do not divide 4 heads", mamba3.scan, S, replace(window, **three), params)
    refused(
        Unsupported,
        "would share the scales of S",
        error_bounds.mamba3.scan,
        S,
        window,
        params,
        NumericContract(state="int8", state_scale="row"),
    )
    ranked: Any = RECURRENCES["mamba3"].tiny[1](np.random.default_rng(40))
    refused(ParameterError, "several ranks", replace, ranked, norm=GatedNorm(np.ones(12), groups=4, norm_first=True))
