"""The specification of an operation: its axes and options, how its inputs are drawn, and the expected outputs.

A case is one choice of sizes, options, family and seed. Tables give a base and rows that differ from it in one thing, so that
a failure names its cause; mixed rows, drawn once from the row's number, cover combinations.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any
from zlib import crc32

import numpy as np

from ssmspec_ref.contract import Capability, Limits, NumericContract
from ssmspec_ref.options.words import nearest

from ..cases import Case, identify, split
from ..errors import UnknownCase
from ..judge.draw import finite
from .called import Arguments, Came
from .cover import cover, no_powers_of_two
from .expected import Expected
from .tables import Beside, Further, mixed

DRAWN = {"standard": 2, "deep": 40}
"""Cases of each operation that are drawn when a run starts."""
TRIES, LARGEST_DRAWN = 400, 3000
"""Draws of which those that fit are taken; elements of a drawn case, by the product of its sizes."""
TIERS = ("smoke", "standard", "deep")


@dataclass(frozen=True, repr=False)
class Specification:
    """One operation, or one kind of layer for one operation.

    `draw(case, contract)` returns the arguments, rounded to the contract's formats; `expect(arguments, contract, used)` the
    expected outputs; `run(capability, arguments)` calls the implementation. `rows` are sizes that differ from `base`; `ok`
    rejects invalid sizes (groups that do not divide the heads). `sources` says why a case exists. `fixed` are options with a
    single value, which distinguish two specifications of one operation. `further` are cases of the standard tier given by
    sizes, options and family: sizes beyond one tile, and combinations of two changes. `rare` are option values that only such
    cases have; for an option that the table does not have, the first value is the default. `production` are cases of the
    standard tier that smoke and the golden vectors never use: sizes and histories of engines. `deep` are cases of the tier
    deep only.
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
    production: tuple["Further", ...] = ()
    deep: tuple["Further", ...] = ()

    def __repr__(self) -> str:
        return " ".join([self.operation, *(f"{name}={value}" for name, value in self.fixed.items())])

    @cached_property
    def defaults(self) -> dict[str, str]:
        return {name: values[0] for name, values in self.values.items()}

    @cached_property
    def values(self) -> dict[str, tuple[str, ...]]:
        """Every value of every option, the rare ones last."""
        names = [*self.options, *(name for name in self.rare if name not in self.options)]
        return {name: (*self.options.get(name, ()), *self.rare.get(name, ())) for name in names}

    @property
    def offered(self) -> dict[str, tuple[str, ...]]:
        """Every value of every option, and the fixed ones."""
        return {**self.values, **{name: (value,) for name, value in self.fixed.items()}}

    @property
    def offered_text(self) -> list[str]:
        """Each option with its values, as `name=one|other`."""
        return [f"{name}={'|'.join(values)}" for name, values in self.offered.items()]

    @cached_property
    def largest(self) -> dict[str, int]:
        """The largest size of each axis in the tier standard."""
        more = (*self.further, *self.production, *crossed(self))
        rows = (self.base, *self.rows, *(sizes for sizes, _, _ in more))
        return {axis: max(row.get(axis, size) for row in rows) for axis, size in self.base.items()}

    def widest(self, case: Case, limits: Limits) -> bool:
        """Whether a case is as large along an axis as the limits and the tables let it be."""
        most = {axis: min(size, _high(limits, axis)) for axis, size in self.largest.items()}
        return case.seed == 0 and any(size == most[axis] > self.base[axis] for axis, size in case.sizes.items())

    def expected(self, arguments: Arguments, contract: NumericContract, used: Any) -> list[Expected]:
        """The expected outputs, of inputs of which some are never read and hold no numbers."""
        return self.expect(finite(arguments) if "dead" in self.rare else arguments, contract, used)

    def case(self, sizes: Mapping[str, int], options: Mapping[str, str], family: str, seed: int) -> Case:
        return Case(self.operation, {**self.base, **sizes}, {**self.defaults, **self.fixed, **options}, family, seed)

    def identify(self, case: Case) -> str:
        """The id; options that distinguish specifications of one operation (`fixed`) are always included."""
        return identify(case, self._unsaid)

    @cached_property
    def _unsaid(self) -> dict[str, str]:
        """The value of each option that an id leaves out."""
        return {**self.defaults, **dict.fromkeys(self.fixed, "")}

    def source(self, case: Case) -> str:
        """Why the case exists: the equation, and the bug for each option that is not the default."""
        changed = [name for name, value in case.options.items() if value != self.defaults.get(name, value)]
        found = [self.sources.get(name, "") for name in ["", *changed]]
        return "; ".join(dict.fromkeys(part for part in found if part))

    def cases(self, tier: str, limits: Limits) -> Iterator[Case]:
        """The distinct cases of a tier within the limits. Smoke is a subset of standard (`cover`), without rare values;
        standard is a subset of deep."""
        if tier == "smoke":
            common = [case for case in self._every(limits) if self.common(case, limits)]
            return iter(cover(common, self._no_powers_of_two(limits)))
        return self._every(limits, (*self.production, *crossed(self), *(self.deep if tier == "deep" else ())))

    def tabled(self, limits: Limits | None = None) -> Iterator[Case]:
        """The cases of the standard tier without those of production."""
        return self._every(limits or Limits())

    def drawn(self, tier: str, limits: Limits, seed: int, spare: int = 0) -> Iterator[Case]:
        """Cases whose sizes, options and family are drawn when a run starts, `DRAWN` of a tier and this many more, so that
        what is right at the sizes of the tables only fails.

        Sizes are log-uniform up to the largest of the tables, preferably such as these do not have, one axis after the other,
        together at most `LARGEST_DRAWN` elements. The oracle of windows and trees walks every path: there tokens and windows
        count by their squares, fourfold.
        """
        rng = np.random.default_rng([seed, crc32(f"{self.operation} {self.fixed}".encode())])
        offered, more = self._offered(limits), (*self.further, *self.production)
        rows = (self.base, *self.rows, *(sizes for sizes, _, _ in more))
        known = {axis: {row.get(axis, self.base[axis]) for row in rows} for axis in self.base}
        found, axes, first_values = 0, list(self.base), self.first(limits)
        most = DRAWN[tier] + spare if tier in DRAWN else 0
        twice = ("t", "j") if "j" in axes or "tree" in self.options else ()
        for turn in range(TRIES):
            if found == most:
                return
            sizes, room = dict(self.base), LARGEST_DRAWN
            first = axes.index("t") if turn % 2 == 0 and "t" in axes else int(rng.integers(len(axes)))
            for axis in [axes[first], *rng.permutation(axes[:first] + axes[first + 1 :])]:
                low = max(_low(limits, axis), min(known[axis]))
                left = int((room / 4) ** 0.5) if axis in twice else room
                sizes[axis] = _drawn_size(rng, low, min(max(known[axis]), _high(limits, axis), max(low, left)), known[axis])
                room = room // (4 * sizes[axis] ** 2 if axis in twice else sizes[axis]) or 1
            chosen = {name: values[rng.integers(len(values))] for name, values in offered.items() if values}
            family = self.families[rng.integers(len(self.families))]
            case = self.case(sizes, {**first_values, **chosen}, family, 0)
            if self.ok(sizes) and _admits(limits, case):
                found += 1
                yield case

    def first(self, limits: Limits) -> dict[str, str]:
        """The value that each option has where a case names none: the first that the limits admit. An option of which they
        admit only values that have separate cases (`OWN_CASES`) is left out: only those cases have it."""
        found = {
            name: [v for v in values if _offers(limits, name, v) and v not in OWN_CASES.get(name, ())]
            for name, values in self.values.items()
        }
        return {name: values[0] for name, values in found.items() if values}

    def common(self, case: Case, limits: Limits | None = None) -> bool:
        """Whether no option has a rare value, except one that replaces a default that the limits leave out."""
        first = self.first(limits or Limits())
        return all(v in (first.get(n, v), *self.options.get(n, ())) for n, v in case.options.items())

    def _every(self, limits: Limits, more: tuple["Further", ...] = ()) -> Iterator[Case]:
        """The cases of the table, one without a power of two, and further ones, each once, within the limits."""
        seen = set()
        for case in (*self._table(limits), *self._no_powers_of_two(limits), *self._further(limits, more)):
            case = self._within(limits, case)
            if self.ok(case.sizes) and _admits(limits, case) and (name := self.identify(case)) not in seen:
                seen.add(name)
                yield case

    def _within(self, limits: Limits, case: Case) -> Case:
        """The case with each size moved into the limits."""
        sizes = {axis: min(max(size, _low(limits, axis)), _high(limits, axis)) for axis, size in case.sizes.items()}
        return Case(case.operation, sizes, case.options, case.family, case.seed)

    def _no_powers_of_two(self, limits: Limits) -> tuple[Case, ...]:
        """The plain case with no size that is a power of two, as far as the limits admit it: at n = 4 a stride of
        BLOCK_N is that of n."""
        sizes = ({}, *self.rows, *(sizes for sizes, _, _ in self.further))
        cases = (self._within(limits, self.case(some, self.first(limits), self.families[0], 0)) for some in sizes)
        plain = next((case for case in cases if self.ok(case.sizes) and _admits(limits, case)), None)
        ends = {axis: (_low(limits, axis), _high(limits, axis)) for axis in self.base}
        return () if plain is None else (replace(plain, sizes=no_powers_of_two(plain.sizes, ends, self.ok)),)

    def _offered(self, limits: Limits) -> dict[str, tuple[str, ...]]:
        return {
            name: tuple(v for v in values if v in limits.options.get(name, values)) for name, values in self.options.items()
        }

    def _table(self, limits: Limits) -> Iterator[Case]:
        offered, first = self._offered(limits), self.first(limits)
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
            yield self.case(row, {**first, **mixed}, self.families[number % len(self.families)], number + 1)

    def _further(self, limits: Limits, more: tuple["Further", ...]) -> Iterator[Case]:
        first, defaults = self.first(limits), self.defaults
        for sizes, chosen, family in (*self.further, *more):
            named = {name: first.get(name, v) if v == defaults.get(name) else v for name, v in chosen.items()}
            beside = chosen.others.items() if isinstance(chosen, Beside) else ()
            known = ((name, value) for name, value in beside if value in self.values.get(name, ()))
            offered_too = {name: value for name, value in known if _offers(limits, name, value)}
            yield self.case(sizes, {**first, **offered_too, **named}, family, 0)

    def excluded(self, limits: Limits) -> list[str]:
        """Options and sizes that the limits exclude, in words."""
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
            wrong = ", no ".join(unknown) + self._near(options, family)
            raise UnknownCase(f"{identity!r}: {self.operation} has no {wrong}; its {self._offered_instead(sizes, options)}")
        return self.case(sizes, options, family, seed)

    def _offered_instead(self, sizes: Mapping[str, int], options: Mapping[str, str]) -> str:
        """The valid axes, options or families, for the first kind that is wrong."""
        if not sizes.keys() <= self.base.keys() or not self.ok({**self.base, **sizes}):
            return f"axes are {', '.join(f'{axis}{size}' for axis, size in self.base.items())}"
        if any(value not in self.offered.get(name, ()) for name, value in options.items()):
            return f"options are {', '.join(self.offered_text)}"
        return f"families are {', '.join(self.families)}"

    def _near(self, options: Mapping[str, str], family: str) -> str:
        """The nearest valid word for the first wrong option, value or family."""
        for name, value in options.items():
            if name not in self.offered:
                return nearest(name, self.offered)
            if value not in self.offered[name]:
                return nearest(value, self.offered[name])
        return "" if family in self.families else nearest(family, self.families)


RECURRENT = ("step", "scan", "scan_masked", "scan_packed", "verify_tree")
MANY_ROWS: dict[str, int] = {"b": 17, "t": 17}
MANY_TOKENS = 66
LONG = ("slots", "bias", "act", "live")
"""Options that meet tokens past a chunk of 64; the others do in mixed rows."""
WIDE: dict[str, int] = dict.fromkeys("pnkvcd", 33)
"""Sizes beyond a tile of 16 and of 32, in which key and value channels are as many, as in most models."""
TWO_GROUPS = {"g": 2, "h": 2}
"""Of the family wide: the keys of the first are zero."""
WIDTHS = (3, 2, 5)
"""Of a convolution, in turn: kernels have a branch for each."""
ONE_ROW = {"slots": ("shuffled", "apart")}
"""Values with which a batch of one row has something to read."""
CROSSED_ALREADY = {"slots": ("far",), "far": None, "dead": None, "repeat": None, "ids": None, "graph": None}
"""Values of options, None for all, that have other sizes elsewhere."""


def crossed(of: "Specification") -> tuple["Further", ...]:
    """Of an operation on a state: every value of every option with more rows and tokens than a tile has, and with a wider
    state, where the families that are hard in it have a case too. The other axes are small. Values that are rare in the table
    meet those of the other options here."""
    if of.operation.rpartition(".")[2] not in RECURRENT or "j" in of.base or of.operation.startswith("attention"):
        return ()
    found: list[Further] = []
    small = {axis: 1 for axis in of.base if axis not in ("w", "f", "r")}
    for turn, large in ((1, MANY_ROWS), (0, WIDE)):
        sizes = small | ({"b": 3, "t": 2} if large is WIDE else {}) | large
        own = {axis: size for axis, size in sizes.items() if axis in of.base}
        if not of.ok({**of.base, **own}):
            continue
        for name, values in of.values.items():
            left_out = CROSSED_ALREADY.get(name, ())
            if left_out is None:
                continue
            for number, value in enumerate(values[1:], start=turn):
                if value not in left_out:
                    rare = {} if name in of.options else mixed(beside(of, name), number)
                    its = own | _sizes(of, large is WIDE, name, value, number)
                    found.append((its, Beside({name: value}, rare), of.families[0]))
        if large is WIDE and "wide" in of.families:  # eps and thresholds past a tile of channels
            found.append((own | {axis: two for axis, two in TWO_GROUPS.items() if axis in own}, {}, "wide"))
        elif "strong" in of.families and "t" in of.base and "lengths" not in of.values:  # cancellation past a chunk of tokens
            found.append((own, {}, "strong"))
    return tuple(found)


def beside(of: "Specification", name: str) -> dict[str, tuple[str, ...]]:
    """The options that meet those of the name: all but itself, and those that have cases of their own elsewhere."""
    return {option: values for option, values in of.values.items() if option not in (name, *CROSSED_ALREADY)}


def _sizes(of: "Specification", wide: bool, name: str, value: str, number: int) -> dict[str, int]:
    """The sizes in which the case of a value differs from the others that it is crossed with."""
    scans = of.operation.endswith((".scan", ".scan_masked"))
    found = {"w": WIDTHS[number % len(WIDTHS)]} if "w" in of.base else {}
    if wide and value in ONE_ROW.get(name, ()) and not {"lengths", "live"} & of.values.keys():
        found["b"] = 1
    return found | ({"t": MANY_TOKENS} if scans and not wide and name in LONG else {})


OWN_CASES = {"slots": ("far",), "far": ("tokens", "heads", "channels"), "repeat": ("often",), "graph": ("replayed",)}
"""Values that have separate cases, of sizes that suit them: they never replace a default that is left out."""


def _drawn_size(rng: np.random.Generator, low: int, high: int, known: set[int]) -> int:
    """Log-uniform, both ends included; the first of a few that is not known."""
    if high <= low:
        return low
    drawn = np.floor(np.exp(rng.uniform(np.log(low), np.log(high + 1), 4))).astype(int).tolist()
    return next((size for size in drawn if size not in known), int(drawn[0]))


def _offers(limits: Limits, name: str, value: str) -> bool:
    return value in limits.options.get(name, (value,))


def _admits(limits: Limits, case: Case) -> bool:
    """Whether the limits admit every option of a case."""
    return all(_offers(limits, name, value) for name, value in case.options.items())


def _low(limits: Limits, axis: str) -> int:
    return limits.sizes.get(axis, (1, 1))[0] if axis in limits.sizes else 1


def _high(limits: Limits, axis: str) -> int:
    return limits.sizes[axis][1] if axis in limits.sizes else 1 << 30
