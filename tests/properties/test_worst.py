"""Sessions that came nearest to their bounds are pinned: they still run, as near as they were, and within."""

import json
from pathlib import Path

import pytest

import property_tests
from property_tests.session import replay

FOLDER = Path(property_tests.__file__).parent / "worst"
PINNED = sorted(FOLDER.glob("*.json"))


def test_some_are_pinned() -> None:
    assert len(PINNED) >= 2


@pytest.mark.parametrize("path", PINNED, ids=lambda path: path.stem)
def test_a_pinned_session_is_within_its_bounds(path: Path) -> None:
    """Half of what it used: the functions of another library version may round otherwise, a bound that grew would show."""
    pinned = json.loads(path.read_text(encoding="utf-8"))
    assert 0.5 * pinned["utilisation"] <= replay(pinned["session"]).utilisation <= 1
