"""What the names of arguments leave open: every layout and every form of numbers that is tried."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from ssmspec_ref.errors import OptionError

from ..suite import of_operation
from ..suite.conv import OPTIONS as CONV_OPTIONS
from ..suite.recurrences import RECURRENCES
from .reading import Function, Matching
from .spellings import OFF

STYLES = (
    ("b", "t", "heads", "others"),
    ("b", "heads", "t", "others"),
    ("b", "heads", "others", "t"),
    ("t", "b", "heads", "others"),
)
"""Where tokens are: after the rows, after the heads, last, or before the rows."""
GROUPS: tuple[tuple[str, Mapping[str, str]], ...] = (("", {}), ("", {"g": "h"}), ("g", {}), ("gh", {}))
"""Groups of heads: as they are, repeated for each head, one that has no axis, or no axis of heads either: the axes that are
dropped, and those that others replace."""
SAME = {"l": "t", "s": "t", "e": "d"}
"""Other letters for an axis, in `--layout`."""


@dataclass(frozen=True)
class Guess:
    """How a function may be called: the operation, the axes of each input, the form of its numbers, and what it takes.

    `ways` names the form of an input's numbers; scale "outside" says that the output is multiplied by it afterwards.
    `options` and `sizes` are those of `Limits`. `narrow` is what is left out compared with the most general guess.
    """

    operation: str
    matching: Matching
    layouts: Mapping[str, str]
    ways: Mapping[str, str]
    options: Mapping[str, tuple[str, ...]]
    sizes: Mapping[str, tuple[int, int]]
    framework: str
    narrow: frozenset[str] = frozenset()

    @property
    def scans(self) -> bool:
        return self.operation.endswith(".scan")

    @property
    def arranged(self) -> tuple[object, ...]:
        """What decides whether a call is possible at all, apart from forms of numbers and options."""
        return self.operation, *sorted(self.layouts.items()), *self.matching.inputs.items()

    @property
    def output_axes(self) -> str:
        """The axes of the output as the reference returns it."""
        return self._without_tokens(self.matching.of.output)

    def source_axes(self, role: str) -> str:
        """The axes of an input in the reference's arguments, both where it has one or the other."""
        axes, also = self.matching.of.roles[role].axes, self.matching.of.also.get(role, "")
        more = {*also.split()} - {*axes.split(), "|"}
        return self._without_tokens(also if more and more <= {*self.layouts.get(role, "").split()} else axes)

    def _without_tokens(self, axes: str) -> str:
        return axes if self.scans else axes.replace("t ", "").replace(" t", "")


def own_options(family: str) -> Mapping[str, tuple[str, ...]]:
    """The options of a recurrence, without those that all operations have."""
    return RECURRENCES[family].options if family in RECURRENCES else CONV_OPTIONS


def left_out(family: str, options: Mapping[str, tuple[str, ...]]) -> list[str]:
    """The values of the recurrence's options that these leave out, as `name=value`."""
    return [f"{n}={v}" for n, values in own_options(family).items() for v in values if v not in options.get(n, values)]


def guesses(of: Function, matching: Matching, operation: str, pins: Mapping[str, str], framework: str) -> Iterator[Guess]:
    """Every guess for an operation, the likeliest first, each once. `pins` are layouts that were given, by argument."""
    table, scans = matching.of, operation.endswith(".scan")
    if not scans and not matching.argument(table.state):
        return
    pinned = {matching.inputs[name]: axes for name, axes in pins.items() if name in matching.inputs}
    has = set(matching.inputs.values())
    heads = GROUPS if any("g" in role.axes.split() for role in table.roles.values()) else GROUPS[:1]
    styles = STYLES if scans else STYLES[:1]
    seen = set()
    arrangements = product(product(*table.forms), heads, ("", "b"), styles)
    for forms, (without, renamed), row, style in arrangements:
        dropped = without + row
        if {*dropped} & {"b", "h"} and any(form.get("A") == "h p n" for form in forms):
            continue  # Mamba-2 per channel, without rows or without heads, is Mamba-1
        axes = {name: role.axes for name, role in table.roles.items() if name in has}
        axes |= {name: form for forms_ in forms for name, form in forms_.items() if name in has}
        laid = {name: _moved(a, style, dropped, renamed) for name, a in axes.items()}
        if not scans:
            laid = {name: " ".join(x for x in a.split() if x != "t") for name, a in laid.items()}
        laid |= pinned
        if not scans and any("t" in a.split() for a in pinned.values()):
            return
        narrow = {*dropped, *(["groups"] if renamed else [])}
        for ways, options in _values(of, matching, laid):
            key = (*sorted(laid.items()), *sorted(ways.items()), *sorted(options.items()))
            if key not in seen:
                seen.add(key)
                left = left_out(matching.family, options)
                sizes = dict.fromkeys(dropped, (1, 1))
                yield Guess(operation, matching, laid, ways, options, sizes, framework, frozenset({*narrow, *left}))


def _moved(axes: str, style: tuple[str, ...], dropped: str, renamed: Mapping[str, str]) -> str:
    """The axes in a style."""
    letters = axes.lstrip("=").split()
    if "t" in letters and letters == axes.split():
        rest = [letter for letter in letters if letter not in "bt"]
        parts = {"heads": [x for x in rest if x in "gh"], "others": [x for x in rest if x not in "gh"]}
        letters = [letter for part in style for letter in parts.get(part, [part])]
    return " ".join(renamed.get(letter, letter) for letter in letters if letter not in dropped)


def _values(
    of: Function, matching: Matching, axes: Mapping[str, str]
) -> Iterator[tuple[dict[str, str], dict[str, tuple[str, ...]]]]:
    """The forms of numbers and the options of a guess whose inputs have these axes."""
    table = matching.of
    needed = {a.name for a in of.arguments if a.needed}
    offered, options = own_options(matching.family), dict[str, tuple[str, ...]]()
    for name, role in table.roles.items():
        argument = matching.argument(name)
        if argument is None:
            options |= role.absent or {}
        elif argument in needed and "off" in offered.get(name, ()):
            options[name] = tuple(value for value in offered[name] if value not in OFF)
    if "channel" in offered.get("D", ()) and "p" not in axes.get("D", "p"):
        options["D"] = tuple(value for value in options.get("D", offered["D"]) if value != "channel")
    if "gate" in offered and axes.get("g"):
        options["gate"] = ("channel",) if "k" in axes["g"] else ("head",)
    if matching.argument(table.state) is None and matching.family != "conv":
        options["slots"] = ("none",)
    tried = [[{flag.option: value} for value in flag.absent] for name, flag in table.flags.items()
             if flag.absent and matching.argument(name) is None]  # fmt: skip
    ways = [[{role: way} for way in ways_of(matching, role)] for role in table.ways if role in axes]
    if "scale" in table.flags and matching.argument("scale") is None:
        ways.append([{"scale": "inside"}, {"scale": "outside"}])
    for forms in product(*ways):
        form = {role: way for one in forms for role, way in one.items()}
        inside: dict[str, tuple[str, ...]] = {"scale": ("default",)} if form.get("scale") == "inside" else {}
        for values in product(*tried):
            yield form, options | inside | {option: value for one in values for option, value in one.items()}


def ways_of(matching: Matching, role: str) -> tuple[str, ...]:
    """The forms of an input's numbers, the one that its name says first, or alone."""
    name, forms = (matching.argument(role) or "").lower(), matching.of.ways[role]
    if "log" in name:
        return ("log",)
    return forms[::-1] if "factor" in forms and name in ("alpha", "decay", "a") else forms


def read_pins(of: Function, given: list[str]) -> dict[str, str]:
    """The layouts of `--layout NAME=AXES`, with axes as letters between spaces. Raises: OptionError."""
    found: dict[str, str] = {}
    for one in given:
        name, _, axes = one.partition("=")
        letters = [SAME.get(letter, letter) for letter in axes.replace(" ", "").split(",")]
        if name not in [a.name for a in of.arguments]:
            raise OptionError(f"--layout {one}: {of.name} has no argument {name!r}; it has {of.listed}")
        if not all(len(letter) == 1 and letter in "btghpnkvdcwq1" for letter in letters if axes):
            raise OptionError(
                f"--layout {one}: give the axes as letters with commas, such as {name}=b,t,d; see ssmspec_ref/shapes.py"
            )
        found[name] = " ".join(letters) if axes else ""
    return found


def operations(family: str) -> tuple[str, ...]:
    """The operations of a recurrence that are tried."""
    return tuple(name for name in (f"{family}.scan", f"{family}.step") if of_operation(name))
