"""Drafts, choices, positions and settings of rows that are taken from the wrong place."""

import numpy as np

from ssmspec_ref.shapes import Array, Lengths, Parents

from ...adapters.reference_parts.acceptance import Runs, accept_greedy
from ...mistakes.mistake import after, before
from ...mistakes.operators import rounded_to, zero
from ..fault import planted


def last_of_the_ties(tokens: Array, parents: Array, logits: Array, budget: Array, eos: tuple[int, ...]) -> Runs:
    """Of equal largest logits the last one is chosen. Bug class GREEDY."""
    choice = logits.shape[2] - 1 - logits[:, :, ::-1].argmax(axis=2)
    return accept_greedy(tokens, parents, choice, budget, eos)


def block_of_the_vocabulary(tokens: Array, parents: Array, logits: Array, budget: Array, eos: tuple[int, ...]) -> Runs:
    """Blocks of 128 logits are reduced from the last to the first, a later block wins a tie. Bug class GREEDY."""
    wide = np.pad(logits, [(0, 0), (0, 0), (0, -logits.shape[2] % 128)], constant_values=-np.inf)
    blocks = wide.reshape(*logits.shape[:2], -1, 128)
    block = blocks.shape[2] - 1 - blocks.max(axis=3)[:, :, ::-1].argmax(axis=2)
    inside = np.take_along_axis(blocks, block[..., None, None], axis=2)[:, :, 0].argmax(axis=2)
    return accept_greedy(tokens, parents, block * 128 + inside, budget, eos)


def of_the_first(own: Array) -> Array:
    return np.repeat(own[:1], len(own))


def rows_without_top_k_have_one(top_k: Array, logits: Array) -> Array:
    """If any row asks for top-k, the others get the largest k of the batch. Bug class P-MISMATCH."""
    most = int(min(top_k.max(), logits.shape[1] - 1))
    return np.where((top_k == 0) & (top_k.max() > 0), most, top_k)


def min_p_of_the_whole(y: Array, min_p: Array) -> Array:
    """Min-p is compared with the probability, not with its share of the largest. Bug class P-MISMATCH."""
    kept = np.where((y >= min_p[:, None]) | (y == y.max(axis=1, keepdims=True)), y, 0.0)
    return np.asarray(kept / kept.sum(axis=1, keepdims=True))


def position_is_the_node(length: Lengths, parents: Parents) -> Array:
    """A node's position is its place in the packed tree, not its depth. Bug class TREE-TOPO."""
    return np.asarray(length[:, None] + np.arange(parents.shape[1]))


def counts_from_the_end(history: Array, drafts_: int, tokens: int, table: Array) -> Array:
    """Windows are ranked by where they were last seen, not by how often. Bug class VARIANT."""
    found = np.full((len(history), drafts_, tokens), -1)
    for b, row in enumerate(history):
        text = row[row >= 0]
        starts = np.flatnonzero(text[: max(len(text) - tokens, 0)] == text[-1])[::-1]
        every = np.concatenate([text[starts[:, None] + 1 + np.arange(tokens)], table[text[-1]]])
        first = [n for n, one in enumerate(every) if not (every[:n] == one).all(axis=1).any()][:drafts_]
        found[b, : len(first)] = every[first]
    return found


def ids_in_single_precision(tokens: Array, parents: Array, choice: Array) -> Array:
    """Tokens are compared after a conversion to single precision. Bug class INDEX."""
    choice = choice.copy()
    for b, row in enumerate(parents):
        for node, parent in enumerate(row):
            if parent >= 0 and np.float32(tokens[b, node]) == np.float32(choice[b, parent]):
                choice[b, parent] = tokens[b, node]
    return choice


SETTINGS = ("temperature", "top_k", "top_p", "min_p", "repetition", "presence", "frequency", "min_tokens")
FAULTS = planted(
    (last_of_the_ties, "acceptance.greedy_logits", "GREEDY"),
    (block_of_the_vocabulary, "acceptance.greedy_logits", "GREEDY"),
    (
        before(
            "choice_in_bf16",
            "Logits are rounded to bf16 before the largest is found. Bug class NUMERIC.",
            logits=rounded_to("bf16"),
        ),
        "acceptance.greedy_logits",
        "NUMERIC",
    ),
    (
        before(
            "settings_of_the_first_row",
            "Every row is sampled with the settings of the first. Bug class P-MISMATCH.",
            **dict.fromkeys(SETTINGS, of_the_first),
        ),
        "acceptance.process_rows",
        "P-MISMATCH",
    ),
    (before(top_k=rows_without_top_k_have_one), "acceptance.process_rows", "P-MISMATCH"),
    (before(min_p=zero).after(y=min_p_of_the_whole), "acceptance.process_rows", "P-MISMATCH"),
    (position_is_the_node, "attention.positions", "TREE-TOPO"),
    (
        after(
            "sixteen_bits_of_a_position",
            "Positions are kept in 16 bits. Bug class INDEX.",
            y=lambda y: y.astype(np.uint16),
        ),
        "attention.positions",
        "INDEX",
    ),
    (
        before(
            "shortest_agreement",
            "The last token alone is looked up, not the longest suffix. Bug class VARIANT.",
            longest=1,
        ),
        "draft.lookup",
        "VARIANT",
    ),
    (
        after(
            "finds_itself",
            "A draft runs past the end of its history into what follows there, 0. Bug class INDEX.",
            y=lambda y: np.where((y < 0) & (y[:, :1] >= 0), 0, y),
        ),
        "draft.lookup",
        "INDEX",
    ),
    (before(choice=ids_in_single_precision), "acceptance.greedy", "INDEX"),
    (
        before(
            "history_in_single_precision",
            "The history is kept in single precision. Bug class INDEX.",
            history=lambda history: history.astype(np.float32).astype(np.int64),
        ),
        "draft.lookup",
        "INDEX",
    ),
    (counts_from_the_end, "draft.png", "VARIANT"),
)
