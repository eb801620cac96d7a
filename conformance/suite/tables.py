"""Cases of a table, as sizes, options and family, and what makes several from one."""

from collections.abc import Callable, Container, Mapping

from ..judge.draw import PLAUSIBLE

Further = tuple[Mapping[str, int], Mapping[str, str], str]
"""Sizes that differ from the base, options that differ from the default, and the family."""


def sizes_of(*texts: str) -> tuple[dict[str, int], ...]:
    """Sizes as ids write them, such as "b1,t257"."""
    return tuple({size[0]: int(size[1:]) for size in text.split(",")} for text in texts)


def case_of(text: str) -> Further:
    """A case as its id writes it, "b2,t7/D=off/normal", without the parts that are plain; the plain family is gentle."""
    sizes, options, family = dict[str, int](), dict[str, str](), "gentle"
    for part in text.split("/"):
        if "=" in part:
            options = dict(option.split("=") for option in part.split(","))
        elif part.isalpha():
            family = part
        else:
            (sizes,) = sizes_of(part)
    return sizes, options, family


def cases_of(*texts: str) -> tuple[Further, ...]:
    """Cases as their ids write them (`case_of`)."""
    return tuple(map(case_of, texts))


class Beside(dict[str, str]):
    """The options of a case, and `others`, of which it has those that the operation and the limits of an adapter offer."""

    def __init__(self, options: Mapping[str, str], others: Mapping[str, str]) -> None:
        super().__init__(options)
        self.others = dict(others)


def mixed(options: Mapping[str, tuple[str, ...]], turn: int) -> dict[str, str]:
    """A value that is not the first of about half of the options, in the next turn of the other half; of an option of three
    values or more in each turn another one."""
    last = {name: len(values) - 1 for name, values in options.items() if values[1:]}
    return {
        name: options[name][1 + turn % most]
        for place, (name, most) in enumerate(last.items())
        if most > 1 or (place + turn) % 2 == 0
    }


def of_axes(axes: Container[str], sizes: Mapping[str, int]) -> dict[str, int]:
    """The sizes of these axes only: a recurrence without heads has no g and h, a prompt nothing after it."""
    return {axis: size for axis, size in sizes.items() if axis in axes}


def without_tokens(sizes: Mapping[str, int]) -> dict[str, int]:
    """The sizes of a step, without a token axis."""
    return {axis: size for axis, size in sizes.items() if axis != "t"}


def without_tokens_of(further: tuple[Further, ...]) -> tuple[Further, ...]:
    """The further cases of a step, without a token axis."""
    return tuple((without_tokens(sizes), options, family) for sizes, options, family in further)


def unread(*further: Further, dead: tuple[str, ...] = PLAUSIBLE["dead"]) -> tuple[Further, ...]:
    """Each case with every value of the option `dead` but the first."""
    return tuple((sizes, {**options, "dead": value}, family) for sizes, options, family in further for value in dead[1:])


def divides(whole: str, part: str) -> Callable[[Mapping[str, int]], bool]:
    """Requires one axis to be a multiple of the other."""
    return lambda sizes: sizes[whole] % sizes[part] == 0
