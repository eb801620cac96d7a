"""The acceptance kernels as the suite sees them: rows in slots out of order."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ssmspec_kernels.accept_greedy import Emitted, accept_greedy
from ssmspec_kernels.accept_sampled import accept_sampled
from ssmspec_ref.contract import Capability, NumericContract, Subject
from ssmspec_ref.shapes import Array


@dataclass(frozen=True)
class Acceptance:
    """The rules over windows of a batch."""

    device: str

    def greedy(self, tokens: Array, parents: Array, choice: Array, budget: Array, eos: tuple[int, ...]) -> tuple[Array, ...]:
        given = (torch.tensor(a, device=self.device) for a in (tokens, parents, choice))
        rule: Any = accept_greedy
        return self.back(rule(*given, self.pooled(budget), eos=self.ends(eos), slots=self.slots(budget)))

    def sampled(
        self, tokens: Array, parents: Array, p: Array, q: Array, coins: Array, picks: Array, budget: Array,
        eos: tuple[int, ...], law: Any,
    ) -> tuple[Array, ...]:  # fmt: skip
        trees = (torch.tensor(a, device=self.device) for a in (tokens, parents))
        rule: Any = accept_sampled
        laws = {"q": self.fp32(q)} if law in ("iid", "without_replacement") else {}
        noise = {"coins": self.fp32(coins)} if law != "naive" else {}
        run = rule(
            *trees, self.fp32(p), self.fp32(picks), self.pooled(budget), law=law, **laws, **noise, eos=self.ends(eos),
            slots=self.slots(budget),
        )  # fmt: skip
        return self.back(run)

    def back(self, run: Emitted) -> tuple[Array, ...]:
        return tuple(x.cpu().numpy() for x in run)

    def fp32(self, array: Array) -> Tensor:
        return torch.tensor(array, device=self.device).float()

    def ends(self, eos: tuple[int, ...]) -> Tensor | None:
        return torch.tensor(eos, device=self.device) if eos else None

    def slots(self, budget: Array) -> Tensor:
        return torch.arange(2 * len(budget) - 1, 0, -2, device=self.device)

    def pooled(self, budget: Array) -> Tensor:
        """The budgets by slot; what lies between would end no run."""
        pool = torch.full((2 * len(budget),), 999, device=self.device)
        pool[self.slots(budget)] = torch.tensor(budget, device=self.device)
        return pool


def subjects(device: str, contract: NumericContract) -> list[Subject]:
    rules = Acceptance(device)
    return [
        Subject(
            "acceptance",
            {
                "acceptance.greedy": Capability(rules.greedy, contract),
                "acceptance.sampled": Capability(rules.sampled, contract),
            },
        )
    ]
