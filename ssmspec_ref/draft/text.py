"""A drafter of another tokenizer, through its text: what it writes is read again in the target's tokens.

Nothing here needs to be right for the output to be lossless: a drafted token is a point mass, and the target decides. What
can go wrong is acceptance: the two texts must join where the target's own tokens end.
"""

from collections.abc import Sequence
from typing import Protocol

from ..errors import ParameterError


class Tokenizer(Protocol):
    """Text to tokens and back, with nothing added at either end (no token that opens a sequence, no stripped space)."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, tokens: Sequence[int]) -> str: ...


def retokenised(text: str, history: Sequence[int], target: Tokenizer, look_behind: int) -> list[int]:
    """The target's tokens of `text`, which continues the text of `history`.

    For w = look_behind .. 0: ids = encode(decode(last w tokens of history) + text)     (1)
                              if ids begins with those w tokens, the draft is the rest  (2)

    A tokenizer may join the end of the history and the beginning of the text into one token; then those w tokens are not
    found again and a shorter look-behind is tried. With w = 0 the text stands alone.

    Raises: ParameterError (look_behind below 0).
    Source: Mamba Drafters, table 4, does not say how; this is the text round trip of assisted generation in transformers.
    """
    if look_behind < 0:
        raise ParameterError(f"look_behind came as {look_behind}; give at least 0")
    for w in range(min(look_behind, len(history)), 0, -1):
        tail = list(history[len(history) - w :])
        ids = target.encode(target.decode(tail) + text)  # (1)
        if ids[:w] == tail:
            return ids[w:]  # (2)
    return target.encode(text)


def common_prefix(fed: Sequence[int], wanted: Sequence[int]) -> int:
    """How many tokens a recurrent drafter may keep: the common prefix of what it was fed and should have been fed.

    Reading the target's text again may change tokens that the drafter consumed before; its state must then be restored from
    a checkpoint at most this far on and fed `wanted` from there.
    """
    length = 0
    for a, b in zip(fed, wanted, strict=False):
        if a != b:
            break
        length += 1
    return length
