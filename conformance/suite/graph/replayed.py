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
from ..specification import Arguments, Came, Expected, Further, Handed, Specification, weights
from .replays import Replays

GRAPH = {"graph": CAPTURED}
SEEDS = (5002, 5003)
"""What is added to a case's seed for the other calls: 1 and 2 modulo 3, so that other rows are padding."""


@dataclass(frozen=True)
class Others:
    """The last argument of a call that is captured: the inputs of the other calls, for which it is replayed too. Of windows
    there are none: each method is captured."""

    calls: tuple[Arguments, ...] = ()
    captured: bool = True


def with_graph(of: Specification, *cases: Further) -> Specification:
    """The specification of a pure operation with the option `graph`, which only a `Graph` is tested with."""

    def draw(case: Case, contract: NumericContract) -> Arguments:
        first = of.draw(case, contract)
        if not replayed(case):
            return first
        others = (of.draw(replace(case, seed=case.seed + more), contract) for more in SEEDS)
        return *first, Others(tuple(same_weights(first, other) for other in others))

    def run(capability: Capability, arguments: Arguments) -> Came:
        graph, replays = graph_of(capability), Replays(graph_of(capability).capture)
        again = replace(capability, run=lambda *given: replays("", graph.prepare(*given)))
        handed, used = Handed(), None
        for call in calls_of(arguments):
            came = of.run(again, call)
            used = came.used
            for output in came.outputs:
                handed.take(output)
        return replace(handed.came(), used=used)

    def expect(arguments: Arguments, contract: NumericContract, used: Any) -> list[Expected]:
        return [
            replace(want, name=f"{want.name} of replay {number}")
            for number, call in enumerate(calls_of(arguments), 1)
            for want in of.expect(call, contract, used)
        ]

    return asking(of, cases, draw, run, expect)


def with_graph_of_windows(of: Specification, *cases: Further) -> Specification:
    """The specification of an operation over windows with the option `graph`."""

    def draw(case: Case, contract: NumericContract) -> Arguments:
        given = of.draw(case, contract)
        return (*given, Others()) if replayed(case) else given

    def run(capability: Capability, arguments: Arguments) -> Came:
        graph = graph_of(capability)

        def opened(S: Any, params: Any) -> LaunchedWindows:
            return LaunchedWindows(graph.prepare(S, params), Replays(graph.capture))

        return of.run(replace(capability, run=opened), arguments[:-1])

    def expect(arguments: Arguments, contract: NumericContract, used: Any) -> list[Expected]:
        return of.expect(arguments[:-1], contract, used)

    return asking(of, cases, draw, run, expect)


def calls_of(arguments: Arguments) -> tuple[Arguments, ...]:
    """The inputs of every call, the captured one first."""
    *first, others = arguments
    return tuple(first), *others.calls


def with_graph_over_slots(of: Specification) -> Specification:
    """`with_graph` of an operation on states: rows with and without a pool, with padding and with fresh rows."""
    ways = ("rows", *(way for way in ("shuffled", "padded", "fresh") if way in of.values["slots"]))
    return with_graph(of, *(({"b": 5}, {"slots": way}, of.families[0]) for way in ways))


def replayed(case: Case) -> bool:
    return case.options.get("graph") == "replayed"


def asking(of: Specification, cases: tuple[Further, ...], draw: Any, run: Any, expect: Any) -> Specification:
    """The specification with the option and these cases of it, in which `run` calls and `expect` gives what is expected."""

    def either(captured: Any, plain: Any, given: int) -> Any:
        """Of a call whose last argument is `Others`, `captured`. The arguments are those of a function's number `given`."""
        return lambda *rest: (captured if isinstance(rest[given][-1], Others) else plain)(*rest)

    own = tuple((sizes, {**options, "graph": "replayed"}, family) for sizes, options, family in cases)
    return replace(
        of, draw=draw, run=either(run, of.run, 1), expect=either(expect, of.expect, 0), rare={**of.rare, **GRAPH},
        production=(*of.production, *own), sources={**of.sources, "graph": "bug class SCHED"},
    )  # fmt: skip


def same_weights(first: Arguments, other: Arguments) -> Arguments:
    return tuple(old if weights(old) else new for old, new in zip(first, other, strict=True))


def graph_of(capability: Capability) -> Graph:
    """The function of a capability. Raises: GraphError if it cannot be captured."""
    if not isinstance(capability.run, Graph):
        raise GraphError("graph=replayed needs a ssmspec_ref.contract.Graph; give one as the function of the capability")
    return capability.run
