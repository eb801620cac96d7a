"""From logits to the distribution that is sampled, the same for target and drafter, on the device.

At a node, the output is all emitted tokens, root included, and the drafts on the path to the node; n_i counts
token i in it.

    l_i <- l_i / r if l_i > 0, else l_i r, for i in prompt or output     repetition                  (1)
    l_i <- l_i - frequency n_i - presence [n_i > 0]                      frequency and presence      (2)
    l_i <- -inf for an end of sequence, while output < min_tokens        minimum length              (3)
    p   <- softmax(l / T); T = 0: the point mass at the first maximum    temperature                 (4)
    p   <- norm(the k most probable), ties by index                      top-k                       (5)
    p   <- norm(the fewest most probable whose mass is >= top_p)         top-p, ties by index        (6)

In float64, each row in the same order and from its own numbers only, whatever the other rows are; the result is fp32. A step
that a row does not need leaves its bits unchanged. Masked tokens have probability exactly 0.
Source: arXiv:1909.05858, section 4.1, for (1); arXiv:1904.09751, section 3.1, for (6).
"""

from collections.abc import Callable
from dataclasses import fields
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from ..engine.sampling import Needs, Sampling
from ..engine.sequences import Sequences
from ..operations.arithmetic import Arithmetic
from ..operations.slots import index

ORDERED = Arithmetic(bitwise=True)
ORDER = {field.name: at for at, field in enumerate(fields(Sampling))}
"""The place of each field of `Sampling` in a row."""
Kept: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Rank, mass before -> whether a token is kept."""


class Rules(NamedTuple):
    """How each row is sampled: `rows` (b, 7), or (1, 7) if all are alike, in the order of `Sampling`."""

    rows: Tensor
    needs: Needs

    def __getattr__(self, name: str) -> Tensor:
        """One of the fields of `Sampling` (b, 1, 1)."""
        if name not in ORDER:
            raise AttributeError(name)
        return self.rows[:, ORDER[name], None, None]


@lru_cache(maxsize=64)
def rules(sampling: Sampling, device: torch.device) -> Rules:
    """The same for all rows; cached, because a graph cannot copy from the host."""
    return Rules(torch.tensor([sampling.row], dtype=torch.float64).to(device), sampling.needs)


def needs_of(sequences: Sequences, default: Sampling) -> Needs:
    """What the default and the running requests need."""
    asked = sequences.asked.sampling
    return default.needs if asked is None else default.needs | asked


def rules_of(sequences: Sequences, slots: Tensor, default: Sampling) -> Rules:
    """For each row: its request's sampling, or the default."""
    alike = rules(default, slots.device)
    if sequences.asked.sampling is None:
        return alike
    at = index(slots)
    return Rules(torch.where(sequences.own[at, :1], sequences.sampling[at], alike.rows), needs_of(sequences, default))


class Past(NamedTuple):
    """What (1) to (3) read at each node: `known` and `times` (b, m, i), `length` of the output (b, m), `eos`."""

    known: Tensor
    times: Tensor
    length: Tensor
    eos: Tensor


def past(sequences: Sequences, slots: Tensor, tokens: Tensor, ancestors: Tensor, vocabulary: int) -> Past:
    """The past of m nodes: the tokens of their sequences, and those of the window (b, t) on their paths (b, m, t).

    `ancestors` holds the node itself and the root; the root is in the sequence already.
    """
    at = index(slots)
    written, length, prompt = sequences.tokens[at], sequences.length[at], sequences.prompt[at]
    places = torch.arange(written.shape[1], device=slots.device)
    inside, before = places < length[:, None], places < prompt[:, None]
    empty = torch.zeros((len(slots), vocabulary), dtype=torch.int64, device=slots.device)
    drafted = ancestors.clone()
    drafted[:, :, 0] = False
    shape = drafted.shape
    ours = torch.zeros((*shape[:2], vocabulary), dtype=torch.int64, device=slots.device)
    ours = ours.scatter_add(2, tokens.clamp(0, vocabulary - 1)[:, None].expand(shape), drafted.long())
    prompted = empty.scatter_add(1, written, (inside & before).long())
    count = ours + empty.scatter_add(1, written, (inside & ~before).long())[:, None]
    output = (length - prompt)[:, None] + drafted.sum(-1)
    return Past((count > 0) | (prompted > 0)[:, None], count, output, sequences.eos[at])


def process(logits: Tensor, sampling: Sampling | Rules, seen: Past | None = None) -> Tensor:
    """The distributions (b, m, i) after m nodes, in fp32; NaN where the logits are not finite, or all masked."""
    ask = rules(sampling, logits.device) if isinstance(sampling, Sampling) else sampling
    wide = logits.double()
    if ask.needs.penalties and seen is not None:
        wide = penalised(wide, seen, ask)
    p = softmax(wide, ask)  # (4)
    if ask.needs.top_k:
        k = ask.top_k
        p = torch.where(k > 0, only(p, lambda rank, before: rank < k), p)  # (5)
    if ask.needs.top_p:
        mass = ask.top_p
        p = torch.where(mass < 1, only(p, lambda rank, before: before < mass), p)  # (6)
    return p.float()


def penalised(logits: Tensor, seen: Past, sampling: Rules) -> Tensor:
    """(1) to (3); unchanged logits where a row needs none of them."""
    scaled = torch.where(logits > 0, logits / sampling.repetition, logits * sampling.repetition)
    found = torch.where(seen.known, scaled, logits)  # (1)
    found = found - sampling.frequency * seen.times - sampling.presence * (seen.times > 0)  # (2)
    vocabulary = logits.shape[-1]
    ends = torch.zeros((len(seen.eos), vocabulary + 1), dtype=torch.bool, device=logits.device)
    ends.scatter_(1, torch.where(seen.eos < 0, vocabulary, seen.eos), True)
    early = seen.length[..., None] < sampling.min_tokens
    return torch.where(ends[:, None, :vocabulary] & early, float("-inf"), found)  # (3)


def softmax(logits: Tensor, sampling: Rules) -> Tensor:
    """(4)."""
    T, point = sampling.temperature, None
    if sampling.needs.greedy:
        point = torch.zeros_like(logits).scatter(-1, logits.argmax(-1, keepdim=True), 1.0)
        T = torch.where(T == 0, 1.0, T)
    weights = ORDERED.exp((logits - logits.amax(-1, keepdim=True)) / T)
    p = weights / ORDERED.sum(weights)[..., None]
    return p if point is None else torch.where(sampling.temperature == 0, point, p)


def only(p: Tensor, kept: Kept) -> Tensor:
    """Keeps tokens by their rank and by the mass before them; renormalised."""
    ranked, order = torch.sort(p, dim=-1, descending=True, stable=True)
    rank = torch.arange(p.shape[-1], device=p.device)
    keep = kept(rank.expand_as(p), functional.pad(ranked.cumsum(-1)[..., :-1], (1, 0)))
    rest = torch.where(torch.zeros_like(keep).scatter(-1, order, keep), p, 0.0)
    return rest / ORDERED.sum(rest)[..., None]
