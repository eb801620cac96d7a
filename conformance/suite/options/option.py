"""Options that many operations have, and what applies an ordered list of them to an operation.

A specification with options has their values, cases and sources, and calls the functions of the operation itself where a case
has none of them. Otherwise the last option of the list that a case has is asked: its functions call those of the operation
with the options before it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ssmspec_ref.contract import Capability, NumericContract

from ...cases import Case
from ..called import Arguments, Came
from ..expected import Expected
from ..specification import Specification
from ..tables import Further


class Option(ABC):
    """An option: its name, why it exists, the value that changes nothing, its other values and cases, and what it changes.

    `of` is the operation with the options before this one.
    """

    name: str
    source: str
    off: str

    @abstractmethod
    def values(self, of: Specification) -> tuple[str, ...]:
        """The other values; none if the operation does not have the option."""

    @abstractmethod
    def cases(self, of: Specification) -> tuple[Further, ...]:
        """The cases of the option."""

    def rare(self, of: Specification) -> Mapping[str, tuple[str, ...]]:
        """All options that only further cases have, with this one."""
        return {**of.rare, self.name: (self.off, *self.values(of))}

    def drawn(self, case: Case) -> bool:
        """Whether a case has another value than `off`."""
        return case.options.get(self.name, self.off) != self.off

    @abstractmethod
    def marks(self, arguments: Arguments) -> bool:
        """Whether arguments are those of a case with another value than `off`."""

    @abstractmethod
    def draw(self, of: Specification, case: Case, contract: NumericContract) -> Arguments:
        """The arguments of a case."""

    @abstractmethod
    def run(self, of: Specification, capability: Capability, arguments: Arguments) -> Came:
        """Call the implementation."""

    @abstractmethod
    def expect(self, of: Specification, arguments: Arguments, contract: NumericContract, used: Any) -> list[Expected]:
        """The expected outputs."""


@dataclass(frozen=True)
class Applied:
    """An operation with options: each of them with the operation as it is before it, the last option first."""

    plain: Specification
    options: tuple[tuple[Option, Specification], ...]

    def last(self, has: Callable[[Option], bool]) -> tuple[Option, Specification] | None:
        return next(((option, of) for option, of in self.options if has(option)), None)

    def draw(self, case: Case, contract: NumericContract) -> Arguments:
        found = self.last(lambda option: option.drawn(case))
        return found[0].draw(found[1], case, contract) if found else self.plain.draw(case, contract)

    def run(self, capability: Capability, arguments: Arguments) -> Came:
        found = self.last(lambda option: option.marks(arguments))
        return found[0].run(found[1], capability, arguments) if found else self.plain.run(capability, arguments)

    def expect(self, arguments: Arguments, contract: NumericContract, used: Any) -> list[Expected]:
        found = self.last(lambda option: option.marks(arguments))
        given = arguments, contract, used
        return found[0].expect(found[1], *given) if found else self.plain.expect(*given)


def with_options(plain: Specification, *options: Option) -> Specification:
    """The specification with those of the options that the operation has, in this order."""
    of, taken = plain, tuple[tuple[Option, Specification], ...]()
    for option in options:
        if option.values(of):
            taken = ((option, of), *taken)
            applied = Applied(plain, taken)
            of = replace(
                of, draw=applied.draw, run=applied.run, expect=applied.expect, rare=option.rare(of),
                production=(*of.production, *option.cases(of)), sources={**of.sources, option.name: option.source},
            )  # fmt: skip
    return of
