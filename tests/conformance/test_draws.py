"""The same seed draws the same in every process, whatever modules it has imported."""

import contextlib
import importlib.util
import itertools
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from conformance.draws import by_seed_alone, without_the_clock


def drawn() -> list[int]:
    found = list[int]()

    @seed(7)
    @settings(max_examples=300, database=None, phases=(Phase.generate,), suppress_health_check=list(HealthCheck))
    @given(st.integers())
    def one(number: int) -> None:
        found.append(number)

    one()
    return found


def imported(source: Path) -> None:
    """Imports a module of the user's; its numbers are drawn from then on."""
    spec = importlib.util.spec_from_file_location(source.stem, source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[source.stem] = module


def test_a_module_that_is_imported_between_changes_no_draw(tmp_path: Path) -> None:
    """Without the guard it does."""
    free = drawn()
    with by_seed_alone():
        before = drawn()
    source = tmp_path / "numbers_of_a_user.py"
    source.write_text(f"NUMBERS = {[987654321987 + 1000 * n for n in range(400)]}\n")
    imported(source)
    with by_seed_alone():
        assert drawn() == before
    assert drawn() != free


def steps_of_shrinking() -> int:
    """How many failing numbers are tried, on a machine so busy that five minutes pass between two looks at the clock."""
    tried = 0

    @seed(7)
    @settings(max_examples=200, database=None, deadline=None, suppress_health_check=list(HealthCheck), print_blob=False)
    @given(st.lists(st.integers(0, 1000), min_size=5))
    def one(numbers: list[int]) -> None:
        nonlocal tried
        if sum(numbers) > 100:
            tried += 1
            raise ValueError

    with contextlib.suppress(ValueError):
        one()
    return tried


def test_a_busy_machine_shrinks_as_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the guard it gives up early."""
    with without_the_clock():
        alone = steps_of_shrinking()
    wall = itertools.count(0, 301)
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(wall)))
    assert steps_of_shrinking() < alone
    with without_the_clock():
        assert steps_of_shrinking() == alone
