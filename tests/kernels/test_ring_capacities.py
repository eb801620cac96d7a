"""Rings of every capacity from 1 to 64: a token and a window behind a ring that becomes full, and behind one that does not.

A ring is laid out beforehand as the kernels leave it, around its end, so that one launch a capacity is enough: the history of
the first row fills it, that of the second is half as long.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from ssmspec_kernels.delta.ring import delta_buffered, delta_buffered_step
from ssmspec_kernels.ssd.ring import ssd_buffered, ssd_buffered_step
from ssmspec_ref.backtrack.replay_buffer import ReplayBuffer
from ssmspec_ref.error_bounds.arithmetic import Approx
from ssmspec_ref.errors import RingOverflow
from ssmspec_ref.records import each
from ssmspec_ref.shapes import Array
from tests.kernels import delta_cases, delta_plot, delta_rings, ssd_plot, ssd_rings
from tests.kernels.mutants import caught, mutated
from tests.kernels.tensors import check_within, doubles

CAPACITIES = range(1, 65)
ROWS = 2


def histories(capacity: int, tokens: int) -> tuple[int, int]:
    """What the rows hold before a token, or before a window; the first row's is all that may be held then."""
    most = capacity - tokens
    return most, most // 2


def places(origin: int, held: int, capacity: int) -> Array:
    return (origin + np.arange(held)) % capacity


def begins(row: int, capacity: int) -> int:
    """Where a row's history begins: in the middle of the ring, or with its last entry."""
    return capacity // 2 if row == 0 else capacity - 1


def rows(window: Any, i: int, tokens: slice) -> Any:
    return each(lambda a: a[i : i + 1, tokens], window)


def check_ssd(module: ModuleType, capacity: int, tokens: int, launcher: str, due: Callable[[int], bool]) -> None:
    """Outputs, appended entries and checkpoints; a checkpoint moves where a row is due, and only there."""
    o = ssd_plot.Options(
        b=ROWS,
        t=capacity,
        h=1,
        g=1,
        p=3,
        n=5,
        io="bf16",
        softplus=False,
        bias=False,
        gentle=True,
        padding=False,
        seed=capacity,
    )
    call, ring = ssd_plot.drawn(launcher, o), ssd_rings.ring_of(o, capacity, capacity)
    S, window, start, before = call["S"], ssd_plot.window(call), call.state(), call["S"].clone()
    first, counts = capacity - tokens, histories(capacity, tokens)
    oracles = [ssd_rings.Oracle(o, start[i : i + 1], ssd_plot.params(call)) for i in range(ROWS)]
    for i, (slot, held) in enumerate(zip(call["slots"].tolist(), counts, strict=True)):
        ring.origin[slot] = begins(i, capacity)
        at, taken = places(int(ring.origin[slot]), held, capacity), slice(first - held, first)
        for name in ("x", "dt", "B"):
            getattr(ring, name)[slot, at] = call[name][i, taken].to(getattr(ring, name).dtype)
        ring.held[slot] = held
        if held:
            oracles[i].take(rows(window, i, taken), held)
    call.run(module, ring=ring, **call.cut(slice(first, None)))
    for i, (slot, held) in enumerate(zip(call["slots"].tolist(), counts, strict=True)):
        token = rows(window, i, slice(first, None))
        check_within(doubles(call["out"][i : i + 1, first:]), oracles[i].read(token)[0])
        if launcher.endswith("step"):
            oracles[i].take(token, 1)
        if due(held) and oracles[i].held:
            check_within(doubles(S[slot][None]), oracles[i].flush())
        else:
            assert torch.equal(S[slot], before[slot])
        if not (due(held) and launcher.endswith("step")):
            behind = places(int(ring.origin[slot]) + held, tokens, capacity)
            assert torch.equal(ring.x[slot, behind], call["x"][i, first:]), f"{capacity}: appended elsewhere"


def solved(S: Array, k: Array, v: Array, g: Array, beta: Array) -> Array:
    """u_t = beta_t (v_t - (exp(g_t) S)^T k_t), S' = exp(g_t) S + k_t u_t^T, of one head (h = 1): what a ring holds."""
    u = np.empty_like(v)
    for t in range(len(v)):
        S = np.exp(g[t]) * S
        u[t] = beta[t] * (v[t] - k[t] @ S)
        S = S + np.outer(k[t], u[t])
    return u


def check_delta(module: ModuleType, capacity: int, tokens: int, launcher: str, due: Callable[[int], bool]) -> None:
    """The same for the delta rule, the ring's u solved in float64."""
    o = delta_plot.Options(b=ROWS, t=capacity, h=1, g=1, k=18, v=4, io="bf16", l2_norm=False, gentle=True, seed=capacity)
    case, ring = delta_cases.draw(o, padding=False), delta_rings.ring_of(o, capacity, torch.float32, capacity)
    (window, _), start, before = case.window(), case.state(), case.S.clone()
    first, counts = capacity - tokens, histories(capacity, tokens)
    oracles = [delta_rings.Oracle(o, start[i : i + 1], ring="fp32") for i in range(ROWS)]
    for i, (slot, held) in enumerate(zip(case.slots.tolist(), counts, strict=True)):
        ring.origin[slot] = begins(i, capacity)
        at, taken = places(int(ring.origin[slot]), held, capacity), slice(first - held, first)
        k, v, g, beta = (x[i, taken, 0] for x in (window.k, window.v, window.g, window.beta))
        ring.u[slot, at, 0] = torch.from_numpy(solved(start[i, 0], k, v, g, beta)).float()
        ring.k[slot, at], ring.g[slot, at], ring.held[slot] = case.k[i, taken], case.g[i, taken], held
        if held:
            oracles[i].take(rows(window, i, taken), {}, held)
    given = {name: getattr(case, name)[:, first:] for name in ("q", "k", "v", "g", "beta")}
    named: dict[str, Any] = {"slots": case.slots, "out": case.out[:, first:], "l2_norm": False}
    getattr(module, launcher)(S=case.S, ring=ring, **given, **named)
    for i, (slot, held) in enumerate(zip(case.slots.tolist(), counts, strict=True)):
        token = rows(window, i, slice(first, None))
        delta_cases.assert_within(f"o {capacity} {held}", case.out[i : i + 1, first:], oracles[i].read(token, {})[0])
        if launcher.endswith("step"):
            oracles[i].take(token, {}, 1)
        if due(held) and oracles[i].held:
            oracles[i].flush()
            flushed = Approx(oracles[i].S, oracles[i].error, oracles[i].contract)
            delta_cases.assert_within(f"S {capacity} {held}", case.S[slot][None], flushed)
        else:
            assert delta_cases.untouched(case.S[slot], before[slot])
        if not (due(held) and launcher.endswith("step")):
            behind = places(int(ring.origin[slot]) + held, tokens, capacity)
            assert torch.equal(ring.k[slot, behind], case.k[i, first:]), f"{capacity}: appended elsewhere"


def check_step(module: ModuleType, capacity: int) -> None:
    """A single token, which fills the ring of the first row."""
    check, name = (
        (check_ssd, "ssd_buffered_step") if hasattr(module, "ssd_buffered_step") else (check_delta, "delta_buffered_step")
    )
    check(module, capacity, 1, name, lambda held: held + 1 == capacity)


def check_window(module: ModuleType, capacity: int) -> None:
    """A window of two tokens, or of one where two never fit; the first row is due."""
    check, name = (check_ssd, "ssd_buffered") if hasattr(module, "ssd_buffered") else (check_delta, "delta_buffered")
    tokens = 2 if capacity >= 4 else 1
    check(module, capacity, tokens, name, lambda held: bool(ReplayBuffer(capacity, tokens).due(np.array(held))))


@pytest.mark.parametrize("module", [ssd_buffered_step, delta_buffered_step])
def test_a_token_of_every_capacity_lies_within_the_bound(module: ModuleType) -> None:
    for capacity in CAPACITIES:
        check_step(module, capacity)


@pytest.mark.parametrize("module", [ssd_buffered, delta_buffered])
def test_a_window_of_every_capacity_lies_within_the_bound(module: ModuleType) -> None:
    for capacity in CAPACITIES[1:]:
        check_window(module, capacity)


@pytest.mark.parametrize(
    ("module", "check", "old", "at"),
    [
        (ssd_buffered_step, check_step, "CAPACITY=ring.capacity", None),
        (ssd_buffered, check_window, "CAPACITY=ring.capacity", "launch_short"),
        (delta_buffered_step, check_step, "L2_NORM=l2_norm, CAPACITY=ring.capacity", None),
        (delta_buffered, check_window, 'DENSE=S.stride(2) == axes["v"], CAPACITY=ring.capacity', None),
    ],
)
def test_a_ring_that_is_wrong_at_one_capacity_only_is_caught_there_and_passes_elsewhere(
    module: ModuleType, check: Callable[..., None], old: str, at: str | None
) -> None:
    """Entries behind the end of a ring of 27 are taken for those of a longer one."""
    mutant = mutated(module, old, f"{old} + (ring.capacity == 27)", at=at)
    assert [capacity for capacity in (25, 26, 27, 28) if caught(mutant, check, [capacity])] == [27]


@pytest.mark.parametrize("module", [ssd_buffered, delta_buffered])
def test_a_ring_that_two_windows_do_not_fit_is_refused(module: ModuleType) -> None:
    with pytest.raises(RingOverflow):
        check_window(module, 1)
