"""A run of actions on the decoders of an adapter, each compared with plain decoding: the state machine drives and replays it.

After each action

    logits of every live token and node, states of every slot that moved = the oracle's, within the running bound   (1)
    decodings that promise the same bits: equal bits for equal prefixes                                             (2)
    every slot outside the action: its memory unchanged, bit for bit                                                (3)
    unused memory: NaN, written after every action, so that reading it fails (1)                                    (4)

A session records its own actions (`lines`), so that it can be saved and replayed (`reproducer`).
"""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar

import numpy as np

from conformance.run.load import load
from ssmspec_ref.contract import Adapter, Decoding, TokenVerdict, TokenWindow
from ssmspec_ref.error_bounds.comparison import compare
from ssmspec_ref.shapes import Array

from ..drawing.models import Spec, build
from .ledger import Impossible, Ledger, Place, Prefix, longest, nodes
from .oracle import Oracle, oracle_of

Action = TypeVar("Action", bound=Callable[..., set[Place]])


class Deviation(AssertionError):
    """An implementation differs from plain decoding, or changed memory that is not its own."""


def action(run: Action) -> Action:
    """Records an action before it runs; afterwards compares the slots that it did not name, and fills unused memory with
    NaN."""

    @wraps(run)
    def noted(self: "Session", *given: Any, **more: Any) -> set[Place]:
        self.lines.append((run.__name__, given, more))
        self.reached[f"rule {run.__name__}"] += 1
        before = {place: self.decoders[place[0]].memory(place[1]) for place in self.places()}
        touched = run(self, *given, **more)
        self.reached[self.situation()] += 1
        for place, held in before.items():
            if place not in touched:
                self.unchanged(place, held)
        for d, decoder in enumerate(self.decoders):
            if self.pending is None or self.pending[0] != d:
                decoder.poison()
        return touched

    return noted  # type: ignore[return-value]


class Session(Ledger):
    """Decoders of one model under some decodings of an adapter. `used` is the largest share of a bound that each kind of
    value used, `widest` the widest bound of each kind.
    """

    deviation: type[AssertionError] = Deviation
    """The error raised if the memory of a slot outside the action changes."""

    def __init__(
        self,
        adapter: str | Adapter,
        decodings: Sequence[str],
        model: dict[str, Any],
        slots: int = 3,
        window: int = 4,
        cache: int = 32,
        device: str = "cpu",
    ) -> None:
        self.name = adapter if isinstance(adapter, str) else adapter.name
        self.adapter = load(adapter, device) if isinstance(adapter, str) else adapter
        self.spec = Spec.of(model)
        super().__init__([self.decoding(name) for name in decodings], self.spec.vocabulary, slots, window, cache)
        self.model = build(self.spec)
        self.decoders = [d.start(self.model, slots=slots, cache=cache, window=longest(d, window)) for d in self.decodings]
        self.held: list[Any] = []
        self.bits: dict[tuple[str, str, Prefix], bytes] = {}
        self.used: dict[str, float] = {}
        self.widest: dict[str, float] = {}
        self.lines: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        for decoder in self.decoders:
            decoder.poison()

    def decoding(self, name: str) -> Decoding:
        found = {d.name: d for d in self.adapter.decodings}
        if name not in found:
            raise Impossible(f"{self.name} has no decoding {name!r}; it has {', '.join(found) or 'none'}")
        return found[name]

    def oracle(self, d: int) -> Oracle:
        return oracle_of(self.spec, self.decodings[d].contract)

    def has_plain(self, d: int) -> bool:
        return plain_of(self.adapter, self.decodings[d].bits) is not None

    # --- actions: what the ledger says, what the implementation does, what must hold then ---

    @action
    def prefill(self, d: int, prompts: list[list[int]], slots: list[int]) -> set[Place]:
        touched = super().prefill(d, prompts, slots)
        self.decoders[d].prefill(prompts, slots)
        return self.looked(touched)

    @action
    def verify(
        self,
        d: int,
        tokens: list[list[int]],
        slots: list[int],
        lengths: list[int] | None = None,
        parents: list[list[int]] | None = None,
        drafts: int = 1,
    ) -> set[Place]:
        touched = super().verify(d, tokens, slots, lengths, parents, drafts)
        assert self.pending is not None
        window = self.pending[1]
        prefixes = {
            (row, way[-1]): self.rooms[d][slot][:-1] + tuple(tokens[row][node] for node in way)
            for row, slot in enumerate(slots)
            if slot >= 0
            for way in nodes(window, row)
        }
        logits = self.decoders[d].verify(window)
        self.oracle(d).learn(prefixes.values())
        for (row, node), prefix in prefixes.items():
            want = self.oracle(d).at(prefix)
            self.judge(d, f"logits of row {row}, token {node}", logits[row, node], want.logits, want.error)
            self.same_bits(d, "logits", prefix, logits[row, node])
        return touched

    @action
    def commit(
        self, paths: list[list[int]], kept: list[int], rows: list[int], roots: list[int], look: bool = True
    ) -> set[Place]:
        """`look`: whether to read the states now."""
        pending = self.pending
        touched = super().commit(paths, kept, rows, roots)
        assert pending is not None
        whole = np.full((len(paths), pending[1].tokens.shape[1]), -1, dtype=np.int64)
        for n, path in enumerate(paths):
            whole[n, : len(path)] = path
        self.decoders[pending[0]].commit(TokenVerdict(np.array(kept), whole, np.array(rows), np.array(roots)))
        return self.looked(touched) if look else touched

    @action
    def fork(self, d: int, slot: int, to: int) -> set[Place]:
        touched = super().fork(d, slot, to)
        self.decoders[d].fork(slot, to)
        return self.looked(touched)

    @action
    def release(self, d: int, slot: int) -> set[Place]:
        touched = super().release(d, slot)
        self.decoders[d].release(slot)
        return touched

    @action
    def flush(self, d: int, slots: list[int]) -> set[Place]:
        touched = super().flush(d, slots)
        self.decoders[d].flush(slots)
        return self.looked(touched)

    @action
    def preempt(self, d: int, slot: int) -> set[Place]:
        touched = super().preempt(d, slot)
        self.held.append(self.decoders[d].snapshot(slot))
        self.decoders[d].release(slot)
        return touched

    @action
    def resume(self, number: int, d: int, slot: int) -> set[Place]:
        touched = super().resume(number, d, slot)
        self.decoders[d].restore(slot, self.held.pop(number))
        return self.looked(touched)

    @action
    def hand_over(self, d: int, slot: int, other: int, to: int) -> set[Place]:
        touched = super().hand_over(d, slot, other, to)
        self.decoders[other].restore(to, self.decoders[d].snapshot(slot))
        self.decoders[d].release(slot)
        self.look(other, to)
        return touched

    @action
    def plain(self, d: int, slot: int) -> set[Place]:
        """Decodes the committed tokens again by the plain decoding that promises the same bits (2)."""
        tokens = self.settled(d, slot)
        single = plain_of(self.adapter, self.decodings[d].bits)
        if single is None:
            raise Impossible(
                f"{self.decodings[d].name} does not declare bitwise equality, or its group has no plain decoding"
            )
        decoder = single.start(self.model, slots=1, cache=self.cache, window=1)
        decoder.prefill([list(tokens)], [0])
        self.same_bits(d, "state", tokens[:-1], *flat(decoder.state(0)))
        logits = decoder.verify(TokenWindow(np.array([tokens[-1:]]), np.array([0])))
        self.same_bits(d, "logits", tokens, logits[0, 0])
        self.look(d, slot)
        return set()

    # --- checks ---

    def looked(self, touched: set[Place]) -> set[Place]:
        for place in sorted(touched):
            self.look(*place)
        return touched

    def look(self, d: int, slot: int) -> None:
        """Checks (1) and (2) for the states of a slot."""
        committed = self.rooms[d][slot][:-1]
        node = self.oracle(d).at(committed)
        came = flat(self.decoders[d].state(slot))
        for (name, want, error), got in zip(node.layers, came, strict=True):
            self.judge(d, f"{name}, slot {slot}", got, want, error)
        self.same_bits(d, "state", committed, *came)

    def judge(self, d: int, what: str, came: Array, want: Array, error: Array) -> None:
        name, bound = self.decodings[d].name, self.oracle(d).factor * error
        if came.shape != want.shape:
            raise Deviation(f"{name}: {what} has shape {came.shape}, plain decoding has {want.shape}")
        judged = compare(came, want, bound)
        label = f"{name}: {what.split(' of ')[0]}"
        self.used[label] = max(self.used.get(label, 0.0), judged.utilisation)
        self.widest[label] = max(self.widest.get(label, 0.0), float(bound.max(initial=0.0)))
        if not judged.passed:
            raise Deviation(f"{name}: {what}: {judged}")

    def same_bits(self, d: int, what: str, prefix: Prefix, *came: Array) -> None:
        """Checks (2)."""
        group = self.decodings[d].bits
        held = b"".join(np.ascontiguousarray(a).tobytes() for a in came)
        if group and self.bits.setdefault((group, what, prefix), held) != held:
            raise Deviation(f"{self.decodings[d].name}: the {what} after {prefix} has other bits than before")

    def unchanged(self, place: Place, before: Sequence[Array]) -> None:
        """Checks (3)."""
        now = self.decoders[place[0]].memory(place[1])
        if [a.tobytes() for a in before] != [a.tobytes() for a in now]:
            named = f"{self.decodings[place[0]].name}: slot {place[1]}"
            raise self.deviation(f"{named} was not used by this action, but its memory changed")

    @property
    def utilisation(self) -> float:
        return max(self.used.values(), default=0.0)

    def words(self) -> dict[str, Any]:
        """The session in JSON form; `replay` runs it again."""
        return {
            "adapter": self.name,
            "decodings": [d.name for d in self.decodings],
            "model": self.spec.words(),
            "slots": self.slots,
            "window": self.window,
            "cache": self.cache,
            "lines": [[name, list(given), more] for name, given, more in self.lines],
        }


def replay(words: dict[str, Any], device: str = "cpu") -> Session:
    """A session from its JSON form, action by action. Raises: Deviation."""
    begun = {name: value for name, value in words.items() if name != "lines"}
    session = Session(**begun, device=device)
    for name, given, more in words["lines"]:
        getattr(session, name)(*given, **more)
    return session


def plain_of(adapter: Adapter, group: str) -> Decoding | None:
    """The decoding of single tokens in a group of decodings with equal bits."""
    return next((d for d in adapter.decodings if group and d.bits == group and longest(d, 2) == 1), None)


def flat(state: tuple[tuple[Array, Array], ...]) -> list[Array]:
    return [array for pair in state for array in pair]
