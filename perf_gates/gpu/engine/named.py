"""Steps of an engine by the names that `gates.toml` gives them.

    plain, window of 1               METHOD, window of TOKENS | tree of NODES [, N drafts] [, N emitted] [, context 4k]
    end to end tree A                drafting is timed too: a SHAPE, or PNG(6,2); the drafter is that of the model
    end to end PNG(6,2) as a tree    the drafts of a sequence in one packed tree, merged at their common prefixes
    end to end PNG(3,1) from a ring  verified from the replay buffer
    end to end chain of 5 by MODEL   the drafter is the named model
    draft tree 3,2,2,1,1             drafting alone: the model is the drafter
    packed 3x4, unrolled 3x4         a beam tree of 3 beams and 4 steps in one row, and in a row and a state for each leaf
    joint K=6 M=2, chunk scan ..     see `ablation`
    transformers, window of 1        a plain step of transformers, see `theirs`

A SHAPE is chain of N, with N drafts; tree A to E; tree 3,2,1, the children by level; beam 3x4.
"""

import re
from dataclasses import dataclass

import numpy as np

from ssmspec_ref.draft import static_tree

CONTEXT = 512
"""Tokens in the caches of attention, unless the name gives another number."""
FORCED = 2
"""Tokens that a step with drafting emits; its time is the same for any number."""
DRAFTERS = {
    "mamba-in-llama-8b": "mamba-in-llama-2l-1024",
    "mamba-in-llama-8b-25": "mamba-in-llama-2l-1024",
    "mamba-in-llama-8b-0": "mamba-in-llama-2l-1024",
    "pythia-6.9b": "mamba-130m",
    "mistral-7b": "mamba-130m-32000",
    "tiny-hybrid": "tiny",
}
THEIRS = "transformers"
METHODS = ("plain", "snapshots", "joint", "joint-by-lag", "replay", "buffer", "tree", THEIRS)
SEED = 0
"""Of the beam trees, which are drawn."""
STEP = re.compile(
    r"^(?P<method>[\w-]+), (?P<kind>window|tree) of (?P<tokens>\d+)(, (?P<drafts>\d+) drafts)?(, (?P<emitted>\d+) emitted)?$"
)


@dataclass(frozen=True, repr=False)
class Step:
    """`tokens` of a window or nodes of a tree, root included; `shape` of the drafts, by `drafter` (empty: n-grams);
    `alone` leaves the target out; `ablated` names the removed optimisation; `leaves` are the rows of an unrolled sequence."""

    model: str
    operation: str
    batch: int
    method: str
    tokens: int
    drafts: int = 1
    emitted: int = 1
    parents: tuple[int, ...] | None = None
    context: int = CONTEXT
    shape: str = ""
    drafter: str = ""
    alone: bool = False
    ablated: str = ""
    leaves: int = 1

    def __repr__(self) -> str:
        return f"{self.model} {self.operation}, batch {self.batch}"

    @property
    def rows(self) -> int:
        """Rows of a linear layer of the target: joint attainment feeds accepted drafts again, by lag those alone."""
        again = {"joint": self.tokens - 1, "joint-by-lag": self.emitted - 1}.get(self.method, 0)
        fed = self.tokens + again
        return self.batch * self.drafts * fed


def named(model: str, operation: str, batch: int) -> Step | None:
    """The step of a name; None for a name of another kind."""
    name, _, context = operation.partition(", context ")
    head, _, rest = name.partition(" ")
    long = 1024 * int(context.removesuffix("k")) if context else CONTEXT
    if name.startswith("end to end "):
        return drafting(model, operation, batch, name.removeprefix("end to end "), long)
    if head == "draft":
        tokens, parents = sized(rest)
        method = "replay" if parents is None else "tree"
        return Step(model, operation, batch, method, tokens, 1, FORCED, parents, long, rest, model, alone=True)
    if head in ("packed", "unrolled"):
        parents = beam_tree(*map(int, rest.split("x")))
        if head == "packed":
            return Step(model, operation, batch, "tree", len(parents), parents=parents)
        leaves = len(set(range(len(parents))) - set(parents))
        return Step(model, operation, batch * leaves, "replay", 1 + int(rest.split("x")[1]), leaves=leaves)
    if name.startswith("joint K=6 M=2, "):
        return Step(model, operation, batch, "joint", 7, 2, ablated=name.partition(", ")[2])
    found = STEP.match(name)
    if found is None or found["method"] not in METHODS:
        return None
    tokens = int(found["tokens"])
    parents = tree_of(tokens) if found["kind"] == "tree" else None
    drafts, emitted = int(found["drafts"] or 1), int(found["emitted"] or 1)
    return Step(model, operation, batch, found["method"], tokens, drafts, emitted, parents, long)


def drafting(model: str, operation: str, batch: int, shape: str, context: int) -> Step:
    """A whole step: PNG(K,M) is verified by joint attainment if it has several draft rows, trees as trees."""
    if shape.startswith("PNG"):
        K, M = png(shape)
        if shape.endswith(" as a tree"):
            parents = chains(K, M)
            return Step(model, operation, batch, "tree", len(parents), 1, FORCED, parents, context, shape)
        if shape.endswith(" from a ring"):
            return Step(model, operation, batch, "buffer", 1 + K, M, FORCED, None, context, shape)
        return Step(model, operation, batch, "joint" if M > 1 else "replay", 1 + K, M, FORCED, None, context, shape)
    shape, _, by = shape.partition(" by ")
    tokens, tree = sized(shape)
    method = "replay" if tree is None else "tree"
    return Step(model, operation, batch, method, tokens, 1, FORCED, tree, context, shape, by or DRAFTERS[model])


def png(shape: str) -> tuple[int, int]:
    """Tokens of a draft and drafts of PNG(K,M)."""
    K, M = map(int, shape.partition(")")[0].removeprefix("PNG(").split(","))
    return K, M


def chains(tokens: int, drafts: int) -> tuple[int, ...]:
    """The parents of a root with drafts below it that have no prefix in common, one after the other."""
    below = ((0, *range(1 + m * tokens, (m + 1) * tokens)) for m in range(drafts))
    return (-1, *(parent for chain in below for parent in chain))


def sized(shape: str) -> tuple[int, tuple[int, ...] | None]:
    """The nodes of a shape, and its parents; those of a beam tree, which drafting decides, as one that is drawn."""
    kind, _, size = shape.partition(" ")
    if kind == "chain":
        return 1 + int(size.removeprefix("of ")), None
    parents = beam_tree(*map(int, size.split("x"))) if kind == "beam" else fixed(size)
    return len(parents), parents


def fixed(size: str) -> tuple[int, ...]:
    """A static tree by its letter, or by the children of each level."""
    if size.isalpha():
        return tuple(getattr(static_tree, f"TREE_{size}"))
    counts, level, levels = [int(count) for count in size.split(",")], 1, []
    for count in counts:
        levels.append([count] * level)
        level *= count
    return static_tree.tree_from_branches(levels)


def tree_of(nodes: int) -> tuple[int, ...]:
    """STree's tree A for 13 nodes; otherwise a binary tree, level by level."""
    if nodes == len(static_tree.TREE_A):
        return static_tree.TREE_A
    return (-1, *((i - 1) // 2 for i in range(1, nodes)))


def beam_tree(beams: int, steps: int) -> tuple[int, ...]:
    """Every step's nodes are below beams of the previous step, all drawn with equal probability; the others are leaves."""
    rng, parents, level = np.random.default_rng(SEED), [-1], [0]
    for _ in range(steps):
        above = sorted(int(i) for i in rng.choice(level, beams))
        level = list(range(len(parents), len(parents) + beams))
        parents += above
    return tuple(parents)
