"""Which sequence is where, and which actions the contract allows: the model of a decoder from which schedules are drawn.

A ledger knows tokens and slots, but no states or logits. `session` adds an implementation and its checks; `schedules`
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
    """An action that the contract does not allow now: a slot that is not free, a window before the last one's verdict."""


class Ledger:
    """`rooms` holds the committed tokens and the root of every slot, `parked` the waiting sequences, `pending` the decoder
    and the window without a verdict, `reached` the features of windows and verdicts. Actions return the places they touch.

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
        """Whether the committed tokens can be decoded again, bit for bit. Not without an implementation."""
        return False

    def situation(self) -> str:
        """How full it is, what waits, and what is pending: a state of the model, without tokens."""
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
            raise Impossible(f"slot {slot} of {self.decodings[d].name} is not free; the free slots are {self.free(d)}")
        if (d, slot) in self.freed:
            self.reached["slot used again"] += 1
        self.rooms[d][slot] = tokens

    def settled(self, d: int, slot: int) -> Prefix:
        """The tokens of a sequence that waits for no verdict. Raises: Impossible."""
        tokens = self.live(d, slot)
        if self.pending is not None and self.pending[0] == d and slot in self.pending[1].slots:
            raise Impossible(f"slot {slot} has a window that is not committed; commit it first")
        return tokens

    # --- actions ---

    def prefill(self, d: int, prompts: list[list[int]], slots: list[int]) -> set[Place]:
        """Reads prompts into free slots."""
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
        """A window of each given sequence; a negative slot is padding."""
        if self.pending is not None:
            raise Impossible("a window is not committed; commit it first")
        for slot in slots:
            if slot >= 0:
                self.live(d, slot)
        words, rows = np.array(tokens, dtype=np.int64), np.array(slots, dtype=np.int64)
        counts, above = (None if a is None else np.array(a, dtype=np.int64) for a in (lengths, parents))
        self.pending = d, TokenWindow(words, rows, counts, above, drafts)
        self.reached.update(of_window(self.pending[1]))
        return {(d, slot) for slot in slots if slot >= 0}

    def commit(self, paths: list[list[int]], kept: list[int], rows: list[int], roots: list[int]) -> set[Place]:
        """For each sequence, the first `kept` nodes of a path in its row, and the next root."""
        if self.pending is None:
            raise Impossible("no window is verified; verify one first")
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
        """Copies the sequence of a slot to a free slot."""
        self.take(d, to, self.settled(d, slot))
        self.reached["fork between window and verdict"] += self.pending is not None
        return {(d, slot), (d, to)}

    def release(self, d: int, slot: int) -> set[Place]:
        """Frees the slot and fills its memory with NaN."""
        self.settled(d, slot)
        del self.rooms[d][slot]
        self.freed.add((d, slot))
        return {(d, slot)}

    def flush(self, d: int, slots: list[int]) -> set[Place]:
        """Brings the states of these slots up to date with all their committed tokens, before it is due."""
        for slot in slots:
            self.settled(d, slot)
        return {(d, slot) for slot in slots}

    def preempt(self, d: int, slot: int) -> set[Place]:
        """Takes a sequence out of its slot; it waits."""
        self.parked.append(self.settled(d, slot))
        return Ledger.release(self, d, slot)

    def resume(self, number: int, d: int, slot: int) -> set[Place]:
        """Puts a waiting sequence into a free slot."""
        if not 0 <= number < len(self.parked):
            raise Impossible(f"sequence {number} is not preempted; {len(self.parked)} are")
        self.take(d, slot, self.parked[number])
        del self.parked[number]
        return {(d, slot)}

    def hand_over(self, d: int, slot: int, other: int, to: int) -> set[Place]:
        """Passes a sequence to another decoder, which may use another method; the first one releases it."""
        self.take(other, to, self.settled(d, slot))
        self.reached[f"from {self.decodings[d].name} to {self.decodings[other].name}"] += 1
        return Ledger.release(self, d, slot) | {(other, to)}


def longest(decoding: Decoding, window: int) -> int:
    """The tokens of the longest window that a decoding supports."""
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
