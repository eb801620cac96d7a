"""A request: when it ends, what it holds while it runs, and what came of it."""

from dataclasses import dataclass, field
from typing import Literal

from ssmspec_ref.errors import BudgetError, ParameterError

Finish = Literal["eos", "stop", "length", "failed"]


@dataclass(frozen=True)
class Settings:
    """When a request ends. Units: `budget` is emitted tokens.

    Raises: BudgetError (negative), ParameterError (a stop sequence without tokens).
    """

    budget: int
    eos: tuple[int, ...] = ()
    stop: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        if self.budget < 0:
            raise BudgetError(f"budget came as {self.budget} tokens; give 0 or more")
        if any(not sequence for sequence in self.stop):
            raise ParameterError("a stop sequence came without tokens, which every output ends with; give at least one token")


@dataclass(frozen=True)
class Statistics:
    """Of one request: how many tokens each of its windows emitted."""

    advanced: tuple[int, ...] = ()


@dataclass(frozen=True)
class Result:
    """One request: its tokens, why it ended, its statistics."""

    tokens: tuple[int, ...]
    finish: Finish
    statistics: Statistics


@dataclass
class Request:
    """`number` is the prompt's place among those given; `key` names the request's noise."""

    number: int
    key: int
    prompt: list[int]
    advanced: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)

    @property
    def statistics(self) -> Statistics:
        return Statistics(tuple(self.advanced))


def finish(output: tuple[int, ...], settings: Settings) -> Finish:
    """Why an output ended; a stop before the budget where both fall on one token."""
    if output and output[-1] in settings.eos:
        return "eos"
    if any(output[len(output) - len(stop) :] == tuple(stop) for stop in settings.stop):
        return "stop"
    return "length"
