"""Exact probes: the same bits in every order, association and format; a fault of logic, or of precision, differs."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssmspec_ref import conv, exact_probes, ssd
from ssmspec_ref.contract import NumericContract
from ssmspec_ref.errors import ParameterError
from ssmspec_ref.exact_probes import conv_probe, delta_probe, selective_probe, ssd_probe
from ssmspec_ref.records import concat, prefix
from tests.families import examples, same_bits, seeds
from tests.low_precision import SUMS, Machine, rounded, stored

from . import recurrences
from .refusals import refused

PROBES: dict[str, tuple[Callable[..., tuple[Any, Any, Any]], recurrences.Recurrence, str]] = {
    "ssd": (ssd_probe, recurrences.SSD, "ssd"),
    "selective": (selective_probe, recurrences.SELECTIVE, "selective"),
    "delta": (delta_probe, recurrences.DELTA, "delta"),
    "kda": (lambda rng, **o: delta_probe(rng, channel_gate=True, **o), recurrences.DELTA, "delta"),
}
"""The draw, the recurrence, and what computes it in low precision."""
each_probe = pytest.mark.parametrize("kind", PROBES)
ANY_FORMAT = [
    NumericContract(),
    NumericContract(dot="tf32", exp="ex2", softplus="log"),
    NumericContract(state="bf16", dot="bf16", stored_every_token=True, ring="bf16"),
    NumericContract(state="fp16", dot="tf32", stored_every_token=True),
]
few = examples(6)


@each_probe
@few
@given(
    seed=seeds,
    t=st.integers(1, 11),
    groups=st.integers(1, 2),
    chunk=st.integers(1, 6),
    form=st.sampled_from(["bf16", "fp32"]),
)
def test_a_probe_has_one_result_in_every_order_and_format_that_holds_it(
    kind: str, seed: int, t: int, groups: int, chunk: int, form: Any
) -> None:
    draw, recurrence, name = PROBES[kind]
    sizes = {"t": t} if kind == "selective" else {"t": t, "g": groups, "h": 2 * groups}
    S, window, params = draw(np.random.default_rng(seed), form=form, **sizes)
    y, S_next = recurrence.definition.scan(S, window, params)
    assert _equal(recurrence.chunked.scan(S, window, params, chunk=chunk), (y, S_next))
    for contract in ANY_FORMAT if form == "bf16" else ANY_FORMAT[:1]:
        for order in ("sequential", "chunked", "output_only"):
            for i, sums in enumerate(SUMS):
                machine = Machine(replace(contract, order=order, chunk=chunk), sums, variant=(seed + i) % 2)
                got = getattr(machine, name)(S, window, params)
                assert _equal(got, (y, S_next))


@few
@given(seed=seeds, t=st.integers(1, 9), c=st.integers(1, 6), w=st.integers(2, 5), activation=st.booleans())
def test_a_probe_of_the_convolution_has_one_result(seed: int, t: int, c: int, w: int, activation: bool) -> None:
    M, u, params = conv_probe(np.random.default_rng(seed), t=t, c=c, w=w, activation=activation)
    y, M_next = conv.scan(M, u, params)
    for contract in ANY_FORMAT:
        for sums in SUMS:
            for variant in (0, 1):
                got = Machine(contract, sums, variant).conv(M, u, params)
                assert _equal(got, (y, M_next))


@each_probe
def test_every_number_of_a_probe_fits_the_format(kind: str) -> None:
    for form in ("bf16", "fp32"):
        for record in PROBES[kind][0](np.random.default_rng(1), form=form):
            assert same_bits(stored(record, "bf16" if form == "bf16" else "fp32"), record)
    M, u, params = conv_probe(np.random.default_rng(1))
    assert all(same_bits(stored(record, "bf16"), record) for record in (M, u, params))
    assert np.all(params.bias != 0)


@each_probe
def test_decays_of_a_probe_are_0_and_1(kind: str) -> None:
    _, window, params = PROBES[kind][0](np.random.default_rng(2))
    if kind in ("ssd", "selective"):
        dt = PROBES[kind][1].definition.step_size(window.dt, params)
        assert set(np.unique(dt)) <= {0.0, 48.0, 64.0, 80.0}
        assert np.all(params.dt_bias != 0)
    assert set(np.unique(_decays(kind, window, params))) == {0.0, 1.0}


@each_probe
@pytest.mark.parametrize("fault", ["token lost", "token added", "decay skipped once", "zeroed input", "state not used"])
def test_planted_logic_fault_is_caught_by_equality(kind: str, fault: str) -> None:
    draw, recurrence, name = PROBES[kind]
    for seed in range(5):
        S, window, params = draw(np.random.default_rng(seed))
        expected = recurrence.definition.scan(S, window, params)
        machine = Machine(NumericContract())
        if fault == "zeroed input":
            for field in fields(window):
                wrong = replace(window, **{field.name: np.zeros_like(getattr(window, field.name))})
                assert not _equal(getattr(machine, name)(S, wrong, params), expected), field.name
        elif fault == "state not used":
            assert not _equal(getattr(machine, name)(np.zeros_like(S), window, params), expected)
        elif fault == "decay skipped once":
            if np.all(_decays(kind, window, params)[:, 0] == 1):
                continue
            assert not _equal(getattr(Machine(NumericContract(), fault=fault), name)(S, window, params), expected)
        else:
            other = prefix(window, 5) if fault == "token lost" else concat(window, prefix(window, 1))
            if _idle(kind, window.token(-1 if fault == "token lost" else 0), params):
                continue  # a token that changes no state: adding or losing it is no fault of the state
            assert not _equal(getattr(machine, name)(S, other, params)[1:], expected[1:])


def _equal(got: Any, expected: Any) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(got, expected, strict=True))


def _decays(kind: str, window: Any, params: Any) -> Any:
    if kind in ("delta", "kda"):
        return np.exp(window.g)
    dt = PROBES[kind][1].definition.step_size(window.dt, params)
    return np.exp(dt * params.A if kind == "ssd" else dt[..., None] * params.A)


def _idle(kind: str, token: Any, params: Any) -> bool:
    """A key that is written again with the same value, a token without dt: the state stays."""
    if kind in ("delta", "kda"):
        return bool(np.all((token.beta == 0) | (token.g.reshape(*token.beta.shape, -1).max(axis=-1) == 0)))
    return bool(np.all(PROBES[kind][1].definition.step_size(token.dt, params) == 0))


@each_probe
@pytest.mark.parametrize("fault", ["state in bf16", "tf32 dot"])
def test_probes_of_16_bits_see_precision_faults_that_probes_of_8_bits_pass(kind: str, fault: str) -> None:
    draw, recurrence, name = PROBES[kind]
    wrong = {"state in bf16": NumericContract(state="bf16"), "tf32 dot": NumericContract(dot="tf32")}[fault]
    for seed in range(5):
        for form, seen in (("fp32", True), ("bf16", False)):
            S, window, params = draw(np.random.default_rng(seed), form=form)
            got = getattr(Machine(wrong), name)(S, window, params)
            assert _equal(got, recurrence.definition.scan(S, window, params)) is not seen


def test_draws_that_hide_an_input_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A state without a key to read it, a bias of 0: the generator refuses both, and says what to do."""
    monkeypatch.setattr(exact_probes, "TRIES", 3)
    refused(
        ParameterError,
        r"none of 3 draws .* every input mattering; give more tokens",
        ssd_probe,
        np.random.default_rng(0),
        b=1,
        t=500,
        h=4,
        g=1,
        p=8,
        n=8,
    )  # outgrows 8 bits
    monkeypatch.setattr(exact_probes, "_integers", lambda rng, most, *shape: np.full(shape, 1.0))
    refused(ParameterError, "every input mattering", ssd_probe, np.random.default_rng(0))
    monkeypatch.undo()
    monkeypatch.setattr(exact_probes, "TRIES", 3)
    monkeypatch.setattr(exact_probes, "_first_state", lambda rng, form, *shape: np.zeros(shape))
    refused(ParameterError, "every input mattering", delta_probe, np.random.default_rng(0))


def test_planted_generator_without_its_filter_passes_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the filter a draw with D = 0 is handed out, and a missing D goes unseen."""
    monkeypatch.setattr(exact_probes, "_all_matter", lambda scan, *inputs, step=1.0: True)
    monkeypatch.setattr(exact_probes, "_integers", lambda rng, most, *shape: np.zeros(shape) if most == 4 else np.ones(shape))
    S, window, params = ssd_probe(np.random.default_rng(0))
    got = Machine(NumericContract()).ssd(S, window, replace(params, D=None))
    assert _equal(got, ssd.scan(S, window, params))


def test_rounding_in_these_tests_is_to_nearest_even() -> None:
    """1 + 2^-8 lies halfway between two bf16 numbers and goes to the even one; 1 + 3 2^-8 too."""
    x = np.array([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20], dtype=np.float32)
    assert rounded(x, "bf16").tolist() == [1.0, 1 + 2**-6, 1 + 2**-7]
    assert rounded(np.array([1 + 2**-11, 1 + 3 * 2**-11], dtype=np.float32), "tf32").tolist() == [1.0, 1 + 2**-9]
