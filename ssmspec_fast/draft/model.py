"""A model that drafts: a chain or a tree of fixed shape, one forward for each level.

    level 0: the distribution after the root, from the state of the sequence                 (1)
    level d: each node from a copy of its parent's state                                     (2)
    children of a node: the most probable tokens, or draws, in order                         (3)

choose                law                  children
top                   point_mass           the most probable, the lowest of equals first
iid                   iid                  independent draws
without_replacement   without_replacement  draws one after the other, each without the earlier ones

Logits become distributions as the target's do (`accept.processors`); random numbers are determined by request, position and
node (`accept.noise`).
Source: Mamba Drafters, section 3.1 (a batch that grows: `shapes.branches`); STree, section 5.2 and figure 4a.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ssmspec_ref.errors import ParameterError

from ..accept.noise import DRAW, check_seed, uniforms
from ..accept.processors import ORDERED, Past, needs_of, past, penalised, process, rules_of
from ..accept.sampled import pick
from ..engine.prefill import Piece
from ..engine.sampling import Sampling
from ..engine.sequences import Sequences
from ..engine.window import Proposal, Window
from ..errors import TokenizerMismatch
from ..models.model import Model
from ..operations import Operations
from ..operations.slots import index
from ..operations.torch_ops import TorchOperations
from . import Drafter
from .rows import CATCH_UP, Rows
from .shapes import Level, Shape, branches

MANY = 4096
"""From this vocabulary size on, the most probable token is found in two steps."""


class Choice(NamedTuple):
    """The law of the children, and what a draw leaves for the next one; None: the most probable tokens."""

    law: str
    after: Callable[[Tensor, Tensor], Tensor] | None


def unchanged(law: Tensor, drawn: Tensor) -> Tensor:
    return law


def without(law: Tensor, drawn: Tensor) -> Tensor:
    """A distribution (b, i) without the drawn tokens (b,); one with a single token stays as it is."""
    rest = law.scatter(1, drawn[:, None], 0.0)
    return torch.where((rest > 0).any(1, keepdim=True), rest, law)


CHOICES = {
    "top": Choice("point_mass", None),
    "iid": Choice("iid", unchanged),
    "without_replacement": Choice("without_replacement", without),
}


INDEPENDENT = ("top", "iid")
"""Choices whose children are independent of each other."""


class LevelTensors(NamedTuple):
    """A level of a shape on the device; `moved` says that its rows continue rows other than those at the same place above.

    `ranks`: for the first children, the second ones and so on: the nodes, and the rows that have them (None: all rows).
    """

    depth: int
    moved: bool
    nodes: Tensor
    above: Tensor
    ancestors: Tensor
    ranks: tuple[tuple[Tensor, Tensor | None], ...]


class Constants(NamedTuple):
    """Constant tensors of a shape's proposals, on the device."""

    parents: Tensor
    levels: tuple[LevelTensors, ...]


def constants(shape: Shape, device: torch.device) -> Constants:
    """Built once for each shape, so that a step copies nothing from the host."""
    ancestors = torch.tensor(shape.ancestors)
    levels = []
    for depth, level in enumerate(shape.levels):
        nodes, above = torch.tensor(level.nodes), torch.tensor(level.above)
        moved = level.above != tuple(range(len(level.nodes)))
        ranks = tuple(ranked(level, rank, device) for rank in range(max(map(len, level.children))))
        levels.append(LevelTensors(depth, moved, nodes.to(device), above.to(device), ancestors[nodes].to(device), ranks))
    return Constants(torch.tensor(shape.parents).to(device), tuple(levels))


def ranked(level: Level, rank: int, device: torch.device) -> tuple[Tensor, Tensor | None]:
    """The children of a rank, and the rows of a level that have one."""
    rows = [row for row, children in enumerate(level.children) if rank < len(children)]
    nodes = torch.tensor([level.children[row][rank] for row in rows]).to(device)
    return nodes, None if len(rows) == len(level.children) else torch.tensor(rows).to(device)


class ModelDrafter(Drafter):
    """`parents` is the tree (`shapes.chain`, `.branches`, `.TREE_A`); `slots` and `cache` at least the engine's.

    A tree with one path is proposed as a chain, unless `trees` is True.

    Units: `memory` is the most bytes that states and caches may take.
    Raises: NotTopological, ParameterError (an unknown choice, more children than tokens), MemoryRefused.
    """

    on_device = follows = True

    def __init__(
        self,
        model: Model,
        parents: Sequence[int],
        operations: Operations | None = None,
        *,
        choose: str = "top",
        sampling: Sampling | None = None,
        seed: int = 0,
        trees: bool | None = None,
        slots: int = 8,
        cache: int = 2048,
        memory: int | None = None,
    ) -> None:
        self.prepare(model, [parents], operations, choose, sampling, seed, trees, slots, cache, memory)

    def prepare(
        self, model: Model, several: Sequence[Sequence[int]], operations: Operations | None, choose: str,
        sampling: Sampling | None, seed: int, trees: bool | None, slots: int, cache: int, memory: int | None,
    ) -> None:  # fmt: skip
        """Allocates rows for the widest and deepest of some trees."""
        check_seed(seed)
        if choose not in CHOICES:
            raise ParameterError(f"choose is {choose!r}; it must be one of {', '.join(CHOICES)}")
        self.shapes = [Shape(tuple(parents)) for parents in several]
        most = max(len(shape.below(i)) for shape in self.shapes for i in range(len(shape.parents)))
        choice = CHOICES[choose]
        if most > model.config.vocabulary and choice.after is not unchanged:
            raise ParameterError(f"a node has {most} children, but the vocabulary has only {model.config.vocabulary} tokens")
        self.model, self.law, self.after, self.seed = model, choice.law, choice.after, seed
        self.sampling = Sampling() if sampling is None else sampling
        self.shape, self.trees = self.shapes[0], not all(s.chain for s in self.shapes) if trees is None else trees
        if not (self.trees or all(s.chain for s in self.shapes)):
            raise ParameterError("trees is False, but the tree has branches; give a chain")
        self.nodes = max(len(shape.parents) for shape in self.shapes)
        self.rows = Rows(
            model, TorchOperations() if operations is None else operations, slots=slots,
            width=max(s.width for s in self.shapes), cache=cache, window=1 + max(max(s.depths) for s in self.shapes),
            memory=memory,
        )  # fmt: skip
        self.decoder, self.reads = self.rows.decoder, (self.rows.window, CATCH_UP)
        self.constants = {shape: constants(shape, model.device) for shape in self.shapes}

    @property
    def held(self) -> int:
        return self.rows.decoder.pools.bytes

    @property
    def depth(self) -> int:
        return max(max(shape.depths) for shape in self.shapes)

    def catch_up(self, sequences: Sequences, slots: Tensor) -> None:
        self.rows.follow(sequences, slots, CATCH_UP)

    def check(self, model: Model) -> None:
        """Raises: TokenizerMismatch for a target with another number of tokens."""
        ours, theirs = self.model.config.vocabulary, model.config.vocabulary
        if ours != theirs:
            raise TokenizerMismatch(
                f"the drafter has {ours} tokens, the target {theirs}; for another tokenizer, draft through text"
            )

    def start(self, sequences: Sequences, slots: Tensor) -> None:
        self.rows.start(sequences, slots)

    def read_ahead(self, sequences: Sequences, pieces: Sequence[Piece]) -> None:
        self.rows.read_ahead(sequences, pieces)

    def release(self, slots: Tensor) -> None:
        self.rows.ahead -= set(slots.tolist())

    def propose(self, sequences: Sequences, slots: Tensor) -> Proposal:
        shape, b = self.shape, len(slots)
        tokens = torch.zeros((b, len(shape.parents)), dtype=torch.int64, device=slots.device)
        tokens[:, 0] = sequences.roots(slots)
        vocabulary = self.model.config.vocabulary
        q = None if self.law == "point_mass" else torch.zeros((*tokens.shape, vocabulary), device=slots.device)
        beside = self.rows.beside(slots, self.rows.width)
        for level, held in zip(self.constants[shape].levels, shape.levels, strict=True):
            logits = self.forward(level, tokens, sequences, slots, beside)
            penalties = needs_of(sequences, self.sampling).penalties
            if self.after is None and not penalties:  # probabilities have the order of the logits
                most_probable(tokens, logits, level)
                continue
            sampling = rules_of(sequences, slots, self.sampling)
            seen = self.past(sequences, slots, tokens, level) if penalties else None
            if self.after is None and seen is not None:
                most_probable(tokens, penalised(logits.double(), seen, sampling), level)
                continue
            law = process(logits, sampling, seen)
            if q is not None:
                q.index_copy_(1, level.nodes, law)
            self.draw(tokens, law, held, sequences, slots)  # (3)
        parents = self.constants[shape].parents.expand(b, -1) if self.trees else None
        return Proposal(Window(tokens, slots, None, parents), q, self.law)

    def forward(self, level: LevelTensors, tokens: Tensor, sequences: Sequences, slots: Tensor, beside: Tensor) -> Tensor:
        """The logits after the nodes of a level (b, w, i); `beside` are the scratch rows of each slot."""
        if level.depth == 0:
            return self.rows.follow(sequences, slots)[:, None]  # (1)
        rows = beside[:, : len(level.nodes)]
        if level.depth == 1:
            self.rows.copy(slots[:, None].expand_as(rows), rows)
        elif level.moved:
            self.rows.copy(beside.index_select(1, level.above), rows)
        return self.rows.step(tokens.index_select(1, level.nodes), rows)  # (2)

    def past(self, sequences: Sequences, slots: Tensor, tokens: Tensor, level: LevelTensors) -> Past:
        """What penalties read for the nodes of a level."""
        ancestors = level.ancestors.expand(len(slots), -1, -1)
        return past(sequences, slots, tokens, ancestors, self.model.config.vocabulary)

    def draw(self, tokens: Tensor, law: Tensor, level: Level, sequences: Sequences, slots: Tensor) -> None:
        """(3) by random draws, in place."""
        at = index(slots)
        seed = sequences.seeds(at, self.seed)
        for row, children in enumerate(level.children):
            left = law[:, row].double()
            for node in children:
                u = uniforms(seed, sequences.request[at], sequences.length[at], node, DRAW).double()
                tokens[:, node] = drawn = pick(left, ORDERED.sum(left), u)
                left = self.after(left, drawn) if self.after else left


def most_probable(tokens: Tensor, law: Tensor, level: LevelTensors) -> None:
    """(3) by rank, in place; a chosen token is removed from the distribution, which is not read afterwards."""
    best = law
    for rank, (nodes, rows) in enumerate(level.ranks):
        if rank:
            law.scatter_(-1, best, float("-inf"))
        best = largest(law)
        tokens.index_copy_(1, nodes, best[..., 0] if rows is None else best[..., 0].index_select(1, rows))


def largest(law: Tensor) -> Tensor:
    """The index of the largest (.., 1), the lowest of equals; in two steps for many, so that many blocks of a GPU work."""
    count = law.shape[-1]
    parts = next((n for n in (256, 128, 64, 32, 16) if count % n == 0), 1)
    if count < MANY or parts == 1:
        return law.argmax(-1, keepdim=True)
    values, places = law.reshape(*law.shape[:-1], parts, count // parts).max(-1)
    part = values.argmax(-1, keepdim=True)
    return torch.add(places.gather(-1, part), part, alpha=count // parts)


class ChainsDrafter(ModelDrafter):
    """Several chains for each sequence, as separate rows that begin after the same root: for greedy and naive rules.

    With `top` the chains begin with the most probable tokens and continue greedily; with `iid` they are independent draws.
    Either way they are verified as point masses, and the rules take the row with the longest accepted run.

    Raises: as `ModelDrafter`; ParameterError (rows or tokens below 1, draws without replacement).
    """

    def __init__(
        self,
        model: Model,
        tokens: int,
        drafts: int,
        operations: Operations | None = None,
        *,
        choose: str = "top",
        sampling: Sampling | None = None,
        seed: int = 0,
        slots: int = 8,
        cache: int = 2048,
        memory: int | None = None,
    ) -> None:
        if tokens < 1 or drafts < 1 or choose not in INDEPENDENT:
            raise ParameterError(
                f"drafts is {drafts}, tokens is {tokens} and choose is {choose!r}; give at least 1 of each, and top or iid"
            )
        parents = branches((drafts, *(1,) * (tokens - 1)))
        self.prepare(model, [parents], operations, choose, sampling, seed, True, slots, cache, memory)
        self.drafts, self.trees, self.law, self.nodes = drafts, False, "point_mass", 1 + tokens

    def propose(self, sequences: Sequences, slots: Tensor) -> Proposal:
        tokens = super().propose(sequences, slots).window.tokens
        chains = tokens[:, 1:].view(len(slots), self.nodes - 1, self.drafts).transpose(1, 2)
        rows = torch.cat([tokens[:, :1, None].expand(-1, self.drafts, 1), chains], dim=2).flatten(0, 1)
        return Proposal(Window(rows, slots.repeat_interleave(self.drafts), drafts=self.drafts))
