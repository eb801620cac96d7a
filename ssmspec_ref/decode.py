"""Plain decoding, one token at a time: the definition that all other ways of decoding must match.

root   = the last token of the sequence, not yet in any state   (1)
S'     = scan(S, root)                                          (2)
token  = choose(logits, prompt, output)                         (3)
stop at an end of sequence, or when the budget is spent         (4)
The tokens of a row depend on nothing outside the row: each choice uses the logits, the row's own tokens and the row's own
noise, indexed by position. A finished row does not change; its last token is emitted but is in no state.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from . import model as lm
from .accept import Dice, Sampling, Stop, greedy
from .accept.processors import process
from .errors import BudgetError, EmptyWindow, ShapeMismatch
from .model import Model, ModelState
from .shapes import Array, LogitRow, Mask, Tokens

Row = tuple[int, ...]


@dataclass(frozen=True)
class Settings:
    """When a row stops.

    Units: `budget` is emitted tokens, for each row.
    Raises: BudgetError for a negative budget.
    """

    budget: int
    stop: Stop = field(default_factory=Stop)

    def __post_init__(self) -> None:
        if self.budget < 0:
            raise BudgetError(f"budget is {self.budget} tokens; it must be 0 or more")


@dataclass(frozen=True)
class Sequences:
    """A batch of prompts and the tokens emitted for each.

    Raises: EmptyWindow for an empty prompt, ShapeMismatch unless there is one emission per prompt.
    """

    prompts: tuple[Row, ...]
    emitted: tuple[Row, ...]

    def __post_init__(self) -> None:
        if not self.prompts or not all(self.prompts):
            raise EmptyWindow(
                f"prompts have lengths {[len(p) for p in self.prompts]}; each needs at least one token, the first root"
            )
        if len(self.emitted) != len(self.prompts):
            raise ShapeMismatch(
                f"there are {len(self.prompts)} prompts and {len(self.emitted)} emissions; give one emission for each prompt"
            )

    def __len__(self) -> int:
        return len(self.prompts)

    def committed(self, b: int) -> Row:
        """All tokens of a row except its root: the tokens in its state."""
        return (self.prompts[b] + self.emitted[b])[:-1]

    def roots(self) -> Array:
        """The last token of each row (1)."""
        return np.array([(p + e)[-1] for p, e in zip(self.prompts, self.emitted, strict=True)])

    def active(self, settings: Settings) -> Mask:
        """The rows that are not finished (4)."""
        return np.array([len(e) < settings.budget and settings.stop.ended(e) is None for e in self.emitted])

    def extended(self, tokens: tuple[Row, ...]) -> "Sequences":
        return Sequences(self.prompts, tuple(e + t for e, t in zip(self.emitted, tokens, strict=True)))


class Choose(Protocol):
    """The next token of row `b`, from the logits after its prompt and output."""

    def __call__(self, logits: LogitRow, b: int, prompt: Row, output: Row) -> int: ...


def most_likely(logits: LogitRow, b: int, prompt: Row, output: Row) -> int:
    """The most likely token, the lowest on ties. Raises: ProbabilityError for NaN."""
    return int(greedy.choices(logits[None, None])[0, 0])


@dataclass(frozen=True)
class Sampled:
    """A draw from the processed distribution with the row's own dice; the node is the position in the output."""

    sampling: Sampling
    dice: Sequence[Dice]

    def __call__(self, logits: LogitRow, b: int, prompt: Row, output: Row) -> int:
        return self.dice[b].pick(process(logits, prompt, output, self.sampling), len(output))


def padded(rows: tuple[Row, ...]) -> tuple[Tokens, Mask]:
    """Rows of unequal length as one array, padded with token 0 at the end, and the mask of real tokens."""
    longest = max(len(row) for row in rows)
    tokens, live = np.zeros((len(rows), longest), dtype=np.int64), np.zeros((len(rows), longest), dtype=bool)
    for b, row in enumerate(rows):
        tokens[b, : len(row)], live[b, : len(row)] = row, True
    return tokens, live


def prefill(prompts: tuple[Row, ...], model: Model) -> tuple[Sequences, ModelState]:
    """Enter all tokens but the last of each prompt into the state; the last token is the first root.

    Raises: EmptyWindow, ParameterError.
    """
    sequences = Sequences(prompts, ((),) * len(prompts))
    state = lm.new_state(model, len(prompts))
    tokens, live = padded(tuple(prompt[:-1] for prompt in prompts))
    if tokens.shape[1]:
        _, state = lm.scan(state, tokens, model, live)
    return sequences, state


def step(
    sequences: Sequences, state: ModelState, model: Model, settings: Settings, choose: Choose = most_likely
) -> tuple[Sequences, ModelState]:
    """One more token for every active row, (1) to (4).

    Raises: ParameterError, ProbabilityError.
    """
    active = sequences.active(settings)
    logits, state = lm.scan(state, sequences.roots()[:, None], model, active[:, None])  # (1) (2)
    tokens = (
        (choose(logits[b, 0], b, sequences.prompts[b], output),) if active[b] else ()  # (3)
        for b, output in enumerate(sequences.emitted)
    )
    return sequences.extended(tuple(tokens)), state


def decode(
    prompts: tuple[Row, ...], model: Model, settings: Settings, choose: Choose = most_likely
) -> tuple[Sequences, ModelState]:
    """Decode prompts to the end. Returns the emitted tokens and the final state.

    Raises: EmptyWindow, ParameterError, ProbabilityError.
    """
    sequences, state = prefill(prompts, model)
    while sequences.active(settings).any():  # (4)
        sequences, state = step(sequences, state, model, settings, choose)
    return sequences, state
