"""What separates the sizes of an axis that fail from those that pass."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

ALIKE, OTHERS, ODD_BLOCK = 2, 4, 3
"""Fewest sizes on the smaller and on the larger side of a rule about multiples; and on the smaller side for a block that is
no power of two, of which more could fit by chance."""
SHOWN = 8
"""Sizes to list."""


@dataclass(frozen=True)
class Rule:
    """Which sizes fail: in words, as a function, and the further sizes that would refute the rule if there is none."""

    says: str
    fails: Callable[[int], bool]
    further: tuple[int, ...]


def rule(fails: Sequence[int], passes: Sequence[int], axis: str, many: str) -> Rule | None:
    """The simplest rule; None if nothing simple separates them, or too few were tried."""
    if not fails or not passes:
        return None
    least, most = min(fails), max(fails)

    def told(says: str) -> str:
        return f"{many} ({axis}): {says} ({len(fails) + len(passes)} tried, {min(*fails, *passes)} to {max(*fails, *passes)})"

    below, above = [size for size in passes if size < least], [size for size in passes if size > least]
    if below and not above:
        return Rule(
            told(f"{least} and more fail, up to {max(below)} pass"),
            lambda n: n >= least,
            (2 * least - 2, 2 * least),
        )
    if len(fails) == 1:
        return Rule(told(f"only {least} fails"), lambda n: n == least, _around(least, [*fails, *passes]))
    if most < (first := min(passes)):
        says = f"up to {most} fail, {first} and more pass"
        return Rule(told(says), lambda n: n <= most, (first + 1, 2 * first + 1))
    for some, others, verb in ((fails, passes, "fail"), (passes, fails, "pass")):
        if len(some) >= ALIKE and len(others) >= OTHERS and (block := _block(some, others)):
            left = some[0] % block
            return Rule(
                told(f"only {_of(left, block)} {verb}"),
                partial(_fails, left, block, verb == "fail"),
                _confirming(left, block, [*some, *others]),
            )
    if len(passes) == 1:
        return Rule(told(f"only {passes[0]} passes"), lambda n: n != passes[0], _around(passes[0], [*fails, *passes]))
    block = _block(above, fails) if len(above) >= ALIKE else 0
    multiples = block > 0 and above[0] % block == 0
    if below and (multiples or 3 * len(above) <= len(fails)):
        which = f"multiples of {block} ({_listed(above)})" if multiples else _listed(above)
        return Rule(
            told(f"{least} and more fail, except {which}; up to {max(below)} pass"),
            lambda n: n >= least and (n % block != 0 if multiples else n not in above),
            _confirming(0, block, [*fails, *passes], least) if multiples else (),
        )
    return None


def _fails(left: int, block: int, failing: bool, size: int) -> bool:
    return (size % block == left) is failing


def _block(some: Sequence[int], others: Sequence[int]) -> int:
    """The largest number by which all of some sizes leave one remainder, if none of the others does; 0 if one does."""
    block = math.gcd(*(size - some[0] for size in some))
    power = block & (block - 1) == 0
    apart = block > 1 and all((size - some[0]) % block for size in others)
    return block if apart and (power or len(some) >= ODD_BLOCK) else 0


def _confirming(left: int, block: int, tried: Sequence[int], above: int = 0) -> tuple[int, ...]:
    """The next sizes with this remainder, beside it, and half a block after it, which were not tried."""
    first = (left or block) + math.ceil(above / block) * block
    own = next(n for n in range(first, max(tried) + 2 * block, block) if n not in tried)
    return tuple(n for n in dict.fromkeys((own, own + 1, own + block // 2)) if n not in tried)


def _around(size: int, tried: Sequence[int]) -> tuple[int, ...]:
    """The neighbours of a size, and twice the size, as far as they were not tried."""
    return tuple(n for n in (size - 1, size + 1, 2 * size, 2 * size - 1) if n > 0 and n not in tried)


def _of(left: int, block: int) -> str:
    if left == 0:
        return f"multiples of {block}"
    if block == 2:
        return "odd sizes"
    return (
        f"sizes one less than a multiple of {block}" if left == block - 1 else f"sizes {left} more than a multiple of {block}"
    )


def _listed(sizes: Sequence[int]) -> str:
    return ", ".join(map(str, sizes[:SHOWN])) + (", .." if len(sizes) > SHOWN else "")
