"""The methods under test, and drafters of every skill: they know what plain decoding says, and err where they choose to."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from ssmspec_fast.draft import Drafter
from ssmspec_fast.engine.sequences import Sequences
from ssmspec_fast.engine.window import Proposal, Verdict, Window
from ssmspec_fast.methods import Method
from ssmspec_fast.methods.activation_replay import ActivationReplay
from ssmspec_fast.methods.joint import Joint
from ssmspec_fast.methods.replay_buffer import ReplayBuffer
from ssmspec_fast.methods.snapshots import Snapshots
from ssmspec_fast.methods.tree import Tree

from .folders import VOCABULARY

NODES = 4
"""Tokens of a window, the root included."""
CHAINS: dict[str, Callable[[], Method]] = {
    "snapshots": Snapshots,
    "snapshots-eager": lambda: Snapshots(eager=True),
    "joint": Joint,
    "activation replay": ActivationReplay,
    "replay buffer": ReplayBuffer,
    "replay buffer of two windows": lambda: ReplayBuffer(2 * NODES),
    "tree": Tree,
}


SEVERAL: dict[str, Callable[[int], Method]] = {
    "snapshots": lambda drafts: Snapshots(drafts),
    "joint": lambda drafts: Joint(drafts),
    "activation replay": lambda drafts: ActivationReplay(drafts),
}
"""Of several drafts for each sequence."""


class Skilled(Drafter):
    """Chains or trees around the right continuation; each right token is right with probability `skill`.

    `answers[n]` is what plain decoding emits for request n. Records the windows by how much of them was accepted.
    """

    def __init__(
        self, answers: Sequence[Sequence[int]], nodes: int, skill: float, seed: int = 0, drafts: int = 1, tree: bool = False
    ) -> None:
        self.answers, self.nodes, self.skill = answers, nodes, skill
        self.drafts, self.tree = drafts, tree
        self.rng = np.random.default_rng(seed)
        self.seen: set[str] = set()

    def right(self, sequences: Sequences, slot: int) -> list[int]:
        """What comes behind the root; some token where the answer ends."""
        done = int(sequences.length[slot] - sequences.prompt[slot])
        known = list(self.answers[int(sequences.request[slot])][done : done + self.nodes])
        return known + [0] * (self.nodes - len(known))

    def perhaps(self, token: int) -> int:
        return token if self.rng.random() < self.skill else int(self.rng.integers(0, VOCABULARY))

    def propose(self, sequences: Sequences, slots: Tensor) -> Proposal:
        rows = slots.repeat_interleave(self.drafts)
        roots = sequences.roots(slots).repeat_interleave(self.drafts)
        tokens = np.zeros((len(rows), self.nodes), dtype=np.int64)
        parents = np.full((len(rows), self.nodes), -2)
        lengths = np.ones(len(rows), dtype=np.int64)
        for r, slot in enumerate(rows.tolist()):
            right = self.right(sequences, max(slot, 0))
            real = lengths[r] = int(self.rng.integers(1, self.nodes + 1)) if self.rng.random() < 0.5 else self.nodes
            depth = np.zeros(self.nodes, dtype=int)
            for t in range(1, real):
                parents[r, t] = t - 1 if not self.tree or self.rng.random() < 0.6 else int(self.rng.integers(0, t))
                depth[t] = depth[parents[r, t]] + 1
                tokens[r, t] = self.perhaps(right[depth[t] - 1])
            parents[r, 0] = -1
        drawn = torch.as_tensor(tokens).to(slots.device)
        drawn[:, 0] = roots
        shape = torch.as_tensor(parents).to(slots.device) if self.tree else None
        count = None if self.tree else torch.as_tensor(lengths).to(slots.device)
        return Proposal(Window(drawn, rows, count, shape, self.drafts))

    def observe(self, sequences: Sequences, proposal: Proposal, verdict: Verdict) -> None:
        for n, (slot, advanced) in enumerate(zip(verdict.slots.tolist(), verdict.run.advanced.tolist(), strict=True)):
            if slot >= 0:
                held = int(proposal.window.live()[int(verdict.row[n])].sum())
                self.seen.add("none" if advanced == 1 else "all" if advanced == held else "some")


def skilled(answers: Sequence[Sequence[int]], method: str, skill: float = 0.7, nodes: int = NODES, **more: int) -> Skilled:
    """Trees for the method of trees, chains for the others."""
    return Skilled(answers, nodes, skill, tree=method == "tree", **more)
