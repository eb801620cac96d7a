"""Rings for the tests of SSD's buffered kernels, and the oracle beside many windows in a row."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ssmspec_kernels.ssd.ring.ssd_ring import Ring
from ssmspec_ref import error_bounds as eb
from ssmspec_ref.error_bounds.arithmetic import Approx
from ssmspec_ref.records import concat, each
from ssmspec_ref.shapes import Array
from ssmspec_ref.ssd import SSDParams, SSDWindow
from tests.kernels import ssd_cases as cases
from tests.kernels.ssd_cases import Case, Options


def ring_of(o: Options, capacity: int, seed: int = 0) -> Ring:
    """An empty ring, poison in every entry, each row's origin somewhere else."""
    rng, s = np.random.default_rng(seed), o.b + o.spare
    shapes = (s, capacity, o.h, o.p), (s, capacity, o.h), (s, capacity, o.g, o.n)
    types = cases.DTYPES[o.io], torch.float32, cases.DTYPES[o.io]
    x, dt, B = (cases.strided(np.full(a, o.poison), t, o.poison) for a, t in zip(shapes, types, strict=True))
    origin = torch.from_numpy(rng.integers(0, capacity, s)).int()
    return Ring(x, dt, B, origin, torch.zeros(s, dtype=torch.int64 if seed % 2 else torch.int32))


def tensors(ring: Ring) -> dict[str, Tensor]:
    return {"ring.x": ring.x, "ring.dt": ring.dt, "ring.B": ring.B, "origin": ring.origin, "held": ring.held}


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
        self.S, self.error = cases.doubles(S), np.zeros_like(self.S)

    def take(self, window: SSDWindow, advanced: int) -> None:
        """Hold the first `advanced` tokens of a window."""
        if advanced:
            cut = each(lambda a: a[:, :advanced], window)
            self.history = cut if self.history is None else concat(self.history, cut)


def window_case(first: Case, o: Options, n: int) -> Case:
    """The n-th window over the same pool and with the same parameters."""
    case = cases.draw(replace(o, seed=o.seed + 100 * n))
    z = {"z": case.extra["z"]} if o.z else {}
    case.S, case.slots, case.A, case.extra = first.S, first.slots, first.A, {**first.extra, **z}
    return case


def row(case: Case, i: int, length: int) -> SSDWindow:
    """The first tokens of the i-th live row of a case."""
    return each(lambda a: a[i : i + 1, :length], case.window())


def others(case: Case, ring: Ring) -> dict[str, Any]:
    """Copies of the pool and of the rings with the rows' own slots zeroed, and of the cursors of other slots."""
    copies: dict[str, Any] = {}
    own = case.slots[case.slots >= 0].long()
    for name, x in {"S": case.S, **tensors(ring)}.items():
        storage, kept = cases.whole(x), cases.whole(x).clone()
        x[own] = 0
        copies[name] = storage.clone()
        storage.copy_(kept)
    return copies


def assert_others_as_before(before: dict[str, Any], case: Case, ring: Ring) -> None:
    for name, x in others(case, ring).items():
        assert cases.untouched(before[name], x), f"{name}: another slot, or a gap, was written"


class Appended:
    """The entries of a ring before a call that may write `lengths[b]` of them behind the history of each row."""

    def __init__(self, case: Case, ring: Ring, lengths: Tensor) -> None:
        self.ring, self.before = ring, {name: tensors(ring)[name].clone() for name in ("ring.x", "ring.dt", "ring.B")}
        self.free = torch.ones(ring.x.shape[:2], dtype=torch.bool)
        for slot, length in zip(case.slots.tolist(), lengths.tolist(), strict=True):
            if slot >= 0:
                self.free[slot, [int(ring.origin[slot] + ring.held[slot] + i) % ring.capacity for i in range(length)]] = False

    def check(self) -> None:
        """Assert that no other entry has changed."""
        for name, x in self.before.items():
            assert cases.untouched(x[self.free], tensors(self.ring)[name][self.free]), f"{name}: an entry that is not new"


def strong(o: Options, capacity: int, held: int) -> tuple[Case, Ring, Array]:
    """A case whose rings hold tokens, the newest of weak decay, all others down to e^-500; and its checkpoints behind the
    tokens that are held, in float64: differences of running sums lose the weights of the newest."""
    case, ring = cases.draw(replace(o, D="", bias=False, softplus=False), padding=False), ring_of(o, capacity, o.seed)
    rng, s = np.random.default_rng(o.seed), o.b + o.spare
    case.A.copy_(torch.from_numpy(-(8 + 8 * rng.random(o.h))))
    case.dt.copy_(torch.from_numpy(1 + 30 * rng.random(case.dt.shape)))
    ring.dt.copy_(torch.from_numpy(1 + 30 * rng.random(ring.dt.shape)))
    for drawn in (ring.x, ring.B):
        drawn.copy_(torch.from_numpy(rng.normal(size=drawn.shape)))
    ring.held.fill_(held)
    row, at = np.arange(s)[:, None], (ring.origin.numpy()[:, None] + np.arange(held)) % capacity
    ring.dt[torch.from_numpy(row[:, 0]), torch.from_numpy(at[:, -1])] /= 32
    step, x, B = (cases.doubles(a)[row, at] for a in (ring.dt, ring.x, ring.B))
    ld = step * cases.doubles(case.A)
    behind = np.cumsum(ld[:, ::-1], axis=1)[:, ::-1] - ld
    weight = np.exp(behind) * step
    S = np.exp(ld.sum(axis=1))[..., None, None] * cases.doubles(case.S)
    S += np.einsum("slh,slhp,slhn->shpn", weight, x, B.repeat(o.h // o.g, axis=2))
    return case, ring, S[case.slots.numpy()]


def assert_close_to(S: Tensor, expected: Array) -> None:
    """The largest error of a state, 2^-20 of its largest element at most: no exponent of hundreds has lost bits."""
    apart, scale = abs(cases.doubles(S) - expected).max(), abs(expected).max()
    assert apart <= 2.0**-20 * scale, f"wrong by {apart / scale:.1e} of the largest element"
