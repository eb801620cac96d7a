"""The replay buffer: standard decode by both routes, the flush rule, the ring, and what lies dead in it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssmspec_ref.backtrack import Accepted, Draft, replay_buffer
from ssmspec_ref.backtrack.replay_buffer import Kept, Pending, ReplayBuffer
from ssmspec_ref.delta import buffered as delta_buffered
from ssmspec_ref.errors import ParameterError, RingOverflow, Unsupported
from ssmspec_ref.layers.mixer import Mixer, MixerState, scan
from ssmspec_ref.records import arrays, each, prefix, rows, where
from ssmspec_ref.shapes import Array
from tests.families import (
    FAMILIES,
    KINDS,
    Family,
    Kind,
    Sizes,
    drawn_sizes,
    examples,
    inputs,
    layer,
    same_bits,
    seeds,
    tokens,
)
from tests.speculation import Case, Excess, speculate, tokens_of

from .refusals import refused

ROUTES = ("step_output_only", "step_state_and_output")
each_route = pytest.mark.parametrize("route", ROUTES)


class Watched(ReplayBuffer):
    """A buffer that notes what its windows met."""

    seen: set[str]

    def verify(self, kept: Kept, draft: Draft, mixer: Mixer) -> tuple[Array, Pending]:
        due, end = self.due(kept.held), kept.origin + kept.held
        notes = {
            "rows are due at different windows": due.any() and not due.all(),
            "origin is not 0": kept.origin.any(),
            "the history wraps": np.any(end > self.capacity),
            "the window wraps": np.any((end < self.capacity) & (end + draft.tokens > self.capacity)),
            "the ring is full": np.any(kept.held[draft.continues(len(end))] + draft.live().sum(axis=1) == self.capacity),
        }
        self.seen |= {note for note, met in notes.items() if met}
        return super().verify(kept, draft, mixer)


@pytest.mark.parametrize("kind", KINDS)
@examples(6)
@given(seeds, drawn_sizes(rows=3), st.sampled_from(FAMILIES), st.integers(1, 6), st.integers(0, 7))
def test_any_ring_of_at_least_two_windows_equals_never_speculating(
    kind: Kind, seed: int, sizes: Sizes, family: Family, count: int, spare: int
) -> None:
    path = ReplayBuffer(2 * count + spare, count)
    excess = speculate(path, Case(kind, seed, sizes, family, tokens=count, drafts=2))
    assert excess.holds(), excess


def test_these_windows_meet_every_place_of_the_ring() -> None:
    path = Watched(9, 4)
    object.__setattr__(path, "seen", set())
    assert speculate(path, Case("ssd", 2, Sizes(b=3), windows=60)).holds()
    assert len(path.seen) == 5, path.seen


# --------------------------------------------------------------------------------------------------------- standard decode


@pytest.mark.parametrize("kind", KINDS)
@each_route
@examples(4)
@given(seeds, drawn_sizes(rows=3), st.sampled_from(FAMILIES), st.integers(1, 6))
def test_standard_decode_equals_plain_decoding_and_empties_its_ring_at_every_Lth_token(
    route: str, kind: Kind, seed: int, sizes: Sizes, family: Family, capacity: int
) -> None:
    rng, excess, path = np.random.default_rng(seed), Excess(), ReplayBuffer(capacity, 1)
    mixer, plain, _ = layer(kind, seed, sizes, family)
    kept, count = path.start(plain), np.zeros(sizes.b, dtype=np.int64)
    for t in range(2 * capacity + 3):
        token = tokens(kind, mixer, seed + t, sizes.b, 1, family)
        live = rng.uniform(size=(sizes.b, 1)) < 0.8
        y, after = getattr(path, route)(kept, token, mixer, live)
        y_plain, plain = scan(plain, token, mixer, live)
        count += live[:, 0]
        excess.compare(y, y_plain)
        excess.compare(path.restore(after, mixer).M, plain.M)
        excess.compare(path.restore(after, mixer).S, plain.S)
        assert after.held.tolist() == (count % capacity).tolist()
        for b in range(sizes.b):
            if live[b] and count[b] % capacity == 0:
                excess.compare(after.S_0[b], plain.S[b])
            else:
                assert same_bits(after.S_0[b], kept.S_0[b])
        kept = after
    assert excess.holds(), excess


@pytest.mark.parametrize("kind", KINDS)
@examples(5)
@given(seeds, drawn_sizes(tokens=6), st.sampled_from(FAMILIES), st.integers(1, 7))
def test_a_ring_folds_to_the_state_and_both_routes_read_the_same_of_a_window_of_any_length(
    kind: Kind, seed: int, sizes: Sizes, family: Family, count: int
) -> None:
    rng, excess = np.random.default_rng(seed), Excess()
    mixer, state, window = layer(kind, seed, sizes, family)
    r, earlier = mixer.project(window.pre, window.gates), tokens(kind, mixer, seed + 1, sizes.b, count, family)
    past, buffered = mixer.project(earlier.pre, earlier.gates), mixer.buffered
    every = np.ones((sizes.b, count), dtype=bool)
    _, history = buffered.output_only(
        state.S, each(lambda a: a[:, :0], buffered.entries(past, mixer.params)), every[:, :0], past, mixer.params, every
    )
    keep = np.arange(count) < rng.integers(0, count + 1, (sizes.b, 1))
    live = np.arange(sizes.t) < rng.integers(0, sizes.t + 1, (sizes.b, 1))
    read, new = buffered.output_only(state.S, history, keep, r, mixer.params, live)
    rebuilt, new_rebuilt = buffered.state_and_output(state.S, history, keep, r, mixer.params, live)
    excess.compare(read, rebuilt)
    for a, b in zip(arrays(new), arrays(new_rebuilt), strict=True):
        excess.compare(a, b)
    _, before = mixer.recurrence.scan(state.S, past, mixer.params, keep)
    excess.compare(buffered.fold(state.S, history, keep, mixer.params), before)
    excess.compare(read, mixer.recurrence.scan(before, r, mixer.params, live)[0])
    assert excess.holds(), excess


@each_route
def test_standard_decode_and_speculation_hand_the_buffer_to_each_other(route: str) -> None:
    mixer, plain, _ = layer("delta", 8, Sizes(b=2))
    path, excess = ReplayBuffer(7, 3), Excess()
    kept, rng = path.start(plain), np.random.default_rng(8)
    for w in range(20):
        if w % 3:
            window = inputs(mixer, w, 2, 3)
            y, pending = path.verify(kept, Draft(window), mixer)
            excess.compare(y, scan(plain, window, mixer)[0])
            advanced = rng.integers(0, 4, 2)
            kept = path.commit(pending, Accepted(advanced), mixer)
            _, plain = scan(plain, window, mixer, np.arange(3) < advanced[:, None])
        else:
            token = inputs(mixer, w, 2, 1)
            y, kept = getattr(path, route)(kept, token, mixer)
            y_plain, plain = scan(plain, token, mixer)
            excess.compare(y, y_plain)
        kept = kept if np.all(kept.held <= 4) else path.flush(kept, mixer)  # a token may fill what a window would need
        excess.compare(path.restore(kept, mixer).S, plain.S)
    assert excess.holds(), excess


# --------------------------------------------------------------------------------------------------------------- dead entries


class Poisoned(ReplayBuffer):
    """NaN in every entry that is not committed, before each window."""

    def verify(self, kept: Kept, draft: Draft, mixer: Mixer) -> tuple[Array, Pending]:
        return super().verify(self.poison(kept), draft, mixer)

    def poison(self, kept: Kept) -> Kept:
        if kept.ring is None:
            return kept
        held = ((np.arange(self.capacity) - kept.origin[:, None]) % self.capacity) < kept.held[:, None]
        dead = lambda a: np.where(held.reshape(held.shape + (1,) * (a.ndim - 2)), a, np.nan)  # noqa: E731
        return replace(kept, ring=each(dead, kept.ring))


@pytest.mark.parametrize("kind", KINDS)
def test_what_lies_dead_in_the_ring_is_never_read(kind: Kind) -> None:
    excess = speculate(Poisoned(11, 4), Case(kind, 4, Sizes(b=3)))
    assert excess.holds(), excess


def test_the_committed_entries_are_never_overwritten() -> None:
    mixer, state, _ = layer("ssd", 4, Sizes(b=1))
    path, rng = ReplayBuffer(9, 4), np.random.default_rng(4)
    kept = path.start(state)
    for w in range(12):
        _, pending = path.verify(kept, Draft(inputs(mixer, w, 1, 4)), mixer)
        after = path.commit(pending, Accepted(rng.integers(1, 5, 1)), mixer)
        if kept.ring is not None and not path.due(kept.held)[0]:
            committed = (kept.origin[0] + np.arange(kept.held[0])) % 9
            assert same_bits(each(lambda a: a[:, committed], after.ring), each(lambda a: a[:, committed], kept.ring))  # noqa: B023
        kept = after


# ------------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(("capacity", "window"), [(3, 4), (4, 0), (0, 0), (4, -1)])
def test_a_ring_smaller_than_its_window_is_refused(capacity: int, window: int) -> None:
    refused(ParameterError, f"capacity and window are {capacity} and {window}", ReplayBuffer, capacity, window)


def test_a_tree_is_refused() -> None:
    mixer, state, window = layer("ssd", 4, Sizes(b=1, t=3))
    path = ReplayBuffer(6, 3)
    refused(
        Unsupported,
        "the replay buffer holds chains",
        path.verify,
        path.start(state),
        Draft(window, parents=np.array([[-1, 0, 0]])),
        mixer,
    )


@each_route
def test_standard_decode_of_more_than_the_ring_holds_is_refused(route: str) -> None:
    mixer, state, window = layer("ssd", 4, Sizes(b=1, t=3))
    path = ReplayBuffer(2, 1)
    refused(
        RingOverflow,
        "row 0 adds 3 tokens to a ring of 2 that holds 0",
        getattr(path, route),
        path.start(state),
        window,
        mixer,
    )


# --------------------------------------------------------------------------------------------------------- planted faults


class StaleCheckpoint(ReplayBuffer):
    def flush(self, kept: Kept, mixer: Mixer) -> Kept:
        return replace(super().flush(kept, mixer), S_0=kept.S_0)


class OriginOffByOne(ReplayBuffer):
    def flush(self, kept: Kept, mixer: Mixer) -> Kept:
        """The new origin is off, and what is written by it is read by the right one."""
        flushed = super().flush(kept, mixer)
        return replace(flushed, origin=(flushed.origin + 1) % self.capacity)

    def commit(self, pending: Pending, accepted: Accepted, mixer: Mixer) -> Kept:
        kept = super().commit(pending, accepted, mixer)
        off = self.due(pending.kept.held) & (accepted.advanced > 0)
        return replace(kept, origin=np.where(off, (kept.origin - 1) % self.capacity, kept.origin))


class FlushOfTheWindow(ReplayBuffer):
    def commit(self, pending: Pending, accepted: Accepted, mixer: Mixer) -> Kept:
        """A row that is due folds the window beside its history, and empties its ring."""
        kept, everything = super().commit(pending, accepted, mixer), pending.draft.live().sum(axis=1)
        row, _ = accepted.choose(pending.draft, len(kept.held))
        folded = self.flush(replace(kept, held=everything[row]), mixer)
        return where(self.due(pending.kept.held) & (accepted.advanced > 0), folded, kept)


class RejectedIsHeld(ReplayBuffer):
    def commit(self, pending: Pending, accepted: Accepted, mixer: Mixer) -> Kept:
        kept = super().commit(pending, accepted, mixer)
        row, _ = accepted.choose(pending.draft, len(kept.held))
        more = (accepted.advanced > 0) & (accepted.advanced < pending.draft.live().sum(axis=1)[row])
        return replace(kept, held=kept.held + more)


class RestWritesTheFlush(ReplayBuffer):
    def commit(self, pending: Pending, accepted: Accepted, mixer: Mixer) -> Kept:
        """A row that is due and takes no part keeps its history beside the checkpoint that folded it."""
        kept = super().commit(pending, accepted, mixer)
        return where(accepted.advanced > 0, kept, replace(kept, S_0=pending.flushed.S_0))


FAULTS = (StaleCheckpoint, OriginOffByOne, FlushOfTheWindow, RejectedIsHeld, RestWritesTheFlush)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "shortconv"])  # its columns folded twice are the same
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_planted_faults_of_the_ring_are_caught(fault: type[ReplayBuffer], kind: Kind) -> None:
    assert speculate(ReplayBuffer(10, 3), Case(kind, 6, Sizes(b=3), tokens=3)).holds()
    try:
        excess = speculate(fault(10, 3), Case(kind, 6, Sizes(b=3), tokens=3))
    except RingOverflow:
        return
    assert not excess.holds(), excess


@pytest.mark.parametrize("kind", KINDS)
def test_planted_a_ring_read_one_entry_off_is_caught(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    real = replay_buffer.in_order
    monkeypatch.setattr(
        replay_buffer, "in_order", lambda kept: real(replace(kept, origin=(kept.origin + 1) % kept.held.size))
    )
    assert not speculate(ReplayBuffer(10, 3), Case(kind, 6, Sizes(b=3), tokens=3, windows=5)).holds()


@pytest.mark.parametrize("kind", ["delta", "delta_channel"])
def test_planted_a_delta_rule_that_holds_v_in_place_of_u_is_caught(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    real = delta_buffered.output_only

    def holds_v(S_0: Array, history: Any, held: Any, window: Any, params: Any, live: Any) -> Any:
        o, new = real(S_0, history, held, window, params, live)
        return o, replace(new, u=window.v)

    monkeypatch.setattr(delta_buffered, "output_only", holds_v)
    assert not speculate(ReplayBuffer(10, 3), Case(kind, 6, tokens=3, windows=5)).holds()


def test_a_buffer_of_a_restored_state_goes_on_as_the_buffer_it_came_from() -> None:
    mixer, state, window = layer("ssd", 2, Sizes(b=2, t=4))
    path, excess = ReplayBuffer(11, 4), Excess()
    _, pending = path.verify(path.start(state), Draft(window), mixer)
    kept = path.commit(pending, Accepted(np.array([2, 4])), mixer)
    moved: MixerState = path.restore(kept, mixer)
    excess.compare(*(path.verify(k, Draft(window), mixer)[0] for k in (path.start(moved), kept)))
    assert excess.holds(), excess
    assert same_bits(rows(prefix(window, 1), np.array([0])), tokens_of(window, 0, 0, 1))
