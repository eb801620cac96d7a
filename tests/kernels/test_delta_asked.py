"""A window against a state that is held asks for all it needs before it waits, 8 bytes of the state a lane at once.

Every tile that the launcher gives is compiled for sm_90, placed early as there, and the order of its instructions read.
"""

import json
from typing import Any

import pytest

from tests.kernels.test_compiled import run

pytestmark = pytest.mark.interpreter


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    done = run("-m", "tests.kernels.asked_worker")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_tile_alone_is_asked_for_before_all_that_is_waited_for(found: dict[str, Any]) -> None:
    """A lane takes a tile in K / 4 loads. A run hides those of its first tile but for a fraction, and has no fence."""
    assert [(one["name"], one["first"]) for one in found["sound"] if one["run"] == 1 and one["first"] < 32] == []


def test_runs_of_one_tile_and_of_two_are_looked_at_with_and_without_a_limit_of_registers(found: dict[str, Any]) -> None:
    assert {(one["run"], one["limit"]) for one in found["sound"]} == {(1, None), (1, 128), (2, None)}


def test_hardly_a_word_is_spilled(found: dict[str, Any]) -> None:
    """Three stores once in a program of 2000 instructions: those of the limit for up to 8 tokens, and those for which ptxas
    itself holds 10 tokens that are read to 128 registers."""
    assert [(one["name"], one["spilled"]) for one in found["sound"] if one["spilled"] > 3] == []


def test_no_load_waits_for_a_barrier_in_front_of_the_products(found: dict[str, Any]) -> None:
    """A program of few tiles lasts as long as its loads one behind the other: 12 took 2.17 steps where 1.32 are taken."""
    assert [(one["name"], one["late"]) for one in found["sound"] if one["late"]] == []


def test_the_state_is_read_by_pairs_of_channels(found: dict[str, Any]) -> None:
    assert [(one["name"], one["widths"]) for one in found["sound"] if one["widths"] != [8]] == []


def test_a_loop_that_carries_no_tile_is_seen_to_load_late(found: dict[str, Any]) -> None:
    assert all(one["late"] >= 4 for one in found["hoisted"])


def test_a_tile_behind_the_rows_is_seen(found: dict[str, Any]) -> None:
    assert all(one["first"] < 32 for one in found["unordered"])


def test_registers_that_a_tile_does_not_fit_into_are_seen(found: dict[str, Any]) -> None:
    assert all(one["spilled"] > 3 for one in found["cramped"])


def test_pairs_that_no_lane_loads_at_once_are_seen(found: dict[str, Any]) -> None:
    assert all(one["widths"] == [4] for one in found["reversed"])
