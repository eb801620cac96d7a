"""Any operation with a state over a pool of slots, as engines call it: rows in any slots, padding, another slot to write;
and rows without an initial state.

The first argument is a `ssmspec_ref.slots.Pool` instead of the states of the rows, and the pool is returned instead of their
new states. Slots that no row writes must be unchanged, bit for bit; outputs of padding are not compared.

    shuffled  rows in any order in a larger pool, each reads and writes one slot
    padded    of three rows one is padding, in a batch of one row that row; in others slot 0 belongs to the first live row
    apart     each row writes another slot than it reads, and the second reads what the first reads, as after a fork; in a
              batch of three rows and more the last row writes where it reads
    far       one slot more than rows, 2^31 elements apart, over addresses without memory (`ssmspec_ref.slots.far`): an offset
              of 32 bits leads to another place. The pool that comes back must be as far apart; otherwise nothing is tested

    fresh     of three rows one has no initial state (`ssmspec_ref.slots.FreshPool`), in a batch of one row that row: it
              starts from zeros, though its slot holds what another sequence left there; with `dead` NaN or infinity, since
              it is never read
    none      no pool: the states are None, so that all rows start from zeros; a prompt, with or without no-ops

In cases of the last family, whose inputs are given three times, the rows of the second call are in other slots.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ssmspec_ref.contract import Capability, NumericContract
from ssmspec_ref.shapes import Array
from ssmspec_ref.slots import FarPool, FreshPool, Pool

from ...cases import Case
from ...judge.draw import DEAD, Draw, stored, stored_state
from ..called import Arguments, Came
from ..expected import Expected
from ..specification import Specification, beside, crossed
from ..tables import Beside, Further, mixed, of_axes
from .option import Option

MANY = {"b": 17, "t": 66}
"""More rows than a byte has bits, and more tokens than a chunk of 64, of an operation that has no such case otherwise."""
WAYS = ("shuffled", "padded", "apart", "far", "fresh", "none")


@dataclass(frozen=True)
class NoStates:
    """The zeros that the rows of a call start from whose states are None."""

    states: Array


@dataclass(frozen=True)
class Slots(Option):
    """The option `slots`, which adapters must ask for (`contract.ASKED`).

    `axes` are those of the state, None for a window, which is kept in the format of inputs.
    """

    axes: str | None = None
    name, off = "slots", "rows"
    source = "bug classes PAD-SLOT, SLOT-SCOPE, SLOT-REUSE, PREFIX-CKPT, INDEX"

    def values(self, of: Specification) -> tuple[str, ...]:
        """A packed run marks its fresh sequences itself."""
        packed, prompts = of.operation.endswith("_packed"), of.operation.endswith((".scan", ".scan_masked"))
        left_out = {"far": not returns_pool(of), "fresh": packed, "none": not prompts}
        return tuple(way for way in WAYS if not left_out.get(way))

    def rare(self, of: Specification) -> Mapping[str, tuple[str, ...]]:
        return {**(DEAD if "fresh" in self.values(of) else {}), **super().rare(of)}

    def cases(self, of: Specification) -> tuple[Further, ...]:
        return further(of, self.values(of))

    def marks(self, arguments: Arguments) -> bool:
        return isinstance(arguments[0], Pool | NoStates)

    def draw(self, of: Specification, case: Case, contract: NumericContract) -> Arguments:
        S, *rest = of.draw(case, contract)
        way = case.options["slots"]
        held = NoStates(np.zeros_like(S)) if way == "none" else pool(Draw(case, contract), S, way, self.axes)
        return held, *rest

    def run(self, of: Specification, capability: Capability, arguments: Arguments) -> Came:
        held, *rest = arguments
        return of.run(capability, (None if isinstance(held, NoStates) else held, *rest))

    def expect(self, of: Specification, arguments: Arguments, contract: NumericContract, used: Any) -> list[Expected]:
        held, *rest = arguments
        if isinstance(held, NoStates):
            return of.expect((held.states, *rest), contract, used)
        live = row_of_tokens(held.write >= 0, arguments) if of.operation.endswith("_packed") else held.write >= 0
        outputs = of.expect((held.rows, *rest), contract, used)
        return [in_pool(e, held) if e.state else among(e, live, of.operation) for e in outputs]


def returns_pool(of: Specification) -> bool:
    """Trees are verified and not committed: the pool stays as it was."""
    return not of.operation.endswith("_tree")


def further(of: Specification, ways: tuple[str, ...]) -> tuple[Further, ...]:
    """A batch of five rows in each way, one of a single row, and one that is called again with other slots; three rows far
    apart; calls without states before and after others; rows that move without a token."""
    sizes, first, last = {"b": 5}, of.families[0], of.families[-1]
    many = sizes if crossed(of) else of_axes(of.base, MANY)
    first_mix, second_mix = (mixed(beside(of, "slots"), turn) if many is not sizes else {} for turn in (1, 0))
    some: dict[str, tuple[Further, ...]] = {
        "far": (({"b": 3}, {"slots": "far"}, first),),
        "fresh": (
            (many, Beside({"slots": "fresh"}, first_mix), first),
            ({"b": 1}, {"slots": "fresh"}, first),
            *((sizes, {"slots": "fresh", "dead": dead}, first) for dead in ("nan", "inf")),
        ),
        "none": ((sizes, {"slots": "none"}, first), (sizes, {"slots": "none"}, last)),
    }
    return (
        *(one for way in ways for one in some.get(way, ())),
        (many, Beside({"slots": "shuffled"}, second_mix), first),
        (sizes, {"slots": "shuffled"}, last),
        (sizes, {"slots": "padded"}, first),
        ({"b": 1}, {"slots": "padded"}, first),
        (some_idle(of) or sizes, {"slots": "apart"}, first),
    )


def some_idle(of: Specification) -> dict[str, int]:
    """Sizes at which rows of nearly every draw have nothing to do, and still move to another slot: no live token, nothing
    accepted, no path. Empty if no row of the operation can be so."""
    found = {"live": 1, "advanced": 2, "tree": 2}
    tokens = [t for option, t in found.items() if option in of.options and returns_pool(of)]
    return {"b": 17, "t": tokens[0]} if tokens else {}


def pool(draw: Draw, S: Array, way: str, axes: str | None) -> Pool:
    """A pool of two slots for each row and three more. Slots that no row reads hold numbers of the same size,
    which the format of the state holds exactly."""
    rows, count = len(S), len(S) + 1 if way == "far" else 2 * len(S) + 3
    rng = draw.rng("slots")
    order = np.arange(count)[::-1] if way == "far" else rng.permutation(count)  # no row in slot 0, which is 2^32 in 32 bits
    chosen = one_of_three(draw, rows)
    if way == "padded" and rows > 1:  # a padding row that is taken for slot 0 meets a row that lives there
        pair = [np.flatnonzero(~chosen)[0], np.flatnonzero(order == 0)[0]]
        order[pair] = order[pair[::-1]]
    read, write = order[:rows].copy(), order[:rows].copy()
    others = (np.abs(S).max() + 1.0) * rng.standard_normal((count, *S.shape[1:]))
    states = stored(others, draw.contract.io) if axes is None else stored_state(others, axes, draw.contract)
    states[read] = S
    if way == "padded":
        read[chosen] = write[chosen] = -1
    if way == "apart":
        write = order[rows : 2 * rows].copy()
        write[-1] = read[-1] if rows > 2 else write[-1]
        read[1:2] = read[:1]
    given = states, read.astype(np.int64), write.astype(np.int64)
    if way == "fresh":
        if draw.kills and draw.contract.state_scale is None:  # codes times scales cannot be NaN
            states[read[chosen]] = draw.dead
        return FreshPool(*given, chosen)
    return (FarPool if way == "far" else Pool)(*given)


def one_of_three(draw: Draw, rows: int) -> Array:
    """One row of three, the only one of a single row; with another seed other rows."""
    found: Array = ((np.arange(rows) + draw.case.seed) % 3 == 1) | (rows == 1)
    return found


def in_pool(want: Expected, held: Pool) -> Expected:
    """The whole pool: the rows' new states within their bound, all other slots unchanged."""
    live = held.write >= 0
    bound = np.zeros_like(held.states)
    bound[held.write[live]] = want.bound[live]
    return replace(want, axes=f"s{want.axes[1:]}", value=held.written(want.value), bound=bound)


def among(want: Expected, live: Array, operation: str) -> Expected:
    """An output of which padding is not compared; `live` marks its rows, or the tokens of a packed run."""
    packed = operation.endswith("_packed")
    mask = live.reshape((1, -1) if packed else (-1,) + (1,) * (want.value.ndim - 1))
    mask = mask.reshape(mask.shape + (1,) * (want.value.ndim - mask.ndim))
    return replace(want, judged=np.broadcast_to(mask, want.value.shape) & (True if want.judged is None else want.judged))


def row_of_tokens(live: Array, arguments: Arguments) -> Array:
    """Which tokens of a packed run belong to live sequences."""
    return np.repeat(live, np.diff(arguments[2]))
