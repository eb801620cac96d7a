"""Commits of accepted tokens, whatever the recurrence: the tokens that are accepted, and what a commit is held to."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ssmspec_kernels.row import row_of
from ssmspec_ref.error_bounds.arithmetic import Approx
from ssmspec_ref.shapes import Array
from tests.kernels.device import COMPILED
from tests.kernels.tensors import BYTES, Kept, check_within, doubles, far, strided, watch

SPARE = 2
"""Slots of the pool that no row names."""


@dataclass(frozen=True)
class Options:
    """One case: sizes, storage types, what is on. `drafts` rows of the inputs for each sequence."""

    layers: int = 2
    b: int = 3
    drafts: int = 1
    t: int = 5
    state: str = "fp32"
    io: str = "fp32"
    path: bool = False
    seed: int = 0


class Case(ABC):
    """Tensors of one call: the last row is padding, row 0 accepted all, the others a part; what is not accepted is NaN.

    `inputs` are those that a replay reads, `extra` what else a call gives.
    """

    def __init__(self, o: Any, state: tuple[int, ...], inputs: dict[str, Array], types: dict[str, str]) -> None:
        rng = np.random.default_rng(o.seed + 1)
        self.o, self.extra = o, dict[str, Any]()
        self.slots = torch.from_numpy(rng.permutation(o.b + SPARE)[: o.b])
        self.slots[-1] = -1
        if not (self.slots == 0).any():
            self.slots[0] = 0
        self.rows = torch.from_numpy(np.arange(o.b) * o.drafts + rng.integers(0, o.drafts, o.b))
        count = np.array([o.t, *rng.integers(1, o.t, o.b - 1)])
        self.path = np.full((o.b, o.t), -1)
        dead = np.ones((o.b * o.drafts, o.t), dtype=bool)
        for b, n in enumerate(count):
            self.path[b, :n] = np.sort(rng.choice(o.t, n, replace=False)) if o.path else np.arange(n)
            dead[int(self.rows[b]), self.path[b, :n]] = b == o.b - 1
        S = np.full((o.layers, o.b + SPARE, *state), np.nan)
        S[:, self.named] = rng.normal(size=(o.layers, o.b - 1, *state))
        self.S, self.inputs = strided(S, o.state), dict[str, Tensor]()
        for gap, (name, x) in enumerate(inputs.items(), 3):
            x[:, dead] = np.nan
            self.inputs[name] = strided(x, types.get(name, o.io), gap)
        self.accepted = {"path": torch.from_numpy(self.path)} if o.path else {"advanced": torch.from_numpy(count)}

    @property
    def named(self) -> Array:
        """The slots of the rows that are no padding."""
        return self.slots.numpy()[:-1]

    @property
    def apart(self) -> dict[str, Tensor]:
        """The tensors that a count of bytes leaves out."""
        rows = {"rows": self.rows} if self.o.drafts > 1 else {}
        return {
            "slots": self.slots,
            **self.accepted,
            **rows,
            **{n: x for n, x in self.extra.items() if isinstance(x, Tensor)},
        }

    @property
    def tensors(self) -> dict[str, Tensor]:
        return {"S": self.S, **self.inputs, **self.apart}

    def nodes(self, b: int) -> Array:
        """What row b accepted."""
        return self.path[b][self.path[b] >= 0]

    def call(self, launch: Callable[..., object], **changes: Any) -> None:
        launch(**self.tensors | self.extra | changes)

    @abstractmethod
    def after(self, layer: int, b: int, start: Array) -> Approx:
        """The state of row b (1, ..), with its bound."""


def check(launch: Callable[..., object], case: Case) -> None:
    """The states beside the oracle's; nothing else is written, nothing that was not accepted is read."""
    kept, before = Kept(**case.tensors), doubles(case.S.clone())
    case.call(launch)
    kept.check(S=(slice(None), case.named))
    for layer in range(case.o.layers):
        for b, slot in enumerate(case.named):
            check_within(doubles(case.S[layer, slot])[None], case.after(layer, b, before[layer, slot][None]))


def check_bytes(
    launch: Callable[..., object], traffic: Callable[..., int], case: Case, *sizes: int, states_once: bool = True
) -> None:
    """On a GPU, where no access is seen, there is nothing to assert. `states_once`: all of a state is read."""
    if COMPILED:
        return
    with watch(**case.tensors) as seen:
        case.call(launch)
    crossed = seen.distinct_bytes() - sum(seen.loaded(name).distinct for name in case.apart)
    advanced, o = [len(case.nodes(b)) for b in range(case.o.b - 1)], case.o
    assert crossed == traffic(advanced, o.layers, *sizes, state=BYTES[o.state], io=BYTES[o.io])
    states = case.S[:, : o.b - 1].numel() * BYTES[o.state]
    assert seen.stored("S").requested == states
    assert seen.loaded("S").requested == states or not states_once
    assert seen.outside == seen.races == []


def check_nothing(launch: Callable[..., object], *cases: Case) -> None:
    """Rows that accepted nothing, by either way to say so: their states are neither read nor written."""
    for case in cases:
        case.accepted = {name: torch.full_like(x, -1 if name == "path" else 0) for name, x in case.accepted.items()}
        kept = Kept(**case.tensors)
        with watch(**case.tensors) as seen:
            case.call(launch)
        kept.check()
        assert seen.loaded("S").requested == seen.stored("S").requested == 0


def check_far(launch: Any, near: Case, case: Case, axis: str) -> None:
    """An axis beyond 2^31 elements is reached, in every tensor that has it."""
    for made in (near, case):
        made.slots = torch.tensor([4, 0, 2], dtype=torch.int32)
        for x in (made.S, *made.inputs.values()):  # every row counts, and the last slot
            x.nan_to_num_(0.5)
    near.call(launch)
    reached = 0
    for entry in row_of(launch):
        axes = entry.argument.axes.split()
        if axis in axes[:-1] and entry.name in {"S", *case.inputs}:
            reached, at = reached + 1, axes.index(axis)
            if entry.name == "S":
                case.S = far(case.S, at)
            else:
                case.inputs[entry.name] = far(case.inputs[entry.name], at)
    assert reached, f"no tensor has axis {axis}"
    case.call(launch)
    assert torch.equal(case.S, near.S)
