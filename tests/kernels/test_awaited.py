"""Projections that overlap the launch before them read nothing that it may have written before it has ended."""

import json
from typing import Any

import pytest

from .test_compiled import run

pytestmark = pytest.mark.interpreter


@pytest.fixture(scope="module")
def read() -> dict[str, Any]:
    done = run("-m", "tests.kernels.awaited")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_product_alone_asks_for_weights_and_nothing_else_before_the_launch_ahead_has_ended(read: dict[str, Any]) -> None:
    assert read["alone"] == {"in_proj": ["W"], "out_proj": ["W"], "odd": ["W"]}


@pytest.mark.parametrize("name", ["with squares", "with a residual"])
def test_a_projection_with_squares_or_a_residual_reads_nothing_before(read: dict[str, Any], name: str) -> None:
    assert read[name] == []


@pytest.mark.parametrize(
    ("planted", "before"),
    [
        ("rows are not awaited", ["everything"]),  # nothing is left that needs the wait
        ("nothing is awaited", ["everything"]),
        ("weights are awaited", []),
        ("the bias is read before the loop", ["W", "bias"]),
    ],
)
def test_a_planted_fault_is_caught(read: dict[str, Any], planted: str, before: list[str]) -> None:
    assert read[planted] == dict.fromkeys(read["alone"], before)


@pytest.mark.parametrize(
    ("planted", "before"),
    [("squares are not awaited", ["W", "squares"]), ("the residual is not awaited", ["W", "residual", "weight"])],
)
def test_a_projection_that_starts_early_and_should_not_is_caught(
    read: dict[str, Any], planted: str, before: list[str]
) -> None:
    assert read[planted] == before
