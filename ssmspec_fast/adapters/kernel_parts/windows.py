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
from ssmspec_fast.operations.triton_recurrences import new_record
from ssmspec_kernels.attention.tree_mask import tree_mask
from ssmspec_kernels.conv.conv_taps import WIDEST
from ssmspec_kernels.delta.delta_scan import delta_scan
from ssmspec_kernels.delta.delta_snapshots import delta_snapshots
from ssmspec_kernels.delta.delta_tree import delta_tree
from ssmspec_kernels.delta.ring.delta_buffered import delta_buffered
from ssmspec_kernels.delta.ring.delta_buffered_step import delta_buffered_step
from ssmspec_kernels.delta.ring.delta_flush import delta_flush
from ssmspec_kernels.kda.kda_commit import kda_commit
from ssmspec_kernels.kda.kda_scan import kda_scan
from ssmspec_kernels.kda.kda_snapshots import kda_snapshots
from ssmspec_kernels.kda.kda_tree import kda_tree
from ssmspec_kernels.mamba3.mamba3_buffered import mamba3_buffered
from ssmspec_kernels.mamba3.mamba3_commit import mamba3_commit
from ssmspec_kernels.mamba3.mamba3_flush import mamba3_flush
from ssmspec_kernels.mamba3.mamba3_scan import mamba3_scan
from ssmspec_kernels.mamba3.mamba3_snapshots import mamba3_snapshots
from ssmspec_kernels.mamba3.mamba3_tree import LARGEST, mamba3_tree
from ssmspec_kernels.row import row_of, takes
from ssmspec_kernels.shared.cursors import commit_flush, commit_step, commit_window
from ssmspec_kernels.shared.double_buffer import commit_halves
from ssmspec_kernels.shortconv.shortconv_buffered import shortconv_buffered
from ssmspec_kernels.shortconv.shortconv_commit import shortconv_commit
from ssmspec_kernels.shortconv.shortconv_flush import shortconv_flush
from ssmspec_kernels.shortconv.shortconv_scan import shortconv_scan
from ssmspec_kernels.shortconv.shortconv_snapshots import shortconv_snapshots
from ssmspec_kernels.shortconv.shortconv_tree import shortconv_tree
from ssmspec_kernels.ssd.replay.ssd_replay_scan import Cache, ssd_replay_scan
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

ANY = Limits()
LONGEST, CAPACITY = 8, 20
"""Tokens of a window of the rings, and entries of a ring: it holds two windows of four, and a third makes a row due."""
STEPS = 5
"""Entries of the rings of single tokens."""
REPLAYED = 64
"""Tokens of half a cache."""
OF = {"kda": "delta"}
"""Kinds whose operations have another name."""
Launcher = Callable[..., Any]
GROWS = "this adapter takes new slots for the states of every window, so that its pool grows"


@dataclass(frozen=True)
class Rule:
    """A recurrence by its launchers; `kernels` is `adapters.kernels.Kernels`.

    Without a launcher for single tokens they are the shortest windows. `u` is the entry of a ring that is computed: the input
    whose shape it has, and its type (None: that of activations).
    """

    kernels: Any
    name: str
    scan: Launcher
    tree: Launcher
    snapshots: Launcher
    commit: Any = None
    buffered: Any = None
    flush: Any = None
    step: Any = None
    u: tuple[str, torch.dtype | None] | None = None

    def room(self, pool: Tensor, window: Any, entries: int) -> dict[str, Tensor]:
        """NaN for this many tokens of every slot."""
        arrays = {name: a for name, a in vars(window).items() if a is not None}
        made = {
            name: torch.full((len(pool), entries, *a.shape[2:]), float("nan"), dtype=self.kernels.io, device=pool.device)
            for name, a in arrays.items()
        }
        return made | ({"u": made[self.u[0]].to(self.u[1] or self.kernels.io)} if self.u else {})

    def ring(self, pool: Tensor, window: Any, capacity: int) -> Any:
        """An empty ring, NaN in every entry, with a different origin for each row."""
        numbers = torch.arange(len(pool), device=pool.device, dtype=torch.int32)
        given = {"origin": (numbers * 3) % capacity, "held": torch.zeros_like(numbers)}
        return new_record(self.buffered, "ring", self.room(pool, window, capacity) | given)


def rules(kernels: Any) -> Registry[Rule]:
    """The recurrences that have kernels for windows. A window that is committed afterwards is read by `scan` or `tree`."""
    k, exact = kernels, torch.float32
    return Registry(
        "recurrence with kernels for windows",
        Rule(
            k, "ssd", ssd_window, ssd_tree_scan, ssd_snapshots, ssd_commit, ssd_buffered, ssd_flush, ssd_buffered_step,
        ),
        Rule(
            k, "delta", delta_scan, delta_tree, delta_snapshots, None, delta_buffered, delta_flush, delta_buffered_step,
            ("v", None),
        ),
        Rule(k, "kda", kda_scan, kda_tree, kda_snapshots, kda_commit),
        Rule(
            k, "shortconv", shortconv_scan, shortconv_tree, shortconv_snapshots, shortconv_commit, shortconv_buffered,
            shortconv_flush, u=("x", exact),
        ),
        Rule(
            k, "mamba3", mamba3_scan, mamba3_tree, mamba3_snapshots, mamba3_commit, mamba3_buffered, mamba3_flush,
        ),
    )  # fmt: skip


class Decoding:
    """The rows of a batch, their pool, and the tokens of one window."""

    def __init__(self, rule: Rule, S: Array, params: Any) -> None:
        self.rule, self.params = rule, params
        self.pool, self.slots = rule.kernels.held(S)

    def run(self, kernel: Launcher, tokens: Any, **more: Any) -> Launch:
        """A kernel over some tokens."""
        pool, given = self.pool, self.rule.kernels.arguments(kernel, tokens, self.params, **more) | {"slots": self.slots}
        return Launch((pool, given), lambda: kernel(pool, **given), lambda y: y.double().cpu().numpy())

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
        return self.run(self.rule.buffered, window, ring=self.ring, window=self.longest)

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
        given = self.rule.kernels.arguments(self.rule.flush, self.params, ring=ring, rows=len(self.slots))
        self.rule.flush(copy, **given, slots=self.slots)
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
        return self.run(self.rule.step, window, ring=self.ring, output_only=self.output_only)

    def commit(self, advanced: Array, path: Array) -> Launch:
        cursors, slots = (self.ring.origin, self.ring.held), self.slots
        return Launch((cursors, slots), lambda: commit_step(*cursors, capacity=self.capacity, rows=len(slots), slots=slots))


class Singles(Buffered):
    """Single tokens, as the shortest windows of a ring."""

    capacity, longest = STEPS, 1


class Committed(Decoding):
    """A window that only reads the state; the commit of all layers, here of one, enters the accepted tokens."""

    def verify(self, window: Any, parents: Array | None = None) -> Launch:
        self.window, self.branching, rule = window, parents is not None, self.rule
        if parents is None:
            return self.run(rule.scan, window, write_state=False)
        nodes = self.index(parents)
        seen = {"ancestors": tree_mask(nodes)[0]} if "ancestors" in takes(rule.tree) else {"parents": nodes}
        return self.run(rule.tree, window, **seen)

    def commit(self, advanced: Array, path: Array) -> Launch:
        commit = self.rule.commit
        taking = {"path": self.index(path)} if self.branching else {"advanced": self.index(advanced)}
        given = self.rule.kernels.arguments(commit, self.window, self.params, **taking) | {"S": self.pool}
        layered = [entry.name for entry in row_of(commit) if entry.argument.axes.startswith("i ")]
        given |= {name: given[name][None] for name in layered if given.get(name) is not None}
        given["slots"] = self.slots
        return Launch(given, lambda: commit(**given))


class Replay(Decoding):
    """The state before the last window, and the tokens of that window in a cache of two halves."""

    cache: Cache | None = None

    def verify(self, window: Any, parents: Array | None = None) -> Launch:
        if self.cache is None:
            self.cache, self.accepted = self.blank(window), {"advanced": self.index([0] * len(self.slots))}
        self.last, self.branching = window, parents is not None
        tree = {"ancestors": tree_mask(self.index(parents))[0]} if parents is not None else {}
        made = self.run(ssd_replay_scan, window, cache=self.cache, **tree, **self.accepted)
        half, slots = self.cache.half, self.slots

        def both() -> Tensor:
            y: Tensor = made.run()
            commit_halves(half, rows=len(slots), slots=slots)
            return y

        return Launch(made.inputs, both, made.read)

    def commit(self, advanced: Array, path: Array) -> None:
        self.accepted = {"advanced": self.index(advanced)} | ({"path": self.index(path)} if self.branching else {})

    def state(self) -> Array:
        """After one more token on copies, before which the accepted tokens are replayed."""
        held, cache = self.pool, self.cache
        assert cache is not None
        try:
            self.pool, copy = held.clone(), Cache(cache.x.clone(), cache.dt.clone(), cache.B.clone(), cache.half.clone())
            first = mapped(lambda a: a[:, :1], self.last)
            self.run(ssd_replay_scan, first, cache=copy, **self.accepted).run()
            return super().state()
        finally:
            self.pool = held

    def blank(self, window: Any) -> Any:
        half = torch.arange(len(self.pool), device=self.pool.device).int() % 2
        return new_record(ssd_replay_scan, "cache", self.rule.room(self.pool, window, 2 * REPLAYED) | {"half": half})


def by_channel(capability: Capability) -> Capability:
    """The same with a decay per key channel only."""
    given, why = capability.limits, "Kimi Delta Attention decays by key channel"
    reason = f"{why}; {given.reason}" if given.options or given.sizes else why
    return replace(capability, limits=replace(given, options={**given.options, "gate": ("channel",)}, reason=reason))


def subjects(kernels: Any, contract: NumericContract) -> dict[str, list[Subject]]:
    """The kernels with one storage format of the state and of the activations, by kind."""
    at_once, known = replace(contract, order="output_only"), rules(kernels)
    longest = Limits(sizes={"t": (1, LONGEST)}, reason=f"rings for windows of {LONGEST} tokens")
    cached = Limits(sizes={"t": (1, REPLAYED)}, reason=f"half a cache holds {REPLAYED} tokens")
    columns = Limits(sizes={"q": (1, WIDEST - 1)}, reason="what one launch takes")

    def tokens(count: int, limits: Limits = ANY) -> Limits:
        return Limits(sizes={**limits.sizes, "t": (1, count)}, reason="what one launch takes")

    def kept(name: str, limits: Limits = ANY) -> Subject:
        run = Capability(partial(Snapshots, known[name]), contract, limits, uncaptured=GROWS)
        return Subject(f"{name}_snapshots", {f"{OF.get(name, name)}.verify_snapshots": run})

    def replayed(name: str, title: str, run: Any = Committed, limits: Limits = ANY) -> Subject:
        how = Capability(Graph(partial(run, known[name])), at_once, limits)
        return Subject(title, {f"{OF.get(name, name)}.verify_replay": how})

    def buffered(name: str, how: NumericContract, window: Limits, single: Limits | None = None) -> Subject:
        runs = {f"{name}.buffered_verify": Capability(Graph(partial(Buffered, known[name])), how, window)}
        if single is not None:
            runs[f"{name}.buffered_step"] = Capability(Graph(partial(Singles, known[name])), how, single)
        return Subject(f"{name}_buffered", runs)

    def stepped(name: str, how: NumericContract, route: bool, title: str) -> Subject:
        run = Capability(Graph(partial(Steps, route, known[name])), how)
        return Subject(f"{name}_buffered_step{title}", {f"{name}.buffered_step": run})

    made: dict[str, list[Subject]] = {}
    for name, how in (("ssd", at_once), ("delta", replace(at_once, ring=contract.io))):
        steps = [stepped(name, how, route, title) for route, title in ((True, ""), (False, ", state"))]
        made[name] = [kept(name), buffered(name, how, longest), *steps]
    made["replay"] = [replayed("ssd", "ssd_replay_scan", Replay, cached), replayed("ssd", "ssd_commit")]
    made["kda"] = [
        replace(subject, capabilities={name: by_channel(run) for name, run in subject.capabilities.items()})
        for subject in (kept("kda"), replayed("kda", "kda_commit"))
    ]
    made["shortconv"] = [
        kept("shortconv", columns),
        replayed("shortconv", "shortconv_commit", limits=columns),
        buffered("shortconv", at_once, tokens(LONGEST, columns), columns),
    ]
    none = Limits(reason="what one launch takes")
    made["mamba3"] = [
        kept("mamba3"),
        replayed("mamba3", "mamba3_commit", limits=tokens(LARGEST)),
        buffered("mamba3", contract, tokens(LONGEST), none),
    ]
    return made
