"""From logits to the distribution that is sampled, the same for target and draft, on the device.

As seen from a node, the output is all that was emitted, root included, and the drafts on the path to the node; n_i counts
token i in it.

    l_i <- l_i / r if l_i > 0, else l_i r, for i in prompt or output     repetition                  (1)
    l_i <- l_i - frequency n_i - presence [n_i > 0]                      frequency and presence      (2)
    l_i <- -inf for an end of sequence, while output < min_tokens        minimum length              (3)
    p   <- softmax(l / T); T = 0: the point mass at the first maximum    temperature                 (4)
    p   <- norm(the k most probable), ties by index                      top-k                       (5)
    p   <- norm(the fewest most probable whose mass is >= top_p)         top-p, ties by index        (6)

In float64, each row in one order whatever stands beside it; what comes back is fp32. What is masked is exactly 0.
Source: arXiv:1909.05858, section 4.1, for (1); arXiv:1904.09751, section 3.1, for (6).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from ssmspec_ref.errors import ParameterError

from ..operations.arithmetic import Arithmetic
from ..operations.slots import index
from ..sequences import Sequences

ORDERED = Arithmetic(bitwise=True)
Kept: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Rank, mass before -> whether a token is kept."""


@dataclass(frozen=True)
class Sampling:
    """How a token is sampled. The defaults change nothing.

    Raises: ParameterError for a value outside its domain, NaN included.
    """

    temperature: float = 1.0
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    min_tokens: int = 0

    def __post_init__(self) -> None:
        _demand("temperature", self.temperature, 0 <= self.temperature < math.inf, "a finite number >= 0; 0 is greedy")
        _demand("top_k", self.top_k, self.top_k >= 0, "0 (all) or more")
        _demand("top_p", self.top_p, 0 < self.top_p <= 1, "a number in (0, 1]")
        _demand("repetition", self.repetition, 0 < self.repetition < math.inf, "a finite number > 0")
        _demand("presence", self.presence, math.isfinite(self.presence), "a finite number")
        _demand("frequency", self.frequency, math.isfinite(self.frequency), "a finite number")
        _demand("min_tokens", self.min_tokens, self.min_tokens >= 0, "0 or more")

    @property
    def remembers(self) -> bool:
        """Whether (1) to (3) read what was written before."""
        return (self.repetition, self.presence, self.frequency, self.min_tokens) != (1.0, 0.0, 0.0, 0)


class Past(NamedTuple):
    """What (1) to (3) read of each node: `known` and `times` (b, m, i), `length` of the output (b, m), `eos`."""

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
    return Past((count > 0) | (prompted > 0)[:, None], count, output, sequences.eos)


def process(logits: Tensor, sampling: Sampling, seen: Past | None = None) -> Tensor:
    """The distributions (b, m, i) after m nodes, in fp32; NaN where the logits are no numbers, or all masked."""
    wide = logits.double()
    if sampling.remembers and seen is not None:
        wide = penalised(wide, seen, sampling)
    p = softmax(wide, sampling.temperature)  # (4)
    if sampling.top_k:
        p = only(p, lambda rank, before: rank < sampling.top_k)  # (5)
    if sampling.top_p < 1:
        p = only(p, lambda rank, before: before < sampling.top_p)  # (6)
    return p.float()


def penalised(logits: Tensor, seen: Past, sampling: Sampling) -> Tensor:
    """(1) to (3)."""
    scaled = torch.where(logits > 0, logits / sampling.repetition, logits * sampling.repetition)
    found = torch.where(seen.known, scaled, logits)  # (1)
    found = found - sampling.frequency * seen.times - sampling.presence * (seen.times > 0)  # (2)
    ends = torch.isin(torch.arange(logits.shape[-1], device=logits.device), seen.eos)
    early = (seen.length < sampling.min_tokens)[..., None]
    return torch.where(ends & early, float("-inf"), found)  # (3)


def softmax(logits: Tensor, temperature: float) -> Tensor:
    """(4)."""
    if temperature == 0:
        return torch.zeros_like(logits).scatter(-1, logits.argmax(-1, keepdim=True), 1.0)
    weights = ORDERED.exp((logits - logits.amax(-1, keepdim=True)) / temperature)
    return weights / ORDERED.sum(weights)[..., None]


def only(p: Tensor, kept: Kept) -> Tensor:
    """The tokens kept by their rank, and by the mass before them; renormalised."""
    ranked, order = torch.sort(p, dim=-1, descending=True, stable=True)
    rank = torch.arange(p.shape[-1], device=p.device)
    keep = kept(rank.expand_as(p), functional.pad(ranked.cumsum(-1)[..., :-1], (1, 0)))
    rest = torch.where(torch.zeros_like(keep).scatter(-1, order, keep), p, 0.0)
    return rest / ORDERED.sum(rest)[..., None]


def _demand(name: str, value: float, holds: bool, needed: str) -> None:
    if not holds:
        raise ParameterError(f"{name} came as {value}; give {needed}")
