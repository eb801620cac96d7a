"""Drafts from the text so far: prompt n-grams with a bigram table as a fallback, and prompt lookup; on the device.

Both work on all rows at once, in fixed shapes, and propose point masses. A row with nothing to propose is a root alone.
Source: Snakes and Ladders, section 5.2, for PNG; the table, which it does not describe, is that of arXiv:2411.03786.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ssmspec_ref.errors import ParameterError, ShapeMismatch

from ..engine.decoder import Decoder
from ..engine.sequences import Sequences
from ..engine.window import Proposal, Window
from ..models.model import Model
from ..operations.slots import index
from . import Drafter
from .shapes import check_nodes

BITS, TOGETHER = 21, 3
"""Three tokens of a vocabulary below 2^21 - 1 fit one key of 63 bits."""


class NGram(Drafter):
    """PNG(tokens, drafts): the windows that followed the root most often, then rows of the model's bigram table.

    `table` (vocabulary, rows, tokens) comes from `bigrams.bigram_table`; None: history alone. With `trees` the drafts of a
    sequence form one tree, merged at their common prefixes; otherwise separate rows.

    Raises: ParameterError (tokens or drafts below 1), ShapeMismatch (a table of another length).
    """

    on_device = True

    def __init__(self, tokens: int, drafts: int = 1, table: Tensor | None = None, *, trees: bool = False) -> None:
        _positive(tokens=tokens, drafts=drafts)
        if table is not None and (table.dim() != 3 or table.shape[2] != tokens):
            raise ShapeMismatch(f"table has shape {tuple(table.shape)}; give (vocabulary, rows, {tokens})")
        self.tokens, self.wanted, self.table, self.trees = tokens, drafts, table, trees
        self.kernel: Callable[..., Any] | None = None
        self.drafts = 1 if trees else drafts
        self.nodes = 1 + tokens * (drafts if trees else 1)
        check_nodes(1 + tokens * drafts)

    @property
    def depth(self) -> int:
        return self.tokens

    def check(self, model: Model) -> None:
        """Raises: ShapeMismatch for a table of another vocabulary, ParameterError for a vocabulary too large for a key."""
        if model.config.vocabulary > 2**BITS - 1:
            raise ParameterError(f"the model has {model.config.vocabulary} tokens, but n-grams hold {2**BITS - 1} at most")
        if self.table is not None and len(self.table) != model.config.vocabulary:
            raise ShapeMismatch(
                f"the table has {len(self.table)} rows, but the model has {model.config.vocabulary} "
                "tokens; give a row for each"
            )

    def attach(self, decoder: Decoder) -> None:
        """Uses the kernel that finds the windows in one launch, if the target's operations have it."""
        self.kernel = decoder.operations.ngram_drafts

    def windows(self, sequences: Sequences, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Root and drafts (b, m, 1 + k), and the length of each (b, m)."""
        if self.kernel is not None:
            given = {"table": self.table, "slots": slots}
            found: tuple[Tensor, Tensor] = self.kernel(sequences.tokens, sequences.length, self.tokens, self.wanted, **given)
            return found
        at, roots = index(slots), sequences.roots(slots)
        rows, there = followers(sequences.tokens[at], sequences.length[at], self.tokens, self.wanted)
        if self.table is not None:
            rows, there = filled(rows, there, self.table[roots])
        lengths = torch.where(there & (slots >= 0)[:, None], 1 + self.tokens, 1)
        return torch.cat([roots[:, None, None].expand(-1, self.wanted, 1), rows], dim=2), lengths

    def propose(self, sequences: Sequences, slots: Tensor) -> Proposal:
        tokens, lengths = self.windows(sequences, slots)
        if self.trees:
            return Proposal(trie(tokens[:, 0, 0], tokens[:, :, 1:], lengths > 1, slots))
        owners = slots.repeat_interleave(self.wanted)
        return Proposal(Window(tokens.flatten(0, 1), owners, lengths.flatten(), None, self.wanted))


class PromptLookup(Drafter):
    """At most `tokens` tokens that followed the last occurrence of the longest suffix that occurred before.

    Raises: ParameterError (tokens or longest below 1).
    """

    on_device = True

    def __init__(self, tokens: int, longest: int = 3) -> None:
        _positive(tokens=tokens, longest=longest)
        self.tokens, self.longest, self.nodes = tokens, longest, 1 + tokens
        check_nodes(self.nodes)

    def propose(self, sequences: Sequences, slots: Tensor) -> Proposal:
        at = index(slots)
        drafts, count = looked_up(sequences.tokens[at], sequences.length[at], self.tokens, self.longest)
        tokens = torch.cat([sequences.roots(slots)[:, None], drafts], dim=1)
        return Proposal(Window(tokens, slots, torch.where(slots >= 0, 1 + count, 1)))


def followers(history: Tensor, length: Tensor, tokens: int, drafts: int) -> tuple[Tensor, Tensor]:
    """Up to `drafts` distinct windows that followed the root in each history (b, l): rows (b, m, k), and which are real.

    Windows: every run of tokens + 1 tokens whose first is the last one of the history             (1)
    Order:   the most frequent first; among equals the one seen last                               (2)

    Windows are sorted by their tokens, TOGETHER of them in a key, so that equal ones are adjacent in the order of their
    starts; the last of each group represents it.
    """
    rows, room = len(history), history.shape[1] - tokens
    none = history.new_zeros((rows, drafts, tokens)), torch.zeros((rows, drafts), dtype=torch.bool, device=history.device)
    if room < 1:
        return none
    starts = torch.arange(room, device=history.device)
    windows = history[:, 1:].unfold(1, tokens, 1)[:, :room]
    root = history.gather(1, (length - 1).clamp_min(0)[:, None])
    real = (history[:, :room] == root) & (starts < (length - tokens)[:, None])  # (1)
    order = starts.expand(rows, room)
    for key in keys(windows, real):
        order = order.gather(1, torch.argsort(key.gather(1, order), dim=1, stable=True))
    ordered = windows.gather(1, order[..., None].expand_as(windows))
    known = real.gather(1, order)
    same = (ordered[:, 1:] == ordered[:, :-1]).all(2) & known[:, 1:] & known[:, :-1]
    edge = torch.zeros_like(known[:, :1])
    group = torch.cat([edge, ~same], dim=1).long().cumsum(1)
    count = torch.zeros_like(group).scatter_add(1, group, known.long()).gather(1, group)
    speaks = known & ~torch.cat([same, edge], dim=1)
    score = torch.where(speaks, count * room + order, -1)  # (2)
    best, at = torch.topk(score, min(drafts, room), dim=1)
    chosen = ordered.gather(1, at[..., None].expand(-1, -1, tokens))
    rest = drafts - chosen.shape[1]
    return torch.cat([chosen, none[0][:, :rest]], dim=1), torch.cat([best >= 0, none[1][:, :rest]], dim=1)


def keys(windows: Tensor, real: Tensor) -> Iterator[Tensor]:
    """Sort keys of windows (b, l, k), the last tokens first; windows that are not real sort after the others.

    key = sum_i w_{t+i} 2^(BITS (TOGETHER - 1 - i))    exact for vocabularies below 2^BITS - 1
    """
    for first in range((windows.shape[2] - 1) // TOGETHER * TOGETHER, -1, -TOGETHER):
        key = torch.zeros_like(windows[:, :, 0])
        for t in range(first, min(first + TOGETHER, windows.shape[2])):
            key = (key << BITS) + windows[:, :, t]
        yield torch.where(real, key, torch.iinfo(torch.int64).max) if first == 0 else key


def filled(rows: Tensor, found: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """The rows found, then rows of the table (b, r, k) that differ from them; as many as there are places."""
    drafts, more = rows.shape[1], table.shape[1]
    both = torch.cat([rows, table.to(rows.dtype)], dim=1)
    there = torch.cat([found, torch.ones_like(found[:, :1]).expand(-1, more)], dim=1)
    equal = (both[:, :, None] == both[:, None]).all(3) & there[:, None]
    earlier = torch.ones_like(equal[0]).tril(-1)
    there = there & ~(equal & earlier).any(2)
    order = torch.argsort((~there).long(), dim=1, stable=True)[:, :drafts]
    return both.gather(1, order[..., None].expand(-1, -1, both.shape[2])), there.gather(1, order)


def trie(roots: Tensor, rows: Tensor, found: Tensor, slots: Tensor) -> Window:
    """Drafts (b, m, k) merged at their common prefixes, the nodes of the first row first; unused places are padding."""
    m, k = rows.shape[1:]
    alike = (rows[:, :, None] == rows[:, None]).long().cumprod(3).bool() & found[:, None, :, None]
    owner = alike.long().argmax(2)  # the first row with the same prefix
    own = found[..., None] & (owner == torch.arange(m, device=rows.device)[:, None])
    steps = torch.arange(k, device=rows.device)
    above = torch.cat([torch.zeros_like(owner[..., :1]), 1 + owner[..., :-1] * k + steps[:-1]], dim=2)
    keep = torch.cat([torch.ones_like(own[:, 0, :1]), own.flatten(1)], dim=1)
    place = keep.long().cumsum(1) - 1
    parents = torch.cat([torch.full_like(above[:, 0, :1], -1), place.gather(1, above.flatten(1))], dim=1)
    order = torch.argsort((~keep).long(), dim=1, stable=True)
    real = keep.gather(1, order)
    tokens = torch.cat([roots[:, None], rows.flatten(1)], dim=1).gather(1, order)
    return Window(torch.where(real, tokens, 0), slots, None, torch.where(real, parents.gather(1, order), -2))


def looked_up(history: Tensor, length: Tensor, tokens: int, longest: int) -> tuple[Tensor, Tensor]:
    """What followed the most recent of the longest matches (b, k), and its length (b).

    run(e) = how many tokens up to e equal those up to the end, at most `longest`     (1)
    the match is the e < end with the longest run, then the greatest e              (2)
    """
    places = torch.arange(history.shape[1], device=history.device)
    run, going = torch.zeros_like(history), torch.ones_like(history, dtype=torch.bool)
    for back in range(min(longest, history.shape[1])):
        last = history.gather(1, (length - 1 - back).clamp_min(0)[:, None])
        moved = torch.nn.functional.pad(history, (back, 0), value=-1)[:, : history.shape[1]]
        going = going & (moved == last) & (places >= back)
        run = run + going
    before = places < (length - 1)[:, None]
    score = torch.where(before & (run > 0), run * history.shape[1] + places, -1)  # (1) (2)
    best, end = score.max(1)
    count = torch.where(best >= 0, (length - 1 - end).clamp_max(tokens), 0)
    follow = (end[:, None] + 1 + torch.arange(tokens, device=history.device)).clamp_max(history.shape[1] - 1)
    live = torch.arange(tokens, device=history.device) < count[:, None]
    return torch.where(live, history.gather(1, follow), 0), count


def _positive(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise ParameterError(f"{name} is {count}; it must be at least 1")
