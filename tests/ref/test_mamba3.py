"""Mamba-3: its derivations agree, all four pieces outlive every path of backtracking, wrong calls are refused."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from ssmspec_ref import error_bounds, mamba3, tree
from ssmspec_ref.backtrack import Accepted, Draft, activation_replay, joint, snapshots
from ssmspec_ref.backtrack import tree as over_trees
from ssmspec_ref.backtrack.replay_buffer import ReplayBuffer
from ssmspec_ref.contract import FLOAT64, NumericContract
from ssmspec_ref.errors import NotNested, ParameterError, ShapeMismatch, Unsupported
from ssmspec_ref.layers import layer, mixer
from ssmspec_ref.layers.mamba3 import mixer_of
from ssmspec_ref.layers.mixer import MixerInputs, MixerState
from ssmspec_ref.layers.norm import GatedNorm
from ssmspec_ref.layers.recurrences import RECURRENCES
from ssmspec_ref.mamba3 import Mamba3Params, Mamba3Window, Pieces, buffered, chunked, packed, pieces_of, turn, width
from ssmspec_ref.mamba3 import tree as mamba3_tree
from ssmspec_ref.records import along, arrays, concat, each, masked, prefix, rows
from ssmspec_ref.shapes import Array
from ssmspec_ref.tree import paths

B, H, G, P, N = 3, 4, 2, 3, 8
CLOSE = {"rtol": 1e-11, "atol": 1e-11}
"""Sums of a few hundred terms of size up to 100."""
TREE = np.array([[-1, 0, 0, 1, 1, 2, 3, 6], [-1, 0, 1, 2, 3, 4, 5, 6], [-1, 0, 0, 0, -2, -2, -2, -2]])
SORTS = [(1, "neighbours", 2), (1, "neighbours", 4), (3, "halves", 2), (2, "halves", 4), (2, "neighbours", 1)]
"""Rank, pairs, and angles: half of the channels turn with 2 of 8 / 2, all with 4."""


def parameters(seed: int, rank: int = 1, pairs: Any = "neighbours", floor: float = 0.4) -> Mamba3Params:
    rng = np.random.default_rng(seed)
    maps = [rng.uniform(0.3, 1.2, (H, rank, P)) for _ in range(3)] if rank > 1 else [None] * 3
    norms, biases = rng.uniform(0.5, 1.5, (2, N)), 1 + rng.normal(0, 0.5, (2, H, rank, N))
    return Mamba3Params(*norms, *biases, rng.normal(-0.5, 1, H), rng.normal(size=H), *maps, A_floor=floor, pairs=pairs)


def drawn(seed: int, rank: int = 1, angles: int = 2, tokens: int = 8, gated: bool = True) -> Mamba3Window:
    rng = np.random.default_rng(seed)
    per_head, ranks = (B, tokens, H), (B, tokens, rank, G, N)
    shapes = ((*per_head, P), per_head, per_head, per_head, (B, tokens, angles), ranks, ranks, (*per_head, P))
    return Mamba3Window(*(rng.normal(size=shape) for shape in shapes[: 8 if gated else 7]))


def begun(seed: int, rank: int = 1, angles: int = 2) -> Array:
    return np.random.default_rng(seed).normal(size=(B, H, width(P, N, angles, rank)))


@pytest.mark.parametrize(("rank", "pairs", "angles"), SORTS)
@pytest.mark.parametrize("gated", [False, True])
def test_the_recurrence_and_the_sum_over_pairs_of_tokens_agree(rank: int, pairs: str, angles: int, gated: bool) -> None:
    S, window, params = begun(1, rank, angles), drawn(2, rank, angles, gated=gated), parameters(3, rank, pairs)
    live = np.random.default_rng(4).random((B, 8)) < 0.6
    live[1] = False
    for mask in (None, live):
        wanted = mamba3.scan(S, window, params, mask)
        for chunk in (1, 3, 64):
            for one, other in zip(chunked.scan(S, window, params, mask, chunk=chunk), wanted, strict=True):
                assert_allclose(one, other, **CLOSE)


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
    assert_allclose(turn(x, quarter, parameters(1)), [-2, 1, -4, 3, 5, 6, 7, 8])
    assert_allclose(turn(x, quarter, parameters(1, pairs="halves")), [-5, -6, 3, 4, 1, 2, 7, 8])


def test_a_constant_angle_of_one_turn_or_none_is_no_rotation() -> None:
    """What is read depends on differences of angles: two starts that differ by any angle for keys and queries alike agree
    from a state of zero on."""
    window, params = drawn(5), parameters(6)
    zero = np.zeros((B, H, width(P, N, 2, 1)))
    moved = packed(replace(pieces_of(zero, P, 2, params), angle=np.full((B, H, 2), 1.234)))
    assert_allclose(mamba3.scan(zero, window, params)[0], mamba3.scan(moved, window, params)[0], **CLOSE)


@pytest.mark.parametrize(("rank", "pairs", "angles"), SORTS)
def test_a_node_steps_from_its_parent(rank: int, pairs: str, angles: int) -> None:
    S, window, params = begun(7, rank, angles), drawn(8, rank, angles), parameters(9, rank, pairs)
    ancestors = tree.ancestors(TREE)
    y = mamba3_tree.scan(S, window, ancestors, params)
    wanted = paths.scan(lambda state, path: mamba3.scan(state, path, params), S, window, ancestors)
    assert_allclose(y, wanted, **CLOSE)
    assert_array_equal(y[2, 4:], np.zeros((4, H, P)))


@pytest.mark.parametrize("path", [snapshots, joint, activation_replay, ReplayBuffer(16, 4)], ids=str)
@pytest.mark.parametrize(("rank", "pairs", "angles"), SORTS[::3])
def test_twelve_windows_are_plain_decoding(path: Any, rank: int, pairs: str, angles: int) -> None:
    """Every number of accepted tokens, from none to all, in rows that accept different ones."""
    S, params = begun(10, rank, angles), parameters(11, rank, pairs)
    made, rng = mixer_of(params, P, G, angles), np.random.default_rng(12)
    kept, plain, seen = path.start(MixerState(np.zeros((B, 0, 2)), S)), S, [[] for _ in range(B)]
    for number in range(12):
        fresh = drawn(100 + number, rank, angles, tokens=4)
        lag = path.refeed(kept)
        columns = [[*seen[b][len(seen[b]) - int(lag[b]) :], *(token(fresh, b, t) for t in range(4))] for b in range(B)]
        window, lengths = side_by_side(columns)
        y, pending = path.verify(kept, Draft(inputs(window), lengths), made)
        wanted = mamba3.scan(plain, fresh, params)[0]
        at = lag[:, None] + np.arange(4)
        assert_allclose(np.take_along_axis(y, at[:, :, None, None], axis=1), wanted, **CLOSE)
        advanced = (number + np.arange(B)) % 5 if number < 5 else rng.integers(0, 5, B)
        kept = path.commit(pending, Accepted(advanced.astype(np.int64)), made)
        plain = mamba3.scan(plain, fresh, params, np.arange(4) < advanced[:, None])[1]
        for b in range(B):
            seen[b] += [token(fresh, b, t) for t in range(advanced[b])]
        if not path.refeed(kept).any():
            assert_allclose(path.restore(kept, made).S, plain, **CLOSE)


def token(window: Mamba3Window, b: int, t: int) -> Mamba3Window:
    return each(lambda a: a[b : b + 1, t : t + 1], window)


def side_by_side(columns: list[list[Mamba3Window]]) -> tuple[Mamba3Window, Array]:
    """Rows of tokens as one window, padded at the end."""
    lengths, made = np.array([len(row) for row in columns]), []
    for row in columns:
        whole = row[0]
        for more in [*row[1:], *[row[0]] * (max(lengths) - len(row))]:
            whole = concat(whole, more)
        made.append(whole)
    return each(lambda *a: np.concatenate(a, axis=0), *made), lengths


def inputs(window: Mamba3Window) -> MixerInputs:
    return MixerInputs(np.zeros((*window.x.shape[:2], 0)), window)


def test_a_path_of_a_tree_is_committed_with_all_four_pieces() -> None:
    S, window, params = begun(13), drawn(14), parameters(15)
    made, state = mixer_of(params, P, G, 2), MixerState(np.zeros((B, 0, 2)), S)
    path = np.array([[0, 1, 3, 6, 7, -1, -1, -1], [0, 1, 2, -1, -1, -1, -1, -1], [0, 3, -1, -1, -1, -1, -1, -1]])
    for way in (over_trees, activation_replay):
        kept = way.start(state)
        _, pending = way.verify(kept, Draft(inputs(window), parents=TREE), made)
        after = way.restore(way.commit(pending, Accepted((path >= 0).sum(axis=1), path=path), made), made)
        wanted = mamba3.scan(S, along(window, path), params, path >= 0)[1]
        for one, other in zip(arrays(pieces_of(after.S, P, 2, params)), arrays(pieces_of(wanted, P, 2, params)), strict=True):
            assert_allclose(one, other, **CLOSE)


@pytest.mark.parametrize(("rank", "pairs", "angles"), SORTS)
def test_a_ring_folds_to_the_state_and_reads_without_it(rank: int, pairs: str, angles: int) -> None:
    S, window, params = begun(16, rank, angles), drawn(17, rank, angles), parameters(18, rank, pairs)
    history, next_window = buffered.entries(window, params), drawn(19, rank, angles, tokens=3)
    live = np.arange(3) < np.array([[3], [2], [0]])
    for count in (0, 1, 3, 8):
        held = np.arange(8) < np.minimum(count, np.array([[8], [5], [2]]))
        after = mamba3.scan(S, window, params, held)[1]
        assert_allclose(buffered.fold(S, history, held, params), after, **CLOSE)
        for route in (buffered.output_only, buffered.state_and_output):
            y, new = route(S, history, held, next_window, params, live)
            assert_allclose(y, mamba3.scan(after, next_window, params, live)[0], **CLOSE)
            assert_allclose(new.key, masked(buffered.entries(next_window, params), live).key, **CLOSE)


def test_an_entry_of_a_ring_depends_on_no_state() -> None:
    """Keys are stored unturned: the entries of the second half of a window are those of a window of it alone."""
    window, params = drawn(20), parameters(21)
    late = each(lambda a: a[:, 4:], window)
    for one, other in zip(arrays(buffered.entries(window, params)), arrays(buffered.entries(late, params)), strict=True):
        assert_array_equal(one[:, 4:], other)


@pytest.mark.parametrize("form", ["fp32", "bf16"])
@pytest.mark.parametrize(("rank", "pairs", "angles"), SORTS[::3])
def test_bounds_hold_for_a_rewriting_in_single_precision(form: Any, rank: int, pairs: str, angles: int) -> None:
    """The same equations in float32, with a state in fp32 or bf16 between two tokens: within the bound everywhere, and not
    within a thousandth of it."""
    contract = NumericContract(state=form, stored_every_token=True)
    keep = narrow if form == "fp32" else bf16
    S, window, params = keep(begun(22, rank, angles)), each(narrow, drawn(23, rank, angles)), parameters(24, rank, pairs)
    params = each(narrow, replace(params, A_floor=0.375))
    held, outputs = S, []
    for t in range(8):
        y, after = rewritten(held, window.token(t), params)
        held = keep(after)
        outputs.append(y)
    bound, left = error_bounds.mamba3.scan(S, window, params, contract)
    for came, want in ((np.stack(outputs, axis=1), bound), (held, left)):
        share = np.abs(came - want.value) / np.where(want.error > 0, want.error, 1.0)
        assert np.all(np.abs(came - want.value) <= want.error)
        assert share.max() > 1e-3


def rewritten(S: Array, token: Any, params: Mamba3Params) -> tuple[Array, Array]:
    """One token in float32, written apart from the reference: explicit loops over heads and ranks."""
    f = np.float32
    S32, c = S.astype(f), {name: None if a is None else a.astype(f) for name, a in vars(token).items()}
    p = {name: a.astype(f) if isinstance(a, np.ndarray) else a for name, a in vars(params).items()}
    rank, angles, out, new = params.rank, token.angle.shape[-1], np.zeros((B, H, P), f), np.zeros_like(S32)
    for b in range(B):
        for h in range(H):
            state, g = S32[b, h], h // (H // G)
            cuts = np.cumsum([P * N, angles, rank * N])
            s, th, key, value = np.split(state, cuts)
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
    return out.astype(np.float64), new.astype(np.float64)


def unit32(x: Array, weight: Array, eps: float) -> Array:
    return x / np.sqrt(np.mean(x * x) + np.float32(eps)) * weight


def turned32(x: Array, angle: Array, pairs: str) -> Array:
    out = x.copy()
    for i, th in enumerate(angle):
        one, two = (2 * i, 2 * i + 1) if pairs == "neighbours" else (i, i + N // 2)
        out[one], out[two] = x[one] * np.cos(th) - x[two] * np.sin(th), x[one] * np.sin(th) + x[two] * np.cos(th)
    return out


def narrow(a: Array) -> Array:
    return a.astype(np.float32).astype(np.float64)


def bf16(a: Array) -> Array:
    bits = a.astype(np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32).astype(np.float64)


@pytest.mark.parametrize(
    "contract", [FLOAT64, replace(FLOAT64, order="chunked", chunk=3), replace(FLOAT64, order="output_only")]
)
def test_bounds_are_about_the_oracle(contract: NumericContract) -> None:
    S, window, params = begun(25, 2, 4), drawn(26, 2, 4), parameters(27, 2, "halves")
    live = np.random.default_rng(28).random((B, 8)) < 0.6
    for mask in (None, live):
        for want, came in zip(
            mamba3.scan(S, window, params, mask), error_bounds.mamba3.scan(S, window, params, contract, mask), strict=True
        ):
            assert_allclose(came.value, want, **CLOSE)
            assert np.all(came.error < 1e-9)


def test_an_angle_near_a_whole_turn_may_be_stored_at_either_end() -> None:
    S, window, params = begun(29), drawn(30, tokens=1), parameters(31)
    reached = pieces_of(mamba3.scan(S, window, params)[1], P, 2, params).angle
    start = pieces_of(S, P, 2, params)
    S = packed(replace(start, angle=start.angle - reached + 1e-9))  # a start from which every angle ends at 1e-9
    error = error_bounds.mamba3.scan(S, window, params, NumericContract())[1].error
    angle, key = (getattr(pieces_of(error, P, 2, params), name) for name in ("angle", "key"))
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


def test_values_of_no_ops_are_never_read() -> None:
    S, window, params = begun(34), drawn(35), parameters(36)
    live = np.arange(8) % 2 == np.arange(B)[:, None] % 2
    ill = each(lambda a: np.where(live.reshape(live.shape + (1,) * (a.ndim - 2)), a, np.nan), window)
    for scan in (mamba3.scan, chunked.scan):
        for one, other in zip(scan(S, ill, params, live), scan(S, masked(window, live), params, live), strict=True):
            assert_array_equal(one, other)


def test_wrong_calls_are_refused_by_name() -> None:
    S, window, params = begun(37), drawn(38), parameters(39)
    for call in (mamba3.scan, chunked.scan):
        with pytest.raises(ShapeMismatch, match=r"p n \+ f \+ r n \+ p is 37"):
            call(S[:, :, :-1].copy(), window, params)
    with pytest.raises(ParameterError, match="give 1 to 4"):
        pieces_of(S, P, 5, params)
    for wrong, said in (
        ({"pairs": "all"}, "neighbours"),
        ({"eps": -1.0}, "at least 0"),
        ({name: getattr(params, name)[..., :7] for name in ("B_norm", "C_norm", "B_bias", "C_bias")}, "even number"),
    ):
        with pytest.raises(ParameterError, match=said):
            replace(params, **wrong)
    three = {name: np.repeat(getattr(window, name), 2, axis=3)[:, :, :, :3] for name in ("B", "C")}
    with pytest.raises(ParameterError, match="3 groups do not divide 4 heads"):
        mamba3.scan(S, replace(window, **three), params)
    crossed = np.broadcast_to(np.eye(8, dtype=bool), (B, 8, 8)).copy()
    crossed[:, 2, [0, 1]], crossed[:, 3, [0, 2]], crossed[:, 1, 0] = True, True, False
    with pytest.raises(NotNested):
        mamba3_tree.scan(S, window, crossed, params)
    with pytest.raises(Unsupported, match="would share the scales of S"):
        error_bounds.mamba3.scan(S, window, params, NumericContract(state="int8", state_scale="row"))
    ranked: Any = RECURRENCES["mamba3"].tiny[1](np.random.default_rng(40))
    with pytest.raises(ParameterError, match="several ranks"):
        replace(ranked, norm=GatedNorm(np.ones(12), groups=4, norm_first=True))
    assert rows(S, np.array([0])).shape == (1, H, 37)
    assert prefix(window, 2).x.shape[1] == 2
