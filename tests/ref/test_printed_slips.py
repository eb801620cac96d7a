"""Where the papers print something else than they compute, and why the reference does not repeat it.

Beside what stands here: the early flush (`tests/ref/test_backtrack_flush`), the sign in the Poisson law
(`tests/ref/test_cost`), the bandit's mean and its count of zero (`tests/ref/test_bandit`), the residual without its sum and
the sorted children (`tests/ref/test_exact_law`).
"""

import math

import numpy as np
import pytest
from hypothesis import given

from ssmspec_ref import selective, ssd, tree
from ssmspec_ref.draft.static_tree import TREE_A, tree_from_branches
from ssmspec_ref.errors import NotTopological, ShapeMismatch
from ssmspec_ref.shapes import Array, Parents
from tests.families import TOLERANCE, Sizes, deviation, examples, ssd_case
from tests.trees import drawn_trees, path_to

from .refusals import refused


def full_binary(layers: int) -> Array:
    return np.array([tree_from_branches([[2] * 2**depth for depth in range(layers - 1)])])


@pytest.mark.parametrize(("layers", "states", "tokens", "packed"), [(4, 8, 32, 15), (5, 16, 80, 31), (6, 32, 192, 63)])
def test_a_full_binary_tree_unrolls_to_the_states_and_tokens_of_figure_3_but_80_where_90_is_printed(
    layers: int, states: int, tokens: int, packed: int
) -> None:
    """A leaf in 5 layers brings 5 tokens, so that 16 leaves bring 80."""
    parents = full_binary(layers)
    assert tree.sizes(parents).tolist() == [packed]
    assert [x.tolist() for x in tree.unrolled(parents)] == [[states], [tokens]]


def test_a_chain_a_star_and_tree_a_unrolled_by_hand() -> None:
    parents = np.array([[-1, 0, 1, 2] + [-2] * 9, [-1, 0, 0, 0] + [-2] * 9, TREE_A, [-2] * 13])
    states, tokens = tree.unrolled(parents)
    assert states.tolist() == [1, 3, 7, 0]
    assert tokens.tolist() == [4, 6, 4 + 5 + 5 + 5 + 4 + 3 + 2, 0]  # A: leaves 9, 10, 11, 12, 8, 6, 3


@examples(60)
@given(drawn_trees(rows=2, nodes=12))
def test_unrolling_leaves_the_paths_that_no_longer_path_begins_with(parents: Parents) -> None:
    states, tokens = tree.unrolled(parents)
    for b, row in enumerate(parents):
        paths = [path_to(row, i) for i in range(len(row)) if row[i] != tree.PADDING]
        whole = [p for p in paths if not any(q != p and q[: len(p)] == p for q in paths)]
        assert (states[b], tokens[b]) == (len(whole), sum(len(p) for p in whole))


def test_a_tree_that_is_none_is_not_unrolled() -> None:
    refused(NotTopological, "comes before its child", tree.unrolled, np.array([[-1, 2, 0]]))


# ------------------------------------------------------------------------------------- algorithm 1 of Snakes and Ladders


def as_printed(h_0: Array, x: Array, A: Array, B: Array, C: Array, dt: Array) -> tuple[Array, Array]:
    """Lines 1 to 15 with the printed shapes: dt (B, L, H, D) and A (H, D, P), B and C by groups (B, L, G, P)."""
    state, y = h_0.copy(), np.zeros_like(x)
    for b, i, h, d in np.ndindex(x.shape):
        g = h // (x.shape[2] // B.shape[2])
        for p in range(A.shape[2]):
            step = dt[b, i, h, d]
            state[b, h, d, p] = state[b, h, d, p] * math.exp(step * A[h, d, p]) + step * B[b, i, g, p] * x[b, i, h, d]
            y[b, i, h, d] += C[b, i, g, p] * state[b, h, d, p]
    return y, state


def printed_case(groups: int) -> tuple[Array, ssd.SSDWindow, ssd.SSDParams, Array, Array]:
    """SSD, and its step and A in the printed shapes: each head's number in all of its channels and states."""
    s = Sizes(b=2, t=5, h=6, g=groups, p=3, n=4)
    S, window, params = ssd_case(9, s, "gentle", z=False, D=None, bias=False, dt_softplus=False)
    dt = np.repeat(window.dt[..., None], s.p, axis=3)
    A = np.broadcast_to(params.A[:, None, None], (s.h, s.p, s.n))
    return S, window, params, dt, A


@pytest.mark.parametrize("groups", [1, 3])
def test_the_printed_scan_is_ssd_where_dt_and_a_are_tied_to_the_head(groups: int) -> None:
    S, window, params, dt, A = printed_case(groups)
    y, S_next = ssd.scan(S, window, params)
    printed = as_printed(S, window.x, A, window.B, window.C, dt)
    assert deviation(y, printed[0]) <= TOLERANCE
    assert deviation(S_next, printed[1]) <= TOLERANCE


def test_with_the_printed_untied_dt_it_is_mamba_1_and_no_step_of_a_head_gives_its_outputs() -> None:
    """Two channels of a head with different steps forget at different rates, which one decay a head cannot."""
    S, window, params, dt, A = printed_case(1)
    dt = dt * np.linspace(0.5, 2.0, dt.shape[3])
    y, S_next = as_printed(S, window.x, A, window.B, window.C, dt)
    flat = (*window.x.shape[:2], window.x.shape[2] * window.x.shape[3])
    of_channels = selective.SelectiveWindow(window.x.reshape(flat), dt.reshape(flat), window.B[:, :, 0], window.C[:, :, 0])
    wide = selective.SelectiveParams(A.reshape(flat[2], A.shape[2]), dt_softplus=False)
    y_1, S_1 = selective.scan(S.reshape(len(S), flat[2], -1), of_channels, wide)
    assert deviation(y_1.reshape(y.shape), y) <= TOLERANCE
    assert deviation(S_1.reshape(S.shape), S_next) <= TOLERANCE
    for channel in range(dt.shape[3]):  # the step of any channel for its whole head
        tied = ssd.SSDWindow(window.x, np.ascontiguousarray(dt[..., channel]), window.B, window.C)
        assert deviation(ssd.scan(S, tied, params)[0], y) > 1e-3


def test_ssd_refuses_a_step_for_each_channel() -> None:
    _, window, _, dt, _ = printed_case(1)
    refused(
        ShapeMismatch,
        r"SSDWindow.dt has shape .* but its axes are \(b t h\)",
        ssd.SSDWindow,
        window.x,
        dt,
        window.B,
        window.C,
    )
