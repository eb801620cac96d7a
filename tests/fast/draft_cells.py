"""Every method x drafter x acceptance of one model: greedy output in bitwise mode is plain decoding's.

The target reads its last token louder than a drawn model does, and its prompts go on from what it said before, so that
histories repeat; draft models are copies of it that err now and then. So every drafter meets zero, partial and full
acceptance.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import torch

from ssmspec_fast.accept import Acceptance
from ssmspec_fast.accept.greedy import Greedy
from ssmspec_fast.accept.multi_step import MultiStep
from ssmspec_fast.accept.naive import Naive
from ssmspec_fast.accept.rejection import Rejection
from ssmspec_fast.draft import Drafter
from ssmspec_fast.draft.bandit import BanditDrafter
from ssmspec_fast.draft.beam import BeamDrafter
from ssmspec_fast.draft.bigrams import bigram_table
from ssmspec_fast.draft.model import ChainsDrafter, ModelDrafter
from ssmspec_fast.draft.ngram import NGram, PromptLookup
from ssmspec_fast.draft.shapes import TREE_A, branches, chain
from ssmspec_fast.draft.text import TextDrafter
from ssmspec_fast.draft.wrapper import Wrapper
from ssmspec_fast.engine.sampling import Sampling
from ssmspec_fast.engine.sequences import Sequences
from ssmspec_fast.engine.window import Proposal, Verdict
from ssmspec_fast.methods import Method
from ssmspec_fast.methods.replay_buffer import ReplayBuffer
from ssmspec_fast.methods.tree import Tree
from ssmspec_fast.models.model import Model

from .draft_models import perturbed
from .drafters import SEVERAL
from .models import drawn, prompts
from .runs import emitted, engine
from .test_draft_text import Letters

SLOTS, CACHE, BUDGET, TOKENS, HISTORY = 3, 96, 14, 3, 24
ROOM: dict[str, Any] = {"slots": SLOTS, "cache": CACHE}
LOUDER = {"mamba2": (6.0, 0.12), "bamba": (6.0, 0.12), "qwen3_5": (6.0, 0.08), "llama": (2.0, 0.15)}
"""How much louder, and how far the copy is moved."""

Make = Callable[[Model, Model], Any]
CHAINS: dict[str, Make] = {
    "n-gram": lambda model, copy: NGram(TOKENS, 1, table(model)),
    "prompt lookup": lambda model, copy: PromptLookup(TOKENS, 2),
    "model": lambda model, copy: ModelDrafter(copy, chain(TOKENS), **ROOM),
    "model, sampled": lambda model, copy: ModelDrafter(copy, chain(TOKENS), choose="iid", sampling=Sampling(0.3), **ROOM),
    "text": lambda model, copy: TextDrafter(renumbered(copy), Letters(7), Letters(), TOKENS, **ROOM),
}
ROWS: dict[str, Make] = {
    "n-gram rows": lambda model, copy: NGram(TOKENS, 3, table(model)),
    "model rows": lambda model, copy: ChainsDrafter(copy, TOKENS, 2, **ROOM),
}
TREES: dict[str, Make] = {
    "n-gram tree": lambda model, copy: NGram(TOKENS, 3, table(model), trees=True),
    "chain as tree": lambda model, copy: ModelDrafter(copy, chain(TOKENS), trees=True, **ROOM),
    "static tree": lambda model, copy: ModelDrafter(copy, TREE_A, **ROOM),
    "batch tree, sampled": lambda model, copy: ModelDrafter(
        copy, branches((3, 1)), choose="without_replacement", sampling=Sampling(0.5), **ROOM
    ),
    "beam tree": lambda model, copy: BeamDrafter(copy, 2, 3, **ROOM),
    "bandit": lambda model, copy: BanditDrafter(copy, [chain(2), TREE_A, branches((2, 2))], **ROOM),
}
METHODS: dict[str, Callable[[int], Method]] = {
    **SEVERAL,
    "replay buffer": lambda drafts: ReplayBuffer(),
    "tree": lambda drafts: Tree(),
}
COLD = Sampling(0.0)
RULES: dict[str, Callable[[], Acceptance]] = {
    "greedy": Greedy,
    "naive": lambda: Naive(COLD, 1),
    "multi-step": lambda: MultiStep(COLD, 2),
    "rejection": lambda: Rejection(COLD, 3),
}
GREEDY = [
    *((method, drafter, "greedy") for method in METHODS for drafter in CHAINS if method != "tree"),
    *((method, drafter, "greedy") for method in ("snapshots", "joint", "activation replay") for drafter in ROWS),
    *(("tree", drafter, "greedy") for drafter in TREES),
]
CELLS = [
    *GREEDY,
    *((method, drafter, "naive") for method in ("snapshots", "joint", "activation replay") for drafter in ROWS),
    *(("tree", drafter, rule) for drafter in TREES for rule in ("naive", "multi-step")),
    *(("activation replay", drafter, rule) for drafter in CHAINS for rule in ("naive", "multi-step")),
    ("replay buffer", "model, sampled", "rejection"),
]


class Watched(Wrapper):
    """A drafter whose windows are told apart by how much of them was accepted; windows without drafts are none of them."""

    def __init__(self, drafter: Drafter) -> None:
        super().__init__(drafter)
        self.seen: set[str] = set()

    def observe(self, sequences: Sequences, proposal: Proposal, verdict: Verdict) -> None:
        live, parents = proposal.window.live().tolist(), proposal.window.tree().tolist()
        for n, slot in enumerate(verdict.slots.tolist()):
            advanced, row = int(verdict.run.advanced[n]), int(verdict.row[n])
            if slot < 0 or not advanced or sum(live[row]) == 1:
                continue
            last = int(verdict.run.path[n, advanced - 1])
            self.seen.add("none" if advanced == 1 else "some" if last in parents[row] else "all")
        super().observe(sequences, proposal, verdict)


def renumbered(model: Model) -> Model:
    """The model with the numbers of another tokenizer."""
    order = torch.argsort(torch.tensor(Letters(7).encode(Letters().decode(range(61)))))  # type: ignore[arg-type]
    return replace(model, embedding=model.embedding[order], head=model.head[order])


@cache
def pair(name: str) -> tuple[Model, Model]:
    """A target and its erring copy."""
    model, (louder, moved) = drawn(name), LOUDER[name]
    model = replace(model, embedding=model.embedding * louder)
    return model, perturbed(model, moved, 3)


_TABLES: dict[int, torch.Tensor] = {}


def table(model: Model) -> torch.Tensor:
    if id(model) not in _TABLES:
        _TABLES[id(model)] = bigram_table(model, 4, TOKENS)
    return _TABLES[id(model)]


@cache
def asked(name: str) -> tuple[tuple[int, ...], ...]:
    """Prompts of several lengths, continued by the target itself."""
    begun = prompts(1, (2, 7, 1, 4))
    said = emitted(engine(pair(name)[0], **ROOM), begun, HISTORY)
    return tuple((*prompt, *tokens[: HISTORY - 6 * i]) for i, (prompt, tokens) in enumerate(zip(begun, said, strict=True)))


@cache
def plain(name: str) -> list[tuple[int, ...]]:
    return emitted(engine(pair(name)[0], **ROOM), asked(name), BUDGET)


def speculated(name: str, method: str, drafter: str, rule: Acceptance, slots: int = SLOTS) -> tuple[Any, set[str]]:
    """What the cell emits, and the acceptance that it saw."""
    model, copy = pair(name)
    watched = Watched((CHAINS | ROWS | TREES)[drafter](model, copy))
    made = engine(model, watched, METHODS[method](watched.drafts), rule, slots=slots, cache=CACHE)
    return emitted(made, asked(name), BUDGET), watched.seen
