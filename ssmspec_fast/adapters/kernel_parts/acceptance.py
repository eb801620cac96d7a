"""The acceptance kernels for the suite: rows in slots out of order."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ssmspec_fast.adapters.tensors import exact, pooled
from ssmspec_kernels.tokens.accept_greedy import Emitted, accept_greedy
from ssmspec_kernels.tokens.accept_sampled import accept_sampled
from ssmspec_kernels.tokens.ngram_drafts import ngram_drafts
from ssmspec_ref.contract import Capability, Graph, Launch, NumericContract, Subject
from ssmspec_ref.shapes import Array


@dataclass(frozen=True)
class Acceptance:
    """The rules over windows of a batch."""

    device: str

    def greedy(self, tokens: Array, parents: Array, choice: Array, budget: Array, eos: tuple[int, ...]) -> Launch:
        given = (torch.tensor(a, device=self.device) for a in (tokens, parents, choice))
        budgets, slots = self.pooled(budget)
        return self.launch(accept_greedy, *given, budgets, eos=self.ends(eos), slots=slots)

    def sampled(
        self, tokens: Array, parents: Array, p: Array, q: Array, coins: Array, picks: Array, budget: Array,
        eos: tuple[int, ...], law: Any,
    ) -> Launch:  # fmt: skip
        trees = (torch.tensor(a, device=self.device) for a in (tokens, parents))
        laws = {"q": exact(q, self.device)} if law in ("iid", "without_replacement") else {}
        noise = {"coins": exact(coins, self.device)} if law != "naive" else {}
        target, pick = (exact(a, self.device) for a in (p, picks))
        budgets, slots = self.pooled(budget)
        how = {**laws, **noise, "law": law, "eos": self.ends(eos), "slots": slots}
        return self.launch(accept_sampled, *trees, target, pick, budgets, **how)

    def png(self, history: Array, drafts: int, tokens: int, table: Array) -> Array:
        sequences, slots = pooled(np.maximum(history, 0), self.device, torch.int64, 0, 1)
        length, _ = pooled((history >= 0).sum(axis=1), self.device, torch.int64, 0, 1)
        given = torch.tensor(table, device=self.device)
        y, lengths = ngram_drafts(sequences, length, tokens, drafts, table=given, slots=slots)
        found: Array = torch.where((lengths > 1)[..., None], y[:, :, 1:], -1).cpu().numpy()
        return found

    def launch(self, rule: Callable[..., Emitted], *given: Any, **named: Any) -> Launch:
        """A rule, which returns the runs that it emits."""
        return Launch((given, named), lambda: rule(*given, **named), lambda run: tuple(x.cpu().numpy() for x in run))

    def ends(self, eos: tuple[int, ...]) -> Tensor | None:
        return torch.tensor(eos, device=self.device) if eos else None

    def pooled(self, budget: Array) -> tuple[Tensor, Tensor]:
        """The budgets by slot, and the slot of each; the slots between have a budget that ends no run."""
        return pooled(budget, self.device, torch.int64, 999, 1)


def subjects(device: str, contract: NumericContract) -> list[Subject]:
    rules = Acceptance(device)
    return [
        Subject(
            "acceptance",
            {
                "acceptance.greedy": Capability(Graph(rules.greedy), contract),
                "acceptance.sampled": Capability(Graph(rules.sampled), contract),
            },
        ),
        Subject("ngram_drafts", {"draft.png": Capability(rules.png, contract)}),
    ]
