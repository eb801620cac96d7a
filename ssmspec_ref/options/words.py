"""Words out of a list, and the nearest one to a wrong word; the name of a shard."""

import re
from collections.abc import Iterable
from difflib import get_close_matches

from ..errors import OptionError

ALSO = {"fp16": "float16", "fp32": "float32", "fp64": "float64", "bf16": "bfloat16"}
"""Short names of data types, and the names that PyTorch gives them."""
SHARD = re.compile(r"([1-9][0-9]{0,5})of([1-9][0-9]{0,5})")


def nearest(given: str, choices: Iterable[str]) -> str:
    """A question with the nearest choice, such as (did you mean 'cuda'?); "" if none is near."""
    folded = {choice.lower(): choice for choice in choices if choice != given}
    found = get_close_matches(ALSO.get(given.lower(), given.lower()), folded, 1, 0.6)
    return f" (did you mean {folded[found[0]]!r}?)" if found else ""


def one_of(option: str, given: str, choices: Iterable[str]) -> str:
    """The word, if it is a choice. Raises: OptionError with all choices and the nearest one."""
    known = list(choices)
    if given not in known:
        raise OptionError(f"{option} is {given!r}{nearest(given, known)}; it must be one of {', '.join(known)}")
    return given


def shard_of(given: str) -> tuple[int, int]:
    """The shard and the number of shards, of `2of4`; the first shard is 1. Raises: OptionError."""
    found = SHARD.fullmatch(given)
    if not found or int(found[1]) > int(found[2]):
        raise OptionError(
            f"--shard is {given!r}; it must be IofN with 1 <= I <= N, such as 2of4 (I/N is no longer read: "
            "fuzz counted it from 0, conform run from 1)"
        )
    return int(found[1]), int(found[2])


def shown(text: str) -> str:
    """Text that is safe to print on a terminal: invalid text and control characters are escaped."""
    plain = text.encode(errors="backslashreplace").decode()
    return "".join(x if x.isprintable() or x == "\n" else x.encode("unicode_escape").decode() for x in plain)
