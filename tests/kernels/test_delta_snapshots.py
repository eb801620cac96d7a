"""Snapshots of the delta rule and of Kimi Delta Attention: every state within its bound, in its place, and nothing beside."""

from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from ssmspec_kernels.delta import delta_snapshots as kernel
from ssmspec_kernels.delta.delta_scan import delta_scan
from ssmspec_kernels.kda import kda_snapshots
from ssmspec_kernels.kda.kda_scan import kda_scan
from ssmspec_ref import error_bounds as eb
from tests.kernels import delta_cases as cases
from tests.kernels.covers import covered, launcher, planted
from tests.kernels.delta_cases import Case, Options
from tests.kernels.delta_checks import check_moved, sizes_of
from tests.kernels.mutants import caught, mutated

COVER = [
    Options(poison=7.0, spare=12),
    Options(t=4, channel=True, io="bf16", state="bf16", gentle=True, k=9, v=21, spare=14, seed=1),
    Options(t=2, raw=True, bias=True, live=True, io="fp16", state="fp16", spare=9, seed=2),
    Options(b=1, t=6, g=1, h=3, l2_norm=False, gentle=True, live=True, spare=9, seed=3),
]
KDA = [
    Options(channel=True, poison=7.0, spare=12),
    Options(t=4, channel=True, io="bf16", state="bf16", gentle=True, k=9, v=21, spare=14, seed=1),
    Options(t=2, channel=True, raw=True, bias=True, lower=-5.0, live=True, io="fp16", state="fp16", spare=9, seed=2),
]
COVERS = {kernel: COVER, kda_snapshots: KDA}


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


def check(launch: Any, o: Options) -> None:
    case, places = draw(o)
    window, inexact = case.window()
    fresh, before = cases.draw(o), case.whole()
    y, states = eb.delta.states(case.state(), window, o.params(), o.contract(), live=case.live(), inexact=inexact)
    assert case.call(launch, places=places) is case.out
    cases.assert_within("o", case.out, y, case.rows)
    for i, row in enumerate(case.rows):
        for t, place in enumerate(places[row].tolist()):
            if place >= 0:
                cases.assert_within(f"state {row} {t}", case.S[place], states[i, t])
                case.S[place] = fresh.S[place]
    case.out[case.rows] = fresh.out[case.rows]
    case.check_untouched(before)


@pytest.mark.parametrize(("module", "o"), covered(COVERS))
def test_outputs_and_every_state_lie_within_the_bound_and_nothing_else_is_written(module: ModuleType, o: Options) -> None:
    check(launcher(module), o)


@pytest.mark.parametrize("module", COVERS)
def test_outputs_that_are_not_given_are_made(module: ModuleType) -> None:
    o = Options(b=1, spare=9, channel=module is kda_snapshots)
    (given, places), (case, _) = draw(o), draw(o)
    y = case.call(launcher(module), places=places, out=None)
    assert torch.equal(y, given.call(launcher(module), places=places))


@pytest.mark.parametrize(("module", "o"), covered({kernel: [COVER[0], COVER[2]], kda_snapshots: [KDA[0], KDA[2]]}))
def test_every_state_is_that_of_a_shorter_scan_bit_for_bit(module: ModuleType, o: Options) -> None:
    case, places = draw(o)
    case.call(launcher(module), places=places)
    for t in range(o.t):
        shorter = cases.draw(o)
        window = {name: x[:, : t + 1] for name, x in shorter.tensors.items() if name != "S"}
        window |= {name: x[:, : t + 1] for name, x in shorter.extra.items() if name == "live"}
        shorter.call(delta_scan if module is kernel else kda_scan, **window, fused=False)
        for row in case.rows:
            if places[row, t] >= 0:
                assert cases.untouched(case.S[int(places[row, t])], shorter.S[int(shorter.slots[row])])


BYTES = {
    kernel: [Options(t=4, v=33, spare=14), Options(t=2, channel=True, io="bf16", spare=9)],
    kda_snapshots: [Options(t=4, channel=True, v=33, spare=14), Options(t=2, channel=True, io="bf16", spare=9)],
}


@pytest.mark.parametrize(("module", "o"), covered(BYTES))
def test_bytes_equal_the_formula(module: ModuleType, o: Options) -> None:
    check_bytes(module, o)


def check_bytes(module: ModuleType, o: Options) -> None:
    case = cases.draw(o, padding=False)
    free = [s for s in range(len(case.S)) if s not in case.slots.tolist()]
    places = torch.tensor(free[: o.b * o.t]).reshape(o.b, o.t)
    moved = module.traffic_bytes(o.b, o.t, o.g, o.h, o.k, o.v, **sizes_of(module, case))
    check_moved(case, lambda: case.call(launcher(module), places=places), moved, 1, o.t, places=places)


FAULTS: dict[ModuleType, list[tuple[str, str, str | None]]] = {
    kernel: [
        ("if place >= 0:", "if place > 0:", "delta_scan_kernel"),
        ("if place >= 0:", "if place != -2:", "delta_scan_kernel"),
        ("(place - slot) * stride.S.s", "place * stride.S.s", "delta_scan_kernel"),
        ("cast(t, tl.int64) * stride_places.t).to", "cast((t + 1) % T, tl.int64) * stride_places.t).to", "delta_scan_kernel"),
        ("b * stride_places.b + ", "", "delta_scan_kernel"),
        ("WRITE_STATE=False,", "WRITE_STATE=True,", None),
        ("state.to(S.dtype.element_ty), mask=inside)\n            real", "state.to(S.dtype.element_ty))\n            real",
         "delta_scan_kernel"),
    ],
    kda_snapshots: [
        ("if place >= 0:", "if place > 0:", "delta_scan_kernel"),
        ("if place >= 0:", "if place != -2:", "delta_scan_kernel"),
        ("(place - slot) * stride.S.s", "place * stride.S.s", "delta_scan_kernel"),
        ("cast(t, tl.int64) * stride_places.t).to", "cast((t + 1) % T, tl.int64) * stride_places.t).to", "delta_scan_kernel"),
        ("b * stride_places.b + ", "", "delta_scan_kernel"),
        ("WRITE_STATE=False,", "WRITE_STATE=True,", None),
        ("BOUNDED=lower_bound is not None", "BOUNDED=False", None),
    ],
}  # fmt: skip


def check_all(module: ModuleType, cover: list[Options]) -> None:
    """The last of them by its bytes."""
    for o in cover[:-1]:
        check(launcher(module), o)
    check_bytes(module, cover[-1])


@pytest.mark.parametrize(("module", "old", "new", "at"), planted(FAULTS))
def test_planted_fault_is_caught(module: ModuleType, old: str, new: str, at: str | None) -> None:
    assert caught(mutated(module, old, new, at=at), check_all, [[*COVERS[module], BYTES[module][0]]])
