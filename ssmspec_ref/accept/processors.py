"""From logits to the distribution that is sampled, the same for target and draft.

At a node of a window, `output` is everything emitted so far, including the root, and then the drafts on the path to the node;
drafts on other branches do not count. The steps are, in this order, with n_i the count of token i in the output:

l_i <- l_i / r if l_i > 0, else l_i r, for i in prompt or output     repetition penalty r             (1)
l_i <- l_i - frequency n_i - presence [n_i > 0]                      frequency and presence penalty   (2)
l_i <- -inf for an end of sequence, while output < min_tokens        minimum length                   (3)
p   <- softmax(l / T); T = 0: the point mass at the first maximum    temperature                      (4)
p   <- norm(the k most probable), ties by index                      top-k                            (5)
p   <- norm(the fewest most probable whose mass is >= top_p)         top-p, ties by index             (6)
p   <- norm(those with p_i >= min_p max p)                           min-p                            (7)

Masked tokens have probability exactly 0. (5) and (6) act on distributions, so they run on fractions too. Exactly k tokens
survive (5), so top-k 1 is greedy, even with ties.

Source: (1) arXiv:1909.05858, section 4.1; (6) arXiv:1904.09751, section 3.1; (7) arXiv:2407.01082, section 3; the order is
that of transformers, and of vLLM but for (7), which it applies before (5). That differs only where top-p cuts too.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from ..checks import checked
from ..errors import ParameterError, ProbabilityError, ShapeMismatch
from ..records import Record
from ..shapes import Lengths, LogitRow, Probs, RowNumbers, WindowLogits
from .distribution import Distribution, Number, check_tokens, distribution, normalised
from .draft_tree import DraftTree


@dataclass(frozen=True)
class Sampling:
    """The sampling settings of a request. The defaults change nothing.

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
    min_p: float = 0.0

    def __post_init__(self) -> None:
        for name, (low, high, needed) in DOMAINS.items():
            value = getattr(self, name)
            _demand(name, value, low <= value <= high, needed)


SMALLEST, LARGEST = np.nextafter(0.0, 1.0), np.finfo(np.float64).max
DOMAINS: dict[str, tuple[Number, Number, str]] = {
    "temperature": (0, LARGEST, "a finite number >= 0; 0 is greedy"),
    "top_k": (0, math.inf, "0 (all) or more"),
    "top_p": (SMALLEST, 1, "a number in (0, 1]"),
    "repetition": (SMALLEST, LARGEST, "a finite number > 0"),
    "presence": (-LARGEST, LARGEST, "a finite number"),
    "frequency": (-LARGEST, LARGEST, "a finite number"),
    "min_tokens": (0, math.inf, "0 or more"),
    "min_p": (0, 1, "a number in [0, 1]; 0 keeps every token"),
}
"""The smallest and largest allowed value of each setting."""


@dataclass(frozen=True)
class RowSettings(Record):
    """The sampling settings of every row of a batch, as `Sampling` has them for one."""

    temperature: RowNumbers
    top_k: Lengths
    top_p: RowNumbers
    min_p: RowNumbers
    repetition: RowNumbers
    presence: RowNumbers
    frequency: RowNumbers
    min_tokens: Lengths

    def of(self, row: int, eos: frozenset[int]) -> Sampling:
        """The settings of one row. Raises: ParameterError for a value outside its domain."""
        return Sampling(eos=eos, **{field.name: getattr(self, field.name)[row].item() for field in fields(self)})


@checked
def process(logits: LogitRow, prompt: Sequence[int], output: Sequence[int], sampling: Sampling) -> Probs:
    """The distribution of the next token: equations (1) to (7) of the module.

    Raises: ProbabilityError (NaN or +inf in the logits, every token masked), ParameterError (a token outside the vocabulary),
    ShapeMismatch, PrecisionError.
    Source: as the module.
    """
    if np.isnan(logits).any() or np.isposinf(logits).any():
        raise ProbabilityError(f"logits are {logits}; they must be finite, or -inf for masked tokens")
    for name, tokens in (("prompt", prompt), ("output", output), ("eos", sorted(sampling.eos))):
        check_tokens(name, tokens, logits.size)
    seen = penalised(logits, prompt, output, sampling)  # (1) (2)
    if len(output) < sampling.min_tokens:
        seen[sorted(sampling.eos)] = -np.inf  # (3)
    p: Sequence[Number] = softmax(seen, sampling.temperature).tolist()  # (4)
    if sampling.top_k:
        p = top_k(p, sampling.top_k)  # (5)
    return np.array(min_p(top_p(p, sampling.top_p), sampling.min_p), dtype=np.float64)  # (6) (7)


@checked
def process_window(
    logits: WindowLogits, tree: DraftTree, prompt: Sequence[int], output: Sequence[int], sampling: Sampling
) -> list[Probs]:
    """`process` after every node of a window; the drafts on the node's own path count as output.

    `output` ends with the root, so the root is not counted again.

    Raises: as `process`; ShapeMismatch unless there is one row per node.
    """
    if len(logits) != len(tree):
        raise ShapeMismatch(f"logits have {len(logits)} rows, but the window has {len(tree)} nodes; give one for each")
    return [process(row, prompt, [*output, *tree.drafted(i)], sampling) for i, row in enumerate(logits)]


def penalised(logits: LogitRow, prompt: Sequence[int], output: Sequence[int], sampling: Sampling) -> LogitRow:
    """Equations (1) and (2), token by token. Returns a copy."""
    seen = logits.copy()
    for token in {*map(int, prompt), *map(int, output)}:
        seen[token] *= sampling.repetition if seen[token] < 0 else 1.0  # (1), below 0
        seen[token] /= sampling.repetition if seen[token] > 0 else 1.0  # (1), above 0
    for token, n in Counter(map(int, output)).items():
        seen[token] = seen[token] - sampling.frequency * n - sampling.presence  # (2)
    return seen


def softmax(logits: LogitRow, temperature: float) -> Probs:
    """exp(l / T) / sum exp(l / T) (4). Raises: ProbabilityError if every token is masked."""
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
    """The fewest most probable tokens with a total mass of at least `share`, renormalised (6); 1 keeps every token.

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


def min_p(p: Distribution, share: Number) -> list[Number]:
    """The tokens whose probability is at least `share` of the largest, renormalised (7); 0 keeps every token.

    Raises: ProbabilityError, ParameterError.
    """
    _demand("min_p", share, 0 <= share <= 1, "a number in [0, 1]")
    row = distribution("p", p)
    return _only(row, [i for i, x in enumerate(row) if x >= share * max(row)]) if share else row


def _ranked(row: list[Number]) -> list[int]:
    return sorted(range(len(row)), key=lambda i: -row[i])


def _only(row: list[Number], kept: list[int]) -> list[Number]:
    rest = set(kept)
    return normalised([x if i in rest else 0 * x for i, x in enumerate(row)])


def _demand(name: str, value: Number, holds: bool, needed: str) -> None:
    if not holds:
        raise ParameterError(f"{name} is {value}; it must be {needed}")
