"""What a session checks after every action can fail, and what it wrote down fails again."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance.adapters.sequences import PathDecoder
from conformance.faults.decoding.decoders import Right
from property_tests.drawing.walks import Walk
from property_tests.laws.relations import Broken
from property_tests.sessions.hunt import Failure, reproducer
from property_tests.sessions.ledger import Impossible
from property_tests.sessions.session import Deviation, Session, replay
from ssmspec_fast.adapters.sequences import SlotDecoder
from ssmspec_ref.contract import FLOAT64, Adapter, Decoding

MODEL = {"kinds": ["mamba2", "attention"], "seed": 0}
ENGINE = "ssmspec_fast.adapters.sequences:adapter"


def of(start: Callable[..., Any], **given: Any) -> Adapter:
    return Adapter("planted", "1", decodings=(Decoding("planted", start, FLOAT64, trees=True, **given),))


def walked(session: Session) -> Session:
    """Two sequences, a window of both with padding between them, one of them handed back and forth."""
    session.prefill(0, [[1, 2], [3, 0, 1]], [2, 0])
    session.verify(0, [[2, 1, 3], [0, 0, 0], [1, 0, 0]], [2, -1, 0], lengths=[3, 1, 2])
    session.commit([[0, 1, 2], [], [0]], [2, 0, 1], [0, 1, 2], [1, 0, 2])
    session.fork(0, 2, 1)
    session.release(0, 2)
    session.preempt(0, 0)
    session.resume(0, 0, 2)
    session.flush(0, [2, 1])
    session.verify(0, [[2, 1]], [2])
    return session


def test_a_right_decoder_passes_and_replays_from_its_words() -> None:
    session = walked(Session("conformance.adapters.sequences:adapter", ["joint"], MODEL))
    assert 0 <= session.utilisation < 1
    again = replay(session.words())
    assert again.used == session.used
    assert [name for name, _, _ in again.lines] == [name for name, _, _ in session.lines]


class TouchesAnother(Right):
    def fork(self, slot: int, to: int) -> None:
        super().fork(slot, to)
        for other in set(self.kept) - {slot, to}:
            self.kept[other] = self.after(other, [0])


class SaysNaN(Right):
    def verify(self, window: Any) -> np.ndarray:
        y = super().verify(window)
        y[-1, 0, 0] = np.nan
        return y


class Drifts(Right):
    """Off by 1e-9 where float64 allows 1e-11."""

    def state(self, slot: int) -> Any:
        return tuple((a + 1e-9, b) for a, b in super().state(slot))


@pytest.mark.parametrize(
    ("fault", "words"),
    [(TouchesAnother, "was not used by this action, but"), (SaysNaN, "logits of row"), (Drifts, "M of layer 0")],
)
def test_a_planted_deviation_is_named(fault: type[PathDecoder], words: str) -> None:
    session = Session(of(fault), ["planted"], MODEL)
    with pytest.raises(Deviation, match=words):
        walked(session)


def test_memory_of_a_slot_that_took_no_part_breaks_the_law_of_a_walk() -> None:
    walk = Walk(of(TouchesAnother), ["planted"], MODEL)
    walk.prefill(0, [[1, 2], [3, 0, 1]], [0, 1])
    with pytest.raises(Broken, match="planted: slot 1 was not used by this action"):
        walk.fork(0, 0, 2)


class OtherBits(Right):
    """Bits that depend on how many were asked for."""

    def verify(self, window: Any) -> np.ndarray:
        return super().verify(window) * (1 + 2.0**-52 * len(window.tokens))


def test_planted_bits_that_depend_on_the_batch_are_seen() -> None:
    session = Session(of(OtherBits, bits="all"), ["planted"], MODEL)
    session.prefill(0, [[1, 2], [1, 2]], [0, 1])
    session.verify(0, [[2, 1]], [0])
    session.commit([[0]], [1], [0], [2])
    with pytest.raises(Deviation, match="has other bits than before"):
        session.verify(0, [[2, 1], [2, 1]], [1, 0])


@pytest.mark.parametrize("method", ["snapshots", "activation replay", "replay buffer of two windows", "tree"])
def test_dead_memory_of_the_engine_is_poison_and_not_read(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a partly accepted window the pools hold NaN; with zeros instead nothing comes out otherwise."""

    def run() -> Session:
        session = Session(ENGINE, [f"{method}; torch"], MODEL)
        session.prefill(0, [[1, 2], [3, 0, 1]], [2, 0])
        tree = [[-1, 0, 0]] if method == "tree" else None
        for _ in range(2):
            root = session.rooms[0][2][-1]
            session.verify(0, [[root, 1, 3]], [2], parents=tree)
            session.commit([[0, 2] if tree else [0, 1]], [2], [0], [1])
        return session

    poisoned = run()
    assert any(np.isnan(a).any() for a in poisoned.decoders[0].memory(2))
    assert all(np.isnan(a).any() for a in poisoned.decoders[0].memory(1) if a.dtype.kind == "f")
    monkeypatch.setattr(SlotDecoder, "poison", lambda self: None)
    assert run().used == poisoned.used


def test_planted_reading_of_poison_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ring that forgets where it begins reads entries that are not held."""
    session = Session(ENGINE, ["replay buffer of two windows; torch"], {"kinds": ["mamba2"], "seed": 0})
    session.prefill(0, [[1, 2]], [0])
    session.verify(0, [[2, 1, 3, 0]], [0])
    session.commit([[0, 1]], [2], [0], [1])
    session.decoders[0].decoder.pools.kept.origin += 3  # type: ignore[attr-defined]
    with pytest.raises(Deviation, match="logits of row 0"):
        session.verify(0, [[1, 1, 3, 0]], [0])


def test_actions_that_the_contract_does_not_offer_are_refused() -> None:
    session = Session("conformance.adapters.sequences:adapter", ["snapshots"], MODEL, slots=2)
    session.prefill(0, [[1, 2]], [0])
    for attempt, words in (
        (lambda: session.prefill(0, [[1]], [0]), "slot 0 of snapshots is not free; the free slots are \\[1\\]"),
        (lambda: session.fork(0, 1, 0), "slot 1 of snapshots holds no sequence"),
        (lambda: session.commit([[0]], [1], [0], [1]), "no window is verified"),
        (lambda: session.resume(0, 0, 1), "sequence 0 is not preempted"),
    ):
        with pytest.raises(Impossible, match=words):
            attempt()
    session.verify(0, [[2, 1]], [0])
    with pytest.raises(Impossible, match="a window is not committed"):
        session.verify(0, [[2, 1]], [0])
    with pytest.raises(Impossible, match="has a window that is not committed"):
        session.release(0, 0)
    with pytest.raises(Impossible, match="has no decoding 'none'"):
        Session("conformance.adapters.sequences:adapter", ["none"], MODEL)


def test_the_reproducer_is_a_program_that_fails_in_the_same_way(tmp_path: Path) -> None:
    session = Session("conformance.faults.decoding.sequences:adapter", ["LosesLastToken"], {"kinds": ["mamba2"], "seed": 0})
    session.prefill(0, [[1, 2]], [0])
    session.verify(0, [[2, 1]], [0])
    with pytest.raises(Deviation) as caught:
        session.commit([[0, 1]], [2], [0], [1])
    path = tmp_path / "again.py"
    path.write_text(reproducer(Failure(session, str(caught.value), 1)), encoding="utf-8")
    assert len(path.read_text(encoding="utf-8").splitlines()) < 15
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert str(caught.value) in done.stderr
