"""The delta rule's snapshots: every state within its bound, in its place, and nothing beside."""

from types import ModuleType

import numpy as np
import pytest
import torch

from conformance.interpreter.memory import watch
from ssmspec_kernels.delta import delta_snapshots as kernel
from ssmspec_kernels.delta.delta_scan import delta_scan
from ssmspec_ref import error_bounds as eb
from tests.kernels import delta_cases as cases
from tests.kernels.delta_cases import Case, Options
from tests.kernels.mutants import mutated

COVER = [
    Options(poison=7.0, spare=12),
    Options(t=4, channel=True, io="bf16", state="bf16", gentle=True, k=9, v=21, spare=14, seed=1),
    Options(t=2, raw=True, bias=True, live=True, io="fp16", state="fp16", spare=9, seed=2),
    Options(b=1, t=6, g=1, h=3, l2_norm=False, gentle=True, live=True, spare=9, seed=3),
]


def draw(o: Options) -> tuple[Case, torch.Tensor]:
    """A case, and places for its states: free slots out of order, one of them not kept, the last the row's own slot."""
    case = cases.draw(o)
    rng = np.random.default_rng(o.seed + 50)
    used = set(case.slots.tolist())
    free = rng.permutation([s for s in range(len(case.S)) if s not in used])
    places = free[: o.b * o.t].reshape(o.b, o.t)
    places[0, -1] = int(case.slots[0])
    places[0, 0] = places[0, 0] if o.t == 1 else -1
    return case, torch.from_numpy(places).to(case.slots.dtype)


def check(module: ModuleType, o: Options) -> None:
    case, places = draw(o)
    window, inexact = case.window()
    contract, fresh = o.contract(), cases.draw(o)
    y, states = eb.delta.states(case.state(), window, o.params(), contract, live=case.live(), inexact=inexact)
    before = {name: cases.whole(getattr(case, name)).clone() for name in ("q", "k", "v", "g", "beta", "S", "out")}
    assert case.call(module.delta_snapshots, places=places) is case.out
    cases.assert_within("o", case.out, y, case.rows)
    for i, row in enumerate(case.rows):
        for t, place in enumerate(places[row].tolist()):
            if place >= 0:
                cases.assert_within(f"state {row} {t}", case.S[place], states[i, t])
                case.S[place] = fresh.S[place]
    case.out[case.rows] = fresh.out[case.rows]
    for name, x in before.items():
        assert cases.untouched(x, cases.whole(getattr(case, name))), f"{name} was written where it must not be"


@pytest.mark.parametrize("o", COVER, ids=str)
def test_outputs_and_every_state_lie_within_the_bound_and_nothing_else_is_written(o: Options) -> None:
    check(kernel, o)


def test_outputs_that_are_not_given_are_made() -> None:
    o = Options(b=1, spare=9)
    (given, places), (case, _) = draw(o), draw(o)
    y = case.call(kernel.delta_snapshots, places=places, out=None)
    assert torch.equal(y, given.call(kernel.delta_snapshots, places=places))


@pytest.mark.parametrize("o", [COVER[0], COVER[2]], ids=str)
def test_every_state_is_that_of_a_shorter_scan_bit_for_bit(o: Options) -> None:
    case, places = draw(o)
    case.call(kernel.delta_snapshots, places=places)
    for t in range(o.t):
        shorter = cases.draw(o)
        named = {**shorter.extra, **({"live": shorter.extra["live"][:, : t + 1]} if o.live else {})}
        window = [getattr(shorter, x)[:, : t + 1] for x in ("q", "k", "v", "g", "beta")]
        delta_scan(shorter.S, *window, slots=shorter.slots, l2_norm=o.l2_norm, scale=o.scale, fused=False, **named)
        for row in case.rows:
            if places[row, t] >= 0:
                assert cases.untouched(case.S[int(places[row, t])], shorter.S[int(shorter.slots[row])])


@pytest.mark.parametrize("o", [Options(t=4, v=33, spare=14), Options(t=2, channel=True, io="bf16", spare=9)], ids=str)
def test_bytes_equal_the_formula(o: Options) -> None:
    check_bytes(kernel, o)


def check_bytes(module: ModuleType, o: Options) -> None:
    case = cases.draw(o, padding=False)
    free = [s for s in range(len(case.S)) if s not in case.slots.tolist()]
    places = torch.tensor(free[: o.b * o.t]).reshape(o.b, o.t)
    named = {name: getattr(case, name) for name in ("S", "q", "k", "v", "g", "beta", "out")}
    with watch(**named, slots=case.slots, places=places) as seen:
        case.call(module.delta_snapshots, places=places)
    indices = seen.loaded("slots").distinct + seen.loaded("places").distinct
    size = case.q.element_size()
    expected = module.traffic_bytes(o.b, o.t, o.g, o.h, o.k, o.v, io=size, channel=o.channel)
    assert seen.distinct_bytes() - indices == expected
    assert seen.loaded("S").requested == o.b * o.h * o.k * o.v * 4
    assert seen.outside == seen.races == []


FAULTS = [
    ("if place >= 0:", "if place > 0:", "delta_scan_kernel"),
    ("if place >= 0:", "if place != -2:", "delta_scan_kernel"),
    ("(place - slot) * stride.S.s", "place * stride.S.s", "delta_scan_kernel"),
    ("cast(t, tl.int64) * stride_places.t).to", "cast((t + 1) % T, tl.int64) * stride_places.t).to", "delta_scan_kernel"),
    ("b * stride_places.b + ", "", "delta_scan_kernel"),
    ("        WRITE_STATE=False,", "        WRITE_STATE=True,", None),
    ("state.to(S.dtype.element_ty), mask=inside)\n            real", "state.to(S.dtype.element_ty))\n            real",
     "delta_scan_kernel"),
]  # fmt: skip


def check_all(module: ModuleType) -> None:
    for o in COVER:
        check(module, o)
    check_bytes(module, Options(t=4, v=33, spare=14))


@pytest.mark.parametrize(("old", "new", "at"), FAULTS, ids=[new for _, new, _ in FAULTS])
def test_planted_fault_is_caught(old: str, new: str, at: str | None) -> None:
    mutant = mutated(kernel, old, new, at=at)
    with pytest.raises(AssertionError):
        check_all(mutant)
