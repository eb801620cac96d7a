"""A limit of time for a search. What a search has found until then is reported, and that it ended.

The time is that of the work of judge and implementation (`isolation.spent`), never that of a clock on the wall: on a busy
machine a search takes longer, and finds the same. A call without an answer has its own limit (`run.process`).
"""

from dataclasses import dataclass, field, replace
from typing import Any

from ssmspec_ref.contract import NumericContract
from ssmspec_ref.errors import SpecError

from ..isolation.spent import SPENT
from ..suite.called import Arguments
from ..suite.expected import Expected
from ..suite.specification import Specification


@dataclass
class Clock:
    """Seconds of work that a search may take from now on."""

    seconds: float
    until: float = field(init=False)
    noticed: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.until = SPENT.seconds + self.seconds

    @property
    def ended(self) -> bool:
        """Whether the time is over; a search that asks ends early if it is."""
        self.noticed = self.noticed or SPENT.seconds > self.until
        return self.noticed

    def says(self, search: str) -> list[str]:
        """One sentence if the search ended early."""
        return [f"the search for {search} ended after {self.seconds:g} s of processor time"] if self.noticed else []


class TimeIsUp(SpecError):
    """The reference computes nothing more in this search."""


def limited(specification: Specification, clock: Clock) -> Specification:
    """The specification, whose reference refuses every input when the time is over."""

    def expect(arguments: Arguments, contract: NumericContract, used: Any) -> list[Expected]:
        if clock.ended:
            raise TimeIsUp("the time of this search is over")
        return specification.expect(arguments, contract, used)

    return replace(specification, expect=expect)
