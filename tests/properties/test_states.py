"""The machine of a state's life: what is right survives it, and each planted fault is found."""

from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from conformance.adapters.reference_parts.ranks import Ranks
from conformance.adapters.reference_parts.states import States
from conformance.faults.rollback import lives, ranks
from property_tests.states.machine import WrongLife, machine
from ssmspec_ref.contract import FLOAT64, Capability

SETTINGS = settings(max_examples=40, stateful_step_count=12, deadline=None, derandomize=True, database=None)


@pytest.mark.parametrize("build", [States, lives.Written], ids=lambda build: build.__name__)
def test_what_is_right_survives(build: Any) -> None:
    run_state_machine_as_test(machine(Capability(build, FLOAT64)), settings=SETTINGS)


SOME = (lives.KeyOfTheLength, lives.HitShares, lives.ExportIsAView, lives.MissesKeepTheSlot)


@pytest.mark.parametrize("numbers", [(1, 2), (2, 1)])
def test_what_is_right_survives_on_servers_of_different_ranks(numbers: tuple[int, int]) -> None:
    few = settings(SETTINGS, max_examples=15)
    run_state_machine_as_test(machine(Capability(Ranks, FLOAT64), numbers), settings=few)


@pytest.mark.parametrize("build", [ranks.EveryRankTakesTheFirst, ranks.AddsReplicas], ids=lambda build: build.__name__)
def test_a_wrong_cut_is_found(build: Any) -> None:
    found = settings(SETTINGS, max_examples=600, phases=[Phase.generate])
    with pytest.raises(WrongLife, match="wrong by"):
        run_state_machine_as_test(machine(Capability(build, FLOAT64), (1, 2)), settings=found)


@pytest.mark.parametrize("build", SOME, ids=lambda build: build.__name__)
def test_a_planted_fault_is_found(build: Any) -> None:
    found = settings(SETTINGS, max_examples=600, phases=[Phase.generate])
    with pytest.raises(WrongLife, match="wrong by"):
        run_state_machine_as_test(machine(Capability(build, FLOAT64)), settings=found)
