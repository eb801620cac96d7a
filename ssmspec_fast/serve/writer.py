"""Text of a completion, token by token, up to a stop string.

The first stop string that is completed, character by character, ends the output; if several end at the same character, the
longest. The output is the text before it. So it depends on the text alone, not on the boundaries of tokens or windows. Text
that could become a stop string, and bytes of an incomplete character, wait.
"""

from collections.abc import Collection

from ..models.tokenizer import Stream, Tokenizer
from .stops import Stop


class Writer:
    """The text of one completion; the tokens in `silent` are not shown. Without a tokenizer there is no text."""

    def __init__(self, tokenizer: Tokenizer | None, stops: Collection[str] = (), silent: Collection[int] = ()) -> None:
        self.stream = None if tokenizer is None else Stream(tokenizer)
        self.stops, self.silent = sorted(stops, key=len, reverse=True), frozenset(silent)
        self.sought = [Stop(stop) for stop in self.stops]
        self.held, self.stop = "", ""

    def add(self, token: int) -> str:
        """Takes a token and returns the text that can be shown now; `stop` holds the stop string that ended the text."""
        if self.stream is None or token in self.silent:
            return ""
        return self.shown(self.stream.add(token))

    def rest(self) -> str:
        """The text that still waits, once there are no more tokens."""
        if self.stream is None or self.stop:
            return ""
        said = self.shown(self.stream.rest())
        return said if self.stop else said + self.held

    def shown(self, new: str) -> str:
        """The characters that cannot be part of a stop string. Those held back are fewer than the longest one has."""
        if not self.stops:
            return new
        begun, self.held = len(self.held), self.held + new
        for end, letter in enumerate(new, begun + 1):
            whole = [sought.read(letter) for sought in self.sought]
            if True in whole:
                self.stop = self.stops[whole.index(True)]
                return self.held[: end - len(self.stop)]
        keep = max(sought.length for sought in self.sought)
        shown, self.held = self.held[: len(self.held) - keep], self.held[len(self.held) - keep :]
        return shown
