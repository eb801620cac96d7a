"""The three recurrences: the step against scalar loops, the runs against the chunked forms, the no-op bit for bit."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ssmspec_ref import conv, delta, records, selective, ssd
from ssmspec_ref.conv import filter as conv_filter
from ssmspec_ref.delta import chunked as delta_chunked
from ssmspec_ref.errors import ParameterError
from ssmspec_ref.layers import mixer as layers
from ssmspec_ref.selective import chunked as selective_chunked
from ssmspec_ref.shapes import Array
from ssmspec_ref.ssd import chunked as ssd_chunked
from tests import families
from tests.families import FAMILIES, TOLERANCE, Sizes, deviation, same_bits

quick = settings(deadline=None, derandomize=True, max_examples=80)


@dataclass(frozen=True)
class Recurrence:
    """A definition, its second derivation, a draw of arguments, and the options that the draw may take."""

    definition: ModuleType
    chunked: ModuleType
    case: Callable[..., Any]
    options: dict[str, list[Any]]


switch = [True, False]
RECURRENCES = {
    "ssd": Recurrence(
        ssd,
        ssd_chunked,
        families.ssd_case,
        {
            "D": ["head", "channel", None],
            "z": switch,
            "bias": switch,
            "dt_softplus": switch,
            "dt_limit": [(0.0, math.inf), (0.02, 0.06), (0.5, math.inf)],
        },
    ),
    "delta": Recurrence(
        delta,
        delta_chunked,
        families.delta_case,
        {"channel_gate": switch, "l2_norm": switch, "scale": [None, 0.7], "beta_max": [1.0, 2.0]},
    ),
    "selective": Recurrence(
        selective,
        selective_chunked,
        families.selective_case,
        {"D": switch, "z": switch, "bias": switch, "dt_softplus": switch},
    ),
}


@st.composite
def drawn_case(draw: st.DrawFn, tokens: int = 13) -> tuple[Recurrence, Any, Any, Any, np.random.Generator]:
    """A recurrence with any of its options, a state, a window and parameters."""
    recurrence = RECURRENCES[draw(st.sampled_from(sorted(RECURRENCES)))]
    options = {name: draw(st.sampled_from(values)) for name, values in recurrence.options.items()}
    seed, family = draw(families.seeds), draw(st.sampled_from(FAMILIES))
    S, window, params = recurrence.case(seed, draw(families.drawn_sizes(tokens)), family, **options)
    return recurrence, S, window, params, np.random.default_rng([seed, 9])


def tokens(window: Any) -> int:
    return int(next(records.arrays(window)).shape[1])


def drawn_live(rng: np.random.Generator, window: Any) -> Array:
    return rng.uniform(size=next(records.arrays(window)).shape[:2]) < 0.6


def garbage(window: Any, live: Array) -> Any:
    """The window with NaN and inf in every no-op."""

    def poison(a: Array) -> Array:
        return np.where(live.reshape(live.shape + (1,) * (a.ndim - 2)), a, np.resize([np.nan, np.inf, -np.inf], a.shape))

    return records.each(poison, window)


# ------------------------------------------------------------------------------------------------- second derivations


@settings(quick, max_examples=400)
@given(drawn_case(), st.integers(1, 15), st.booleans())
def test_chunked_forms_equal_the_recurrence_at_every_boundary(case: Any, chunk: int, no_ops: bool) -> None:
    recurrence, S, window, params, rng = case
    live = drawn_live(rng, window) if no_ops else None
    window = window if live is None else garbage(window, live)
    y, after = recurrence.definition.states(S, window, params, live)
    y_chunked, ends = recurrence.chunked.states(S, window, params, live, chunk=chunk)
    last = np.minimum(np.arange(chunk, tokens(window) + chunk, chunk), tokens(window)) - 1
    assert deviation(y_chunked, y) <= TOLERANCE
    assert deviation(ends, after[:, last]) <= TOLERANCE
    assert same_bits(recurrence.chunked.scan(S, window, params, live, chunk=chunk)[1], ends[:, -1])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", RECURRENCES)
def test_chunked_forms_equal_the_recurrence_over_150_tokens(name: str, family: families.Family) -> None:
    recurrence = RECURRENCES[name]
    S, window, params = recurrence.case(11, Sizes(t=150), family)
    y, S_next = recurrence.definition.scan(S, window, params)
    for chunk in (1, 64, 200):
        y_chunked, S_chunked = recurrence.chunked.scan(S, window, params, chunk=chunk)
        assert deviation(y_chunked, y) <= TOLERANCE
        assert deviation(S_chunked, S_next) <= TOLERANCE


def earlier_outputs_change(recurrence: Recurrence, case: Any) -> bool:
    """Whether any bit of the outputs before a token changes where the tokens from there on come in reverse, in one chunk."""
    S, window, params, rng = case
    t = int(rng.integers(tokens(window)))
    later = records.each(lambda a: np.concatenate([a[:, :t], a[:, t:][:, ::-1]], axis=1), window)
    y, changed = (recurrence.chunked.scan(S, given, params, chunk=tokens(window))[0] for given in (window, later))
    return not same_bits(y[:, :t], changed[:, :t])


@settings(quick, max_examples=300)
@given(drawn_case())
def test_no_rounding_of_a_later_token_reaches_an_earlier_output(drawn: Any) -> None:
    recurrence, *case = drawn
    assert not earlier_outputs_change(recurrence, case)


def test_a_solver_that_exchanges_rows_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_chunked, "_solve", lambda A, right: np.linalg.solve(np.eye(A.shape[-1]) + A, right))
    with pytest.raises(AssertionError):
        test_no_rounding_of_a_later_token_reaches_an_earlier_output()


@quick
@given(st.sampled_from(families.KINDS), families.drawn_sizes(), families.seeds, st.sampled_from(FAMILIES), st.booleans())
def test_a_layer_equals_its_second_derivation(
    kind: families.Kind, sizes: Sizes, seed: int, family: families.Family, no_ops: bool
) -> None:
    mixer, state, inputs = families.layer(kind, seed, sizes, family)
    live = drawn_live(np.random.default_rng(seed), inputs) if no_ops else None
    y, after = layers.scan(state, inputs, mixer, live)
    c, M = conv_filter.scan(state.M, inputs.pre, mixer.conv, live)
    chunked = {ssd: ssd_chunked, delta: delta_chunked, selective: selective_chunked}[mixer.recurrence]  # type: ignore[index]
    y_ref, S_ref = chunked.scan(state.S, mixer.project(c, inputs.gates), mixer.params, live, chunk=4)  # type: ignore[arg-type]
    assert deviation(y_ref, y) <= TOLERANCE
    assert deviation(layers.MixerState(M, S_ref), after) <= TOLERANCE


# --------------------------------------------------------------------------------------------------- against plain loops


def loop_ssd(S: Array, w: ssd.SSDWindow, params: ssd.SSDParams) -> tuple[Array, Array]:
    S, y = S.copy(), np.zeros_like(w.x)
    low, high = params.dt_limit
    for b, t, h, p in np.ndindex(*w.x.shape):
        g = h * w.B.shape[2] // w.x.shape[2]
        dt = w.dt[b, t, h] + (0.0 if params.dt_bias is None else params.dt_bias[h])
        dt = math.log1p(math.exp(dt)) if params.dt_softplus else dt
        dt = min(max(dt, low), high)
        D = 0.0 if params.D is None else params.D[h] if params.D.ndim == 1 else params.D[h, p]
        total = D * w.x[b, t, h, p]
        for n in range(S.shape[3]):
            S[b, h, p, n] = math.exp(dt * params.A[h]) * S[b, h, p, n] + dt * w.x[b, t, h, p] * w.B[b, t, g, n]
            total += S[b, h, p, n] * w.C[b, t, g, n]
        gate = 1.0 if w.z is None else w.z[b, t, h, p] / (1 + math.exp(-w.z[b, t, h, p]))
        y[b, t, h, p] = total * gate
    return y, S


def loop_selective(S: Array, w: selective.SelectiveWindow, params: selective.SelectiveParams) -> tuple[Array, Array]:
    S, y = S.copy(), np.zeros_like(w.x)
    for b, t, d in np.ndindex(*w.x.shape):
        dt = w.dt[b, t, d] + (0.0 if params.dt_bias is None else params.dt_bias[d])
        dt = math.log1p(math.exp(dt)) if params.dt_softplus else dt
        total = 0.0 if params.D is None else params.D[d] * w.x[b, t, d]
        for n in range(S.shape[2]):
            S[b, d, n] = math.exp(dt * params.A[d, n]) * S[b, d, n] + dt * w.x[b, t, d] * w.B[b, t, n]
            total += S[b, d, n] * w.C[b, t, n]
        gate = 1.0 if w.z is None else w.z[b, t, d] / (1 + math.exp(-w.z[b, t, d]))
        y[b, t, d] = total * gate
    return y, S


def loop_delta(S: Array, w: delta.DeltaWindow, params: delta.DeltaParams) -> tuple[Array, Array]:
    S, o = S.copy(), np.zeros_like(w.v)
    K, V = S.shape[2:]
    for b, t, h in np.ndindex(*w.v.shape[:3]):
        group = h * w.q.shape[2] // w.v.shape[2]
        q, k = w.q[b, t, group].tolist(), w.k[b, t, group].tolist()
        if params.l2_norm:
            q, k = ([x / math.sqrt(sum(y * y for y in xs) + params.eps) for x in xs] for xs in (q, k))
        scale = K**-0.5 if params.scale is None else params.scale
        for i in range(K):
            S[b, h, i] *= math.exp(w.g[b, t, h] if w.g.ndim == 3 else w.g[b, t, h, i])
        for v in range(V):
            miss = w.v[b, t, h, v] - sum(S[b, h, i, v] * k[i] for i in range(K))
            for i in range(K):
                S[b, h, i, v] += w.beta[b, t, h] * k[i] * miss
            o[b, t, h, v] = sum(S[b, h, i, v] * scale * q[i] for i in range(K))
    return o, S


LOOPS: dict[str, Callable[..., Any]] = {"ssd": loop_ssd, "delta": loop_delta, "selective": loop_selective}


@settings(quick, max_examples=150)
@given(drawn_case(tokens=4))
def test_scan_equals_plain_loops_over_scalars(case: Any) -> None:
    recurrence, S, window, params, _ = case
    name = recurrence.definition.__name__.split(".")[-1]
    y, S_next = recurrence.definition.scan(S, window, params)
    y_loop, S_loop = LOOPS[name](S, window, params)
    assert deviation(y, y_loop) <= TOLERANCE
    assert deviation(S_next, S_loop) <= TOLERANCE


# --------------------------------------------------------------------------------------------------------- laws of runs


@settings(quick, max_examples=150)
@given(drawn_case(), st.data())
def test_a_run_in_two_parts_is_the_run_and_the_run_is_its_steps(case: Any, data: st.DataObject) -> None:
    recurrence, S, window, params, _ = case
    run, length = recurrence.definition, tokens(window)
    y, after = run.states(S, window, params)
    cut = data.draw(st.integers(1, length))
    first, S_cut = run.scan(S, records.prefix(window, cut), params)
    assert same_bits(first, np.ascontiguousarray(y[:, :cut]))
    assert same_bits(S_cut, np.ascontiguousarray(after[:, cut - 1]))
    if cut < length:
        rest, S_end = run.scan(S_cut, records.each(lambda a: a[:, cut:], window), params)
        assert same_bits(rest, np.ascontiguousarray(y[:, cut:]))
        assert same_bits(S_end, np.ascontiguousarray(after[:, -1]))
    y_step, S_step = run.step(S, window.token(0), params)
    assert same_bits(y_step, np.ascontiguousarray(y[:, 0]))
    assert same_bits(S_step, np.ascontiguousarray(after[:, 0]))


@settings(quick, max_examples=150)
@given(drawn_case(tokens=6))
def test_inserting_no_ops_anywhere_changes_no_bit(case: Any) -> None:
    recurrence, S, window, params, rng = case
    length, rows = tokens(window), S.shape[0]
    place = np.sort(rng.permutation(2 * length)[:length])
    live = np.isin(np.arange(2 * length), place)

    def stretch(a: Array) -> Array:
        long = np.resize([np.nan, np.inf, -np.inf], (rows, 2 * length, *a.shape[2:]))
        long[:, live] = a
        return long

    mask = np.broadcast_to(live, (rows, 2 * length)).copy()
    y, after = recurrence.definition.states(S, window, params)
    y_long, after_long = recurrence.definition.states(S, records.each(stretch, window), params, mask)
    seen = np.concatenate([S[:, None], after], axis=1)[:, np.cumsum(live)]  # the state after each token, no-op or not
    assert same_bits(np.ascontiguousarray(y_long[:, live]), y)
    assert same_bits(after_long, seen)
    assert not y_long[:, ~live].any()


@settings(quick, max_examples=80)
@given(drawn_case())
def test_a_state_and_an_input_twice_as_large_give_twice_the_output_exactly(case: Any) -> None:
    recurrence, S, window, params, _ = case
    input_name = "v" if recurrence.definition is delta else "x"
    doubled = replace(window, **{input_name: 2 * getattr(window, input_name)})
    y, S_next = recurrence.definition.scan(S, window, params)
    y_twice, S_twice = recurrence.definition.scan(2 * S, doubled, params)
    assert same_bits(y_twice, 2 * y)
    assert same_bits(S_twice, 2 * S_next)


@settings(quick, max_examples=80)
@given(drawn_case())
def test_rows_are_independent_of_each_other(case: Any) -> None:
    recurrence, S, window, params, _ = case
    y, S_next = recurrence.definition.scan(S, window, params)
    for b in range(S.shape[0]):
        alone = recurrence.definition.scan(S[b : b + 1], records.rows(window, np.array([b])), params)
        assert deviation(alone[0][0], y[b]) <= TOLERANCE
        assert deviation(alone[1][0], S_next[b]) <= TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
def test_ssd_is_the_selective_scan_with_one_decay_per_head(family: families.Family) -> None:
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


@pytest.mark.parametrize("family", FAMILIES)
def test_a_gate_that_is_the_same_in_every_channel_is_the_gate_of_the_head(family: families.Family) -> None:
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
    with pytest.raises(ParameterError, match="finite A"):
        delta.gates(a, a, np.array([-1.0, wrong, -2.0]), np.zeros(3))


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
    recurrence = RECURRENCES[name]
    S, window, params = recurrence.case(2, Sizes(), "gentle")
    live = np.array([[1, 0, 1, 1, 0, 1, 1], [0, 0, 1, 1, 1, 1, 0]], dtype=bool)
    y_ref, S_ref = recurrence.chunked.scan(S, window, params, live)
    monkeypatch.setattr(recurrence.definition, "masked", NO_OP_FAULTS[fault])
    y, S_next = recurrence.definition.scan(S, window, params, live)
    assert not (deviation(y, y_ref) <= TOLERANCE and deviation(S_next, S_ref) <= TOLERANCE)


@pytest.mark.parametrize("kept", ["g", "beta", "q"])
def test_planted_no_ops_of_the_delta_rule_are_caught(kept: str, monkeypatch: pytest.MonkeyPatch) -> None:
    S, window, params = families.delta_case(2, Sizes(), "gentle")
    live = np.array([[1, 0, 1, 1, 0, 1, 1], [0, 0, 1, 1, 1, 1, 0]], dtype=bool)
    o_ref, S_ref = delta_chunked.scan(S, window, params, live)
    fields = {"g": ["g"], "beta": ["beta", "k", "v"], "q": ["q"]}[kept]
    partly = replace(records.masked(window, live), **{name: getattr(window, name) for name in fields})
    o, S_next = delta.scan(S, partly, params)
    assert not (deviation(o, o_ref) <= TOLERANCE and deviation(S_next, S_ref) <= TOLERANCE)
