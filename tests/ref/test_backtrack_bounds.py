"""The backtracking paths within the error bounds of float64: their own and plain decoding's, added.

Snapshots, joint attainment and activation replay evaluate the recurrence token by token, as plain decoding does. The replay
buffer reads every output from the checkpoint and folds it forward: its bound is taken from flush to flush, and what the
checkpoint is wrong by enters the next.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ssmspec_ref import error_bounds
from ssmspec_ref.backtrack import Accepted, Draft
from ssmspec_ref.backtrack.replay_buffer import Kept, Pending, ReplayBuffer
from ssmspec_ref.contract import FLOAT64
from ssmspec_ref.layers.mixer import MixerInputs, MixerState, scan
from ssmspec_ref.records import concat, each, prefix
from ssmspec_ref.shapes import Array
from tests.families import Family, Kind, Sizes, each_family, each_kind, layer, tokens
from tests.speculation import PATHS, tokens_of

T = 4
RING = ReplayBuffer(11, T)


def run(path: Any, kind: Kind, family: Family, seed: int = 3) -> tuple[Any, MixerState, MixerInputs, Array, Any, list[int]]:
    """Twelve windows of one sequence: the layer, its first state, what was accepted of each window and its outputs, what
    the path keeps, and the accepted tokens at each flush."""
    rng = np.random.default_rng(seed)
    mixer, state, _ = layer(kind, seed, Sizes(b=1), family)
    kept, windows, outputs, flushes, count = path.start(state), [], [], [], 0
    for w in range(12):
        if isinstance(path, ReplayBuffer) and path.due(kept.held)[0]:
            flushes.append(count)
        window = tokens(kind, mixer, seed + w, 1, T, family)
        lag = int(path.refeed(kept)[0])
        again = tokens_of(windows[-1], 0, 1, lag + 1) if lag else None
        y, pending = path.verify(kept, Draft(window if again is None else concat(again, window)), mixer)
        advanced = int(rng.integers(1, T + 1))
        kept = path.commit(pending, Accepted(np.array([advanced])), mixer)
        windows.append(prefix(window, advanced))
        outputs.append(y[:, lag : lag + advanced])
        count += advanced
    stream = windows[0]
    for window in windows[1:]:
        stream = concat(stream, window)
    return mixer, state, stream, np.concatenate(outputs, axis=1), kept, flushes


@each_family
@each_kind
@pytest.mark.parametrize("name", ["snapshots", "joint", "activation_replay"])
def test_the_sequential_paths_stay_within_twice_the_bound_of_plain_decoding(name: str, kind: Kind, family: Family) -> None:
    path = PATHS[name]
    mixer, state, stream, y, kept, _ = run(path, kind, family)
    y_plain, _ = scan(state, stream, mixer)
    count = y.shape[1] - int(path.refeed(kept)[0])
    _, plain = scan(state, prefix(stream, count), mixer)
    y_bound, _, _ = error_bounds.mixer.scan(state, stream, mixer, FLOAT64)
    _, _, S = error_bounds.mixer.scan(state, prefix(stream, count), mixer, FLOAT64)
    restored = path.restore(kept, mixer)
    assert np.array_equal(restored.M, plain.M)  # inputs, moved and never computed with
    for got, ref, error in ((y, y_plain, y_bound.error), (restored.S, plain.S, S.error)):
        judged = error_bounds.compare(got, ref, 2 * error)
        assert judged.passed, judged


def from_flush_to_flush(path: ReplayBuffer, kind: Kind, family: Family) -> tuple[tuple[Array, Array, Array], ...]:
    """Outputs and state of the path, plain decoding's, and the sum of both bounds."""
    mixer, state, stream, y, kept, flushes = run(path, kind, family)
    assert len(flushes) > 1
    y_plain, plain = scan(state, stream, mixer)
    sequential, _, S_sequential = error_bounds.mixer.scan(state, stream, mixer, FLOAT64)
    contract = replace(FLOAT64, order="output_only")
    errors, before, wrong = [], state, np.zeros_like(state.S)
    for begin, end in zip([0, *flushes], [*flushes, y.shape[1]], strict=True):
        if begin == end:
            continue
        piece = tokens_of(stream, 0, begin, end)
        bound, _, S = error_bounds.mixer.scan(before, piece, mixer, contract, inexact={"S": wrong})
        errors.append(bound.error)
        before, wrong = scan(before, piece, mixer)[1], S.error
    return (y, y_plain, np.concatenate(errors, axis=1) + sequential.error), (
        path.restore(kept, mixer).S,
        plain.S,
        wrong + S_sequential.error,
    )


@each_family
@each_kind
def test_the_replay_buffer_stays_within_its_bound_from_flush_to_flush(kind: Kind, family: Family) -> None:
    for got, ref, error in from_flush_to_flush(RING, kind, family):
        judged = error_bounds.compare(got, ref, error)
        assert judged.passed, judged


class SinglePrecision(ReplayBuffer):
    """A ring that holds float32."""

    def commit(self, pending: Pending, accepted: Accepted, mixer: Any) -> Kept:
        rounded = each(lambda a: a.astype(np.float32).astype(np.float64), pending.entries)
        return super().commit(replace(pending, entries=rounded), accepted, mixer)


@each_kind
def test_planted_a_ring_in_single_precision_is_caught(kind: Kind) -> None:
    judged = [error_bounds.compare(*parts) for parts in from_flush_to_flush(SinglePrecision(11, T), kind, "gentle")]
    assert not judged[0].passed
    assert not judged[1].passed
