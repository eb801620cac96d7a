"""What the suite knows of an operation: its axes and options, how its inputs are drawn, and what must come out.

A case is one choice of sizes, options, family and seed. The tables give a base, and rows which differ from it in one thing,
so that a failure names its cause; mixed rows, drawn once from the row's number, cover what single changes cannot.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ssmspec_ref.contract import FLOAT64, Capability, Limits, NumericContract
from ssmspec_ref.shapes import Array

from ..cases import Case, identify, split
from ..errors import UnknownCase
from .cover import cover

TIERS = ("smoke", "standard")


@dataclass(frozen=True)
class Expected:
    """What one output must be: the oracle's value, the error bound of the declared contract, and where it counts.

    `axes` names the axes of the arrays; `state` tells a state from an output, `recurrent` what is kept in the contract's
    format of the state; `judged` is False at padding and no-ops.
    """

    name: str
    axes: str
    value: Array
    bound: Array
    state: bool = False
    recurrent: bool = False
    judged: Array | None = None


Arguments = tuple[Any, ...]


@dataclass(frozen=True)
class Came:
    """What an implementation returned: its outputs, and the weights that it really used where it says so."""

    outputs: tuple[Any, ...]
    used: Any = None


@dataclass(frozen=True)
class Specification:
    """One operation, or one kind of layer under one operation.

    `draw(case, contract)` gives the arguments, rounded to the contract's formats; `expect(arguments, contract, used)` what
    must come out; `run(capability, arguments)` calls the implementation. `rows` are sizes that differ from `base`; `ok`
    refuses sizes that make no sense (groups that do not divide the heads). `sources` says what a case is there for. `fixed`
    are options with one value, which tell two specifications of one operation apart. `further` are cases of the standard tier
    by sizes, options and family: sizes beyond one tile, and pairs that a change of one thing cannot reach. `rare` are values
    of options that only such cases have; of an option that the table does not have, the first is the default.
    """

    operation: str
    base: Mapping[str, int]
    rows: tuple[Mapping[str, int], ...]
    options: Mapping[str, tuple[str, ...]]
    families: tuple[str, ...]
    sources: Mapping[str, str]
    draw: Callable[[Case, NumericContract], Arguments]
    expect: Callable[[Arguments, NumericContract, Any], list[Expected]]
    run: Callable[[Capability, Arguments], Came]
    ok: Callable[[Mapping[str, int]], bool] = lambda sizes: True
    fixed: Mapping[str, str] = field(default_factory=dict)
    further: tuple["Further", ...] = ()
    rare: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def defaults(self) -> dict[str, str]:
        return {name: values[0] for name, values in self.values.items()}

    @property
    def values(self) -> dict[str, tuple[str, ...]]:
        """Every value of every option, the rare ones last."""
        names = [*self.options, *(name for name in self.rare if name not in self.options)]
        return {name: (*self.options.get(name, ()), *self.rare.get(name, ())) for name in names}

    def case(self, sizes: Mapping[str, int], options: Mapping[str, str], family: str, seed: int) -> Case:
        return Case(self.operation, {**self.base, **sizes}, {**self.defaults, **self.fixed, **options}, family, seed)

    def identify(self, case: Case) -> str:
        """The id; what tells two specifications of one operation apart (`fixed`) always stands in it."""
        return identify(case, {**self.defaults, **dict.fromkeys(self.fixed, "")})

    def source(self, case: Case) -> str:
        """What the case is there for: the equation, and the bug behind each option that is not the default."""
        changed = [name for name, value in case.options.items() if value != self.defaults.get(name, value)]
        found = [self.sources.get(name, "") for name in ["", *changed]]
        return "; ".join(dict.fromkeys(part for part in found if part))

    def cases(self, tier: str, limits: Limits) -> Iterator[Case]:
        """The cases of a tier within the limits, without repetition. Smoke is a part of standard (`cover`), without rare
        values."""
        every = self._every(limits)
        return iter(cover([case for case in every if self.common(case)])) if tier == "smoke" else every

    def common(self, case: Case) -> bool:
        """Whether no option has a rare value."""
        return all(v in self.options.get(name, (self.defaults.get(name, v),)) for name, v in case.options.items())

    def _every(self, limits: Limits) -> Iterator[Case]:
        seen = set()
        for case in self._table(limits):
            sizes = {axis: min(max(size, _low(limits, axis)), _high(limits, axis)) for axis, size in case.sizes.items()}
            case = Case(case.operation, sizes, case.options, case.family, case.seed)
            if self.ok(sizes) and self.identify(case) not in seen:
                seen.add(self.identify(case))
                yield case

    def _offered(self, limits: Limits) -> dict[str, tuple[str, ...]]:
        return {
            name: tuple(v for v in values if v in limits.options.get(name, values)) for name, values in self.options.items()
        }

    def _table(self, limits: Limits) -> Iterator[Case]:
        offered = self._offered(limits)
        first = {name: values[0] for name, values in offered.items() if values}
        for family in self.families:
            yield self.case({}, first, family, 0)
        for row in self.rows:
            yield self.case(row, first, self.families[0], 0)
        for name, values in offered.items():
            for value in values[1:]:
                yield self.case({}, {**first, name: value}, self.families[0], 0)
        for number in range(12):
            rng = np.random.default_rng(number)
            mixed = {name: values[rng.integers(len(values))] for name, values in offered.items() if values}
            row = ({}, *self.rows)[rng.integers(1 + len(self.rows))]
            yield self.case(row, mixed, self.families[number % len(self.families)], number + 1)
        for sizes, chosen, family in self.further:
            if all(value in limits.options.get(name, (value,)) for name, value in chosen.items()):
                yield self.case(sizes, {**first, **chosen}, family, 0)

    def excluded(self, limits: Limits) -> list[str]:
        """Options and sizes that the limits leave out, in words."""
        out = [f"{n}={v}" for n, values in self.values.items() for v in values if v not in limits.options.get(n, values)]
        return out + [f"{axis} outside {low}..{high}" for axis, (low, high) in limits.sizes.items() if axis in self.base]

    def parse(self, identity: str) -> Case:
        """The case of an id. Raises: UnknownCase."""
        operation, sizes, options, family, seed = split(identity)
        unknown = [f"axis {axis}" for axis in sizes if axis not in self.base]
        unknown += [f"{n}={v}" for n, v in options.items() if v not in self.values.get(n, (self.fixed.get(n),))]
        unknown += [f"case without {name}" for name in self.fixed if name not in options]
        unknown += [] if family in self.families else [f"family {family}"]
        unknown += [] if self.ok({**self.base, **sizes}) else ["case of these sizes together"]
        if operation != self.operation or unknown:
            offered = [f"{n}={'|'.join(v)}" for n, v in self.values.items()] + [f"{n}={v}" for n, v in self.fixed.items()]
            raise UnknownCase(
                f"{identity!r}: {self.operation} has no {', no '.join(unknown)}; its axes are {', '.join(self.base)}, its "
                f"options {', '.join(offered)}, its families {', '.join(self.families)}"
            )
        return self.case(sizes, options, family, seed)


Further = tuple[Mapping[str, int], Mapping[str, str], str]
"""Sizes that differ from the base, options that differ from the first offered, and the family."""

Output = tuple[str, str, str]
"""The name of an output, its axes, and "S" for a recurrent state, "M" for a window of the convolution, "" for an output."""


def expecting(
    oracle: Callable[..., tuple[Array, ...]],
    bound: Callable[..., Any],
    outputs: tuple[Output, ...],
    judged: Callable[[Arguments], list[Array | None]] | None = None,
) -> Callable[[Arguments, NumericContract, Any], list[Expected]]:
    """What must come out of a pure operation: the oracle's values, each with the contract's bound and the oracle's own.

    `bound(*arguments, contract)` gives for each output how far an implementation of a contract may be from exact arithmetic.
    """

    def expect(arguments: Arguments, contract: NumericContract, used: Any) -> list[Expected]:
        values = oracle(*arguments)
        bounds = zip(*(bound(*arguments, c) for c in (contract, *oracles(contract))), strict=True)
        masks = judged(arguments) if judged else [None] * len(outputs)
        return [
            Expected(name, axes, value, allowed([pair.error for pair in pairs], contract), bool(role), role == "S", mask)
            for (name, axes, role), value, pairs, mask in zip(outputs, values, bounds, masks, strict=True)
        ]

    return expect


def oracles(contract: NumericContract) -> tuple[NumericContract, ...]:
    """The contract of the oracle, whose own error counts beside that of a float64 implementation."""
    return (FLOAT64,) if contract.accumulate == "fp64" else ()


def orders(contract: NumericContract) -> tuple[NumericContract, ...]:
    """The declared order, and the sequential one beside it: for runs over several calls, whose bounds are added.

    A run may be chunked in one call and sequential in the next. The recurrences are affine in the state, so what a call
    leaves behind is carried on as the whole run's bound in that order carries it, and what the next call adds is within the
    whole run's bound in the other order. The state is stored after every call.
    """
    stored = replace(contract, stored_every_token=True)
    return (stored,) if contract.order == "sequential" else (stored, replace(stored, order="sequential"))


def allowed(errors: list[Array], contract: NumericContract) -> Array:
    """The sum of bounds. Beside a narrower format the oracle's own is u_64 / u of it, at most 2^-29; 2^-24 is added."""
    total: Array = np.sum(errors, axis=0)
    return total if contract.accumulate == "fp64" else total * (1 + 2.0**-24)


def copied(came: Any) -> Any:
    """What came, as it is now: what an implementation writes into its buffers later does not count."""
    return came.copy() if isinstance(came, np.ndarray) else came


def pure(capability: Capability, arguments: Arguments) -> Came:
    """Call a pure operation."""
    got = capability.run(*arguments)
    return Came(got if isinstance(got, tuple) else (got,))


def without_tokens(sizes: Mapping[str, int]) -> dict[str, int]:
    """The sizes of a step: no axis of tokens."""
    return {axis: size for axis, size in sizes.items() if axis != "t"}


def without_tokens_of(further: tuple[Further, ...]) -> tuple[Further, ...]:
    """The further cases of a step."""
    return tuple((without_tokens(sizes), options, family) for sizes, options, family in further)


def divides(whole: str, part: str) -> Callable[[Mapping[str, int]], bool]:
    """Sizes in which the one axis is a multiple of the other."""
    return lambda sizes: sizes[whole] % sizes[part] == 0


def _low(limits: Limits, axis: str) -> int:
    return limits.sizes.get(axis, (1, 1))[0] if axis in limits.sizes else 1


def _high(limits: Limits, axis: str) -> int:
    return limits.sizes[axis][1] if axis in limits.sizes else 1 << 30
