"""Faults planted in the recurrences, the convolution and their second derivations: each is caught by the other one."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ssmspec_ref import conv, delta, records, selective, ssd
from ssmspec_ref.conv import filter as conv_filter
from ssmspec_ref.decay_matrix import decays
from ssmspec_ref.delta import chunked as delta_chunked
from ssmspec_ref.functions import softplus
from ssmspec_ref.shapes import Array
from tests import families
from tests.families import TOLERANCE, Sizes, same_bits

from .recurrences import DECAYING, LIVE, case

# ------------------------------------------------------------------------------------- planted faults in the definition


def keys_wrong(change: Callable[[Array, Array, int, delta.DeltaParams], tuple[Array, Array]]) -> Any:
    true = delta.keys_and_queries

    def wrong(q: Array, k: Array, heads: int, params: delta.DeltaParams) -> tuple[Array, Array]:
        return change(*true(q, k, heads, params), heads, params)

    return wrong


def moved(change: Callable[[Array, Array], Array]) -> Callable[..., Any]:
    """A step of the convolution whose next window, from (M, u), is another."""

    def step(M: Array, u: Array, params: conv.ConvParams) -> tuple[Array, Array]:
        M_next = change(M, u)
        return conv.read(M_next, params), M_next

    return step


def read_by(change: Callable[[conv.ConvParams], conv.ConvParams]) -> Callable[..., Any]:
    """A reading of the window by other taps."""
    true = conv.read
    return lambda M, params: true(M, change(params))


REMAINDER = lambda x, n, axis: np.concatenate([x] * n, axis=axis)  # noqa: E731
OF_ANY_DECAY = [("decay 1", "decay", np.ones_like)]
OF_MAMBA = [
    *OF_ANY_DECAY,
    ("no softplus", "softplus", lambda x: np.maximum(x, 0.0)),
    ("sigmoid for silu", "silu", lambda z: 1 / (1 + np.exp(-z))),
]
OF_DELTA = [
    *OF_ANY_DECAY,
    ("head h reads key head h % g", "repeat", REMAINDER),
    ("no scale", "keys_and_queries", keys_wrong(lambda q, k, h, p: (q * q.shape[-1] ** 0.5, k))),
    ("scale on the key", "keys_and_queries", keys_wrong(lambda q, k, h, p: (q * 2.0, k / 2.0))),
    ("query and key exchanged", "keys_and_queries", keys_wrong(lambda q, k, h, p: (k, q))),
    ("decay in base 2", "decay", np.exp2),
]
FAULTS: dict[str, tuple[Any, Any, list[tuple[str, str, Any]]]] = {
    "ssd": (
        ssd,
        case("ssd", 8, Sizes(), "mamba", dt_limit=(0.02, 0.4)),
        [
            *OF_MAMBA,
            ("head h reads group h % g", "per_head", lambda x, heads: REMAINDER(x, heads // x.shape[-2], -2)),
            ("dt_bias after the softplus", "step_size", lambda dt, p: np.clip(softplus(dt) + p.dt_bias, *p.dt_limit)),
            ("dt clipped at 0.1", "step_size", lambda dt, p: np.minimum(softplus(dt + p.dt_bias), 0.1)),
            ("dt limits ignored", "step_size", lambda dt, p: softplus(dt + p.dt_bias)),
            ("no D", "skip", lambda x, D: np.zeros_like(x)),
            ("D of the next head", "skip", lambda x, D: np.roll(D, 1, axis=0) * x),
            ("decay in base 2", "decay", np.exp2),
        ],
    ),
    "delta": (delta, case("delta", 8, Sizes()), OF_DELTA),
    "delta_channel": (delta, case("delta", 8, Sizes(), channel_gate=True), OF_DELTA),
    "selective": (
        selective,
        case("selective", 8, Sizes(), "mamba"),
        [
            *OF_MAMBA,
            ("one decay for all states of a channel", "decay", lambda x: np.exp(np.broadcast_to(x[:, :, :1], x.shape))),
            ("dt_bias after the softplus", "step_size", lambda dt, p: softplus(dt) + p.dt_bias),
        ],
    ),
    "conv": (
        conv,
        case("conv", 5, Sizes()),
        [
            ("newest input first", "step", moved(lambda M, u: np.concatenate([u[:, :, None], M[:, :, :-1]], axis=2))),
            (
                "newest input one place early",
                "step",
                moved(lambda M, u: np.concatenate([M[:, :, 2:], u[:, :, None], M[:, :, -1:]], axis=2)),
            ),
            ("window never moves", "step", moved(lambda M, u: np.concatenate([M[:, :, :-1], u[:, :, None]], axis=2))),
            ("history forgotten", "step", moved(lambda M, u: np.concatenate([0 * M[:, :, 1:], u[:, :, None]], axis=2))),
            ("taps reversed", "read", read_by(lambda p: replace(p, weight=p.weight[:, ::-1]))),
            ("bias left out", "read", read_by(lambda p: replace(p, bias=None))),
            ("no activation", "read", read_by(lambda p: replace(p, activation=False))),
            ("taps of the next channel", "read", read_by(lambda p: replace(p, weight=np.roll(p.weight, 1, axis=0)))),
        ],
    ),
}


@pytest.mark.parametrize(
    ("name", "fault", "attribute", "wrong"),
    [pytest.param(name, *row, id=f"{name}-{row[0]}") for name in FAULTS for row in FAULTS[name][2]],
)
def test_planted_faults_are_caught(
    name: str, fault: str, attribute: str, wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, c, _ = FAULTS[name]
    ref = c.chunks()
    assert c.near(c.scan(), ref)
    monkeypatch.setattr(module, attribute, wrong)
    assert not c.near(c.scan(), ref)


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
    c = case("delta", 8, Sizes(k=4, v=4, t=1 if fault == "state transposed" else 7))
    ref = c.chunks()
    monkeypatch.setattr(delta, "step", wrong_delta_step(fault))
    wrong = c.scan()
    assert not c.near(wrong, ref)
    if fault == "state transposed":  # the output alone does not show it where k = v
        assert c.near(wrong[0], ref[0])


def zeroed_before_only(M: Array, u: Array, live: Array, params: conv.ConvParams) -> tuple[Array, Array]:
    """No-ops set to 0 before the convolution and then convolved: they take a place in the order."""
    return conv.scan(M, records.masked(u, live), params)


def output_kept(M: Array, u: Array, live: Array, params: conv.ConvParams) -> tuple[Array, Array]:
    """No-ops stay out of the window, but their output, bias and all, goes on."""
    outputs = []
    for t in range(u.shape[1]):
        y, M_next = conv.step(M, u[:, t], params)
        M = np.where(live[:, t, None, None], M_next, M)
        outputs.append(y)
    return np.stack(outputs, axis=1), M


@pytest.mark.parametrize("fault", [zeroed_before_only, output_kept])
def test_planted_no_ops_of_a_convolution_are_caught(fault: Callable[..., Any]) -> None:
    c = case("conv", 6, Sizes())
    assert c.near(c.scan(LIVE), c.chunks(live=LIVE))
    assert not c.near(fault(c.S, c.window, LIVE, c.params), c.chunks(live=LIVE))


@pytest.mark.parametrize("shift", [-1, 1, "from the start", "to the end"])
def test_planted_commits_are_caught(shift: int | str) -> None:
    M, u, params = families.conv_case(7, Sizes())
    advanced = np.array([2, 5])
    begin = {"from the start": 0 * advanced, "to the end": 0 * advanced + u.shape[1]}.get(shift)  # type: ignore[arg-type]
    columns = (advanced + shift if begin is None else begin)[:, None] + np.arange(M.shape[2])
    ext = np.concatenate([M, u.transpose(0, 2, 1)], axis=2)
    wrong = np.take_along_axis(ext, columns[:, None, :], axis=2)
    _, M_ref = conv_filter.scan(M, u, params, np.arange(u.shape[1]) < advanced[:, None])
    assert same_bits(conv.commit(M, u, advanced), M_ref)
    assert not same_bits(wrong, M_ref)


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
@pytest.mark.parametrize("name", DECAYING)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_planted_decay_matrices_are_caught(
    name: str, wrong: Any, family: families.Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    c = case(name, 8, Sizes(t=40), family)
    assert c.near(c.chunks(32), c.scan())
    monkeypatch.setattr(c.recurrence.chunked, "decays", wrong)
    assert not c.near(c.chunks(32), c.scan())


def test_planted_loss_of_the_ragged_chunk_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    c = case("delta", 8, Sizes(t=9))
    monkeypatch.setattr(delta_chunked, "pieces", lambda t, c: [(i, i + c) for i in range(0, t - t % c, c)])
    assert not c.near(delta_chunked.scan(c.S, c.window, c.params, chunk=4)[1], c.scan()[1])


def test_decays_keep_a_gentle_stretch_behind_a_strong_one() -> None:
    log_decay = np.array([0.0, -3e5, -1e-9, -1e-9])
    true = np.array([0.0, math.exp(-2e-9), math.exp(-1e-9), 1.0])
    run = np.cumsum(log_decay)
    assert np.max(np.abs(decays(log_decay)[3] - true)) <= 2**-52  # one ulp of exp
    assert np.max(np.abs(np.exp(run[3] - run) - true)) > TOLERANCE  # the difference of running sums
