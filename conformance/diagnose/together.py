"""What the failing cases of one operation have in common and the passing ones lack."""

from collections.abc import Callable, Iterator, Sequence

from ..cases import Case
from .extent import size_word

Rule = tuple[str, Callable[..., bool]]
FEWEST = 12
"""Fewest cases for a rule; with fewer any rule may be chance."""
CHANCE = 0.05
"""A rule is reported if chance would produce one like it, among all that are tried, less often than this."""
MULTIPLES = (2, 4, 8, 16, 64)


def together(failing: Sequence[Case], passing: Sequence[Case], smallest: Case | None = None) -> str:
    """The option, family or size that separates failing from passing cases; "" if there is none, or too few cases.

    Nothing is said that the smallest failing case contradicts, which is counted with neither.
    """
    if not passing or not failing or len(failing) + len(passing) < FEWEST:
        return ""
    shrunk = [] if smallest is None or smallest.operation != failing[0].operation else [smallest]
    rules = [
        (says, sum(map(holds, failing)), sum(map(holds, passing)))
        for says, holds in _rules([*failing, *shrunk], passing)
        if all(map(holds, shrunk))
    ]
    bad, good = len(failing), len(passing)
    for says, met, also in rules:
        if met == bad and not also:
            return f"exactly the cases with {says} fail: {bad} of {bad + good}"
    needed = [
        (good - also, says)
        for says, met, also in rules
        if met == bad and 2 * (good - also) >= good and ((bad + also) / (bad + good)) ** bad * len(rules) < CHANCE
    ]
    if needed and bad > 1:
        without, says = max(needed, key=lambda rule: rule[0])
        return f"every failing case has {says}; {without} of the {good} passing cases do not"
    enough = [
        (met, says)
        for says, met, also in rules
        if not also and 2 * met >= bad and (bad / (bad + good)) ** met * len(rules) < CHANCE
    ]
    if enough:
        met, says = max(enough, key=lambda rule: rule[0])
        return f"every case with {says} fails; these are {met} of the {bad} failing cases"
    return ""


def _rules(failing: Sequence[Case], passing: Sequence[Case]) -> Iterator[Rule]:
    cases = [*failing, *passing]
    for name in cases[0].options:
        values = sorted({case.options.get(name, "") for case in cases})
        if len(values) < 2:
            continue
        for value in values:
            yield f"{name}={value}", lambda case, name=name, value=value: case.options.get(name) == value
        some = sorted({case.options.get(name, "") for case in failing})
        if 1 < len(some) < len(values):
            yield f"{name}={'|'.join(some)}", lambda case, name=name, some=some: case.options.get(name) in some
    families = sorted({case.family for case in cases})
    for family in families if len(families) > 1 else ():
        yield f"the family {family}", lambda case, family=family: case.family == family
    for axis in cases[0].sizes:
        many = size_word(cases[0].operation, axis, True)
        sizes = sorted({case.sizes[axis] for case in cases})
        for size in sizes[1:]:
            yield f"{size} or more {many} ({axis})", lambda case, axis=axis, size=size: case.sizes[axis] >= size
        for size in sizes[:-1]:
            yield f"at most {size} {many} ({axis})", lambda case, axis=axis, size=size: case.sizes[axis] <= size
        for size in sizes:
            yield f"{size} {many} ({axis})", lambda case, axis=axis, size=size: case.sizes[axis] == size
        for step in MULTIPLES:
            yield f"a multiple of {step} {many} ({axis})", lambda c, axis=axis, step=step: c.sizes[axis] % step == 0
            yield f"{many} that are no multiple of {step} ({axis})", lambda c, axis=axis, step=step: c.sizes[axis] % step != 0
