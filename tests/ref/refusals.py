"""Wrong arguments: a named error that says what came and what is needed, and no argument changed."""

import re
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from typing import Any

import numpy as np
import pytest

from ssmspec_ref.shapes import Array
from tests.families import same_bits


def held(argument: Any) -> Iterator[Array]:
    """Every array in an argument: in records, in collections, in records of them."""
    if isinstance(argument, np.ndarray):
        yield argument
        return
    inner = argument if isinstance(argument, tuple | list) else argument.values() if isinstance(argument, dict) else ()
    for part in vars(argument).values() if is_dataclass(argument) and not isinstance(argument, type) else inner:
        yield from held(part)


def copied(*arguments: Any) -> list[Array]:
    """What `held` gives, copied."""
    return [array.copy() for array in held(arguments)]


def unchanged(before: list[Array], *arguments: Any) -> bool:
    """Whether the arguments still hold the same bits."""
    return all(same_bits(a, b) for a, b in zip(held(arguments), before, strict=True))


def refused(error: type[Exception], words: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """Call, see that exactly `error` is raised with words that match a pattern, and no argument changed; the message."""
    before = copied(args, kwargs)
    with pytest.raises(error) as raised:
        call(*args, **kwargs)
    assert type(raised.value) is error
    assert re.search(words, str(raised.value)), f"{words!r} is not in {str(raised.value)!r}"
    assert unchanged(before, args, kwargs)
    return str(raised.value)
