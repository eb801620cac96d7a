"""Recurrences over several windows: with a state per token, by replay, or from a checkpoint and a ring.

    verify_snapshots    a state is stored for every token of a window; that of the last accepted token is restored
    verify_replay       the state is not advanced; accepted tokens (a chain or a tree path) are replayed before the next
    window
    buffered_verify     a checkpoint and a ring of accepted tokens, flushed into the checkpoint when the ring is full
    buffered_step       the same for single tokens, all of which are accepted

Compared are the outputs at every token or node of every window, and the state after each commit, with plain decoding of the
accepted tokens, as in `speculate` but without the convolution. Reading the state replays or flushes; with `read=last` nothing
does so before the end. `beside`, `between` and `verify` are as in `speculate`. Sizes: t tokens of a window, or nodes
of a tree; j windows.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np

from ssmspec_ref import tree
from ssmspec_ref.contract import Capability, NumericContract
from ssmspec_ref.records import along, concat, rows
from ssmspec_ref.shapes import Ancestors, Array, Lengths, Mask, Parents, Path

from ...cases import Case
from ...judge.draw import PLAUSIBLE, Draw
from ..called import Arguments, Came, Handed, poison
from ..expected import Expected, allowed, oracles, orders, unseen
from ..graph.replayed import ReplayedWindows
from ..options.option import with_options
from ..production import HISTORY, SETTLED
from ..production import rows as production_rows
from ..specification import Specification
from ..speculate import (
    ACCEPT,
    ALONE,
    BESIDE,
    BETWEEN,
    DROPPED,
    OTHERS,
    RARE,
    RUN,
    STAIRS,
    THREE,
    TWICE,
    accepted,
    chain_between,
)
from ..tables import Beside, Further, case_of, cases_of, mixed, of_axes, sizes_of, unread, without_tokens, without_tokens_of
from .paths import LONGEST, back, behind, ends, paths
from .recurrence import Recurrence


@dataclass(frozen=True)
class Round:
    """One window, the tokens accepted of it, and whether the state is read after it; and a window with other tokens that is
    verified before it and dropped, if there is one."""

    window: Any
    parents: Parents | None
    advanced: Lengths
    path: Path
    read: bool = True
    dropped: Any = None


class Numbered(Draw):
    """The inputs of one window, with separate random streams."""

    def __init__(self, draw: Draw, number: int, **sizes: int) -> None:
        super().__init__(draw.case, draw.contract, **sizes)
        self.number = number

    def rng(self, name: str) -> np.random.Generator:
        return super().rng(f"{name} {self.number}")


@dataclass(frozen=True)
class Windows:
    """One recurrence over several windows."""

    of: Recurrence

    def draw(self, case: Case, contract: NumericContract) -> Arguments:
        draw = Draw(case, contract)
        rounds = tuple(self.round(draw, number) for number in range(case.sizes["j"]))
        S = draw.state("S", self.of.state)
        return S, self.of.params(draw), rounds, *(scale * S for scale in OTHERS[draw.options["beside"]])

    def round(self, draw: Draw, number: int) -> Round:
        short = draw.options.get("lengths") == "varied" and number % 3 == 1
        draw = Numbered(draw, number, t=1 if short else draw.sizes.get("t", 1))
        trees = draw.options.get("tree", "none") != "none" and not chain_between(draw, number)
        parents = draw.parents(resting=True) if trees else None
        advanced, path = accepted(draw, "accept", number, parents)
        window = self.of.window(draw)
        if parents is not None:
            window = draw.unread(window, tree.live(tree.ancestors(parents)))
        read = draw.options["read"] == "every" or number == draw.sizes["j"] - 1
        dropped = self.of.window(Numbered(draw, -1 - number, **draw.sizes)) if draw.options.get("verify") == "twice" else None
        return Round(window, parents, advanced, path, read, dropped)

    def expect(self, arguments: Arguments, contract: NumericContract, used: Any) -> list[Expected]:
        """Plain decoding from the first state: of the accepted tokens, and of each path after them."""
        S, params, rounds, *_ = arguments
        if len(rounds) > LONGEST:
            return self.accepted_only(S, params, rounds, contract)
        seen, counted = rounds[0].window, np.zeros((len(S), 0), dtype=bool)
        found: list[Expected] = []
        for number, each in enumerate(rounds):
            tokens = each.path.shape[1]
            whole = each.window if number == 0 else concat(seen, each.window)
            ancestors = behind(counted, each.parents, tokens)
            y, error = self.outputs(S, whole, ancestors, params, tokens, contract)
            name, axes = self.of.output
            judged = self.of.judged(tree.live(ancestors)[:, -tokens:])
            found.append(Expected(f"{name} of window {number}", axes, y, error, judged=judged))
            taken = along(each.window, each.path)
            seen, counted = (
                taken if number == 0 else concat(seen, taken),
                np.concatenate([counted, each.path >= 0], axis=1),
            )
            found += [self.state(S, seen, counted, params, contract, number)] if each.read else []
        return found

    def accepted_only(self, S: Array, params: Any, rounds: tuple[Round, ...], contract: NumericContract) -> list[Expected]:
        """Of a long history: the outputs at the accepted tokens of every window, and the state at the end, from one run.

        Node by node and window by window the oracle's time grows with the square of the history.
        """
        taken = [along(each.window, each.path) for each in rounds]
        seen, counted = taken[0], np.concatenate([each.path >= 0 for each in rounds], axis=1)
        for more in taken[1:]:
            seen = concat(seen, more)
        (y, held), ancestors, errors, left = (
            self.of.definition.scan(S, seen, params, counted),
            behind(counted, None, 0),
            [],
            [],
        )
        for c in (*orders(contract), *oracles(contract)):
            stepped, after = self.of.bounds.scan(S, seen, params, c, counted)
            sequential = c.order == "sequential"
            errors.append((stepped if sequential else self.of.bounds.tree(S, seen, ancestors, params, c)).error)
            left.append(after.error)
        bound, begin, found = allowed(errors, contract), 0, []
        name, axes = self.of.output
        for number, each in enumerate(rounds):
            tokens = each.path.shape[1]
            value, reached = back(y[:, begin : begin + tokens], each.path)
            error, _ = back(bound[:, begin : begin + tokens], each.path)
            found.append(Expected(f"{name} of window {number}", axes, value, error, judged=self.of.judged(reached)))
            begin += tokens
            if each.read and number < len(rounds) - 1:
                found.append(unseen(f"S after window {number}", self.of.state, S.shape))
        return [*found, self.held(held, left, contract, len(rounds) - 1)]

    def outputs(
        self, S: Array, whole: Any, ancestors: Ancestors, params: Any, tokens: int, contract: NumericContract
    ) -> tuple[Array, Array]:
        """The outputs at the last `tokens` nodes, each at the end of its own path, and their bound.

        The bound is that of the closed form over the whole run and, because a path may also be stepped, that of its steps.
        """
        row, path = paths(ancestors, tokens)
        run, live, begin = along(rows(whole, row), path), path >= 0, S[row]

        errors = []
        for c in (*orders(contract), *oracles(contract)):
            if c.order == "sequential":
                errors.append(ends(self.of.bounds.scan(begin, run, params, c, live)[0].error, live, tokens))
            else:
                errors.append(self.of.bounds.tree(S, whole, ancestors, params, c).error[:, -tokens:])
        return ends(self.of.definition.scan(begin, run, params, live)[0], live, tokens), allowed(errors, contract)

    def state(self, S: Array, seen: Any, counted: Mask, params: Any, contract: NumericContract, number: int) -> Expected:
        held = self.of.definition.scan(S, seen, params, counted)[1]
        contracts = (*orders(contract), *oracles(contract))
        errors = [self.of.bounds.scan(S, seen, params, c, counted)[1].error for c in contracts]
        return self.held(held, errors, contract, number)

    def held(self, value: Array, errors: list[Array], contract: NumericContract, number: int) -> Expected:
        name = f"S after window {number}"
        return Expected(name, self.of.state, value, allowed(errors, contract), state=True, recurrent=True)

    @cached_property
    def specifications(self) -> tuple[Specification, ...]:
        """The four operations."""
        table, options = self.of.table, self.of.options
        more = table.grouped
        shared: dict[str, Any] = {"families": ("gentle", "normal"), "draw": self.draw, "expect": self.expect, "run": run}
        shared |= {"ok": self.of.ok, "sources": {**self.of.sources, **SOURCES}}
        sizes = {**table.base, "t": 4, "j": 3}
        rows = (*sizes_of("t1", "j1,t7", "b1,j5", "b3,t2"), *more)
        single = without_tokens(sizes) | {"j": 7}

        def many(sizes: Mapping[str, int], chosen: Mapping[str, str]) -> Iterator[Further]:
            """More rows, two of the numbers with other options of the recurrence."""
            for turn, (more, _, family) in enumerate(production_rows(sizes)):
                yield more, Beside(chosen, mixed(options, turn) if turn > 1 else {}), family

        def made(operation: str, **given: Any) -> Specification:
            fields = {"base": sizes, "rows": rows} | shared | given
            fields["further"] = tuple((of_axes(fields["base"], changed), *rest) for changed, *rest in fields["further"])
            of = Specification(operation=f"{self.of.name}.{operation}", **fields)
            long = {"b": 1, "j": 12 if "t" in of.base else 30}
            return with_options(of, ReplayedWindows((case_of("b3"), (long, {"read": "last"}, "gentle"))))

        tiny, few = dict(table.tiny), {"t": 2, "j": 2}
        wide = {axis: 32 if axis == "h" else 2 for axis in tiny}
        production: tuple[Further, ...] = (
            *many({**tiny, **few}, {"accept": "all"}),
            ({**wide, **few, "b": 1}, {"accept": "all"}, "gentle"),
            ({**tiny, **few, "b": 300}, {"accept": "all"}, "gentle"),
            ({**tiny, **HISTORY}, SETTLED, "gentle"),
            ({**tiny, **HISTORY}, {"read": "last"}, "gentle"),
            THREE,
            TWICE[0],
            (TWICE[1][0], Beside(TWICE[1][1], {"lengths": "varied", "beside": "another", **mixed(options, 1)}), "gentle"),
        )
        rests: Further = ({**tiny, "b": 2, "t": 4, "j": 18}, {"accept": "rests", "read": "last"}, "gentle")
        long: tuple[Further, ...] = (({**tiny, **HISTORY, "b": 3}, {"read": "last"}, "gentle"),)
        shared |= {"production": production, "deep": (*deep_windows(table.deep), *long)}
        chain, beside = {**ACCEPT, **RUN, **options}, {"beside": RARE["beside"]}
        tiles: tuple[Further, ...] = tuple(
            ({**sizes, "j": 2}, {"accept": "all"}, family) for sizes, _, family in table.largest
        )
        steps: tuple[Further, ...] = tuple((without_tokens(sizes), {}, family) for sizes, _, family in tiles)
        return (
            made("verify_snapshots", options=chain, further=(*FURTHER, *tiles, BESIDE), rare=beside | DROPPED),
            made(
                "verify_replay",
                options={**TREE, **chain},
                further=(*CHAINS, *FURTHER, *tiles, TALL, ALONE, BESIDE, BETWEEN),
                production=(*production, ({**tiny, **HISTORY}, {**SETTLED, "tree": "none"}, "gentle"), *DEAD_NODES),
                rare=beside | {"between": ("trees", "chains"), **DROPPED, **PLAUSIBLE},
            ),
            made(
                "buffered_verify",
                options=chain,
                further=(*FURTHER, *tiles, LONG, STAIRS, RESTS, BESIDE),
                rare=RESTING | DROPPED,
                production=(*production, rests),
            ),
            made(
                "buffered_step",
                base=single,
                rows=(*sizes_of("j1", "b1,j17"), *more),
                further=(
                    *cases_of("b3,j70,g1,h1", "b1,j150/read=last", "b17,j2,g1,h1"),
                    *steps,
                    case_of("beside=another"),
                ),
                options={"read": RUN["read"], **options},
                production=(
                    *many({**tiny, "j": 2}, {}),
                    ({**wide, "b": 1, "j": 2}, {}, "gentle"),
                    ({**tiny, "b": 2, "j": 600}, {"read": "last"}, "gentle"),
                    case_of("b2/beside=two"),
                ),
                deep=without_tokens_of(table.deep),
                rare=beside,
            ),
        )


def deep_windows(further: tuple[Further, ...]) -> Iterator[Further]:
    """Edges of tiles, in two windows of what a case of a scan has as one."""
    return (({**sizes, "t": min(sizes["t"], 17), "j": 2}, {"accept": "all"}, family) for sizes, _, family in further)


def run(capability: Capability, arguments: Arguments) -> Came:
    """Outputs of every window, and S after each commit after which it is read. Later calls must leave them as they are."""
    S, params, rounds, *others = arguments
    subject, handed = capability.run(S, params), Handed()
    beside = [capability.run(other, params) for other in others]
    poison(subject)
    for each, turned in zip(rounds, rounds[::-1], strict=True):
        if each.dropped is not None:
            subject.verify(each.dropped, each.parents)
        handed.take(subject.verify(each.window, each.parents))
        for other in beside:
            other.verify(turned.window, turned.parents)
        subject.commit(each.advanced, each.path)
        for other in beside:
            other.commit(turned.advanced, turned.path)
        poison(subject)
        if each.read:
            handed.take(subject.state())
    return handed.came()


DEAD_NODES = unread(case_of("b6,t7"))
"""The padding of smaller trees is never read."""
TREE = {"tree": ("branch", "star", "vine", "none"), "ragged": ("on", "off")}
"""Operations without trees: the window is a chain."""
FURTHER = cases_of(
    "b3,j12,t3/lengths=varied,read=last",
    "b1,j5,t8/accept=all",
    "b1,j2,t17/accept=all",
    "b2,j9/accept=all,lengths=varied,read=last",
    "b17,t2,j2,g1,h1/accept=all",
)
"""Twelve windows; forty tokens accepted, past rings of 16 and 32; a window past 16 tokens; explicit flushes; more than one
tile of rows."""
CHAINS: tuple[Further, ...] = tuple((sizes, {**options, "tree": "none"}, family) for sizes, options, family in FURTHER)
LONG = case_of("b1,j18,t8/accept=all,read=last")
"""144 tokens: rings of up to 64 entries wrap around twice."""
RESTS = case_of("b2,j18,t8,g1,h1/accept=rests,read=last")
"""72 tokens of each row: a ring of up to 64 entries is flushed for a window of which the row accepts nothing, while the other
row keeps its entries."""
RESTING = RARE | {"accept": ("stairs", "rests")}
TALL = case_of("b1,j4,t33/accept=all,tree=vine")
SOURCES = {
    "": "ReplaySSM, algorithms 2 to 6; Snakes and Ladders, section 3.1",
    "accept": "vllm-project/vllm#50272",
    "tree": "STree, section 3",
}
windows = cache(Windows)
"""One for each recurrence."""


def specifications(kind: Recurrence) -> tuple[Specification, ...]:
    """The operations over windows of a recurrence that is tested without layers."""
    return windows(kind).specifications if kind.alone else ()
