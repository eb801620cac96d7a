"""Drafts, choices, positions and settings of rows that are taken from the wrong place."""

from dataclasses import replace

import numpy as np

from ssmspec_ref.accept.processors import RowSettings
from ssmspec_ref.contract import FLOAT64, Adapter
from ssmspec_ref.shapes import Array, Lengths, Parents

from ...adapters.reference_parts import acceptance, attention, drafts
from ...adapters.reference_parts.processors import process_rows
from ...judge.draw import stored
from ..single import Wrong, adapter_of


def last_of_the_ties(tokens: Array, parents: Array, logits: Array, budget: Array, eos: tuple[int, ...]) -> acceptance.Runs:
    """Of equal largest logits the last one is chosen. Bug class GREEDY."""
    choice = logits.shape[2] - 1 - logits[:, :, ::-1].argmax(axis=2)
    return acceptance.accept_greedy(tokens, parents, choice, budget, eos)


def block_of_the_vocabulary(
    tokens: Array, parents: Array, logits: Array, budget: Array, eos: tuple[int, ...]
) -> acceptance.Runs:
    """Blocks of 128 logits are reduced from the last to the first, a later block wins a tie. Bug class GREEDY."""
    wide = np.pad(logits, [(0, 0), (0, 0), (0, -logits.shape[2] % 128)], constant_values=-np.inf)
    blocks = wide.reshape(*logits.shape[:2], -1, 128)
    block = blocks.shape[2] - 1 - blocks.max(axis=3)[:, :, ::-1].argmax(axis=2)
    inside = np.take_along_axis(blocks, block[..., None, None], axis=2)[:, :, 0].argmax(axis=2)
    return acceptance.accept_greedy(tokens, parents, block * 128 + inside, budget, eos)


def choice_in_bf16(tokens: Array, parents: Array, logits: Array, budget: Array, eos: tuple[int, ...]) -> acceptance.Runs:
    """Logits are rounded to bf16 before the largest is found. Bug class NUMERIC."""
    return acceptance.accept_logits(tokens, parents, stored(logits, "bf16"), budget, eos)


def settings_of_the_first_row(
    logits: Array, prompt: Array, output: Array, settings: RowSettings, eos: tuple[int, ...]
) -> Array:
    """Every row is sampled with the settings of the first. Bug class P-MISMATCH."""
    first = RowSettings(**{name: np.repeat(a[:1], len(a)) for name, a in vars(settings).items()})
    return process_rows(logits, prompt, output, first, eos)


def rows_without_top_k_have_one(
    logits: Array, prompt: Array, output: Array, settings: RowSettings, eos: tuple[int, ...]
) -> Array:
    """If any row asks for top-k, the others get the largest k of the batch. Bug class P-MISMATCH."""
    most = settings.top_k.max()
    small = int(min(most, logits.shape[1] - 1))
    asked = np.where(settings.top_k == 0, small, settings.top_k) if most else settings.top_k
    return process_rows(logits, prompt, output, replace(settings, top_k=asked), eos)


def min_p_of_the_whole(logits: Array, prompt: Array, output: Array, settings: RowSettings, eos: tuple[int, ...]) -> Array:
    """Min-p is compared with the probability, not with its share of the largest. Bug class P-MISMATCH."""
    p = process_rows(logits, prompt, output, replace(settings, min_p=np.zeros_like(settings.min_p)), eos)
    kept = (p >= settings.min_p[:, None]) | (p == p.max(axis=1, keepdims=True))
    return np.asarray(np.where(kept, p, 0.0) / np.where(kept, p, 0.0).sum(axis=1, keepdims=True))


def position_is_the_node(length: Lengths, parents: Parents) -> Array:
    """A node's position is its place in the packed tree, not its depth. Bug class TREE-TOPO."""
    return np.asarray(length[:, None] + np.arange(parents.shape[1]))


def sixteen_bits_of_a_position(length: Lengths, parents: Parents) -> Array:
    """Positions are kept in 16 bits. Bug class INDEX."""
    return np.asarray(attention.positions(length, parents).astype(np.uint16))


def shortest_agreement(history: Array, tokens: int, longest: int, choice: str) -> Array:
    """The last token alone is looked up, not the longest suffix. Bug class VARIANT."""
    return drafts.lookup(history, tokens, 1, choice)


def finds_itself(history: Array, tokens: int, longest: int, choice: str) -> Array:
    """A draft runs past the end of its history into what follows there, 0. Bug class INDEX."""
    found = drafts.lookup(history, tokens, longest, choice)
    return np.where((found < 0) & (found[:, :1] >= 0), 0, found)


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


def ids_in_single_precision(
    tokens: Array, parents: Array, choice: Array, budget: Array, eos: tuple[int, ...]
) -> acceptance.Runs:
    """Tokens are compared after a conversion to single precision. Bug class INDEX."""
    choice = choice.copy()
    for b, row in enumerate(parents):
        for node, parent in enumerate(row):
            if parent >= 0 and np.float32(tokens[b, node]) == np.float32(choice[b, parent]):
                choice[b, parent] = tokens[b, node]
    return acceptance.accept_greedy(tokens, parents, choice, budget, eos)


def history_in_single_precision(history: Array, tokens: int, longest: int, choice: str) -> Array:
    """The history is kept in single precision. Bug class INDEX."""
    return drafts.lookup(history.astype(np.float32).astype(np.int64), tokens, longest, choice)


FAULTS: tuple[Wrong, ...] = tuple(
    (run, operation, bug_class, FLOAT64)
    for run, operation, bug_class in (
        (last_of_the_ties, "acceptance.greedy_logits", "GREEDY"),
        (block_of_the_vocabulary, "acceptance.greedy_logits", "GREEDY"),
        (choice_in_bf16, "acceptance.greedy_logits", "NUMERIC"),
        (settings_of_the_first_row, "acceptance.process_rows", "P-MISMATCH"),
        (rows_without_top_k_have_one, "acceptance.process_rows", "P-MISMATCH"),
        (min_p_of_the_whole, "acceptance.process_rows", "P-MISMATCH"),
        (position_is_the_node, "attention.positions", "TREE-TOPO"),
        (sixteen_bits_of_a_position, "attention.positions", "INDEX"),
        (shortest_agreement, "draft.lookup", "VARIANT"),
        (finds_itself, "draft.lookup", "INDEX"),
        (ids_in_single_precision, "acceptance.greedy", "INDEX"),
        (history_in_single_precision, "draft.lookup", "INDEX"),
        (counts_from_the_end, "draft.png", "VARIANT"),
    )
)


def adapter() -> Adapter:
    return adapter_of("tokens", FAULTS)
