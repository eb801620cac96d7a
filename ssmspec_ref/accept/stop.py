"""Where an emitted run ends: at the first end-of-sequence token, at a stop sequence, or at the budget.

n_stop = the first n such that token n is an end of sequence, or output and tokens 1 .. n end with a stop sequence   (1)
n      = min(n_stop, budget, length of the run)                                                                    (2)

The stop is checked before the budget: if both fall on one token, the run ends by the stop. Tokens after n are not emitted:
they are removed from the run, and `advanced` shrinks with it. The stopping tokens themselves stay in the run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ..errors import BudgetError, ParameterError
from .emitted import Emitted

Finish: TypeAlias = Literal["eos", "stop", "length"]


@dataclass(frozen=True)
class Stop:
    """End-of-sequence tokens and stop sequences. Raises: ParameterError for an empty stop sequence."""

    eos: frozenset[int] = frozenset()
    sequences: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        if any(not sequence for sequence in self.sequences):
            raise ParameterError("a stop sequence is empty, and would match every output; give at least one token")

    def ended(self, output: Sequence[int]) -> Finish | None:
        """How an output ends here ("stop"), or None if it goes on."""
        if output and output[-1] in self.eos:
            return "eos"
        if any(tuple(output[-len(sequence) :]) == sequence for sequence in self.sequences):
            return "stop"
        return None


def cut(run: Emitted, output: Sequence[int], stop: Stop, budget: int) -> tuple[Emitted, Finish | None]:
    """Cut the run to the tokens that are emitted. Also returns how the sequence ended, or None: equations (1) and (2).

    `output` is what was emitted before, without the prompt; a stop sequence may begin in it. `budget` is the number of tokens
    that may still be emitted. A run of exactly this length is kept whole and ends the sequence. With a budget of 0 nothing is
    emitted and `advanced` is 0.

    Raises: BudgetError for a negative budget.
    """
    if budget < 0:
        raise BudgetError(f"the budget is {budget} tokens; it must be 0 or more; retire a sequence whose budget is spent")
    seen = list(map(int, output))
    for n, token in enumerate(run.tokens[:budget], start=1):
        seen.append(token)
        if finish := stop.ended(seen):
            return run.first(n), finish  # (1)
    return run.first(budget), "length" if budget <= len(run.tokens) else None  # (2)
