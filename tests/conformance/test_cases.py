"""Cases have names that find them again, and inputs that follow from the name."""

from dataclasses import replace
from time import process_time

import numpy as np
import pytest

from conformance.cases import Case
from conformance.errors import UnknownCase
from conformance.judge.draw import Draw, stored
from conformance.run import plan as plans
from conformance.run.calls import fingerprint, leaves
from conformance.run.load import load
from conformance.suite import SPECIFICATIONS, find, of_operation
from conformance.suite.specification import Specification
from ssmspec_ref.contract import FLOAT64, OPERATIONS, Limits, NumericContract
from ssmspec_ref.registry import Rows

from .judging import FP32, NAMES, SPECIFICATION

BF16 = NumericContract(state="bf16", io="bf16")
every = pytest.mark.parametrize("specification", SPECIFICATIONS, ids=NAMES)
SCAN = SPECIFICATION["ssd.scan"]


def first(specification: Specification) -> Case:
    return next(specification.cases("smoke", Limits()))


@every
def test_an_id_finds_its_case_again_and_no_two_cases_share_one(specification: Specification) -> None:
    cases = list(specification.cases("standard", Limits()))
    names = [specification.identify(case) for case in cases]
    assert len(set(names)) == len(names) >= 8
    assert all(find(name) == (specification, case) for name, case in zip(names, cases, strict=True))


@every
def test_smoke_is_a_part_of_standard(specification: Specification) -> None:
    smoke, standard = (
        {specification.identify(case) for case in specification.cases(tier, Limits())} for tier in ("smoke", "standard")
    )
    assert smoke < standard


@every
def test_smoke_has_every_family_and_every_value_of_every_option_in_few_cases(specification: Specification) -> None:
    smoke = list(specification.cases("smoke", Limits()))
    assert {case.family for case in smoke} == set(specification.families)
    for name, values in specification.options.items():
        assert {case.options[name] for case in smoke} == set(values)
    assert any(case.seed > 0 for case in smoke), "no inputs with gaps"
    assert any(case.seed == 0 and case.family == specification.families[-1] for case in smoke), "none is called again"
    assert len(smoke) <= 7


@every
def test_rare_values_are_in_the_standard_tier_and_not_in_smoke(specification: Specification) -> None:
    tiers = {tier: list(specification.cases(tier, Limits())) for tier in ("smoke", "standard")}
    met = {(name, case.options[name]) for case in tiers["standard"] for name in specification.rare}
    assert met >= {(name, value) for name, values in specification.rare.items() for value in values}
    assert all(specification.common(case) for case in tiers["smoke"])


@every
def test_a_rare_value_changes_the_inputs_and_a_limit_leaves_it_out(specification: Specification) -> None:
    for name, values in specification.rare.items():
        rare = [value for value in values if value != specification.defaults[name]]
        limits = Limits({name: tuple(value for value in specification.values[name] if value not in rare)})
        assert not any(case.options[name] in rare for case in specification.cases("standard", limits))
        for value in rare:
            case = next(c for c in specification.cases("standard", Limits()) if c.options[name] == value)
            plain = replace(case, options={**case.options, name: specification.defaults[name]})
            one, other = (fingerprint(specification.draw(c, FP32)) for c in (case, plain))
            assert one != other, f"{name}={value} changes nothing"


@pytest.mark.parametrize("longest", [4, 5, 8, 17])
@pytest.mark.parametrize("operation", ["ssd.buffered_verify", "speculate.chain"])
def test_a_ring_of_any_size_is_filled_exactly_and_overrun_by_one(operation: str, longest: int) -> None:
    """Whatever the size, to 64 entries: some window ends with the last entry, and some would end one behind it."""
    specification = SPECIFICATION[operation]
    cases = specification.cases("standard", Limits(sizes={"t": (1, longest)}))
    case = next(c for c in cases if c.options["accept"] == "stairs")
    rounds = specification.draw(case, FP32)[2]
    accepted = np.cumsum([np.zeros(case.sizes["b"]), *(each.advanced for each in rounds)], axis=0)
    for entries in range(longest, 65):
        filled = any(np.any(accepted[n + 1] == entries) for n in range(len(rounds)))
        overrun = any(np.any(accepted[n] + each.path.shape[1] == entries + 1) for n, each in enumerate(rounds))
        assert filled, entries
        assert overrun, entries


def test_smoke_covers_what_the_limits_of_an_adapter_admit() -> None:
    limits = Limits(options={"D": ("channel", "off"), "z": ("on",)}, sizes={"g": (1, 1)})
    smoke = list(SCAN.cases("smoke", limits))
    assert {case.options["D"] for case in smoke} == {"channel", "off"}
    assert {(case.options["z"], case.sizes["g"]) for case in smoke} == {("on", 1)}
    assert list(SCAN.cases("smoke", Limits(sizes={"g": (5, 5), "h": (6, 6)}))) == []


@every
def test_the_inputs_of_a_case_are_the_same_every_time_and_change_with_the_seed(specification: Specification) -> None:
    case = first(specification)
    drawn, again = (fingerprint(specification.draw(case, BF16)) for _ in range(2))
    other = fingerprint(specification.draw(replace(case, seed=case.seed + 1), BF16))
    assert drawn == again != other


@every
def test_every_option_and_every_size_changes_the_inputs(specification: Specification) -> None:
    """An option that nothing reads would stand in the ids and test nothing."""
    case = first(specification)
    drawn = fingerprint(specification.draw(case, FP32))
    changes = [replace(case, options={**case.options, n: v}) for n, vs in specification.options.items() for v in vs[1:]]
    changes += [replace(case, sizes={**case.sizes, **row}) for row in specification.rows]
    changes += [replace(case, family=family) for family in specification.families[1:]]
    same = [case for case in changes if fingerprint(specification.draw(case, FP32)) == drawn]
    assert same == []


@every
def test_drawn_values_are_exact_in_the_declared_formats(specification: Specification) -> None:
    for case in list(specification.cases("smoke", Limits()))[:4]:
        drawn = [leaf for leaf in leaves(specification.draw(case, BF16)) if isinstance(leaf, np.ndarray)]
        floats = [a for a in drawn if a.dtype == np.float64]
        tokens = ("acceptance.greedy", "generate.greedy", "attention.positions", "draft.lookup", "draft.png")
        assert floats or specification.operation in tokens
        laws = ("acceptance.sampled", "acceptance.process_rows", "generate.sampled")
        settled = specification.operation in laws  # laws, noise and settings
        form = "fp64" if specification.operation.endswith("_rows") else "fp32" if settled else "bf16"
        assert all(np.array_equal(stored(a, form), a) for a in floats)


def test_every_operation_of_the_contract_has_cases() -> None:
    assert {s.operation for s in SPECIFICATIONS} == set(OPERATIONS)
    assert all(of_operation(name) == [s for s in SPECIFICATIONS if s.operation == name] for name in OPERATIONS)


def test_a_named_case_is_planned_in_little_time_and_without_making_other_specifications(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Limits are checked against the options of every operation, once."""
    adapters = {"reference": load("reference")}
    read = []
    monkeypatch.setattr(plans, "SPECIFICATIONS", Rows(lambda: read.append(1) or SPECIFICATIONS))
    for case in ("ssd.scan/b2,t7,g2,h6,p5,n4/z=on/gentle/s0", "speculate.tree/b2,t4,j3,g2,h4,k5,v3,w4/kind=delta/gentle/s0"):
        began, read[:] = process_time(), []
        jobs, _ = plans.plan(adapters, plans.Selection(case=case))
        assert process_time() - began < 0.15
        assert {job.identity for job in jobs} == {case}
        assert len(read) <= 2


@pytest.mark.parametrize(
    "wrong",
    [
        "ssd.scan",
        "ssd.scan/b2,t7,g2,h5,p5,n4/plain/gentle/s0",  # the groups do not divide the heads
        "ssd.scan/b2,t7,g2,h6,p5,n4/D=none/gentle/s0",
        "ssd.scan/b2,t7,g2,h6,p5,n4/E=on/gentle/s0",
        "ssd.scan/b2,t7,g2,h6,p5,q4/plain/gentle/s0",
        "ssd.scan/b2,t7,g2,h6,p5,n4/plain/calm/s0",
        "ssd.scan/b2,t7,g2,h6,p5,n4/plain/gentle/0",
        "ssd.scam/b2,t7,g2,h6,p5,n4/plain/gentle/s0",
        "layer.prefill/b2,t6,g2,h4,p4,n5,w4/plain/gentle/s0",  # of no kind
    ],
)
def test_what_names_no_case_is_refused(wrong: str) -> None:
    with pytest.raises(UnknownCase):
        find(wrong)


def test_limits_leave_out_what_they_exclude_and_say_so() -> None:
    limits = Limits({"D": ("channel",), "z": ("off",)}, {"t": (1, 4), "g": (1, 1)})
    cases = list(SCAN.cases("standard", limits))
    for name, values in (("D", {"channel"}), ("z", {"off"}), ("dt_limit", {"off", "floor", "finite"})):
        assert {case.options[name] for case in cases} == values
    assert max(case.sizes["t"] for case in cases) == 4
    assert {case.sizes["g"] for case in cases} == {1}
    assert SCAN.excluded(limits) == ["D=head", "D=off", "z=on", "t outside 1..4", "g outside 1..1"]


def test_dropping_an_option_leaves_the_other_arrays_as_they_were() -> None:
    case = first(SCAN)
    with_z = SCAN.draw(replace(case, options={**case.options, "z": "on"}), FP32)
    without = SCAN.draw(case, FP32)
    assert with_z[1].z is not None
    assert np.array_equal(with_z[1].x, without[1].x)
    assert np.array_equal(with_z[0], without[0])


def test_bf16_is_rounded_to_nearest_even_as_torch_rounds_it() -> None:
    torch = pytest.importorskip("torch")
    values = np.random.default_rng(0).standard_normal(4096).astype(np.float32)
    values[:3] = [1 + 2.0**-8, 1 + 3 * 2.0**-8, -(1 + 2.0**-8)]  # ties
    rounded = torch.tensor(values).bfloat16().double().numpy()
    assert np.array_equal(stored(values, "bf16"), rounded)
    assert not np.array_equal(rounded, values.astype(np.float64))


def test_dt_limits_bind_for_some_steps_and_not_for_others() -> None:
    """A limit that no step meets would test nothing."""
    for family in SCAN.families:
        case = SCAN.case({"b": 4, "t": 33}, {"dt_limit": "finite"}, family, 0)
        _, window, params = SCAN.draw(case, FP32)
        steps = np.logaddexp(0, window.dt + params.dt_bias)
        low, high = params.dt_limit
        assert all(0.02 < np.mean(beyond) < 0.9 for beyond in (steps < low, steps > high))
        assert np.mean((steps >= low) & (steps <= high)) > 0.05


def test_draw_gives_rates_below_zero_and_masks_of_both_kinds() -> None:
    for live in ("holes", "tail", "head"):
        draw = Draw(SPECIFICATION["ssd.scan_masked"].case({"b": 6}, {"live": live}, "gentle", 0), FP32)
        mask = draw.live()
        assert mask.any()
        assert not mask.all()
        assert (draw.rate("A", "h") < 0).all()


WINDOWS = ("verify_snapshots", "verify_replay", "buffered_verify", "chain", "tree")


@pytest.mark.parametrize(
    "specification",
    [s for s in SPECIFICATIONS if s.operation.partition(".")[2] in WINDOWS],
    ids=lambda s: f"{s.operation} {s.fixed.get('kind', '')}",
)
def test_nothing_is_accepted_in_every_pattern_of_two_rows_in_smoke(specification: Specification) -> None:
    """In neither row, in one of them, in the other, in both."""
    seen = set()
    for case in specification.cases("smoke", Limits()):
        rounds = next(a for a in specification.draw(case, FLOAT64) if isinstance(a, tuple))
        seen |= {tuple(each.advanced[:2] > 0) for each in rounds if case.sizes["b"] > 1}
    assert len(seen) == 4
