"""What is timed is judged: each variant of a kernel that a measurement launches, a check at the shapes of models launches."""

from collections.abc import Iterable

import pytest
import torch

from perf_gates.gpu import variants
from perf_gates.gpu.judge import further
from perf_gates.gpu.judge.call import Check, Plan
from perf_gates.gpu.kernels.steps import kernel
from perf_gates.gpu.model_shapes import checks
from perf_gates.gpu.rehearsal import H200
from perf_gates.gpu.variants import LAUNCHERS, Variant, fewest, lacking, launched_by
from perf_gates.static import catalogue, compiled
from perf_gates.static.capture import recorded
from perf_gates.static.on_device import on_device
from perf_gates.verdicts import gates
from ssmspec_kernels import launch

pytestmark = pytest.mark.xdist_group("variants")  # what every check launches is recorded once
PLANTED = Variant("planted_kernel", (("T", 5),), ())


@pytest.fixture(scope="module")
def found() -> dict[str, set[Variant]]:
    return launched_by(checks(Plan(further=True), LAUNCHERS))


@pytest.fixture(scope="module")
def timed(found: dict[str, set[Variant]]) -> dict[Variant, str]:
    return variants.timed() | variants.untimed(found)


def named(missing: Iterable[Variant], timed: dict[Variant, str]) -> str:
    return "\n".join(f"{timed[one]}: {one}" for one in missing)


def test_every_timed_variant_is_launched_by_a_check(timed: dict[Variant, str], found: dict[str, set[Variant]]) -> None:
    assert len(timed) > 100
    missing = lacking(timed, found)
    assert not missing, f"{named(missing, timed)}\nlet `python -m perf_gates.gpu.variants` choose checks for further.NAMES"


def test_every_further_check_is_there_and_launches_what_no_other_does(
    timed: dict[Variant, str], found: dict[str, set[Variant]]
) -> None:
    """A variant taken out of the plan fails the test before this one."""
    assert found.keys() >= further.NAMES
    for name in further.NAMES:
        left = {other: launched for other, launched in found.items() if other != name}
        assert {*lacking(timed, left)} & found[name], f"{name} is not needed"


def test_checks_of_the_plan_come_once() -> None:
    names = [check.name for check in checks(Plan(further=True))]
    assert len(names) == len(set(names)) == len(checks(Plan())) + len(further.NAMES)


def test_the_core_set_and_all_parts_are_among_what_is_timed(
    timed: dict[Variant, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    launched = {variants.variant(launch) for pair in gates.load().core for launch in variants.sides(pair)}
    assert launched <= timed.keys()
    monkeypatch.setattr(variants, "PARTS", ())
    assert {*variants.timed()} == launched
    assert {place.partition(",")[0] for place in timed.values()} >= {
        "steps",
        "buffered",
        "buffered_delta",
        "linear",
        "prefill",
    }


def test_kernels_that_are_timed_nowhere_are_launched_too(found: dict[str, set[Variant]]) -> None:
    assert [one.kernel for one in variants.untimed(found) if one.constants] == [*variants.UNTIMED]
    without = {name: launched for name, launched in found.items() if name not in further.NAMES}
    assert len(lacking(variants.untimed(without), without)) == 2


def test_a_planted_variant_is_lacking_and_no_check_is_chosen_for_it(found: dict[str, set[Variant]]) -> None:
    assert lacking([PLANTED, *next(iter(found.values()))], found) == [PLANTED]
    with pytest.raises(LookupError, match=r"planted_kernel\(T=5\) without nothing"):
        fewest([PLANTED], found)


def test_fewest_checks_are_those_of_most_variants() -> None:
    one, two, three = (PLANTED._replace(kernel=name) for name in "abc")
    assert fewest([one, two, three], {"x": {one}, "y": {one, two}, "z": {three}, "also z": {three}}) == ["y", "z"]


def test_constants_options_and_what_is_left_out_tell_variants_apart_and_strides_do_not() -> None:
    h, p, n, g = 80, 64, 128, 1

    def made(batch: int, tokens: int, gap: int = 0, **how: object) -> Variant:
        with on_device(H200), recorded() as launches:
            x = torch.empty(batch, tokens, h, p + gap, device="cuda", dtype=torch.bfloat16)[..., :p]
            dt, B = x[..., 0].contiguous(), torch.empty(batch, tokens, g, n, device="cuda", dtype=torch.bfloat16)
            S, A = torch.empty(batch, h, p, n, device="cuda"), torch.empty(h, device="cuda")
            kernel("ssd_window")(S, x, dt, A, B, B, **how)
        (found,) = launches
        return variants.variant(found)

    at = made(64, 5, write_state=False)
    assert made(64, 5, gap=64, write_state=False) == at
    assert ("OVERLAP", True) in at.constants
    assert "D" in at.absent
    assert "slots" not in at.absent
    different = made(64, 6, write_state=False), made(4, 5, write_state=False), made(64, 5)
    assert len({at, *different, made(64, 5, write_state=False, D=torch.empty(h, device="meta"))}) == 5


def test_an_error_of_a_check_is_no_launch() -> None:
    with pytest.raises(ZeroDivisionError):
        variants.launched(Check("k", "m", "v", 1, lambda _: 1 / 0))


def test_the_device_is_asked_again_behind_a_rehearsal() -> None:
    asked = torch.cuda.get_device_capability
    for capability in (80, 90, 100):
        with on_device(capability):
            assert torch.cuda.get_device_capability() == divmod(capability, 10)
            assert torch.empty(2, device="cuda").is_cuda
            assert launch.overlaps(torch.empty(2, device="cuda").device) == (capability >= 90)
    assert torch.cuda.get_device_capability is asked
    with pytest.raises(ZeroDivisionError), on_device(90):
        _ = 1 / 0
    assert torch.cuda.get_device_capability is asked


@pytest.mark.compiler
def test_what_is_compiled_for_an_architecture_is_what_its_launcher_chooses_there() -> None:
    """A window of the delta rule is held to 128 registers on sm_90 alone; launches overlap from sm_90 on."""
    entry = next(e for e in catalogue.entries() if e.name == "delta_scan T=6 verify qwen3.5-4b")
    chosen = {on: compiled.launches_on(entry, on)[0].kwargs for on in entry.on}
    assert {on: kwargs["maxnreg"] for on, kwargs in chosen.items()} == {80: None, 90: 128, 100: None}
    assert {on: kwargs["OVERLAP"] for on, kwargs in chosen.items()} == {80: False, 90: True, 100: True}


def test_every_timed_variant_is_compiled_and_a_planted_one_is_not(timed: dict[Variant, str]) -> None:
    """As an entry of the catalogue or beside it; a row without its budget fails in test_compiled."""
    rows = [(name, variants.variant(launch)) for name, launch, capability in compiled.launched() if capability == H200]
    assert len({name for name, _ in rows}) == len(rows)
    have = {one for _, one in rows}
    assert [one for one in (*timed, PLANTED) if one not in have and one.kernel not in variants.UNTIMED] == [PLANTED]
    assert {name for name, _ in rows} <= compiled.budgets()[1].keys()


@pytest.mark.compiler
def test_a_launch_knows_the_launcher_that_was_called() -> None:
    """The outermost module of the package, not that of the kernel."""
    (pair, *_) = (e for e in catalogue.entries() if e.name == "ssd_tree_scan B=64 T=63 mamba2-2.7b")
    (launch,) = compiled.launches_on(pair, H200)
    assert (launch.name, launch.launcher) == ("ssd_tree_large_kernel", "ssd_tree_scan")
