"""Engines that verify trees of drafts at other positions than the depths of their nodes.

The model is a small hybrid: Mamba-2, rotary attention, Mamba-2. Its drafter is right along one path of every tree, whose
nodes are spread over the list, and wrong beside it. Nothing but the positions of a window differs between the engines.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from unittest.mock import patch

import numpy as np

from ssmspec_ref import attention, decode, speculate, tree
from ssmspec_ref.backtrack import snapshots
from ssmspec_ref.decode import Row, Sequences, Settings
from ssmspec_ref.model import Model, tiny
from ssmspec_ref.shapes import Ancestors, Array, Lengths, Positions
from ssmspec_ref.speculate import Window
from ssmspec_ref.tree import PADDING

from ...mistakes.mistake import instead
from ...suite.generate import TOKENS
from ..fault import planted

NODES, PACKED, LAYER = 7, 8, 2
"""Most nodes of a tree; rows of offsets that are kept for one; nodes to a layer, as `by_the_rows_before` has it."""


@lru_cache(1)
def model() -> Model:
    return tiny.model("hybrid", 1, TOKENS)


@lru_cache(16)
def plain(prompts: tuple[Row, ...], count: int) -> tuple[Row, ...]:
    """What plain decoding emits."""
    return decode.decode(prompts, model(), Settings(count))[0].emitted


def drafted(emitted: int, wanted: Row, row: int) -> tuple[Array, Array]:
    """Tokens and parents of one tree: on the way to its last node what is wanted next, beside it other tokens."""
    rng = np.random.default_rng([emitted, row])
    nodes = int(rng.integers(2, NODES + 1))
    parents = np.array([-1, *(max(0, node - 1 - int(rng.integers(3))) for node in range(1, nodes))])
    path = np.flatnonzero(tree.ancestors(parents[None])[0, -1])[1:]
    tokens = rng.integers(0, TOKENS, nodes)
    ahead = wanted[emitted : emitted + len(path)]
    tokens[path[: len(ahead)]] = ahead
    return tokens, parents


def window(sequences: Sequences, wanted: tuple[Row, ...]) -> Window:
    """A tree for each row, padded to the largest; a row that is complete has no window."""
    trees = [drafted(len(e), w, b) for b, (e, w) in enumerate(zip(sequences.emitted, wanted, strict=True))]
    widest = max(len(tokens) for tokens, _ in trees)
    tokens, parents = (np.full((len(trees), widest), filling) for filling in (0, PADDING))
    for b, (words, above) in enumerate(trees):
        if len(sequences.emitted[b]) < len(wanted[b]):
            tokens[b, : len(words)], parents[b, : len(above)] = words, above
    tokens[:, 0] = sequences.roots()
    return Window(tokens, parents=parents)


def generated(positions: Callable[[Lengths, Ancestors], Positions], prompts: Array, count: int, speculatively: bool) -> Array:
    """`count` tokens after each prompt; `positions` gives those of the nodes of a window."""
    rows = tuple(map(tuple, prompts.tolist()))
    wanted = plain(rows, count)
    if not speculatively:
        return np.array(wanted)
    sequences, state = decode.prefill(rows, model())
    kept, settings = speculate.start(state, model(), snapshots), Settings(count)
    while sequences.active(settings).any():
        drafts = window(sequences, wanted)
        with patch.object(attention, "positions", positions):
            sequences, kept = speculate.step(kept, sequences, drafts, model(), snapshots, settings, speculate.follow())
    return np.array(sequences.emitted)


def depths(ancestors: Ancestors) -> Array:
    return ancestors.sum(axis=2) - 1


def in_the_list(length: Lengths, seen: Ancestors) -> Positions:
    return length[:, None] + np.arange(seen.shape[1])


def by_layers(length: Lengths, seen: Ancestors) -> Positions:
    offsets = np.zeros(seen.shape[1], dtype=np.int64)
    for node in range(1, len(offsets)):
        offsets[node] = offsets[max(0, node - LAYER)] + 1
    return length[:, None] + offsets


def by_another_width(length: Lengths, seen: Ancestors) -> Positions:
    rows, nodes = seen.shape[:2]
    held = np.zeros((rows, PACKED), dtype=np.int64)
    held[:, :nodes] = depths(seen)
    return length[:, None] + held.ravel()[: rows * nodes].reshape(rows, nodes)


by_depth = instead("by_depth", "Correct.", partial(generated, attention.positions))
FAULTS = planted(
    *(
        (instead(name, says, partial(generated, positions)), "generate.greedy", "TREE-TOPO")
        for name, says, positions in (
            (
                "places_in_the_list",
                "The position of a node is its index, which equals its depth only in a chain. lablup/mlxcel#1214.",
                in_the_list,
            ),
            (
                "by_the_rows_before",
                "A new tree level gets the positions of the same number of nodes before it plus one; parents are ignored. "
                "NVIDIA/TensorRT-LLM#12962, of a draft model's positions; here they are the target's.",
                by_layers,
            ),
            (
                "width_of_the_window",
                "Offsets are stored with the width of the largest tree but read with the width of this window. "
                "NVIDIA/TensorRT-LLM#13426.",
                by_another_width,
            ),
        )
    )
)
