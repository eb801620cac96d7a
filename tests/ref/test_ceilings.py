"""Bounds do not grow: the sums in `ceilings.json`, which the bounds that were written by hand made, are those of today."""

import importlib
import json
import re
from types import ModuleType
from typing import Any

import pytest

from ssmspec_ref import error_bounds

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


PLANTS = [("ssd", n) for n in (2, 3, 4, 5)] + [
    ("selective", 2),
    ("selective", 4),
    ("delta", 2),
    ("delta", 3),
    ("conv", 1),
    ("shortconv", 1),
]


def planted(kind: str, equation: int) -> Any:
    """The module of the reference whose line of an equation adds 1000 and subtracts it again."""
    module: Any = importlib.import_module(f"ssmspec_ref.{kind}")
    with open(module.__file__) as file:
        source, count = re.subn(rf"( +\w+ = )(.*)(  # \({equation}\)\n)", r"\1(\2) + 1000.0 - 1000.0\3", file.read())
    assert count
    made = ModuleType(module.__name__)
    made.__package__ = module.__name__
    exec(compile(source, module.__file__, "exec"), vars(made))
    return made


@pytest.mark.parametrize(("kind", "equation"), PLANTS)
def test_a_line_of_the_reference_that_loses_digits_is_noticed(
    kind: str, equation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values stay right, and bounds that are derived of the line only become wider: nothing but the ceilings says so."""
    monkeypatch.setattr(getattr(error_bounds, kind), kind, planted(kind, equation))
    operation = f"{kind}.step"
    said = ceilings.changed(operation, "fp32", ceilings.sums(BY_NAME[operation], ceilings.CONTRACTS["fp32"]))
    assert said
