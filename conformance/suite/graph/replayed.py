"""Any operation as a captured graph: captured with the inputs of one call, replayed with them and with those of others.

Option `graph=replayed`: shapes, options and weights are the same in all calls; states, tokens, slots, padding, lengths,
masks, parents and counts are not. Every replay is compared. Of operations over several windows, each method is captured once
for each set of shapes and replayed for all further windows.
"""

from dataclasses import dataclass, replace
from typing import Any

from ssmspec_ref.contract import CAPTURED, Capability, Graph, LaunchedWindows, NumericContract

from ...cases import Case
from ...errors import GraphError
from ..called import Arguments, Came, Handed, weights
from ..expected import Expected
from ..options.option import Option
from ..specification import Specification
from ..tables import Further
from .replays import Replays

SEEDS = (5002, 5003)
"""What is added to a case's seed for the other calls: 1 and 2 modulo 3, so that other rows are padding."""


@dataclass(frozen=True)
class Others:
    """The last argument of a call that is captured: the inputs of the other calls, for which it is replayed too. Of windows
    there are none: each method is captured."""

    calls: tuple[Arguments, ...] = ()
    captured: bool = True


@dataclass(frozen=True)
class Replayed(Option):
    """A pure operation as a graph, which only a `Graph` is tested with, in these cases."""

    some: tuple[Further, ...] = ()
    name, source, off = "graph", "bug class SCHED", CAPTURED[0]

    def values(self, of: Specification) -> tuple[str, ...]:
        return CAPTURED[1:]

    def cases(self, of: Specification) -> tuple[Further, ...]:
        return tuple((sizes, {**options, "graph": "replayed"}, family) for sizes, options, family in self.some)

    def marks(self, arguments: Arguments) -> bool:
        return isinstance(arguments[-1], Others)

    def draw(self, of: Specification, case: Case, contract: NumericContract) -> Arguments:
        first = of.draw(case, contract)
        others = (of.draw(replace(case, seed=case.seed + more), contract) for more in SEEDS)
        return *first, Others(tuple(same_weights(first, other) for other in others))

    def run(self, of: Specification, capability: Capability, arguments: Arguments) -> Came:
        graph, replays = graph_of(capability), Replays(graph_of(capability).capture)
        again = replace(capability, run=lambda *given: replays("", graph.prepare(*given)))
        handed, used = Handed(), None
        for call in calls_of(arguments):
            came = of.run(again, call)
            used = came.used
            for output in came.outputs:
                handed.take(output)
        return replace(handed.came(), used=used)

    def expect(self, of: Specification, arguments: Arguments, contract: NumericContract, used: Any) -> list[Expected]:
        return [
            replace(want, name=f"{want.name} of replay {number}")
            for number, call in enumerate(calls_of(arguments), 1)
            for want in of.expect(call, contract, used)
        ]


class ReplayedOverSlots(Replayed):
    """The same of an operation on states: rows with and without a pool, with padding and with fresh rows."""

    def cases(self, of: Specification) -> tuple[Further, ...]:
        ways = ("rows", *(way for way in ("shuffled", "padded", "fresh") if way in of.values["slots"]))
        return tuple(({"b": 5}, {"slots": way, "graph": "replayed"}, of.families[0]) for way in ways)


class ReplayedWindows(Replayed):
    """The same of an operation over windows, whose methods are captured."""

    def draw(self, of: Specification, case: Case, contract: NumericContract) -> Arguments:
        return *of.draw(case, contract), Others()

    def run(self, of: Specification, capability: Capability, arguments: Arguments) -> Came:
        graph = graph_of(capability)

        def opened(S: Any, params: Any) -> LaunchedWindows:
            return LaunchedWindows(graph.prepare(S, params), Replays(graph.capture))

        return of.run(replace(capability, run=opened), arguments[:-1])

    def expect(self, of: Specification, arguments: Arguments, contract: NumericContract, used: Any) -> list[Expected]:
        return of.expect(arguments[:-1], contract, used)


def calls_of(arguments: Arguments) -> tuple[Arguments, ...]:
    """The inputs of every call, the captured one first."""
    *first, others = arguments
    return tuple(first), *others.calls


def replayed(case: Case) -> bool:
    return case.options.get("graph") == "replayed"


def same_weights(first: Arguments, other: Arguments) -> Arguments:
    return tuple(old if weights(old) else new for old, new in zip(first, other, strict=True))


def graph_of(capability: Capability) -> Graph:
    """The function of a capability. Raises: GraphError if it cannot be captured."""
    if not isinstance(capability.run, Graph):
        raise GraphError("graph=replayed needs a ssmspec_ref.contract.Graph; give one as the function of the capability")
    return capability.run
