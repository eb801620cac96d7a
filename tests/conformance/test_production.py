"""Cases of production sizes: drawn ones are found again by their ids, long histories are judged as short ones are."""

import numpy as np
import pytest

from conformance.suite import find, speculate
from conformance.suite.recurrences import windows
from conformance.suite.specification import CROSSED_ALREADY, DRAWN, LARGEST_DRAWN
from ssmspec_ref.contract import FLOAT64, Limits, NumericContract

from .judging import SPECIFICATION


@pytest.mark.parametrize(
    "operation", ["ssd.scan", "delta.verify_replay", "acceptance.process", "speculate.tree", "conv.step"]
)
def test_drawn_cases_follow_from_the_seed_and_are_found_again(operation: str) -> None:
    specification = SPECIFICATION[operation]
    drawn = list(specification.drawn("standard", Limits(), 5))
    assert drawn == list(specification.drawn("standard", Limits(), 5)) != list(specification.drawn("standard", Limits(), 6))
    assert len(drawn) == DRAWN["standard"]
    assert all(find(specification.identify(case)) == (specification, case) for case in drawn)
    assert list(specification.drawn("smoke", Limits(), 5)) == []


def test_drawn_sizes_keep_to_the_limits_and_most_runs_have_a_length_that_no_table_has() -> None:
    scan, limits = SPECIFICATION["ssd.scan"], Limits({"z": ("off",)}, {"g": (1, 1), "t": (1, 40)})
    known = {case.sizes["t"] for case in scan.cases("standard", Limits())}
    new = 0
    for seed in range(40):
        cases = list(scan.drawn("standard", limits, seed))
        assert all(c.sizes["g"] == 1 and c.sizes["t"] <= 40 and c.options["z"] == "off" for c in cases)
        assert all(c.size() <= LARGEST_DRAWN for c in cases)
        new += any(c.sizes["t"] not in known for c in cases)
    assert new >= 30


@pytest.mark.parametrize(
    ("module", "case"),
    [
        (windows, "ssd.verify_snapshots/b3,t4,g1,h2,p2,n3,j6/plain/gentle/s0"),
        (windows, "delta.verify_replay/b3,t6,g1,h2,k2,v3,j5/tree=vine/gentle/s1"),
        (speculate, "speculate.tree/b2,t5,j5,g1,h2,p2,n3,w3/kind=mamba2/gentle/s0"),
    ],
    ids=["chains", "trees", "layers"],
)
@pytest.mark.parametrize("contract", [FLOAT64, NumericContract(order="output_only")], ids=str)
def test_a_long_history_is_judged_by_the_numbers_of_a_short_one(
    monkeypatch: pytest.MonkeyPatch, module: object, case: str, contract: NumericContract
) -> None:
    specification, found = find(case)
    arguments = specification.draw(found, contract)
    short = specification.expect(arguments, contract, None)
    monkeypatch.setattr(module, "LONGEST", 1)
    compared = 0
    for one, other in zip(short, specification.expect(arguments, contract, None), strict=True):
        assert (one.name, one.axes, one.value.shape) == (other.name, other.axes, other.value.shape)
        if other.judged is not None and not other.judged.any():
            continue
        there = np.broadcast_to(True if other.judged is None else other.judged, other.value.shape)
        assert np.allclose(one.value[there], other.value[there], rtol=1e-9, atol=1e-12)
        assert np.all(other.bound[there] >= 0.99 * one.bound[there]), "narrower: what is right might be blamed"
        assert np.all(other.bound[there] <= 2 * one.bound[there])
        compared += int(there.any())
    assert compared > found.sizes["j"] // 2


@pytest.mark.parametrize(
    "operation", ["ssd.scan", "ssd.step", "delta.step", "selective.scan_masked", "ssd.scan_packed", "conv.scan"]
)
def test_every_value_of_an_option_meets_more_rows_than_a_tile_and_a_wide_state(operation: str) -> None:
    scan = SPECIFICATION[operation]
    wide = [axis for axis in "pnkvcd" if axis in scan.base]
    found = [(case.options, case.sizes) for case in scan.cases("standard", Limits({"slots": scan.values["slots"]}))]
    for name, values in scan.values.items():
        left_out = CROSSED_ALREADY.get(name, ())
        for value in values[1:] if left_out is not None else ():
            sizes = [size for options, size in found if options[name] == value]
            if value not in left_out:
                assert any(size["b"] >= 17 for size in sizes), (name, value)
                assert any(all(size[axis] >= 33 for axis in wide) for size in sizes), (name, value)


def test_a_row_of_padding_meets_a_row_that_lives_in_slot_zero() -> None:
    for identity in ("ssd.step/b5,g2,h6,p5,n4/slots=padded/gentle/s0", "delta.step/b17,g1,h1,k1,v1/slots=padded/gentle/s0"):
        specification, case = find(identity)
        held = specification.draw(case, NumericContract())[0]
        assert held.write[0] == 0, identity
        assert (held.write < 0).any(), identity
