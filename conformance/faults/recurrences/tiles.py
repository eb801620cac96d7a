"""Wrong past a size that real models have: channels, states, heads, rows, tokens, slots, children, counts, token numbers."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ssmspec_ref.shapes import Ancestors, Array, Parents

from ...adapters.reference_parts.acceptance import Runs, accept_sampled
from ...mistakes.mistake import after, before, instead
from ...mistakes.operators import at_most, cut, drop, of_rows, places
from ..fault import FP32, planted

NEVER, PADDING = -7, -2


def trees_of_the_first_row(ancestors: Ancestors) -> Ancestors:
    """With more than four rows, every row uses the tree of the first."""
    same = ancestors & ancestors[:1] | (np.eye(ancestors.shape[1], dtype=bool) & ancestors)
    return same if len(ancestors) > 4 else ancestors


def moved(axis: int, most: int) -> dict[str, Any]:
    """Keys and values that are moved up to an index of an axis only."""
    return {
        "K_next": lambda own, K: np.where(places(own, axis) < most, own, K),
        "V_next": lambda own, V: np.where(places(own, axis) < most, own, V),
    }


def first_children(parents: Parents, most: int) -> Array:
    """Which nodes are among the first children of their parents."""
    kept = np.ones(parents.shape, dtype=bool)
    for b, row in enumerate(parents):
        for node, parent in enumerate(row):
            kept[b, node] = parent < 0 or (row[:node] == parent).sum() < most
    return kept


def narrow_numbers(tokens: Array, parents: Array, choice: Array) -> Array:
    """Token ids are compared as 16-bit integers."""
    said, taken = choice.copy(), choice % 2**16
    for b, row in enumerate(parents):
        for node in range(len(row) - 1, 0, -1):
            if row[node] >= 0 and tokens[b, node] % 2**16 == taken[b, row[node]]:
                said[b, row[node]] = tokens[b, node]
    return said


def capped(accept: Callable[..., Runs], *given: Any) -> Runs:
    """Accepted with the budget tested before the end of sequence, which is the last argument or that before the law."""
    at = next(n for n, one in enumerate(given) if isinstance(one, tuple))
    stopped, free = (accept(*given[:at], ends, *given[at + 1 :]) for ends in (given[at], ()))
    over = free[3] & (free[2] >= given[at - 1])
    return tuple(np.where(of_rows(over, a), b, a) for a, b in zip(stopped, free, strict=True))  # type: ignore[return-value]


CAPPED = "The budget is tested before the end of sequence: tokens between the two are emitted. sgl-project/sglang#33758."


def one_block_of_tokens(p: Array) -> Array:
    """Only the first 1024 tokens of the target's distribution are read."""
    read = drop(2, 1024)(p)
    return np.asarray(read / read.sum(axis=2, keepdims=True))


def counts_of_a_byte(logits: Array, output: Array, frequency: float) -> Array:
    """Counts of the output have 8 bits and wrap around at 256."""
    times = (output[:, :, None] == np.arange(logits.shape[1])).sum(axis=1)
    return logits + frequency * (times - times % 256)


FAULTS = planted(
    *(
        (after(name, says, **change), operation, bug_class, FP32)
        for name, says, change, operation, bug_class in (
            (
                "two_hundred_channels",
                "Channels from the 256th on are not written: the grid has one block of them.",
                {"y": drop(2, 256)},
                "conv.scan",
                "INDEX",
            ),
            ("half_the_states", "States from the 128th on are not stored.", {"S_next": drop(-1, 128)}, "ssd.scan", "INDEX"),
            ("thirty_two_heads", "Heads from the 32nd on are not written.", {"y": drop(2, 32)}, "ssd.scan", "INDEX"),
            ("thirty_two_rows", "Rows from the 32nd on are not written.", {"y": drop(0, 32)}, "ssd.scan", "INDEX"),
            (
                "two_chunks",
                "The third chunk of 256 tokens is not written. Bug class CHUNK.",
                {"y": drop(1, 512)},
                "ssd.scan",
                "CHUNK",
            ),
            (
                "channels_of_one_block",
                "Channels from the 256th on are not written.",
                {"y": drop(2, 256)},
                "selective.scan",
                "INDEX",
            ),
            (
                "one_tile_of_values",
                "Value channels from the 128th on are not written.",
                {"y": drop(3, 128)},
                "delta.scan",
                "INDEX",
            ),
        )
    ),
    (before(ancestors=trees_of_the_first_row), "ssd.verify_tree", "SLOT-SCOPE", FP32),
    (
        after("sixty_four_channels", "Channels of a head from the 64th on are not written.", y=drop(3, 64)),
        "attention.verify_tree",
        "INDEX",
    ),
    (
        before(
            "one_split_of_slots",
            "In a long cache the slots after the first 256 are omitted: the second split is not added.",
            length=at_most(256),
        ),
        "attention.verify_tree",
        "INDEX",
    ),
    (
        after("moves_near_slots", "Slots from the 128th on are not moved.", **moved(1, 128)),
        "attention.compact",
        "INDEX",
    ),
    (
        after("moves_near_channels", "Channels from the 128th on are not moved.", **moved(3, 128)),
        "attention.compact",
        "INDEX",
    ),
    *(
        (run, "acceptance.greedy", bug_class)
        for run, bug_class in (
            (
                before(
                    "sixteen_children",
                    "Only the first sixteen children of a node are tried.",
                    tokens=lambda tokens, parents: np.where(first_children(parents, 16), tokens, NEVER),
                ),
                "INDEX",
            ),
            (before("two_ends", "Only the first two end-of-sequence tokens are tested.", eos=lambda eos: eos[:2]), "STOP"),
            (
                before(
                    "small_budgets",
                    "A budget of three tokens or more is treated as unlimited.",
                    budget=lambda budget, tokens: np.where(budget > 2, tokens.shape[1] + 1, budget),
                ),
                "STOP",
            ),
            (
                before(
                    "sixty_four_bits",
                    "Nodes from the 64th on are never accepted: the set of nodes is one word.",
                    tokens=drop(1, 64, NEVER),
                ),
                "TREE-MASK",
            ),
            (before(choice=narrow_numbers), "INDEX"),
            (after("rows_of_a_block", "Rows from the 64th on accept nothing.", advanced=drop(0, 64)), "INDEX"),
        )
    ),
    (before(p=one_block_of_tokens), "acceptance.sampled", "INDEX"),
    (
        before(
            "eight_children",
            "Only the first eight children of a node are tried; the others count as rejected.",
            coins=lambda coins, parents: np.where(first_children(parents, 8), coins, 1 - 2.0**-24),
        ),
        "acceptance.sampled",
        "INDEX",
    ),
    (
        before(
            "thirty_two_bits",
            "Nodes from the 32nd on are never accepted: the set of nodes is one word.",
            parents=drop(1, 32, PADDING),
        ),
        "acceptance.sampled",
        "TREE-MASK",
    ),
    (instead("cap_before_end", CAPPED, partial(capped, accept_sampled)), "acceptance.sampled", "STOP"),
    *(
        (before(name, says, **change), "acceptance.process", bug_class)
        for name, says, change, bug_class in (
            ("short_history", "Only the first 64 tokens of the prompt are counted.", {"prompt": cut(1, 64)}, "P-MISMATCH"),
            ("short_output", "Only the first 64 tokens of the output are counted.", {"output": cut(1, 64)}, "P-MISMATCH"),
            ("", "", {"logits": counts_of_a_byte}, "P-MISMATCH"),
            ("one_block_of_logits", "Logits from the 4096th on are ignored.", {"logits": drop(1, 4096, -np.inf)}, "INDEX"),
            (
                "sixty_four_candidates",
                "Top-k keeps 64 tokens at most.",
                {"top_k": lambda top_k, logits: min(top_k, 64) if top_k < logits.shape[1] else top_k},
                "P-MISMATCH",
            ),
            (
                "warm",
                "Temperatures between 0 and 0.1 are raised to 0.1.",
                {"temperature": lambda temperature: max(temperature, 0.1) if temperature else temperature},
                "P-MISMATCH",
            ),
            ("least_share", "top-p is raised to at least 0.1.", {"top_p": lambda top_p: max(top_p, 0.1)}, "P-MISMATCH"),
        )
    ),
)
