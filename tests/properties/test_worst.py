"""Sessions that came nearest to their bounds are pinned: they still run and agree, and their bounds did not grow."""

import json
from pathlib import Path

import pytest

from property_tests.sessions.pins import FOLDER, grown, pinned, write
from property_tests.sessions.session import Session, replay

PINNED = sorted(FOLDER.glob("*.json"))


def test_every_kind_of_layer_is_pinned() -> None:
    kinds = {kind for path in PINNED for kind in json.loads(path.read_text(encoding="utf-8"))["session"]["model"]["kinds"]}
    assert kinds == {"mamba2", "mamba1", "delta", "attention"}


@pytest.mark.parametrize("path", PINNED, ids=lambda path: path.stem)
def test_a_pinned_session_is_within_its_bounds(path: Path) -> None:
    """How much of a bound is used depends on the machine's order of sums; the bounds do not."""
    kept = json.loads(path.read_text(encoding="utf-8"))
    session = replay(kept["session"])
    assert 0 < session.utilisation <= 1
    assert set(session.widest) == set(kept["widest"])
    assert not grown(kept, session)


def test_a_planted_bound_that_grew_is_seen(tmp_path: Path) -> None:
    session = Session("conformance.adapters.sequences:adapter", ["joint"], {"kinds": ["mamba2"], "seed": 0})
    session.prefill(0, [[1, 2]], [0])
    kept = json.loads(write(session.words(), folder=tmp_path).read_text(encoding="utf-8"))
    assert kept == json.loads(json.dumps(pinned(session)))
    assert not grown(kept, session)
    session.widest = {label: 1.01 * bound for label, bound in session.widest.items()}
    assert set(grown(kept, session)) == set(kept["widest"])
    session.widest = {"another": 1e-9}
    assert grown(kept, session) == {"another": (0.0, 1e-9)}
