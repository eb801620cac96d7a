"""The causal convolution: what a commit leaves, channels, taps by hand; its laws are those of `test_recurrences`."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ssmspec_ref import conv
from tests import families
from tests.families import Sizes, examples, same_bits

from .recurrences import garbage

quick = examples(100)


@quick
@given(families.drawn_sizes(), families.seeds, st.data())
def test_commit_is_the_window_after_the_accepted_inputs_alone(sizes: Sizes, seed: int, data: st.DataObject) -> None:
    M, u, params = families.conv_case(seed, sizes)
    advanced = np.array(data.draw(st.lists(st.integers(0, sizes.t), min_size=sizes.b, max_size=sizes.b)))
    live = np.arange(sizes.t) < advanced[:, None]
    _, M_ref = conv.scan_masked(M, u, live, params)
    assert same_bits(conv.commit(M, garbage(u, live), advanced), M_ref)


@quick
@given(families.drawn_sizes(), families.seeds)
def test_commit_of_a_path_is_the_scan_of_its_inputs(sizes: Sizes, seed: int) -> None:
    M, u, params = families.conv_case(seed, sizes)
    taken = np.random.default_rng([seed, 9]).uniform(size=(sizes.b, sizes.t)) < 0.6
    path = np.full((sizes.b, sizes.t), -1)
    for b in range(sizes.b):
        path[b, : taken[b].sum()] = np.flatnonzero(taken[b])
    _, M_ref = conv.scan_masked(M, u, taken, params)
    assert same_bits(conv.commit_path(M, garbage(u, taken), path), M_ref)


def test_a_channel_never_hears_another() -> None:
    M, u, params = families.conv_case(3, Sizes())
    louder = u.copy()
    louder[:, :, 2] += 5.0
    y, _ = conv.scan(M, u, params)
    changed = conv.scan(M, louder, params)[0] != y
    assert changed[:, :, 2].all()
    assert not np.delete(changed, 2, axis=2).any()


def test_two_taps_by_hand() -> None:
    params = conv.ConvParams(np.array([[2.0, 3.0]]), np.array([0.5]), activation=False)
    y, M = conv.scan(np.array([[[7.0, 1.0]]]), np.array([[[10.0], [20.0]]]), params)
    assert y.tolist() == [[[2 * 1 + 3 * 10 + 0.5], [2 * 10 + 3 * 20 + 0.5]]]
    assert M.tolist() == [[[10.0, 20.0]]]
