"""The families are what they say they are: everything else leans on them."""

import numpy as np

from ssmspec_ref.layers import mixer as layers
from ssmspec_ref.ssd import step_size
from tests import families
from tests.families import Sizes, each_family, each_kind


@each_family
@each_kind
def test_every_layer_runs_and_stays_finite(kind: families.Kind, family: families.Family) -> None:
    mixer, state, inputs = families.layer(kind, 1, Sizes(), family)
    y, after = layers.scan(state, inputs, mixer)
    assert np.isfinite(y).all()
    assert np.isfinite(after.S).all()
    assert families.same_bits(state, families.layer(kind, 1, Sizes(), family)[1])


def test_the_gentle_family_carries_its_state_and_the_hard_one_reaches_two_hundred() -> None:
    _, window, params = families.ssd_case(0, Sizes(t=40), "gentle")
    gentle = step_size(window.dt, params) * params.A
    assert gentle.min() >= -0.021
    assert gentle.max() < 0
    _, window, params = families.ssd_case(0, Sizes(t=40), "hard")
    hard = step_size(window.dt, params) * params.A
    assert hard.min() <= -199.9
    assert hard.max() > -0.1
    for gated in (False, True):
        _, delta, _ = families.delta_case(0, Sizes(t=40), "hard", channel_gate=gated)
        assert delta.g.min() == -200.0
        assert delta.g.max() > -0.1


def test_deviation_is_nan_on_nan_and_sees_one_wrong_entry_of_a_record() -> None:
    _, state, _ = families.layer("ssd", 1, Sizes())
    wrong = layers.MixerState(state.M.copy(), state.S.copy())
    assert families.deviation(wrong, state) == 0.0
    assert families.same_bits(wrong, state)
    wrong.S[1, 2, 3, 1] += 1.0
    assert families.deviation(wrong, state) > 1e-3
    assert not families.same_bits(wrong, state)
    wrong.S[1, 2, 3, 1] = np.nan
    assert not families.deviation(wrong, state) <= families.TOLERANCE
