"""Stop strings: where the text ends depends on the text alone, not on how tokens and windows cut it."""

import time
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssmspec_fast.models.tokenizer import LOST
from ssmspec_fast.serve import writer as module
from ssmspec_fast.serve.stops import Stop
from ssmspec_fast.serve.writer import Writer


class Letters:
    """A tokenizer whose tokens are runs of bytes of one text."""

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self.tokens = tokens

    def decode(self, tokens: Sequence[int]) -> str:
        return b"".join(self.tokens[token] for token in tokens).decode(errors="replace")


def cut_first(text: str, stops: Sequence[str]) -> tuple[str, str]:
    """The text before the stop string that is complete first, the longest of several; and that stop string."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end - len(stop)], stop
    return text, ""


def written(pieces: Sequence[bytes], stops: Sequence[str]) -> tuple[str, str, int]:
    """What is shown, piece by piece; the stop string; the tokens until it."""
    writer, shown = Writer(Letters(pieces), stops), ""  # type: ignore[arg-type]
    for token in range(len(pieces)):
        shown += writer.add(token)
        if writer.stop:
            return shown, writer.stop, token + 1
    return shown + writer.rest(), writer.stop, len(pieces)


def pieces_of(text: str, cuts: Sequence[int]) -> list[bytes]:
    """The bytes of a text, cut where it is said, also within letters."""
    raw = text.encode()
    places = sorted({0, len(raw), *(cut % (len(raw) + 1) for cut in cuts)})
    return [raw[a:b] for a, b in pairwise(places)]


LETTERS = st.text("abé→", max_size=24)
STOPS = st.lists(st.text("abé→", min_size=1, max_size=4), max_size=4)
CUTS = st.lists(st.integers(0, 60), max_size=20)


def law(text: str, stops: list[str], cuts: list[int]) -> None:
    pieces = pieces_of(text, cuts)
    shown, stop, used = written(pieces, stops)
    assert (shown, stop) == cut_first(text, stops)
    before = b"".join(pieces[: used - 1]).decode(errors="replace")
    waits = before.endswith(LOST)  # a token that ends within a letter is read with the next one
    assert not stop or waits or cut_first(before, stops)[1] == "", "the token that completes it is the last"


@given(LETTERS, STOPS, CUTS)
def test_the_text_ends_before_the_first_stop_string_however_it_is_cut(text: str, stops: list[str], cuts: list[int]) -> None:
    law(text, stops, cuts)


@given(LETTERS, STOPS, CUTS)
def test_nothing_is_shown_that_a_later_letter_takes_back(text: str, stops: list[str], cuts: list[int]) -> None:
    writer, shown = Writer(Letters(pieces_of(text, cuts)), stops), ""  # type: ignore[arg-type]
    for token in range(len(pieces_of(text, cuts))):
        if writer.stop:
            break
        shown += writer.add(token)
        assert cut_first(text, stops)[0].startswith(shown)
        assert LOST not in shown


CUT = [1, 2, 3, 4, 5]


def no_wait(self: Writer, new: str) -> str:
    """Looks at each piece alone."""
    text, self.stop = cut_first(new, self.stops)
    return text


def in_order(self: Writer, new: str) -> str:
    """The first stop of the list, wherever it is."""
    self.held += new
    for stop in self.stops:
        if stop in self.held:
            self.stop = stop
            return self.held[: self.held.index(stop)]
    return ""


@pytest.mark.parametrize("fault", [no_wait, in_order])
def test_a_planted_fault_of_stop_strings_is_caught(
    fault: Callable[[Writer, str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.Writer, "shown", fault)
    cases = (("abab", ["ba"]), ("aab→b", ["b→", "ab"]), ("abé", ["é", "ab"]))
    held = [
        written(pieces_of(text, cuts), stops)[:2] == cut_first(text, stops) for text, stops in cases for cuts in ([], CUT)
    ]
    assert not all(held)


def test_an_end_of_sequence_has_no_text() -> None:
    writer = Writer(Letters([b"a", b"<end>"]), (), (1,))  # type: ignore[arg-type]
    assert writer.add(0) + writer.add(1) + writer.rest() == "a"


def test_bytes_that_are_no_letter_come_at_the_end() -> None:
    assert written([b"a", b"\xe2\x86"], []) == ("a" + LOST, "", 2)


REPEATING = st.text("ab", max_size=40)


@given(REPEATING, st.lists(st.text("ab", min_size=1, max_size=12), max_size=4), CUTS)
def test_stop_strings_that_repeat_themselves_are_found_where_they_end(text: str, stops: list[str], cuts: list[int]) -> None:
    law(text, stops, cuts)


def starts_anew(self: Stop, length: int, letter: str) -> int:
    """A letter that does not continue the stop string begins it again, whatever the text ends with."""
    return length + 1 if self.text[length % len(self.text)] == letter else int(self.text[0] == letter)


def test_a_planted_search_that_forgets_what_the_text_ends_with_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    assert written([b"aab"], ["aab"])[:2] == ("", "aab")
    assert written([b"aaab"], ["aab"])[:2] == ("a", "aab")
    monkeypatch.setattr(Stop, "after", starts_anew)
    assert written([b"aab"], ["aab"])[:2] == ("", "aab")
    assert written([b"aaab"], ["aab"])[:2] != ("a", "aab")


@pytest.mark.parametrize("stops", [["a" * 100_000 + "b"], ["ab" * 50_000, "c" * 100_000], [f"b{n}" for n in range(1000)]])
def test_a_long_stop_string_or_many_take_no_longer_than_the_text(stops: list[str]) -> None:
    """10 s is a thousand times what it takes; looking for each beginning of the stop string at each token takes hours."""
    begun = time.monotonic()
    shown, stop, _ = written([b"a"] * 1000, stops)
    assert (shown, stop) == ("a" * 1000, "")
    assert time.monotonic() - begun < 10
