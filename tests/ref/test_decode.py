"""Speculative decoding equals plain decoding, token for token and state for state, whatever the drafts and the path."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssmspec_ref import decode, speculate
from ssmspec_ref import model as lm
from ssmspec_ref.accept import DraftTree, Emitted, Sampling, UniformDice, multi_step, proposals
from ssmspec_ref.accept.processors import process_window
from ssmspec_ref.attention import KVState
from ssmspec_ref.backtrack import activation_replay, joint, kv_cache, snapshots
from ssmspec_ref.decode import Row, Sampled, Sequences, Settings
from ssmspec_ref.errors import (
    BudgetError,
    EmptyWindow,
    LengthError,
    ParameterError,
    ProbabilityError,
    ShapeMismatch,
    Unsupported,
)
from ssmspec_ref.model import tiny
from ssmspec_ref.records import rows
from ssmspec_ref.shapes import Array, WindowLogits
from ssmspec_ref.speculate import Judge, Window

from ..decoding import (
    PATHS,
    TREES,
    VOCABULARY,
    WINDOW,
    Oracle,
    Plain,
    check_against,
    check_windows,
    deviation,
    drawn_prompts,
    each_path,
    late,
    one_row,
    plain,
    stopping,
    tiny_model,
)
from ..families import TOLERANCE, examples
from ..speculation import wrong
from .refusals import copied, refused, unchanged

SEEDS = st.integers(0, 2**32 - 1)
FEW = examples(2)
SKILLS = st.sampled_from([0.0, 0.5, 0.9, 1.0])


def capped(rng: np.random.Generator) -> Judge:
    """A judge that accepts less than it could: every prefix of a run is lossless."""

    def judge(tree: DraftTree, logits: WindowLogits, b: int, prompt: Row, output: Row) -> Emitted:
        run = speculate.follow()(tree, logits, b, prompt, output)
        return run.first(int(rng.integers(1, run.advanced + 1)))

    return judge


@each_path
@pytest.mark.parametrize("kind", tiny.KINDS)
@FEW
@given(seed=SEEDS, drafts=st.integers(0, WINDOW - 1), each=st.integers(1, 3), skill=SKILLS, cap=st.booleans())
def test_twelve_windows_of_chains_equal_plain_decoding(
    kind: str, path: str, seed: int, drafts: int, each: int, skill: float, cap: bool
) -> None:
    rng = np.random.default_rng(seed)
    model = tiny_model(kind, seed % 97)
    ending = Settings(int(rng.integers(8, 20)), stopping(seed % 10))  # one of 5 to 9 never comes
    want = plain(drawn_prompts(rng, 3), model, ending)
    drafter = Oracle(want, skill, rng).chains(drafts, each)
    check_windows(want, model, PATHS[path], drafter, ending, capped(rng) if cap else None)


@pytest.mark.parametrize("path", TREES)
@pytest.mark.parametrize("kind", tiny.KINDS)
@FEW
@given(seed=SEEDS, nodes=st.integers(1, WINDOW), skill=SKILLS, cap=st.booleans())
def test_twelve_windows_of_trees_equal_plain_decoding(
    kind: str, path: str, seed: int, nodes: int, skill: float, cap: bool
) -> None:
    rng = np.random.default_rng(seed)
    model = tiny_model(kind, seed % 97)
    ending = Settings(int(rng.integers(8, 20)), stopping(seed % 10))
    want = plain(drawn_prompts(rng, 2), model, ending)
    check_windows(want, model, PATHS[path], Oracle(want, skill, rng).trees(nodes), ending, capped(rng) if cap else None)


@each_path
@examples(3)
@given(seed=SEEDS, kind=st.sampled_from(list(tiny.KINDS)), skill=SKILLS)
def test_naive_sampling_with_noise_by_position_equals_plain_sampling(path: str, seed: int, kind: str, skill: float) -> None:
    rng = np.random.default_rng(seed)
    model, ending = tiny_model(kind, seed % 97), Settings(14, stopping(1))
    sampling = Sampling(temperature=1.3, top_k=4, top_p=0.95, repetition=1.2, presence=0.1, min_tokens=3, eos=frozenset({1}))
    choose = Sampled(sampling, [UniformDice((), noise.tolist()) for noise in rng.random((3, 40))])
    want = plain(drawn_prompts(rng, 3), model, ending, choose)
    drafter = Oracle(want, skill, rng).chains(3, 2)
    check_windows(want, model, PATHS[path], drafter, ending, speculate.follow(choose))


def test_each_token_is_drawn_with_the_noise_of_its_own_row_and_position() -> None:
    """One uniform for a whole row would be followed by both sides alike, and emit another law."""
    choose = Sampled(Sampling(), [UniformDice((), picks) for picks in ([0.1, 0.6, 0.9], [0.9, 0.1, 0.6])])
    logits = np.log(np.array([0.5, 0.3, 0.2]))
    drawn = [[choose(logits, b, (1,), (0,) * position) for position in range(3)] for b in range(2)]
    assert drawn == [[0, 1, 2], [2, 0, 1]]


@each_path
@examples(3)
@given(seed=SEEDS, kind=st.sampled_from(list(tiny.KINDS)))
def test_sampled_acceptance_leaves_the_state_of_the_tokens_it_committed(path: str, seed: int, kind: str) -> None:
    rng = np.random.default_rng(seed)
    model, ending = tiny_model(kind, seed % 97), Settings(24)

    def judge(tree: DraftTree, logits: WindowLogits, b: int, prompt: Row, output: Row) -> Emitted:
        p = process_window(logits, tree, prompt, output, Sampling(temperature=0.8))
        noise = rng.random((2, len(tree))).tolist()
        return multi_step.multi_step(tree, p, proposals.point_masses(tree, VOCABULARY), UniformDice(*noise))

    sequences, state = decode.prefill(drawn_prompts(rng, 2), model)
    kept = speculate.start(state, model, PATHS[path])
    drafter = Oracle(decoded(sequences), 0.0, rng).chains(4, 2)
    for _ in range(8):
        sequences, kept = speculate.step(kept, sequences, drafter(sequences), model, PATHS[path], ending, judge)
        restored = speculate.restore(kept, sequences, model, PATHS[path])
        for b in range(2):
            committed = np.array([sequences.committed(b)])
            want = lm.scan(lm.new_state(model, 1), committed, model)[1] if committed.size else lm.new_state(model, 1)
            assert deviation(one_row(restored, b), want) <= TOLERANCE
    assert min(map(len, sequences.emitted)) >= 8


def decoded(sequences: Sequences) -> Plain:
    """A future that no drafter knows: as many tokens as a test may ask for."""
    return Plain(Sequences(sequences.prompts, tuple((0,) * 99 for _ in sequences.prompts)), ())


@each_path
def test_a_window_never_emits_behind_the_end_of_a_sequence(path: str) -> None:
    model = tiny_model("mamba2", 5)
    free = plain(((1, 2), (3,)), model, Settings(12))
    for eos in set(free.sequences.emitted[0]):
        for budget in (0, 1, 3, 12):
            ending = Settings(budget, stopping(eos))
            want = plain(free.sequences.prompts, model, ending)
            drafter = Oracle(free, 1.0, np.random.default_rng(0)).chains(5, 1)
            got, state = speculate.decode(free.sequences.prompts, model, ending, drafter, PATHS[path])
            assert got == want.sequences
            assert all(len(e) <= budget and eos not in e[:-1] for e in got.emitted)
            check_against(want, got, state)


@each_path
@pytest.mark.parametrize("kind", ["mamba1", "hybrid", "delta_hybrid"])
def test_perfect_drafts_are_all_accepted_and_garbage_costs_a_window_a_token(kind: str, path: str) -> None:
    model, ending = tiny_model(kind, 3), Settings(12)
    want = plain(((1, 2), (4,)), model, ending)
    wrong = Plain(replace(want.sequences, emitted=shifted(want.sequences.emitted)), want.states)
    for future, windows in ((want, 3), (wrong, 12)):
        sequences, state = decode.prefill(want.sequences.prompts, model)
        kept, count = speculate.start(state, model, PATHS[path]), 0
        drafter = Oracle(future, 1.0, np.random.default_rng(0)).chains(3, 1)
        while sequences.active(ending).any():
            window = drafter(sequences)
            sequences, kept = speculate.step(kept, sequences, window, model, PATHS[path], ending, speculate.follow())
            count += 1
        assert (sequences, count) == (want.sequences, windows)


def shifted(emitted: tuple[Row, ...]) -> tuple[Row, ...]:
    """Drafts of which none is right."""
    return tuple(tuple((token + 1) % VOCABULARY for token in row) for row in emitted)


def test_rows_out_of_order_and_rows_of_one_sequence_are_judged_as_its_drafts() -> None:
    model, ending = tiny_model("hybrid", 11), Settings(9)
    want = plain(((1, 2), (4,)), model, ending)
    (a, b), roots = want.sequences.emitted, (2, 4)
    tokens = np.array([[roots[1], b[0], 0], [roots[0], a[0], a[1]], [roots[0], (a[0] + 1) % 5, 0], [roots[1], b[0], b[1]]])
    window = Window(tokens, sequence=np.array([1, 0, 0, 1]))
    for path in PATHS.values():
        sequences, state = decode.prefill(want.sequences.prompts, model)
        kept = speculate.start(state, model, path)
        sequences, kept = speculate.step(kept, sequences, window, model, path, ending, speculate.follow())
        assert sequences.emitted == (a[:3], b[:3])
        check_against(want, sequences, speculate.restore(kept, sequences, model, path))


def test_a_row_decodes_alone_as_it_does_in_a_batch() -> None:
    prompts = ((1, 2, 3), (4,), (0, 3))
    for kind in tiny.KINDS:
        model, ending = tiny_model(kind, 8), Settings(8, stopping(2))
        together = plain(prompts, model, ending)
        for b, prompt in enumerate(prompts):
            alone = plain((prompt,), model, ending)
            assert alone.sequences.emitted == together.sequences.emitted[b : b + 1]
            count = len(alone.sequences.emitted[0])
            assert deviation(alone.state(0, count), together.state(b, count)) <= TOLERANCE


@each_path
@pytest.mark.parametrize("kind", ["hybrid", "delta_hybrid", "mamba1"])
def test_rows_that_change_places_between_windows_decode_as_before(kind: str, path: str) -> None:
    model, ending, rng = tiny_model(kind, 12), Settings(18), np.random.default_rng(4)
    want = plain(((1, 2), (4,), (3, 0, 2)), model, ending)
    sequences, state = decode.prefill(want.sequences.prompts, model)
    kept = speculate.start(state, model, PATHS[path])
    for order in (np.array([0, 1, 2]), np.array([2, 0, 1]), np.array([1, 0, 2]), np.array([1, 2, 0])):
        want = Plain(reordered(want.sequences, order), tuple(tuple(rows(s, order) for s in one) for one in want.states))
        sequences, kept = reordered(sequences, order), tuple(rows(layer, order) for layer in kept)
        window = Oracle(want, 0.7, rng).chains(3, 1)(sequences)
        sequences, kept = speculate.step(kept, sequences, window, model, PATHS[path], ending, speculate.follow())
        check_against(want, sequences, speculate.restore(kept, sequences, model, PATHS[path]))


def reordered(sequences: Sequences, order: Array) -> Sequences:
    return Sequences(tuple(sequences.prompts[b] for b in order), tuple(sequences.emitted[b] for b in order))


# Faults, each planted and caught


def caught(path: Any, kind: str = "hybrid", drafter: str = "chains", eos: bool = False, ignored: bool = False) -> bool:
    """Whether twelve windows tell this path, or a loop that ignores the end of a sequence, from plain decoding."""
    model, prompts, ending = tiny_model(kind, 6), ((1, 2, 3), (4, 2)), Settings(16)
    if eos:
        ending = Settings(16, stopping(late(plain(prompts, model, ending).sequences.emitted[0])))
    want = plain(prompts, model, ending)
    oracle = Oracle(want, 0.7, np.random.default_rng(3))
    drafts = oracle.trees(WINDOW) if drafter == "trees" else oracle.chains(4, 1)
    try:
        check_windows(want, model, path, drafts, Settings(16) if ignored else ending)
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize("kind", ["mamba1", "hybrid", "delta"])
def test_planted_commit_of_a_rejected_token_in_one_layer_is_caught(kind: str) -> None:
    last = tiny_model(kind, 6).blocks[-1].layer.mixer  # type: ignore[union-attr]

    def one_too_many(path: Any) -> Any:
        def commit(pending: Any, accepted: Any, mixer: Any) -> Any:
            if type(mixer) is type(last) and np.array_equal(mixer.conv.weight, last.conv.weight):
                room = pending.draft.live().sum(axis=1)
                accepted = replace(accepted, advanced=np.minimum(accepted.advanced + (accepted.advanced > 0), room))
            return path.commit(pending, accepted, mixer)

        return wrong(path, commit=commit)

    for path in (snapshots, activation_replay):
        assert not caught(wrong(path), kind)
        assert caught(one_too_many(path), kind)


def test_planted_compaction_that_leaves_keys_where_they_were_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def unmoved(state: KVState, path: Any) -> KVState:
        return KVState(state.K, state.V, state.length + (path >= 0).sum(axis=1))

    assert not caught(snapshots, drafter="trees")
    monkeypatch.setattr(kv_cache.attention, "compact", unmoved)
    assert caught(snapshots, drafter="trees")


def test_planted_refeed_of_one_token_too_few_is_caught() -> None:
    assert not caught(wrong(joint))
    assert caught(wrong(joint, refeed=lambda kept: np.maximum(joint.refeed(kept) - 1, 0)))


def test_planted_refeed_that_the_cache_does_not_hear_of_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    verify = kv_cache.verify
    monkeypatch.setattr(kv_cache, "verify", lambda kept, draft, params, lag: verify(kept, draft, params, 0 * lag))
    assert not caught(snapshots)
    assert caught(joint)


def test_planted_end_of_sequence_ignored_inside_a_window_is_caught() -> None:
    assert not caught(snapshots, eos=True)
    assert caught(snapshots, eos=True, ignored=True)


def test_planted_advance_by_the_uncut_run_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def uncut(run: Emitted, output: Any, stop: Any, budget: int) -> Any:
        kept, finish = cut(run, output, stop, budget)
        return Uncut(kept.tokens, run.path), finish

    class Uncut(Emitted):
        def __post_init__(self) -> None:
            pass

    cut = speculate.cut
    monkeypatch.setattr(speculate, "cut", uncut)
    assert caught(snapshots, eos=True)


def test_planted_row_other_than_the_accepted_one_is_caught() -> None:
    def first_row(pending: Any, accepted: Any, mixer: Any) -> Any:
        lowest = np.array([np.flatnonzero(pending.draft.sequence == b)[0] for b in range(len(accepted.advanced))])
        advanced = np.minimum(accepted.advanced, pending.draft.live().sum(axis=1)[lowest])
        return snapshots.commit(pending, replace(accepted, row=lowest, advanced=advanced), mixer)

    model, ending = tiny_model("mamba2", 6), Settings(16)
    want = plain(((1, 2, 3), (4, 2)), model, ending)

    def windows(path: Any) -> None:
        check_windows(want, model, path, Oracle(want, 0.6, np.random.default_rng(1)).chains(3, 3), ending)

    windows(snapshots)
    with pytest.raises(AssertionError):
        windows(wrong(snapshots, commit=first_row))


# What is refused


def test_wrong_input_is_refused_before_anything_is_computed() -> None:
    model = tiny_model("mamba2", 1)
    sequences, state = decode.prefill(((1, 2), (3,)), model)
    kept = speculate.start(state, model, snapshots)

    def verify(window: Window, path: Any = snapshots, held: Any = kept) -> Any:
        return speculate.verify(held, sequences, window, model, path)

    refused(BudgetError, "budget is -1", Settings, -1)
    refused(EmptyWindow, r"lengths \[1, 0\]", decode.prefill, ((1,), ()), model)
    refused(ShapeMismatch, "there are 2 prompts and 1 emissions", Sequences, ((1,), (2,)), ((),))
    refused(ParameterError, "there is a token 7, but the vocabulary is 0 to 4", decode.prefill, ((7, 1),), model)
    refused(EmptyWindow, r"Window\.tokens has no tokens", Window, np.zeros((2, 0), dtype=np.int64))
    refused(ShapeMismatch, "the root of its sequence is 3", verify, Window(np.array([[2, 0], [2, 0]])))
    refused(ShapeMismatch, "3 rows for 2 sequences", verify, Window(np.array([[2], [3], [3]])))
    for path in PATHS.values():
        held = speculate.start(state, model, path)
        for other in (2, -1):
            refused(
                ParameterError,
                f"row 1 continues sequence {other}, but there are 2; give 0 to 1",
                verify,
                Window(np.array([[2], [3]]), sequence=np.array([0, other])),
                path,
                held,
            )
        refused(
            LengthError,
            r"lengths\[0\] is 2, but the window holds 1",
            verify,
            Window(np.array([[2], [3]]), np.array([2, 1])),
            path,
            held,
        )
    refused(ProbabilityError, "", decode.most_likely, np.array([0.0, np.nan]), 0, (1,), ())
    two = Window(np.array([[2], [2], [3]]), sequence=np.array([0, 0, 1]), parents=np.array([[-1], [-1], [-1]]))
    refused(
        Unsupported,
        "sequence 0 has 2 trees",
        speculate.step,
        kept,
        sequences,
        two,
        model,
        snapshots,
        Settings(4),
        speculate.follow(),
    )


@pytest.mark.parametrize("path", ["joint", "replay_buffer"])
def test_a_tree_is_refused_where_it_is_not_defined(path: str) -> None:
    model = tiny_model("mamba2", 1)
    sequences, state = decode.prefill(((1, 2),), model)
    window = Window(np.array([[2, 0, 1]]), parents=np.array([[-1, 0, 0]]))
    refused(
        Unsupported, "", speculate.verify, speculate.start(state, model, PATHS[path]), sequences, window, model, PATHS[path]
    )


def test_decoding_writes_none_of_its_arguments() -> None:
    model = tiny_model("delta_hybrid", 2)
    sequences, state = decode.prefill(((1, 2), (3, 0, 1)), model)
    before = copied(state)
    window = Window(np.array([[2, 0, 1], [1, 1, 1]]))
    for path in PATHS.values():
        kept = speculate.start(state, model, path)
        speculate.step(kept, sequences, window, model, path, Settings(9), speculate.follow())
    decode.step(sequences, state, model, Settings(9))
    assert unchanged(before, state)
