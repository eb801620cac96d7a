"""Which sequence lies where, and what the contract offers there: the model of a decoder that schedules are drawn from.

A ledger knows tokens and slots, nothing of states and logits. `session` adds an implementation and its checks; `schedules`
draws from a ledger alone.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from ssmspec_ref.contract import Decoding, TokenWindow

from .features import of_commit, of_window

Prefix = tuple[int, ...]
Place = tuple[int, int]
"""A decoder by its number, and a slot."""


class Impossible(ValueError):
    """An action that the contract does not offer here: a slot that is not free, a window before the last one's verdict."""


class Ledger:
    """`rooms` holds the committed tokens and the root of every slot, `parked` the sequences that wait, `pending` the decoder
    and the window without a verdict, `reached` what windows and verdicts were like. Actions return the places they touch.

    Units: `cache` is the tokens of a sequence, `window` those of a window.
    """

    def __init__(self, decodings: Sequence[Decoding], vocabulary: int, slots: int, window: int, cache: int) -> None:
        self.decodings, self.vocabulary = list(decodings), vocabulary
        self.slots, self.window, self.cache = slots, window, cache
        self.rooms: list[dict[int, Prefix]] = [{} for _ in decodings]
        self.parked: list[Prefix] = []
        self.pending: tuple[int, TokenWindow] | None = None
        self.freed: set[Place] = set()
        self.reached: Counter[str] = Counter()

    # --- what is where ---

    def places(self) -> list[Place]:
        return [(d, slot) for d in range(len(self.rooms)) for slot in range(self.slots)]

    def free(self, d: int) -> list[int]:
        return [slot for slot in range(self.slots) if slot not in self.rooms[d]]

    def has_plain(self, d: int) -> bool:
        """Whether what is committed can be decoded anew, bit for bit. Without an implementation: no."""
        return False

    def situation(self) -> str:
        """How full it is, what waits, and what is pending: a state of the model, tokens left out."""
        full = "+".join(str(len(room)) for room in self.rooms)
        window = "no window" if self.pending is None else "a tree" if self.pending[1].parents is not None else "a chain"
        return f"state {full} live, {len(self.parked)} parked, {window} pending"

    # --- what the contract allows ---

    def live(self, d: int, slot: int) -> Prefix:
        if slot not in self.rooms[d]:
            raise Impossible(f"slot {slot} of {self.decodings[d].name} holds no sequence; it has {sorted(self.rooms[d])}")
        return self.rooms[d][slot]

    def take(self, d: int, slot: int, tokens: Prefix) -> None:
        if slot in self.rooms[d] or not 0 <= slot < self.slots:
            raise Impossible(f"slot {slot} of {self.decodings[d].name} is not free; free are {self.free(d)}")
        if (d, slot) in self.freed:
            self.reached["slot used again"] += 1
        self.rooms[d][slot] = tokens

    def settled(self, d: int, slot: int) -> Prefix:
        """The tokens of a sequence, none of which waits for a verdict. Raises: Impossible."""
        tokens = self.live(d, slot)
        if self.pending is not None and self.pending[0] == d and slot in self.pending[1].slots:
            raise Impossible(f"slot {slot} has a window without a verdict; commit it first")
        return tokens

    # --- actions ---

    def prefill(self, d: int, prompts: list[list[int]], slots: list[int]) -> set[Place]:
        """Prompts into free slots."""
        for prompt, slot in zip(prompts, slots, strict=True):
            self.take(d, slot, tuple(prompt))
        return {(d, slot) for slot in slots}

    def verify(
        self,
        d: int,
        tokens: list[list[int]],
        slots: list[int],
        lengths: list[int] | None = None,
        parents: list[list[int]] | None = None,
        drafts: int = 1,
    ) -> set[Place]:
        """A window of every sequence named; a negative slot is padding."""
        if self.pending is not None:
            raise Impossible("a window waits for its verdict; commit it first")
        for slot in slots:
            if slot >= 0:
                self.live(d, slot)
        words, rows = np.array(tokens, dtype=np.int64), np.array(slots, dtype=np.int64)
        counts, above = (None if a is None else np.array(a, dtype=np.int64) for a in (lengths, parents))
        self.pending = d, TokenWindow(words, rows, counts, above, drafts)
        self.reached.update(of_window(self.pending[1]))
        return {(d, slot) for slot in slots if slot >= 0}

    def commit(self, paths: list[list[int]], kept: list[int], rows: list[int], roots: list[int]) -> set[Place]:
        """Of each sequence, the first `kept` nodes of a path in a row of its own, and the next root."""
        if self.pending is None:
            raise Impossible("no window waits for a verdict; verify one first")
        (d, window), self.pending, touched = self.pending, None, set[Place]()
        for n, count in enumerate(kept):
            slot = int(window.slots[n * window.drafts])
            if slot < 0:
                continue
            said = window.tokens[rows[n], paths[n][1:count]].tolist()
            self.rooms[d][slot] = (*self.rooms[d][slot], *said, roots[n])
            self.reached.update(of_commit(window, rows[n], paths[n], count))
            touched.add((d, slot))
        return touched

    def fork(self, d: int, slot: int, to: int) -> set[Place]:
        """The sequence of a slot in a free slot too."""
        self.take(d, to, self.settled(d, slot))
        self.reached["fork between window and verdict"] += self.pending is not None
        return {(d, slot), (d, to)}

    def release(self, d: int, slot: int) -> set[Place]:
        """The slot is free; its memory is poison."""
        self.settled(d, slot)
        del self.rooms[d][slot]
        self.freed.add((d, slot))
        return {(d, slot)}

    def flush(self, d: int, slots: list[int]) -> set[Place]:
        """The states of these slots up to all their committed tokens, before it is due."""
        for slot in slots:
            self.settled(d, slot)
        return {(d, slot) for slot in slots}

    def preempt(self, d: int, slot: int) -> set[Place]:
        """A sequence out of its slot; it waits."""
        self.parked.append(self.settled(d, slot))
        return Ledger.release(self, d, slot)

    def resume(self, number: int, d: int, slot: int) -> set[Place]:
        """A sequence that waits, into a free slot."""
        if not 0 <= number < len(self.parked):
            raise Impossible(f"sequence {number} does not wait; {len(self.parked)} do")
        self.take(d, slot, self.parked[number])
        del self.parked[number]
        return {(d, slot)}

    def hand_over(self, d: int, slot: int, other: int, to: int) -> set[Place]:
        """A sequence on to another decoder, which may decode otherwise; the first one releases it."""
        self.take(other, to, self.settled(d, slot))
        self.reached[f"from {self.decodings[d].name} to {self.decodings[other].name}"] += 1
        return Ledger.release(self, d, slot) | {(other, to)}


def longest(decoding: Decoding, window: int) -> int:
    """The tokens of the longest window that a decoding takes."""
    return min(window, decoding.limits.sizes.get("t", (1, window))[1])


def nodes(window: TokenWindow, row: int) -> list[list[int]]:
    """The path to every real token of a row, root first."""
    if window.parents is None:
        count = window.tokens.shape[1] if window.lengths is None else int(window.lengths[row])
        return [list(range(i + 1)) for i in range(count)]
    paths: list[list[int]] = []
    for node, parent in enumerate(window.parents[row].tolist()):
        if parent >= -1:
            paths.append([*(paths[parent] if parent >= 0 else []), node])
    return paths
