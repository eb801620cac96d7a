"""The reference's backtracking paths as decoders of a whole model: `conformance.adapters.sequences:adapter`.

Every slot holds a separate batch of one, so that sequences cannot affect each other.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ssmspec_ref import decode, speculate
from ssmspec_ref import model as lm
from ssmspec_ref.attention import KVState
from ssmspec_ref.backtrack import Accepted, activation_replay, joint, snapshots, tree
from ssmspec_ref.backtrack.replay_buffer import ReplayBuffer
from ssmspec_ref.contract import FLOAT64, Adapter, Decoding, Limits, NumericContract, TokenVerdict, TokenWindow
from ssmspec_ref.model import Model, ModelState
from ssmspec_ref.records import arrays
from ssmspec_ref.shapes import Array

from .reference_parts.backtracking import AT_ONCE


class PathDecoder:
    """A path of `ssmspec_ref.backtrack` over slots."""

    def __init__(self, path: Any, model: Model, slots: int, cache: int, window: int) -> None:
        self.path, self.model = path, model
        self.kept: dict[int, speculate.Kept] = {}
        self.tokens: dict[int, tuple[int, ...]] = {}
        self.pending: list[tuple[int, TokenWindow, Any]] = []

    def prefill(self, prompts: Sequence[Sequence[int]], slots: Sequence[int]) -> None:
        for prompt, slot in zip(prompts, slots, strict=True):
            _, state = decode.prefill((tuple(prompt),), self.model)
            self.begin(slot, state, tuple(prompt))

    def begin(self, slot: int, state: ModelState, tokens: tuple[int, ...]) -> None:
        self.kept[slot], self.tokens[slot] = speculate.start(state, self.model, self.path), tokens

    def one(self, slot: int) -> decode.Sequences:
        """The sequence of a slot, as a batch of one."""
        return decode.Sequences((self.tokens[slot],), ((),))

    def verify(self, window: TokenWindow) -> Array:
        self.pending = []
        rows, m = [], window.drafts
        for at in range(0, len(window.tokens), m):
            slot = int(window.slots[at])
            piece = self.rows(window, slice(at, at + m))
            if slot < 0:
                rows.append(np.zeros((*piece.tokens.shape, self.model.vocabulary)))
                self.pending.append((slot, piece, None))
                continue
            given = speculate.Window(piece.tokens, piece.lengths, np.zeros(m, dtype=np.int64), piece.parents)
            logits, pending = speculate.verify(self.kept[slot], self.one(slot), given, self.model, self.path)
            rows.append(logits)
            self.pending.append((slot, piece, pending))
        return np.concatenate(rows)

    @staticmethod
    def rows(window: TokenWindow, part: slice) -> TokenWindow:
        """Some rows of a window as a separate window of int64."""
        tokens, slots, lengths, parents = (
            None if a is None else np.asarray(a)[part].astype(np.int64)
            for a in (window.tokens, window.slots, window.lengths, window.parents)
        )
        assert tokens is not None
        assert slots is not None
        return TokenWindow(tokens, slots, lengths, parents)

    def commit(self, verdict: TokenVerdict) -> None:
        first = 0
        for n, (slot, window, pending) in enumerate(self.pending):
            if slot >= 0:
                row, count = int(verdict.row[n]) - first, int(verdict.advanced[n])
                self.keep(slot, window, pending, row, np.asarray(verdict.path[n][:count]), int(verdict.root[n]))
            first += len(window.tokens)

    def keep(self, slot: int, window: TokenWindow, pending: Any, row: int, path: Array, root: int) -> None:
        """Commit one sequence: the nodes of a path enter its state."""
        whole = np.full((1, window.tokens.shape[1]), -1, dtype=np.int64)
        whole[0, : len(path)] = path
        accepted = Accepted(np.array([len(path)]), np.array([row]), None if window.parents is None else whole)
        self.kept[slot] = speculate.commit(pending, accepted, self.model, self.path)
        self.tokens[slot] = (*self.tokens[slot], *window.tokens[row, path[1:]].tolist(), root)

    def fork(self, slot: int, to: int) -> None:
        self.restore(to, self.snapshot(slot))

    def release(self, slot: int) -> None:
        del self.kept[slot], self.tokens[slot]

    def snapshot(self, slot: int) -> tuple[ModelState, tuple[int, ...]]:
        return speculate.restore(self.kept[slot], self.one(slot), self.model, self.path), self.tokens[slot]

    def restore(self, slot: int, held: tuple[ModelState, tuple[int, ...]]) -> None:
        self.begin(slot, *held)

    def flush(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self.restore(slot, self.snapshot(slot))

    def state(self, slot: int) -> tuple[tuple[Array, Array], ...]:
        state, _ = self.snapshot(slot)
        return tuple(
            (s.K[0, : s.length[0]], s.V[0, : s.length[0]]) if isinstance(s, KVState) else (s.M[0], s.S[0]) for s in state
        )

    def memory(self, slot: int) -> tuple[Array, ...]:
        return tuple(a.copy() for layer in self.kept.get(slot, ()) for a in arrays(layer))

    def poison(self) -> None:
        """Nothing to poison: a free slot is empty, and records have no dead entries."""


class PlainDecoder(PathDecoder):
    """Plain decoding: windows of one token, which enters the state at once."""

    def __init__(self, model: Model, slots: int, cache: int, window: int) -> None:
        super().__init__(snapshots, model, slots, cache, window)

    def keep(self, slot: int, window: TokenWindow, pending: Any, row: int, path: Array, root: int) -> None:
        state = self.snapshot(slot)[0]
        _, after = lm.scan(state, window.tokens[:1, :1], self.model)
        self.begin(slot, after, (*self.tokens[slot], root))


PATHS: dict[str, tuple[Any, NumericContract, dict[str, Any]]] = {
    "snapshots": (snapshots, FLOAT64, {"trees": True}),
    "joint": (joint, FLOAT64, {}),
    "activation replay": (activation_replay, AT_ONCE, {"trees": True}),
    "activation replay, two drafts": (activation_replay, AT_ONCE, {"drafts": 2}),
    "tree": (tree, AT_ONCE, {"chains": False, "trees": True}),
}
SINGLE = Limits(sizes={"t": (1, 1)}, reason="plain decoding takes single tokens")


def with_ring(model: Model, slots: int, cache: int, window: int) -> PathDecoder:
    return PathDecoder(ReplayBuffer(2 * window + 1, window), model, slots, cache, window)


def decodings(start: Callable[..., PathDecoder] = PathDecoder) -> tuple[Decoding, ...]:
    """Every path; `start(path, ..)` creates its decoders."""
    made = [Decoding(name, partial(start, path), contract, **given) for name, (path, contract, given) in PATHS.items()]
    plain = Decoding("plain", PlainDecoder, FLOAT64, limits=SINGLE)
    return (plain, *made, Decoding("replay buffer", with_ring, AT_ONCE))


def adapter() -> Adapter:
    return Adapter("reference", "as installed", decodings=decodings())
