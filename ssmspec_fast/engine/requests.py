"""A request: its settings, its state while it runs, and its result."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from operator import index
from typing import Any, Literal

from ssmspec_ref.errors import BudgetError, ParameterError

from .sampling import Sampling

Finish = Literal["eos", "stop", "length", "failed"]


@dataclass(frozen=True)
class Settings:
    """When a request ends, and how its tokens are drawn. Units: `budget` is emitted tokens.

    `sampling` and `seed` belong to this request; None takes those of the engine's acceptance rule. Noise is determined by
    seed, key and position: a request with its own seed has the key 0 unless another is given. `drafts` is the most tokens to
    draft in a window, `drafter` the name of a drafter (None: those of the engine); only an engine that was built with
    drafters by name takes them.

    Raises: BudgetError (negative), ParameterError (a number that is not whole, an empty stop sequence, a seed that does not
    fit 64 bits, drafts below 0).
    """

    budget: int
    eos: tuple[int, ...] = ()
    stop: tuple[tuple[int, ...], ...] = ()
    sampling: Sampling | None = None
    seed: int | None = None
    drafts: int | None = None
    drafter: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "budget", whole("budget", self.budget))
        object.__setattr__(self, "eos", tokens_of("eos", self.eos))
        if isinstance(self.stop, str):
            raise ParameterError(f"stop is the text {self.stop!r}; give a list of stop sequences, each a list of tokens")
        object.__setattr__(self, "stop", tuple(tokens_of("stop", sequence) for sequence in self.stop))
        if self.budget < 0:
            raise BudgetError(f"budget is {self.budget} tokens; it must be 0 or more")
        if any(not sequence for sequence in self.stop):
            raise ParameterError("a stop sequence is empty, and would match every output; give at least one token")
        if self.seed is not None and not 0 <= whole("seed", self.seed) < 2**64:
            raise ParameterError(f"seed is {self.seed}; it must be 0 to 2^64 - 1")
        if self.drafts is not None and whole("drafts", self.drafts) < 0:
            raise ParameterError(f"drafts is {self.drafts}; it must be 0 or more")

    def key(self, number: int, given: int | None = None) -> int:
        """The request's key for sampling noise: the given key, 0 if the request has its own seed, otherwise its number."""
        if given is not None:
            return whole("key", given)
        return number if self.seed is None else 0


def whole(name: str, value: Any) -> int:
    """`value` as an int. Raises: ParameterError if it is not a whole number."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return index(value)
    except TypeError:
        raise ParameterError(f"{name} is {value!r}; it must be a whole number") from None


def tokens_of(name: str, given: Iterable[Any]) -> tuple[int, ...]:
    """`given` as a tuple of tokens. Raises: ParameterError if it is not a list of whole numbers."""
    if isinstance(given, str | bytes) or not hasattr(given, "__iter__"):
        raise ParameterError(f"{name} is {given!r}; it must be a list of token numbers")
    return tuple(whole(f"a token of {name}", token) for token in given)


@dataclass(frozen=True)
class Statistics:
    """The number of tokens that each window of one request emitted."""

    advanced: tuple[int, ...] = ()


@dataclass(frozen=True)
class Result:
    """The result of one request: its tokens, why it ended, its statistics."""

    tokens: tuple[int, ...]
    finish: Finish
    statistics: Statistics


@dataclass
class Request:
    """`number` is the prompt's place in the list; `key` is the request's key for sampling noise.

    `show` receives every window of the request; an exception it raises is stored as `fault`.
    """

    number: int
    key: int
    prompt: list[int]
    settings: Settings
    show: Callable[[Any], None] | None = None
    fault: Exception | None = None
    advanced: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)

    @property
    def statistics(self) -> Statistics:
        return Statistics(tuple(self.advanced))


def finish(output: tuple[int, ...], settings: Settings) -> Finish:
    """Why an output ended; a stop takes precedence over the budget if both end at the same token."""
    if output and output[-1] in settings.eos:
        return "eos"
    if any(output[len(output) - len(stop) :] == tuple(stop) for stop in settings.stop):
        return "stop"
    return "length"
