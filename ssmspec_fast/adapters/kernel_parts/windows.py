"""The kernels that decode window after window, for the suite: `verify`, `commit`, `state` (`contract.Windows`).

States are in a pool, in slots out of order, as in `kernels`. `state` works on copies, so that reading it does not change
later results.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ssmspec_fast.adapters.tensors import mapped
from ssmspec_kernels.attention.tree_mask import tree_mask
from ssmspec_kernels.delta.delta_snapshots import delta_snapshots
from ssmspec_kernels.delta.ring import delta_ring
from ssmspec_kernels.delta.ring.delta_buffered import delta_buffered
from ssmspec_kernels.delta.ring.delta_buffered_step import delta_buffered_step
from ssmspec_kernels.delta.ring.delta_flush import delta_flush
from ssmspec_kernels.shared.cursors import commit_flush, commit_step, commit_window
from ssmspec_kernels.shared.double_buffer import commit_halves
from ssmspec_kernels.ssd.replay.ssd_replay_scan import Cache, ssd_replay_scan
from ssmspec_kernels.ssd.ring import ssd_ring
from ssmspec_kernels.ssd.ring.ssd_buffered import ssd_buffered
from ssmspec_kernels.ssd.ring.ssd_buffered_step import ssd_buffered_step
from ssmspec_kernels.ssd.ring.ssd_flush import ssd_flush
from ssmspec_kernels.ssd.ssd_commit import ssd_commit
from ssmspec_kernels.ssd.ssd_snapshots import ssd_snapshots
from ssmspec_kernels.ssd.ssd_tree_scan import ssd_tree_scan
from ssmspec_kernels.ssd.ssd_window import ssd_window
from ssmspec_ref.contract import Capability, Graph, Launch, Limits, NumericContract, Subject, launched
from ssmspec_ref.registry import Registry
from ssmspec_ref.shapes import Array

LONGEST, CAPACITY = 8, 20
"""Tokens of a window of the rings, and entries of a ring: it holds two windows of four, and a third makes a row due."""
STEPS = 5
"""Entries of the rings of single tokens."""
REPLAYED = 64
"""Tokens of half a cache."""
GROWS = "this adapter takes new slots for the states of every window, so that its pool grows"


@dataclass(frozen=True)
class Rule:
    """A recurrence: how its kernels are called, and what its rings store. `kernels` is `adapters.kernels.Kernels`.

    `reads(window, params)` returns a kernel's positional and keyword arguments; `entries(window)` what a ring of class
    `holds` stores of each token, and in which type (None: that of activations); `rounds` says that it rounds computed
    values."""

    kernels: Any
    name: str
    snapshots: Callable[..., Tensor]
    buffered: Callable[..., Tensor]
    step: Callable[..., Tensor]
    reads: Callable[[Any, Any], tuple[list[Any], dict[str, Any]]]
    holds: Callable[..., Any]
    entries: Callable[[Any], tuple[tuple[Array, torch.dtype | None], ...]]
    flush: Callable[..., None]
    rounds: bool = False

    def ring(self, pool: Tensor, window: Any, capacity: int) -> Any:
        """An empty ring, NaN in every entry, with a different origin for each row."""
        slots, device, nan = len(pool), pool.device, float("nan")
        origin = (torch.arange(slots, device=device, dtype=torch.int32) * 3) % capacity
        blank = (
            torch.full((slots, capacity, *a.shape[2:]), nan, dtype=dtype or self.kernels.io, device=device)
            for a, dtype in self.entries(window)
        )
        return self.holds(*blank, origin, torch.zeros(slots, device=device).int())


def rules(kernels: Any) -> Registry[Rule]:
    """The recurrences that have kernels for windows."""
    k, exact = kernels, torch.float32

    def flush_ssd(pool: Tensor, ring: Any, params: Any, slots: Tensor) -> None:
        ssd_flush(pool, ring, k.exact(params.A), len(slots), slots=slots)

    def flush_delta(pool: Tensor, ring: Any, params: Any, slots: Tensor) -> None:
        delta_flush(pool, ring, len(slots), l2_norm=params.l2_norm, eps=params.eps, slots=slots)

    return Registry(
        "recurrence with kernels for windows",
        Rule(
            k, "ssd", ssd_snapshots, ssd_buffered, ssd_buffered_step, k.ssd_reads, ssd_ring.Ring,
            lambda w: ((w.x, None), (w.dt, exact), (w.B, None)), flush_ssd,
        ),
        Rule(
            k, "delta", delta_snapshots, delta_buffered, delta_buffered_step, k.delta_reads, delta_ring.Ring,
            lambda w: ((w.v, None), (w.k, None), (w.g, exact)), flush_delta, rounds=True,
        ),
    )  # fmt: skip


class Decoding:
    """The rows of a batch, their pool, and the tokens of one window."""

    def __init__(self, rule: Rule, S: Array, params: Any) -> None:
        self.rule, self.params = rule, params
        self.pool, self.slots = rule.kernels.held(S)

    def run(self, kernel: Callable[..., Tensor], tokens: Any, *between: Any, **more: Any) -> Launch:
        """A kernel over some tokens; `between` are the arguments after the pool."""
        pool, (inputs, rest) = self.pool, self.rule.reads(tokens, self.params)
        given, named = (*between, *inputs), {**rest, **more, "slots": self.slots}
        return Launch((pool, given, named), lambda: kernel(pool, *given, **named), lambda y: y.double().cpu().numpy())

    def index(self, array: Any) -> Tensor:
        return torch.tensor(array, device=self.pool.device, dtype=torch.int32)

    def state(self) -> Array:
        return self.pool[self.slots.long()].double().cpu().numpy()

    def poison(self) -> None:
        """NaN in every slot that no row uses."""
        free = torch.ones(len(self.pool), dtype=torch.bool, device=self.pool.device)
        free[self.slots.long()] = False
        self.pool[free] = float("nan")


class Snapshots(Decoding):
    """A separate state slot for every token; a commit selects one of them."""

    def verify(self, window: Any, parents: Array | None = None) -> Array:
        b, t = len(self.slots), next(iter(vars(window).values())).shape[1]
        used, room = len(self.pool), self.pool.new_full((b * t, *self.pool.shape[1:]), float("nan"))
        self.pool = torch.cat([self.pool, room])
        self.places = torch.arange(used, used + b * t, device=self.pool.device).flip(0).view(b, t)
        found: Array = launched("verify", self.run(self.rule.snapshots, window, places=self.places))
        return found

    def commit(self, advanced: Array, path: Array) -> None:
        for row, count in enumerate(advanced):
            self.slots[row] = self.places[row, count - 1] if count else self.slots[row]


class Buffered(Decoding):
    """A checkpoint and a ring; windows of up to LONGEST tokens."""

    capacity, longest = CAPACITY, LONGEST
    ring: Any = None

    def verify(self, window: Any, parents: Array | None = None) -> Launch:
        self.ring = self.ring or self.rule.ring(self.pool, window, self.capacity)
        return self.decode(window)

    def decode(self, window: Any) -> Launch:
        return self.run(self.rule.buffered, window, self.ring, window=self.longest)

    def commit(self, advanced: Array, path: Array) -> Launch:
        given, slots = (self.ring.origin, self.ring.held, self.index(advanced)), self.slots
        capacity, longest = self.capacity, self.longest
        return Launch((given, slots), lambda: commit_window(*given, capacity=capacity, window=longest, slots=slots))

    def poison(self) -> None:
        """NaN in the unused entries of the rings too."""
        super().poison()
        if self.ring is None:
            return
        behind = (torch.arange(self.capacity, device=self.pool.device) - self.ring.origin[:, None]) % self.capacity
        free = behind >= self.ring.held[:, None]
        for x in vars(self.ring).values():
            if x.is_floating_point():
                x[free] = float("nan")

    def state(self) -> Array:
        """Flushes copies by hand: the rings are only read, and the cursors are moved."""
        copy, ring = self.pool.clone(), replace(self.ring, origin=self.ring.origin.clone(), held=self.ring.held.clone())
        self.rule.flush(copy, ring, self.params, self.slots)
        commit_flush(ring.origin, ring.held, capacity=self.capacity, rows=len(self.slots), slots=self.slots)
        assert not ring.held[self.slots.long()].any()
        return copy[self.slots.long()].double().cpu().numpy()


class Steps(Buffered):
    """Single tokens, by one of two code paths."""

    capacity = STEPS

    def __init__(self, output_only: bool, rule: Rule, S: Array, params: Any) -> None:
        super().__init__(rule, S, params)
        self.output_only = output_only

    def decode(self, window: Any) -> Launch:
        return self.run(self.rule.step, window, self.ring, output_only=self.output_only)

    def commit(self, advanced: Array, path: Array) -> Launch:
        cursors, slots = (self.ring.origin, self.ring.held), self.slots
        return Launch((cursors, slots), lambda: commit_step(*cursors, capacity=self.capacity, rows=len(slots), slots=slots))


class Committed(Decoding):
    """A window that only reads the state; the commit of all layers, here of one, enters the accepted tokens."""

    def verify(self, window: Any, parents: Array | None = None) -> Launch:
        self.window, self.branching = window, parents is not None
        if parents is None:
            return self.run(ssd_window, window, write_state=False)
        return self.run(ssd_tree_scan, window, ancestors=tree_mask(self.index(parents))[0])

    def commit(self, advanced: Array, path: Array) -> Launch:
        k, w = self.rule.kernels, self.window
        x, dt, A, B, _ = k.ssd_inputs(w, self.params)
        rest: dict[str, Any] = {name: y for name, y in k.ssd_rest(w, self.params).items() if name.startswith("dt")}
        rest["dt_bias"] = None if rest["dt_bias"] is None else rest["dt_bias"][None]
        rest |= {"path": self.index(path)} if self.branching else {"advanced": self.index(advanced)}
        given, rest = tuple(a[None] for a in (self.pool, x, dt, A, B)), {**rest, "slots": self.slots}
        return Launch((given, rest), lambda: ssd_commit(*given, **rest))


class Replay(Decoding):
    """The state before the last window, and the tokens of that window in a cache of two halves."""

    cache: Cache | None = None

    def verify(self, window: Any, parents: Array | None = None) -> Launch:
        if self.cache is None:
            self.cache, self.accepted = self.blank(window), {"advanced": self.index([0] * len(self.slots))}
        self.last, self.branching = window, parents is not None
        tree = {"ancestors": tree_mask(self.index(parents))[0]} if parents is not None else {}
        made = self.run(ssd_replay_scan, window, self.cache, self.accepted["advanced"], **tree, **self.path())
        half, slots = self.cache.half, self.slots

        def both() -> Tensor:
            y: Tensor = made.run()
            commit_halves(half, rows=len(slots), slots=slots)
            return y

        return Launch(made.inputs, both, made.read)

    def commit(self, advanced: Array, path: Array) -> None:
        self.accepted = {"advanced": self.index(advanced)} | ({"path": self.index(path)} if self.branching else {})

    def path(self) -> dict[str, Tensor]:
        return {name: x for name, x in self.accepted.items() if name == "path"}

    def state(self) -> Array:
        """After one more token on copies, before which the accepted tokens are replayed."""
        held, cache = self.pool, self.cache
        assert cache is not None
        try:
            self.pool, copy = held.clone(), Cache(cache.x.clone(), cache.dt.clone(), cache.B.clone(), cache.half.clone())
            first = mapped(lambda a: a[:, :1], self.last)
            self.run(ssd_replay_scan, first, copy, self.accepted["advanced"], **self.path()).run()
            return super().state()
        finally:
            self.pool = held

    def blank(self, window: Any) -> Cache:
        io, slots, device = self.rule.kernels.io, len(self.pool), self.pool.device
        sizes = ((slots, 2 * REPLAYED, *a.shape[2:]) for a in (window.x, window.dt, window.B))
        x, dt, B = (torch.full(size, float("nan"), dtype=io, device=device) for size in sizes)
        return Cache(x, dt, B, torch.arange(slots, device=device).int() % 2)


def subjects(kernels: Any, contract: NumericContract) -> list[Subject]:
    """The kernels with one storage format of the state and of the activations."""
    at_once = replace(contract, order="output_only")
    windows = Limits(sizes={"t": (1, LONGEST)}, reason=f"rings for windows of {LONGEST} tokens")
    cached = Limits(sizes={"t": (1, REPLAYED)}, reason=f"half a cache holds {REPLAYED} tokens")
    made = []
    for name, rule in rules(kernels).items():
        window = replace(at_once, ring=contract.io) if rule.rounds else at_once
        made += [
            Subject(
                f"{name}_snapshots",
                {f"{name}.verify_snapshots": Capability(partial(Snapshots, rule), contract, uncaptured=GROWS)},
            ),
            Subject(
                f"{name}_buffered", {f"{name}.buffered_verify": Capability(Graph(partial(Buffered, rule)), window, windows)}
            ),
        ]
        made += [
            Subject(
                f"{name}_buffered_step{how}",
                {f"{name}.buffered_step": Capability(Graph(partial(Steps, route, rule)), window)},
            )
            for route, how in ((True, ""), (False, ", state"))
        ]
    ssd = rules(kernels)["ssd"]
    replayed = {"ssd_replay_scan": Capability(Graph(partial(Replay, ssd)), at_once, cached)}
    replayed |= {"ssd_commit": Capability(Graph(partial(Committed, ssd)), at_once)}
    return made + [Subject(name, {"ssd.verify_replay": how}) for name, how in replayed.items()]
