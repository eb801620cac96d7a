"""Laws of the recurrences and of the convolution: steps against scalar loops, runs against a second derivation and against
each other, the no-op bit for bit."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssmspec_ref import conv, delta, records, selective, ssd
from ssmspec_ref.conv import filter as conv_filter
from ssmspec_ref.delta import chunked as delta_chunked
from ssmspec_ref.errors import ParameterError
from ssmspec_ref.layers import mixer as layers
from ssmspec_ref.layers.recurrences import RECURRENCES as KINDS_OF_LAYERS
from ssmspec_ref.shapes import Array
from ssmspec_ref.ssd import chunked as ssd_chunked
from tests import families
from tests.families import FAMILIES, TOLERANCE, Family, Sizes, deviation, each_family, examples, same_bits

from .loops import LOOPS
from .recurrences import ALL, DECAYING, LIVE, RECURRENCES, Case, case, drawn, garbage
from .refusals import refused

quick = examples(40)
of_every = pytest.mark.parametrize("name", ALL)


def bits(got: Any, ref: Any) -> bool:
    """The same bits, in whatever order they lie."""
    return all(same_bits(np.ascontiguousarray(a), np.ascontiguousarray(b)) for a, b in zip(got, ref, strict=True))


# ------------------------------------------------------------------------------------------------- second derivations


@of_every
@examples(130)
@given(st.data(), st.integers(1, 15), st.booleans())
def test_chunked_forms_equal_the_recurrence_at_every_boundary(
    name: str, data: st.DataObject, chunk: int, no_ops: bool
) -> None:
    c = data.draw(drawn(name))
    live = c.live() if no_ops else None
    c = c if live is None else c.of(garbage(c.window, live))
    y, after = c.states(live)
    chunked = c.chunks(chunk, live)
    assert c.near(chunked, (y, after[:, -1]))
    if hasattr(c.recurrence.chunked, "states"):
        y_chunked, ends = c.recurrence.chunked.states(c.S, c.window, c.params, live, chunk=chunk)
        last = np.minimum(np.arange(chunk, c.tokens + chunk, chunk), c.tokens) - 1
        assert c.near((y_chunked, ends), (y, after[:, last]))
        assert same_bits(chunked[1], ends[:, -1])
    if name in ("conv", "shortconv"):  # which is moved and never computed with
        assert same_bits(chunked[1], after[:, -1])
    if live is not None:
        assert not y[~live].any()


@each_family
@of_every
def test_chunked_forms_equal_the_recurrence_over_150_tokens(name: str, family: Family) -> None:
    c = case(name, 11, Sizes(t=150), family)
    for chunk in (1, 64, 200):
        assert c.near(c.chunks(chunk), c.scan())


def earlier_outputs_change(c: Case) -> bool:
    """Whether any bit of the outputs before a token changes where the tokens from there on come in reverse, in one chunk."""
    t = int(c.rng.integers(c.tokens))
    later = records.each(lambda a: np.concatenate([a[:, :t], a[:, t:][:, ::-1]], axis=1), c.window)
    y, changed = (one.chunks(c.tokens)[0] for one in (c, c.of(later)))
    return not same_bits(y[:, :t], changed[:, :t])


@pytest.mark.parametrize("name", DECAYING)
@examples(100)
@given(st.data())
def test_no_rounding_of_a_later_token_reaches_an_earlier_output(name: str, data: st.DataObject) -> None:
    assert not earlier_outputs_change(data.draw(drawn(name)))


def test_a_solver_that_exchanges_rows_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_chunked, "_solve", lambda A, right: np.linalg.solve(np.eye(A.shape[-1]) + A, right))
    with pytest.raises(AssertionError):
        test_no_rounding_of_a_later_token_reaches_an_earlier_output("delta")


@pytest.mark.parametrize("kind", families.KINDS)
@examples(16)
@given(families.drawn_sizes(), families.seeds, st.sampled_from(FAMILIES), st.booleans())
def test_a_layer_equals_its_second_derivation(
    kind: families.Kind, sizes: Sizes, seed: int, family: Family, no_ops: bool
) -> None:
    mixer, state, inputs = families.layer(kind, seed, sizes, family)
    live = np.random.default_rng(seed).uniform(size=(sizes.b, sizes.t)) < 0.6 if no_ops else None
    y, after = layers.scan(state, inputs, mixer, live)
    c, M = conv_filter.scan(state.M, inputs.pre, mixer.conv, live)
    chunked, close = KINDS_OF_LAYERS[mixer.kind].chunked, RECURRENCES.get(kind, RECURRENCES["ssd"]).close
    y_ref, S_ref = chunked.scan(state.S, mixer.project(c, inputs.gates), mixer.params, live, chunk=4)
    assert deviation(y_ref, y) <= close
    assert deviation(layers.MixerState(M, S_ref), after) <= close


# --------------------------------------------------------------------------------------------------- against plain loops


@pytest.mark.parametrize("name", LOOPS)
@examples(50)
@given(st.data())
def test_scan_equals_plain_loops_over_scalars(name: str, data: st.DataObject) -> None:
    c = data.draw(drawn(name, tokens=4))
    assert c.near(c.scan(), LOOPS[name](c.S, c.window, c.params))


# --------------------------------------------------------------------------------------------------------- laws of runs


@of_every
@examples(50)
@given(st.data())
def test_a_run_in_two_parts_is_the_run_and_the_run_is_its_steps(name: str, data: st.DataObject) -> None:
    c = data.draw(drawn(name))
    y, after = c.states()
    cut = data.draw(st.integers(1, c.tokens))
    first, S_cut = c.of(records.prefix(c.window, cut)).scan()
    assert bits((first, S_cut), (y[:, :cut], after[:, cut - 1]))
    if cut < c.tokens:
        rest = c.of(records.each(lambda a: a[:, cut:], c.window))._replace(S=S_cut)
        assert bits(rest.scan(), (y[:, cut:], after[:, -1]))
    assert bits(c.recurrence.definition.step(c.S, c.token(0), c.params), (y[:, 0], after[:, 0]))


@of_every
@examples(50)
@given(st.data())
def test_inserting_no_ops_anywhere_changes_no_bit(name: str, data: st.DataObject) -> None:
    c = data.draw(drawn(name, tokens=6))
    length, rows = c.tokens, c.S.shape[0]
    live = np.isin(np.arange(2 * length), np.sort(c.rng.permutation(2 * length)[:length]))

    def stretch(a: Array) -> Array:
        long = np.resize([np.nan, np.inf, -np.inf], (rows, 2 * length, *a.shape[2:]))
        long[:, live] = a
        return long

    y, after = c.states()
    y_long, after_long = c.of(records.each(stretch, c.window)).states(np.broadcast_to(live, (rows, 2 * length)).copy())
    seen = np.concatenate([c.S[:, None], after], axis=1)[:, np.cumsum(live)]  # the state after each token, no-op or not
    assert bits((y_long[:, live], after_long), (y, seen))
    assert not y_long[:, ~live].any()


@pytest.mark.parametrize("name", [name for name in ALL if ALL[name].doubled])
@examples(27)
@given(st.data())
def test_a_state_and_an_input_twice_as_large_give_twice_the_output_exactly(name: str, data: st.DataObject) -> None:
    c = data.draw(drawn(name))
    doubled = {c.recurrence.doubled: 2 * getattr(c.window, c.recurrence.doubled)}
    y, S_next = c.scan()
    assert bits(c.of(replace(c.window, **doubled))._replace(S=2 * c.S).scan(), (2 * y, 2 * S_next))


@of_every
@examples(27)
@given(st.data())
def test_rows_are_independent_of_each_other(name: str, data: st.DataObject) -> None:
    c = data.draw(drawn(name))
    y, S_next = c.scan()
    for b in range(c.S.shape[0]):
        alone = c.of(records.rows(c.window, np.array([b])))._replace(S=c.S[b : b + 1])
        assert c.near(alone.scan(), (y[b : b + 1], S_next[b : b + 1]))


@each_family
def test_ssd_is_the_selective_scan_with_one_decay_per_head(family: Family) -> None:
    s = Sizes(g=1)
    S, w, params = families.ssd_case(4, s, family, D="channel")
    each = s.h * s.p
    spread = selective.SelectiveWindow(
        x=w.x.reshape(s.b, s.t, each),
        dt=np.repeat(w.dt, s.p, axis=2),
        B=w.B[:, :, 0],
        C=w.C[:, :, 0],
        z=None if w.z is None else w.z.reshape(s.b, s.t, each),
    )
    assert params.D is not None
    assert params.dt_bias is not None
    tied = selective.SelectiveParams(
        np.repeat(params.A, s.p)[:, None].repeat(s.n, axis=1), params.D.reshape(each), np.repeat(params.dt_bias, s.p)
    )
    y, S_next = ssd.scan(S, w, params)
    y_tied, S_tied = selective.scan(S.reshape(s.b, each, s.n), spread, tied)
    assert deviation(y_tied.reshape(y.shape), y) <= TOLERANCE
    assert deviation(S_tied.reshape(S_next.shape), S_next) <= TOLERANCE


@each_family
def test_a_gate_that_is_the_same_in_every_channel_is_the_gate_of_the_head(family: Family) -> None:
    s = Sizes()
    S, window, params = families.delta_case(4, s, family)
    spread = replace(window, g=np.repeat(window.g[..., None], s.k, axis=3))
    for run in (delta, delta_chunked):
        y, S_next = run.scan(S, window, params)
        y_spread, S_spread = run.scan(S, spread, params)
        assert deviation(y_spread, y) <= TOLERANCE
        assert deviation(S_spread, S_next) <= TOLERANCE


def test_widening_x_and_b_after_the_convolution_equals_convolving_copies() -> None:
    s = Sizes(h=6, g=2)
    mixer, state, inputs = families.layer("ssd_grouped", 3, s)
    assert isinstance(mixer, layers.SSDMixer)
    x = np.arange(s.g * s.p).reshape(s.g, s.p).repeat(s.h // s.g, axis=0)
    B = s.g * s.p + np.arange(s.g * s.n).reshape(s.g, s.n).repeat(s.h // s.g, axis=0)
    C = s.g * (s.p + s.n) + np.arange(s.h * s.n)
    copies = np.concatenate([x.ravel(), B.ravel(), C])
    assert mixer.conv.bias is not None
    taps = conv.ConvParams(mixer.conv.weight[copies], mixer.conv.bias[copies])
    plain = replace(mixer, conv=taps, x_groups=None, B_groups=None)
    y, after = layers.scan(state, inputs, mixer)
    y_plain, after_plain = layers.scan(
        layers.MixerState(state.M[:, copies], state.S), replace(inputs, pre=inputs.pre[:, :, copies]), plain
    )
    assert same_bits(y_plain, y)
    assert same_bits(after_plain.S, after.S)


def test_delta_gates_are_those_of_the_published_checkpoints() -> None:
    rng = np.random.default_rng(0)
    a, b, A_log, bias = rng.normal(size=(2, 5, 6)), rng.normal(size=(2, 5, 6)), rng.normal(size=6), rng.normal(size=6)
    g, beta = delta.gates(a, b, -np.exp(A_log), bias)
    for i in np.ndindex(2, 5, 6):
        assert abs(g[i] + math.exp(A_log[i[2]]) * math.log(1 + math.exp(a[i] + bias[i[2]]))) <= 1e-14
        assert abs(beta[i] - 1 / (1 + math.exp(-b[i]))) <= 1e-15


@pytest.mark.parametrize("wrong", [0.5, math.nan, -math.inf])
def test_a_rate_that_grows_the_state_or_is_not_finite_makes_no_gate(wrong: float) -> None:
    a = np.zeros((2, 3))
    refused(ParameterError, "finite A", delta.gates, a, a, np.array([-1.0, wrong, -2.0]), np.zeros(3))


# ------------------------------------------------------------------------------------------------------------ the no-op


@pytest.mark.parametrize("chunked", [False, True])
def test_a_no_op_takes_no_step_where_the_limit_of_dt_lies_above_zero(chunked: bool) -> None:
    S, window, params = families.ssd_case(2, Sizes(), "gentle", dt_limit=(0.5, 2.0))
    nothing = np.zeros((2, 7), dtype=bool)
    y, S_next = ssd_chunked.scan(S, window, params, nothing) if chunked else ssd.scan(S, window, params, nothing)
    assert same_bits(S_next, S)
    assert not y.any()


def test_the_key_of_a_no_op_is_no_number_without_eps_so_eps_is_positive() -> None:
    with pytest.raises(ValueError, match="eps > 0"):
        delta.DeltaParams(eps=0.0)


NO_OP_FAULTS: dict[str, Callable[[Any, Array], Any]] = {
    "nothing masked": lambda record, live: record,
    "decay kept": lambda record, live: record if isinstance(record, np.ndarray) else records.masked(record, live),
    "update kept": lambda record, live: records.masked(record, live) if isinstance(record, np.ndarray) else record,
}


@pytest.mark.parametrize(
    ("name", "fault"),
    [("ssd", f) for f in NO_OP_FAULTS] + [("selective", f) for f in NO_OP_FAULTS] + [("delta", "nothing masked")],
)
def test_planted_no_ops_are_caught(name: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    c = case(name, 2, Sizes())
    ref = c.chunks(live=LIVE)
    monkeypatch.setattr(c.recurrence.definition, "masked", NO_OP_FAULTS[fault])
    assert not c.near(c.scan(LIVE), ref)


@pytest.mark.parametrize("kept", ["g", "beta", "q"])
def test_planted_no_ops_of_the_delta_rule_are_caught(kept: str, monkeypatch: pytest.MonkeyPatch) -> None:
    c = case("delta", 2, Sizes())
    fields = {"g": ["g"], "beta": ["beta", "k", "v"], "q": ["q"]}[kept]
    partly = replace(records.masked(c.window, LIVE), **{name: getattr(c.window, name) for name in fields})
    assert not c.near(c.of(partly).scan(), c.chunks(live=LIVE))
