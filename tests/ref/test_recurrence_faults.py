"""Faults planted in the recurrences and their chunked forms: each is caught by the other derivation."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ssmspec_ref import delta, selective, ssd
from ssmspec_ref.decay_matrix import decays
from ssmspec_ref.delta import chunked as delta_chunked
from ssmspec_ref.functions import softplus
from ssmspec_ref.selective import chunked as selective_chunked
from ssmspec_ref.shapes import Array
from ssmspec_ref.ssd import chunked as ssd_chunked
from tests import families
from tests.families import TOLERANCE, Sizes, deviation

PAIRS = {
    "ssd": (ssd, ssd_chunked, families.ssd_case),
    "delta": (delta, delta_chunked, families.delta_case),
    "selective": (selective, selective_chunked, families.selective_case),
}

# ------------------------------------------------------------------------------------- planted faults in the definition


def late_bias(dt: Array, params: Any) -> Array:
    return np.clip(softplus(dt) + params.dt_bias, *params.dt_limit)


def clipped(dt: Array, params: Any) -> Array:
    return np.minimum(softplus(dt + params.dt_bias), 0.1)


def unlimited(dt: Array, params: Any) -> Array:
    return softplus(dt + params.dt_bias)


SSD_FAULTS: list[tuple[str, str, Any]] = [
    ("head h reads group h % g", "per_head", lambda x, heads: np.concatenate([x] * (heads // x.shape[-2]), axis=-2)),
    ("dt_bias after the softplus", "step_size", late_bias),
    ("dt clipped at 0.1", "step_size", clipped),
    ("dt limits ignored", "step_size", unlimited),
    ("no softplus", "softplus", lambda x: np.maximum(x, 0.0)),
    ("no D", "skip", lambda x, D: np.zeros_like(x)),
    ("D of the next head", "skip", lambda x, D: np.roll(D, 1, axis=0) * x),
    ("sigmoid for silu", "silu", lambda z: 1 / (1 + np.exp(-z))),
    ("decay 1", "exp", np.ones_like),
    ("decay in base 2", "exp", np.exp2),
]


@pytest.mark.parametrize(("fault", "name", "wrong"), SSD_FAULTS, ids=[f[0] for f in SSD_FAULTS])
def test_planted_faults_of_ssd_are_caught(fault: str, name: str, wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    S, window, params = families.ssd_case(8, Sizes(), "mamba", D="channel", dt_limit=(0.02, 0.4))
    y_ref, S_ref = ssd_chunked.scan(S, window, params)
    monkeypatch.setattr(ssd, name, wrong)
    y, S_next = ssd.scan(S, window, params)
    assert not (deviation(y, y_ref) <= TOLERANCE and deviation(S_next, S_ref) <= TOLERANCE)


def keys_wrong(change: Callable[[Array, Array, int, delta.DeltaParams], tuple[Array, Array]]) -> Any:
    true = delta.keys_and_queries

    def wrong(q: Array, k: Array, heads: int, params: delta.DeltaParams) -> tuple[Array, Array]:
        return change(*true(q, k, heads, params), heads, params)

    return wrong


DELTA_FAULTS: list[tuple[str, str, Any]] = [
    ("head h reads key head h % g", "repeat", lambda x, n, axis: np.concatenate([x] * n, axis=axis)),
    ("no scale", "keys_and_queries", keys_wrong(lambda q, k, h, p: (q * q.shape[-1] ** 0.5, k))),
    ("scale on the key", "keys_and_queries", keys_wrong(lambda q, k, h, p: (q * 2.0, k / 2.0))),
    ("query and key exchanged", "keys_and_queries", keys_wrong(lambda q, k, h, p: (k, q))),
    ("decay 1", "exp", np.ones_like),
    ("decay in base 2", "exp", np.exp2),
]


@pytest.mark.parametrize("channel_gate", [False, True])
@pytest.mark.parametrize(("fault", "name", "wrong"), DELTA_FAULTS, ids=[f[0] for f in DELTA_FAULTS])
def test_planted_faults_of_the_delta_rule_are_caught(
    fault: str, name: str, wrong: Any, channel_gate: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    S, window, params = families.delta_case(8, Sizes(), "gentle", channel_gate=channel_gate)
    o_ref, S_ref = delta_chunked.scan(S, window, params)
    monkeypatch.setattr(delta, name, wrong)
    o, S_next = delta.scan(S, window, params)
    assert not (deviation(o, o_ref) <= TOLERANCE and deviation(S_next, S_ref) <= TOLERANCE)


def wrong_delta_step(fault: str) -> Callable[..., Any]:
    def step(S: Array, token: delta.DeltaToken, params: delta.DeltaParams) -> tuple[Array, Array]:
        q, k = delta.keys_and_queries(token.q, token.k, token.v.shape[1], params)
        S_decayed = np.exp(token.g)[:, :, None, None] * S
        read = S if fault == "error before the decay" else S_decayed
        u = token.v - np.einsum("bhkv, bhk -> bhv", read, k)
        beta = token.beta[..., None]
        u = u - (1 - beta) * token.v if fault == "beta on the value only" else beta * u
        S_next = S_decayed + np.einsum("bhk, bhv -> bhkv", k, u)
        seen = S_decayed if fault == "output before the write" else S_next
        S_next = S_next.swapaxes(2, 3) if fault == "state transposed" else S_next
        return np.einsum("bhkv, bhk -> bhv", seen, q), S_next

    return step


@pytest.mark.parametrize(
    "fault", ["error before the decay", "beta on the value only", "output before the write", "state transposed"]
)
def test_planted_steps_of_the_delta_rule_are_caught(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    S, window, params = families.delta_case(8, Sizes(k=4, v=4, t=1 if fault == "state transposed" else 7), "gentle")
    o_ref, S_ref = delta_chunked.scan(S, window, params)
    monkeypatch.setattr(delta, "step", wrong_delta_step(fault))
    o, S_next = delta.scan(S, window, params)
    assert not (deviation(o, o_ref) <= TOLERANCE and deviation(S_next, S_ref) <= TOLERANCE)
    if fault == "state transposed":  # the output alone does not show it where k = v
        assert deviation(o, o_ref) <= TOLERANCE


SELECTIVE_FAULTS: list[tuple[str, str, Any]] = [
    ("one decay for all states of a channel", "exp", lambda x: np.exp(np.broadcast_to(x[:, :, :1], x.shape))),
    ("dt_bias after the softplus", "step_size", lambda dt, p: softplus(dt) + p.dt_bias),
    ("no softplus", "softplus", lambda x: np.maximum(x, 0.0)),
    ("decay 1", "exp", np.ones_like),
    ("sigmoid for silu", "silu", lambda z: 1 / (1 + np.exp(-z))),
]


@pytest.mark.parametrize(("fault", "name", "wrong"), SELECTIVE_FAULTS, ids=[f[0] for f in SELECTIVE_FAULTS])
def test_planted_faults_of_the_selective_scan_are_caught(
    fault: str, name: str, wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    S, window, params = families.selective_case(8, Sizes(), "mamba")
    y_ref, S_ref = selective_chunked.scan(S, window, params)
    monkeypatch.setattr(selective, name, wrong)
    y, S_next = selective.scan(S, window, params)
    assert not (deviation(y, y_ref) <= TOLERANCE and deviation(S_next, S_ref) <= TOLERANCE)


# ----------------------------------------------------------------------------------- planted faults in the chunked forms


def masked_after(log_decay: Array) -> Array:
    """The exponential of every stretch, reversed ones too, and the mask as a factor: inf 0."""
    run = np.cumsum(log_decay, axis=-1)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.exp(run[..., :, None] - run[..., None, :]) * np.tri(run.shape[-1])


def unmasked(log_decay: Array) -> Array:
    run = np.cumsum(log_decay, axis=-1)
    return np.exp(-np.abs(run[..., :, None] - run[..., None, :]))


def write_decays_at_once(log_decay: Array) -> Array:
    """The stretch from j to i with j's own decay counted too."""
    return decays(log_decay) * np.exp(log_decay)[..., None, :]


def start_kept(log_decay: Array) -> Array:
    """The state that the chunk starts from does not decay inside it."""
    L = decays(log_decay)
    L[..., :, 0] = 1.0
    return L


CHUNK_FAULTS = [
    (masked_after, "hard"),
    (unmasked, "gentle"),
    (write_decays_at_once, "gentle"),
    (start_kept, "gentle"),
]


@pytest.mark.parametrize(("wrong", "family"), CHUNK_FAULTS, ids=[f[0].__name__ for f in CHUNK_FAULTS])
@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_planted_decay_matrices_are_caught(
    name: str, wrong: Any, family: families.Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    definition, chunked, case = PAIRS[name]
    S, window, params = case(8, Sizes(t=40), family)
    y, S_next = definition.scan(S, window, params)
    monkeypatch.setattr(chunked, "decays", wrong)
    y_chunked, S_chunked = chunked.scan(S, window, params, chunk=32)
    assert not (deviation(y_chunked, y) <= TOLERANCE and deviation(S_chunked, S_next) <= TOLERANCE)


def test_planted_loss_of_the_ragged_chunk_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    S, window, params = families.delta_case(8, Sizes(t=9), "gentle")
    _, S_next = delta.scan(S, window, params)
    monkeypatch.setattr(delta_chunked, "pieces", lambda t, c: [(i, i + c) for i in range(0, t - t % c, c)])
    _, S_chunked = delta_chunked.scan(S, window, params, chunk=4)
    assert not deviation(S_chunked, S_next) <= TOLERANCE


def test_decays_keep_a_gentle_stretch_behind_a_strong_one() -> None:
    log_decay = np.array([0.0, -3e5, -1e-9, -1e-9])
    true = np.array([0.0, math.exp(-2e-9), math.exp(-1e-9), 1.0])
    run = np.cumsum(log_decay)
    assert np.max(np.abs(decays(log_decay)[3] - true)) <= 2**-52  # one ulp of exp
    assert np.max(np.abs(np.exp(run[3] - run) - true)) > TOLERANCE  # the difference of running sums
