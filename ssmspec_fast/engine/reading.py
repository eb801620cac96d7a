"""Prompts that are read in pieces between steps (chunked prefill), so that a long one does not hold up running sequences.

    a turn reads at most `most` tokens, of several prompts in one run                                          (1)
    prompts that were read the longest ago come first; shares are equal, what one leaves goes to the others    (2)
    a piece ends at a multiple of GRAIN tokens, or with its prompt                                             (3)

By (3) the chunks of a scan and the tiles of attention are those of a prompt that is read at once. So in bitwise mode states
and logits have the same bits; in fast mode a product of matrices may round differently with another number of rows.
"""

from dataclasses import dataclass

from ssmspec_ref.errors import ParameterError

from .prefill import CHUNK, Piece
from .requests import Request

GRAIN = 64
"""A multiple of the tokens of every chunk and tile by which prompts are read."""


@dataclass
class Begun:
    """A prompt of which `read` tokens are in the states, of all but the last."""

    request: Request
    read: int = 0

    @property
    def left(self) -> int:
        return len(self.request.prompt) - 1 - self.read


class Reading:
    """The prompts that are being read, by slot; the one that was read the longest ago first.

    Raises: ParameterError for pieces that are no multiple of GRAIN, or longer than a run.
    """

    def __init__(self, most: int) -> None:
        if not GRAIN <= most <= CHUNK or most % GRAIN:
            raise ParameterError(f"pieces of prompts have {most} tokens; give a multiple of {GRAIN}, at most {CHUNK}")
        self.most, self.begun = most, dict[int, Begun]()

    def forget(self, running: dict[int, Request]) -> None:
        """Drops what no longer runs in its slot."""
        self.begun = {slot: one for slot, one in self.begun.items() if running.get(slot) is one.request}

    def pieces(self) -> list[Piece]:
        """The next pieces, (1) to (3). A prompt of one token has an empty piece, which clears its slot."""
        left, found = self.most, list[Piece]()
        some = sorted(list(self.begun.items())[: self.most // GRAIN], key=lambda item: item[1].left)
        for place, (slot, one) in enumerate(some):
            share = left // (len(some) - place) // GRAIN * GRAIN
            count = min(one.left, share)
            found.append(Piece(slot, one.read, one.request.prompt[one.read : one.read + count]))
            left -= -(-count // GRAIN) * GRAIN
        return found

    def read(self, pieces: list[Piece]) -> list[int]:
        """Notes that they were read; the slots of the prompts that are whole now."""
        whole = list[int]()
        for slot, start, tokens in pieces:
            one = self.begun.pop(slot)
            one.read = start + len(tokens)
            if one.left:
                self.begun[slot] = one
            else:
                whole.append(slot)
        return whole
