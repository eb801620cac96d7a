"""A drafter with another tokenizer: its text is tokenized again with the target's tokenizer.

Nothing here can make the output lossy: a drafted token is a point mass, and the target decides. Only acceptance can suffer:
the two texts must join where the target's own tokens end.
"""

from collections.abc import Sequence
from typing import Protocol

from ..errors import ParameterError


class Tokenizer(Protocol):
    """Text to tokens and back. Adds nothing at either end (no beginning-of-sequence token, no stripped space)."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, tokens: Sequence[int]) -> str: ...


def retokenised(text: str, history: Sequence[int], target: Tokenizer, look_behind: int) -> list[int]:
    """The target's tokens for `text`, which continues the text of `history`.

    For w = look_behind .. 0: ids = encode(decode(last w tokens of history) + text)     (1)
                              if ids begins with those w tokens, the draft is the rest  (2)

    A tokenizer may merge the end of the history and the beginning of the text into one token. Then those w tokens are not
    found again, and a smaller w is tried. With w = 0 the text is tokenized alone.

    Raises: ParameterError (look_behind below 0).
    Source: Mamba Drafters, table 4, does not specify it; this is the text round trip of assisted generation in transformers.
    """
    if look_behind < 0:
        raise ParameterError(f"look_behind is {look_behind}; it must be at least 0")

    def read(w: int) -> list[int]:
        return target.encode(target.decode(list(history)[len(history) - w :]) + text)  # (1)

    widths = range(1, min(look_behind, len(history)) + 1)
    widest = max((w for w in widths if read(w)[:w] == list(history)[-w:]), default=0)
    return read(widest)[widest:]  # (2)


def common_prefix(fed: Sequence[int], wanted: Sequence[int]) -> int:
    """The number of tokens whose state a recurrent drafter can keep: the common prefix of what it was fed and what it should
    be fed.

    Tokenizing the target's text again may change tokens that the drafter has already consumed. Its state must then be
    restored from a checkpoint at or before this point, and fed `wanted` from there.
    """
    length = 0
    for a, b in zip(fed, wanted, strict=False):
        if a != b:
            break
        length += 1
    return length
