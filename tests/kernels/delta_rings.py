"""Rings for the tests of the delta rule's buffered kernels, and the oracle beside many windows in a row."""

from collections.abc import Callable
from dataclasses import replace
from inspect import signature
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from conformance.interpreter.memory import watch
from ssmspec_kernels.delta.ring.delta_ring import Ring
from ssmspec_kernels.shared import cursors
from ssmspec_ref import error_bounds as eb
from ssmspec_ref.backtrack.replay_buffer import ReplayBuffer
from ssmspec_ref.delta import DeltaWindow
from ssmspec_ref.error_bounds.arithmetic import Approx
from ssmspec_ref.records import concat, each
from ssmspec_ref.shapes import Array
from tests.kernels import delta_cases as cases
from tests.kernels.delta_cases import Case
from tests.kernels.delta_plot import Options
from tests.kernels.tensors import DTYPES, assert_one_product, doubles, room


def ring_of(o: Options, capacity: int, u: torch.dtype, seed: int = 0) -> Ring:
    """An empty ring, poison in every entry, each row's origin somewhere else."""
    rng, s = np.random.default_rng(seed), o.b + o.spare
    shapes = (s, capacity, o.h, o.v), (s, capacity, o.g, o.k), (s, capacity, o.h, *((o.k,) if o.channel else ()))
    types = u, DTYPES[o.io], torch.float32
    u_l, k_l, g_l = (cases.strided(np.full(a, o.poison), t, o.poison) for a, t in zip(shapes, types, strict=True))
    return Ring(u_l, k_l, g_l, torch.from_numpy(rng.integers(0, capacity, s)).int(), torch.zeros(s, dtype=torch.int32))


def tensors(ring: Ring) -> dict[str, Tensor]:
    return {"ring.u": ring.u, "ring.k": ring.k, "ring.g": ring.g, "origin": ring.origin, "held": ring.held}


def sizes_of(module: ModuleType, case: Case, **more: int) -> dict[str, Any]:
    """What a formula of bytes is told of a case beside its axes."""
    sizes = {"state": case.S.element_size(), "io": case.q.element_size(), "channel": case.options.channel, **more}
    return {name: size for name, size in sizes.items() if name in signature(module.traffic_bytes).parameters}


def check_moved(case: Case, ring: Ring, run: Callable[[], object], expected: int, reads: int, writes: int) -> None:
    """The bytes of a formula cross the bus, but for cursors; the states are asked for and stored so often, and no access is
    astray."""
    with watch(**case.tensors, **tensors(ring), slots=case.slots) as seen:
        run()
    left_out = sum(seen.loaded(name).distinct + seen.stored(name).distinct for name in ("slots", "origin", "held"))
    assert seen.distinct_bytes() - left_out == expected
    states = case.S[: case.options.b].numel() * case.S.element_size()
    assert seen.loaded("S").requested == reads * states
    assert seen.stored("S").requested == writes * states
    assert seen.outside == seen.races == []


class Oracle:
    """One row beside the kernel: its checkpoint with what that may be wrong by, and the tokens held since."""

    def __init__(self, o: Options, S: Array, **contract: Any) -> None:
        self.o, self.contract = o, o.contract(order="output_only", **contract)
        self.S, self.error = S, np.zeros_like(S)
        self.history: tuple[DeltaWindow, dict[str, Array]] | None = None

    @property
    def held(self) -> int:
        return 0 if self.history is None else self.history[0].v.shape[1]

    def behind(self, window: DeltaWindow, inexact: dict[str, Array]) -> tuple[DeltaWindow, dict[str, Array]]:
        if self.history is None:
            return window, inexact
        joined = {name: np.concatenate([self.history[1][name], error], axis=1) for name, error in inexact.items()}
        return concat(self.history[0], window), joined

    def read(self, window: DeltaWindow, inexact: dict[str, Array]) -> tuple[Approx, Approx]:
        """Outputs of the window, and the state behind all of it."""
        tokens = window.v.shape[1]
        run, errors = self.behind(window, inexact)
        y, S = eb.delta.scan(self.S, run, self.o.params(), self.contract, inexact={**errors, "S": self.error})
        return y[:, -tokens:], S

    def flush(self) -> None:
        """The checkpoint advanced by what is held."""
        assert self.history is not None
        window, errors = self.history
        _, S = eb.delta.scan(self.S, window, self.o.params(), self.contract, inexact={**errors, "S": self.error})
        self.S, self.error, self.history = S.value, S.error, None

    def take(self, window: DeltaWindow, inexact: dict[str, Array], advanced: int) -> None:
        """Hold the first `advanced` tokens of a window."""
        if advanced:
            cut = each(lambda a: a[:, :advanced], window)
            self.history = self.behind(cut, {name: error[:, :advanced] for name, error in inexact.items()})


def strong(o: Options, capacity: int, held: int, u: str) -> tuple[tuple[Case, Case], Ring, Ring]:
    """Rings of decays that leave nothing of what came before, the same rings with only the newest token's, a pool for each.

    `assert_one_product` says how far what both write may lie apart.
    """
    first, second = (cases.draw(o, padding=False) for _ in range(2))
    pair = ring_of(replace(o, poison=0.0), capacity, DTYPES[u]), ring_of(replace(o, poison=0.0), capacity, DTYPES[u])
    rng = np.random.default_rng(o.seed)
    for name, drawn in (("u", rng.normal), ("k", rng.normal), ("g", lambda size: -rng.uniform(200.0, 900.0, size))):
        x = torch.from_numpy(drawn(size=getattr(pair[0], name).shape))
        for ring in pair:
            getattr(ring, name).copy_(x)
    whole, alone = pair
    for ring in pair:
        ring.held.fill_(held)
    for slot, start in enumerate(whole.origin.tolist()):
        before = [(start + l) % capacity for l in range(held - 1)]
        alone.u[slot, before], alone.g[slot, before] = 0, 0
    return (first, second), whole, alone


def rows_apart(S: Tensor) -> Tensor:
    """The state with row 16 beyond 2^31 elements, in room that begins 2^31 elements before it, so that a place
    taken modulo 2^32 is another one of it. Few pages are touched."""
    stride = 2**27 + 64
    apart = room(S, 2**31 + (S.shape[2] - 1) * stride + S.shape[3]).as_strided(S.shape, (0, 0, stride, 1), 2**31)
    return apart.copy_(S)


def check_far_rows(launch: Callable[..., object], t: int, capacity: int, **options: Any) -> None:
    """16 rows of the state are read at a time; the next 16 lie beyond 2^31 elements."""
    o = Options(b=1, t=t, g=1, h=1, k=32, v=16, io="bf16", state="bf16", spare=0)
    (near, _), ring, _ = strong(o, capacity, 2, "fp32")
    (case, _), other, _ = strong(o, capacity, 2, "fp32")
    for kept_g in ring.g, other.g:
        kept_g.fill_(-0.1)
    before, case.S = near.S.clone(), rows_apart(near.S)
    near.call(launch, ring=ring, rows=16, **options)
    case.call(launch, ring=other, rows=16, **options)
    assert torch.equal(case.out, near.out)
    assert torch.equal(case.S, near.S)
    assert not torch.equal(before, near.S)


def advanced(o: Options, rng: np.random.Generator, n: int, step: bool) -> tuple[Tensor, Tensor]:
    """Lengths, shorter or 0 in every third window, and how many tokens are accepted: all in the second, and every step."""
    if step:
        each_one = torch.tensor([int((n + r) % 3 != 2) for r in range(o.b)], dtype=torch.int32)
        return each_one, each_one
    lengths = rng.integers(0, o.t + 1, o.b) if n % 3 == 2 else np.full(o.b, o.t)
    took = lengths if n == 1 else rng.integers(np.minimum(1, lengths), lengths + 1)
    return torch.from_numpy(lengths), torch.from_numpy(took)


def check_windows(
    launch: Any, o: Options, capacity: int, u: str, windows: int = 6, step: bool = False, **changes: Any
) -> None:
    """Outputs, checkpoints and cursors beside the oracle, window after window; all else of pool and ring as it was.

    A window flushes what was held before it, a `step` of standard decode a ring that it fills.
    """
    rng, first, ring = np.random.default_rng(o.seed), cases.draw(o), ring_of(o, capacity, DTYPES[u])
    oracles = [Oracle(o, first.state()[i : i + 1], ring=u) for i in range(len(first.rows))]
    dead = untouchables(first, ring)
    for n in range(windows):
        case, (lengths, took) = window_case(first, o, n), advanced(o, rng, n, step)
        absent(case, lengths)
        before, blank, rest, behind = case.S.clone(), case.out.clone(), kept(ring), ring.origin + ring.held
        case.call(launch, ring=ring, lengths=lengths, **changes)
        rule: dict[str, Any] = {"capacity": capacity, "slots": case.slots, "lengths": lengths}
        if step:
            cursors.commit_step(ring.origin, ring.held, rows=o.b, **rule)
        else:
            cursors.commit_window(ring.origin, ring.held, took, window=o.t, **rule)
        for oracle, row, i in zip(oracles, case.rows, range(o.b), strict=False):
            length, slot, had = int(lengths[row]), int(case.slots[row]), oracle.held
            assert not case.out[row, length:].any()
            assert length or all(cases.untouched(x[slot], y[slot]) for x, y in zip(rest, kept(ring), strict=True))
            due = length > 0 and (had + 1 == capacity if step else bool(ReplayBuffer(capacity, o.t).due(np.array(had))))
            if length:
                places = (int(behind[slot]) + torch.arange(length)) % capacity
                assert (step and due) or torch.equal(ring.k[slot, places], case.k[row, :length])
                window = row_of(case, i, length)
                cases.assert_within(f"o {n} {row}", case.out[row : row + 1, :length], oracle.read(*window)[0])
                if step:
                    oracle.take(*window, 1)
            if due and oracle.held:
                oracle.flush()
                cases.assert_within(f"S {n} {row}", case.S[slot][None], Approx(oracle.S, oracle.error, oracle.contract))
                if step:
                    oracle.S, oracle.error = doubles(case.S[slot][None]), np.zeros_like(oracle.S)
            else:
                assert (due and not oracle.held) or cases.untouched(before[slot], case.S[slot])
            if length and not step:
                oracle.take(*window, int(took[row]))
            assert int(ring.held[slot]) == oracle.held <= capacity - (1 if step else o.t)
        padding = [r for r in range(o.b) if r not in case.rows]
        assert cases.untouched(case.out[padding], blank[padding])
    assert_untouched(dead, first, ring)


def check_last(o: Options, capacity: int, held: int, flush: Callable[[Case, Ring], Any]) -> None:
    """The state that a ring is folded into, where nothing outlasts the newest entry, is what that one writes alone."""
    (case, other), whole, alone = strong(o, capacity, held, "fp32")
    flush(case, whole)
    flush(other, alone)
    assert_one_product(case.S[case.named], other.S[case.named])


def row_of(case: Case, i: int, length: int) -> tuple[DeltaWindow, dict[str, Array]]:
    """The first tokens of the i-th live row of a case."""
    window, inexact = case.window()
    return each(lambda a: a[i : i + 1, :length], window), {name: x[i : i + 1, :length] for name, x in inexact.items()}


def window_case(first: Case, o: Options, n: int) -> Case:
    """The n-th window over the same pool."""
    case = cases.draw(replace(o, seed=o.seed + 100 * n))
    case.S, case.slots, case.extra = first.S, first.slots, first.extra
    return case


def absent(case: Case, lengths: Tensor) -> None:
    """NaN in the tokens behind the row's length, which nothing may read."""
    behind = torch.arange(case.options.t) >= lengths[:, None]
    for x in (case.q, case.k, case.v, case.g, case.beta):
        x[behind] = float("nan")


def kept(ring: Ring) -> tuple[torch.Tensor, ...]:
    return ring.u.clone(), ring.k.clone(), ring.g.clone()


def untouchables(case: Case, ring: Ring) -> list[torch.Tensor]:
    """Copies of the pool and of the rings, the rows' own slots zeroed."""
    copies = []
    for x in (case.S, ring.u, ring.k, ring.g):
        whole, kept = cases.whole(x), cases.whole(x).clone()
        x[case.slots[case.slots >= 0].long()] = 0
        copies.append(cases.whole(x).clone())
        whole.copy_(kept)
    return [*copies, ring.origin.clone(), ring.held.clone()]


def assert_untouched(before: list[torch.Tensor], case: Case, ring: Ring) -> None:
    for old, new in zip(before[:4], untouchables(case, ring)[:4], strict=True):
        assert cases.untouched(old, new), "another slot, or a gap, was written"
    others = [s for s in range(len(case.S)) if s not in case.slots.tolist()]
    for old, x in zip(before[4:], (ring.origin, ring.held), strict=True):
        assert torch.equal(old[others], x[others])
