"""Drafts from the text so far: prompt n-grams backed by a bigram table, and prompt lookup.

Both propose tokens without a distribution: verification treats each draft as a point mass.
"""

from collections import Counter

import numpy as np

from ..checks import checked
from ..errors import ParameterError, ShapeMismatch
from ..shapes import BigramTable, DraftRows, Sequence
from .model import DraftModel, S, top


@checked
def png(history: Sequence, drafts: int, tokens: int, table: BigramTable) -> DraftRows:
    """PNG(tokens, drafts): the windows that followed the root most often, then extended bigrams of the model.

    Windows: every run of tokens + 1 tokens in prompt and output whose first token is the root, history[-1]     (1)
    Rows:    the most frequent distinct windows first; on ties, the one seen last                               (2)
    Rest:    rows of table[root] that are not yet proposed                                                      (3)

    Only full windows count: a match closer to the end than `tokens` is skipped. The paper leaves open what happens if counts
    are equal, or if a window is also in the table; here (2) and (3) decide.

    Raises: ParameterError (drafts or tokens below 1, an empty history, a root outside the table), ShapeMismatch (a table of
    another length), PrecisionError.
    Source: Snakes and Ladders, section 5.2, for PNG; the table, which it does not describe, is that of arXiv:2411.03786.
    """
    _positive(drafts=drafts, tokens=tokens, history=len(history))
    if table.shape[2] != tokens:
        raise ShapeMismatch(f"table has shape {table.shape}; give (vocabulary, rows, {tokens}), see bigram_table")
    root = int(history[-1])
    if not 0 <= root < len(table):
        raise ParameterError(f"the root is token {root}, but the table has rows for 0 to {len(table) - 1} only; give it one")
    starts = [s for s in range(len(history) - tokens) if history[s] == root]
    windows = [tuple(int(x) for x in history[s + 1 : s + 1 + tokens]) for s in starts]  # (1)
    count, seen_last = Counter(windows), {window: s for s, window in enumerate(windows)}
    rows = sorted(count, key=lambda window: (-count[window], -seen_last[window]))[:drafts]  # (2)
    for row in table[root]:
        extended = tuple(int(x) for x in row)
        if len(rows) < drafts and extended not in rows:
            rows.append(extended)  # (3)
    return np.array(rows, dtype=np.int64).reshape(len(rows), tokens)


def bigram_table(model: DraftModel[S], start: S, vocabulary: int, rows: int, tokens: int) -> BigramTable:
    """The extended model bigram: table[v] holds the top `rows` tokens after v, each extended greedily to `tokens` tokens.

    `start` is a state of one row in which v is the first token (after the beginning-of-sequence token, if there is one).

    Raises: ParameterError (rows or tokens below 1, or more rows than the vocabulary has tokens).
    Source: arXiv:2411.03786.
    """
    _positive(rows=rows, tokens=tokens)
    if rows > vocabulary:
        raise ParameterError(f"rows is {rows}, but only {vocabulary} tokens can follow; give at most that many")
    table = np.zeros((vocabulary, rows, tokens), dtype=np.int64)
    for v in range(vocabulary):
        p, state = model.step(start, np.array([v]))
        token, state = top(p[0], rows), model.rows(state, np.zeros(rows, dtype=np.int64))
        for t in range(tokens):
            table[v, :, t] = token
            p, state = model.step(state, token)
            token = p.argmax(axis=1)
    return table


@checked
def prompt_lookup(history: Sequence, tokens: int, longest: int = 3, first: bool = False) -> Sequence:
    """The tokens that followed the last earlier occurrence of the longest repeated suffix: at most `tokens` tokens, maybe
    none.

    For n = longest .. 1: key = history[-n:]; find its most recent earlier occurrence, or its `first`; return what follows.

    Any choice of the occurrence is lossless, because the target verifies the draft. Engines take either.

    Raises: ParameterError (tokens or longest below 1, an empty history).
    Source: prompt lookup decoding (cited in Snakes and Ladders, footnote 3).
    """
    _positive(tokens=tokens, longest=longest, history=len(history))
    for n in range(min(longest, len(history) - 1), 0, -1):
        key = history[-n:]
        starts = range(len(history) - n)
        for start in starts if first else reversed(starts):
            if np.array_equal(history[start : start + n], key):
                return history[start + n : start + n + tokens].copy()
    return np.zeros(0, dtype=np.int64)


def _positive(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise ParameterError(f"{name} is {count}; it must be at least 1")
