"""A drafter of another tokenizer: what it drafts is what its text says, and the output is the target's whatever it says."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ssmspec_fast.accept.naive import Naive
from ssmspec_fast.draft.text import TextDrafter, retokenised
from ssmspec_fast.engine.requests import Settings
from ssmspec_fast.methods.activation_replay import ActivationReplay
from ssmspec_ref.draft import text as oracle
from ssmspec_ref.errors import ParameterError

from .draft_models import float64, histories
from .models import drawn, prompts
from .runs import BITWISE, emitted, engine

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ 12345678"


class Letters:
    """61 letters, one token each, shifted."""

    def __init__(self, shift: int = 0) -> None:
        self.letters = LETTERS[shift:] + LETTERS[:shift]

    def encode(self, text: str) -> list[int]:
        return [self.letters.index(c) for c in text]

    def decode(self, tokens: list[int] | tuple[int, ...]) -> str:
        return "".join(self.letters[t] for t in tokens)


class Pairs(Letters):
    """The first 50 letters, and 11 pairs that are read before their letters, greedily from the left."""

    def __init__(self) -> None:
        self.pieces = [*LETTERS[:50], *(LETTERS[i] + LETTERS[(7 * i) % 50] for i in range(11))]

    def encode(self, text: str) -> list[int]:
        found, i = [], 0
        while i < len(text):
            n = 2 if text[i : i + 2] in self.pieces else 1
            if text[i : i + n] in self.pieces:
                found.append(self.pieces.index(text[i : i + n]))
            i += n
        return found

    def decode(self, tokens: list[int] | tuple[int, ...]) -> str:
        return "".join(self.pieces[t] for t in tokens)


@settings(deadline=None, derandomize=True, max_examples=150)
@given(st.text(LETTERS[:12], max_size=8), st.lists(st.integers(0, 60), max_size=6), st.integers(1, 5))
def test_text_is_read_again_as_the_oracle_reads_it(text: str, history: list[int], look_behind: int) -> None:
    assert retokenised(text, history, Pairs(), look_behind) == oracle.retokenised(text, history, Pairs(), look_behind)


def test_a_drafter_that_writes_the_targets_letters_under_other_numbers_is_always_right() -> None:
    """The same model behind a permuted vocabulary: every draft is accepted, and its states go on from window to window."""
    model = drawn("bamba")
    order = torch.tensor(Letters(7).encode(LETTERS))  # the drafter's number of each of the target's tokens
    inverse = torch.argsort(order)
    draft = replace(model, embedding=model.embedding[inverse], head=model.head[inverse])
    fed: list[int] = []

    class Counting(TextDrafter):
        def feed(self, ids: Sequence[Sequence[int]], rows: torch.Tensor) -> torch.Tensor:
            fed.extend(map(len, ids))
            return super().feed(ids, rows)

    drafter = Counting(draft, Letters(7), Letters(), 3, BITWISE, slots=2, cache=64)
    given_prompts = prompts(2, (3, 9))
    results = engine(model, drafter, ActivationReplay(), slots=2).generate(given_prompts, Settings(12))
    assert [r.tokens for r in results] == emitted(engine(model), given_prompts, 12)
    assert [r.statistics.advanced for r in results] == [(4, 4, 4), (4, 4, 4)]
    assert max(fed) <= 4  # of a history, what was emitted and the look-behind; never the whole again


@pytest.mark.parametrize("rule", [None, Naive(seed=4)])
def test_output_is_plain_decodings_whatever_the_text_says(rule: Naive | None) -> None:
    """Pieces that join across windows, texts that lose letters, a drafter that knows nothing."""
    model, given_prompts = drawn("bamba"), prompts(3, (3, 9, 1))
    drafter = TextDrafter(drawn("mamba2", seed=1), Pairs(), Letters(), 3, BITWISE, steps=2, slots=3, cache=64)
    found, plain = engine(model, drafter, ActivationReplay(), rule), engine(model, rule=rule)
    assert emitted(found, given_prompts, 8) == emitted(plain, given_prompts, 8)


def test_what_is_written_is_the_drafters_own_greedy_continuation() -> None:
    """After texts that grow, shrink and change behind what was fed, from the oracle's model in float64."""
    drafter = TextDrafter(float64("bamba"), Pairs(), Letters(), 4, slots=1, look_behind=2, cache=64)
    model = histories("bamba")
    for text in ("abc", "abcdefgh", "abcdefghi", "xyz", "xyzab"):
        history = Letters().encode(text)
        ids = Pairs().encode(text)
        said: list[int] = []
        for _ in range(4):
            said.append(int(np.argmax(model.law([*ids, *said]))))
        with torch.no_grad():
            assert drafter.written({0: ids}) == {0: said}
            draft = drafter.draft({0: history})[0]
        assert draft == oracle.retokenised(Pairs().decode(said), history, Letters(), 2)


def test_texts_that_are_drafted_together_are_drafted_as_each_alone() -> None:
    """Of different lengths, one that is new beside others that go on, and slots in another order."""
    together, *alone = (
        TextDrafter(float64("bamba"), Pairs(), Letters(), 3, slots=3, look_behind=2, cache=64) for _ in range(4)
    )
    turns = ({2: "abcabcab", 0: "x"}, {0: "xyz", 1: "stuff", 2: "abcabcabcde"}, {1: "st", 2: "abcabcabcdef"}, {1: "stu"})
    for turn in turns:
        ids = {slot: Pairs().encode(text) for slot, text in turn.items()}
        with torch.no_grad():
            assert together.written(ids) == {slot: alone[slot].written({slot: x})[slot] for slot, x in ids.items()}


def test_a_history_beyond_the_drafters_cache_is_met_with_silence() -> None:
    drafter = TextDrafter(float64("bamba"), Letters(), Letters(), 2, slots=1, cache=5)
    assert drafter.draft({0: Letters().encode("abcdef")}) == {}


def test_bad_numbers_are_refused() -> None:
    model = float64("bamba")
    for options in ({"tokens": 0}, {"tokens": 1, "steps": 0}, {"tokens": 1, "look_behind": 0}):
        with pytest.raises(ParameterError, match="must be at least 1"):
            TextDrafter(model, Letters(), Letters(), **options)
    made = engine(model, TextDrafter(model, Letters(), Letters(), 2, slots=1), ActivationReplay(), slots=2)
    with pytest.raises(ParameterError, match="the engine has 2 slots"):
        emitted(made, [[1]], 2)
