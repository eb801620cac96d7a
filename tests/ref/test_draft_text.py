"""A drafter of another tokenizer, through its text."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from ssmspec_ref.draft import text
from ssmspec_ref.errors import ParameterError
from tests.families import examples

from .refusals import refused


@dataclass(frozen=True)
class Merging:
    """A byte tokenizer with merges, longest first: the join of two texts may change the tokens around it."""

    merges: tuple[str, ...]

    def encode(self, text: str) -> list[int]:
        ids, i = [], 0
        while i < len(text):
            token = next((m for m in self.merges if text.startswith(m, i)), text[i])
            ids.append(256 + self.merges.index(token) if token in self.merges else ord(token))
            i += len(token)
        return ids

    def decode(self, tokens) -> str:
        return "".join(self.merges[t - 256] if t >= 256 else chr(t) for t in tokens)


TARGET = Merging(("the ", "ing", "th", "in"))


def test_drafted_text_comes_back_in_the_targets_tokens() -> None:
    written = TARGET.encode("see the ")
    assert text.retokenised("thing", written, TARGET, 4) == TARGET.encode("thing")


def test_a_join_that_merges_over_the_boundary_falls_back_to_a_shorter_look_behind() -> None:
    """After a t, the text h joins with it; no look-behind finds the t again, so the text stands alone."""
    written = TARGET.encode("a t")
    assert TARGET.encode("a thing")[: len(written)] != written
    draft = text.retokenised("hing", written, TARGET, 3)
    assert draft == TARGET.encode("hing")
    assert TARGET.decode(written + draft) == "a thing"


@examples(200)
@given(st.text("thein g", max_size=12), st.text("thein g", max_size=8), st.integers(0, 5))
def test_the_draft_always_spells_the_drafted_text(before: str, drafted: str, look_behind: int) -> None:
    written = TARGET.encode(before)
    assert TARGET.decode(text.retokenised(drafted, written, TARGET, look_behind)) == drafted


def test_a_recurrent_drafter_keeps_the_common_prefix_of_its_tokens() -> None:
    assert text.common_prefix([1, 2, 3], [1, 2, 4, 5]) == 2
    assert text.common_prefix([], [1]) == 0
    refused(ParameterError, "look_behind", text.retokenised, "x", [], TARGET, -1)
