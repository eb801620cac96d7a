"""What is timed: an engine whose windows have a fixed shape and emit a fixed number of tokens.

Drafts are the root's neighbours in the vocabulary. The number of accepted tokens is forced, after the same read of the logits
as in real acceptance, so that a step can be timed for every number of accepted drafts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from ssmspec_ref.errors import ParameterError

from ..accept import Acceptance
from ..accept.fused import greedy
from ..accept.walk import best, broken, cut, walk
from ..cli import choices
from ..draft import Drafter
from ..draft.shapes import TREE_A, chain
from ..engine.graphs import Recorder
from ..engine.loop import Engine
from ..engine.requests import Settings
from ..engine.sequences import Sequences
from ..engine.window import Proposal, Verdict, Window
from ..methods import Method
from ..models.model import Model
from ..operations import Operations

CONTEXT = 512
"""Tokens in the caches of attention."""
ROOM = 1024
"""Most tokens that a sequence may get while it is timed."""

SHORT = {"activation-replay": "replay", "replay-buffer": "buffer"}
METHODS: dict[str, Callable[[int], Method]] = {SHORT.get(name, name): make for name, make in choices.METHODS.items()}
"""Methods, by the drafts of a sequence; named as in the committed results."""


@dataclass(frozen=True)
class Subject:
    """A step: `window` counts tokens, the root included; `parents` makes it a tree; `advanced` is what it emits."""

    model: str
    method: str
    window: int = 1
    batch: int = 1
    drafts: int = 1
    parents: tuple[int, ...] | None = None
    advanced: int = 1

    @property
    def name(self) -> str:
        shape = f"tree of {len(self.parents)}" if self.parents else f"window of {self.window}"
        rows = f", {self.drafts} drafts" if self.drafts > 1 else ""
        return f"{self.model} {self.method}, {shape}{rows}, batch {self.batch}, {self.advanced} emitted"


def tree_of(nodes: int) -> tuple[int, ...]:
    """STree's tree A for 13 nodes; otherwise a binary tree, level by level."""
    return TREE_A if nodes == len(TREE_A) else (-1, *((i - 1) // 2 for i in range(1, nodes)))


class Neighbours(Drafter):
    """Drafts the root's neighbours in the vocabulary; the same shape at every step."""

    on_device = True

    def __init__(self, subject: Subject, model: Model) -> None:
        self.nodes, self.drafts = len(subject.parents or range(subject.window)), subject.drafts
        self.vocabulary, self.trees = model.config.vocabulary, subject.parents is not None
        self.steps = torch.arange(self.nodes, device=model.device)
        self.parents = torch.tensor(subject.parents or chain(max(1, self.nodes - 1)), device=model.device)

    def propose(self, sequences: Sequences, slots: Tensor) -> Proposal:
        tokens = (sequences.roots(slots)[:, None] + self.steps) % self.vocabulary
        parents = self.parents.expand(len(slots), -1) if self.trees else None
        if self.drafts > 1:
            tokens, slots = tokens.repeat_interleave(self.drafts, 0), slots.repeat_interleave(self.drafts)
        return Proposal(Window(tokens, slots, None, parents, self.drafts))


class Forced(Acceptance):
    """Greedy acceptance of `advanced` tokens, whatever the logits are; the logits are read as in real greedy acceptance.

    The accepted tokens are on the path of first children or, if that is too short, of last children.
    Raises: ParameterError for more tokens than either has.
    """

    name = "forced"

    def __init__(self, subject: Subject, model: Model) -> None:
        parents = list(subject.parents or range(-1, subject.window - 1))
        paths = [followed(parents, child, subject.advanced) for child in (min, max)]
        path = next((path for path in paths if len(path) == subject.advanced), None)
        if path is None:
            raise ParameterError(
                f"the window must emit {subject.advanced} tokens, but its outer paths have {len(paths[0])} and "
                f"{len(paths[1])} nodes; give from 1 to the longer of them"
            )
        shift = [-1] * len(parents)
        for node, child in pairwise(path):
            shift[node] = child
        self.shift = torch.tensor(shift, device=model.device)

    def __call__(self, proposal: Proposal, logits: Tensor, sequences: Sequences, operations: Operations) -> Verdict:
        window, rule = proposal.window, operations.accept_greedy
        said = window.tokens[:, self.shift.clamp_min(0)]
        if rule is None:
            choice = torch.where(self.shift >= 0, said, -3 - 0 * logits.argmax(-1))
            stands = best(*walk(window.tokens, window.tree(), choice), window)
            return cut(*stands, sequences, window.sequences, broken(logits))
        return greedy(rule, window, logits, sequences, lambda choice: torch.where(self.shift >= 0, said, choice))


def followed(parents: list[int], child: Callable[..., int], most: int) -> list[int]:
    """The path from the root to the least or the greatest child of each node, of `most` nodes or down to a leaf."""
    path = [0]
    while len(path) < most and (below := [i for i, parent in enumerate(parents) if parent == path[-1]]):
        path.append(child(below))
    return path


def engine_of(subject: Subject, model: Model, operations: Operations, recorder: Recorder | None) -> Engine:
    """An engine for one shape with sequences that have begun; nothing is prefilled: the states are zeros."""
    engine = Engine(
        model,
        Neighbours(subject, model),
        METHODS[subject.method](subject.drafts),
        Forced(subject, model),
        operations=operations,
        slots=subject.batch,
        cache=CONTEXT + ROOM,
        graphs=recorder,
    )
    sequences = engine.begin(Settings(ROOM))
    begin(engine, sequences, range(subject.batch))
    return engine


def begin(engine: Engine, sequences: Sequences, slots: Sequence[int]) -> None:
    """Starts sequences of CONTEXT tokens, with room for more, in these slots."""
    for slot in slots:
        sequences.add(slot, [(7 * slot + i) % 61 for i in range(CONTEXT + 1)], 2**40, slot)
    engine.target.method.start(engine.target.pools, torch.tensor(list(slots), device=engine.model.device))
    engine.target.pools.length[: len(slots)] = CONTEXT
