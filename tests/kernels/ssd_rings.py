"""Rings for the tests of SSD's buffered kernels, and the oracle beside many windows, or tokens, in a row."""

from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ssmspec_kernels.shared import cursors
from ssmspec_kernels.ssd.ring.ssd_ring import Ring
from ssmspec_ref import error_bounds as eb
from ssmspec_ref import ssd as oracle
from ssmspec_ref.backtrack.replay_buffer import ReplayBuffer
from ssmspec_ref.error_bounds.arithmetic import Approx
from ssmspec_ref.records import concat, each
from ssmspec_ref.shapes import Array
from ssmspec_ref.ssd import SSDParams, SSDWindow
from tests.kernels import plot
from tests.kernels import ssd_plot as ssd
from tests.kernels.laws import moved
from tests.kernels.plot import Call
from tests.kernels.ssd_plot import Options
from tests.kernels.tensors import Kept, check_within, doubles

TOKENS = ("x", "dt", "B", "C")


@dataclass(frozen=True)
class Held(Options):
    """A call of a ring with room for `capacity` entries, of which `held` are history; windows of `window` tokens at most."""

    padding: bool = False
    capacity: int = 9
    held: int = 0
    window: int | None = None


def ring_of(o: Options, capacity: int, seed: int = 0) -> Ring:
    """An empty ring, poison in every entry, each row's origin somewhere else."""
    s, sizes = o.b + o.spare, vars(o) | {"s": o.b + o.spare, "l": capacity}
    origin = torch.from_numpy(np.random.default_rng(seed).integers(0, capacity, s)).int()
    none = torch.zeros(s, dtype=torch.int64 if seed % 2 else torch.int32)
    found: Ring = plot.record("ssd_buffered", "ring", o, sizes, origin=origin, held=none)
    return found


def held(launcher: str, o: Held) -> Call:
    """One call over a history of small numbers."""
    call = ssd.drawn(launcher, o)
    call["ring"] = ring_of(replace(o, poison=0.25), o.capacity)
    call["ring"].held.fill_(o.held)
    return call


def ring_bytes(module: Any, call: Call) -> int:
    o: Any = call.options
    return moved(module.traffic_bytes, call, held=[o.held] * o.b, capacity=o.capacity, window=o.window or o.t)


class Oracle:
    """One row beside the kernel: its checkpoint with what that may be wrong by, and the tokens held since."""

    def __init__(self, o: Options, S: Array, params: SSDParams) -> None:
        self.params, self.contract = params, o.contract(order="output_only")
        self.S, self.error = S, np.zeros_like(S)
        self.history: SSDWindow | None = None

    @property
    def held(self) -> int:
        return 0 if self.history is None else self.history.x.shape[1]

    def read(self, window: SSDWindow) -> tuple[Approx, Approx]:
        """Outputs of the window, and the state behind all of it."""
        run = window if self.history is None else concat(self.history, window)
        y, S = eb.ssd.scan(self.S, run, self.params, self.contract, inexact={"S": self.error})
        return y[:, -window.x.shape[1] :], S

    def flush(self) -> Approx:
        """The checkpoint advanced by what is held."""
        assert self.history is not None
        _, S = eb.ssd.scan(self.S, self.history, self.params, self.contract, inexact={"S": self.error})
        self.S, self.error, self.history = S.value, S.error, None
        return S

    def start_from(self, S: Tensor) -> None:
        """A checkpoint as it was stored: what was rounded there is no error of the next one."""
        self.S, self.error = doubles(S), np.zeros_like(self.S)

    def take(self, window: SSDWindow, advanced: int) -> None:
        """Hold the first `advanced` tokens of a window."""
        if advanced:
            cut = each(lambda a: a[:, :advanced], window)
            self.history = cut if self.history is None else concat(self.history, cut)


def window_case(first: Call, n: int, **changes: Any) -> Call:
    """The n-th window over the same pool and with the same parameters."""
    o: Any = replace(first.options, **changes)
    case = ssd.drawn(first.launcher, replace(o, seed=o.seed + 100 * n))
    shared = {name: first[name] for name in ("S", "slots", "A", "D", "dt_bias") if name in first.given}
    return replace(case, options=o, given=case.given | shared, rows=first.rows)


def row(case: Call, i: int, length: int) -> SSDWindow:
    """The first tokens of the i-th live row of a case."""
    return each(lambda a: a[i : i + 1, :length], ssd.window(case))


class Appended:
    """The entries of a ring before a call that may write `lengths[b]` of them behind the history of each row."""

    def __init__(self, case: Call, ring: Ring, lengths: Any) -> None:
        self.kept, self.owned = Kept(**{name: getattr(ring, name) for name in ("x", "dt", "B", "origin", "held")}), []
        for slot, length in zip(case["slots"].tolist(), lengths, strict=True):
            at = [int(ring.origin[slot] + ring.held[slot] + i) % ring.capacity for i in range(int(length))]
            self.owned += [(name, (slot, at)) for name in ("x", "dt", "B") if slot >= 0 and at]

    def check(self) -> None:
        """Assert that no other entry has changed, no gap, and no cursor."""
        self.kept.check_all_but(self.owned)


def advanced(rng: np.random.Generator, n: int, t: int, rows: int) -> tuple[Any, Any]:
    """Lengths, shorter or 0 in every third window, and how many tokens are accepted: all in the second."""
    lengths = rng.integers(0, t + 1, rows) if n % 3 == 2 else np.full(rows, t)
    return lengths, lengths if n == 1 else rng.integers(np.minimum(1, lengths), lengths + 1)


def check_run(module: ModuleType, o: Options, capacity: int, windows: int = 6, step: bool = False, **how: Any) -> None:
    """Outputs, checkpoints and cursors beside the oracle, window after window; all else of pool and ring as it was.

    `step`: standard decode, a token at a time, which a full ring folds into the checkpoint; rows skip one now and then.
    """
    rng, first = np.random.default_rng(o.seed), ssd.drawn("ssd_buffered_step" if step else "ssd_buffered", o)
    ring, start, weights = ring_of(o, capacity, o.seed), first.state(), ssd.params(first)
    oracles, rule = [Oracle(o, start[i : i + 1], weights) for i in range(len(first.rows))], ReplayBuffer(capacity, o.t)
    for n in range(windows):
        case = window_case(first, n)
        S, slots, out = case["S"], case["slots"], case["out"]
        lengths = took = np.array([int((n + r) % 3 != 2) for r in range(o.b)])
        if not step:
            lengths, took = advanced(rng, n, o.t, o.b)
        for b, length in enumerate(lengths):
            for name in TOKENS:
                case[name][b, length:] = float("nan")
        said: dict[str, Any] = {"lengths": torch.from_numpy(lengths), "slots": slots}
        kept, before = Kept(lengths=said["lengths"], **case.tensors), S.clone()
        appended = Appended(case, ring, lengths * (ring.held[slots.long()].numpy() + 1 < capacity) if step else lengths)
        case.run(module, ring=ring, lengths=said["lengths"], **how)
        appended.check()
        kept.check(S=case.named, out=case.rows)
        if step:
            cursors.commit_step(ring.origin, ring.held, capacity=capacity, rows=o.b, **said)
        else:
            accepted = torch.from_numpy(took)
            cursors.commit_window(ring.origin, ring.held, accepted, capacity=capacity, window=o.t, **said)
        for i, (beside, b) in enumerate(zip(oracles, case.rows, strict=True)):
            length, slot = int(lengths[b]), int(slots[b])
            assert not out[b, length:].any()
            full = beside.held + 1 == capacity if step else bool(rule.due(np.array(beside.held))) and beside.held > 0
            if length:
                window = row(case, i, length)
                check_within(doubles(out[b : b + 1, :length]), beside.read(window)[0])
                if step:
                    beside.take(window, 1)
            if full and length:
                check_within(doubles(S[slot][None]), beside.flush())
                if step or o.state != "fp32":
                    beside.start_from(S[slot][None])
            else:
                assert torch.equal(before[slot], S[slot])
            if length and not step:
                beside.take(window, int(took[b]))
            assert int(ring.held[slot]) == beside.held <= capacity - (0 if step else o.t)


def check_exact(module: ModuleType, launcher: str, o: Options, capacity: int, t: int, **how: Any) -> None:
    """Tokens of one exact window, t at a time, all accepted: outputs and checkpoint with ==."""
    call, ring = ssd.drawn(launcher, o), ring_of(o, capacity)
    S, window, params = call.state(), ssd.window(call), ssd.params(call)
    y, states = oracle.states(S, window, params)
    for start in range(0, o.t, t):
        call.run(module, ring=ring, **call.cut(slice(start, start + t)), **how)
        said: dict[str, Any] = {"capacity": capacity, "slots": call["slots"]}
        if launcher == "ssd_buffered_step":
            cursors.commit_step(ring.origin, ring.held, rows=o.b, **said)
        else:
            cursors.commit_window(ring.origin, ring.held, torch.full((o.b,), t), window=t, **said)
    assert torch.equal(call["out"], torch.from_numpy(y).to(call["out"].dtype))
    folded = o.t - int(ring.held[call["slots"][0]])
    assert np.array_equal(call.state(), states[:, folded - 1])


def strong(launcher: str, o: Options, capacity: int, held: int) -> tuple[Call, Ring, Array]:
    """A case whose rings hold tokens, the newest of weak decay, all others down to e^-500; and its checkpoints behind the
    tokens that are held, in float64: differences of running sums lose the weights of the newest."""
    call = ssd.drawn(launcher, replace(o, D="", bias=False, softplus=False, padding=False))
    ring, rng, s = ring_of(o, capacity, o.seed), np.random.default_rng(o.seed), o.b + o.spare
    call["A"].copy_(torch.from_numpy(-(8 + 8 * rng.random(o.h))))
    for steps in (call["dt"], ring.dt):
        steps.copy_(torch.from_numpy(1 + 30 * rng.random(steps.shape)))
    for drawn in (ring.x, ring.B):
        drawn.copy_(torch.from_numpy(rng.normal(size=drawn.shape)))
    ring.held.fill_(held)
    slot, at = np.arange(s)[:, None], (ring.origin.numpy()[:, None] + np.arange(held)) % capacity
    ring.dt[torch.from_numpy(slot[:, 0]), torch.from_numpy(at[:, -1])] /= 32
    step, x, B = (doubles(a)[slot, at] for a in (ring.dt, ring.x, ring.B))
    ld = step * doubles(call["A"])
    behind = np.cumsum(ld[:, ::-1], axis=1)[:, ::-1] - ld
    S = np.exp(ld.sum(axis=1))[..., None, None] * doubles(call["S"])
    S += np.einsum("slh,slhp,slhn->shpn", np.exp(behind) * step, x, B.repeat(o.h // o.g, axis=2))
    return call, ring, S[call["slots"].numpy()]


def assert_close_to(S: Tensor, expected: Array) -> None:
    """The largest error of a state, 2^-20 of its largest element at most: no exponent of hundreds has lost bits."""
    apart, scale = abs(doubles(S) - expected).max(), abs(expected).max()
    assert apart <= 2.0**-20 * scale, f"wrong by {apart / scale:.1e} of the largest element"
