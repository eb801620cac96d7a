"""Snapshots of Kimi Delta Attention: every state within its bound, in its place, and nothing beside."""

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ssmspec_kernels.kda import kda_snapshots as kernel
from ssmspec_kernels.kda.kda_scan import kda_scan
from tests.kernels import delta_cases as cases
from tests.kernels import test_delta_snapshots as snapshots
from tests.kernels.delta_cases import Options
from tests.kernels.mutants import mutated

COVER = [
    Options(channel=True, poison=7.0, spare=12),
    Options(t=4, channel=True, io="bf16", state="bf16", gentle=True, k=9, v=21, spare=14, seed=1),
    Options(t=2, channel=True, raw=True, bias=True, lower=-5.0, live=True, io="fp16", state="fp16", spare=9, seed=2),
]


def named(module: ModuleType) -> Any:
    """The launcher and its formula, under the names of those of the delta rule."""

    def traffic_bytes(*given: int, channel: bool, **more: int) -> int:
        assert channel
        found: int = module.traffic_bytes(*given, **more)
        return found

    return SimpleNamespace(delta_snapshots=module.kda_snapshots, traffic_bytes=traffic_bytes)


@pytest.mark.parametrize("o", COVER, ids=str)
def test_outputs_and_every_state_lie_within_the_bound_and_nothing_else_is_written(o: Options) -> None:
    snapshots.check(named(kernel), o)


def test_every_state_is_that_of_a_shorter_scan_bit_for_bit() -> None:
    o = COVER[2]
    case, places = snapshots.draw(o)
    case.call(kernel.kda_snapshots, places=places)
    for t in range(o.t):
        shorter = cases.draw(o)
        rest = {**shorter.extra, "live": shorter.extra["live"][:, : t + 1]}
        window = [getattr(shorter, x)[:, : t + 1] for x in ("q", "k", "v", "g", "beta")]
        kda_scan(shorter.S, *window, slots=shorter.slots, fused=False, **rest)
        for row in case.rows:
            if places[row, t] >= 0:
                assert cases.untouched(case.S[int(places[row, t])], shorter.S[int(shorter.slots[row])])


@pytest.mark.parametrize("o", [Options(t=4, channel=True, v=33, spare=14), Options(t=2, channel=True, io="bf16", spare=9)])
def test_bytes_equal_the_formula(o: Options) -> None:
    snapshots.check_bytes(named(kernel), o)


def check_all(module: ModuleType) -> None:
    for o in COVER:
        snapshots.check(named(module), o)
    snapshots.check_bytes(named(module), Options(t=4, channel=True, v=33, spare=14))


FAULTS = [
    ("if place >= 0:", "if place > 0:", "kda_scan_kernel"),
    ("if place >= 0:", "if place != -2:", "kda_scan_kernel"),
    ("(place - slot) * stride.S.s", "place * stride.S.s", "kda_scan_kernel"),
    ("cast(t, tl.int64) * stride_places.t).to", "cast((t + 1) % T, tl.int64) * stride_places.t).to", "kda_scan_kernel"),
    ("b * stride_places.b + ", "", "kda_scan_kernel"),
    ("WRITE_STATE=False,", "WRITE_STATE=True,", None),
    ("BOUNDED=lower_bound is not None", "BOUNDED=False", None),
]


@pytest.mark.parametrize(("old", "new", "at"), FAULTS, ids=[new for _, new, _ in FAULTS])
def test_planted_fault_is_caught(old: str, new: str, at: str | None) -> None:
    mutant = mutated(kernel, old, new, at=at)
    with pytest.raises(AssertionError):
        check_all(mutant)
