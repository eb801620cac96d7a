"""Faults planted in the paths: each must be seen by the comparison with plain decoding. Those of the ring and of the no-op
stand beside their paths."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ssmspec_ref import conv
from ssmspec_ref.backtrack import Accepted, activation_replay, snapshots
from ssmspec_ref.lengths import chain_path
from tests.families import Kind, Sizes, each_convolved, each_kind
from tests.speculation import PATHS, Case, each_path, speculate, wrong


def caught(path: Any, kind: Kind, **options: Any) -> bool:
    return not speculate(path, Case(kind, 6, Sizes(b=3), **{"windows": 6, **options})).holds()


@each_path
def test_a_path_with_no_fault_passes_the_same_windows(path: str) -> None:
    assert not caught(wrong(PATHS[path]), "ssd")


@each_kind
@pytest.mark.parametrize("off", [-1, 1])
def test_planted_a_snapshot_one_off_is_caught(off: int, kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    real = snapshots.pick

    def shifted(states: Any, index: Any, row: Any = None) -> Any:
        return real(states, index if row is None else np.clip(index + off, 0, len(states) - 1), row)

    monkeypatch.setattr(snapshots, "pick", shifted)
    assert caught(snapshots, kind)


@each_kind
@pytest.mark.parametrize("off", [-1, 1])
def test_planted_a_replay_one_token_off_is_caught(off: int, kind: Kind) -> None:
    def commit(pending: Any, accepted: Accepted, mixer: Any) -> Any:
        kept = activation_replay.commit(pending, accepted, mixer)
        tokens = kept.cache.path.shape[1]
        count = np.where(accepted.advanced > 0, np.clip(accepted.advanced + off, 0, tokens), 0)
        return replace(kept, cache=replace(kept.cache, path=chain_path(count, tokens)))

    assert caught(wrong(activation_replay, commit=commit), kind)


@pytest.mark.parametrize("path", ["activation_replay", "replay_buffer", "tree"])
@each_convolved
def test_planted_a_conv_window_that_keeps_a_rejected_token_is_caught(
    path: str, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = conv.commit
    monkeypatch.setattr(conv, "commit", lambda M, u, n: real(M, u, np.where(n > 0, np.minimum(n + 1, u.shape[1]), 0)))
    monkeypatch.setattr(conv, "commit_path", lambda M, u, path: conv.commit(M, u, (path >= 0).sum(axis=1)))
    assert caught(PATHS[path], kind)


@each_convolved
def test_planted_a_snapshot_whose_conv_window_is_the_last_one_is_caught(kind: Kind) -> None:
    def commit(pending: Any, accepted: Accepted, mixer: Any) -> Any:
        kept = snapshots.commit(pending, accepted, mixer)
        row, _ = accepted.choose(pending.draft, len(kept.M))
        after = np.where(accepted.advanced[:, None, None] > 0, pending.snapshots[-1].M[row], kept.M)
        return replace(kept, M=after)

    assert caught(wrong(snapshots, commit=commit), kind)


@pytest.mark.parametrize("path", [name for name in PATHS if name != "joint"])
def test_planted_the_row_of_another_draft_committed_is_caught(path: str) -> None:
    """Joint attainment commits no row: the accepted tokens are brought again (`tests/ref/test_backtrack_joint`)."""

    def commit(pending: Any, accepted: Accepted, mixer: Any) -> Any:
        sequence, lengths = pending.draft.sequence, pending.draft.live().sum(axis=1)
        row = accepted.row.copy()
        for b, advanced in enumerate(accepted.advanced):
            others = (sequence == b) & (lengths >= advanced) & (np.arange(len(lengths)) != row[b])
            row[b] = np.flatnonzero(others)[0] if advanced and others.any() else row[b]
        return PATHS[path].commit(pending, Accepted(accepted.advanced, row), mixer)

    assert caught(wrong(PATHS[path], commit=commit), "ssd", windows=12)


@each_path
def test_planted_a_finished_row_that_advances_is_caught(path: str) -> None:
    def commit(pending: Any, accepted: Accepted, mixer: Any) -> Any:
        lengths, row = pending.draft.live().sum(axis=1), accepted.row
        lag = PATHS[path].refeed(pending.kept) if path == "joint" else 0
        advanced = np.where(lengths[row] > lag, np.maximum(accepted.advanced, 1), accepted.advanced)
        return PATHS[path].commit(pending, Accepted(advanced, row), mixer)

    assert caught(wrong(PATHS[path], commit=commit), "delta")


@each_path
def test_planted_a_state_that_is_not_finite_is_caught(path: str) -> None:
    def restore(kept: Any, mixer: Any) -> Any:
        state = PATHS[path].restore(kept, mixer)
        return replace(state, S=np.where(np.arange(state.S.shape[-1]) == 0, np.nan, state.S))

    assert caught(wrong(PATHS[path], restore=restore), "ssd")
