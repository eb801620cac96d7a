"""The same seed draws the same in every process, whatever modules it has imported."""

import importlib.util
import sys
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from conformance.draws import by_seed_alone


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
