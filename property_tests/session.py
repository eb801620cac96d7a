"""A run of actions on the decoders of an adapter, each held to plain decoding: what the state machine drives and replays.

After each action

    logits of every live token and node, states of every slot that moved = the oracle's, within the running bound   (1)
    decodings that promise the same bits: equal bits for equal prefixes                                             (2)
    every slot that took no part: its memory bit for bit as before                                                  (3)
    dead memory: NaN, written after every action, so that what reads it fails (1)                                   (4)

A session keeps its own actions (`lines`), so that it can be written down and replayed (`reproducer`).
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar

import numpy as np

from conformance.load import load
from ssmspec_ref.contract import Adapter, Decoding, TokenVerdict, TokenWindow
from ssmspec_ref.error_bounds.comparison import compare
from ssmspec_ref.shapes import Array

from .features import of_commit, of_window
from .models import Spec, build
from .oracle import Oracle, Prefix, oracle_of

Place = tuple[int, int]
"""A decoder by its number, and a slot."""
Action = TypeVar("Action", bound=Callable[..., set[Place]])


class Deviation(AssertionError):
    """An implementation left what plain decoding has, or touched what is not its own."""


class Impossible(ValueError):
    """An action that the contract does not offer here: a slot that is not free, a window before the last one's verdict."""


def action(run: Action) -> Action:
    """An action is noted before it runs; after it the slots that it did not name are compared, dead memory is poisoned."""

    @wraps(run)
    def noted(self: "Session", *given: Any, **more: Any) -> set[Place]:
        self.lines.append((run.__name__, given, more))
        self.reached[f"rule {run.__name__}"] += 1
        before = {place: self.decoders[place[0]].memory(place[1]) for place in self.places()}
        touched = run(self, *given, **more)
        for place, held in before.items():
            if place not in touched:
                self.unchanged(place, held)
        for d, decoder in enumerate(self.decoders):
            if self.pending is None or self.pending[0] != d:
                decoder.poison()
        return touched

    return noted  # type: ignore[return-value]


class Session:
    """Decoders of one model under some decodings of an adapter.

    Units: `cache` is the tokens of a sequence, `window` those of a window.
    """

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
        self.spec, self.slots, self.window, self.cache = Spec.of(model), slots, window, cache
        self.decodings = [self.decoding(name) for name in decodings]
        self.model = build(self.spec)
        self.decoders = [d.start(self.model, slots=slots, cache=cache, window=longest(d, window)) for d in self.decodings]
        self.rooms: list[dict[int, Prefix]] = [{} for _ in decodings]
        self.parked: list[tuple[Any, Prefix]] = []
        self.pending: tuple[int, TokenWindow] | None = None
        self.bits: dict[tuple[str, str, Prefix], bytes] = {}
        self.used: dict[str, float] = {}
        self.reached: Counter[str] = Counter()
        self.freed: set[Place] = set()
        self.lines: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        for decoder in self.decoders:
            decoder.poison()

    def decoding(self, name: str) -> Decoding:
        found = {d.name: d for d in self.adapter.decodings}
        if name not in found:
            raise Impossible(f"{self.name} has no decoding {name!r}; it has {', '.join(found) or 'none'}")
        return found[name]

    def places(self) -> list[Place]:
        return [(d, slot) for d in range(len(self.decoders)) for slot in range(self.slots)]

    def oracle(self, d: int) -> Oracle:
        return oracle_of(self.spec, self.decodings[d].contract)

    # --- what the ledger allows ---

    def live(self, d: int, slot: int) -> Prefix:
        if slot not in self.rooms[d]:
            raise Impossible(f"slot {slot} of {self.decodings[d].name} holds no sequence; it has {sorted(self.rooms[d])}")
        return self.rooms[d][slot]

    def free(self, d: int) -> list[int]:
        return [slot for slot in range(self.slots) if slot not in self.rooms[d]]

    def take(self, d: int, slot: int, tokens: Prefix) -> None:
        if slot in self.rooms[d] or not 0 <= slot < self.slots:
            raise Impossible(f"slot {slot} of {self.decodings[d].name} is not free; free are {self.free(d)}")
        if (d, slot) in self.freed:
            self.reached["slot used again"] += 1
        self.rooms[d][slot] = tokens

    def settled(self, d: int, slot: int) -> None:
        """Raise Impossible for a sequence between its window and the verdict."""
        if self.pending is not None and self.pending[0] == d and slot in np.asarray(self.pending[1].slots):
            raise Impossible(f"slot {slot} has a window without a verdict; commit it first")

    # --- actions ---

    @action
    def prefill(self, d: int, prompts: list[list[int]], slots: list[int]) -> set[Place]:
        """Prompts into free slots."""
        for prompt, slot in zip(prompts, slots, strict=True):
            self.take(d, slot, tuple(prompt))
        self.decoders[d].prefill(prompts, slots)
        for slot in slots:
            self.look(d, slot)
        return {(d, slot) for slot in slots}

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
        """A window of every sequence named; a negative slot is padding."""
        if self.pending is not None:
            raise Impossible("a window waits for its verdict; commit it first")
        arrays = (None if a is None else np.array(a, dtype=np.int64) for a in (tokens, slots, lengths, parents))
        window = TokenWindow(*arrays, drafts)  # type: ignore[arg-type]
        owners = {(d, slot) for slot in slots if slot >= 0}
        paths = [nodes(window, row) if slot >= 0 else [] for row, slot in enumerate(slots)]
        prefixes = {
            (row, way[-1]): self.live(d, slots[row])[:-1] + tuple(tokens[row][node] for node in way)
            for row, ways in enumerate(paths)
            for way in ways
        }
        self.pending = d, window
        logits = self.decoders[d].verify(window)
        self.oracle(d).learn(prefixes.values())
        for (row, node), prefix in prefixes.items():
            want = self.oracle(d).at(prefix)
            self.judge(d, f"logits of row {row}, token {node}", logits[row, node], want.logits, want.error)
            self.same_bits(d, "logits", prefix, logits[row, node])
        self.reached.update(of_window(window))
        return owners

    @action
    def commit(
        self, paths: list[list[int]], kept: list[int], rows: list[int], roots: list[int], look: bool = True
    ) -> set[Place]:
        """Of each sequence, the first `kept` nodes of a path in a row of its own, and the next root."""
        if self.pending is None:
            raise Impossible("no window waits for a verdict; verify one first")
        d, window = self.pending
        whole = np.full((len(paths), window.tokens.shape[1]), -1, dtype=np.int64)
        for n, path in enumerate(paths):
            whole[n, : len(path)] = path
        self.decoders[d].commit(TokenVerdict(np.array(kept), whole, np.array(rows), np.array(roots)))
        self.pending, touched = None, set()
        for n, count in enumerate(kept):
            slot = int(window.slots[n * window.drafts])
            if slot < 0:
                continue
            said = window.tokens[rows[n], paths[n][1:count]].tolist()
            self.rooms[d][slot] = (*self.rooms[d][slot], *said, roots[n])
            self.reached.update(of_commit(window, rows[n], paths[n], count))
            touched.add((d, slot))
        if look:
            for _, slot in sorted(touched):
                self.look(d, slot)
        return touched

    @action
    def fork(self, d: int, slot: int, to: int) -> set[Place]:
        """The sequence of a slot in a free slot too."""
        self.settled(d, slot)
        self.take(d, to, self.live(d, slot))
        self.decoders[d].fork(slot, to)
        self.reached["fork between window and verdict"] += self.pending is not None
        for place in (slot, to):
            self.look(d, place)
        return {(d, slot), (d, to)}

    @action
    def release(self, d: int, slot: int) -> set[Place]:
        """The slot is free; its memory is poison."""
        self.settled(d, slot)
        self.leave(d, slot)
        return {(d, slot)}

    def leave(self, d: int, slot: int) -> Prefix:
        tokens = self.live(d, slot)
        self.decoders[d].release(slot)
        del self.rooms[d][slot]
        self.freed.add((d, slot))
        return tokens

    @action
    def flush(self, d: int, slots: list[int]) -> set[Place]:
        """The states of these slots up to all their committed tokens, before it is due."""
        for slot in slots:
            self.live(d, slot)
            self.settled(d, slot)
        self.decoders[d].flush(slots)
        for slot in slots:
            self.look(d, slot)
        return {(d, slot) for slot in slots}

    @action
    def preempt(self, d: int, slot: int) -> set[Place]:
        """A sequence out of its slot; it waits."""
        self.settled(d, slot)
        self.live(d, slot)
        held = self.decoders[d].snapshot(slot)
        self.parked.append((held, self.leave(d, slot)))
        return {(d, slot)}

    @action
    def resume(self, number: int, d: int, slot: int) -> set[Place]:
        """A sequence that waits, into a free slot."""
        if not 0 <= number < len(self.parked):
            raise Impossible(f"sequence {number} does not wait; {len(self.parked)} do")
        held, tokens = self.parked.pop(number)
        self.take(d, slot, tokens)
        self.decoders[d].restore(slot, held)
        self.look(d, slot)
        return {(d, slot)}

    @action
    def hand_over(self, d: int, slot: int, other: int, to: int) -> set[Place]:
        """A sequence on to another decoder, which may decode otherwise; the first one releases it."""
        self.settled(d, slot)
        tokens = self.live(d, slot)
        held = self.decoders[d].snapshot(slot)
        self.take(other, to, tokens)
        self.decoders[other].restore(to, held)
        self.leave(d, slot)
        self.look(other, to)
        self.reached[f"from {self.decodings[d].name} to {self.decodings[other].name}"] += 1
        return {(d, slot), (other, to)}

    @action
    def plain(self, d: int, slot: int) -> set[Place]:
        """The committed tokens decoded anew by the plain decoding that promises the same bits (2)."""
        self.settled(d, slot)
        tokens, group = self.live(d, slot), self.decodings[d].bits
        single = plain_of(self.adapter, group)
        if single is None:
            raise Impossible(f"{self.decodings[d].name} promises no bits, or its group has no plain decoding")
        decoder = single.start(self.model, slots=1, cache=self.cache, window=1)
        decoder.prefill([list(tokens)], [0])
        self.same_bits(d, "state", tokens[:-1], *flat(decoder.state(0)))
        logits = decoder.verify(TokenWindow(np.array([tokens[-1:]]), np.array([0])))
        self.same_bits(d, "logits", tokens, logits[0, 0])
        self.look(d, slot)
        return set()

    # --- checks ---

    def look(self, d: int, slot: int) -> None:
        """(1) and (2) of the states of a slot."""
        committed = self.rooms[d][slot][:-1]
        node = self.oracle(d).at(committed)
        came = flat(self.decoders[d].state(slot))
        for (name, want, error), got in zip(node.layers, came, strict=True):
            self.judge(d, f"{name}, slot {slot}", got, want, error)
        self.same_bits(d, "state", committed, *came)

    def judge(self, d: int, what: str, came: Array, want: Array, error: Array) -> None:
        name, oracle = self.decodings[d].name, self.oracle(d)
        if came.shape != want.shape:
            raise Deviation(f"{name}: {what} came with shape {came.shape}, plain decoding has {want.shape}")
        judged = compare(came, want, oracle.factor * error)
        label = f"{name}: {what.split(' of ')[0]}"
        self.used[label] = max(self.used.get(label, 0.0), judged.utilisation)
        if not judged.passed:
            raise Deviation(f"{name}: {what}: {judged}")

    def same_bits(self, d: int, what: str, prefix: Prefix, *came: Array) -> None:
        """(2)."""
        group = self.decodings[d].bits
        held = b"".join(np.ascontiguousarray(a).tobytes() for a in came)
        if group and self.bits.setdefault((group, what, prefix), held) != held:
            raise Deviation(f"{self.decodings[d].name}: the {what} behind {prefix} has other bits than before")

    def unchanged(self, place: Place, before: Sequence[Array]) -> None:
        """(3)."""
        now = self.decoders[place[0]].memory(place[1])
        if [a.tobytes() for a in before] != [a.tobytes() for a in now]:
            raise Deviation(f"{self.decodings[place[0]].name}: slot {place[1]} took no part, but its memory changed")

    @property
    def utilisation(self) -> float:
        return max(self.used.values(), default=0.0)

    def words(self) -> dict[str, Any]:
        """The session as JSON holds it; `replay` runs it again."""
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


def longest(decoding: Decoding, window: int) -> int:
    """The tokens of the longest window that a decoding takes."""
    return min(window, decoding.limits.sizes.get("t", (1, window))[1])


def plain_of(adapter: Adapter, group: str) -> Decoding | None:
    """The decoding of single tokens in a group of bits."""
    return next((d for d in adapter.decodings if group and d.bits == group and longest(d, 2) == 1), None)


def flat(state: tuple[tuple[Array, Array], ...]) -> list[Array]:
    return [array for pair in state for array in pair]


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
