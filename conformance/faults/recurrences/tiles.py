"""Wrong past a size that real models have: channels, states, heads, rows, tokens, slots, children, counts, token numbers."""

from typing import Any

import numpy as np

from ssmspec_ref import conv, delta, selective, ssd
from ssmspec_ref.contract import FLOAT64, Adapter, NumericContract
from ssmspec_ref.shapes import Ancestors, Array, Lengths, Parents, Path
from ssmspec_ref.tree import paths as tree_paths

from ...adapters.reference_parts import attention, processors
from ...adapters.reference_parts.acceptance import Runs, accept_greedy, accept_sampled
from ..single import Wrong, adapter_of
from .arithmetic import right, rounded

FP32 = NumericContract()
NEVER, PADDING = -7, -2


def two_hundred_channels(M: Array, u: Array, params: Any) -> tuple[Array, Array]:
    """Channels from the 256th on are not written: the grid has one block of them."""
    y, M_next = conv.scan(M, u, params)
    return rounded(np.where(np.arange(y.shape[2]) < 256, y, 0.0), M_next)


def half_the_states(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """States from the 128th on are not stored."""
    y, S_next = right(S, window, params)
    S_next[..., 128:] = 0
    return y, S_next


def thirty_two_heads(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """Heads from the 32nd on are not written."""
    y, S_next = right(S, window, params)
    y[:, :, 32:] = 0
    return y, S_next


def thirty_two_rows(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """Rows from the 32nd on are not written."""
    y, S_next = right(S, window, params)
    y[32:] = 0
    return y, S_next


def two_chunks(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """The third chunk of 256 tokens is not written. Bug class CHUNK."""
    y, S_next = right(S, window, params)
    y[:, 512:] = 0
    return y, S_next


def channels_of_one_block(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """Channels from the 256th on are not written."""
    y, S_next = selective.scan(S, window, params)
    return rounded(np.where(np.arange(y.shape[2]) < 256, y, 0.0), S_next)


def one_tile_of_values(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """Value channels from the 128th on are not written."""
    o, S_next = delta.scan(S, window, params)
    return rounded(np.where(np.arange(o.shape[3]) < 128, o, 0.0), S_next)


def trees_of_the_first_row(S: Array, window: Any, ancestors: Ancestors, params: Any) -> Array:
    """With more than four rows, every row uses the tree of the first."""
    same = ancestors & ancestors[:1] | (np.eye(ancestors.shape[1], dtype=bool) & ancestors)
    seen = same if len(ancestors) > 4 else ancestors
    return tree_paths.scan(lambda state, path: ssd.scan(state, path, params), S, window, seen).astype(np.float32)


def sixty_four_channels(
    K: Array, V: Array, length: Lengths, q: Array, k: Array, v: Array, ancestors: Ancestors, scale: Any
) -> Array:
    """Channels of a head from the 64th on are not written."""
    y = attention.verify_tree(K, V, length, q, k, v, ancestors, scale)
    return np.where(np.arange(y.shape[3]) < 64, y, 0.0)


def one_split_of_slots(
    K: Array, V: Array, length: Lengths, q: Array, k: Array, v: Array, ancestors: Ancestors, scale: Any
) -> Array:
    """In a long cache the slots after the first 256 are omitted: the second split is not added."""
    return attention.verify_tree(K, V, np.minimum(length, 256), q, k, v, ancestors, scale)


def moves_near_slots(K: Array, V: Array, length: Lengths, path: Path) -> tuple[Array, Array]:
    """Slots from the 128th on are not moved."""
    near = (np.arange(K.shape[1]) < 128)[:, None, None]
    moved = attention.compact(K, V, length, path)
    return tuple(np.where(near, new, old) for new, old in zip(moved, (K, V), strict=True))  # type: ignore[return-value]


def moves_near_channels(K: Array, V: Array, length: Lengths, path: Path) -> tuple[Array, Array]:
    """Channels from the 128th on are not moved."""
    near = np.arange(K.shape[3]) < 128
    moved = attention.compact(K, V, length, path)
    return tuple(np.where(near, new, old) for new, old in zip(moved, (K, V), strict=True))  # type: ignore[return-value]


def first_children(parents: Parents, most: int) -> Array:
    """Which nodes are among the first children of their parents."""
    kept = np.ones(parents.shape, dtype=bool)
    for b, row in enumerate(parents):
        for node, parent in enumerate(row):
            kept[b, node] = parent < 0 or (row[:node] == parent).sum() < most
    return kept


def sixteen_children(tokens: Array, parents: Array, choice: Array, budget: Array, eos: tuple[int, ...]) -> Runs:
    """Only the first sixteen children of a node are tried."""
    return accept_greedy(np.where(first_children(parents, 16), tokens, NEVER), parents, choice, budget, eos)


def two_ends(tokens: Array, parents: Array, choice: Array, budget: Array, eos: tuple[int, ...]) -> Runs:
    """Only the first two end-of-sequence tokens are tested."""
    return accept_greedy(tokens, parents, choice, budget, eos[:2])


def small_budgets(tokens: Array, parents: Array, choice: Array, budget: Array, eos: tuple[int, ...]) -> Runs:
    """A budget of three tokens or more is treated as unlimited."""
    return accept_greedy(tokens, parents, choice, np.where(budget > 2, tokens.shape[1] + 1, budget), eos)


def sixty_four_bits(tokens: Array, parents: Array, choice: Array, budget: Array, eos: tuple[int, ...]) -> Runs:
    """Nodes from the 64th on are never accepted: the set of nodes is one word."""
    return accept_greedy(np.where(np.arange(tokens.shape[1]) < 64, tokens, NEVER), parents, choice, budget, eos)


def narrow_numbers(tokens: Array, parents: Array, choice: Array, budget: Array, eos: tuple[int, ...]) -> Runs:
    """Token ids are compared as 16-bit integers."""
    said, taken = choice.copy(), choice % 2**16
    for b, row in enumerate(parents):
        for node in range(len(row) - 1, 0, -1):
            if row[node] >= 0 and tokens[b, node] % 2**16 == taken[b, row[node]]:
                said[b, row[node]] = tokens[b, node]
    return accept_greedy(tokens, parents, said, budget, eos)


def rows_of_a_block(tokens: Array, parents: Array, choice: Array, budget: Array, eos: tuple[int, ...]) -> Runs:
    """Rows from the 64th on accept nothing."""
    emitted, path, advanced, ended = accept_greedy(tokens, parents, choice, budget, eos)
    return emitted, path, np.where(np.arange(len(advanced)) < 64, advanced, 0), ended


def one_block_of_tokens(tokens: Array, parents: Array, p: Array, *rest: Any) -> Runs:
    """Only the first 1024 tokens of the target's distribution are read."""
    read = np.where(np.arange(p.shape[2]) < 1024, p, 0.0)
    return accept_sampled(tokens, parents, read / read.sum(axis=2, keepdims=True), *rest)


def eight_children(tokens: Array, parents: Array, *rest: Any) -> Runs:
    """Only the first eight children of a node are tried; the others count as rejected."""
    p, q, coins, *others = rest
    coins = np.where(first_children(parents, 8), coins, 1 - 2.0**-24)
    return accept_sampled(tokens, parents, p, q, coins, *others)


def thirty_two_bits(tokens: Array, parents: Array, *rest: Any) -> Runs:
    """Nodes from the 32nd on are never accepted: the set of nodes is one word."""
    return accept_sampled(tokens, np.where(np.arange(parents.shape[1]) < 32, parents, PADDING), *rest)


def cap_before_end(tokens: Array, parents: Array, *rest: Any) -> Runs:
    """The budget is tested before the end of sequence: tokens between the two are emitted. sgl-project/sglang#33758."""
    p, q, coins, picks, budget, eos, law = rest
    stopped, free = (accept_sampled(tokens, parents, p, q, coins, picks, budget, ends, law) for ends in (eos, ()))
    capped = free[3] & (free[2] >= budget)
    return tuple(np.where(capped.reshape(-1, *[1] * (a.ndim - 1)), b, a) for a, b in zip(stopped, free, strict=True))  # type: ignore[return-value]


def short_history(logits: Array, prompt: Array, *rest: Any) -> Array:
    """Only the first 64 tokens of the prompt are counted."""
    return processors.process(logits, prompt[:, :64], *rest)


def short_output(logits: Array, prompt: Array, output: Array, *rest: Any) -> Array:
    """Only the first 64 tokens of the output are counted."""
    return processors.process(logits, prompt, output[:, :64], *rest)


def counts_of_a_byte(logits: Array, prompt: Array, output: Array, *rest: Any) -> Array:
    """Counts of the output have 8 bits and wrap around at 256."""
    frequency = rest[5]
    times = (output[:, :, None] == np.arange(logits.shape[1])).sum(axis=1)
    return processors.process(logits + frequency * (times - times % 256), prompt, output, *rest)


def one_block_of_logits(logits: Array, *rest: Any) -> Array:
    """Logits from the 4096th on are ignored."""
    return processors.process(np.where(np.arange(logits.shape[1]) < 4096, logits, -np.inf), *rest)


def sixty_four_candidates(logits: Array, prompt: Array, output: Array, T: float, k: int, *rest: Any) -> Array:
    """Top-k keeps 64 tokens at most."""
    return processors.process(logits, prompt, output, T, min(k, 64) if k < logits.shape[1] else k, *rest)


def warm(logits: Array, prompt: Array, output: Array, T: float, *rest: Any) -> Array:
    """Temperatures between 0 and 0.1 are raised to 0.1."""
    return processors.process(logits, prompt, output, max(T, 0.1) if T else T, *rest)


def least_share(logits: Array, prompt: Array, output: Array, T: float, k: int, share: float, *rest: Any) -> Array:
    """top-p is raised to at least 0.1."""
    return processors.process(logits, prompt, output, T, k, max(share, 0.1), *rest)


FAULTS: tuple[Wrong, ...] = (
    (two_hundred_channels, "conv.scan", "INDEX", FP32),
    (half_the_states, "ssd.scan", "INDEX", FP32),
    (thirty_two_heads, "ssd.scan", "INDEX", FP32),
    (thirty_two_rows, "ssd.scan", "INDEX", FP32),
    (two_chunks, "ssd.scan", "CHUNK", FP32),
    (channels_of_one_block, "selective.scan", "INDEX", FP32),
    (one_tile_of_values, "delta.scan", "INDEX", FP32),
    (trees_of_the_first_row, "ssd.verify_tree", "SLOT-SCOPE", FP32),
    (sixty_four_channels, "attention.verify_tree", "INDEX", FLOAT64),
    (one_split_of_slots, "attention.verify_tree", "INDEX", FLOAT64),
    (moves_near_slots, "attention.compact", "INDEX", FLOAT64),
    (moves_near_channels, "attention.compact", "INDEX", FLOAT64),
    (sixteen_children, "acceptance.greedy", "INDEX", FLOAT64),
    (two_ends, "acceptance.greedy", "STOP", FLOAT64),
    (small_budgets, "acceptance.greedy", "STOP", FLOAT64),
    (sixty_four_bits, "acceptance.greedy", "TREE-MASK", FLOAT64),
    (narrow_numbers, "acceptance.greedy", "INDEX", FLOAT64),
    (rows_of_a_block, "acceptance.greedy", "INDEX", FLOAT64),
    (one_block_of_tokens, "acceptance.sampled", "INDEX", FLOAT64),
    (eight_children, "acceptance.sampled", "INDEX", FLOAT64),
    (thirty_two_bits, "acceptance.sampled", "TREE-MASK", FLOAT64),
    (cap_before_end, "acceptance.sampled", "STOP", FLOAT64),
    (short_history, "acceptance.process", "P-MISMATCH", FLOAT64),
    (short_output, "acceptance.process", "P-MISMATCH", FLOAT64),
    (counts_of_a_byte, "acceptance.process", "P-MISMATCH", FLOAT64),
    (one_block_of_logits, "acceptance.process", "INDEX", FLOAT64),
    (sixty_four_candidates, "acceptance.process", "P-MISMATCH", FLOAT64),
    (warm, "acceptance.process", "P-MISMATCH", FLOAT64),
    (least_share, "acceptance.process", "P-MISMATCH", FLOAT64),
)
"""Each with its operation, its bug class, and what it declares."""


def adapter() -> Adapter:
    return adapter_of("tiles", FAULTS)
