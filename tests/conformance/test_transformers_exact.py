"""In float64 throughout, transformers and the reference compute the same."""

import math
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("transformers")

from conformance.adapters.transformers import exact
from conformance.adapters.transformers.families import FAMILIES
from conformance.adapters.transformers.others import LAYERS


def test_where_transformers_is_right_it_equals_the_reference_to_1e_12() -> None:
    """In a process of its own, since rerouting the casts to float64 cannot be undone; the table is printed."""
    command = [sys.executable, "-m", "conformance.adapters.transformers.exact"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    for family in FAMILIES:
        own = [line for line in lines if line.startswith(f"{family.name} ")]
        assert len(own) == 6, f"{family.name} has {len(own)} lines; six operations are judged"
        assert any(" cases " in line for line in own)
    assert all(any(line.startswith(name) for line in lines) for name in LAYERS)


@pytest.mark.parametrize("came", [np.array([1.0, np.nan]), np.array([1.0, np.inf]), np.array([1.0])])
def test_nan_infinity_and_another_shape_are_infinitely_wrong(came: np.ndarray) -> None:
    assert exact.relative(came, np.array([1.0, 2.0])) == math.inf


def test_planted_difference_is_caught() -> None:
    reference = np.array([1.0, -2.0])
    error = exact.relative(reference + np.array([0.0, 4e-12]), reference)
    assert error == pytest.approx(2e-12, rel=1e-3)
    assert not exact.Row("family", "layer.step", 1, error, 0, math.inf).holds
    assert exact.Row("family", "layer.step", 1, error / 4, 0, math.inf).holds


def test_a_known_failure_that_is_only_rounding_is_caught() -> None:
    assert not exact.Row("family", "layer.step", 0, 0.0, 1, 1e-13).holds
    assert exact.Row("family", "layer.step", 0, 0.0, 1, 1e-3).holds
