"""From logits to the distribution that is sampled, the same for the target and for the draft.

Seen from a node of a window, `output` is everything emitted, the root included, and the drafts on the path to the node;
drafts elsewhere in the window do not count. In this order, n_i the count of token i in the output:

l_i <- l_i / r if l_i > 0, else l_i r, for i in prompt or output     repetition penalty r             (1)
l_i <- l_i - frequency n_i - presence [n_i > 0]                      frequency and presence penalty   (2)
l_i <- -inf for an end of sequence, while output < min_tokens        minimum length                   (3)
p   <- softmax(l / T); T = 0: the point mass at the first maximum    temperature                      (4)
p   <- norm(the k most probable), ties by index                      top-k                            (5)
p   <- norm(the fewest most probable whose mass is >= top_p)         top-p, ties by index             (6)

What is masked has probability exactly 0. (5) and (6) act on distributions, so they run on fractions too. Because exactly k
tokens survive (5), top-k 1 is greedy, also on ties.

Source: (1) arXiv:1909.05858, section 4.1; (6) arXiv:1904.09751, section 3.1; the order is that of transformers and vLLM.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..checks import checked
from ..errors import ParameterError, ProbabilityError, ShapeMismatch
from ..shapes import LogitRow, Probs, WindowLogits
from .distribution import Distribution, Number, check_tokens, distribution, normalised
from .draft_tree import DraftTree


@dataclass(frozen=True)
class Sampling:
    """The settings of a request. The defaults change nothing.

    Raises: ParameterError for a value outside its domain, NaN included.
    """

    temperature: float = 1.0
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    min_tokens: int = 0
    eos: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        _demand("temperature", self.temperature, 0 <= self.temperature < math.inf, "a finite number >= 0; 0 is greedy")
        _demand("top_k", self.top_k, self.top_k >= 0, "0 (all) or more")
        _demand("top_p", self.top_p, 0 < self.top_p <= 1, "a number in (0, 1]")
        _demand("repetition", self.repetition, 0 < self.repetition < math.inf, "a finite number > 0")
        _demand("presence", self.presence, math.isfinite(self.presence), "a finite number")
        _demand("frequency", self.frequency, math.isfinite(self.frequency), "a finite number")
        _demand("min_tokens", self.min_tokens, self.min_tokens >= 0, "0 or more")


@checked
def process(logits: LogitRow, prompt: Sequence[int], output: Sequence[int], sampling: Sampling) -> Probs:
    """The distribution of the next token: equations (1) to (6) of the module.

    Raises: ProbabilityError (NaN or +inf in the logits, every token masked), ParameterError (a token outside the vocabulary),
    ShapeMismatch, PrecisionError.
    Source: as the module.
    """
    if np.isnan(logits).any() or np.isposinf(logits).any():
        raise ProbabilityError(f"logits came as {logits}; give finite numbers, or -inf for masked tokens")
    for name, tokens in (("prompt", prompt), ("output", output), ("eos", sorted(sampling.eos))):
        check_tokens(name, tokens, logits.size)
    seen = penalised(logits, prompt, output, sampling)  # (1) (2)
    if len(output) < sampling.min_tokens:
        seen[sorted(sampling.eos)] = -np.inf  # (3)
    p: Sequence[Number] = softmax(seen, sampling.temperature).tolist()  # (4)
    if sampling.top_k:
        p = top_k(p, sampling.top_k)  # (5)
    return np.array(top_p(p, sampling.top_p), dtype=np.float64)  # (6)


@checked
def process_window(
    logits: WindowLogits, tree: DraftTree, prompt: Sequence[int], output: Sequence[int], sampling: Sampling
) -> list[Probs]:
    """`process` after every node of a window, each with the drafts on its own path counted as output.

    `output` ends with the root, which is therefore not counted again.

    Raises: as `process`; ShapeMismatch unless there is one row for each node.
    """
    if len(logits) != len(tree):
        raise ShapeMismatch(f"logits came with {len(logits)} rows, but the window has {len(tree)} nodes; give one for each")
    return [process(row, prompt, [*output, *tree.drafted(i)], sampling) for i, row in enumerate(logits)]


def penalised(logits: LogitRow, prompt: Sequence[int], output: Sequence[int], sampling: Sampling) -> LogitRow:
    """Equations (1) and (2), on a copy."""
    counts = Counter(map(int, output))
    known = np.isin(np.arange(logits.size), [*prompt, *output])
    n = np.array([counts[i] for i in range(logits.size)], dtype=np.float64)
    scaled = np.where(logits > 0, logits / sampling.repetition, logits * sampling.repetition)
    return np.where(known, scaled, logits) - sampling.frequency * n - sampling.presence * (n > 0)


def softmax(logits: LogitRow, temperature: float) -> Probs:
    """exp(l / T) / sum exp(l / T) (4). Raises: ProbabilityError where every token is masked."""
    best = logits.max()
    if best == -np.inf:
        raise ProbabilityError(f"all {logits.size} tokens are masked; leave at least one")
    if temperature == 0:
        return (np.arange(logits.size) == logits.argmax()).astype(np.float64)
    with np.errstate(over="ignore"):  # towards -inf, where the exponential is 0
        weights = np.exp((logits - best) / temperature)
    return weights / weights.sum()


def top_k(p: Distribution, count: int) -> list[Number]:
    """The `count` most probable tokens, renormalised (5). Raises: ProbabilityError, ParameterError."""
    _demand("top_k", count, count >= 1, "1 or more")
    row = distribution("p", p)
    return _only(row, _ranked(row)[:count])


def top_p(p: Distribution, share: Number) -> list[Number]:
    """The fewest most probable tokens whose mass is at least `share`, renormalised (6); 1 keeps every token.

    Raises: ProbabilityError, ParameterError.
    """
    _demand("top_p", share, 0 < share <= 1, "a number in (0, 1]")
    row = distribution("p", p)
    if share == 1:
        return row
    kept: list[int] = []
    before: Number = 0
    for token in _ranked(row):
        if before >= share:
            break
        kept.append(token)
        before = before + row[token]
    return _only(row, kept)


def _ranked(row: list[Number]) -> list[int]:
    return sorted(range(len(row)), key=lambda i: -row[i])


def _only(row: list[Number], kept: list[int]) -> list[Number]:
    rest = set(kept)
    return normalised([x if i in rest else 0 * x for i, x in enumerate(row)])


def _demand(name: str, value: Number, holds: bool, needed: str) -> None:
    if not holds:
        raise ParameterError(f"{name} came as {value}; give {needed}")
