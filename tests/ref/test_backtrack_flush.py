"""When the replay buffer flushes: the early rule, what the natural rule would meet, and flushes by hand."""

import numpy as np
import pytest

from ssmspec_ref.backtrack import Accepted, Draft
from ssmspec_ref.backtrack.replay_buffer import Kept, Pending, ReplayBuffer
from ssmspec_ref.errors import RingOverflow
from ssmspec_ref.layers.mixer import Mixer, scan
from ssmspec_ref.records import where
from ssmspec_ref.shapes import Array
from tests.families import Kind, Sizes, each_kind, inputs, layer, same_bits
from tests.speculation import Case, Excess, speculate

from .refusals import refused


def histories(path: ReplayBuffer) -> set[int]:
    """Every h that any acceptance can reach, from the cursors' rules alone."""
    reached, new = {0}, {0}
    while new:
        h = new.pop()
        folded = 0 if path.due(np.array(h)) else h
        new |= {folded + advanced for advanced in range(path.window + 1) if advanced} - reached
        reached |= new
    return reached


class Natural(ReplayBuffer):
    """Flush when the next window would not fit: h + T > L."""

    def due(self, held: Array) -> Array:
        return held + self.window > self.capacity


class Late(ReplayBuffer):
    """h + 2T > L, taken one token too late."""

    def due(self, held: Array) -> Array:
        return held + 2 * self.window > self.capacity + 1


@pytest.mark.parametrize("window", range(1, 9))
@pytest.mark.parametrize("spare", range(9))
def test_under_the_early_rule_the_history_never_exceeds_B_and_every_window_fits(window: int, spare: int) -> None:
    path = ReplayBuffer(2 * window + spare, window)
    assert max(histories(path)) + window <= path.capacity
    assert max(histories(path)) == path.capacity - window  # B = L - T
    for wrong in (Natural(path.capacity, window), Late(path.capacity, window)):
        assert max(histories(wrong)) + window > path.capacity


def test_the_natural_rule_meets_a_window_that_does_not_fit() -> None:
    """The article's schedule: h + T = L - 1 is not due, all T are accepted, h = L - 1, and one entry is free."""
    mixer, state, _ = layer("ssd", 1, Sizes(b=1))
    path = Natural(8, 3)
    kept = path.start(state)
    for h, advanced in [(0, 2), (2, 2), (4, 3)]:
        assert kept.held.tolist() == [h]
        _, pending = path.verify(kept, Draft(inputs(mixer, h, 1, 3)), mixer)
        kept = path.commit(pending, Accepted(np.array([advanced])), mixer)
    assert path.due(kept.held).all()
    refused(
        RingOverflow,
        "row 0 adds 3 tokens to a ring of 8 that holds 7; give at most 1, or flush",
        path.verify,
        kept,
        Draft(inputs(mixer, 9, 1, 3)),
        mixer,
    )
    path.verify(kept, Draft(inputs(mixer, 9, 1, 1)), mixer)  # the window shrinks to the root


@pytest.mark.parametrize("path", [Natural(8, 3), Late(8, 3)])
def test_planted_a_flush_that_is_due_too_late_is_caught(path: ReplayBuffer) -> None:
    mixer, state, window = layer("ssd", 1, Sizes(b=1, t=3))
    kept = path.start(state)
    for _ in range(2):
        _, pending = path.verify(kept, Draft(window), mixer)
        kept = path.commit(pending, Accepted(np.array([3])), mixer)
    refused(RingOverflow, "adds 3 tokens to a ring of 8 that holds 6", path.verify, kept, Draft(window), mixer)


def test_a_ring_of_one_window_takes_every_window_if_it_is_flushed_by_hand() -> None:
    mixer, plain, _ = layer("selective", 6, Sizes(b=2))
    path, excess = ReplayBuffer(4, 4), Excess()
    kept = path.start(plain)
    for w in range(6):
        window = inputs(mixer, w, 2, 4)
        y, pending = path.verify(kept, Draft(window), mixer)
        excess.compare(y, scan(plain, window, mixer)[0])
        kept = path.commit(pending, Accepted(np.array([4, 1 + w % 3])), mixer)
        _, plain = scan(plain, window, mixer, np.arange(4) < np.array([[4], [1 + w % 3]]))
        refused(
            RingOverflow,
            "row 0 adds 4 tokens to a ring of 4 that holds 4; give at most 0",
            path.verify,
            kept,
            Draft(window),
            mixer,
        )
        kept = path.flush(kept, mixer)
        assert kept.held.tolist() == [0, 0]
        excess.compare(kept.S_0, plain.S)
    assert excess.holds(), excess


class Forced(ReplayBuffer):
    """Every third row is flushed by hand before each window, due or not."""

    def verify(self, kept: Kept, draft: Draft, mixer: Mixer) -> tuple[Array, Pending]:
        chosen = (np.arange(len(kept.held)) + kept.held) % 3 == 0
        return super().verify(where(chosen, self.flush(kept, mixer), kept), draft, mixer)


@each_kind
def test_a_forced_flush_at_any_window_changes_nothing_that_is_read(kind: Kind) -> None:
    assert speculate(Forced(11, 4), Case(kind, 3, Sizes(b=3))).holds()


def test_a_window_that_is_not_due_writes_no_checkpoint() -> None:
    mixer, state, window = layer("ssd", 3, Sizes(b=2, t=3))
    path = ReplayBuffer(12, 3)
    kept, due = path.start(state), []
    for _ in range(8):
        due.append(path.due(kept.held))
        _, pending = path.verify(kept, Draft(window), mixer)
        after = path.commit(pending, Accepted(np.array([3, 2])), mixer)
        assert [same_bits(after.S_0[b], kept.S_0[b]) for b in range(2)] == (~due[-1]).tolist()
        kept = after
    assert np.sum(due, axis=0).tolist() == [2, 1]
