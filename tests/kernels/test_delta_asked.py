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


def test_the_tile_is_asked_for_before_all_that_is_waited_for(found: dict[str, Any]) -> None:
    """A lane takes a tile in K / 4 loads."""
    assert [(one["name"], one["first"]) for one in found["sound"] if one["first"] < 32] == []


def test_no_load_waits_for_a_barrier_in_front_of_the_products(found: dict[str, Any]) -> None:
    """A program of few tiles lasts as long as its loads one behind the other: 12 of them took 574 us where 326 are taken."""
    assert [(one["name"], one["late"]) for one in found["sound"] if one["late"]] == []


def test_the_state_is_read_by_pairs_of_channels(found: dict[str, Any]) -> None:
    assert [(one["name"], one["widths"]) for one in found["sound"] if one["widths"] != [8]] == []


def test_a_loop_that_carries_no_tile_is_seen_to_load_late(found: dict[str, Any]) -> None:
    assert all(one["late"] >= 4 for one in found["hoisted"])


def test_a_tile_behind_the_rows_is_seen(found: dict[str, Any]) -> None:
    assert all(one["first"] < 32 for one in found["unordered"])


def test_pairs_that_no_lane_loads_at_once_are_seen(found: dict[str, Any]) -> None:
    assert all(one["widths"] == [4] for one in found["reversed"])
