"""A bandit over trees: chooses the shape of the next window.

    arm    = argmax_k mean_k + exploration sqrt(2 ln t / n_k), an unplayed arm first, the lowest of equals          (1)
    reward = the mean over the rows of -(verify_k + steps_k draft) / emitted                                       (2)

All rows of a window share its shape. The result of a round is read one round late, after the next one has been launched, so
that nothing waits. Costs come from a table, in units of a plain step of the target. The tokens of a request therefore depend
on the batch; their distribution does not.
Source: Mamba Drafters, equations 1 and 2, with the mean as a mean; Auer 2002, UCB1.
"""

from collections.abc import Sequence
from math import inf, log, sqrt

import torch
from torch import Tensor

from ssmspec_ref.errors import ParameterError

from ..engine.sampling import Sampling
from ..engine.sequences import Sequences
from ..engine.window import Proposal, Verdict
from ..models.model import Model
from ..operations import Operations
from .model import ModelDrafter


class BanditDrafter(ModelDrafter):
    """`several` trees by their parents. `verify` (None: 1 each) is the cost of verifying each, `draft` of a drafter's step.

    Raises: ParameterError (no tree, a number below 0, not one cost for each tree), and as `ModelDrafter`.
    """

    def __init__(
        self,
        model: Model,
        several: Sequence[Sequence[int]],
        operations: Operations | None = None,
        *,
        exploration: float = 1.0,
        verify: Sequence[float] | None = None,
        draft: float = 0.1,
        choose: str = "top",
        sampling: Sampling | None = None,
        seed: int = 0,
        slots: int = 8,
        cache: int = 2048,
        memory: int | None = None,
    ) -> None:
        verify = [1.0] * len(several) if verify is None else list(verify)
        if not several or len(verify) != len(several):
            raise ParameterError(
                f"there are {len(several)} trees and {len(verify)} costs; give at least one tree, and one cost for each"
            )
        for name, value in (("exploration", exploration), ("draft", draft), *(("verify", cost) for cost in verify)):
            if not 0 <= value < inf:
                raise ParameterError(f"{name} is {value}; it must be a finite number of at least 0")
        self.prepare(model, several, operations, choose, sampling, seed, True, slots, cache, memory)
        self.exploration = exploration
        self.costs = [cost + draft * len(shape.levels) for cost, shape in zip(verify, self.shapes, strict=True)]
        self.plays, self.rewards = [0] * len(several), [0.0] * len(several)
        self.arm = 0
        self.unread: tuple[int, Tensor, Tensor] | None = None

    def choice(self) -> int:
        """The arm to play (1)."""
        t = sum(self.plays)
        bounds = [
            inf if n == 0 else total / n + self.exploration * sqrt(2 * log(t) / n)
            for n, total in zip(self.plays, self.rewards, strict=True)
        ]
        return bounds.index(max(bounds))

    def choose_shape(self, rows: int) -> int:
        """The arm of the next window, for any number of rows; it does not change until a round is read."""
        self.arm = self.choice()
        self.shape = self.shapes[self.arm]
        return self.arm

    def every_shape(self) -> tuple[()]:
        """Nothing: an arm is recorded when it is first played."""
        return ()

    def propose(self, sequences: Sequences, slots: Tensor) -> Proposal:
        self.choose_shape(len(slots))
        return super().propose(sequences, slots)

    def observe(self, sequences: Sequences, proposal: Proposal, verdict: Verdict) -> None:
        """Reads the round before this one and stores this one for the next call."""
        advanced = verdict.run.advanced
        took = (verdict.slots >= 0) & (advanced > 0)
        total = torch.where(took, -self.costs[self.arm] / advanced.clamp_min(1).double(), 0.0).sum()
        self.read()
        self.unread = self.arm, total, took.sum()

    def read(self) -> None:
        """Updates the reward (2) of the stored round, which has finished by now."""
        if self.unread is None:
            return
        arm, total, rows = self.unread
        self.unread = None
        if int(rows):
            self.plays[arm] += 1
            self.rewards[arm] += float(total) / int(rows)
