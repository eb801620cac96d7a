"""Plain decoding, one token at a time: the definition that every other way of decoding must equal.

root   = the last token of the sequence, not yet in any state   (1)
S'     = scan(S, root)                                          (2)
token  = choose(logits, sequence, position)                     (3)
stop after `eos`, or when the budget is spent                   (4)

The tokens of a row depend on nothing outside the row: a choice sees the logits, the sequence and the position, and brings no
randomness of its own. A finished row stays as it is: its last token is emitted, and in no state.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from . import model as lm
from .errors import BudgetError, EmptyWindow, ProbabilityError, ShapeMismatch
from .model import Model, ModelState
from .shapes import Array, Mask, Tokens

Row = tuple[int, ...]


@dataclass(frozen=True)
class Settings:
    """When a row stops.

    Units: `budget` is emitted tokens, for each row.
    Raises: BudgetError for a negative budget.
    """

    budget: int
    eos: int | None = None

    def __post_init__(self) -> None:
        if self.budget < 0:
            raise BudgetError(f"budget came as {self.budget} tokens; give 0 or more")

    def cut(self, emitted: Row, tokens: Row) -> Row:
        """What may still be emitted of `tokens`: up to the first `eos`, it included, and within the budget (4)."""
        tokens = tokens[: self.budget - len(emitted)]
        return tokens[: tokens.index(self.eos) + 1] if self.eos in tokens else tokens


@dataclass(frozen=True)
class Sequences:
    """A batch of prompts and what each has emitted.

    Raises: EmptyWindow for an empty prompt, ShapeMismatch unless there is one emission for each prompt.
    """

    prompts: tuple[Row, ...]
    emitted: tuple[Row, ...]

    def __post_init__(self) -> None:
        if not self.prompts or not all(self.prompts):
            raise EmptyWindow(
                f"prompts came with lengths {[len(p) for p in self.prompts]}; each needs a token, the first root"
            )
        if len(self.emitted) != len(self.prompts):
            raise ShapeMismatch(f"{len(self.prompts)} prompts came with {len(self.emitted)} emissions; give one each")

    def __len__(self) -> int:
        return len(self.prompts)

    def committed(self, b: int) -> Row:
        """All tokens of a row but its root: what is in its state."""
        return (self.prompts[b] + self.emitted[b])[:-1]

    def roots(self) -> Array:
        """The last token of each row (1)."""
        return np.array([(p + e)[-1] for p, e in zip(self.prompts, self.emitted, strict=True)])

    def active(self, settings: Settings) -> Mask:
        """The rows that may go on (4)."""
        going = [len(e) < settings.budget and (not e or e[-1] != settings.eos) for e in self.emitted]
        return np.array(going)

    def extended(self, tokens: tuple[Row, ...]) -> "Sequences":
        return Sequences(self.prompts, tuple(e + t for e, t in zip(self.emitted, tokens, strict=True)))


class Choose(Protocol):
    """The next token from the logits of one position: a function, with its noise, if any, given beforehand."""

    def __call__(self, logits: Array, sequence: int, position: int) -> int: ...


def greedy(logits: Array, sequence: int, position: int) -> int:
    """The most likely token, the lowest on ties. Raises: ProbabilityError for NaN."""
    if np.isnan(logits).any():
        raise ProbabilityError(f"the logits of row {sequence} hold NaN at position {position}; no token is most likely")
    return int(np.argmax(logits))


@dataclass(frozen=True)
class Sampled:
    """One token from softmax(logits), by the noise of its row and position: the first whose cumulated probability exceeds it.

    Units: noise is uniform in [0, 1), one number for each token that may be emitted.
    Raises: ProbabilityError for noise outside [0, 1), or NaN logits.
    """

    noise: Array

    def __post_init__(self) -> None:
        if not np.all((self.noise >= 0) & (self.noise < 1)):
            raise ProbabilityError("noise came with an entry outside [0, 1); give uniform numbers")

    def __call__(self, logits: Array, sequence: int, position: int) -> int:
        weights = np.exp(logits - greedy_logit(logits, sequence, position))
        cumulated = np.cumsum(weights) / weights.sum()
        return int(min(np.searchsorted(cumulated, self.noise[sequence, position], side="right"), len(logits) - 1))


def greedy_logit(logits: Array, sequence: int, position: int) -> float:
    return float(logits[greedy(logits, sequence, position)])


def padded(rows: tuple[Row, ...]) -> tuple[Tokens, Mask]:
    """Rows of unequal length as one array, padded behind with token 0, and the mask of what is real."""
    longest = max(len(row) for row in rows)
    tokens, live = np.zeros((len(rows), longest), dtype=np.int64), np.zeros((len(rows), longest), dtype=bool)
    for b, row in enumerate(rows):
        tokens[b, : len(row)], live[b, : len(row)] = row, True
    return tokens, live


def prefill(prompts: tuple[Row, ...], model: Model) -> tuple[Sequences, ModelState]:
    """Everything but the last token of each prompt enters the state; the last is the first root.

    Raises: EmptyWindow, ParameterError.
    """
    sequences = Sequences(prompts, ((),) * len(prompts))
    state = lm.new_state(model, len(prompts))
    tokens, live = padded(tuple(prompt[:-1] for prompt in prompts))
    if tokens.shape[1]:
        _, state = lm.scan(state, tokens, model, live)
    return sequences, state


def step(
    sequences: Sequences, state: ModelState, model: Model, settings: Settings, choose: Choose = greedy
) -> tuple[Sequences, ModelState]:
    """One token more for every active row, (1) to (4).

    Raises: ParameterError, ProbabilityError.
    """
    active = sequences.active(settings)
    logits, state = lm.scan(state, sequences.roots()[:, None], model, active[:, None])  # (1) (2)
    tokens = (
        (choose(logits[b, 0], b, len(emitted)),) if active[b] else ()  # (3)
        for b, emitted in enumerate(sequences.emitted)
    )
    return sequences.extended(tuple(tokens)), state


def decode(
    prompts: tuple[Row, ...], model: Model, settings: Settings, choose: Choose = greedy
) -> tuple[Sequences, ModelState]:
    """Prompts in, tokens out, and the state after them.

    Raises: EmptyWindow, ProbabilityError.
    """
    sequences, state = prefill(prompts, model)
    while sequences.active(settings).any():
        sequences, state = step(sequences, state, model, settings, choose)
    return sequences, state
