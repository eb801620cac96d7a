"""SSD's snapshots: every state within its bound, in its place, and nothing beside."""

from types import ModuleType

import numpy as np
import pytest
import torch

from conformance.interpreter.memory import watch
from ssmspec_kernels.ssd import ssd_snapshots as kernel
from ssmspec_kernels.ssd.ssd_scan import ssd_scan
from ssmspec_ref import error_bounds as eb
from tests.kernels import ssd_cases as cases
from tests.kernels.mutants import mutated
from tests.kernels.ssd_cases import Case, Options

COVER = [
    Options(poison=7.0, spare=12, z=True),
    Options(t=4, io="bf16", state="bf16", gentle=True, p=9, n=19, spare=14, D="channel", limit=(0.05, 0.8), seed=1),
    Options(t=2, live=True, io="fp16", state="fp16", spare=9, seed=2),
    Options(b=1, t=6, g=1, h=3, gentle=True, live=True, spare=9, seed=3),
    Options(b=2, p=9, limit=(0.0, 1.0), spare=9, seed=4),
]


def draw(o: Options, padding: bool = True) -> tuple[Case, torch.Tensor]:
    """A case, and places for its states: free slots out of order, one of them not kept, the last the row's own slot."""
    case = cases.draw(o, padding)
    rng = np.random.default_rng(o.seed + 50)
    used = set(case.slots.tolist())
    free = rng.permutation([s for s in range(len(case.S)) if s not in used])
    places = free[: o.b * o.t].reshape(o.b, o.t)
    if padding:
        places[0, -1] = int(case.slots[0])
        places[0, 0] = -1
    return case, torch.from_numpy(places).to(case.slots.dtype)


def check(module: ModuleType, o: Options) -> None:
    case, places = draw(o)
    fresh = cases.draw(o)
    y, states = eb.ssd.states(case.state(), case.window(), case.params(), o.contract(), live=case.live())
    before = case.before(places=places)
    assert case.call(module.ssd_snapshots, places=places, block_p=16) is case.out
    cases.assert_within("y", case.out, y, case.rows)
    for i, row in enumerate(case.rows):
        for t, place in enumerate(places[row].tolist()):
            if place >= 0:
                cases.assert_within(f"state {row} {t}", case.S[place], states[i, t])
                case.S[place] = fresh.S[place]
    case.out[case.rows] = fresh.out[case.rows]
    cases.unchanged(before)


def check_bytes(module: ModuleType, o: Options) -> None:
    case, places = draw(o, padding=False)
    named = {name: getattr(case, name) for name in ("S", "x", "dt", "B", "C", "out")}
    params = dict(case.extra) | {"A": case.A, "slots": case.slots, "places": places}
    with watch(**named, **params) as seen:
        case.call(module.ssd_snapshots, places=places)
    left_out = sum(seen.loaded(name).distinct for name in params)
    expected = module.traffic_bytes(o.b, o.t, o.h, o.p, o.n, o.g, io=case.x.element_size())
    assert seen.distinct_bytes() - left_out == expected
    assert seen.loaded("S").requested == o.b * o.h * o.p * o.n * 4
    assert seen.stored("S").requested == o.b * o.h * o.p * o.n * 4 * o.t
    assert seen.outside == seen.races == []


@pytest.mark.parametrize("o", COVER, ids=str)
def test_outputs_and_every_state_lie_within_the_bound_and_nothing_else_is_written(o: Options) -> None:
    check(kernel, o)


@pytest.mark.parametrize(
    "o", [[*COVER, Options(b=2, t=4, p=20, n=16, spare=14)][0], [*COVER, Options(b=2, t=4, p=20, n=16, spare=14)][2]], ids=str
)
def test_every_state_is_that_of_a_shorter_scan_bit_for_bit(o: Options) -> None:
    case, places = draw(o)
    case.call(kernel.ssd_snapshots, places=places)
    for t in range(o.t):
        shorter = cases.draw(o)
        cut = {name: shorter.extra[name][:, : t + 1] for name in ("live", "z") if name in shorter.extra} | {"fused": False}
        x, dt, B, C = (getattr(shorter, name)[:, : t + 1] for name in cases.TOKENS)
        ssd_scan(shorter.S, x, dt, shorter.A, B, C, slots=shorter.slots, dt_limit=o.limit, **{**shorter.extra, **cut})
        for row in case.rows:
            if places[row, t] >= 0:
                assert cases.untouched(case.S[int(places[row, t])], shorter.S[int(shorter.slots[row])])


def test_states_may_be_kept_in_a_buffer_of_their_own_and_of_another_type() -> None:
    o = Options(t=3, g=1, h=2, spare=12)
    (case, places), (other, _) = draw(o, padding=False), draw(o, padding=False)
    before = cases.whole(case.S).clone()
    kept = torch.full((o.b, o.t, o.h, o.p, o.n), float("nan"), dtype=torch.bfloat16)
    own = torch.arange(o.b * o.t).reshape(o.b, o.t)
    case.call(kernel.ssd_snapshots, places=own, pool=kept.flatten(0, 1))
    other.call(kernel.ssd_snapshots, places=places)
    assert torch.equal(kept, other.S[places.long()].bfloat16())
    assert cases.untouched(before, cases.whole(case.S))


@pytest.mark.parametrize("o", [Options(b=2, t=4, spare=14), Options(b=3, t=2, io="bf16", spare=9, g=1)], ids=str)
def test_bytes_equal_the_formula(o: Options) -> None:
    check_bytes(kernel, o)


FAULTS = [
    ("if place >= 0:", "if place > 0:", "_walk_tokens"),
    ("if place >= 0:", "if place != -2:", "_walk_tokens"),
    ("place * stride_kept.s +", "b * stride_kept.s +", "_walk_tokens"),
    ("cast(t, tl.int64) * stride_places.t).to", "cast((t + 1) % T, tl.int64) * stride_places.t).to", "_walk_tokens"),
    ("places + b * stride_places.b + ", "places + ", "_walk_tokens"),
    ("        WRITE_STATE=False,", "        WRITE_STATE=True,", None),
    (".to(kept.dtype.element_ty), mask=inside)", ".to(kept.dtype.element_ty))", "_walk_tokens"),
    ("kept = S if pool is None else pool", "kept = S", None),
]  # fmt: skip


def check_all(module: ModuleType) -> None:
    for o in COVER[:3]:
        check(module, o)
    check_bytes(module, Options(b=1, h=2, t=4, spare=14))
    case, _ = draw(Options(b=1, t=2), padding=False)
    case.call(
        module.ssd_snapshots, places=torch.tensor([[1, 0]]), pool=(kept := torch.full((2, *case.S.shape[1:]), float("nan")))
    )
    assert torch.isfinite(kept).all()


@pytest.mark.parametrize(("old", "new", "at"), FAULTS, ids=[new for _, new, _ in FAULTS])
def test_planted_fault_is_caught(old: str, new: str, at: str | None) -> None:
    mutant = mutated(kernel, old, new, at=at)
    with pytest.raises(AssertionError):
        check_all(mutant)
