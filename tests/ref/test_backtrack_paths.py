"""The backtracking paths beside plain decoding: what was rejected leaves no trace, what was accepted is all there is."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssmspec_ref.backtrack import Accepted, Draft
from ssmspec_ref.errors import AcceptanceError, EmptyWindow, LengthError, ParameterError, PrecisionError, ShapeMismatch
from ssmspec_ref.layers.mixer import MixerInputs
from ssmspec_ref.records import arrays, each, rows
from tests.families import FAMILIES, Family, Kind, Sizes, drawn_sizes, each_kind, examples, layer, same_bits, seeds
from tests.speculation import PATHS, Case, each_path, speculate

from .refusals import refused


@each_kind
@each_path
@examples(3)
@given(seeds, drawn_sizes(rows=4), st.sampled_from(FAMILIES))
def test_twelve_windows_equal_never_speculating(path: str, kind: Kind, seed: int, sizes: Sizes, family: Family) -> None:
    excess = speculate(PATHS[path], Case(kind, seed, sizes, family))
    assert excess.holds(), excess


@each_path
def test_the_windows_of_these_tests_accept_nothing_the_root_a_part_and_all(path: str) -> None:
    excess = speculate(PATHS[path], Case("ssd", 1, Sizes(b=3)))
    assert excess.accepted == {"nothing", "root", "part", "all"}
    assert excess.holds(), excess


@each_path
@pytest.mark.parametrize("tokens", [1, 2, 4])
def test_windows_without_drafts_and_with_few_equal_never_speculating(path: str, tokens: int) -> None:
    assert speculate(PATHS[path], Case("delta_channel", 5, tokens=tokens)).holds()


@each_path
def test_a_long_run_with_gentle_decay_and_a_large_state_does_not_drift(path: str) -> None:
    assert speculate(PATHS[path], Case("ssd", 11, Sizes(b=1), "gentle", windows=50, drafts=1)).holds()


@each_path
def test_a_sequence_that_takes_no_part_keeps_its_bits_whatever_its_row_holds(path: str) -> None:
    mixer, state, window = layer("ssd", 3, Sizes(b=2, t=4))
    poisoned = each(lambda a: np.concatenate([a[:1], np.full_like(a[1:], np.nan)]), window)
    kept = PATHS[path].start(state)
    for _ in range(3):
        lengths = np.array([4, 0]) + np.array([1, 0]) * PATHS[path].refeed(kept)
        y, pending = PATHS[path].verify(kept, Draft(_widened(poisoned, int(lengths[0])), lengths), mixer)
        kept = PATHS[path].commit(pending, Accepted(np.array([2, 0])), mixer)
        assert np.isfinite(y).all()
        assert same_bits(rows(PATHS[path].restore(kept, mixer), np.array([1])), rows(state, np.array([1])))
    assert all(np.isfinite(a).all() for a in arrays(kept))


def _widened(window: MixerInputs, tokens: int) -> MixerInputs:
    return each(lambda a: np.concatenate([a] * 2, axis=1)[:, :tokens], window)


@pytest.mark.parametrize("path", ["snapshots", "joint", "activation_replay"])
def test_a_rejected_token_that_is_not_finite_leaves_no_trace(path: str) -> None:
    mixer, state, window = layer("delta", 3, Sizes(b=2, t=4))
    poisoned = each(lambda a: np.concatenate([a[:, :2], np.full_like(a[:, 2:], np.nan)], axis=1), window)
    y, pending = PATHS[path].verify(PATHS[path].start(state), Draft(poisoned), mixer)
    kept = PATHS[path].commit(pending, Accepted(np.array([2, 1])), mixer)
    assert np.isfinite(y[:, :2]).all()
    assert all(np.isfinite(a).all() for a in arrays(PATHS[path].restore(kept, mixer)))


# ------------------------------------------------------------------------------------------------------------ bad input


def _window(path: str, **options: Any) -> tuple[Any, Any, Any, Draft]:
    mixer, state, window = layer("ssd", 7, Sizes(b=2, t=3))
    return PATHS[path], mixer, PATHS[path].start(state), Draft(window, **options)


@each_path
@pytest.mark.parametrize(
    ("options", "advanced", "row", "words"),
    [
        ({}, [4, 1], None, "sequence 0 advanced by 4 tokens, but its window holds 3; give 0 to 3"),
        ({}, [1, -1], None, "sequence 1 advanced by -1 tokens"),
        ({}, [1, 1, 1], None, "advanced has 3 entries, but the window continues 2"),
        ({}, [1], None, "advanced has 1 entries"),
        ({}, [1, 1], [0, 0], r"sequence 1 accepted row 0, but its rows are \[1\]"),
        ({}, [1, 1], [0, 7], "sequence 1 accepted row 7"),
        ({}, [1, 1], [0, -1], "sequence 1 accepted row -1"),
        ({"lengths": np.array([3, 1])}, [3, 2], None, "sequence 1 advanced by 2 tokens, but its window holds 1"),
        ({"sequence": np.array([1, 1])}, [1, 1], None, r"sequence 0 accepted row 0, but its rows are \[\]"),
    ],
)
def test_acceptance_beyond_the_window_is_refused(path: str, options: Any, advanced: list[int], row: Any, words: str) -> None:
    verb, mixer, kept, draft = _window(path, **options)
    _, pending = verb.verify(kept, draft, mixer)
    accepted = Accepted(np.array(advanced), None if row is None else np.array(row))
    refused(AcceptanceError, words, verb.commit, pending, accepted, mixer)


@each_path
def test_the_accepted_row_is_named_where_a_sequence_has_several(path: str) -> None:
    verb, mixer, kept, draft = _window(path, sequence=np.array([1, 1]))
    _, pending = verb.verify(kept, draft, mixer)
    verb.commit(pending, Accepted(np.array([0, 1]), np.array([0, 1])), mixer)


@each_path
@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"lengths": np.array([3, -1])}, LengthError, r"draft.lengths\[1\] is -1"),
        ({"lengths": np.array([4, 3])}, LengthError, r"draft.lengths\[0\] is 4, but the window holds 3"),
        ({"sequence": np.array([0, 2])}, ParameterError, r"draft.sequence\[1\] is 2, but there are 2 sequences"),
        ({"sequence": np.array([-1, 0])}, ParameterError, r"draft.sequence\[0\] is -1"),
    ],
)
def test_rows_outside_the_window_are_refused(path: str, options: Any, error: type[Exception], words: str) -> None:
    verb, mixer, kept, draft = _window(path, **options)
    refused(error, words, verb.verify, kept, draft, mixer)


@each_path
def test_more_rows_than_sequences_need_their_sequences(path: str) -> None:
    verb, mixer, kept, draft = _window(path)
    refused(
        ShapeMismatch,
        r"the draft has 4 rows for 2 sequences; give draft\.sequence",
        verb.verify,
        kept,
        Draft(rows(draft.inputs, np.array([0, 1, 0, 1]))),
        mixer,
    )


def test_an_empty_window_is_refused() -> None:
    _, _, _, draft = _window("snapshots")
    refused(EmptyWindow, "has no tokens", each, lambda a: a[:, :0], draft.inputs)


def test_a_window_in_single_precision_is_refused() -> None:
    _, _, _, draft = _window("snapshots")
    refused(PrecisionError, "float32", each, lambda a: a.astype(np.float32), draft.inputs)
