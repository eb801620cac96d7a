"""Beam search that keeps every token it generated: a tree whose shape depends on the drafter's probabilities.

    score = log p(path) + log p(token | path), over all beams and tokens         (1)
    the best `beams` are the new beams, each a node below its beam               (2)

A beam that is dropped later stays in the tree. The first step has one beam, the root. Children are point masses.
Source: STree, section 5.1 (beam search, table 2) and appendix C.
"""

import torch
from torch import Tensor

from ssmspec_ref.errors import ParameterError

from ..accept.processors import past, process, rules_of
from ..engine.sampling import Sampling
from ..engine.sequences import Sequences
from ..engine.window import Proposal, Window
from ..models.model import Model
from ..operations import Operations
from ..operations.torch_ops import TorchOperations
from .model import ModelDrafter
from .rows import CATCH_UP, Rows
from .shapes import check_nodes


class BeamDrafter(ModelDrafter):
    """`steps` levels of `beams` nodes. The other arguments are those of `ModelDrafter`.

    Raises: ParameterError (beams or steps below 1, beams above the vocabulary), MemoryRefused.
    """

    trees, law = True, "point_mass"

    def __init__(
        self,
        model: Model,
        beams: int,
        steps: int,
        operations: Operations | None = None,
        *,
        sampling: Sampling | None = None,
        slots: int = 8,
        cache: int = 2048,
        memory: int | None = None,
    ) -> None:
        if beams < 1 or steps < 1:
            raise ParameterError(f"beams and steps are {beams} and {steps}; give at least 1 of each")
        check_nodes(1 + beams * steps)
        if beams > model.config.vocabulary:
            raise ParameterError(f"beams is {beams}, but the vocabulary has {model.config.vocabulary} tokens")
        self.model, self.beams, self.steps = model, beams, steps
        self.nodes, self.sampling = 1 + beams * steps, Sampling() if sampling is None else sampling
        self.rows = Rows(
            model, TorchOperations() if operations is None else operations, slots=slots, width=beams, cache=cache,
            window=1 + steps, memory=memory,
        )  # fmt: skip
        self.decoder, self.reads = self.rows.decoder, (self.rows.window, CATCH_UP)

    @property
    def depth(self) -> int:
        return self.steps

    def propose(self, sequences: Sequences, slots: Tensor) -> Proposal:
        b, n, v = len(slots), self.beams, self.model.config.vocabulary
        tokens = torch.zeros((b, self.nodes), dtype=torch.int64, device=slots.device)
        parents = torch.full_like(tokens, -1)
        tokens[:, 0] = sequences.roots(slots)
        paths = torch.zeros((b, 1, self.nodes), dtype=torch.bool, device=slots.device)
        paths[..., 0] = True
        own, numbers = torch.eye(n, dtype=torch.bool, device=slots.device), torch.arange(self.nodes, device=slots.device)
        rows, level = self.rows.beside(slots, n), torch.zeros((b, 1), dtype=torch.int64, device=slots.device)
        score, logits = (
            torch.zeros((b, 1), dtype=torch.float64, device=slots.device),
            self.rows.follow(sequences, slots)[:, None],
        )
        sampling = rules_of(sequences, slots, self.sampling)
        for step in range(self.steps):
            seen = past(sequences, slots, tokens, paths, v) if sampling.needs.penalties else None
            total = (score[..., None] + process(logits, sampling, seen).double().log()).flatten(1)  # (1)
            best = torch.argsort(total, dim=1, descending=True, stable=True)[:, :n]  # (2)
            beam, new = best // v, slice(1 + step * n, 1 + (step + 1) * n)
            tokens[:, new], parents[:, new] = best % v, level.gather(1, beam)
            paths = paths.gather(1, beam[..., None].expand(-1, -1, self.nodes)).clone()
            paths[:, :, new] = own
            score, level = total.gather(1, best), numbers[new].expand(b, -1)
            if step + 1 < self.steps:
                self.rows.copy(rows.gather(1, beam) if step else slots[:, None].expand_as(rows), rows)
                logits = self.rows.step(tokens[:, new], rows)
        return Proposal(Window(tokens, slots, None, parents))
