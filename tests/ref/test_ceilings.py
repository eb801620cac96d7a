"""Bounds do not grow: the sums in `ceilings.json`, which the bounds that were written by hand made, are those of today."""

import json

import pytest

from . import ceilings

MADE = json.loads(ceilings.FILE.read_text())
ROWS = [(operation, contract) for operation, contracts in MADE.items() for contract in contracts]
BY_NAME = {specification.operation: specification for specification in ceilings.specifications()}


@pytest.mark.parametrize(("operation", "contract"), ROWS)
def test_no_bound_grows(operation: str, contract: str) -> None:
    """A change that is meant needs a reason, and `python -m tests.ref.ceilings --write`."""
    assert ceilings.changed(operation, contract, ceilings.sums(BY_NAME[operation], ceilings.CONTRACTS[contract])) == []


def test_every_operation_that_runs_token_by_token_has_its_ceilings() -> None:
    assert set(MADE) == set(BY_NAME)
    assert len(BY_NAME) == 13


def test_one_case_of_many_that_grows_by_one_percent_is_seen_and_nan_is_never_right() -> None:
    known = MADE["ssd.scan"]["fp32"]["S"]
    assert ceilings.changed("ssd.scan", "fp32", {"S": known}) == []
    assert ceilings.changed("ssd.scan", "fp32", {"S": [known[0], known[1] + 0.0099]}) == [
        "ssd.scan, fp32: median bounds of S, all together, are e^0.0099 times as wide"
    ]
    assert len(ceilings.changed("ssd.scan", "fp32", {"S": [float("nan"), float("nan")]})) == 2
