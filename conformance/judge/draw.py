"""Inputs of a case: drawn from its seed, array by array, and rounded to the formats of the contract.

Every array has its own random stream, named after it. Dropping an array leaves the others unchanged, and a smaller case
resembles the larger one. Families of inputs:

normal  decays of a trained layer, states and tokens of size one
gentle  decays near one and a state ten times the tokens: errors in the carried state do not fade
strong  decays down to exp(-50): cancellation in cumulative sums, underflow
wide    steps from 1e-9 to 95 and keys from 1e-4 to 1, one of them zero, from a state of 0: the write of a small token is not
        hidden by the state, and thresholds, floors, ceilings and eps matter
"""

import zlib
from dataclasses import fields, is_dataclass, replace
from math import prod
from typing import Any, TypeVar

import numpy as np

from ssmspec_ref import state_format
from ssmspec_ref.contract import LARGEST_CODE, NumericContract, StateStorage
from ssmspec_ref.records import each
from ssmspec_ref.shapes import Array

from ..cases import Case

T = TypeVar("T")

STEP = {"normal": -1.0, "gentle": -4.0, "strong": 3.0, "wide": 0.0}
"""The centre of the raw step dt, before softplus."""
RATE = {"normal": (0.5, 2.0), "gentle": (0.25, 1.0), "strong": (2.0, 16.0), "wide": (2.0**-6, 0.5)}
"""The range of -A."""
STATE = {"normal": 1.0, "gentle": 10.0, "strong": 3.0, "wide": 0.0}
"""The scale of the initial state."""
POISON = 1e3
"""The value of entries that must not be read: finite, so that a kernel may multiply it by zero, and large."""
CALM = 0.25
"""What such entries hold where a cause is searched whose results would not be finite otherwise."""
DEAD = {"dead": ("finite", "nan", "inf")}
"""The option of operations whose contract says that an entry is never read, so that a product with zero is a read. With
`finite` entries keep what was drawn for them."""
PLAUSIBLE = {"dead": (*DEAD["dead"], "plausible")}
"""The same where `finite` is `POISON`, with what was drawn too: a kernel that clamps what it reads may hide the others."""


def stored(a: Array, storage: StateStorage) -> Array:
    """Round to a storage format, nearest, ties to even; the result is float64 and exact in that format. A state with scales
    is stored by `stored_state`."""
    if storage in LARGEST_CODE:
        return state_format.nearest(np.asarray(a, dtype=np.float64), storage)
    if storage == "fp64":
        return np.asarray(a, dtype=np.float64)
    if storage == "bf16":
        bits = np.asarray(a, dtype=np.float32).view(np.uint32)
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
        return rounded.view(np.float32).astype(np.float64)
    return np.asarray(a).astype({"fp32": np.float32, "fp16": np.float16}[storage]).astype(np.float64)


def stored_state(a: Array, axes: str, contract: NumericContract) -> Array:
    """A state as it is read after an earlier call: rounded to the contract's format, with its scales and error feedback.

    Scales are numbers of 8 bits, the largest value of a block is the largest code without a residual, and no residual is at
    its limit: so all values are exact in fp32, and storing them again gives the same scales, codes and residuals.
    """
    if contract.state_scale is None:
        return stored(a, contract.state)
    top, axis = LARGEST_CODE[contract.state], state_format.axis_of(axes)
    s = stored(state_format.scales(a, contract, axis), "bf16")
    codes = state_format.nearest(a / state_format.scales(a, contract, axis), contract.state)
    parts = np.where(np.abs(codes) == top, 0.0, np.clip(np.rint((a / s - codes) * 16), -7, 7))
    return s * (codes + (parts / 16 if contract.error_feedback else 0.0)) + 0.0


class Draw:
    """The inputs of one case."""

    def __init__(self, case: Case, contract: NumericContract, **sizes: int) -> None:
        self.case, self.contract, self.sizes, self.options = case, contract, {**case.sizes, **sizes}, case.options

    def rng(self, name: str) -> np.random.Generator:
        return np.random.default_rng([self.case.seed, zlib.crc32(f"{self.case.operation} {name}".encode())])

    def shape(self, axes: str) -> tuple[int, ...]:
        """The shape of axes given as letters, as in "b t h p"; an axis of several pieces is a sum of products: "pn+p"."""
        return tuple(sum(prod(self.sizes[a] for a in piece) for piece in axis.split("+")) for axis in axes.split())

    def normal(self, name: str, axes: str, scale: float = 1.0, offset: float = 0.0) -> Array:
        """Normal values in the format of inputs and outputs."""
        return self.array(name, self.shape(axes), scale, offset)

    def array(self, name: str, shape: tuple[int, ...], scale: float = 1.0, offset: float = 0.0) -> Array:
        return stored(offset + scale * self.rng(name).standard_normal(shape), self.contract.io)

    def state(self, name: str, axes: str) -> Array:
        """A state, rounded to the format of the state as after an earlier call."""
        scale = STATE[self.case.family]
        return stored_state(scale * self.rng(name).standard_normal(self.shape(axes)) + 0.0, axes, self.contract)

    def rate(self, name: str, axes: str) -> Array:
        """A: negative, log-uniform over the family's range."""
        low, high = RATE[self.case.family]
        exponent = self.rng(name).uniform(np.log(low), np.log(high), self.shape(axes))
        return stored(-np.exp(exponent), self.contract.io)

    def step(self, name: str, axes: str) -> Array:
        """Raw dt around the family's value before softplus, or around its softplus if no softplus is applied."""
        if self.case.family == "wide":
            raw = self.spread(name, axes)
            return stored(raw if self.options.get("softplus", "on") == "on" else np.logaddexp(0.0, raw), self.contract.io)
        if self.options.get("softplus", "on") == "on":
            return self.normal(name, axes, 0.5, STEP[self.case.family])
        return np.abs(self.normal(name, axes, 0.2 * self.typical_step, self.typical_step))

    def spread(self, name: str, axes: str) -> Array:
        """Raw steps from -20 to 30: many around 0, many from 4 to 16, where softplus(x) becomes x, and one in ten at 95,
        where exp overflows in single precision."""
        rng, shape = self.rng(f"{name} spread"), self.shape(axes)
        near, far, large = rng.standard_normal(shape), rng.uniform(-20.0, 30.0, shape), rng.uniform(4.0, 16.0, shape)
        kind = rng.random(shape)
        return np.select([kind < 0.4, kind < 0.7, kind < 0.9], [0.5 * near, far, large], 95.0)

    def gate(self, name: str, axes: str) -> Array:
        """z before its activation; in the family wide as `spread`, with both signs."""
        if self.case.family != "wide":
            return self.normal(name, axes)
        sign = self.rng(f"{name} sign").choice([-1.0, 1.0], self.shape(axes))
        return stored(sign * self.spread(name, axes), self.contract.io)

    def step_bias(self, name: str, axes: str) -> Array:
        """The bias of dt; if no softplus is applied, one that keeps dt positive."""
        if self.options.get("softplus", "on") == "on":
            return self.normal(name, axes, 0.5)
        return np.abs(self.normal(name, axes, 0.2 * self.typical_step))

    @property
    def typical_step(self) -> float:
        return float(np.logaddexp(0.0, STEP[self.case.family]))

    @property
    def dt_limit(self) -> tuple[float, float]:
        """Limits that are reached: about half of all steps are clipped, at the floor or at either end."""
        typical = float(stored(np.array(self.typical_step), self.contract.io))
        return {"off": (0.0, float("inf")), "floor": (typical, float("inf")), "finite": (0.75 * typical, 1.25 * typical)}[
            self.options.get("dt_limit", "off")
        ]

    @property
    def dead(self) -> float:
        """What entries hold that are never read, unless they are plausible: then they hold what was drawn for them."""
        return {"finite": POISON, "nan": np.nan, "inf": np.inf, "calm": CALM}[self.options.get("dead", "finite")]

    @property
    def kills(self) -> bool:
        """Whether entries that are never read hold NaN or infinity."""
        return self.options.get("dead") in ("nan", "inf")

    def unread(self, window: T, live: Array) -> T:
        """A window, or an array with the axes b t, whose tokens that are not live hold what is never read."""
        return window if self.options.get("dead") == "plausible" else poisoned(window, live, self.dead)

    def on(self, option: str) -> bool:
        return self.options[option] == "on"

    def live(self, axes: str = "b t") -> Array:
        """Marks real tokens. No-ops are after (`tail`), before (`head`) or between them (`holes`); a row may have none."""
        rows, tokens = self.shape(axes)
        rng = self.rng("live")
        match self.options.get("live", "holes"):
            case "tail":
                return np.arange(tokens) < rng.integers(0, tokens + 1, rows)[:, None]
            case "head":
                return np.arange(tokens) >= rng.integers(0, tokens + 1, rows)[:, None]
            case _:
                return rng.random((rows, tokens)) < 0.6

    def parents(self, name: str = "parents", resting: bool = False) -> Array:
        """A tree for each row: `branch` (random), `chain`, `star`, or `vine`, with paths half as long as the tree. With
        `ragged`, later rows are shorter and padded. If rows may be `resting`, resting rows are all padding, the first one
        only if it is the only row."""
        rows, nodes = self.shape("b t")
        rng = self.rng(name)
        parents = np.full((rows, nodes), -2, dtype=np.int64)
        for b in range(rows):
            size = nodes if not self.on("ragged") or b == 0 else int(rng.integers(1, nodes + 1))
            branch = [int(rng.integers(0, i)) for i in range(1, size)]
            near = [max(0, i - back) for i, back in enumerate(self.rng(f"{name} near").integers(1, 4, size - 1), start=1)]
            chosen = {"branch": branch, "chain": range(size - 1), "vine": near}
            parents[b, :size] = [-1, *chosen.get(self.options["tree"], [0] * (size - 1))]
        if resting and self.on("ragged"):
            parents[self.rests(rows, nodes) & ((np.arange(rows) > 0) | (rows == 1))] = -2
        return parents

    @staticmethod
    def rests(rows: int, tokens: int) -> Array:
        """Rows without a window, in operations that have no option for it: every sixth, starting at a row that depends on the
        number of tokens, so that small batches have none."""
        return (np.arange(rows) + tokens) % 6 == 0


def poisoned(window: T, live: Array, dead: float = POISON) -> T:
    """A window, or an array with the axes b t, with the value `dead` at every token that is not live."""
    return each(lambda a: np.where(live.reshape(live.shape + (1,) * (a.ndim - 2)), a, dead), window)


def finite(value: Any) -> Any:
    """Arguments with `POISON` for NaN and infinity, which only entries hold that are never read: what the reference gets.

    -inf stays: it masks a token. A record without either is returned as it is, and not checked again.
    """
    if isinstance(value, tuple):
        parts = tuple(map(finite, value))
        return parts if any(new is not old for new, old in zip(parts, value, strict=True)) else value
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        never = np.isnan(value) | np.isposinf(value)
        return np.where(never, POISON, value) if never.any() else value
    if is_dataclass(value) and not isinstance(value, type):
        old = {field.name: getattr(value, field.name) for field in fields(value)}
        new = {name: found for name, part in old.items() if (found := finite(part)) is not part}
        return replace(value, **new) if new else value
    return value
