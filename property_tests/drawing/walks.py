"""Walks of one decoding, without an oracle: what two walks compute after the same tokens must agree.

A walk is a session that records the logits and states after every prefix instead of testing them. Decodings that promise bits
are compared with ==, others within the sum of both running bounds: each is within its own of plain decoding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ssmspec_ref.contract import Adapter, Decoding
from ssmspec_ref.shapes import Array
from ssmspec_ref.tree import PADDING

from ..laws.relations import Broken, equal, near
from ..sessions.ledger import Prefix, longest
from ..sessions.session import Session
from .models import LAYERS, Spec

Said = tuple[str, Prefix]
"""`logits` or `state`, and the tokens before it."""


class Walk(Session):
    """`said` holds, for each kind of value and prefix, all recorded values, in order."""

    deviation = Broken

    def __init__(self, *given: Any, **more: Any) -> None:
        self.said: dict[Said, list[tuple[Array, ...]]] = {}
        super().__init__(*given, **more)

    def judge(self, d: int, what: str, came: Array, want: Array, error: Array) -> None:
        """Records the value; walks are compared with each other."""

    def same_bits(self, d: int, what: str, prefix: Prefix, *came: Array) -> None:
        self.said.setdefault((what, prefix), []).append(tuple(np.array(a) for a in came))

    def draft(self, drafted: dict[int, list[int]], parents: dict[int, list[int]] | None = None) -> None:
        """Verifies drafts of each slot, in that order; a negative slot is padding; `parents` of root and drafts make trees.

        If a sequence has several rows, the last one has these drafts, the others have them in reverse order.
        """
        decoding, width = self.decodings[0], 1 + max(map(len, drafted.values()))
        tokens, slots, lengths, above = list[list[int]](), list[int](), list[int](), list[list[int]]()
        for slot, drafts in drafted.items():
            root = self.rooms[0][slot][-1] if slot >= 0 else 0
            behind = width - 1 - len(drafts)
            for row in range(decoding.drafts):
                words = drafts if row == decoding.drafts - 1 else drafts[::-1]
                tokens.append([root, *words, *[0] * behind])
                slots.append(max(slot, -1))
                lengths.append(1 + len(drafts))
                chain = list(range(-1, len(drafts)))
                above.append([*(parents[slot] if parents else chain), *[PADDING] * behind])
        trees = parents is not None or not decoding.chains
        ragged = None if trees or set(lengths) == {width} else lengths
        self.verify(0, tokens, slots, ragged, above if trees else None, decoding.drafts)

    def settle(self, taken: dict[int, list[int]], root: int, cut: int = 0, look: bool = True) -> None:
        """Commits the path of each slot of the window, in its last row; all but `cut` nodes of it; and the next root of
        all."""
        assert self.pending is not None
        m, slots = self.decodings[0].drafts, self.pending[1].slots.tolist()
        paths = [taken.get(slot, []) for slot in slots[::m]]
        kept = [max(1, len(path) - cut) if path else 0 for path in paths]
        self.commit(
            paths, kept, [n * m + m - 1 if path else n * m for n, path in enumerate(paths)], [root] * len(paths), look
        )

    def accept(self, slot: int, drafts: list[int], count: int, root: int, look: bool = True) -> None:
        """A window of one sequence, whose first `count` drafts are accepted; `look`: whether to read the state then."""
        self.draft({slot: drafts})
        self.settle({slot: list(range(count + 1))}, root, look=look)

    def steps(self, slot: int, tokens: list[int]) -> None:
        """Decodes the tokens as roots of windows without drafts."""
        for token in tokens:
            self.accept(slot, [], 0, token)

    def hand_over_within(self, slot: int, to: int) -> None:
        """Moves a sequence into another slot."""
        self.preempt(0, slot)
        self.resume(0, 0, to)

    def best(self, prefix: Prefix) -> tuple[int, float]:
        """The first most likely token after a prefix, and its margin over the second."""
        row = self.said["logits", prefix][-1][0]
        most = int(row.argmax())
        return most, float(row[most] - np.delete(row, most).max())


@dataclass(frozen=True)
class Case:
    """A decoding of an adapter, a model that it supports, and a seed of tokens."""

    adapter: Adapter
    decoding: Decoding
    spec: Spec
    seed: int

    def walk(self, *prompts: list[int], slots: Sequence[int] = (0, 1, 2)) -> Walk:
        """A new walk, with prompts in the first of these slots."""
        begun = Walk(self.adapter, [self.decoding.name], self.spec.words(), slots=4, window=self.width, cache=40)
        if prompts:
            begun.prefill(0, [list(prompt) for prompt in prompts], list(slots[: len(prompts)]))
        return begun

    @property
    def width(self) -> int:
        return longest(self.decoding, 4)

    def tokens(self, count: int, which: int = 0) -> list[int]:
        """Random tokens; different ones for each `which`."""
        drawn: list[int] = np.random.default_rng([self.seed, which]).integers(0, self.spec.vocabulary, count).tolist()
        return drawn

    def bound(self, walk: Walk, said: Said) -> tuple[Array, ...]:
        oracle, (what, prefix) = walk.oracle(0), said
        node = oracle.at(prefix)
        return tuple(oracle.factor * e for e in ((node.error,) if what == "logits" else (e for _, _, e in node.layers)))

    def agree(self, *walks: Walk) -> None:
        """All values recorded more than once for a prefix are the same: by ==, if bits are promised. Raises: Broken;
        ValueError if there was nothing to compare.
        """
        compared = 0
        for said in {said: None for walk in walks for said in walk.said}:
            first, *others = [arrays for walk in walks for arrays in walk.said.get(said, [])]
            for other in others:
                self.same(walks[0], said, first, other, exact=bool(self.decoding.bits))
            compared += len(others)
        if not compared:
            raise ValueError("these walks have no prefix in common; a law must compare something")

    def agree_exactly(self, one: Walk, other: Walk) -> None:
        """All that both recorded for a prefix is the same bit for bit, the first time, the second, and so on."""
        both = [said for said in one.said if said in other.said]
        for said in both:
            for first, second in zip(one.said[said], other.said[said], strict=False):
                self.same(one, said, first, second, exact=True)
        if not both:
            raise ValueError("these walks have no prefix in common; a law must compare something")

    def same(self, walk: Walk, said: Said, one: tuple[Array, ...], other: tuple[Array, ...], exact: bool) -> None:
        words = f"{self.decoding.name}: {said[0]} after {said[1]}"
        bounds = [None] * len(one) if exact else self.bound(walk, said)
        for first, second, bound in zip(one, other, bounds, strict=True):
            equal(words, first, second) if bound is None else near(words, first, second, 2 * bound)


def case_of(adapter: Adapter, decoding: Decoding, seed: int, vocabulary: int = 5) -> Case:
    """A model of one or two kinds of layers that the decoding supports, a different one for each seed."""
    kinds = [kind for kind in LAYERS if kind in decoding.limits.options.get("kind", LAYERS)]
    chosen = tuple(kinds[(seed + i) % len(kinds)] for i in range(1 + seed % 2))
    return Case(adapter, decoding, Spec(chosen, seed, vocabulary, (("decay", ("gentle", "normal")[seed % 2]),)), seed)
