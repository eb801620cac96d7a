"""Drafting: what is proposed, from which laws, and where the drafter's own state ends."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssmspec_ref.draft import batch_tree, beam_tree, follow, ngram, static_tree
from ssmspec_ref.draft.token_tree import TokenTree
from ssmspec_ref.errors import AcceptanceError, NotTopological, ParameterError, ShapeMismatch
from ssmspec_ref.shapes import Array
from ssmspec_ref.tree import depths
from tests.families import examples

from .refusals import refused


@dataclass(frozen=True)
class HashModel:
    """A drafter whose law depends on every token it was fed: its state is a hash of them."""

    vocabulary: int = 7

    def law(self, state: int) -> Array:
        return np.random.default_rng(state).dirichlet(np.ones(self.vocabulary))

    def step(self, state: Array, tokens: Array) -> tuple[Array, Array]:
        after = np.array([hash((int(s), int(t))) % 2**31 for s, t in zip(state, tokens, strict=True)])
        return np.stack([self.law(int(s)) for s in after]), after

    def rows(self, state: Array, index: Array) -> Array:
        return state[index]


MODEL = HashModel()
START = np.array([3])


def state_after(tokens: list[int]) -> int:
    state = START
    for token in tokens:
        _, state = MODEL.step(state, np.array([token]))
    return int(state[0])


def path_tokens(tree: TokenTree, node: int) -> list[int]:
    path = [node]
    while tree.parents[path[-1]] >= 0:
        path.append(int(tree.parents[path[-1]]))
    return [int(tree.tokens[i]) for i in reversed(path)]


def drafted_from_the_right_context(tree: TokenTree) -> bool:
    """Each asked node's law is the model's law after exactly the tokens on its path."""
    asked = [i for i in range(len(tree.tokens)) if tree.children(i)]
    return all(np.array_equal(tree.q[i], MODEL.law(state_after(path_tokens(tree, i)))) for i in asked)


# --- prompt n-grams ------------------------------------------------------------------------------------------------


def history(*tokens: int) -> Array:
    return np.array(tokens, dtype=np.int64)


TABLE = np.arange(10 * 3 * 2).reshape(10, 3, 2)


def test_png_proposes_the_most_frequent_windows_then_the_table() -> None:
    seen = history(1, 2, 3, 1, 4, 5, 1, 2, 3, 9, 1)
    assert ngram.png(seen, 3, 2, TABLE).tolist() == [[2, 3], [4, 5], TABLE[1, 0].tolist()]


def test_png_prefers_the_later_of_equally_frequent_windows() -> None:
    assert ngram.png(history(1, 2, 3, 1, 4, 5, 1), 1, 2, TABLE).tolist() == [[4, 5]]


def test_png_passes_over_a_match_without_a_full_window() -> None:
    """The root stood two places before the end: two tokens follow it there, not three."""
    longer = np.arange(10 * 2 * 3).reshape(10, 2, 3)
    assert ngram.png(history(5, 6, 1, 8, 1), 1, 3, longer).tolist() == [longer[1, 0].tolist()]
    assert ngram.png(history(5, 6, 1, 8, 1), 1, 2, TABLE).tolist() == [[8, 1]]


def test_png_repeats_no_row() -> None:
    a, b = TABLE[1, 0]
    rows = ngram.png(history(1, int(a), int(b), 1), 3, 2, TABLE).tolist()
    assert rows == [list(TABLE[1, 0]), list(TABLE[1, 1]), list(TABLE[1, 2])]


def test_bigram_table_is_the_models_own_greedy_continuation() -> None:
    table = ngram.bigram_table(MODEL, START, MODEL.vocabulary, rows=3, tokens=4)
    for v in range(MODEL.vocabulary):
        order = np.argsort(-MODEL.law(state_after([v])))
        for r in range(3):
            tokens = [v, int(order[r])]
            while len(tokens) < 5:
                tokens.append(int(MODEL.law(state_after(tokens)).argmax()))
            assert table[v, r].tolist() == tokens[1:]


def test_prompt_lookup_takes_the_longest_then_the_most_recent_match() -> None:
    assert ngram.prompt_lookup(history(7, 1, 2, 3, 8, 1, 2, 4, 9, 2, 5, 1, 2), 2).tolist() == [4, 9]  # (1, 2) over (2)
    assert ngram.prompt_lookup(history(2, 5, 2, 6, 2), 3).tolist() == [6, 2]


def test_prompt_lookup_is_silent_without_a_match() -> None:
    assert ngram.prompt_lookup(history(1, 2, 3), 4).tolist() == []
    assert ngram.prompt_lookup(history(1), 4).tolist() == []


@examples(200)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(1, 5), st.integers(1, 4))
def test_what_is_looked_up_stands_in_the_history(tokens: list[int], count: int, longest: int) -> None:
    draft = ngram.prompt_lookup(history(*tokens), count, longest).tolist()
    keys = [tokens[-n:] for n in range(1, longest + 1)]
    assert len(draft) <= count
    assert not draft or any(tokens[i : i + len(k + draft)] == k + draft for k in keys for i in range(len(tokens)))
    assert bool(draft) == (tokens[-1] in tokens[:-1])


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: ngram.png(history(1, 2), 0, 2, TABLE), ParameterError),
        (lambda: ngram.png(history(), 1, 2, TABLE), ParameterError),
        (lambda: ngram.png(history(1, 2), 1, 3, TABLE), ShapeMismatch),
        (lambda: ngram.png(history(1, 10), 1, 2, TABLE), ParameterError),
        (lambda: ngram.png(history(1, -1), 1, 2, TABLE), ParameterError),
        (lambda: ngram.bigram_table(MODEL, START, 7, 8, 2), ParameterError),
        (lambda: ngram.prompt_lookup(history(1), 0), ParameterError),
        (lambda: ngram.bigram_table(MODEL, START, 7, 1, 0), ParameterError),
    ],
)
def test_bad_ngram_arguments_are_refused(call, error) -> None:
    refused(error, r"give|must", call)


# --- trees ---------------------------------------------------------------------------------------------------------

TREES = {
    "A": (static_tree.TREE_A, 3, 4, 13),
    "B": (static_tree.TREE_B, 16, 3, 29),
    "C": (static_tree.TREE_C, 6, 3, 16),
    "D": (static_tree.TREE_D, 4, 4, 13),
    "E": (static_tree.TREE_E, 3, 5, 16),
}


@pytest.mark.parametrize("name", TREES)
def test_static_trees_have_the_widths_depths_and_nodes_of_table_4(name: str) -> None:
    parents, width, depth, nodes = TREES[name]
    d = depths(np.array(parents)[None])[0]
    assert (np.bincount(d)[1:].max(), d.max(), len(parents)) == (width, depth, nodes)


def test_tree_a_is_the_papers() -> None:
    assert static_tree.TREE_A == (-1, 0, 0, 0, 1, 1, 2, 4, 4, 5, 7, 7, 7)


def counting(model: HashModel) -> tuple[HashModel, list[int]]:
    sizes: list[int] = []

    class Counting(HashModel):
        def step(self, state: Array, tokens: Array) -> tuple[Array, Array]:
            sizes.append(len(tokens))
            return super().step(state, tokens)

    return Counting(model.vocabulary), sizes


@pytest.mark.parametrize("name", TREES)
def test_a_static_tree_is_drafted_from_the_context_of_each_node(name: str) -> None:
    parents = TREES[name][0]
    model, forwards = counting(MODEL)
    tree, _ = static_tree.draft_tree(model, START, 5, parents)
    assert tree.parents.tolist() == list(parents)
    assert drafted_from_the_right_context(tree)
    for i in range(len(parents)):
        children = tree.children(i)
        assert tree.tokens[children].tolist() == np.argsort(-tree.q[i], kind="stable")[: len(children)].tolist()
    assert len(forwards) == TREES[name][2]  # one forward a level, the last level is not fed


def test_a_beam_tree_keeps_every_token_and_extends_the_best_beams() -> None:
    tree = beam_tree.beam_tree(MODEL, START, 5, beams=3, steps=4)
    assert len(tree.tokens) == 13
    assert drafted_from_the_right_context(tree)

    def score(node: int) -> float:
        total = 0.0
        while tree.parents[node] >= 0:
            total += np.log(tree.q[tree.parents[node], tree.tokens[node]])
            node = int(tree.parents[node])
        return total

    for step in range(1, 4):  # the three new nodes are the best continuations of the three before them
        above, level = range(3 * step - 2, 3 * step + 1), range(3 * step + 1, 3 * step + 4)
        best = sorted(
            (score(i) + np.log(q) for i in above for q in MODEL.law(state_after(path_tokens(tree, i)))), reverse=True
        )
        assert np.allclose([score(i) for i in level], best[:3], rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("branches", "nodes"), [((3, 3, 2, 1), 49), ((3, 2, 2, 1, 1), 46), ((2, 2, 2, 1, 1, 1), 39), ((1,), 2)]
)
def test_a_batch_tree_copies_each_row_for_each_child(branches: tuple[int, ...], nodes: int) -> None:
    model, forwards = counting(MODEL)
    tree, _ = batch_tree.batch_tree(model, START, 5, branches)
    assert len(tree.tokens) == nodes
    assert forwards == [1, *batch_tree.batch_sizes(branches)[:-1]]
    assert drafted_from_the_right_context(tree)


def test_a_planted_copy_of_whole_batches_is_caught() -> None:
    """Copying the batch N times (tile) instead of each row N times (repeat) gives a child another node's state."""

    class Tiled(HashModel):
        def rows(self, state: Array, index: Array) -> Array:
            return state[
                np.sort(index) if len(set(index.tolist())) == len(index) else np.resize(np.unique(index), len(index))
            ]

    tree, _ = batch_tree.batch_tree(Tiled(), START, 5, (3, 3, 1))
    assert not drafted_from_the_right_context(tree)


def draw_path(tree: TokenTree, rng: np.random.Generator) -> list[int]:
    path = [0]
    while (children := tree.children(path[-1])) and rng.random() < 0.8:
        path.append(int(rng.choice(children)))
    return path


@examples(60)
@given(st.integers(0, 10**6), st.sampled_from([*TREES, "batch"]))
def test_the_draft_state_after_a_verdict_equals_feeding_what_was_emitted(seed: int, name: str) -> None:
    rng = np.random.default_rng(seed)
    if name == "batch":
        tree, states = batch_tree.batch_tree(MODEL, START, 5, (3, 2, 1, 2))
    else:
        tree, states = static_tree.draft_tree(MODEL, START, 5, TREES[name][0])
    path = draw_path(tree, rng)
    followed = follow.from_levels(MODEL, states, tree.tokens, tree.parents, path)
    caught_up = follow.catch_up(MODEL, START, [int(t) for t in tree.tokens[path]])
    assert followed.tolist() == caught_up.tolist()


def test_a_planted_state_of_the_wrong_sibling_is_caught() -> None:
    tree, states = static_tree.draft_tree(MODEL, START, 5, static_tree.TREE_A)
    right = follow.catch_up(MODEL, START, path_tokens(tree, 1))
    wrong = follow.from_levels(MODEL, states, tree.tokens, tree.parents, [0, 2])
    assert right.tolist() != wrong.tolist()


def test_bad_trees_and_paths_are_refused() -> None:
    tree, states = static_tree.draft_tree(MODEL, START, 5, static_tree.TREE_A)
    refused(AcceptanceError, "begins at the root", follow.from_levels, MODEL, states, tree.tokens, tree.parents, [1])
    for jump in ([0, 4], [0, 1, 6], [0, 13], [0, -1], []):  # 4 is a child of 1, 6 of 2; there is no 13
        refused(AcceptanceError, "from parent to child", follow.from_levels, MODEL, states, tree.tokens, tree.parents, jump)
    refused(NotTopological, "one for each", static_tree.tree_from_branches, [[2], [1]])
    refused(NotTopological, "comes before its child", static_tree.draft_tree, MODEL, START, 5, (-1, 2, 0))
    refused(ParameterError, "at least one child", batch_tree.batch_tree, MODEL, START, 5, (2, 0))
    refused(
        ParameterError,
        "8 children are needed, but only 7 can be chosen from a vocabulary of 7",
        batch_tree.batch_tree,
        MODEL,
        START,
        5,
        (8, 2),
    )
    refused(
        ParameterError,
        "8 children are needed, but only 7 can be chosen from a vocabulary of 7",
        static_tree.draft_tree,
        MODEL,
        START,
        5,
        (-1,) + (0,) * 8,
    )
    refused(ParameterError, "vocabulary", beam_tree.beam_tree, MODEL, START, 5, 8, 2)


def test_prompt_lookup_may_take_the_first_occurrence() -> None:
    text = history(1, 2, 3, 8, 1, 2, 4, 9, 1, 2)
    assert ngram.prompt_lookup(text, 2).tolist() == [4, 9]
    assert ngram.prompt_lookup(text, 2, first=True).tolist() == [3, 8]
