"""Cases: one set of inputs each, with an id that is enough to run it again.

ssd.scan/b3,t7,g2,h6,p5,n8/D=channel,z=on/gentle/s0
operation / sizes of the axes / options other than the default, or "plain" / family of inputs / seed
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from .errors import UnknownCase

PLAIN = "plain"
_SIZE = re.compile(r"^([a-z])(\d+)$")


@dataclass(frozen=True)
class Case:
    """One set of inputs for one operation. `options` holds every option, defaults included."""

    operation: str
    sizes: Mapping[str, int]
    options: Mapping[str, str]
    family: str
    seed: int

    def size(self) -> int:
        """The cost of a case, for finding the smallest: the product of its axes."""
        product = 1
        for value in self.sizes.values():
            product *= value
        return product


def identify(case: Case, defaults: Mapping[str, str]) -> str:
    """The id of a case. Options at their default are omitted, so that adding an option changes no id."""
    sizes = ",".join(f"{axis}{size}" for axis, size in case.sizes.items())
    options = ",".join(f"{name}={value}" for name, value in case.options.items() if value != defaults[name])
    return "/".join([case.operation, sizes, options or PLAIN, case.family, f"s{case.seed}"])


def split(identity: str) -> tuple[str, dict[str, int], dict[str, str], str, int]:
    """Split an id into operation, sizes, options as written, family and seed.

    Raises: UnknownCase.
    """
    parts = identity.split("/")
    sizes = [_SIZE.match(part) for part in parts[1].split(",")] if len(parts) == 5 else []
    options = [] if len(parts) != 5 or parts[2] == PLAIN else [part.partition("=") for part in parts[2].split(",")]
    if len(parts) != 5 or None in sizes or not all(sep for _, sep, _ in options) or not re.fullmatch(r"s\d+", parts[4]):
        raise UnknownCase(
            f"{identity!r} is not a case id; an id is operation/sizes/options/family/seed; `ssmspec conform list` prints them"
        )
    named = {match[1]: int(match[2]) for match in sizes if match}
    if len(named) != len(sizes) or 0 in named.values():
        raise UnknownCase(f"{identity!r} is not a case id; it must name each axis once, with a size of at least 1")
    return parts[0], named, {name: value for name, _, value in options}, parts[3], int(parts[4][1:])
